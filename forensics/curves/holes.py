"""What the log itself does not say: missing stretches, values that repeat to the last digit, batches that change size."""

from __future__ import annotations

import numpy as np

from forensics.curves.event import Context, Event
from forensics.curves.series import Series


def gaps(ctx: Context) -> list[Event] | str:
    """Stretches of steps without a record although the log has a fixed rhythm before and after, and stretches a source declares as not recorded."""
    s = ctx.curves.get("train_loss")
    s = s if s is not None and len(s) else max((x for x in ctx.curves if x.metric != "recorded"), key=len, default=None)
    if s is None or len(s) < 3:
        return "fewer than three records"
    d = np.diff(s.step)
    cadence = s.cadence
    found = []
    for i in np.flatnonzero(d > max(ctx.settings.gap.factor * cadence, cadence + 1)):
        near = np.concatenate([d[max(0, i - 3) : i], d[i + 1 : i + 4]])
        if len(near) and d[i] <= ctx.settings.gap.factor * near.max():
            continue  # the rhythm itself changes here
        found.append(_gap(s.metric, int(s.step[i]) + cadence, int(s.step[i + 1]), cadence))
    listed = ctx.curves.get("recorded")
    if listed is not None:
        bad = np.flatnonzero(listed.value == 0)
        for run in np.split(bad, np.flatnonzero(np.diff(bad) > 1) + 1) if len(bad) else []:
            start, stop = int(listed.step[run[0]]), int(listed.step[run[-1]]) + 1
            if len(run) > ctx.settings.gap.factor and not any(e.start < stop and start < (e.stop or e.start) for e in found):
                found.append(_gap("train_loss", start, stop, listed.cadence))
    return found


def _gap(metric: str, start: int, stop: int, cadence: int) -> Event:
    return Event(
        metric,
        "gap",
        "notice",
        start,
        max(stop, start + 1),
        None,
        "none",
        confidence="high",
        evidence={"records_missing": float(max(1, (stop - start) // cadence))},
    )


def stuck(ctx: Context) -> list[Event] | str:
    """A loss, norm or scale that repeats exactly, record after record: frozen parameters, a stale metric, or a loss of 0 that looks perfect."""
    names = [n for n in ("train_loss", "grad_norm") if ctx.curves.get(n) is not None]
    if not names:
        return "neither loss nor gradient norm was logged"
    found = []
    for name in names:
        s = ctx.curves.get(name)
        assert s is not None
        found += _repeats(name, s.finite())
    return found


def _repeats(name: str, s: Series) -> list[Event]:
    if len(s) < 10:
        return [_stuck(name, s, 0, len(s))] if name == "grad_norm" and len(s) >= 3 and bool((s.value == 0).all()) else []
    same = np.diff(s.value) == 0
    usual = float(same.mean())  # coarse prints repeat by chance
    least = 10 if usual < 0.02 else int(max(10, np.ceil(np.log(1e-6 / len(s)) / np.log(min(usual, 0.9999)))))
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.astype(np.int8), [0]])))
    found = []
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        whole = b - a == len(s) - 1
        if b - a + 1 >= least or whole:
            found.append(_stuck(name, s, int(a), int(b) + 1))
    return found


def _stuck(name: str, s: Series, a: int, b: int) -> Event:
    loss = name.startswith("train_loss")
    zero = bool(s.value[a] == 0)
    return Event(
        name,
        "stuck",
        "alarm" if loss else "notice",
        int(s.step[a]),
        int(s.step[b - 1]) + 1,
        None,
        "unknown",
        confidence="high" if zero else "medium",
        subcause=("loss_zero" if loss else "metric_zero") if zero else "repeats",
        evidence={"records": float(b - a), "value": float(s.value[a])},
    )


def batch_change(ctx: Context) -> list[Event] | str:
    """Steps at which tokens or sequences per step change (rule 1): comparisons by step end there."""
    for name in ("batch_tokens", "batch_size"):
        s = ctx.curves.get(name)
        if s is not None and len(s.finite()) >= 2:
            return _changes(name, s.finite())
    for name in ("consumed_tokens", "consumed_samples"):
        s = ctx.curves.get(name)
        if s is not None and len(s.finite()) >= 5:
            return _counter(name, s.finite())
    loss = ctx.curves.get("train_loss")
    if loss is not None and loss.tokens is not None and len(loss) >= 5:
        return _counter("consumed_tokens", Series("consumed_tokens", loss.step, loss.tokens.astype(np.float64)))
    return "neither batch size nor consumed tokens were logged"


def _changes(name: str, s: Series) -> list[Event]:
    """Where a batch size takes a new value and keeps it; sizes that vary from step to step are no changes."""
    jumps = np.flatnonzero(np.abs(np.diff(s.value)) > 0.02 * np.abs(s.value[:-1]))
    if len(jumps) > max(40, 0.05 * len(s)):
        return []
    return [_batch(name, int(s.step[i + 1]), float(s.value[i]), float(s.value[i + 1])) for i in jumps]


def _counter(name: str, s: Series) -> list[Event]:
    d = np.diff(s.value) / np.diff(s.step)
    level = float(np.median(d))
    if level <= 0 or np.mean(np.abs(d - level) > 0.02 * level) > 0.3:
        return []
    found: list[Event] = []
    width = 3
    for i in range(width, len(d) - width):
        a, b = d[i - width : i], d[i : i + width]
        if a.max() - a.min() < 0.01 * level and b.max() - b.min() < 0.01 * level and abs(b[0] - a[-1]) > 0.02 * level:
            found.append(_batch(name, int(s.step[i]) + 1, float(a[-1]), float(b[0])))
    return found


def _batch(name: str, step: int, before: float, after: float) -> Event:
    return Event(
        name,
        "batch_change",
        "notice",
        step,
        step + 1,
        step,
        "none",
        after - before,
        subcause="axis_warning",
        confidence="high",
        evidence={"before": before, "after": after, "ratio": after / before if before else 0.0},
    )
