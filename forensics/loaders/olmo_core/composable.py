"""Sources put together: tokens, documents and instances sampled, mixed, sliced and concatenated.

Reproduces data/composable of OLMo-core 3.0.0. A token source is flattened into runs of files laid end to end, so that any
nesting is a few arrays; an instance source is a list of plain ones and, for every instance, which of them it is. Seeds
that the configuration left unset were drawn from a process-wide generator and are known from the saved configuration only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forensics.errors import ConfigError, NotReplayable
from forensics.loaders.arrays import ArrayStore
from forensics.loaders.olmo_core.instances import Added, Instances, Pieces, numbered
from forensics.loaders.olmo_core.mixture import sample_sizes
from forensics.loaders.olmo_core.order import chunked_order
from forensics.loaders.olmo_core.packed import Group, PackedInstances, Packing, cut_long, pack
from forensics.stores.gather import expand_runs, offsets_of

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Tokens:
    """A token source as runs of files.

    Attributes:
        file, start, stop: the runs, end to end.
        documents: end of each document in the source's own tokens; None where it knows none.
        parts: what sampling takes apart instead of the whole: the children of a mixture or of a sample.
    """

    file: Ids
    start: Ids
    stop: Ids
    documents: Ids | None = None
    parts: tuple[Tokens, ...] = field(default=(), compare=False)

    @property
    def first(self) -> Ids:
        """Where each run begins, and the end of the last [runs + 1]."""
        return offsets_of(self.stop - self.start)

    @property
    def size(self) -> int:
        """Tokens of the source."""
        return int((self.stop - self.start).sum())

    def ranges(self, start: Ids, stop: Ids) -> tuple[Ids, Ids, Ids, Ids]:
        """Ranges of the source's tokens as runs of files: number of the range, file, start, stop."""
        first = self.first
        low = np.searchsorted(first, start, side="right") - 1
        high = np.searchsorted(first, stop, side="left")
        run, owner = expand_runs(low.astype(np.int64), np.maximum(high - low, 0).astype(np.int64))
        begin = np.maximum(first[run], start[owner])
        end = np.minimum(first[run + 1], stop[owner])
        keep = end > begin
        run, owner, begin, end = run[keep], owner[keep], begin[keep], end[keep]
        shift = self.start[run] - first[run]
        return owner, self.file[run], begin + shift, end + shift

    def sliced(self, start: int, stop: int) -> Tokens:
        """A range of the source as a source of its own."""
        _, file, begin, end = self.ranges(np.array([start]), np.array([stop]))
        return Tokens(file, begin, end)


def numpy_source(files: Sequence[int], stores: Sequence[ArrayStore], max_length: int | None = None, strategy: str = "truncate") -> Tokens:
    """Whole files; the end of a file ends a document."""
    sizes = np.array([s.n_tokens for s in stores], np.int64)
    first = offsets_of(sizes)
    ends = []
    for store, base in zip(stores, first.tolist()):
        found = store.ends if not store.n_tokens or (len(store.ends) and store.ends[-1] == store.n_tokens) else np.append(store.ends, store.n_tokens)
        if max_length is not None and len(found):
            starts = np.r_[0, found[:-1]]
            if strategy == "truncate" and (found - starts > max_length).any():
                raise NotReplayable(
                    "`max_document_length` cuts documents of a source, on which OLMo-core itself stops", hint="use `long_doc_strategy: fragment`"
                )
            found = cut_long(starts, found, max_length, "fragment")[1]
        ends.append(found + base)
    return Tokens(np.asarray(files, np.int64), np.zeros(len(files), np.int64), sizes, np.concatenate(ends) if ends else np.zeros(0, np.int64))


