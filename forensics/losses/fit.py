"""Do recorded losses fit what they are said to belong to: their unit, and their documents."""

from __future__ import annotations

import numpy as np

from forensics.losses.difficulty import F64, I64

LN2 = 0.6931471805599453


def unit_of(step_mean: F64, logged: F64) -> str:
    """What recorded losses are in, judged by the curve of the same run: `nats`, `bits`, `perplexity` or `other`.

    Args:
        step_mean: mean of the records of each step.
        logged: the logged training loss [nats/token] of the same steps.
    """
    ok = np.isfinite(step_mean) & np.isfinite(logged) & (logged > 0) & (step_mean > 0)
    if ok.sum() < 8:
        return "nats"
    ratio = float(np.median(step_mean[ok] / logged[ok]))
    if abs(ratio * LN2 - 1) < 0.03:
        return "bits"
    if abs(float(np.median(np.log(step_mean[ok]) / logged[ok])) - 1) < 0.05 and ratio > 2:
        return "perplexity"
    return "nats" if abs(ratio - 1) < 0.25 else "other"


def in_bits(one: F64, other: F64) -> bool:
    """Whether losses of segments are in bits where others of the same segments are in nats: mean and spread both 1 / ln 2 times theirs.

    A checkpoint from long before may cost that much more, but its losses are not spread that much wider.
    """
    ok = np.isfinite(one) & np.isfinite(other) & (one > 0) & (other > 0)
    if ok.sum() < 100:
        return False
    spread = float(np.subtract(*np.percentile(one[ok], [75, 25])) / max(float(np.subtract(*np.percentile(other[ok], [75, 25]))), 1e-9))
    return abs(float(np.median(one[ok] / other[ok])) * LN2 - 1) < 0.05 and abs(spread * LN2 - 1) < 0.12


def follows(loss: F64, difficulty: F64, at: I64) -> tuple[float, int]:
    """Correlation of losses with the difficulty of what they are said to belong to, within steps; and how many entries.

    Losses of other steps or of another order of rows give 0.
    """
    ok = np.isfinite(loss) & np.isfinite(difficulty)
    if ok.sum() < 30:
        return float("nan"), int(ok.sum())
    n = int(at.max()) + 1
    count = np.maximum(np.bincount(at[ok], minlength=n), 1)
    x = difficulty[ok] - (np.bincount(at[ok], difficulty[ok], n) / count)[at[ok]]
    y = loss[ok] - (np.bincount(at[ok], loss[ok], n) / count)[at[ok]]
    if x.std() == 0 or y.std() == 0:
        return float("nan"), int(ok.sum())
    return float(np.corrcoef(x, y)[0, 1]), int(ok.sum())
