"""Variable lengths with a curriculum: `NumpyVSLDataset` and `NumpyVSLDataLoader` of OLMo-core 3.0.0.

Reproduces `bucket_documents` (data/utils.py) and the curricula of data/numpy_dataset.py. A document is taken apart into
lengths that are powers of 2, the longest first; each length is a bucket with its own permutation (seed + epoch +
length), and the curriculum orders batches, each of one bucket (seed + epoch).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forensics.errors import ConfigError, RunError
from forensics.loaders.arrays import ArrayStore
from forensics.loaders.olmo_core.instances import Added, Pieces, numbered, whole_rows
from forensics.loaders.olmo_core.padded import documents_of
from forensics.stores.gather import expand_runs

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class VslInstances:
    """Parts of documents, of lengths that are powers of 2.

    Attributes:
        files: in the order of `paths`.
        shortest, width: `min_sequence_length`, `max_sequence_length`.
    """

    files: Sequence[ArrayStore]
    shortest: int
    width: int
    chunk: int = 1

    def __post_init__(self) -> None:
        if self.shortest & (self.shortest - 1) or self.width & (self.width - 1) or self.shortest >= self.width:
            raise ConfigError(f"lengths {self.shortest} to {self.width} are no ascending powers of 2", hint="OLMo-core refuses this too")

    @property
    def lengths(self) -> list[int]:
        """The buckets' lengths, shortest first."""
        return [1 << k for k in range(self.shortest.bit_length() - 1, self.width.bit_length())]

    @cached_property
    def _parts(self) -> list[tuple[Ids, Ids]]:
        """Start and stop of every instance, by file."""
        return [self._taken_apart(*documents_of(f)) for f in self.files]

    def _taken_apart(self, starts: Ids, stops: Ids) -> tuple[Ids, Ids]:
        rest = stops - starts
        sizes = [np.full(len(rest), self.width, np.int64)]
        counts = [rest // self.width]
        for length in reversed(self.lengths[:-1]):
            sizes.append(np.full(len(rest), length, np.int64))
            counts.append(rest // length % 2)
        flat = np.stack(counts, 1).reshape(-1)
        _, owner = expand_runs(np.zeros(len(flat), np.int64), flat)
        length = np.stack(sizes, 1).reshape(-1)[owner]
        document = owner // len(sizes)
        end = np.cumsum(length)
        before = np.r_[0, end[:-1]]
        first = np.flatnonzero(np.r_[True, document[1:] != document[:-1]]) if len(document) else np.zeros(0, np.int64)
        base = np.repeat(before[first], np.diff(np.r_[first, len(document)])) if len(document) else before[:0]
        begin = starts[document] + before[: len(document)] - base
        return begin, begin + length

    @property
    def counts(self) -> list[int]:
        """Instances of each file."""
        return [len(starts) for starts, _ in self._parts]

    @property
    def length(self) -> int:
        """Instances of all files."""
        return sum(self.counts)

    @cached_property
    def buckets(self) -> dict[int, Ids]:
        """Instances of each length."""
        sizes = np.concatenate([stop - start for start, stop in self._parts])
        return {length: np.flatnonzero(sizes == length) for length in self.lengths}

    def pieces(self, ids: Ids) -> Pieces:
        """Token ranges of these instances."""
        file, local = numbered(self.counts, ids)
        start, stop = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
        for i in np.unique(file).tolist():
            mine = file == i
            start[mine], stop[mine] = (bound[local[mine]] for bound in self._parts[i])
        return whole_rows(file, start, stop)

    def added(self, ids: Ids, pieces: Pieces) -> Added | None:
        """Nothing is added."""
        return None


@dataclass(frozen=True)
class Curriculum:
    """Order of batches: `natural`, `grow_p2` or `grow_linear`."""

    name: str = "natural"
    cycles: int = 8
    balanced: bool = False

    def batches(self, buckets: dict[int, Ids], batch_tokens: int) -> list[tuple[int, int]]:
        """(length, batches) of each bucket, shortest first."""
        natural = [(length, len(ids) // (batch_tokens // length)) for length, ids in buckets.items()]
        if self.name == "natural":
            return natural
        least = min(n for _, n in natural)
        return [(length, self.cycles * ((least if self.balanced else n) // self.cycles)) for length, n in natural]

    def order(self, batches: Sequence[tuple[int, int]], seed: int) -> NDArray[np.uint32]:
        """Batches in the order they come, numbered over the buckets one after the other.

        Raises:
            RunError: buckets without batches where the library fails.
        """
        rng = np.random.Generator(np.random.PCG64(seed))
        total = sum(n for _, n in batches)
        if not total or (self.name == "natural" and not batches[-1][1]):
            raise RunError("the longest bucket holds no whole batch, on which the curriculum of OLMo-core fails")
        if self.name == "natural":
            out = np.arange(total, dtype=np.uint32)
            chosen = int(rng.integers(total - batches[-1][1], total))
            out[0], out[chosen] = out[chosen], out[0]
            rng.shuffle(out[1:])
            return out
        out = np.concatenate([part for cycle in range(self.cycles) for part in self._cycle(batches, cycle, rng)])
        long = int(np.argmax(out >= total - batches[-1][1]))
        out[0], out[long] = out[long], out[0]
        return out

    def _cycle(self, batches: Sequence[tuple[int, int]], cycle: int, rng: np.random.Generator) -> list[NDArray[np.uint32]]:
        k = len(batches)
        shares: list[list[NDArray[np.uint32]]] = []
        offset = 0
        for bucket, (_, n) in enumerate(batches):
            counts = _even(n, self.cycles)
            first = sum(counts[:cycle])
            mine = np.arange(offset + first, offset + first + counts[cycle], dtype=np.uint32)
            parts = self._parts(bucket, k, counts[cycle])
            if sum(parts) != len(mine):
                raise RunError(f"the curriculum {self.name} cannot split {len(mine)} batches of a bucket into {k} parts, on which OLMo-core fails")
            shares.append(np.split(mine, np.cumsum(parts)[:-1]))
            offset += n
        out = []
        for sub in range(k):
            joined = np.concatenate([share[sub] for share in shares])
            rng.shuffle(joined)
            out.append(joined)
        return out

    def _parts(self, bucket: int, k: int, n: int) -> list[int]:
        """Batches of a bucket in each part of a cycle."""
        begin = k - bucket
        ranks = [begin + c if begin + c <= k else begin - (begin + c) % k for c in range(k)]
        odds = [2 ** (r - 1) for r in ranks] if self.name == "grow_p2" else ranks
        out = [round(o / sum(odds) * n) for o in odds]
        if sum(out) < n:
            out[-1] += n - sum(out)
        return out


def _even(n: int, parts: int) -> list[int]:
    """`n` in nearly equal parts, the longer ones first."""
    out: list[int] = []
    while len(out) < parts:
        out.append(math.ceil(n / (parts - len(out))))
        n -= out[-1]
    return out
