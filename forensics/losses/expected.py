"""Expected loss of a segment: by source, length and position, shrunk, and corrected for its difficulty.

The base of "excess": what a segment would have cost had nothing happened, fitted on ordinary segments of the baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.losses.difficulty import BOOL, F64, I64
from forensics.robust import MAD_TO_SD

LENGTHS = (1, 32, 128, 512)  # lower edges of the length bins [token]
SHRINK = 200.0  # tokens of the source's mean that every cell starts with


@dataclass(frozen=True)
class Expected:
    """Expected loss per segment and the scale of its errors.

    Attributes:
        mean: float64 [m], nats per token; NaN where nothing can be expected.
        sd: float64 [m], standard deviation of a segment's own mean loss about it.
        n0: tokens at which a segment's own noise equals the part that length does not average out.
        slope: nats of loss per nat of difficulty.
    """

    mean: F64
    sd: F64
    n0: float
    slope: float


def expected_loss(loss: F64, predicted: F64, source: I64, position: I64, difficulty: F64, use: BOOL) -> Expected:
    """Fit on the segments marked in `use`, predict for all.

    Args:
        loss: mean loss per segment [m], NaN where unknown.
        predicted: labels per segment [m].
        source: label number [m]; a source without ordinary segments takes the mean of all.
        position: first token of the segment in its document [m]; beginnings cost more.
        difficulty: model-free code length per token [m].
        use: ordinary baseline segments.
    """
    ok = use & np.isfinite(loss) & (predicted > 0)
    if ok.sum() < 8:
        return Expected(np.full(len(loss), np.nan), np.full(len(loss), np.nan), 0.0, 0.0)
    cell_bin = np.maximum(np.digitize(predicted, LENGTHS) - 1, 0) + len(LENGTHS) * (position == 0)
    slope = _slope(loss, predicted, source, difficulty, ok)
    middle = float(np.average(difficulty[ok], weights=predicted[ok]))
    rest = loss - slope * (difficulty - middle)
    w = np.where(ok, predicted, 0.0)
    y = np.where(ok, rest, 0.0)
    overall = float((w * y).sum() / w.sum())
    n_source = int(source.max(initial=0)) + 1
    by_source = (np.bincount(source, w * y, n_source) + SHRINK * overall) / (np.bincount(source, w, n_source) + SHRINK)
    cell = source * (2 * len(LENGTHS)) + cell_bin
    n_cell = n_source * 2 * len(LENGTHS)
    held, total = np.bincount(cell, w, n_cell), np.bincount(cell, w * y, n_cell)
    mu = (total + SHRINK * by_source[np.arange(n_cell) // (2 * len(LENGTHS))]) / (held + SHRINK)
    mean = mu[cell] + slope * (difficulty - middle)
    error = (loss - mean)[ok]
    size = predicted[ok]
    n0 = _noise(error, size)
    base = float(np.median(np.abs(error) / np.sqrt(1 + n0 / size))) * MAD_TO_SD
    return Expected(mean, max(base, 1e-6) * np.sqrt(1 + n0 / np.maximum(predicted, 1)), n0, slope)


def _slope(loss: F64, predicted: F64, source: I64, difficulty: F64, ok: BOOL) -> float:
    """Within-source slope of loss on difficulty, weighted by length, kept between 0 and 1.5."""
    w, s = predicted[ok], source[ok]
    n = int(s.max()) + 1
    total = np.maximum(np.bincount(s, w, n), 1e-9)
    x = difficulty[ok] - (np.bincount(s, w * difficulty[ok], n) / total)[s]
    y = loss[ok] - (np.bincount(s, w * loss[ok], n) / total)[s]
    var = float((w * x * x).sum())
    return float(np.clip((w * x * y).sum() / (var + 1e-9 + 0.01 * w.sum()), 0.0, 1.5))


def _noise(error: F64, size: F64) -> float:
    """The n0 of var = s^2 (1 + n0 / n), by the variances of the shorter and the longer half."""
    cut = float(np.median(size))
    short, long = size <= cut, size > cut
    if short.sum() < 8 or long.sum() < 8:
        return 50.0
    v1, v2 = (MAD_TO_SD * np.median(np.abs(error[short]))) ** 2, (MAD_TO_SD * np.median(np.abs(error[long]))) ** 2
    a, b = float(np.mean(1 / size[short])), float(np.mean(1 / size[long]))
    if v1 <= v2 or v2 <= 0:
        return 10.0
    denominator = v2 * a - v1 * b
    return float(np.clip((v1 - v2) / denominator, 10.0, 2000.0)) if denominator > 0 else 2000.0
