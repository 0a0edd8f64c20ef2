"""Logged curves for charts: one metric of one run, the last launch's value where a step was logged twice, thinned to extremes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.curves.trend import line
from forensics.robust import mad_scale

MOST_POINTS = 3000
HALF_LIFE = 20.0
BAND = 2.0  # robust standard deviations on either side of the trend
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Curve:
    """One metric over steps.

    Attributes:
        step: int64 [n], increasing. value: float64 [n]; NaN and infinity as logged.
        tokens, time: float64 [n], consumed tokens and seconds since 1970; None where no record has them.
    """

    step: Ints
    value: Floats
    tokens: Floats | None
    time: Floats | None

    def part(self, places: Any) -> Curve:
        """Some of its records."""
        return Curve(self.step[places], self.value[places], *(None if a is None else a[places] for a in (self.tokens, self.time)))

    @property
    def axes(self) -> dict[str, Any]:
        """Its positions on every axis known, for a chart."""
        known = {"step": self.step, "tokens": self.tokens, "time": self.time}
        return {name: values for name, values in known.items() if values is not None}

    def unlogged(self) -> list[int]:
        """Steps whose value is no finite number."""
        return [int(s) for s in self.step[~np.isfinite(self.value)]]


def chosen(column: Any, name: str) -> NDArray[np.bool_]:
    """Which rows of a dictionary column hold a name; no row is decoded."""
    out = []
    chunks: list[Any] = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    for chunk in chunks:
        code = chunk.dictionary.index(name).as_py() if len(chunk.dictionary) else -1
        indices = chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        out.append(indices == code if code >= 0 else np.zeros(len(indices), bool))
    return np.concatenate(out) if out else np.zeros(0, bool)


def read_curve(metrics: pa.Table, metric: str, run: str | None = None, low: int | None = None, high: int | None = None) -> Curve | None:
    """A metric's values over the whole run's devices.

    Args:
        metrics: the table `metrics`.
        metric: canonical name.
        run: where several are in the table.
        low, high: steps kept, half-open.

    Returns:
        None where no record is left.
    """
    mine = _rows(metrics, metric, run)
    if mine["rank"].null_count < mine.num_rows:
        whole = mine.filter(pa.array(np.asarray(mine["rank"].is_null())))
        mine = whole if whole.num_rows else _ranks(mine)
    step = mine["step"].to_numpy()
    if low is not None or high is not None:
        keep = (step >= (low if low is not None else step.min(initial=0))) & (step < (high if high is not None else step.max(initial=0) + 1))
        mine, step = mine.filter(pa.array(keep)), step[keep]
    if not len(step):
        return None
    order: Ints = np.arange(len(step))
    if not bool((step[1:] > step[:-1]).all()):
        column: Any = mine["launch"]
        order = np.lexsort((column.fill_null(0).to_numpy(), step))
        order = order[np.append(np.diff(step[order]) != 0, True)]
    value: Floats = mine["value"].to_numpy()[order]
    return Curve(step[order], value, _floats(mine["tokens"], order), _floats(mine["time"].cast(pa.int64()), order, 1e-6))


def _rows(metrics: pa.Table, metric: str, run: str | None) -> pa.Table:
    """The rows of one metric; pieces that hold nothing else are taken as they are, so that a table of millions is not copied."""
    wanted = metrics.select(["metric", "run", "launch", "step", "rank", "tokens", "time", "value"])
    parts = []
    for batch in wanted.to_batches():
        keep = chosen(batch.column("metric"), metric)
        if run is not None and keep.any():
            keep &= chosen(batch.column("run"), run)
        if keep.all():
            parts.append(batch)
        elif keep.any():
            parts.append(batch.filter(pa.array(keep)))
    return pa.Table.from_batches(parts, wanted.schema)


def _ranks(table: pa.Table) -> pa.Table:
    """Mean over ranks where a metric was logged per rank only."""
    columns = [("value", "mean"), ("tokens", "max"), ("time", "max")]
    found: Any = table.group_by(["launch", "step"]).aggregate(columns)  # type: ignore[arg-type]
    return pa.table({"launch": found["launch"], "step": found["step"], "tokens": found["tokens_max"], "time": found["time_max"], "value": found["value_mean"]})


def _floats(column: Any, order: Ints, scale: float = 1.0) -> Floats | None:
    if column.null_count == len(column):
        return None
    values: Floats = np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)[order] * scale
    known = np.isfinite(values)
    filled: Floats = np.interp(np.arange(len(values)), np.flatnonzero(known), values[known])
    return np.maximum.accumulate(filled)


def thin(curve: Curve, most: int = MOST_POINTS, whole: Iterable[tuple[int, int]] = ()) -> Ints:
    """Places to draw: all, or the lowest and highest of every bucket, and every value that is no number.

    Args:
        curve: n records.
        most: about how many are kept.
        whole: half-open stretches of steps of which every record is kept, as far as as many again suffice.
    """
    n = len(curve.value)
    if n <= most:
        return np.arange(n)
    edges = np.linspace(0, n, most // 2 + 1).astype(int)
    keep = {0, n - 1, *np.flatnonzero(~np.isfinite(curve.value))[:200].tolist()}
    known = np.isfinite(curve.value)
    value = curve.value if known.all() else np.where(known, curve.value, np.nanmedian(curve.value))
    for a, b in zip(edges, edges[1:], strict=False):
        keep |= {int(a + value[a:b].argmin()), int(a + value[a:b].argmax())}
    for start, stop in whole:
        a, b = np.searchsorted(curve.step, (start, stop)).tolist()
        if len(keep) + b - a < 2 * most:
            keep |= set(range(a, b))
    return np.array(sorted(keep), np.int64)


def ema(step: Ints, value: Floats, half_life: float = HALF_LIFE) -> Floats:
    """Exponential mean by half-life in steps, start-up corrected; values that are no number are passed over."""
    out = np.empty(len(value))
    total = weight = 0.0
    last = int(step[0]) - 1 if len(step) else 0
    for i, (s, v) in enumerate(zip(step.tolist(), value.tolist(), strict=True)):
        fade = 0.5 ** ((s - last) / half_life)
        if np.isfinite(v):
            total, weight = total * fade + (1 - fade) * v, weight * fade + 1 - fade
        out[i] = total / weight if weight else np.nan
        last = s
    return out


def trend_band(curve: Curve, start: int, stop: int) -> tuple[Floats, Floats] | None:
    """Lower and upper edge of what the baseline lets expect: a robust line through steps [start, stop) and two robust deviations.

    A slope of less than three standard errors is taken for none: it would carry the band away from the curve.

    Returns:
        float64 [n] each, NaN before the baseline; None for fewer than eight finite records.
    """
    use = (curve.step >= start) & (curve.step < stop) & np.isfinite(curve.value)
    if use.sum() < 8:
        return None
    x, y = curve.step[use].astype(np.float64), curve.value[use]
    a, b = line(x - start, y)
    scale = mad_scale(y - a - b * (x - start))
    if abs(b) * float(np.sqrt(((x - x.mean()) ** 2).sum())) < 3 * scale:
        a, b = float(np.median(y)), 0.0
    middle = a + b * (curve.step - start)
    known: Floats = np.where(curve.step >= start, middle, np.nan)
    return known - BAND * scale, known + BAND * scale
