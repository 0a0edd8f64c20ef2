"""Logs that are larger than memory: records go to disk in slabs, and every later use reads a part of them.

    blocks -> slabs on disk -> overview      every k-th step of the frequent metrics, all of the rare ones
                            -> stretches     some hundred thousand records in a row, all of them
                            -> pieces        the whole table `metrics`, row group by row group

What a record means is decided by the same functions as for a log in memory (`traces`). Only where steps go back are the steps of the whole log looked at at
once (some 40 bytes a record), and a metric whose records lie in no order is sorted in memory by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.curves.launches import launch_of_records
from forensics.curves.sources.base import Block, Column, Ints
from forensics.curves.traces import (
    FAR,
    Facts,
    Joined,
    Numbering,
    Rows,
    Trace,
    between,
    facts_of,
    finished,
    join,
    join_run,
    number_launches,
    other_runs,
    own_launches,
    primary_of,
    raw_trace,
)
from forensics.schemas import METRICS, Metrics

SLAB = 1 << 22  # numbers of a log that are held in memory: 32 MiB of values, some 250 MiB as a table with what the rules make of it
OVERVIEW = 1 << 18  # records of a metric in the overview, at most twice as many
OVERLAP = 1 << 14  # records that a stretch shows before and after the part it answers for
OUTLINE = 1 << 16  # records by which two long logs are compared


@dataclass(frozen=True)
class Slab:
    """Records in a row, in a file of their own.

    Attributes:
        path: arrays, one behind the other.
        n: records.
        first, last: smallest and largest step.
        counts: values by metric.
        places: name of an array -> type, length, place in the file.
    """

    path: Path
    n: int
    first: int
    last: int
    counts: dict[str, int]
    places: dict[str, tuple[np.dtype[np.generic], int, int]] = field(default_factory=dict)

    def read(self, name: str) -> NDArray[Any] | None:
        """An array, None where there is none."""
        if name not in self.places:
            return None
        kind, count, place = self.places[name]
        return np.fromfile(self.path, kind, count, offset=place)


def store(trace: Trace, path: Path) -> Slab:
    """Write a raw trace.

    Raises:
        OSError: the disk is full or fails, with the file and the place in it.
    """
    arrays = {n: a for n in ("steps", "lines", "times", "tokens", "ranks", "launches") if (a := getattr(trace, n)) is not None}
    for name, c in trace.columns.items():
        arrays[f"v:{name}"] = c.values
        if c.rows is not None:
            arrays[f"r:{name}"] = c.rows
    places: dict[str, tuple[np.dtype[np.generic], int, int]] = {}
    at = 0
    try:
        with path.open("wb", buffering=0) as out:
            for name, array in arrays.items():
                places[name] = array.dtype, len(array), at
                left = np.ascontiguousarray(array).view(np.uint8).data  # numpy's own `tofile` hides why it fails
                while len(left):
                    done = out.write(left)
                    at, left = at + done, left[done:]
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}, at byte {at:,}", str(path)) from error
    counts = {n: len(c.values) for n, c in trace.columns.items()}
    return Slab(path, len(trace.steps), int(trace.steps.min()), int(trace.steps.max()), counts, places)


@dataclass(frozen=True)
class Long:
    """All records of one run in one file, on disk.

    Attributes:
        file, format, run: as in `Trace`.
        parts: slabs with the records of each that count, half-open.
        facts: of the whole.
        restarts: records at which a launch begins, where the file does not number launches itself.
    """

    file: str
    format: str
    run: str | None
    parts: tuple[tuple[Slab, int, int], ...]
    facts: Facts
    restarts: tuple[int, ...] = ()

    @cached_property
    def counts(self) -> dict[str, int]:
        """Values by metric, of slabs that are cut counted whole."""
        counts: dict[str, int] = {}
        for slab, _, _ in self.parts:
            for name, n in slab.counts.items():
                counts[name] = counts.get(name, 0) + n
        counts.pop("consumed_tokens", None)
        if not self.facts.running:
            counts.setdefault("batch_tokens", len(self))
        return counts

    @property
    def columns(self) -> Collection[str]:
        """Names of the metrics."""
        return self.counts

    def __len__(self) -> int:
        return sum(b - a for _, a, b in self.parts)

    @cached_property
    def bases(self) -> list[int]:
        """Record at which each part begins."""
        return [0, *itertools.accumulate(b - a for _, a, b in self.parts)]

    def load(self, i: int, only: Collection[str] | None = None) -> Trace:
        """The records of a part, their launches numbered as the trace numbers them; `only`: metrics that are wanted."""
        slab, a, b = self.parts[i]
        wanted = [n for n in slab.counts if only is None or n in only or n == "consumed_tokens"]
        columns = {n: Column(_known(slab.read(f"v:{n}")), slab.read(f"r:{n}")) for n in wanted}
        axes = {n: slab.read(n) for n in ("times", "tokens", "ranks", "launches")}
        trace = Trace(self.file, self.format, self.run, _known(slab.read("steps")), _known(slab.read("lines")), columns=columns, **axes)
        trace = finished(trace, self.facts)
        trace = trace if (a, b) == (0, slab.n) else between(trace, a, b)
        if trace.launches is None:
            at = np.arange(self.bases[i], self.bases[i] + b - a)
            trace = replace(trace, launches=np.searchsorted(np.array(self.restarts, np.int64), at, side="right").astype(np.int64))
        return trace

    def all(self, only: Collection[str] = ()) -> Trace:
        """Every record in memory, for a few metrics."""
        return _concatenated([self.load(i, only) for i in range(len(self.parts))])

    def between(self, a: int, b: int, run: str) -> Long:
        """Some records in a row, as another run."""
        cut = [(slab, max(lo, lo + a - base), min(hi, lo + b - base)) for (slab, lo, hi), base in zip(self.parts, self.bases, strict=False)]
        return replace(self, run=run, parts=tuple((slab, lo, hi) for slab, lo, hi in cut if hi > lo))


def gather(blocks: Iterable[Block], file: str, format: str, scratch: Path | None) -> Sequence[Trace | Long]:
    """One trace per run named in the blocks: in memory, or on disk where it is long.

    Args:
        blocks: in the order of the file.
        file, format: names.
        scratch: folder for slabs; None keeps everything in memory.
    """
    if scratch is None:
        return join(blocks, file, format)
    runs: dict[str | None, _Growing] = {}
    for block in blocks:
        if len(block.steps):
            runs.setdefault(block.run, _Growing(file, format, scratch)).add(block)
            if sum(g.numbers for g in runs.values()) > SLAB:
                max(runs.values(), key=lambda g: g.numbers).spill()
    return [part for g in runs.values() for part in g.done()]


class _Growing:
    """A run of a file while it is read."""

    def __init__(self, file: str, format: str, scratch: Path) -> None:
        self.file, self.format, self.scratch = file, format, scratch
        self.blocks: list[Block] = []
        self.slabs: list[Slab] = []
        self.facts: Facts | None = None
        self.cumulative = True
        self.numbers = 0

    def add(self, block: Block) -> None:
        self.blocks.append(block)
        self.cumulative &= block.cumulative
        self.numbers += _numbers(block)

    def spill(self, whole: bool = False) -> None:
        """What is in memory goes to disk, but for the last records where late ones may follow; `whole`: those too."""
        trace = raw_trace(self.blocks, self.file, self.format)
        self.run, cut = trace.run, len(trace.steps) if whole else _cut(trace.steps)
        head, rest = (trace, None) if cut == len(trace.steps) else (between(trace, 0, cut), between(trace, cut, len(trace.steps)))
        facts = facts_of(head, self.cumulative)
        self.facts = facts if self.facts is None else self.facts.also(facts)
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.slabs.append(store(head, self.scratch / f"{len(list(self.scratch.iterdir())):06d}.slab"))
        self.blocks = [] if rest is None else [_block(rest, self.cumulative)]
        self.numbers = sum(map(_numbers, self.blocks))

    def done(self) -> Sequence[Trace | Long]:
        """The trace."""
        if not self.slabs:
            return join(self.blocks, self.file, self.format)
        if self.blocks:
            self.spill(whole=True)
        assert self.facts is not None
        return [Long(self.file, self.format, self.run, tuple((s, 0, s.n) for s in self.slabs), self.facts)]


def _known(array: NDArray[Any] | None) -> NDArray[Any]:
    assert array is not None
    return array


def _numbers(block: Block) -> int:
    return sum(len(c.values) for c in block.columns.values()) + len(block.steps)


def _block(t: Trace, cumulative: bool) -> Block:
    return Block(t.steps, t.columns, t.lines, t.times, t.tokens, t.ranks, t.run, cumulative, t.launches)


def _cut(steps: Ints) -> int:
    """Where to end a slab so that no later record belongs before it: the last such place in its last eighth, else its end."""
    tail = steps[len(steps) - len(steps) // 8 :]
    if len(tail) < 2:
        return len(steps)
    whole = np.maximum.accumulate(tail)[:-1] < np.minimum.accumulate(tail[::-1])[::-1][1:]
    return len(steps) - len(tail) + int(np.flatnonzero(whole)[-1]) + 1 if whole.any() else len(steps)


def long_apart(long: Long) -> list[Long]:
    """The trace with its launches; several where other runs begin in the same file, see `traces.apart`."""
    primary = primary_of(long.counts)
    if primary is None or long.facts.launches is not None or not _goes_back(long, primary):
        return [long]
    whole = long.all([primary])
    rows = whole.rows(primary) if primary in whole.columns else np.arange(0)
    cuts = [0] if whole.ranks is not None else other_runs(whole.steps, rows, whole.columns[primary].values)
    found = []
    for i, (a, b) in enumerate(zip(cuts, [*cuts[1:], len(whole.steps)], strict=True), 1):
        part = long if len(cuts) == 1 else long.between(a, b, f"{long.run or 'run'}-{i}")
        mine = rows[(rows >= a) & (rows < b)] - a
        launches, _ = launch_of_records(whole.steps[a:b], mine, None if whole.ranks is None else whole.ranks[a:b])
        found.append(replace(part, restarts=tuple((np.flatnonzero(np.diff(launches)) + 1).tolist())))
    return found


def _goes_back(long: Long, primary: str) -> bool:
    """Whether a step of the metric that decides is followed by a smaller one; of several ranks, of the first."""
    last = -1
    for i in range(len(long.parts)):
        t = long.load(i, [primary])
        if primary not in t.columns:
            continue
        rows = t.rows(primary)
        if t.ranks is not None:
            rows = rows[t.ranks[rows] == min(long.facts.ranks)]
        steps = t.steps[rows]
        if len(steps) and (steps[0] < last or bool((np.diff(steps) < 0).any())):
            return True
        last = int(steps[-1]) if len(steps) else last
    return False


def _concatenated(parts: Sequence[Trace]) -> Trace:
    """Parts of one trace, one after the other."""
    whole = raw_trace([_block(t, True) for t in parts], parts[0].file, parts[0].format)
    return replace(whole, run=parts[0].run)


@dataclass
class LongRun:
    """One run with a trace that is on disk.

    Attributes:
        name: of the run.
        traces: in reading order.
        numbers: how each numbers its launches.
        duplicates: metric -> steps logged more than once, known when `pieces` have been read.
    """

    name: str
    traces: list[Trace | Long]
    numbers: list[Numbering] = field(init=False)
    duplicates: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        outlines = [_outline(t) if isinstance(t, Long) else t for t in self.traces]
        self.numbers = number_launches(outlines, [own_launches(t) for t in outlines])
        self.outline = np.sort(np.concatenate([t.steps for t in outlines]))
        near = np.unique(_part(max(self.traces, key=_length), 0, ()).steps)
        self.cadence = max(1, int(np.median(np.diff(near)))) if len(near) > 1 else 1
        self.every = 1 << max(0, (self.records // OVERVIEW - 1).bit_length()) if self.records > OVERVIEW else 1

    @staticmethod
    def _spans(t: Trace | Long) -> list[Slab]:
        return [s for s, _, _ in t.parts] if isinstance(t, Long) else [Slab(Path(), len(t.steps), int(t.steps.min()), int(t.steps.max()), {})]

    @cached_property
    def counts(self) -> dict[str, int]:
        """Values by metric over all files."""
        counts: dict[str, int] = {}
        for t in self.traces:
            for name, n in (t.counts if isinstance(t, Long) else {n: len(c.values) for n, c in t.columns.items()}).items():
                counts[name] = counts.get(name, 0) + n
        return counts

    @property
    def records(self) -> int:
        """Records of the metric that was logged most."""
        return max(self.counts.values())

    def rows(self, files: Sequence[str]) -> Rows:
        """Where rows of this run are collected."""
        return Rows([self.name], sorted(self.counts), files)

    @property
    def files(self) -> list[str]:
        """Its files, each once."""
        return list(dict.fromkeys(t.file for t in self.traces))

    def overview(self) -> Metrics:
        """Every k-th step of the metrics that were logged often, and all of the others."""
        dense = {n for n, c in self.counts.items() if c > OVERVIEW}
        kept = []
        for t, number in zip(self.traces, self.numbers, strict=True):
            parts = [_thinned(part, dense, self.cadence, self.every) for part in _parts(t)]
            whole = _concatenated(parts) if len(parts) > 1 else parts[0]
            kept.append((replace(whole, launches=number.of(own_launches(whole), whole.steps)), Numbering()))
        return self._table([t for t, _ in kept], [n for _, n in kept])

    def stretches(self) -> Iterator[tuple[Metrics, int, int]]:
        """All records of some steps in a row, and the steps of which they are to tell, half-open; one after the other."""
        numbers = sum(self.counts.values())
        count = max(1, -(-numbers // SLAB))
        spans = [s for t in self.traces for s in self._spans(t)]
        inner = self.outline[[len(self.outline) * i // count for i in range(1, count)]].tolist()
        edges = {min(s.first for s in spans), *inner, max(s.last for s in spans) + 1}
        margin = OVERLAP * self.cadence
        for lo, hi in itertools.pairwise(sorted(edges)):
            yield self._between(lo - margin, hi + margin), lo, hi

    def pieces(self) -> Iterator[Metrics]:
        """All rows of the table, in its order."""
        for name in sorted(self.counts):
            held = [(t, i) for t, trace in enumerate(self.traces) for i in self._with(trace, name)]
            if self._in_order(held):
                for t, i in held:
                    yield self._table([_part(self.traces[t], i, [name])], [self.numbers[t]], name)
            else:
                by_file = [(t, [_part(self.traces[t], i, [name]) for u, i in held if u == t]) for t in dict.fromkeys(t for t, _ in held)]
                yield self._table([_concatenated(parts) for _, parts in by_file], [self.numbers[t] for t, _ in by_file], name)

    @staticmethod
    def _with(trace: Trace | Long, name: str) -> list[int]:
        """Parts of a trace that hold a metric."""
        if not isinstance(trace, Long):
            return [0] if name in trace.columns else []
        return [i for i, (s, _, _) in enumerate(trace.parts) if name in s.counts or (name == "batch_tokens" and not trace.facts.running)]

    def _in_order(self, held: list[tuple[int, int]]) -> bool:
        """Whether launch and step of these parts go up from part to part."""
        last = -1
        for place in held:
            low, high = self._keys[place]
            if low <= last:
                return False
            last = high
        return True

    @cached_property
    def _keys(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Part of a trace -> smallest and largest of launch and step together."""
        keys = {}
        for t, (trace, number) in enumerate(zip(self.traces, self.numbers, strict=True)):
            for i, part in enumerate(_parts(trace, ())):
                key = number.of(own_launches(part), part.steps) * FAR + part.steps
                keys[t, i] = int(key.min()), int(key.max())
        return keys

    def _between(self, lo: int, hi: int) -> Metrics:
        found: list[tuple[Trace, Numbering]] = []
        for trace, number in zip(self.traces, self.numbers, strict=True):
            spans = self._spans(trace)
            near = [_part(trace, i) for i, s in enumerate(spans) if s.first < hi and s.last >= lo]
            cut = [p if lo <= s.min() and s.max() < hi else p.select((s >= lo) & (s < hi)) for p in near for s in (p.steps,)]
            cut = [p for p in cut if len(p.steps)]
            if cut:
                whole = _concatenated(cut) if len(cut) > 1 else cut[0]
                found.append((replace(whole, launches=number.of(own_launches(whole), whole.steps)), Numbering()))
        return self._table([t for t, _ in found], [n for _, n in found])

    def _table(self, traces: Sequence[Trace], numbers: Sequence[Numbering], name: str | None = None) -> Metrics:
        """Records as rows; `name`: the one metric that is wanted, whose duplicates are counted."""
        rows = self.rows(self.files)
        joined: Joined = join_run(self.name, traces, numbers)
        rows.add(joined)
        if name is not None:
            for metric, n in rows.duplicates.items():
                self.duplicates[metric] = self.duplicates.get(metric, 0) + n
        return Metrics(METRICS.of(rows.table()))


