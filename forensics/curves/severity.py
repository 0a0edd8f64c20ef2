"""How bad an event was: whether the curve came back to where it was going, and what that cost.

Severity says nothing about the cause. It is read against the extrapolated trend: a curve that comes back to its *value* before the event has
still lost the descent it would have made meanwhile. With few records the words are weak and say so through the confidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.curves.settings import Loss, Optimizer
from forensics.curves.trend import Floats, Ints, inflation, lag_one
from forensics.robust import MAD_TO_SD, mad_scale

BLOCK, ROUNDS = 10, 400  # moving-block bootstrap of the residual
WIDER = 1.2  # blocks of ten and weighted residuals alone cover 92 in 100 shifts under normal, t and AR(1) noise; with this 95
LOOK = 600  # records after an event that may be used for its residual


@dataclass(frozen=True)
class Aftermath:
    """What an event left.

    Attributes:
        residual: level after recovery minus the trend; None where nothing was logged after it.
        low, high: its 95 % interval.
        t50, t90: steps from the peak until half and nine tenths of the height are gone; None = not seen.
        records: records after the event that were used.
        limit: what the residual must exceed to count.
    """

    residual: float | None
    low: float
    high: float
    t50: int | None
    t90: int | None
    records: int
    limit: float


def aftermath(step: Ints, y: Floats, onset: int, stop: int, until: int, height: float, scale: float, rule: Loss, use: np.ndarray) -> Aftermath:
    """Measure what is left after an event.

    A line with a bend in log step and a jump at the event is fitted robustly through the unflagged records on both sides; the jump is the residual.
    Both sides share slope and bend, so that the natural curvature of a loss is not read as a lasting step.

    Args:
        step, y: the whole curve.
        onset, stop: record indices of the event, half-open.
        until: index of the record at which the next event begins (or the end).
        height: of the peak over the trend.
        scale: robust sd before the event.
        rule: settings.
        use: bool [n], False where another event sits.
    """
    cadence = max(1, int(np.median(np.diff(step[max(0, onset - 50) : stop + 50])))) if len(step) > 1 else 1
    ema_scale = scale * np.sqrt((a := 1 - 2.0 ** (-cadence / 100.0)) / (2 - a))
    limit = max(0.5 * float(ema_scale), 0.02 * abs(height), rule.residual)
    t50, t90 = _decay(step, y, onset, stop, until, height)
    first = int(np.searchsorted(step, step[stop - 1] + 20)) if stop < len(step) else len(step)
    first = first if until - first >= 20 else stop + max(0, min(2, until - stop - 3))
    after = np.arange(first, min(until, first + LOOK))
    after = after[use[after]] if len(after) else after
    after = after[step[after] + 1 < 1.6 * (step[stop - 1] + 1)] if len(after) else after
    before = np.arange(max(0, onset - LOOK), onset)
    before = before[use[before] & (step[before] + 1 > 0.5 * (step[onset] + 1))]
    if len(after) < 3 or len(before) < 8:
        return Aftermath(None, -np.inf, np.inf, t50, t90, len(after), limit)
    jump, low, high = jump_interval(step, y, before, after)
    if jump > limit and low > limit / 3:
        quiet = use.copy()
        quiet[onset : max(stop, first)] = False
        usual = usual_jump(step, y, before, after, quiet)
        low = low if usual is None else min(low, jump - 2 * usual)
    return Aftermath(jump, low, high, t50, t90, len(after), limit)


def jump_of(step: Ints, y: Floats, before: Ints, after: Ints) -> tuple[float, float]:
    """Robust discontinuity between two sides of a smooth curve, and its standard error (widened for correlated noise)."""
    jump, se, _, _ = _jump(step, y, before, after)
    return jump, se


def usual_jump(step: Ints, y: Floats, before: Ints, after: Ints, use: np.ndarray) -> float | None:
    """How much a curve jumps where nothing happens: robust size of the same jump at other places, None where fewer than five are quiet.

    Noise that is correlated over more records than the intervals know of (the order of the data, slow drifts) shows here and nowhere else.
    """
    a, b = len(before), len(after)
    found = []
    for at in range(a, len(y) - b + 1, max(1, (a + b) // 8, len(y) // 32)):
        if use[at - a : at + b].mean() > 0.9 and not at - a <= before[-1] < at + b - 1:
            rows = np.arange(at - a, at + b)
            rows = rows[use[rows] & (step[rows] + 1 > 0.5 * (step[at] + 1)) & (step[rows] + 1 < 1.6 * (step[at] + 1))]
            if len(rows) > (a + b) // 2:
                found.append(jump_of(step, y, rows[rows < at], rows[rows >= at])[0])
    return None if len(found) < 5 else float(MAD_TO_SD * np.median(np.abs(found)))


def jump_interval(step: Ints, y: Floats, before: Ints, after: Ints) -> tuple[float, float, float]:
    """The same with its 95 % interval by moving blocks of ten residuals, which keep the correlation of neighbours; by the standard error on short sides.

    The jump is a weighted sum of the records, so every round adds that sum over residuals drawn in blocks from their own side.
    """
    jump, se, gain, r = _jump(step, y, before, after)
    sides = (slice(0, len(before)), slice(len(before), len(r)))
    if min(len(before), len(after)) < 4 * BLOCK:
        return jump, jump - 1.96 * se, jump + 1.96 * se
    rng = np.random.default_rng(0)
    total = np.zeros(ROUNDS)
    for side in sides:
        own = r[side] - r[side].mean()
        n = len(own)
        starts = rng.integers(0, n - BLOCK + 1, (ROUNDS, -(-n // BLOCK)))
        drawn = own[starts[:, :, None] + np.arange(BLOCK)].reshape(ROUNDS, -1)[:, :n]
        total += drawn @ gain[side]
    low, high = np.quantile(total, [0.025, 0.975]) * WIDER
    return jump, jump - float(high), jump - float(low)


def _jump(step: Ints, y: Floats, before: Ints, after: Ints) -> tuple[float, float, Floats, Floats]:
    """Jump, its standard error, how much every record's weighted residual moves it, and those residuals (tall ones cut down by their Huber weights)."""
    rows = np.concatenate([before, after])
    x = np.log(step[rows] + 1.0)
    mid = x[len(before) - 1]
    u = (x - mid) / max(float(x[-1] - x[0]), 1e-12)
    side = np.concatenate([np.zeros(len(before)), np.ones(len(after))])
    bend = u**2 if len(after) >= 40 and len(before) >= 80 else np.zeros(len(u))
    design = np.stack([np.ones(len(u)), u, bend, side], axis=1)[:, [True, True, bool(bend.any()), True]]
    w = np.ones(len(u))
    coef = np.zeros(design.shape[1])
    s = 1.0
    for _ in range(4):
        sw = np.sqrt(w)[:, None]
        coef, *_ = np.linalg.lstsq(design * sw, y[rows] * sw[:, 0], rcond=None)
        r = y[rows] - design @ coef
        s = max(mad_scale(r), 1e-12)
        w = 1.0 / np.maximum(1.0, np.abs(r) / (1.345 * s))
    gram = np.linalg.pinv((design * w[:, None]).T @ design)
    width = max(inflation(lag_one(r[: len(before)])), inflation(lag_one(r[len(before) :])))
    gain = gram[-1] @ design.T
    return float(coef[-1]), float(1.1 * s * np.sqrt(max(gram[-1, -1], 0.0)) * width), gain, w * r


