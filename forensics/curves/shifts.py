"""Small lasting steps that no single record shows, and ranks whose numbers differ from the others'.

A shift of one noise scale stays under the drift rule for ever, yet over hundreds of records it is plain. The curve is cut into stretches, and at
every boundary a line with a jump is weighed against a line with a kink: a loss that merely slows down is the latter.
"""

from __future__ import annotations

import numpy as np

from forensics.curves.event import Context, Event
from forensics.curves.series import Floats
from forensics.curves.spikes import lasting
from forensics.curves.trend import bins, inflation, lag_one
from forensics.robust import mad_scale

SIDES = (12, 24, 40)  # stretches on either side of a boundary
SURE = 6.0  # standard errors, widened where the curve jumps more than that by itself
TRIED = 20  # boundaries looked at more closely


def small_shift(ctx: Context, metric: str = "train_loss") -> list[Event] | str:
    """A lasting step upwards under the resolution of single records."""
    scan = ctx.scan(metric)
    if scan is None:
        return "too few records of the loss"
    first = int(np.searchsorted(scan.step, ctx.judged_from))
    n = len(scan.y) - first
    width = max(20, n // 150)
    b = bins(np.log(scan.step + 1.0), scan.y, width, (scan.event == 0) & (np.arange(len(scan.y)) >= first))
    least = 2 * SIDES[0]
    if len(b) < least:
        return f"{max(n, 0)} records after the start-up, {least * 20} are needed"
    shifted = lasting(scan)
    tried = [
        (*_jump(b.x[i - k : i + k], b.y[i - k : i + k]), i, k)
        for k in SIDES
        for i in range(k, len(b) - k + 1, max(1, k // 8))
        if not shifted[b.start[i - k] : b.stop[i + k - 1]].any()
    ]
    if not tried:
        return []
    spread = max(1.0, mad_scale(np.array([sure for _, sure, _, _ in tried])))
    for height, sure, i, k in sorted(tried, key=lambda j: -j[1])[:TRIED]:
        if sure < SURE * spread or height < ctx.settings.loss.residual:
            return []
        if _better_than_a_kink(b.x[i - k : i + k], b.y[i - k : i + k]):
            break
    else:
        return []
    cut = _place(scan.y, int(b.start[i]) - 4 * width, int(b.start[i]) + 4 * width, width)
    start = int(scan.step[cut])
    return [
        Event(
            metric, "level_shift", "alarm", start, int(scan.step[min(len(scan.y) - 1, cut + width)]) + 1, start, "level_shift", float(height),
            float(height) / scan.noise, float(height), None, confidence="medium", evidence={"standard_errors": sure, "records_after": float(len(scan.y) - cut)},
        )
    ]  # fmt: skip


def _jump(x: Floats, y: Floats) -> tuple[float, float]:
    """Height of a jump in the middle and its standard errors."""
    m = len(x)
    side = (np.arange(m) >= m // 2).astype(np.float64)
    coef, left, design = _fit(x, y, side)
    se = _noise(y, left) * float(np.sqrt(np.linalg.pinv(design.T @ design)[3, 3])) * inflation(lag_one(left))
    return float(coef[3]), float(coef[3]) / se


def _better_than_a_kink(x: Floats, y: Floats) -> bool:
    """Whether a jump in the middle explains the stretches clearly better than a change of slope at any place does."""
    m = len(x)
    _, left, _ = _fit(x, y, (np.arange(m) >= m // 2).astype(np.float64))
    other = min(float(rest @ rest) for k in range(2, m - 2, max(1, m // 16)) for _, rest, _ in [_fit(x, y, np.maximum(x - x[k], 0.0))])
    return bool(other - float(left @ left) > 12 * _noise(y, left) ** 2)


def _noise(y: Floats, left: Floats) -> float:
    return max(float(np.sqrt(left @ left / (len(y) - 4))), float(mad_scale(np.diff(y)) / np.sqrt(2)), 1e-12)


def _fit(x: Floats, y: Floats, extra: Floats) -> tuple[Floats, Floats, Floats]:
    """Least squares of a bent line and one more column: coefficients, residuals, design."""
    u = (x - x[len(x) // 2]) / max(float(x[-1] - x[0]), 1e-12)
    design = np.stack([np.ones(len(x)), u, u * u, extra], axis=1)
    coef, *_ = np.linalg.lstsq(design, y, rcond=None)
    return coef, y - design @ coef, design


def _place(y: Floats, lo: int, hi: int, width: int) -> int:
    """The record of the jump: the split with the largest difference of means, weighed by lengths."""
    lo, hi = max(0, lo), min(len(y), hi)
    seg = y[lo:hi] - np.median(y[lo:hi])
    c = np.cumsum(seg)
    k = np.arange(width // 2, len(seg) - width // 2)
    score = (c[-1] - c[k - 1]) / (len(seg) - k) - c[k - 1] / k
    return int(lo + k[int(np.argmax(score * np.sqrt(k * (len(seg) - k))))])


def odd_rank(ctx: Context) -> list[Event] | str:
    """A rank whose own loss or gradient norm differs from the others' (rule 17): robust z above 6 over twenty steps."""
    logged = {m: r for m, r in ctx.curves.ranks.items() if m in ("train_loss", "grad_norm") and len(r) >= 4}
    if not logged:
        return "loss and gradient norm were not logged by rank for four ranks"
    found = []
    for metric, by_rank in logged.items():
        steps = np.unique(np.concatenate([s.step for s in by_rank.values()]))
        grid = np.full((len(by_rank), len(steps)), np.nan)
        ranks = sorted(by_rank)
        for i, r in enumerate(ranks):
            grid[i, np.searchsorted(steps, by_rank[r].step)] = by_rank[r].value
        off = grid - np.nanmedian(grid, axis=0)
        for i, r in enumerate(ranks):
            mean = np.convolve(np.nan_to_num(off[i]), np.ones(20) / 20, mode="valid") if len(steps) >= 20 else np.zeros(0)
            scale = max(mad_scale(np.delete(off, i, axis=0)[np.isfinite(np.delete(off, i, axis=0))]) / np.sqrt(20), 1e-9)
            hot = np.flatnonzero(np.abs(mean) / scale > 6)
            if len(hot):
                found.append(
                    Event(
                        metric, "level_shift", "alarm", int(steps[hot[0]]), int(steps[min(len(steps) - 1, hot[-1] + 19)]) + 1, None, "level_shift",
                        float(mean[hot].mean()), float(np.abs(mean).max() / scale), None, None,
                        cause="hardware", subcause=f"hardware_persistent({r})", confidence="medium", evidence={"rank": float(r)},
                    )
                )  # fmt: skip
    return found
