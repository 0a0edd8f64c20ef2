"""One curve as arrays: what the rules read, cut out of the long `metrics` table.

The table holds every logged number of every launch; a rule wants one metric of one run with each step once. Where steps were run twice
the later launch counts and the overwritten part is kept beside it, because the two tries of a step are an experiment nobody had to pay for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

UNKNOWN = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Series:
    """A metric of one run, each step once, in order.

    Attributes:
        metric: canonical name.
        step: int64 [n], strictly increasing.
        value: float64 [n]; NaN and infinity as logged.
        tokens: int64 [n] or None where no token count was logged.
        time: int64 [n], microseconds since 1970 (UTC), or None.
        launch: int64 [n], -1 where unknown.
        overwritten: steps and values that a later launch ran again, or None.
    """

    metric: str
    step: Ints
    value: Floats
    tokens: Ints | None = None
    time: Ints | None = None
    launch: Ints | None = None
    overwritten: tuple[Ints, Floats] | None = None

    def __len__(self) -> int:
        return len(self.step)

    @property
    def cadence(self) -> int:
        """Steps between records: the median distance, 1 for fewer than two records."""
        return max(1, int(np.median(np.diff(self.step)))) if len(self.step) > 1 else 1

    def finite(self) -> Series:
        """The records whose value is a number."""
        keep = np.isfinite(self.value)
        return self if keep.all() else self.where(keep)

    def where(self, keep: NDArray[np.bool_] | slice) -> Series:
        """The chosen records."""

        def cut(a: Ints | None) -> Ints | None:
            return None if a is None else a[keep]

        return Series(self.metric, self.step[keep], self.value[keep], cut(self.tokens), cut(self.time), cut(self.launch), self.overwritten)

    def at(self, step: int) -> int:
        """Index of the last record at or before a step; 0 where none is."""
        return max(0, int(np.searchsorted(self.step, step, side="right")) - 1)


@dataclass(frozen=True)
class Curves:
    """All curves of one run.

    Attributes:
        run: its name.
        global_: series by metric, over all ranks.
        ranks: series by metric and rank, where ranks were logged apart.
    """

    run: str
    global_: Mapping[str, Series]
    ranks: Mapping[str, Mapping[int, Series]] = field(default_factory=dict)

    def get(self, metric: str) -> Series | None:
        """The curve of a metric, None where it was not logged."""
        return self.global_.get(metric)

    def starting(self, prefix: str) -> dict[str, Series]:
        """Curves whose name begins so, by the rest of the name."""
        return {name[len(prefix) :]: s for name, s in sorted(self.global_.items()) if name.startswith(prefix) and len(name) > len(prefix)}

    def __iter__(self) -> Iterator[Series]:
        return iter(self.global_[k] for k in sorted(self.global_))


def runs_of(metrics: pa.Table) -> list[str]:
    """Names of the runs in a table, sorted."""
    names: set[str] = set()
    for chunk in metrics.column("run").chunks:
        code, known = _codes(chunk)
        names.update(known[i] for i in ([int(code[0])] if len(code) and _constant(code) else np.unique(code)))
    return sorted(names)


def curves_of(metrics: pa.Table, run: str | None = None) -> Curves:
    """The curves of one run.

    Args:
        metrics: a `metrics` table, rows in any order.
        run: which run; None where the table holds one.
    """
    names = runs_of(metrics)
    run = run if run is not None else (names[0] if names else "run")
    parts: dict[tuple[str, int], list[dict[str, NDArray[np.generic]]]] = {}
    for batch in metrics.select(["run", "metric", "launch", "step", "rank", "tokens", "time", "value"]).to_batches():
        _collect(batch, run, parts)
    global_: dict[str, Series] = {}
    ranks: dict[str, dict[int, Series]] = {}
    for (metric, rank), chunks in parts.items():
        series = _series(metric, chunks)
        if rank == -1:
            global_[metric] = series
        else:
            ranks.setdefault(metric, {})[rank] = series
    for metric, by_rank in ranks.items():
        if metric not in global_:
            global_[metric] = _over_ranks(metric, by_rank)
    return Curves(run, global_, ranks)


def _ints(column: Any, missing: int) -> Ints:
    """An integer column with a marker for null; no memory where it holds one value throughout."""
    if column.null_count == len(column):
        return np.broadcast_to(np.int64(missing), len(column))
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    if column.null_count == 0:
        ends = pc.min_max(column)
        if ends["min"] == ends["max"]:
            return np.broadcast_to(np.int64(ends["min"].as_py()), len(column))
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)
    return np.asarray(pc.fill_null(column.cast(pa.int64()), missing).to_numpy(zero_copy_only=False), dtype=np.int64)


def _codes(column: Any) -> tuple[Ints, list[str]]:
    """Codes and names of a dictionary column; equal names share a code."""
    return _ints(column.indices, -1), [str(x) for x in column.dictionary.to_pylist()]


def _collect(batch: pa.RecordBatch, run: str, parts: dict[tuple[str, int], list[dict[str, NDArray[np.generic]]]]) -> None:
    """Sort the rows of a batch to their curves; slices where a batch holds one curve, so that large tables are not copied."""
    if not batch.num_rows:
        return
    run_code, run_names = _codes(batch.column("run"))
    code, names = _codes(batch.column("metric"))
    rank = _ints(batch.column("rank"), -1)
    columns: dict[str, NDArray[np.generic]] = {
        "step": _ints(batch.column("step"), 0),
        "value": np.asarray(batch.column("value").to_numpy(zero_copy_only=False), dtype=np.float64),
        "tokens": _ints(batch.column("tokens"), UNKNOWN),
        "time": _ints(batch.column("time"), UNKNOWN),
        "launch": _ints(batch.column("launch"), -1),
    }
    if all(_constant(c) for c in (run_code, code, rank)):
        if run_names[int(run_code[0])] == run:
            parts.setdefault((names[int(code[0])], int(rank[0])), []).append(columns)
        return
    mine = np.array([name == run for name in run_names])[run_code]
    key = code * (1 << 32) + (rank + 1)
    for k in np.unique(key[mine]):
        rows = np.flatnonzero(mine & (key == k))
        contiguous = rows[-1] - rows[0] + 1 == len(rows)
        pick = slice(int(rows[0]), int(rows[-1]) + 1) if contiguous else rows
        parts.setdefault((names[int(k) >> 32], int(k & 0xFFFFFFFF) - 1), []).append({n: c[pick] for n, c in columns.items()})


def _constant(a: Ints) -> bool:
    """Whether the array is one value, spread without memory."""
    return a.strides == (0,) or len(a) == 1


def _joined(parts: list[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Parts of a column, without memory where all of them hold one value."""
    if len(parts) == 1:
        return parts[0]
    if all(p.strides == (0,) and p[0] == parts[0][0] for p in parts if len(p)):
        return np.broadcast_to(parts[0][0], sum(len(p) for p in parts))
    return np.concatenate(parts)


