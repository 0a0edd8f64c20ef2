"""Where a loss was going: a line in the logarithm of the step, in which loss curves are nearly straight, and how far it can be trusted.

The error grows with the distance: a residue that the extrapolation cannot see is not claimed. Held-out losses are few, so the training loss, which
falls with them while data are read once, says as well how fast they were falling.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forensics.curves.trend import Floats, Ints
from forensics.robust import mad_scale

LEAST_FALL, APART = 60, 0.3  # steps that a fall is read from; by how much of it held-out and training loss may fall apart


def fall(steps: Ints, values: Floats, onset: int) -> tuple[float, float] | None:
    """Slope of the training loss per log(step) over the later half of what precedes the onset, and its error; None from few steps."""
    use = (steps < onset) & (steps >= onset // 2) & np.isfinite(values)
    if use.sum() < LEAST_FALL:
        return None
    ends = np.array([onset // 2, onset])
    level, _, sd = expected_line(steps, values, use, ends)
    x = np.log(steps[use])
    slope = float(level[1] - level[0]) / float(np.log(ends[1] / max(ends[0], 1)))
    return slope, float(np.hypot(sd / np.sqrt(((x - x.mean()) ** 2).sum()), APART * slope))


def expected_line(steps: Ints, values: Floats, use: NDArray[np.bool_], at: Ints, known: tuple[float, float] | None = None) -> tuple[Floats, Floats, float]:
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
        sd = max(mad_scale(r) or float(r.std()), float(np.sqrt((w * r * r).sum() / max(w.sum() - 2, 1))) * 0.8)
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


def mean_of_sets(sets: Sequence[tuple[Ints, Floats]]) -> tuple[Ints, Floats]:
    """Steps and mean over several curves, where at least three in four of them have a record."""
    steps = np.unique(np.concatenate([s for s, _ in sets]))
    table = np.full((len(sets), len(steps)), np.nan)
    for row, (step, value) in zip(table, sets, strict=True):
        row[np.searchsorted(steps, step)] = value
    full = np.isfinite(table).sum(axis=0) >= 0.75 * len(sets)
    return steps[full], np.nanmean(table[:, full], axis=0) if full.any() else np.zeros(0)
