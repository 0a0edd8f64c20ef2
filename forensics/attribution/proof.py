"""Residuals of a loss and of a difficulty: what is left over their running medians.

The noise of a training loss is the difficulty of its batches. So residuals of difficulty and of the logged loss correlate
at lag 0 when a reconstruction is right; `verify` makes the test of it.
"""

from __future__ import annotations

import numpy as np

from forensics.attribution.signals import SD
from forensics.losses.difficulty import F64, I64

HALF = 31  # steps on each side of the running median
LAGS = 6
CLIP = 4.0
LEAST = 8  # neighbours without which a step has no median
BLOCK = 1 << 14  # steps whose neighbours are sorted at once


def residuals(steps: I64, values: F64) -> F64:
    """Values minus their running median over `HALF` steps on each side, clipped at four robust standard deviations.

    Args:
        steps: ascending; gaps are allowed.
        values: one each; what is not finite is no neighbour and has no residual.
    """
    values = np.where(np.isfinite(values), values, np.nan)
    out = np.full(len(values), np.nan)
    begin, end = np.searchsorted(steps, steps - HALF), np.searchsorted(steps, steps + HALF + 1)
    width = int((end - begin).max(initial=0))
    for start in range(0, len(values), BLOCK):
        rows = slice(start, start + BLOCK)
        near = begin[rows, None] + np.arange(width)
        table = np.where(near < end[rows, None], values[np.minimum(near, len(values) - 1)], np.nan)
        table.sort(axis=1)  # NaN go last
        known = np.isfinite(table).sum(axis=1)
        at, last = np.arange(len(table)), np.maximum(known - 1, 0)
        median = (table[at, last // 2] + table[at, (last + 1) // 2]) / 2
        out[rows] = np.where(known >= LEAST, values[rows] - median, np.nan)
    ok = np.isfinite(out)
    scale = SD * float(np.median(np.abs(out[ok]))) if ok.any() else 0.0
    return np.clip(out, -CLIP * scale, CLIP * scale) if scale > 0 else out
