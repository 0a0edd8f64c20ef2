"""Excess loss per segment, the common shift of ordinary documents, and the split into difficulty and drift.

`L_t - base = [loss of the step's documents under a fixed earlier checkpoint - base] + [loss as trained - loss under it]`:
the first part is the data's, the second the parameters'. Without a scored checkpoint the shift of ordinary documents
against their expected loss stands in for the drift, with more noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.attribution.signals import robust_line
from forensics.attribution.timeline import SegmentLoss, Timeline
from forensics.losses.difficulty import BOOL, F64, I64
from forensics.losses.expected import expected_loss
from forensics.robust import spread

LEAST_LABELS = 24  # shorter segments are too noisy for the shift
LEAST_SEGMENTS = 3


@dataclass(frozen=True)
class Shift:
    """Per step [T]: weighted mean over ordinary segments and its standard error; NaN where too few are left.

    Attributes:
        origin: `drift` under a checkpoint, or `shift` against the expected loss.
        since: first step for which the numbers mean anything.
    """

    origin: str
    value: F64
    error: F64
    since: int

    @property
    def z(self) -> F64:
        """By its standard error."""
        return self.value / np.maximum(self.error, 1e-9)


@dataclass(frozen=True)
class Excess:
    """Loss over the expected one, per segment [m], nats per token, and its z; slope of loss on difficulty."""

    value: F64
    z: F64
    expected: F64
    slope: float
    loss: F64
    origin: str


def excess_of(line: Timeline, losses: dict[str, SegmentLoss], difficulty: F64, ordinary: BOOL, trend: float) -> Excess | None:
    """Excess of the recorded losses, or of the first reference that was scored; None without either.

    Args:
        line: the axis.
        losses: by origin.
        difficulty: code length per label of each segment [m].
        ordinary: segments that the expectation is fitted on [m].
        trend: slope of the run's training loss in the baseline [nats per step].
    """
    names = [n for n in ("recorded", *sorted(losses)) if n in losses and not n.startswith("checkpoint:")]
    if not names:
        return None
    record = losses[names[0]]
    use = ordinary & np.isfinite(record.mean)
    if not use.any():
        return None
    middle = float(np.median(line.steps[line.at[use]]))
    flat = record.mean - trend * (line.steps[line.at] - middle)
    found = expected_loss(flat, record.predicted, line.source[line.doc], line.start, difficulty, use)
    value = flat - found.mean
    return Excess(value, value / found.sd, found.mean + trend * (line.steps[line.at] - middle), found.slope, record.mean, names[0])


def common_shift(line: Timeline, value: F64, weight: F64, usable: BOOL, origin: str, since: int, noise: BOOL) -> Shift:
    """Mean of `value` over usable segments of each step, outliers weighed down.

    Args:
        line: the axis.
        value: per segment [m].
        weight: labels per segment [m].
        usable: segments of ordinary documents [m].
        origin, since: see `Shift`.
        noise: steps [T] whose scatter tells the error of a step's mean.
    """
    steps = len(line.steps)
    ok = usable & np.isfinite(value) & (weight >= LEAST_LABELS)
    w = np.where(ok, np.minimum(weight, 256.0), 0.0)
    v = np.where(ok, value, 0.0)
    mean = _mean(line.at, w, v, steps)
    scale = spread(v[ok] - mean[line.at[ok]], 1e-3) if ok.any() else 1.0
    for _ in range(3):
        r = np.abs(v - mean[line.at]) / (2.0 * scale)
        mean = _mean(line.at, w / np.maximum(1.0, r), v, steps)
    count = np.bincount(line.at, ok, steps)
    eff = np.bincount(line.at, w, steps) ** 2 / np.maximum(np.bincount(line.at, w * w, steps), 1e-9)
    mean[count < LEAST_SEGMENTS] = np.nan
    inside = scale / np.sqrt(np.maximum(eff, 1.0))
    quiet = noise & np.isfinite(mean) & (line.steps >= since)
    between = spread(mean[quiet] - np.median(mean[quiet])) if quiet.sum() >= 8 else 0.0
    typical = float(np.median(inside[quiet])) if quiet.any() else float(np.median(inside))
    common = np.sqrt(max(between**2 - typical**2, 0.0))
    return Shift(origin, mean, np.sqrt(inside**2 + common**2 + 0.01**2), since)


def _mean(at: I64, w: F64, v: F64, steps: int) -> F64:
    total = np.bincount(at, w, steps)
    return np.where(total > 0, np.bincount(at, w * v, steps) / np.maximum(total, 1e-9), np.nan)


def checkpoint_drift(line: Timeline, losses: dict[str, SegmentLoss], ordinary: BOOL, quiet: BOOL) -> Shift | None:
    """Drift of ordinary documents since the latest scored checkpoint before the quiet steps end, or None.

    Documents that the checkpoint had just been trained on score far too low under it, so only later steps count.
    """
    if "recorded" not in losses:
        return None
    found = []
    for name, record in losses.items():
        if not name.startswith("checkpoint:"):
            continue
        try:
            step = int(name.split(":", 1)[1])
        except ValueError:
            continue
        if np.isfinite(record.mean[line.steps[line.at] > step]).any():
            found.append((step, record))
    if not found:
        return None
    first_loud = line.steps[~quiet & (line.steps > line.steps[0])]
    limit = int(first_loud[0]) if len(first_loud) else int(line.steps[-1])
    before = [x for x in found if x[0] < limit]
    step, record = max(before, key=lambda x: x[0]) if before else min(found, key=lambda x: x[0])
    value = losses["recorded"].mean - record.mean
    return common_shift(line, value, record.predicted, ordinary, f"drift since step {step}", step + 1, quiet)


def trend_slope(steps: I64, values: F64, before: int, width: int = 400) -> float:
    """Slope of a curve over the last `width` steps before `before`; 0 where it is not told from noise."""
    use = (steps < before) & (steps >= before - width)
    if use.sum() < 20:
        return 0.0
    _, slope, sd = robust_line(steps, values, use)
    x = steps[use].astype(np.float64)
    error = sd / max(float(np.sqrt(((x - x.mean()) ** 2).sum())), 1e-9)
    return slope if abs(slope) > 2 * error else 0.0
