"""Logged curves as dense arrays, and the robust comparisons that attribution makes on them.

Only what attribution needs to date an event and to see signs of a fault; shapes of events are found elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.attribution.timeline import column
from forensics.losses.difficulty import BOOL, F64, I64
from forensics.robust import spread
from forensics.schemas import Metrics


@dataclass(frozen=True)
class Series:
    """One metric: steps ascending, one value each (NaN and infinity as logged)."""

    steps: I64
    values: F64

    def at(self, steps: I64) -> F64:
        """Values at these steps, NaN where none was logged."""
        if not len(self.steps):
            return np.full(len(steps), np.nan)
        row = np.minimum(np.searchsorted(self.steps, steps), len(self.steps) - 1)
        return np.where(self.steps[row] == steps, self.values[row], np.nan)

    def part(self, start: int, stop: int) -> Series:
        """The steps start..stop."""
        a, b = np.searchsorted(self.steps, [start, stop])
        return Series(self.steps[a:b], self.values[a:b])

    def __len__(self) -> int:
        return len(self.steps)


NONE = Series(np.zeros(0, dtype=np.int64), np.zeros(0))


@dataclass(frozen=True)
class Signals:
    """All global series of one run by canonical name; `ranks`: per-rank series by name and rank."""

    series: dict[str, Series]
    ranks: dict[tuple[str, int], Series]

    def get(self, name: str) -> Series:
        """The series, empty where it was not logged."""
        return self.series.get(name, NONE)

    def family(self, name: str) -> dict[str, Series]:
        """Members `name/label` by label."""
        return {k[len(name) + 1 :]: v for k, v in self.series.items() if k.startswith(name + "/")}


def signals(metrics: Metrics) -> Signals:
    """Series of a metrics table; where a step was logged twice, the later launch and the later line count."""
    if metrics.num_rows == 0:
        return Signals({}, {})
    encoded = metrics.column("metric").combine_chunks().cast(pa.string()).dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    code = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
    step, rank, launch = column(metrics, "step"), column(metrics, "rank"), column(metrics, "launch")
    value = np.asarray(pc.cast(metrics.column("value"), pa.float64()).to_numpy(), dtype=np.float64)
    order = np.lexsort((np.arange(len(step)), launch, step, rank, code))
    code, step, rank, value = code[order], step[order], rank[order], value[order]
    last = np.ones(len(step), dtype=bool)
    last[:-1] = (np.diff(code) != 0) | (np.diff(rank) != 0) | (np.diff(step) != 0)
    code, step, rank, value = code[last], step[last], rank[last], value[last]
    edges = np.flatnonzero(np.concatenate([[True], (np.diff(code) != 0) | (np.diff(rank) != 0)]))
    found: dict[str, Series] = {}
    ranks: dict[tuple[str, int], Series] = {}
    names = encoded.dictionary.to_pylist()
    for a, b in zip(edges, [*edges[1:], len(code)], strict=True):
        name, series = str(names[code[a]]), Series(step[a:b], value[a:b])
        if rank[a] < 0:
            found[name] = series
        else:
            ranks[(name, int(rank[a]))] = series
    return Signals(found, ranks)


def robust_line(steps: I64, values: F64, use: BOOL, rounds: int = 4) -> tuple[float, float, float]:
    """A line through the values marked in `use`, outliers weighed down.

    Returns:
        Level at step 0, slope per step, robust standard deviation of the residuals.
    """
    ok = use & np.isfinite(values)
    if ok.sum() < 3:
        level = float(np.median(values[ok])) if ok.any() else 0.0
        return level, 0.0, 0.0
    x, y = steps[ok].astype(np.float64), values[ok]
    mid = float(x.mean())
    w = np.ones(len(x))
    slope, level = 0.0, float(np.median(y))
    for _ in range(rounds):
        total = w.sum()
        mx, my = (w * (x - mid)).sum() / total, (w * y).sum() / total
        var = (w * (x - mid - mx) ** 2).sum()
        slope = float((w * (x - mid - mx) * (y - my)).sum() / var) if var > 0 else 0.0
        level = float(my - slope * mx)
        r = y - level - slope * (x - mid)
        s = spread(r, 1e-12)
        w = 1.0 / np.maximum(1.0, np.abs(r) / (1.5 * s))
    return level - slope * mid, slope, spread(y - level - slope * (x - mid))


@dataclass(frozen=True)
class Departure:
    """Where a series leaves its line: first step, largest |z|, sign, and mean excess over the stretch."""

    start: int
    stop: int
    peak_z: float
    sign: int
    mean: float


def departures(steps: I64, z: F64, threshold: float = 6.0, slack: float = 1.0, alarm: float = 8.0, back: float = 2.0) -> list[Departure]:
    """Stretches in which z leaves 0: single points past `threshold`, or a cumulative sum past `alarm`.

    Args:
        steps: ascending.
        z: residuals by their scale; NaN is passed over.
        threshold: for single points.
        slack, alarm: of the cumulative sum, with z clipped at 6.
        back: a stretch begins at the first of the points before the alarm that stay past this.
    """
    found: list[Departure] = []
    for sign in (1, -1):
        x = np.where(np.isfinite(z), sign * z, 0.0)
        total, begin, i = 0.0, 0, 0
        while i < len(x):
            if total <= 0:
                begin = i
            total = max(0.0, total + min(x[i], 6.0) - slack)
            if total >= alarm or x[i] >= threshold:
                start = i if x[i] >= threshold and total < alarm else begin
                while start < i and x[start] < back:
                    start += 1
                stop, quiet = i + 1, 0
                while stop < len(x) and quiet < 10:
                    quiet = quiet + 1 if x[stop] < slack else 0
                    stop += 1
                stop -= quiet
                part = x[start:stop]
                found.append(Departure(int(steps[start]), int(steps[stop - 1]) + 1, float(part.max()), sign, float(part.mean())))
                i, total = stop, 0.0
                continue
            i += 1
    return sorted(found, key=lambda d: (d.start, -d.peak_z))


def turning_point(x: F64, near: int, width: int) -> int:
    """The index near which a series turns from below to above 0: the split with the largest difference of sums around it."""
    lo, hi = max(0, near - width), min(len(x), near + 3 * width)
    total = np.concatenate([[0.0], np.cumsum(x[lo:hi])])
    splits = np.arange(max(1, min(near + 2 * width, hi) - lo))
    return lo + int(splits[np.argmax(total[-1] - 2 * total[splits])])
