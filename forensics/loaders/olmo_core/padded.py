"""One document an instance, and documents interleaved: `NumpyPaddedFSLDataset`, `NumpyInterleavedFSLDataset`.

Reproduces data/numpy_dataset.py and `segment_documents_into_instances` (data/utils.py) of OLMo-core 3.0.0. Documents
are what the trainer's scan for the end token sees; tokens behind the last end token are never read. The library's own
index files (`dataset-common/instance-indices-*`, `interleavable-docs-indices.npy`) hold the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forensics.loaders.arrays import ArrayStore
from forensics.loaders.olmo_core.instances import Added, Pieces, filled, numbered, whole_rows
from forensics.stores.gather import expand_runs, offsets_of

Ids = NDArray[np.int64]


def documents_of(file: ArrayStore) -> tuple[Ids, Ids]:
    """Start and stop of the documents that the trainer's scan sees."""
    ends = file.ends
    return np.concatenate([np.zeros(1, np.int64), ends])[:-1], ends


@dataclass(frozen=True)
class PaddedInstances:
    """Documents, cut to `width` and padded.

    Attributes:
        files: in the order of `paths`, scanned without the beginning token.
        width: `sequence_length`.
        pad: `pad_token_id`.
    """

    files: Sequence[ArrayStore]
    width: int
    pad: int
    chunk: int = 1

    @cached_property
    def documents(self) -> list[tuple[Ids, Ids]]:
        """Start and stop of every document, by file."""
        return [documents_of(f) for f in self.files]

    @property
    def counts(self) -> list[int]:
        """Documents of each file."""
        return [len(starts) for starts, _ in self.documents]

    @property
    def length(self) -> int:
        """Documents of all files."""
        return sum(self.counts)

    def pieces(self, ids: Ids) -> Pieces:
        """Token ranges of these documents."""
        file, local = numbered(self.counts, ids)
        start, stop = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
        for i in np.unique(file).tolist():
            mine = file == i
            start[mine], stop[mine] = (bound[local[mine]] for bound in self.documents[i])
        return whole_rows(file, start, np.minimum(stop, start + self.width))

    def added(self, ids: Ids, pieces: Pieces) -> Added | None:
        """Padding behind each document."""
        return filled(len(ids), pieces, self.width, self.pad)


