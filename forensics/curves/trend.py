"""What a curve is expected to do: smoothing by half-life, robust lines and scales, the power law of loss against tokens.

Every detector compares a curve with a trend made here. Rules that the numbers follow: a trend is learnt from unflagged records only,
scales come from the median absolute deviation, and a scale is never finer than the grid on which the values were rounded (bf16 losses
take a handful of values, and half of them may be equal).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forensics.robust import mad_scale

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def ema(step: Ints, value: Floats, half_life: float) -> Floats:
    """Exponential moving average by half-life in steps, the start-up divided out; records that are no number keep the last average.

    Args:
        step: int64 [n], increasing.
        value: float64 [n].
        half_life: steps after which a record counts half.

    Returns:
        float64 [n]; NaN before the first number.
    """
    from forensics.curves.scan import ema_kernel

    return np.asarray(ema_kernel(step.astype(np.float64), value.astype(np.float64), float(half_life)), dtype=np.float64)


def median_before(value: Floats, width: int, block: int = 1) -> Floats:
    """Median of the `width` records before each, taken anew every `block` records.

    Args:
        value: float64 [n].
        width: records, fewer at the beginning.
        block: records that share a median.

    Returns:
        float64 [n]; infinite in the first block, before which nothing is.
    """
    found = [float(np.median(value[:i])) for i in range(block, min(width, len(value)), block)]
    starts = np.arange(block * (len(found) + 1), len(value), block)
    if len(starts):
        windows = np.lib.stride_tricks.sliding_window_view(value, width)
        found += [m for i in range(0, len(starts), 512) for m in np.median(windows[starts[i : i + 512] - width], axis=1).tolist()]
    return np.repeat(np.array([np.inf, *found]), block)[: len(value)]


def grid_of(value: Floats) -> float:
    """Distance of the grid that values were rounded to, 0 where they look continuous.

    Rounded values repeat: where fewer than half of the values of a stretch are distinct, the grid is the smallest distance
    between neighbours that recurs. The end of a curve is looked at by itself too: on the way down few values come twice.
    """
    v = value[np.isfinite(value)]
    return _grid(v[-4096:]) or _grid(v[-128:])


def _grid(v: Floats) -> float:
    if len(v) < 16:
        return 0.0
    unique = np.unique(v)
    if len(unique) < 2:
        return float(abs(unique[0])) * 2.0**-8 if len(unique) else 0.0
    if len(unique) > 0.5 * len(v):
        return 0.0
    gaps = np.diff(unique)
    return float(np.quantile(gaps, 0.1))


def scale_floor(value: Floats, relative: float) -> float:
    """The smallest scale a baseline may have: rounding grid and a share of the level."""
    v = value[np.isfinite(value)]
    level = float(np.median(np.abs(v))) if len(v) else 0.0
    return max(0.5 * grid_of(v), relative * level, 1e-12)


def line(x: Floats, y: Floats, rounds: int = 3) -> tuple[float, float]:
    """Robust straight line (Huber weights at 1.345 robust sd): intercept and slope; a constant where x does not vary."""
    if len(x) == 0:
        return 0.0, 0.0
    w = np.ones(len(x))
    a, b = float(np.median(y)), 0.0
    for _ in range(rounds):
        sw = w.sum()
        mx, my = (w @ x) / sw, (w @ y) / sw
        sxx = w @ (x - mx) ** 2
        b = float((w @ ((x - mx) * (y - my))) / sxx) if sxx > 0 else 0.0
        a = float(my - b * mx)
        r = y - a - b * x
        s = max(mad_scale(r), 1e-12)
        w = 1.0 / np.maximum(1.0, np.abs(r) / (1.345 * s))
    return a, b


def lag_one(residual: Floats) -> float:
    """Correlation of neighbours, computed on values clipped at three robust sd."""
    if len(residual) < 8:
        return 0.0
    s = max(mad_scale(residual), 1e-12)
    r = np.clip(residual - np.median(residual), -3 * s, 3 * s)
    d = float(r @ r)
    return float(np.clip((r[1:] @ r[:-1]) / d, -0.99, 0.99)) if d > 0 else 0.0


def inflation(phi: float) -> float:
    """By how much a correlation of neighbours widens the error of a mean: sqrt((1+phi)/(1-phi)), never under 1."""
    phi = min(max(phi, 0.0), 0.98)
    return float(np.sqrt((1 + phi) / (1 - phi)))


@dataclass(frozen=True)
class Bins:
    """A curve in stretches of equal record count.

    Attributes:
        start, stop: int64 [m], half-open record indices.
        x: float64 [m], mean position on the axis used.
        y: float64 [m], mean of the middle half of the values.
        se: float64 [m], standard error of y.
    """

    start: Ints
    stop: Ints
    x: Floats
    y: Floats
    se: Floats

    def __len__(self) -> int:
        return len(self.y)


def bins(x: Floats, y: Floats, width: int, use: NDArray[np.bool_] | None = None) -> Bins:
    """Cut a curve into stretches of `width` records; flagged records are left out and a stretch with too few others is dropped.

    The mean of the middle half resists what is left of spikes, and unlike a median it does not snap to the grid of rounded values; its standard error is
    1.1 s / sqrt(n), s from differences of neighbours, which no trend inflates, and of rounding.
    """
    rounding = 0.29 * grid_of(y)
    n = len(y) // width
    keep = np.ones(len(y), dtype=bool) if use is None else use
    rows: list[tuple[int, int, float, float, float]] = []
    for i in range(n):
        a, b = i * width, (i + 1) * width
        k = keep[a:b]
        m = int(k.sum())
        if m < max(4, width // 4):
            continue
        v = y[a:b][k]
        s = max(mad_scale(np.diff(v)) / np.sqrt(2.0), rounding)
        rows.append((a, b, float(x[a:b][k].mean()), float(np.sort(v)[m // 4 : m - m // 4].mean()), 1.1 * s / np.sqrt(m)))
    cols = list(zip(*rows, strict=True)) if rows else [(), (), (), (), ()]
    return Bins(np.array(cols[0], dtype=np.int64), np.array(cols[1], dtype=np.int64), *(np.array(c, dtype=np.float64) for c in cols[2:]))


@dataclass(frozen=True)
class PowerLaw:
    """L(D) = floor + factor * D**-exponent, fitted on log-spaced bins.

    Attributes:
        floor, factor, exponent: the law.
        r2: share of the bins' variance it explains.
        longest_run: most neighbouring bins on one side of the law: long runs mean that the law does not fit.
        bins, decades: what it was fitted on.
    """

    floor: float
    factor: float
    exponent: float
    r2: float
    longest_run: int
    bins: int
    decades: float

    def at(self, d: Floats) -> Floats:
        """Expected loss at a number of tokens or steps."""
        return np.asarray(self.floor + self.factor * np.asarray(d, dtype=np.float64) ** -self.exponent, dtype=np.float64)

    @property
    def ok(self) -> bool:
        """Whether the law may be used to predict: no runs longer than 6 bins, R^2 above 0.98, an exponent in (0.02, 1)."""
        return self.longest_run <= 6 and self.r2 > 0.98 and 0.02 < self.exponent < 1.0


def power_law(d: Floats, y: Floats, n_bins: int = 40) -> PowerLaw | str:
    """Fit the law, or say why it cannot be fitted.

    The floor is profiled over a grid in [0, min loss), for each a weighted line of log(L - floor) on log D with Huber weights.
    """
    ok = np.isfinite(y) & (d > 0)
    d, y = d[ok].astype(np.float64), y[ok]
    if len(y) < 2 * n_bins:
        return f"{len(y)} records are too few for {n_bins} bins"
    decades = float(np.log10(d[-1] / d[0]))
    if decades < 1.0:
        return f"{decades:.2f} decades of tokens, at least 1 is needed"
    edges = np.geomspace(d[0], d[-1] * (1 + 1e-9), n_bins + 1)
    which = np.clip(np.searchsorted(edges, d, side="right") - 1, 0, n_bins - 1)
    rows = [(float(np.log(d[which == i]).mean()), float(np.median(y[which == i])), float((which == i).sum())) for i in range(n_bins) if (which == i).sum() >= 3]
    if len(rows) < 30:
        return f"{len(rows)} bins hold three records, at least 30 are needed"
    lx, ly, weight = (np.array(c) for c in zip(*rows, strict=True))
    best: tuple[float, float, float, float] | None = None
    for floor in np.linspace(0.0, float(ly.min()) * 0.999, 200):
        a, b = _weighted_line(lx, np.log(ly - floor), np.sqrt(weight))
        err = ly - floor - np.exp(a + b * lx)
        cost = float((weight * np.minimum(err**2, (3 * max(mad_scale(err), 1e-9)) ** 2)).sum())
        if best is None or cost < best[0]:
            best = (cost, float(floor), a, b)
    assert best is not None
    _, floor, a, b = best
    err = ly - floor - np.exp(a + b * lx)
    r2 = 1.0 - float((err**2).sum() / max(((ly - ly.mean()) ** 2).sum(), 1e-30))
    return PowerLaw(floor, float(np.exp(a)), -b, r2, _longest_run(err > 0), len(rows), decades)


def _weighted_line(x: Floats, y: Floats, w: Floats) -> tuple[float, float]:
    mx, my = (w @ x) / w.sum(), (w @ y) / w.sum()
    sxx = w @ (x - mx) ** 2
    b = float((w @ ((x - mx) * (y - my))) / sxx) if sxx > 0 else 0.0
    return float(my - b * mx), b


def _longest_run(side: NDArray[np.bool_]) -> int:
    change = np.flatnonzero(np.diff(side.astype(np.int8))) + 1
    return int(np.diff(np.concatenate([[0], change, [len(side)]])).max()) if len(side) else 0