def _series(metric: str, chunks: list[dict[str, NDArray[np.generic]]]) -> Series:
    """Join the parts of a curve, order them, and let the later launch win."""
    whole = {n: _joined([c[n] for c in chunks]) for n in chunks[0]}
    step, launch = np.asarray(whole["step"], dtype=np.int64), np.asarray(whole["launch"], dtype=np.int64)
    overwritten = None
    if len(step) > 1 and not bool(np.all(step[1:] > step[:-1])):
        order = np.lexsort((np.arange(len(step)), launch, step))
        step = step[order]
        last = np.append(step[1:] != step[:-1], True)
        again = order[~last]
        overwritten = (np.asarray(whole["step"][again], dtype=np.int64), np.asarray(whole["value"][again], dtype=np.float64))
        whole = {n: c[order[last]] for n, c in whole.items()}
    return Series(
        metric,
        np.asarray(whole["step"], dtype=np.int64),
        np.asarray(whole["value"], dtype=np.float64),
        _known(np.asarray(whole["tokens"], dtype=np.int64)),
        _known(np.asarray(whole["time"], dtype=np.int64)),
        np.asarray(whole["launch"], dtype=np.int64),
        overwritten,
    )


def _known(column: Ints) -> Ints | None:
    """The column, None where it is unknown throughout."""
    return None if not len(column) or (column[0] == UNKNOWN and bool((column == UNKNOWN).all())) else column


def _over_ranks(metric: str, by_rank: Mapping[int, Series]) -> Series:
    """The mean over ranks per step, the slowest for times: what the whole job felt."""
    steps = np.unique(np.concatenate([s.step for s in by_rank.values()]))
    grid = np.full((len(by_rank), len(steps)), np.nan)
    for row, s in enumerate(by_rank.values()):
        grid[row, np.searchsorted(steps, s.step)] = s.value
    worst = metric.endswith("_time") or metric.startswith("memory")
    known = ~np.isnan(grid).all(axis=0)
    value = np.full(len(steps), np.nan)
    value[known] = np.nanmax(grid[:, known], axis=0) if worst else np.nanmean(grid[:, known], axis=0)
    return Series(metric, steps, value, launch=np.full(len(steps), -1, dtype=np.int64))