@dataclass(frozen=True)
class InterleavedInstances:
    """Chunks of several documents dealt in turn, special tokens taken out.

    Attributes:
        documents: the padded documents.
        seed: of the permutation of documents.
        per_instance: `docs_per_instance`.
        per_document: `chunks_per_doc`.
        end, begin: `eos_token_id`, `bos_token_id` or None.
        exempt: which files are left as they are (`interleaving_exempt_paths`).
    """

    documents: PaddedInstances
    seed: int
    per_instance: int
    per_document: int
    end: int
    begin: int | None
    exempt: Sequence[bool]
    chunk: int = 1

    @property
    def files(self) -> Sequence[ArrayStore]:
        """The token files."""
        return self.documents.files

    @property
    def width(self) -> int:
        """Tokens of an instance."""
        return self.documents.width

    @cached_property
    def _dealt(self) -> tuple[Ids, Ids]:
        """Documents left alone, in order, and the others, permuted."""
        alone = np.repeat(np.asarray(self.exempt, np.bool_), self.documents.counts)
        rng = np.random.Generator(np.random.PCG64(self.seed))
        return np.flatnonzero(alone), rng.permutation(np.flatnonzero(~alone))

    @property
    def length(self) -> int:
        """Documents left alone, and whole groups of the others."""
        alone, mixed = self._dealt
        return len(alone) + len(mixed) // self.per_instance

    def _members(self, ids: Ids) -> tuple[Ids, Ids, Ids]:
        """Rows that are one document, and row and document of all that are interleaved."""
        alone, mixed = self._dealt
        single = ids < len(alone)
        rows = np.flatnonzero(~single)
        first = (ids[rows] - len(alone)) * self.per_instance
        return np.flatnonzero(single), np.repeat(rows, self.per_instance), mixed[first[:, None] + np.arange(self.per_instance)].reshape(-1)

    def pieces(self, ids: Ids) -> Pieces:
        """Token ranges: one run per stretch of ordinary tokens of a chunk."""
        single, rows, members = self._members(ids)
        plain = self.documents.pieces(self._dealt[0][ids[single]])
        parts = [(single, plain.file, plain.start, plain.stop, plain.place)]
        if len(rows):
            parts.append(self._interleaved(rows, members))
        row, file, start, stop, place = (np.concatenate(column) for column in zip(*parts))
        order = np.lexsort((place, row))
        return Pieces(row[order], file[order], start[order], stop[order], place[order])

    def _interleaved(self, rows: Ids, members: Ids) -> tuple[Ids, Ids, Ids, Ids, Ids]:
        docs = self.documents.pieces(members)
        share = self.width // self.per_instance
        stop = np.minimum(docs.stop, docs.start + share)
        position, owner = expand_runs(docs.start, stop - docs.start)
        token = np.empty(len(position), np.int64)
        for i in np.unique(docs.file).tolist():
            mine = docs.file[owner] == i
            token[mine] = self.files[i].tokens[position[mine]]
        special = (token == self.documents.pad) | (token == self.end)
        if self.begin is not None:
            special |= token == self.begin
        position, owner = position[~special], owner[~special]
        kept = np.bincount(owner, minlength=len(members))
        rank = np.arange(len(owner)) - offsets_of(kept)[owner]
        piece = _chunk_of(rank, kept[owner], self.per_document)
        order = np.lexsort((rank, owner, piece, rows[owner]))
        position, owner = position[order], owner[order]
        row, file = rows[owner], docs.file[owner]
        used = np.bincount(row, minlength=int(rows.max()) + 1)
        place = np.arange(len(row)) - offsets_of(used)[row]
        if self.begin is not None:
            place = place + (used[row] < self.width)
        breaks = np.flatnonzero(np.r_[True, (row[1:] != row[:-1]) | (file[1:] != file[:-1]) | (position[1:] != position[:-1] + 1)])
        lengths = np.diff(np.r_[breaks, len(row)])
        return row[breaks], file[breaks], position[breaks], position[breaks] + lengths, place[breaks]

    def added(self, ids: Ids, pieces: Pieces) -> Added | None:
        """Begin and end token where there is room, then padding."""
        _, rows, _ = self._members(ids)
        mixed = np.unique(rows)
        used = np.zeros(len(ids), np.int64)
        np.maximum.at(used, pieces.row, pieces.place + pieces.stop - pieces.start)
        row, place, token = [], [], []
        if self.begin is not None:
            content = np.bincount(pieces.row, pieces.stop - pieces.start, len(ids)).astype(np.int64)
            short = mixed[content[mixed] < self.width]
            row, place, token = [short], [np.zeros(len(short), np.int64)], [np.full(len(short), self.begin, np.int64)]
            used[short] = np.maximum(used[short], 1)
        ended = mixed[used[mixed] < self.width]
        row.append(ended)
        place.append(used[ended])
        token.append(np.full(len(ended), self.end, np.int64))
        used[ended] += 1
        at, owner = expand_runs(used, np.maximum(self.width - used, 0))
        row.append(owner)
        place.append(at)
        token.append(np.full(len(at), self.documents.pad, np.int64))
        return Added(np.concatenate(row), np.concatenate(place), np.concatenate(token))


def _chunk_of(rank: Ids, count: Ids, chunks: int) -> Ids:
    """Which of `chunks` nearly equal parts a place lies in: the first `count % chunks` parts are one longer."""
    small, extra = count // chunks, count % chunks
    head = extra * (small + 1)
    return np.where(rank < head, rank // (small + 1), extra + (rank - head) // np.maximum(small, 1))
