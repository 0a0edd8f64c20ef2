"""Numbers for a whole curve: OLMo's spike score, the false events to expect, and the alarm rules of other tools for comparison.

OLMo 2 (2501.00656): the share of steps at which the value stands at least seven standard deviations above the mean of the last thousand. It is a good
score of a run and no detector: drifts and level shifts are invisible to it. The rules of other tools are written here from their documented definitions,
to be measured on the same curves.
"""

from __future__ import annotations

from math import exp

import numpy as np

from forensics.curves.trend import Floats, inflation, lag_one
from forensics.robust import mad_scale


def spike_score(value: Floats, window: int = 1000, sigmas: float = 7.0) -> float | None:
    """Share of records at least `sigmas` standard deviations above the mean of the `window` records before them.

    Args:
        value: float64 [n]; values that are no number are left out.
        window: records that mean and standard deviation are taken over; the first `window` records are not scored.
        sigmas: how far above.

    Returns:
        Share in [0, 1]; None where there are no more than `window` records.
    """
    v = value[np.isfinite(value)]
    if len(v) <= window:
        return None
    mean, sd = trailing(v, window)
    with np.errstate(invalid="ignore"):
        return float((v[window:] >= mean + sigmas * sd).mean())


def trailing(v: Floats, window: int) -> tuple[Floats, Floats]:
    """Mean and standard deviation of the `window` values before each of v[window:], from running sums about the median."""
    c = v - np.median(v)
    one = np.concatenate([[0.0], np.cumsum(c)])
    two = np.concatenate([[0.0], np.cumsum(c * c)])
    n = len(v)
    mean = (one[window:n] - one[: n - window]) / window
    square = (two[window:n] - two[: n - window]) / window
    return mean + float(np.median(v)), np.sqrt(np.maximum(square - mean * mean, 0.0))


def run_length(k: float, h: float) -> float:
    """Records between false alarms of a one-sided CUSUM on independent normal noise (Siegmund's approximation)."""
    b = h + 1.166
    return (exp(2 * k * b) - 2 * k * b - 1) / (2 * k * k)


def expected_false(z: Floats, quiet: np.ndarray, k: float, h: float, point: float, phi: float) -> float:
    """False events to expect on a curve of this length and noise.

    Two parts: the drift rule by its run length, its limit narrowed by what means over stretches scatter more than its scale allows for (noise that wanders
    slowly); one-step outliers by a generalised Pareto tail fitted to the quiet records' largest two per cent.

    Args:
        z: standardised residuals.
        quiet: bool [n], records outside events (one-step outliers belong to them).
        k, h, point: rule.
        phi: correlation of neighbours, which the drift rule's scale allows for.
    """
    v = z[quiet]
    if len(v) < 50:
        return 0.0
    drift = 2 * len(v) / run_length(k, h / max(1.0, slow_scatter(v) / inflation(phi)))
    return float(drift + len(v) * (tail_share(v, point) + tail_share(-v, point)))


def slow_scatter(v: Floats, width: int = 50) -> float:
    """By how much the mean of a stretch of records scatters more than that of independent ones: 1 for white noise, never less."""
    c = np.clip(v, -3, 3)
    n = len(c) // width
    if n < 4:
        return 1.0
    return max(1.0, float(np.sqrt(width * c[: n * width].reshape(n, width).mean(axis=1).var() / max(c.var(), 1e-12))))


def tail_share(v: Floats, limit: float) -> float:
    """Share of values beyond a limit by a generalised Pareto tail (moments) above their 98 % quantile."""
    u = float(np.quantile(v, 0.98))
    over = v[v > u] - u
    if len(over) < 10 or limit <= u:
        return float((v > limit).mean())
    mean, var = float(over.mean()), float(over.var())
    shape = float(np.clip(0.5 * (1 - mean * mean / max(var, 1e-12)), -0.5, 0.4))
    scale = mean * (1 - shape)
    x = limit - u
    inside = max(0.0, 1 + shape * x / scale)
    tail = exp(-x / scale) if abs(shape) < 1e-6 else inside ** (-1 / shape) if inside > 0 else 0.0
    return 0.02 * float(tail)


def six_sigma(value: Floats, window: int = 128, sigmas: float = 6.0) -> np.ndarray:
    """OLMo-core's stability monitor: indices of values more than six sd above the mean of the last 128, outliers kept in the window."""
    if len(value) <= window:
        return np.zeros(0, dtype=np.int64)
    mean, sd = trailing(value, window)
    return np.flatnonzero(value[window:] > mean + sigmas * sd) + window


def kill_loss_spike(value: Floats, steps: int | None = None) -> int | None:
    """LLM Foundry's KillLossSpike: first index with twice the window's mean five times in a row, or half a window above the first window's maximum."""
    n = steps or len(value)
    window = max(100, n // 20)
    if len(value) <= window:
        return None
    cap = float(np.max(value[:window]))
    run = 0
    mean, _ = trailing(value, window)
    for i in range(window, len(value)):
        run = run + 1 if value[i] >= 2 * mean[i - window] else 0
        if run >= 5 or int((value[i - window + 1 : i + 1] > cap).sum()) >= window // 2:
            return i
    return None


def noise_of(value: Floats) -> dict[str, float]:
    """How noisy a curve is: scale from differences, its share of the level, correlation of neighbours of the differenced curve's parent, kurtosis."""
    d = np.diff(value) / np.sqrt(2)
    s = mad_scale(d)
    c = np.clip(d / max(s, 1e-12), -8, 8)
    return {
        "scale": s,
        "share": s / max(abs(float(np.median(value))), 1e-12),
        "kurtosis": float((c**4).mean() / max((c**2).mean(), 1e-12) ** 2 - 3),
        "lag_one": lag_one(value - np.convolve(np.pad(value, 10, mode="edge"), np.ones(21) / 21, mode="valid")),
    }
