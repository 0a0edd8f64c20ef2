"""The samples of one corpus: which stored sequences, and which part of each, sample j is made of.

Two routes give the same answer. *Rebuilt*: the document index and the shuffle index from the seed, and the flat token
position `k * S` found in running sums of lengths. *Cached*: the run's own index files, of which only the rows asked for
are read. Running sums are kept for blocks of the document index, not for every entry: a corpus of 1e8 stored sequences
would otherwise hold 0.8 GB of sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from forensics.errors import RunError, StoreError
from forensics.loaders.megatron.cache import CachedIndex
from forensics.loaders.megatron.indices import Epochs, document_index, shuffle_index
from forensics.stores.gather import expand_runs, offsets_of
from forensics.stores.megatron import MegatronStore

SUM_BLOCK = 64


@dataclass(frozen=True)
class Parts:
    """Parts of stored sequences, in reading order; arrays of one length.

    Attributes:
        row: int64, index into the samples asked for.
        corpus: int32, run-wide number of the data file.
        sequence: int64, stored sequence.
        start: int64, first token of the sequence.
        stop: int64.
        place: int64, where the part begins in its row.
        epoch: int32, -1 where epochs are shuffled together.
    """

    row: NDArray[np.int64]
    corpus: NDArray[np.int32]
    sequence: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    place: NDArray[np.int64]
    epoch: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.row)

    def take(self, index: NDArray[Any]) -> Parts:
        """The parts at these places, or where a mask holds."""
        return Parts(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    @classmethod
    def concat(cls, parts: list[Parts]) -> Parts:
        """Several, one after the other."""
        return parts[0] if len(parts) == 1 else cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in cls.__dataclass_fields__))


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def _block_sums(documents, lengths, block):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Tokens before every block-th entry, and the total last."""
    n = len(documents)
    out = np.zeros((n + block - 1) // block + 1, np.int64)
    total = np.int64(0)
    for i in range(n):
        if i % block == 0:
            out[i // block] = total
        total += lengths[documents[i]]
    out[-1] = total
    return out


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def _find(documents, lengths, sums, block, positions, entry, offset):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Entry that holds each flat token position, and the offset in it; positions below the total."""
    for k in range(len(positions)):
        p = positions[k]
        low, high = 0, len(sums) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if sums[middle] <= p:
                low = middle
            else:
                high = middle
        i, left = low * block, p - sums[low]
        while left >= lengths[documents[i]]:
            left -= lengths[documents[i]]
            i += 1
        entry[k], offset[k] = i, left


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def _entries_of(documents, lengths, sums, block, wanted):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Entries whose sequence is wanted (bool per stored sequence), and where they begin in the flat tokens."""
    count = 0
    for i in range(len(documents)):
        count += wanted[documents[i]]
    entry, start = np.empty(count, np.int64), np.empty(count, np.int64)
    at = 0
    total = np.int64(0)
    for i in range(len(documents)):
        if i % block == 0:
            total = sums[i // block]
        if wanted[documents[i]]:
            entry[at], start[at] = i, total
            at += 1
        total += lengths[documents[i]]
    return entry, start


class CorpusOrder:
    """The samples of one corpus in one split of one launch.

    Args:
        corpus_id: run-wide number of the data file.
        store: the file.
        sequences: first and stop stored sequence of the split.
        epochs: what was asked for and how it is laid out.
        seed: of the run.
        length: tokens per sequence.
        extra: 1 where a sample holds one token more.
        cached: the run's own index files, None to rebuild.
    """

    def __init__(
        self,
        corpus_id: int,
        store: MegatronStore,
        sequences: tuple[int, int],
        epochs: Epochs,
        *,
        seed: int,
        length: int,
        extra: int,
        cached: CachedIndex | None = None,
    ) -> None:
        self.corpus_id, self.store, self.sequences, self.epochs = corpus_id, store, sequences, epochs
        self.seed, self.length, self.extra, self.cached = seed, length, extra, cached

    def __len__(self) -> int:
        return self.epochs.samples

    @cached_property
    def _rebuilt(self) -> tuple[NDArray[np.int32], NDArray[Any]]:
        state = np.random.RandomState(self.seed)
        return document_index(*self.sequences, self.epochs, state), shuffle_index(self.epochs, state)

    @property
    def documents(self) -> NDArray[np.int32]:
        """Stored sequences in reading order, all passes."""
        return self.cached.documents if self.cached else self._rebuilt[0]

    @property
    def shuffle(self) -> NDArray[Any]:
        """Built sample of each sample number."""
        return self.cached.shuffle if self.cached else self._rebuilt[1]

    @cached_property
    def _sums(self) -> NDArray[np.int64]:
        return np.asarray(_block_sums(np.asarray(self.documents), self.store.lengths, SUM_BLOCK))

    def _bounds(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """First entry and offset, last entry and stop offset of each sample."""
        built = np.asarray(self.shuffle[samples], dtype=np.int64)
        if self.cached:
            rows, after = self.cached.samples[built], self.cached.samples[built + 1]
            rows, after = rows.astype(np.int64), after.astype(np.int64)
            return rows[:, 0], rows[:, 1], after[:, 0], after[:, 1] + self.extra
        first = built * self.length
        if len(first) and int(first.max()) >= self.epochs.total:
            raise RunError(
                f"sample {int(samples[np.argmax(first)])} of {self.store.path.name} begins at token {int(first.max())} of {self.epochs.total}: with the last "
                "partial sample kept, the library counts samples in float32, which goes wrong above 2**24 tokens"
            )
        last = np.minimum(first + self.length + self.extra, self.epochs.total)
        entry, offset = np.empty((2, len(built)), np.int64), np.empty((2, len(built)), np.int64)
        for k, positions in enumerate((first, last - 1)):
            _find(self.documents, self.store.lengths, self._sums, SUM_BLOCK, positions, entry[k], offset[k])
        return entry[0], offset[0], entry[1], offset[1] + 1

    def parts(self, samples: NDArray[np.int64]) -> Parts:
        """What the samples are made of; empty parts are left out.

        Args:
            samples: int64 [n], sample numbers of this corpus.

        Raises:
            RunError: a sample beyond what was built, or a cached index that does not fit the data files.
        """
        if len(samples) and int(samples.max()) >= len(self):
            raise RunError(
                f"sample {int(samples.max())} of {self.store.path.name} is asked for, {len(self)} were built",
                hint="the run's arguments ask for more than the corpus gives; check weights, train_iters and batch size",
            )
        first, skip, last, stop = self._bounds(samples)
        counts = last - first + 1
        self._check_entries(first, last)
        entries, row = expand_runs(first, counts)
        sequence = np.asarray(self.documents[entries], dtype=np.int64)
        if self.cached:
            self._check_sequences(sequence)
        start, end = np.zeros(len(entries), np.int64), self.store.lengths[sequence].astype(np.int64)
        edges = offsets_of(counts)
        start[edges[:-1]] = skip
        end[edges[1:] - 1] = stop
        if self.cached:
            self._check_lengths(samples, np.add.reduceat(end - start, edges[:-1]) if len(counts) else end, sequence, end)
        keep = end > start
        row, sequence, start, end, entries = row[keep], sequence[keep], start[keep], end[keep], entries[keep]
        before = offsets_of(end - start)
        opens = np.flatnonzero(np.diff(row, prepend=-1))
        place = before[:-1] - np.repeat(before[opens], np.diff(opens, append=len(row)))
        return Parts(row, np.full(len(row), self.corpus_id, np.int32), sequence, start, end, place, self._epoch(entries))

    def _epoch(self, entries: NDArray[np.int64]) -> NDArray[np.int32]:
        n, e = self.sequences[1] - self.sequences[0], self.epochs.epochs
        if e == 1:
            return np.zeros(len(entries), np.int32)
        if not self.epochs.separate:
            return np.full(len(entries), -1, np.int32)
        return np.where(entries >= (e - 1) * n, e - 1, 0 if e == 2 else -1).astype(np.int32)

    def _check_entries(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> None:
        if self.cached and len(first) and (int(first.min()) < 0 or int(last.max()) >= len(self.documents) or np.any(last < first)):
            raise self._stale("its sample index points outside its document index")

    def _check_sequences(self, sequence: NDArray[np.int64]) -> None:
        if len(sequence) and (int(sequence.min()) < self.sequences[0] or int(sequence.max()) >= self.sequences[1]):
            raise self._stale(f"it names stored sequence {int(sequence.max())}, the split holds {self.sequences[0]} to {self.sequences[1] - 1}")

    def _check_lengths(self, samples: NDArray[np.int64], tokens: NDArray[np.int64], sequence: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        want = self.length + self.extra
        short = tokens != want
        if self.epochs.samples * self.length + self.extra > self.epochs.total:  # the last one built may be partial
            short &= ~((np.asarray(self.shuffle[samples]) == self.epochs.samples - 1) & (tokens < want))
        if np.any(short) or np.any(end > self.store.lengths[sequence]):
            bad = int(np.argmax(short))
            raise self._stale(f"by it sample {int(samples[bad])} has {int(tokens[bad])} tokens, {want} are read")

    def _stale(self, why: str) -> StoreError:
        assert self.cached
        return StoreError(
            f"the cached index {self.cached.name} does not fit {self.store.idx}: {why}",
            hint="the corpus was tokenised again under the same name since, or the cache belongs to another file; bring back the "
            "run's data, or leave `cache` out to rebuild from the files as they are",
        )

    def find(self, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample numbers that hold any token of these stored sequences, ascending: int64."""
        wanted = np.zeros(self.store.n_sequences, np.bool_)
        wanted[sequences[(sequences >= self.sequences[0]) & (sequences < self.sequences[1])]] = True
        documents = np.asarray(self.documents)
        if self.cached and len(documents) and int(documents.max()) >= self.store.n_sequences:
            raise self._stale(f"it names stored sequence {int(documents.max())}, the file has {self.store.n_sequences}")
        entry, begin = _entries_of(documents, self.store.lengths, self._sums, SUM_BLOCK, wanted)
        size = self.store.lengths[documents[entry]].astype(np.int64)
        begin, size = begin[size > 0], size[size > 0]
        first = np.maximum((begin - self.length - self.extra) // self.length + 1, 0)
        last = np.minimum((begin + size - 1) // self.length, len(self) - 1)
        built, _ = expand_runs(first, np.maximum(last - first + 1, 0))
        hit = np.zeros(len(self), np.bool_)
        hit[built] = True
        return _where(self.shuffle, hit)


def _where(shuffle: NDArray[Any], hit: NDArray[np.bool_], block: int = 1 << 22) -> NDArray[np.int64]:
    """Places of a shuffle index whose value is hit; the index may be a map and is read in blocks."""
    found = [np.flatnonzero(hit[np.asarray(shuffle[first : first + block])]) + first for first in range(0, len(shuffle), block)]
    return np.concatenate(found).astype(np.int64) if found else np.empty(0, np.int64)
