"""Blocks of a file joined to one trace, traces of a run joined on one axis, and that to rows of the table `metrics`.

Metrics that every record carries share the arrays of their axes, so a run of two million steps and a dozen metrics
takes little more than its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow

from forensics.curves.launches import agree, launch_of_records
from forensics.curves.sources.base import Block, Column, Floats, Ints
from forensics.schemas import NAME, TIME

pa: Any = pyarrow  # its stubs know few of the calls below
_FAR = np.int64(1) << 40
LEAST = 20  # records of a run that is told from another by its losses


@dataclass(frozen=True)
class Trace:
    """All records of one run in one file; arrays as in `Block`, without gaps between blocks."""

    file: str
    format: str
    run: str | None
    steps: Ints
    lines: Ints
    times: Floats | None
    tokens: Ints | None
    ranks: Ints | None
    columns: dict[str, Column]
    launches: Ints | None = None

    def rows(self, metric: str) -> Ints:
        """Records that logged a metric."""
        rows = self.columns[metric].rows
        return np.arange(len(self.steps), dtype=np.int64) if rows is None else rows

    @property
    def primary(self) -> str | None:
        """The metric that decides where launches begin: the training loss where it is logged as often as anything."""
        counts = {name: len(c.values) for name, c in self.columns.items()}
        if not counts:
            return None
        if 2 * counts.get("train_loss", 0) >= max(counts.values()):
            return "train_loss"
        return max(counts, key=lambda name: (counts[name], name))


def join(blocks: Iterable[Block], file: str, format: str) -> list[Trace]:
    """One trace per run named in the blocks."""
    runs: dict[str | None, list[Block]] = {}
    for block in blocks:
        if len(block.steps):
            runs.setdefault(block.run, []).append(block)
    traces = []
    for run in list(runs):
        parts = runs.pop(run)
        sizes = [len(b.steps) for b in parts]
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        total = sum(sizes)
        columns = _columns([dict(b.columns) for b in parts], sizes, starts, total)
        ranks = None if all(b.ranks is None for b in parts) else _axis([b.ranks for b in parts], sizes, -1)
        trace = Trace(
            file,
            format,
            run,
            np.concatenate([b.steps for b in parts]),
            np.concatenate([b.lines for b in parts]),
            times=None if all(b.times is None for b in parts) else _axis([b.times for b in parts], sizes, np.nan),
            tokens=None if all(b.tokens is None for b in parts) else _axis([b.tokens for b in parts], sizes, -1),
            ranks=ranks,
            columns=columns,
            launches=_given([b.launches for b in parts], sizes),
        )
        trace = _token_axis(trace)
        traces.append(_one_rank_is_global(trace if all(b.cumulative for b in parts) else _cumulative(trace)))
    return traces


def _axis(parts: Sequence[np.ndarray | None], sizes: Sequence[int], fill: float) -> np.ndarray:
    kind = next(p.dtype for p in parts if p is not None)
    return np.concatenate([np.full(n, fill, kind) if p is None else p for p, n in zip(parts, sizes)])


def _given(parts: Sequence[Ints | None], sizes: Sequence[int]) -> Ints | None:
    """Launches as the file numbers them, from 0 without holes; None unless it does so for every record."""
    if any(p is None or (p < 0).any() for p in parts):
        return None
    numbers: Ints = np.unique(whole := _axis(parts, sizes, -1), return_inverse=True)[1].astype(np.int64)
    return numbers.reshape(whole.shape)


def _columns(parts: list[dict[str, Column]], sizes: list[int], starts: Ints, total: int) -> dict[str, Column]:
    """Columns of successive blocks one after the other; frees the blocks' columns as it goes."""
    joined = {}
    for name in sorted({name for part in parts for name in part}):
        mine = [(part.pop(name, None), size, start) for part, size, start in zip(parts, sizes, starts)]
        values = np.concatenate([c.values for c, _, _ in mine if c is not None])
        if len(values) == total:
            joined[name] = Column(values)
        else:
            joined[name] = Column(
                values, np.concatenate([(np.arange(size, dtype=np.int64) if c.rows is None else c.rows) + start for c, size, start in mine if c is not None])
            )
    return joined


