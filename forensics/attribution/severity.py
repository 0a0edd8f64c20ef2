"""How bad it was, apart from why: from validation where there is one, else from ordinary documents, else from the loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.attribution.signals import Series, Signals
from forensics.curves.lines import expected_line, mean_of_sets
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
        known: how fast it was falling, where that is known besides, as from `lines.fall`.
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
    return Series(*mean_of_sets([(s.steps, s.values) for s in sets.values()]))