def _decay(step: Ints, y: Floats, onset: int, stop: int, until: int, height: float) -> tuple[int | None, int | None]:
    """Steps from the peak until a running median of three has fallen to half and to a tenth of the height."""
    base = float(np.median(y[max(0, onset - 20) : onset])) if onset else float(y[0])
    seg = y[onset:until] - base
    if not len(seg) or height == 0:
        return None, None
    seg = seg * np.sign(height)
    peak = int(np.argmax(seg[: max(1, stop - onset)]))
    tail = seg[peak:]
    smooth = np.array([np.median(tail[max(0, i - 1) : i + 2]) for i in range(min(len(tail), 2000))])
    found: list[int | None] = []
    for share in (0.5, 0.1):
        hit = np.flatnonzero(smooth <= share * tail[0])
        found.append(int(step[onset + peak + hit[0]] - step[onset + peak]) if len(hit) else None)
    return found[0], found[1]


def severity_of(after: Aftermath, optimizer: Optimizer, duration: int, rising: bool) -> str:
    """The word for it: diverging, level_shift, slow, returned or unknown.

    Args:
        after: what was measured.
        optimizer: its time constants.
        duration: steps of the event.
        rising: the curve was still going up when the record ended.
    """
    if rising:
        return "diverging"
    if after.residual is None:
        return "unknown"
    if after.residual > after.limit and after.low > after.limit / 3:
        return "level_shift"  # the whole interval above the limit would miss half of the shifts of 0.02 at usual noise
    slow = after.t90 is None or after.t90 > 100 or after.t90 > 3 * optimizer.tau_v
    return "slow" if slow and duration > max(100, 3 * optimizer.tau_v) else "returned"


def still_rising(step: Ints, y: Floats, onset: int) -> bool:
    """Whether the last records of an event that never closed go up: Mann-Kendall p < 0.01 on the last 50 steps (at least 8 records)."""
    from_step = int(np.searchsorted(step, step[-1] - 50))
    seg = y[max(onset, min(from_step, len(y) - 8)) :]
    return len(seg) >= 5 and mann_kendall(seg)[1] < 0.01 and seg[-1] > seg[0]


def mann_kendall(y: Floats) -> tuple[float, float]:
    """Kendall's tau of values against their order and the one-sided p of a rise (normal approximation, ties counted)."""
    n = len(y)
    if n < 3:
        return 0.0, 1.0
    if n > 400:
        y = y[np.linspace(0, n - 1, 400).astype(int)]
        n = 400
    s = float(np.sign(y[None, :] - y[:, None])[np.triu_indices(n, 1)].sum())
    _, ties = np.unique(y, return_counts=True)
    var = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18.0
    from math import erfc, sqrt

    z = (s - np.sign(s)) / sqrt(var) if var > 0 else 0.0
    return s / (n * (n - 1) / 2), 0.5 * erfc(z / sqrt(2.0))
