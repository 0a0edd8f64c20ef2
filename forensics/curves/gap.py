"""The gap between held-out and training loss, and the smaller losses beside the main one: router balance, z-loss, multi-token heads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from forensics.curves.event import Context, Event, scan_of
from forensics.curves.lines import expected_line, fall, mean_of_sets
from forensics.curves.series import Floats, Ints, Series
from forensics.curves.spikes import excursions
from forensics.robust import MAD_TO_SD, mad_scale


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


MOST, LITTLE = 16, 0.3  # evaluations after an event that are read; share of its peak under which what is left is on its way back


@dataclass(frozen=True)
class HeldOut:
    """What an event left on the held-out loss, averaged over sets, at the evaluations from the event on (at most sixteen).

    Attributes:
        step: int64 [n]. excess: float64 [n], over where the evaluations before were going.
        error: float64 [n], standard error of that line.
        usual: float64 [n], how far such a line is off where nothing happens; 0 where too few places tell.
        noise: sd of one evaluation.
    """

    step: Ints
    excess: Floats
    error: Floats
    usual: Floats
    noise: float

    @property
    def peak(self) -> float:
        """Highest excess."""
        return float(self.excess.max())

    @property
    def last(self) -> float:
        """Mean excess of the last four."""
        return float(self.excess[-4:].mean())

    @property
    def last_error(self) -> float:
        """Standard error of `last`."""
        tail = self.error[-4:]
        return float(np.sqrt((tail**2).mean() + self.noise**2 / len(tail)))

    def out(self, errors: float = 0.0) -> int:
        """Steps after the peak at which the excess was last seen over a tenth of the peak, before it first was under; at so many errors lower."""
        at = int(np.argmax(self.excess))
        under = np.flatnonzero((self.excess - errors * self.error)[at + 1 :] <= 0.1 * self.peak)
        return int(self.step[at + (int(under[0]) if len(under) else len(self.step) - at - 1)] - self.step[at])

    def severity(self, slow_after: float) -> str | None:
        """The word that the evaluations allow: what is left at two errors, then how long it took; None where they do not resolve it.

        Args:
            slow_after: steps out from which a return is slow.
        """
        if self.peak <= 3 * self.noise:
            return None
        if self.last > 2 * self.last_error:
            return "slow" if self.last < LITTLE * self.peak else "level_shift"
        if self.out(2) >= slow_after:
            return "slow"
        return "returned" if self.last + 2 * self.last_error < LITTLE * self.peak else None

    def told(self, slow_after: float) -> bool:
        """Whether the word stays the same when the line is off by as much as it usually is."""
        return len({replace(self, excess=self.excess + sign * self.usual).severity(slow_after) for sign in (-1, 0, 1)}) == 1


def val_shift(ctx: Context, start: int, until: int | None = None) -> HeldOut | None:
    """Read the held-out losses across an event; None where fewer than five evaluations lie before it or three after.

    Args:
        ctx: curves.
        start: first step of the event.
        until: step at which something else happens.
    """
    sets = [s for s in val_sets(ctx).values() if len(s) >= 8]
    if not sets:
        return None
    step, value = mean_of_sets([(s.step, s.value) for s in sets])
    first, stop = np.searchsorted(step, [start, step[-1] + 1 if until is None else until]) if len(step) else (0, 0)
    n = min(int(stop - first), MOST)
    if first < 5 or n < 3:
        return None
    excess, error, noise = _over(ctx, step, value, int(first), n)
    places = [i for i in range(8, int(first) - n + 1, 2) if step[i] >= max(start // 2, ctx.judged_from)]
    wander = [_over(ctx, step, value, i, n)[0] for i in places]
    usual = MAD_TO_SD * np.median(np.abs(wander), axis=0) if len(wander) >= 5 else np.zeros(n)
    return HeldOut(step[first : first + n], excess, error, usual, noise)


def _over(ctx: Context, step: Ints, value: Floats, first: int, n: int) -> tuple[Floats, Floats, float]:
    """Excess of n evaluations over the line of those before, its error, and the sd of one."""
    use = np.arange(len(step)) < first
    use[: max(0, first - 30)] = False
    recent = use & (step >= step[first] // 2)  # over more than a factor of two even log(step) bends
    use = recent if recent.sum() >= 8 else use
    known = None if ctx.loss is None else fall(ctx.loss.step, ctx.loss.value, int(step[first]))
    line, error, sd = expected_line(step, value, use, step[first : first + n], known)
    return value[first : first + n] - line, error, max(sd, mad_scale(np.diff(value[use])) / float(np.sqrt(2)), 1e-6)


def aux_losses(ctx: Context) -> list[Event] | str:
    """Excursions of the losses beside the main one and of logit sizes, where they were logged."""
    series = [s.finite() for s in ctx.curves if s.metric.split("/")[0] in ("aux_loss", "logit_norm")]
    series = [s for s in series if len(s) >= ctx.settings.loss.short_log]
    if not series:
        return "no auxiliary loss or logit size was logged"
    found = []
    for s in series:
        first = int(np.searchsorted(s.step, ctx.judged_from))
        scan = scan_of(s.step, s.value, ctx.settings.loss, ctx.settings.loss, first, refit=ctx.refit)
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
