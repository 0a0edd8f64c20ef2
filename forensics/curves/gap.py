"""The gap between held-out and training loss, and the smaller losses beside the main one: router balance, z-loss, multi-token heads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.curves.event import Context, Event, scan_of
from forensics.curves.series import Floats, Series
from forensics.curves.spikes import excursions
from forensics.curves.trend import mad_scale


def val_sets(ctx: Context) -> dict[str, Series]:
    """Held-out losses by name; the single unnamed one as `eval_loss`."""
    sets = {f"eval_loss/{k}": s.finite() for k, s in ctx.curves.starting("eval_loss/").items()}
    one = ctx.curves.get("eval_loss")
    if one is not None:
        sets["eval_loss"] = one.finite()
    return {k: s for k, s in sets.items() if len(s)}


def val_gap(ctx: Context) -> list[Event] | str:
    """A held-out loss that rises while the training loss falls (rule 22): slope of the gap positive by permutation, five evaluations or more."""
    sets, train = val_sets(ctx), ctx.loss
    if not sets:
        return "no held-out loss was logged"
    if train is None:
        return "the training loss was not logged"
    enough = {k: s for k, s in sets.items() if len(s) >= 5}
    if not enough:
        return "fewer than five evaluations were logged"
    found = []
    for name, s in enough.items():
        low = int(np.argmin(s.value))
        if len(s) - low < 5:
            continue
        seg = slice(low, len(s))
        near = np.array([np.median(train.value[max(0, train.at(int(t)) - 10) : train.at(int(t)) + 1]) for t in s.step[seg]])
        gap, rise = s.value[seg] - near, float(s.value[-1] - s.value[low])
        noise = max(mad_scale(np.diff(s.value)) / np.sqrt(2), 1e-12)
        p = _slope_p(gap)
        if (
            p < 0.05
            and rise > max(3 * noise, 0.01 * abs(float(s.value[low])))
            and np.polyfit(np.arange(len(gap)), s.value[seg], 1)[0] >= 0
            and near[-1] <= near[0]
        ):
            found.append(
                Event(
                    name,
                    "val_gap",
                    "alarm" if rise > 0.05 * abs(float(s.value[low])) else "notice",
                    int(s.step[low]),
                    int(s.step[-1]) + 1,
                    int(s.step[-1]),
                    "unknown",
                    rise,
                    rise / noise,
                    rise,
                    None,
                    subcause="gap_opening",
                    confidence="medium",
                    evidence={"p": p, "lowest": float(s.value[low]), "last": float(s.value[-1]), "train_change": float(near[-1] - near[0])},
                )
            )
    return found


def _slope_p(y: np.ndarray, rounds: int = 500) -> float:
    """One-sided permutation p of a positive slope; fixed seed."""
    x = np.arange(len(y)) - (len(y) - 1) / 2
    rng = np.random.default_rng(0)
    seen = float(x @ y)
    return float((1 + sum(float(x @ rng.permutation(y)) >= seen for _ in range(rounds))) / (rounds + 1))


BEND = 0.1  # share by which the slope of a held-out loss may change on the way


@dataclass(frozen=True)
class HeldOut:
    """What an event left on the held-out loss, averaged over sets.

    Attributes:
        peak: highest excess over the line of the evaluations before. last: mean excess of the last four (of at most sixteen).
        noise: sd of one evaluation. error: standard error of `last`, extrapolation included.
        records: evaluations from the event on.
    """

    peak: float
    last: float
    noise: float
    error: float
    records: int


def val_shift(ctx: Context, start: int) -> HeldOut | None:
    """Read the held-out losses across an event; None where fewer than five evaluations lie before it or three after."""
    rows: list[tuple[Floats, float, float, float]] = []
    for s in val_sets(ctx).values():
        before, after = np.flatnonzero(s.step < start)[-30:], np.flatnonzero(s.step >= start)[:16]
        if len(before) < 5 or len(after) < 3:
            continue
        x = np.log(s.step + 1.0)
        slope, cut = np.polyfit(x[before], s.value[before], 1)
        noise = max(mad_scale(s.value[before] - slope * x[before] - cut), mad_scale(np.diff(s.value[before])) / np.sqrt(2), 1e-6)
        spread = float(((x[before] - x[before].mean()) ** 2).sum())
        reach = float(x[after[-4:]].mean() - x[before].mean())
        error = noise * float(np.sqrt(0.25 + 1 / len(before) + reach**2 / max(spread, 1e-12)))
        rows.append((s.value[after] - slope * x[after] - cut, noise, error, abs(BEND * slope * reach)))
    if not rows:
        return None
    n = min(len(r[0]) for r in rows)
    excess = np.mean([r[0][:n] for r in rows], axis=0)
    root = float(np.sqrt(len(rows)))
    noise, error, bend = (float(np.mean([r[i] for r in rows])) for i in (1, 2, 3))
    return HeldOut(float(excess.max()), float(excess[-4:].mean()), noise / root, float(np.hypot(error / root, bend)), n)


def aux_losses(ctx: Context) -> list[Event] | str:
    """Excursions of the losses beside the main one and of logit sizes, where they were logged."""
    series = [s.finite() for s in ctx.curves if s.metric.split("/")[0] in ("aux_loss", "logit_norm")]
    series = [s for s in series if len(s) >= ctx.settings.loss.short_log]
    if not series:
        return "no auxiliary loss or logit size was logged"
    found = []
    for s in series:
        first = int(np.searchsorted(s.step, ctx.judged_from))
        scan = scan_of(s.step, s.value, ctx.settings.loss, ctx.settings.loss, first)
        for x in excursions(scan, ctx.settings.loss.merge_steps):
            if x.hot_up >= 5 and scan.z[x.up] >= 10:
                found.append(
                    Event(
                        s.metric,
                        "aux_loss",
                        "notice",
                        int(scan.step[x.onset]),
                        int(scan.step[x.stop - 1]) + 1,
                        int(scan.step[x.up]),
                        "returned" if x.stop < len(scan.y) else "unknown",
                        float(scan.y[x.up] - scan.expected[x.up]),
                        float(scan.z[x.up]),
                        evidence={"value": float(scan.y[x.up])},
                    )
                )
    return found


def router_collapse(ctx: Context) -> list[Event] | str:
    """A mixture of experts that sends everything to few of them: the balance loss doubles and stays, or the router's entropy falls to under half."""
    balance = [s.finite() for s in ctx.curves if s.metric.startswith("aux_loss/") and any(w in s.metric for w in ("balanc", "router", "load"))]
    entropy = [s.finite() for s in ctx.curves if s.metric.startswith("router") and "entropy" in s.metric]
    if not balance and not entropy:
        return "neither a balance loss nor a router entropy was logged"
    found = []
    for s, sign in [(s, 1.0) for s in balance] + [(s, -1.0) for s in entropy]:
        if len(s) < 40 or (s.value <= 0).all():
            continue
        base = float(np.median(s.value[len(s) // 10 : max(len(s) // 2, len(s) // 10 + 1)]))
        far = (s.value > 2.0 * base) if sign > 0 else (s.value < 0.5 * base)
        late = far[-max(5, len(s) // 20) :]
        if base > 0 and late.mean() > 0.8:
            at = len(s) - 1 - int(np.argmax(~far[::-1])) + 1 if not far.all() else 0
            if at < len(s):
                found.append(
                    Event(
                        s.metric,
                        "router_collapse",
                        "alarm",
                        int(s.step[at]),
                        int(s.step[-1]) + 1,
                        int(s.step[at]),
                        "diverging",
                        float(np.median(s.value[at:]) - base),
                        None,
                        cause="numerics",
                        subcause="router_collapse",
                        confidence="medium",
                        evidence={"before": base, "after": float(np.median(s.value[at:]))},
                    )
                )
    return found
