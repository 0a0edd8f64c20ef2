"""How bad it was, apart from why: from validation where there is one, else from ordinary documents, else from the loss.

The lines before the event are fitted on the logarithm of the step, in which a loss curve is nearly straight, and their
error grows with the distance: a residue that the extrapolation cannot see is not claimed. Held-out losses are few, so the
training loss, which falls with them while data are read once, says as well how fast they were falling.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.attribution.signals import Series, Signals, spread
from forensics.losses.difficulty import F64, I64


@dataclass(frozen=True)
class Severity:
    """Verdict on one series.

    Attributes:
        name: none, returned, slow, level_shift, diverging or unknown.
        measure: which series it was read from.
        peak: largest excess [nats/token]; peak_step: where.
        last: mean excess of the last quarter that was seen; error: of it.
        t90: steps from the peak until under a tenth of it; None where not reached.
        first: first step with an excess past three errors, or None.
    """

    name: str
    measure: str
    peak: float = 0.0
    peak_step: int | None = None
    last: float = 0.0
    error: float = 0.0
    t90: int | None = None
    first: int | None = None


LEAST_FALL, APART = 60, 0.3  # steps that a fall is read from; by how much of it held-out and training loss may fall apart


def fall(train: Series, onset: int) -> tuple[float, float] | None:
    """Slope of the training loss per log(step) over the later half of what precedes the onset, and its error; None from few steps."""
    use = (train.steps < onset) & (train.steps >= onset // 2) & np.isfinite(train.values)
    if use.sum() < LEAST_FALL:
        return None
    ends = np.array([onset // 2, onset])
    level, _, sd = expected_line(train.steps, train.values, use, ends)
    x = np.log(train.steps[use])
    slope = float(level[1] - level[0]) / float(np.log(ends[1] / max(ends[0], 1)))
    return slope, float(np.hypot(sd / np.sqrt(((x - x.mean()) ** 2).sum()), APART * slope))


def expected_line(steps: I64, values: F64, use: np.ndarray, at: I64, known: tuple[float, float] | None = None) -> tuple[F64, F64, float]:
    """A line in log(step) through `use`, extrapolated to `at`; with a slope that is known besides and its error, weighed with the line's own.

    Returns:
        Expected values, their standard errors with the bend of a power law (the point's own scatter not included), and that scatter.
    """
    ok = use & np.isfinite(values)
    x = np.log(np.maximum(steps, 1.0))
    z = np.log(np.maximum(at, 1.0))
    if ok.sum() < 3:
        level = float(np.median(values[ok])) if ok.any() else 0.0
        return np.full(len(at), level), np.full(len(at), np.inf), 0.0
    w = np.ones(int(ok.sum()))
    xs, ys = x[ok], values[ok]
    slope = level = 0.0
    mid = float(xs.mean())
    sd = 0.0
    for _ in range(4):
        m = float((w * (xs - mid)).sum() / w.sum())
        my = float((w * ys).sum() / w.sum())
        var = float((w * (xs - mid - m) ** 2).sum())
        slope = float((w * (xs - mid - m) * (ys - my)).sum() / var) if var > 1e-12 else 0.0
        slope = min(slope, 0.0)  # a curve that rose before the event says nothing about where it would have gone
        level = my - slope * m
        r = ys - level - slope * (xs - mid)
        sd = max(spread(r), float(np.sqrt((w * r * r).sum() / max(w.sum() - 2, 1))) * 0.8)
        w = 1.0 / np.maximum(1.0, np.abs(r) / (2.0 * max(sd, 1e-9)))
    var = max(float(((xs - mid) ** 2).sum()), 1e-12)
    if known is not None:
        own = max(sd, 1e-6) ** 2 / var
        trust = own / (own + known[1] ** 2)
        slope = min((1 - trust) * slope + trust * known[0], 0.0)
        level = float((w * (ys - slope * (xs - mid))).sum() / w.sum())
        var /= 1 - trust
    bend = 0.2 * abs(slope) * (z - mid) ** 2  # what a power law of exponent 0.4 deviates from its tangent in log(step)
    error = np.sqrt(sd**2 * (1 / len(xs) + (z - mid) ** 2 / var) + bend**2)
    return level + slope * (z - mid), error, sd


def judge(
    steps: I64, values: F64, onset: int, measure: str, *, floor: float, slow_after: int, before: int = 400, known: tuple[float, float] | None = None
) -> Severity:
    """Severity of what a series did from `onset` on.

    Args:
        steps, values: the series.
        onset: first step that can show the event.
        measure: what the series is called.
        floor: excess that is never claimed below [nats/token].
        slow_after: steps from which a return counts as slow.
        before: steps before the onset that the line is fitted on.
        known: how fast it was falling, where that is known besides, as from `fall`.
    """
    use = (steps < onset) & (steps >= onset - before)
    recent = use & (steps >= onset // 2)  # over more than a factor of two even log(step) bends
    use = recent if recent.sum() >= 8 else use
    after = (steps >= onset) & np.isfinite(values)
    if use.sum() < 4 or after.sum() < 1:
        return Severity("unknown", measure)
    expected, error, sd = expected_line(steps, values, use, steps[after], known)
    x, t = values[after] - expected, steps[after]
    dense = len(x) >= 40  # one point of a dense series is noise
    width = 5 if dense else 1
    seen = np.convolve(x, np.ones(width), "same") / np.convolve(np.ones(len(x)), np.ones(width), "same")
    beyond = np.flatnonzero(seen > np.maximum(3 * np.sqrt(error**2 + sd**2 / width), floor))
    peak_at = int(seen.argmax())
    peak = float(seen[peak_at])
    tail = max(4, len(x) // 5) if dense else min(4, len(x))
    last = float(x[-tail:].mean())
    last_error = float(np.sqrt((error[-tail:] ** 2).mean() + sd**2 / tail))
    if not len(beyond):
        return Severity("none", measure, peak, int(t[peak_at]), last, last_error)
    low = np.flatnonzero((np.arange(len(x)) > peak_at) & (seen <= max(0.1 * peak, 0.5 * floor)))
    t90 = int(t[low[0]] - t[peak_at]) if len(low) else None
    first = int(t[beyond[0]])
    growth = float(np.polyfit(t[-tail:], x[-tail:], 1)[0]) * (t[-1] - t[-tail]) if tail >= 4 else 0.0
    rising = len(x) - peak_at <= max(2, tail // 2) and growth > max(0.1 * peak, 2 * sd / np.sqrt(tail)) and last > 0.6 * peak
    if rising and last > 3 * last_error and t[-1] - onset > 3 * slow_after:
        name = "diverging"
    elif last <= max(2 * last_error, 0.1 * peak, 0.5 * floor):
        name = "slow" if (t90 is None or t90 > slow_after) else "returned"
    elif last < 0.3 * peak or last < 5 * last_error:  # the extrapolation bends away from a curve by more than its own error
        name = "slow"
    else:
        name = "level_shift"
    return Severity(name, measure, peak, int(t[peak_at]), last, last_error, t90, first)


def validation(log: Signals) -> Series:
    """Mean over the held-out sets at steps where most of them were evaluated; the plain `eval_loss` where it is alone."""
    sets = log.family("eval_loss")
    if not sets:
        return log.get("eval_loss")
    steps = np.unique(np.concatenate([s.steps for s in sets.values()]))
    table = np.stack([s.at(steps) for s in sets.values()])
    full = np.isfinite(table).sum(axis=0) >= 0.75 * len(table)
    return Series(steps[full], np.nanmean(table[:, full], axis=0) if full.any() else np.zeros(0))
