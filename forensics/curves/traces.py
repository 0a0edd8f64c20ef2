"""Blocks of a file joined to one trace, traces of a run joined on one axis, and that to rows of the table `metrics`.

Metrics that every record carries share the arrays of their axes, so a run of two million steps and a dozen metrics
takes little more than its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from forensics.curves.launches import agree, launch_of_records
from forensics.curves.sources.base import Block, Column, Floats, Ints
from forensics.schemas import NAME, TIME

pa: Any = pyarrow  # its stubs know few of the calls below
FAR = np.int64(1) << 40
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
        return primary_of({name: len(c.values) for name, c in self.columns.items()})

    def select(self, keep: NDArray[np.bool_]) -> Trace:
        """The records of a mask [n]."""
        moved = np.cumsum(keep) - 1
        columns = {}
        for name, c in self.columns.items():
            if c.rows is None:
                columns[name] = Column(c.values[keep])
            elif (inside := keep[c.rows]).any():
                columns[name] = Column(c.values[inside], moved[c.rows[inside]])
        axes: dict[str, Any] = {name: None if (axis := getattr(self, name)) is None else axis[keep] for name in ("times", "tokens", "ranks", "launches")}
        return replace(self, steps=self.steps[keep], lines=self.lines[keep], columns=columns, **axes)


def primary_of(counts: Mapping[str, int]) -> str | None:
    """The metric that decides where launches begin, by how often each was logged."""
    if not counts:
        return None
    if 2 * counts.get("train_loss", 0) >= max(counts.values()):
        return "train_loss"
    return max(counts, key=lambda name: (counts[name], name))


@dataclass(frozen=True)
class Facts:
    """What is true of all records of a run in a file, however few are looked at.

    Attributes:
        counted: tokens have an axis of their own.
        running: tokens are a running total.
        ranks: that logged.
        launches: numbers that the file gives launches, for every record; else None.
    """

    counted: bool
    running: bool
    ranks: frozenset[int]
    launches: frozenset[int] | None

    def also(self, later: Facts) -> Facts:
        """The facts of these records and later ones; the first ones decide what their tokens count."""
        launches = None if self.launches is None or later.launches is None else self.launches | later.launches
        return Facts(self.counted or later.counted, self.running, self.ranks | later.ranks, launches)


def join(blocks: Iterable[Block], file: str, format: str) -> list[Trace]:
    """One trace per run named in the blocks."""
    runs: dict[str | None, list[Block]] = {}
    for block in blocks:
        if len(block.steps):
            runs.setdefault(block.run, []).append(block)
    traces = []
    for run in list(runs):
        parts = runs.pop(run)
        cumulative = all(b.cumulative for b in parts)
        trace = raw_trace(parts, file, format)
        traces.append(finished(trace, facts_of(trace, cumulative)))
    return traces


def raw_trace(parts: list[Block], file: str, format: str) -> Trace:
    """Blocks of one run as they are, one after the other."""
    sizes = [len(b.steps) for b in parts]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    columns = _columns([dict(b.columns) for b in parts], sizes, starts, sum(sizes))
    axes = {
        name: None if all(getattr(b, name) is None for b in parts) else _axis([getattr(b, name) for b in parts], sizes, fill)
        for name, fill in (("times", np.nan), ("tokens", -1), ("ranks", -1), ("launches", -1))
    }
    return Trace(file, format, parts[0].run, np.concatenate([b.steps for b in parts]), np.concatenate([b.lines for b in parts]), columns=columns, **axes)


def facts_of(trace: Trace, cumulative: bool) -> Facts:
    """What a raw trace says about itself."""
    ranks = frozenset[int]() if trace.ranks is None else frozenset(np.unique(trace.ranks[trace.ranks >= 0]).tolist())
    launches = None if trace.launches is None or bool((trace.launches < 0).any()) else frozenset(np.unique(trace.launches).tolist())
    return Facts(trace.tokens is not None, cumulative or _running(_token_axis(trace, trace.tokens is not None)), ranks, launches)


def finished(trace: Trace, facts: Facts) -> Trace:
    """A raw trace with its tokens on their axis, ranks only where several logged, launches numbered from 0 without holes."""
    trace = _token_axis(trace, facts.counted)
    trace = trace if facts.running else _by_step(trace)
    launches = None if facts.launches is None or trace.launches is None else np.searchsorted(np.array(sorted(facts.launches)), trace.launches).astype(np.int64)
    return replace(trace, ranks=trace.ranks if len(facts.ranks) > 1 else None, launches=launches)


def _axis(parts: Sequence[np.ndarray | None], sizes: Sequence[int], fill: float) -> np.ndarray:
    kind = next(p.dtype for p in parts if p is not None)
    return np.concatenate([np.full(n, fill, kind) if p is None else p for p, n in zip(parts, sizes)])


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


def _token_axis(trace: Trace, counted: bool) -> Trace:
    """A running total of tokens that was logged as a metric becomes the axis, where there is none."""
    if "consumed_tokens" not in trace.columns:
        return trace
    columns = dict(trace.columns)
    column = columns.pop("consumed_tokens")
    if counted:
        return replace(trace, columns=columns)
    rows, good = trace.rows("consumed_tokens"), np.isfinite(column.values)
    tokens = np.full(len(trace.steps), -1, np.int64)
    tokens[rows[good]] = np.round(column.values[good]).astype(np.int64)
    return replace(trace, tokens=tokens, columns=columns)


def _running(trace: Trace) -> bool:
    """Whether tokens grow from record to record: else they are tokens of the step, not tokens consumed so far."""
    if trace.tokens is None:
        return True
    rows = np.flatnonzero(trace.tokens >= 0)
    change = np.diff(trace.tokens[rows])[np.diff(trace.steps[rows]) > 0]
    return len(change) < 2 or bool((change < 0).mean() <= 0.05 and (change > 0).mean() >= 0.3)


def _by_step(trace: Trace) -> Trace:
    """Tokens of the step as a metric."""
    if trace.tokens is None:
        return trace
    rows = np.flatnonzero(trace.tokens >= 0)
    columns = dict(trace.columns)
    columns.setdefault("batch_tokens", Column(trace.tokens[rows].astype(np.float64), None if len(rows) == len(trace.tokens) else rows))
    return replace(trace, tokens=None, columns=columns)


def apart(trace: Trace) -> list[Trace]:
    """The trace cut where another run begins in the same file: steps start over from the first one with other losses, which no restart does.

    A launch that starts over and logs the same losses again is the same run; one that goes on from a later step is a restart.
    """
    name = trace.primary
    if name is None or trace.ranks is not None or trace.launches is not None:
        return [trace]
    cuts = other_runs(trace.steps, trace.rows(name), trace.columns[name].values)
    if len(cuts) == 1:
        return [trace]
    ends = [*cuts[1:], len(trace.steps)]
    return [replace(between(trace, a, b), run=f"{trace.run or 'run'}-{i}") for i, (a, b) in enumerate(zip(cuts, ends, strict=True), 1)]


def other_runs(all_steps: Ints, rows: Ints, values: Floats) -> list[int]:
    """Records at which a run begins: 0, and where another one does.

    Args:
        all_steps: [n] of all records.
        rows: [m] records of the metric that decides.
        values: [m] its values.
    """
    steps = all_steps[rows]
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
    return cuts


def between(trace: Trace, a: int, b: int) -> Trace:
    """Some records in a row."""
    keep = np.zeros(len(trace.steps), np.bool_)
    keep[a:b] = True
    return trace.select(keep)


@dataclass(frozen=True)
class Numbering:
    """How the launches that a trace numbers for itself become those of the run.

    Attributes:
        offset: added to them.
        lows: where the trace takes the launches of others: launch and the first step it covers, ascending; else None.
    """

    offset: int = 0
    lows: tuple[tuple[int, int], ...] | None = None

    def of(self, own: Ints, steps: Ints) -> Ints:
        """Launch of every record."""
        if self.lows is None:
            return own + self.offset
        result = np.full(len(steps), self.lows[0][0], np.int64)
        for n, low in self.lows:
            result[steps >= low] = n
        return result


def own_launches(trace: Trace) -> Ints:
    """Launches as a trace numbers them for itself, from 0."""
    if trace.launches is not None:
        return trace.launches
    primary = trace.primary
    return launch_of_records(trace.steps, trace.rows(primary) if primary else np.arange(0), trace.ranks)[0]


def number_launches(traces: Sequence[Trace], owns: Sequence[Ints]) -> list[Numbering]:
    """How every trace of one run numbers its launches, traces in reading order.

    A file that logs the metrics of an earlier one continues it as a new launch, unless it is another record of the same
    launch (same values under another format or from the same first step). A file with metrics of its own takes the latest
    launch that covers each step.
    """
    numbered: list[Numbering] = []
    mains: list[int] = []
    count = 0
    for i, trace in enumerate(traces):
        primary, n = trace.primary, int(owns[i].max(initial=0)) + 1
        if not mains:
            numbered.append(Numbering())
            mains.append(i)
            count = n
            continue
        rivals = [m for m in mains if primary in traces[m].columns]
        twin = next((m for m in rivals if primary is not None and _twins(traces[m], trace, primary)), None)
        if twin is not None or not rivals:
            covering = [twin] if twin is not None else mains
            numbered.append(_cover([(traces[m].steps, numbered[m].of(owns[m], traces[m].steps)) for m in covering], n))
        else:
            numbered.append(Numbering(count))
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


def _cover(mains: list[tuple[Ints, Ints]], own: int) -> Numbering:
    """Numbering of a companion file with so many launches: its own where it has restarts too, else the latest launch that covers the step.

    Args:
        mains: steps and launches of the files it goes with.
        own: launches that it numbers for itself.
    """
    lows: dict[int, int] = {}
    for steps, launches in mains:
        for n in np.unique(launches).tolist():
            low = int(steps[launches == n].min())
            lows[n] = min(lows.get(n, low), low)
    if own > 1 and own - 1 <= max(lows):
        return Numbering()
    return Numbering(lows=tuple(sorted(lows.items())))


@dataclass(frozen=True)
class Joined:
    """All records of a run with their launches; `files` names them by `origin`."""

    run: str
    files: list[str]
    trace: Trace
    launches: Ints
    origin: Ints


def join_run(run: str, traces: Sequence[Trace], numbers: Sequence[Numbering] | None = None) -> Joined:
    """Traces of one run, in reading order, on one axis; tokens and time filled in from other records of the same step.

    Args:
        run: its name.
        traces: all of the run, or parts of them.
        numbers: how each numbers its launches; None: found from the traces, which are whole.
    """
    owns = [own_launches(t) for t in traces]
    launches = [n.of(own, t.steps) for n, own, t in zip(numbers or number_launches(traces, owns), owns, traces, strict=True)]
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
    keys = launches * FAR + steps
    have, first = np.unique(keys[known], return_index=True)
    asked = keys[~known]
    at = np.minimum(np.searchsorted(have, asked), len(have) - 1)
    hit = have[at] == asked
    filled = values.copy()
    filled[np.flatnonzero(~known)[hit]] = values[known][first[at[hit]]]
    return filled


class Rows:
    """Rows of the table `metrics`, one chunk per run and metric, axes shared where metrics share records."""

    def __init__(self, runs: Sequence[str], metrics: Sequence[str], files: Sequence[str]) -> None:
        self.runs, self.metrics, self.files = pa.array(runs, pa.string()), pa.array(metrics, pa.string()), pa.array(files, pa.string())
        self.run_index, self.metric_index = {r: i for i, r in enumerate(runs)}, {m: i for i, m in enumerate(metrics)}
        self.file_index = {f: i for i, f in enumerate(files)}
        self.chunks: dict[str, list[Any]] = {name: [] for name in ("run", "launch", "metric", "step", "rank", "tokens", "time", "value", "file", "line")}
        self.duplicates: dict[str, int] = {}

    def add(self, joined: Joined) -> None:
        """All metrics of a run, or of a part of its records."""
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
        keys = launches * FAR + steps
        ranks = None if trace.ranks is None else np.where(trace.ranks[pick] < 0, FAR, trace.ranks[pick])
        if ranks is None and (np.diff(keys) > 0).all():
            return None
        order: Ints = np.lexsort((-origin, keys) if ranks is None else (-origin, ranks, keys))
        same = np.diff(keys[order]) == 0
        if ranks is not None:
            same &= np.diff(ranks[order]) == 0
        if same.any() and name != "elapsed_time":
            other = same & (np.diff(origin[order]) == 0) & (np.diff(column.values[order]) != 0)
            if other.any():
                self.duplicates[name] = self.duplicates.get(name, 0) + int(other.sum())
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
        """All rows added since the last call."""
        types = {"run": NAME, "metric": NAME, "file": NAME}
        columns = {name: pa.chunked_array(chunks, types.get(name) or (chunks[0].type if chunks else None)) for name, chunks in self.chunks.items()}
        for chunks in self.chunks.values():
            chunks.clear()
        table: pyarrow.Table = pa.table(columns)
        return table