def _token_axis(trace: Trace) -> Trace:
    """A running total of tokens that was logged as a metric becomes the axis."""
    if "consumed_tokens" not in trace.columns:
        return trace
    columns = dict(trace.columns)
    column = columns.pop("consumed_tokens")
    if trace.tokens is not None:
        return replace(trace, columns=columns)
    rows, good = trace.rows("consumed_tokens"), np.isfinite(column.values)
    tokens = np.full(len(trace.steps), -1, np.int64)
    tokens[rows[good]] = np.round(column.values[good]).astype(np.int64)
    return replace(trace, tokens=tokens, columns=columns)


def _cumulative(trace: Trace) -> Trace:
    """Tokens that do not grow from record to record are tokens of the step, not tokens consumed so far."""
    if trace.tokens is None:
        return trace
    rows = np.flatnonzero(trace.tokens >= 0)
    onward = np.diff(trace.steps[rows]) > 0
    change = np.diff(trace.tokens[rows])[onward]
    if len(change) < 2 or ((change < 0).mean() <= 0.05 and (change > 0).mean() >= 0.3):
        return trace
    columns = dict(trace.columns)
    columns.setdefault("batch_tokens", Column(trace.tokens[rows].astype(np.float64), None if len(rows) == len(trace.tokens) else rows))
    return replace(trace, tokens=None, columns=columns)


def _one_rank_is_global(trace: Trace) -> Trace:
    """A file in which one rank speaks reports the whole run."""
    if trace.ranks is None or len(np.unique(trace.ranks[trace.ranks >= 0])) > 1:
        return trace
    return replace(trace, ranks=None)


def apart(trace: Trace) -> list[Trace]:
    """The trace cut where another run begins in the same file: steps start over from the first one with other losses, which no restart does.

    A launch that starts over and logs the same losses again is the same run; one that goes on from a later step is a restart.
    """
    name = trace.primary
    if name is None or trace.ranks is not None or trace.launches is not None:
        return [trace]
    rows, values = trace.rows(name), trace.columns[name].values
    steps = trace.steps[rows]
    again = np.flatnonzero((steps[1:] <= steps[0]) & (np.diff(steps) < 0)) + 1
    cuts, start = [0], 0
    for at in again.tolist():
        stop = next((int(n) for n in again if n > at), len(steps))
        if min(at - start, stop - at) < LEAST:
            continue
        shared, equal = agree(steps[start:at][:LEAST], values[start:at][:LEAST], steps[at:stop][:LEAST], values[at:stop][:LEAST])
        if shared and equal < 0.5:
            cuts.append(int(rows[at]))
            start = at
    if len(cuts) == 1:
        return [trace]
    ends = [*cuts[1:], len(trace.steps)]
    return [replace(_between(trace, a, b), run=f"{trace.run or 'run'}-{i}") for i, (a, b) in enumerate(zip(cuts, ends, strict=True), 1)]


def _between(trace: Trace, a: int, b: int) -> Trace:
    """Some records in a row."""
    columns = {}
    for name, c in trace.columns.items():
        if c.rows is None:
            columns[name] = Column(c.values[a:b])
        elif len(inside := np.flatnonzero((c.rows >= a) & (c.rows < b))):
            columns[name] = Column(c.values[inside], c.rows[inside] - a)
    times = None if trace.times is None else trace.times[a:b]
    tokens = None if trace.tokens is None else trace.tokens[a:b]
    return replace(trace, steps=trace.steps[a:b], lines=trace.lines[a:b], times=times, tokens=tokens, columns=columns)


def number_launches(traces: list[Trace]) -> list[Ints]:
    """Launch of every record of every trace of one run, traces in reading order.

    A file that logs the metrics of an earlier one continues it as a new launch, unless it is another record of the same
    launch (same values under another format or from the same first step). A file with metrics of its own takes the latest
    launch that covers each step.
    """
    numbered: list[Ints] = []
    mains: list[int] = []
    count = 0
    for i, trace in enumerate(traces):
        primary = trace.primary
        if trace.launches is not None:
            own, n = trace.launches, int(trace.launches.max()) + 1
        else:
            own, n = launch_of_records(trace.steps, trace.rows(primary) if primary else np.arange(0), trace.ranks)
        if not mains:
            numbered.append(own)
            mains.append(i)
            count = n
            continue
        rivals = [m for m in mains if primary in traces[m].columns]
        twin = next((m for m in rivals if primary is not None and _twins(traces[m], trace, primary)), None)
        if twin is not None or not rivals:
            numbered.append(_cover(trace.steps, [(traces[m], numbered[m]) for m in ([twin] if twin is not None else mains)], own if n > 1 else None))
        else:
            numbered.append(own + count)
            mains.append(i)
            count += n
    return numbered


