"""Documents packed into instances by best fit, longest first: `NumpyPackedFSLDataset`, `PackingInstanceSource`.

Reproduces `InstancePacker` (data/utils.py) of OLMo-core 3.0.0. Documents of equal length are ordered by numpy's default
argsort, which differs between numpy versions and processors, so the run's own files (`document-indices-*`,
`instance-offsets-*`, `documents-by-instance-*`, uint64 without header) are preferred where they are found; a packing
computed here says whether lengths tie.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray

from forensics.errors import ConfigError, StoreError
from forensics.loaders.arrays import ArrayStore
from forensics.loaders.olmo_core.instances import Added, Pieces, filled, numbered
from forensics.stores.gather import expand_runs, offsets_of

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Packing:
    """One group of sources, packed.

    Attributes:
        documents: start and stop in the group's tokens [document, 2], longest first.
        offsets: first entry of each instance in `members` [instances + 1].
        members: documents of every instance, in order.
        cached: whether it comes from the run's own files.
        tied: whether documents of equal length exist, so that another machine may have packed otherwise.
    """

    documents: Ids
    offsets: Ids
    members: Ids
    cached: bool
    tied: bool


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def _fit(lengths, width):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Instance of each document: the open one with the least sufficient room, the first that came to that room on a tie."""
    n = len(lengths)
    head, tail = np.full(width + 1, -1, np.int64), np.full(width + 1, -1, np.int64)
    after = np.full(n, -1, np.int64)
    words = np.zeros((width + 64) // 64, np.uint64)
    out = np.empty(n, np.int64)
    opened = 0
    one = np.uint64(1)
    for d in range(n):
        need = lengths[d]
        room = -1
        word, bit = need >> 6, need & 63
        here = words[word] >> np.uint64(bit) << np.uint64(bit)
        while True:
            if here != 0:
                low = 0
                while (here >> np.uint64(low)) & one == 0:
                    low += 1
                room = (word << 6) + low
                break
            word += 1
            if word >= len(words):
                break
            here = words[word]
        if room < 0 or room >= width:
            chosen, room = opened, width
            opened += 1
        else:
            chosen = head[room]
            head[room] = after[chosen]
            if head[room] < 0:
                tail[room] = -1
                words[room >> 6] &= ~(one << np.uint64(room & 63))
        out[d] = chosen
        left = room - need
        if left > 0:
            after[chosen] = -1
            if tail[left] < 0:
                head[left] = chosen
                words[left >> 6] |= one << np.uint64(left & 63)
            else:
                after[tail[left]] = chosen
            tail[left] = chosen
    return out, opened


def pack(starts: Ids, stops: Ids, width: int) -> Packing:
    """Documents into instances of `width` tokens.

    Args:
        starts, stops: of documents no longer than `width`, in file order.
        width: tokens of an instance.

    Raises:
        ConfigError: a width that the library refuses.
    """
    if width & (width - 1):
        raise ConfigError(f"sequence_length {width} is no power of 2, which packing needs", hint="OLMo-core refuses this too")
    lengths = stops - starts
    order = np.argsort(-1 * lengths)
    ordered = lengths[order]
    instance, opened = _fit(ordered, width)
    members = np.argsort(instance, kind="stable")
    tied = bool(len(ordered) > 1 and np.any(ordered[1:] == ordered[:-1]))
    return Packing(np.stack([starts, stops], 1)[order], offsets_of(np.bincount(instance, minlength=opened).astype(np.int64)), members, False, tied)


def read_packing(documents: Path, offsets: Path, members: Path) -> Packing:
    """A packing from the run's own files.

    Raises:
        StoreError: files that contradict each other.
    """
    docs, ranges, held = (np.fromfile(p, "<u8").astype(np.int64) for p in (documents, offsets, members))
    if (
        len(docs) % 2
        or len(ranges) % 2
        or not len(ranges)
        or ranges[0] != 0
        or ranges[-1] != len(held)
        or np.any(ranges[2::2] != ranges[1:-1:2])
        or (len(held) and held.max() >= len(docs) // 2)
    ):
        raise StoreError(
            f"{offsets} does not fit {members.name} and {documents.name}",
            hint="the packing files of this work directory are damaged or belong to different runs",
        )
    return Packing(docs.reshape(-1, 2), np.append(ranges[::2], ranges[-1]), held, True, False)


def cut_long(starts: Ids, stops: Ids, width: int, strategy: str) -> tuple[Ids, Ids]:
    """Documents longer than `width` truncated, or fragmented into several."""
    if strategy == "truncate":
        return starts, np.minimum(stops, starts + width)
    pieces = np.maximum(-(-(stops - starts) // width), 1)
    number, owner = expand_runs(np.zeros(len(starts), np.int64), pieces)
    begin = starts[owner] + number * width
    return begin, np.minimum(begin + width, stops[owner])


@dataclass(frozen=True)
class Group:
    """Files packed together, in order, and where each begins in the group's tokens [files + 1]."""

    files: tuple[int, ...]
    first: Ids
    packing: Packing


@dataclass(frozen=True)
class PackedInstances:
    """Packed documents, padded.

    Attributes:
        files: all token files.
        groups: packed one after the other.
        width: `sequence_length`.
        pad: `pad_token_id`.
    """

    files: Sequence[ArrayStore]
    groups: Sequence[Group]
    width: int
    pad: int
    chunk: int = 1

    @cached_property
    def counts(self) -> list[int]:
        """Instances of each group."""
        return [len(g.packing.offsets) - 1 for g in self.groups]

    @property
    def length(self) -> int:
        """Instances of all groups."""
        return sum(self.counts)

    @property
    def cached(self) -> bool:
        """Whether every group comes from the run's own files."""
        return all(g.packing.cached for g in self.groups)

    @property
    def tied(self) -> bool:
        """Whether equal lengths leave another packing possible."""
        return any(g.packing.tied for g in self.groups)

    def pieces(self, ids: Ids) -> Pieces:
        """Token ranges of these instances."""
        group, local = numbered(self.counts, ids)
        columns: list[tuple[Ids, Ids, Ids, Ids, Ids]] = []
        for i in np.unique(group).tolist():
            mine = np.flatnonzero(group == i)
            columns.append(self._of_group(self.groups[i], mine, local[mine]))
        if not columns:
            none = np.zeros(0, np.int64)
            return Pieces(none, none, none, none, none)
        row, file, start, stop, place = (np.concatenate(c) for c in zip(*columns))
        order = np.lexsort((place, row))
        return Pieces(row[order], file[order], start[order], stop[order], place[order])

    def _of_group(self, group: Group, rows: Ids, local: Ids) -> tuple[Ids, Ids, Ids, Ids, Ids]:
        packing = group.packing
        counts = packing.offsets[local + 1] - packing.offsets[local]
        entry, owner = expand_runs(packing.offsets[local], counts)
        start, stop = packing.documents[packing.members[entry]].T
        place = offsets_of(stop - start)[:-1]
        place = place - place[offsets_of(counts)[:-1]][owner] if len(place) else place
        file = np.searchsorted(group.first, start, side="right") - 1
        shift = group.first[file]
        return rows[owner], np.asarray(group.files, np.int64)[file], start - shift, stop - shift, place

    def added(self, ids: Ids, pieces: Pieces) -> Added | None:
        """Padding behind each row's documents."""
        return filled(len(ids), pieces, self.width, self.pad)


def cache_names(width: int, paths: Sequence[tuple[str, int]], extra: Sequence[str]) -> list[str]:
    """Names of the three packing files of a group.

    Args:
        width: `sequence_length`.
        paths: path as the run saw it, and size in bytes.
        extra: further identity: strategy, type of the indices.
    """
    sha = hashlib.sha256()
    for path, size in paths:
        sha.update(path.encode())
        sha.update(str(size).encode())
    for word in extra:
        sha.update(word.encode())
    return [f"{kind}-{width}-{sha.hexdigest()}.npy" for kind in ("document-indices", "instance-offsets", "documents-by-instance")]