def concatenated(sources: Sequence[Tokens]) -> Tokens:
    """Sources end to end; documents are known where all know theirs."""
    bases = offsets_of(np.array([s.size for s in sources], np.int64))
    known = [s.documents for s in sources]
    documents = None
    if all(d is not None for d in known):
        documents = np.concatenate([_closed(d, s.size) + b for d, s, b in zip(known, sources, bases.tolist()) if d is not None])
    return Tokens(np.concatenate([s.file for s in sources]), np.concatenate([s.start for s in sources]), np.concatenate([s.stop for s in sources]), documents)


def _closed(ends: Ids, size: int) -> Ids:
    return ends if not size or (len(ends) and ends[-1] == size) else np.append(ends, size)


def sampled_documents(sources: Sequence[Tokens], max_tokens: int, seed: int | None) -> Tokens:
    """Whole documents, shuffled unless there is no seed, repeated and cut off at `max_tokens`."""
    source = concatenated(sources) if len(sources) > 1 else sources[0]
    if source.documents is None:
        raise ConfigError("documents can be sampled from document sources only")
    ends = source.documents
    spans = np.stack([np.r_[0, ends[:-1]], ends], 1) if len(ends) else np.zeros((0, 2), np.int64)
    if seed is not None:
        np.random.Generator(np.random.PCG64(seed)).shuffle(spans, axis=0)
    total = np.cumsum(spans[:, 1] - spans[:, 0])
    repeats, rest = divmod(max_tokens, int(total[-1]))
    taken = np.concatenate([np.tile(spans, (repeats, 1)), spans[total <= rest]])
    if not len(taken):
        raise ConfigError(f"no whole document fits into the {max_tokens} tokens to be sampled", hint="OLMo-core refuses this too")
    _, file, start, stop = source.ranges(taken[:, 0], taken[:, 1])
    return Tokens(file, start, stop, np.cumsum(taken[:, 1] - taken[:, 0]))


def sampled_tokens(sources: Sequence[Tokens], max_tokens: int, seed: int | None) -> Tokens:
    """Whole repeats and one contiguous part of every source, mixtures and samples taken apart first."""
    total = sum(s.size for s in sources)
    rng = None if seed is None else np.random.Generator(np.random.PCG64(seed))
    waiting, out = list(sources), []
    while waiting:
        source = waiting.pop(0)
        if source.parts:
            waiting.extend(source.parts)
            continue
        repeats, rest = divmod(round(max_tokens * (source.size / total)), source.size)
        out += [source] * repeats
        if rest:
            start = 0 if rng is None else int(rng.integers(0, source.size - rest))
            out.append(source.sliced(start, start + rest))
    if not out:
        raise ConfigError(f"no token is left of the {max_tokens} to be sampled")
    whole = concatenated(out)
    return Tokens(whole.file, whole.start, whole.stop, None, tuple(out))


@dataclass(frozen=True)
class Share:
    """One child of a mixture: its tokens, ratio and how often it may be repeated."""

    tokens: int
    ratio: float
    repetition: float


def shares_of(children: Sequence[Share], target: int | None) -> list[int]:
    """Tokens to take from each child of a mixture."""
    return sample_sizes([c.tokens for c in children], [c.ratio for c in children], [c.repetition for c in children], target)