def _twins(a: Trace, b: Trace, metric: str) -> bool:
    """Whether two files record the same launch: equal values where both have one, and another format or the same start."""
    if a.ranks is not None or b.ranks is not None:
        return False
    rows_a, rows_b = a.rows(metric), b.rows(metric)
    shared, equal = agree(a.steps[rows_a], a.columns[metric].values, b.steps[rows_b], b.columns[metric].values)
    return shared > 0 and equal >= 0.9 and (a.format != b.format or int(a.steps[rows_a].min()) == int(b.steps[rows_b].min()))


def _cover(steps: Ints, mains: list[tuple[Trace, Ints]], own: Ints | None) -> Ints:
    """Launches for the records of a companion file: its own where it has restarts too, else the latest launch that covers the step."""
    ranges: dict[int, tuple[int, int]] = {}
    for trace, launches in mains:
        for n in np.unique(launches).tolist():
            mine = trace.steps[launches == n]
            low, high = ranges.get(n, (int(mine[0]), int(mine[0])))
            ranges[n] = (min(low, int(mine.min())), max(high, int(mine.max())))
    if own is not None and int(own.max()) <= max(ranges):
        return own
    result = np.full(len(steps), min(ranges), np.int64)
    for n, (low, _) in sorted(ranges.items()):
        result[steps >= low] = n
    return result


@dataclass(frozen=True)
class Joined:
    """All records of a run with their launches; `files` names them by `origin`."""

    run: str
    files: list[str]
    trace: Trace
    launches: Ints
    origin: Ints


def join_run(run: str, traces: list[Trace]) -> Joined:
    """Traces of one run, in reading order, on one axis; tokens and time filled in from other records of the same step."""
    launches = number_launches(traces)
    sizes = [len(t.steps) for t in traces]
    if len(traces) == 1:
        whole = traces[0]
    else:
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        whole = Trace(
            "",
            "",
            run,
            np.concatenate([t.steps for t in traces]),
            np.concatenate([t.lines for t in traces]),
            times=None if all(t.times is None for t in traces) else _axis([t.times for t in traces], sizes, np.nan),
            tokens=None if all(t.tokens is None for t in traces) else _axis([t.tokens for t in traces], sizes, -1),
            ranks=None if all(t.ranks is None for t in traces) else _axis([t.ranks for t in traces], sizes, -1),
            columns=_columns([dict(t.columns) for t in traces], sizes, starts, sum(sizes)),
        )
    joined = np.concatenate(launches)
    tokens = None if whole.tokens is None else _fill(whole.tokens, whole.tokens >= 0, joined, whole.steps)
    times = None if whole.times is None else _fill(whole.times, ~np.isnan(whole.times), joined, whole.steps)
    return Joined(run, [t.file for t in traces], replace(whole, tokens=tokens, times=times), joined, np.repeat(np.arange(len(traces)), sizes))


def _fill(values: np.ndarray, known: np.ndarray, launches: Ints, steps: Ints) -> np.ndarray:
    """Unknown entries taken from a record of the same launch and step."""
    if known.all() or not known.any():
        return values
    keys = launches * _FAR + steps
    have, first = np.unique(keys[known], return_index=True)
    asked = keys[~known]
    at = np.minimum(np.searchsorted(have, asked), len(have) - 1)
    hit = have[at] == asked
    filled = values.copy()
    filled[np.flatnonzero(~known)[hit]] = values[known][first[at[hit]]]
    return filled