def _parts(trace: Trace | Long, only: Collection[str] | None = None) -> Iterator[Trace]:
    """The parts of a trace, one after the other."""
    yield from (_part(trace, i, only) for i in range(len(trace.parts) if isinstance(trace, Long) else 1))


def _part(trace: Trace | Long, i: int, only: Collection[str] | None = None) -> Trace:
    """One part of a trace with its launches; `only`: metrics that are wanted."""
    if isinstance(trace, Long):
        return trace.load(i, only)
    return replace(trace, launches=own_launches(trace), columns={n: c for n, c in trace.columns.items() if only is None or n in only})


def _length(trace: Trace | Long) -> int:
    return len(trace) if isinstance(trace, Long) else len(trace.steps)


def _outline(long: Long) -> Trace:
    """A trace's records at steps that are multiples of a power of two, the first and last of every launch beside them: enough to compare two logs."""
    primary = primary_of(long.counts)
    every = 1 << max(0, (len(long) // OUTLINE).bit_length())
    kept = []
    for part in _parts(long, [primary] if primary else []):
        assert part.launches is not None
        turn = np.flatnonzero(np.diff(part.launches)) + 1
        keep = part.steps % every == 0
        keep[[0, *turn.tolist(), *(turn - 1).tolist(), -1]] = True
        kept.append(part.select(keep))
    return _concatenated(kept)


def _thinned(trace: Trace, dense: Collection[str], cadence: int, every: int) -> Trace:
    """Every k-th step of some metrics, all records of the others."""
    grid: NDArray[np.bool_] = trace.steps // cadence % every == 0
    keep, columns = grid.copy(), {}
    for name, c in trace.columns.items():
        rows = trace.rows(name)
        if name in dense:
            inside = grid[rows]
            columns[name] = Column(c.values[inside], rows[inside])
        else:
            columns[name] = Column(c.values, rows)
            keep[rows] = True
    return replace(trace, columns=columns).select(keep)