@dataclass(frozen=True)
class ChunkedInstances:
    """Token sources cut into windows (`ConcatAndChunkInstanceSource`)."""

    files: Sequence[ArrayStore]
    sources: Sequence[Tokens]
    width: int
    longest: int

    @property
    def chunk(self) -> int:
        """Windows of one longest window."""
        return self.longest // self.width

    @property
    def counts(self) -> list[int]:
        """Windows of each source."""
        return [s.size // self.longest * self.chunk for s in self.sources]

    @property
    def length(self) -> int:
        """Windows of all sources."""
        return sum(self.counts)

    def pieces(self, ids: Ids) -> Pieces:
        """Token ranges of these windows."""
        group, local = numbered(self.counts, ids)
        columns = []
        for i in np.unique(group).tolist():
            mine = np.flatnonzero(group == i)
            owner, file, start, stop = self.sources[i].ranges(local[mine] * self.width, (local[mine] + 1) * self.width)
            columns.append((mine[owner], file, start, stop))
        return _ordered(columns)

    def added(self, ids: Ids, pieces: Pieces) -> Added | None:
        """Nothing is added."""
        return None


def _ordered(columns: Sequence[tuple[Ids, Ids, Ids, Ids]]) -> Pieces:
    """Ranges by row, those of one row in the order given, each placed behind the one before."""
    if not columns:
        none = np.zeros(0, np.int64)
        return Pieces(none, none, none, none, none)
    row, file, start, stop = (np.concatenate(c) for c in zip(*columns))
    order = np.argsort(row, kind="stable")
    row, file, start, stop = row[order], file[order], start[order], stop[order]
    before = offsets_of(stop - start)[:-1]
    first = np.r_[True, row[1:] != row[:-1]] if len(row) else np.zeros(0, np.bool_)
    return Pieces(row, file, start, stop, before - before[np.flatnonzero(first)][np.cumsum(first) - 1] if len(row) else before)


@dataclass(frozen=True)
class PackedSources:
    """Document sources packed (`PackingInstanceSource`): packed spans are in a group's tokens, runs of files below."""

    files: Sequence[ArrayStore]
    packed: PackedInstances
    groups: Sequence[Tokens]
    chunk: int = 1

    @property
    def width(self) -> int:
        """Tokens of an instance."""
        return self.packed.width

    @property
    def length(self) -> int:
        """Instances of all groups."""
        return self.packed.length

    def pieces(self, ids: Ids) -> Pieces:
        """Token ranges of these instances."""
        spans = self.packed.pieces(ids)
        columns = []
        for i in np.unique(spans.file).tolist():
            mine = np.flatnonzero(spans.file == i)
            owner, file, start, stop = self.groups[i].ranges(spans.start[mine], spans.stop[mine])
            columns.append((mine[owner], file, start, stop))
        flat = _ordered(columns)
        row = spans.row[flat.row]
        return _ordered([(row, flat.file, flat.start, flat.stop)])

    def added(self, ids: Ids, pieces: Pieces) -> Added | None:
        """Padding behind each row's documents."""
        return self.packed.added(ids, pieces)


def packed_sources(files: Sequence[ArrayStore], sources: Sequence[Tokens], *, width: int, pad: int, strategy: str, group_size: int) -> PackedSources:
    """Consecutive sources packed together, `group_size` at a time."""
    groups = [concatenated(sources[i : i + group_size]) for i in range(0, len(sources), group_size)]
    packings: list[Packing] = []
    for g in groups:
        if g.documents is None:
            raise ConfigError("documents can be packed from document sources only")
        starts = np.r_[0, g.documents[:-1]] if len(g.documents) else g.documents
        packings.append(pack(*cut_long(starts, g.documents, width, strategy), width))
    whole = [Group((i,), np.array([0, g.size], np.int64), p) for i, (g, p) in enumerate(zip(groups, packings))]
    return PackedSources(files, PackedInstances(files, whole, width, pad), groups)


@dataclass(frozen=True)
class Picked:
    """Instances picked from plain sources.

    Attributes:
        leaves: the plain sources.
        leaf: which of them each instance comes from.
        index: its number there.
    """

    leaves: tuple[Instances, ...]
    leaf: NDArray[np.int32]
    index: Ids
    width: int
    chunk: int

    @property
    def files(self) -> Sequence[ArrayStore]:
        """The token files, the same for all leaves."""
        return self.leaves[0].files

    @property
    def length(self) -> int:
        """Number of instances."""
        return len(self.index)

    @property
    def size(self) -> int:
        """Tokens of all instances."""
        return self.length * self.width

    def take(self, ids: NDArray[np.integer]) -> Picked:
        """Some of the instances, in the order given."""
        return Picked(self.leaves, self.leaf[ids], self.index[ids], self.width, self.chunk)

    def pieces(self, ids: Ids) -> Pieces:
        """Token ranges of these instances."""
        leaf, index = self.leaf[ids], self.index[ids]
        rows: list[tuple[Ids, Ids, Ids, Ids, Ids]] = []
        for i in np.unique(leaf).tolist():
            mine = np.flatnonzero(leaf == i)
            p = self.leaves[i].pieces(index[mine])
            rows.append((mine[p.row], p.file, p.start, p.stop, p.place))
        row, file, start, stop, place = (np.concatenate(c) for c in zip(*rows)) if rows else (np.zeros(0, np.int64),) * 5
        order = np.lexsort((place, row))
        return Pieces(row[order], file[order], start[order], stop[order], place[order])

    def added(self, ids: Ids, pieces: Pieces) -> Added | None:
        """What the plain sources add."""
        leaf, index = self.leaf[ids], self.index[ids]
        out = []
        for i in np.unique(leaf).tolist():
            mine = np.flatnonzero(leaf == i)
            own = self.leaves[i].added(index[mine], self.leaves[i].pieces(index[mine]))
            if own is not None:
                out.append((mine[own.row], own.place, own.token))
        return Added(*(np.concatenate(c) for c in zip(*out))) if out else None


def plain(source: Instances) -> Picked:
    """A plain source, all of it in order."""
    return Picked((source,), np.zeros(source.length, np.int32), np.arange(source.length), source.width, source.chunk)


def joined(sources: Sequence[Picked]) -> Picked:
    """Sources end to end.

    Raises:
        ConfigError: sources of different lengths of instances.
    """
    if len({(s.width, s.chunk) for s in sources}) != 1:
        raise ConfigError("instance sources of different sequence lengths cannot be put together", hint="OLMo-core refuses this too")
    leaves: list[Instances] = []
    leaf = []
    for s in sources:
        leaf.append(s.leaf + np.int32(len(leaves)))
        leaves += s.leaves
    return Picked(tuple(leaves), np.concatenate(leaf), np.concatenate([s.index for s in sources]), sources[0].width, sources[0].chunk)


def sampled(sources: Sequence[Picked], max_instances: int, seed: int | None) -> Picked:
    """Each source's share of `max_instances`: whole permutations, then the head of it.

    Where instances are kept together in chunks, the library writes these numbers as 64 bits and reads them as 32: every
    second one it reads is 0, and it reaches half of them only (3.0.0). That is what such a run was trained on.
    """
    total = sum(s.length for s in sources)
    out = []
    for i, s in enumerate(sources):
        size = int(max_instances * (s.length / total)) // s.chunk * s.chunk
        order = chunked_order(s.length, s.chunk, None if seed is None else seed + i)
        taken = np.concatenate([np.tile(order, size // s.length), order[: size % s.length]])
        out.append(s.take(taken if s.chunk == 1 else taken.astype("<i8").view("<u4")[: len(taken)]))
    return joined(out)


def mixed(sources: Sequence[tuple[Picked, float, float]], target_tokens: int | None, seed: int | None) -> Picked:
    """(source, ratio, repetition) mixed by ratio; child i is sampled with seed + i."""
    sizes = shares_of([Share(s.size, ratio, repetition) for s, ratio, repetition in sources], target_tokens)
    return joined([sampled([s], size // s.width, None if seed is None else seed + i) for i, ((s, _, _), size) in enumerate(zip(sources, sizes))])


def split(source: Picked, ratio: float, second: bool, seed: int | None) -> Picked:
    """The first or second part of a source, shuffled first where there is a seed."""
    at = int(ratio * source.length)
    order = chunked_order(source.length, source.chunk, seed)
    part = order[at:] if second else order[:at]
    if not len(part):
        raise ConfigError("a part of a split source is empty", hint="OLMo-core refuses this too")
    return source.take(part[: len(part) // source.chunk * source.chunk])