class Rows:
    """Rows of the table `metrics`, one chunk per run and metric, axes shared where metrics share records."""

    def __init__(self, runs: list[str], metrics: list[str], files: list[str]) -> None:
        self.runs, self.metrics, self.files = pa.array(runs, pa.string()), pa.array(metrics, pa.string()), pa.array(files, pa.string())
        self.run_index, self.metric_index = {r: i for i, r in enumerate(runs)}, {m: i for i, m in enumerate(metrics)}
        self.file_index = {f: i for i, f in enumerate(files)}
        self.chunks: dict[str, list[Any]] = {name: [] for name in ("run", "launch", "metric", "step", "rank", "tokens", "time", "value", "file", "line")}
        self.duplicates: dict[str, int] = {}

    def add(self, joined: Joined) -> None:
        """All metrics of a run."""
        dense: tuple[Ints | None, dict[str, Any]] | None = None
        for name in sorted(joined.trace.columns):
            column = joined.trace.columns[name]
            if column.rows is None:
                if dense is None:
                    order = self._order(joined, column, name)
                    dense = order, self._axes(joined, order)
                order, axes = dense
            else:
                order = self._order(joined, column, name)
                axes = self._axes(joined, column.rows if order is None else column.rows[order])
            values = column.values if order is None else column.values[order]
            n = len(values)
            for key, array in axes.items():
                self.chunks[key].append(array)
            self.chunks["value"].append(pa.array(values))
            self.chunks["metric"].append(pa.DictionaryArray.from_arrays(pa.array(np.full(n, self.metric_index[name], np.int32)), self.metrics))

    def _order(self, joined: Joined, column: Column, name: str) -> Ints | None:
        """Which values to take, sorted by launch, step, rank; of equal keys the last of the first file. None: all, as they are."""
        trace = joined.trace
        pick = slice(None) if column.rows is None else column.rows
        launches, steps, origin = joined.launches[pick], trace.steps[pick], joined.origin[pick]
        keys = launches * _FAR + steps
        ranks = None if trace.ranks is None else np.where(trace.ranks[pick] < 0, _FAR, trace.ranks[pick])
        if ranks is None and (np.diff(keys) > 0).all():
            return None
        order: Ints = np.lexsort((-origin, keys) if ranks is None else (-origin, ranks, keys))
        same = np.diff(keys[order]) == 0
        if ranks is not None:
            same &= np.diff(ranks[order]) == 0
        if same.any() and name != "elapsed_time":
            other = same & (np.diff(origin[order]) == 0) & (np.diff(column.values[order]) != 0)
            if other.any():
                self.duplicates[name] = int(other.sum())
        kept: Ints = order[np.append(~same, True)]
        return kept

    def _axes(self, joined: Joined, rows: Ints | None) -> dict[str, Any]:
        trace = joined.trace
        pick = slice(None) if rows is None else rows
        steps = trace.steps[pick]
        n = len(steps)
        codes = np.array([self.file_index[f] for f in joined.files], np.int32)
        axes = {
            "run": pa.DictionaryArray.from_arrays(pa.array(np.full(n, self.run_index[joined.run], np.int32)), self.runs),
            "launch": pa.array(joined.launches[pick].astype(np.int16)),
            "step": pa.array(steps),
            "file": pa.DictionaryArray.from_arrays(pa.array(codes[joined.origin[pick]]), self.files),
            "line": pa.array(trace.lines[pick], mask=trace.lines[pick] < 0) if (trace.lines[pick] < 0).any() else pa.array(trace.lines[pick]),
            "rank": pa.nulls(n, pa.int32()) if trace.ranks is None else pa.array(trace.ranks[pick].astype(np.int32), mask=trace.ranks[pick] < 0),
            "tokens": pa.nulls(n, pa.int64()) if trace.tokens is None else pa.array(trace.tokens[pick], mask=trace.tokens[pick] < 0),
        }
        if trace.times is None:
            axes["time"] = pa.nulls(n, TIME)
        else:
            times = trace.times[pick]
            unknown = np.isnan(times)
            axes["time"] = pa.array(np.where(unknown, 0, np.round(np.where(unknown, 0, times) * 1e6)).astype(np.int64), mask=unknown).cast(TIME)
        return axes

    def table(self) -> pyarrow.Table:
        """All rows."""
        types = {"run": NAME, "metric": NAME, "file": NAME}
        columns = {name: pa.chunked_array(chunks, types.get(name) or (chunks[0].type if chunks else None)) for name, chunks in self.chunks.items()}
        table: pyarrow.Table = pa.table(columns)
        return table
