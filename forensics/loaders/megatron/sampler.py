"""Which sample of the data set each row of a step is: the trainer's two samplers.

Follows `megatron/legacy/data/data_samplers.py` and `megatron/training/datasets/data_samplers.py`
(`MegatronPretrainingSampler`, `MegatronPretrainingRandomSampler`) with one loader per data-parallel rank. Rows of a step
are ordered by microbatch, rank, position.

Names: `b` micro batch, `dp` data-parallel size, `q = b * dp`.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forensics.errors import NotReplayable, RunError
from forensics.loaders.megatron.randperm import randperm


@dataclass(frozen=True)
class Rows:
    """Rows of some steps; arrays of one length, by step, microbatch, rank, position.

    Attributes:
        step: int64.
        sequence: int32, row of the step.
        sample: int64, number in the data set.
        rank: int32, -1 where not known.
        microbatch: int32, -1 where not known.
    """

    step: NDArray[np.int64]
    sequence: NDArray[np.int32]
    sample: NDArray[np.int64]
    rank: NDArray[np.int32]
    microbatch: NDArray[np.int32]


class Sampler(Protocol):
    """Rows of the steps of one launch."""

    def rows(self, first: int, positions: NDArray[np.int64]) -> Rows:
        """Rows of consecutive steps.

        Args:
            first: number of the first one.
            positions: int64 [steps + 1], the sampler's own counter before each step and after the last.
        """
        ...


def _layout(first: int, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    sizes = np.diff(positions)
    step = np.repeat(np.arange(first, first + len(sizes)), sizes)
    sequence = np.arange(int(sizes.sum())) - np.repeat(positions[:-1] - positions[0], sizes)
    return step, sequence


def _ranks(sequence: NDArray[np.int64], b: int | None, dp: int | None, *, known: bool = True) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    if not (b and dp and known):
        none = np.full(len(sequence), -1, np.int32)
        return none, none
    return (sequence // b % dp).astype(np.int32), (sequence // (b * dp)).astype(np.int32)


@dataclass(frozen=True)
class Single:
    """Samples in order; no wrap-around. Ranks and micro batches only say who reads which.

    Attributes:
        b: micro batch, None where not known.
        dp: data-parallel size, None where not known.
        assigned: False where rows are balanced over ranks after reading (hybrid context parallel).
    """

    b: int | None
    dp: int | None
    assigned: bool = True

    def rows(self, first: int, positions: NDArray[np.int64]) -> Rows:
        """Rows of consecutive steps."""
        step, sequence = _layout(first, positions)
        rank, microbatch = _ranks(sequence, self.b, self.dp, known=self.assigned)
        return Rows(step, sequence.astype(np.int32), np.arange(positions[0], positions[-1]), rank, microbatch)


class Cyclic:
    """Samples by a permutation per pass, seeded with the number of the pass alone.

    Every rank counts for itself and enters the next pass with its own count: without sharding some ranks may get one
    batch more out of a pass and stay ahead. So passes are laid out rank by rank.

    Args:
        total: samples in the data set.
        start: consumed samples at the launch's start.
        b: micro batch.
        dp: data-parallel size.
        sharding: each rank shuffles its own stretch of the data; else all ranks deal one shuffled deck.
    """

    def __init__(self, total: int, start: int, *, b: int, dp: int, sharding: bool) -> None:
        self.total, self.start, self.b, self.dp, self.sharding = total, start, b, dp, sharding
        self.q = b * dp
        self.active = total - total % self.q
        if not self.active:
            raise NotReplayable(
                f"the data set has {total} samples, fewer than the {self.q} that all ranks read at once: the trainer never returns from this",
                hint="check the data prefix, micro_batch_size and data_parallel_size",
            )
        self._passes: list[tuple[list[int], list[int]]] = [([0], [start]) for _ in range(dp)]  # first batch of each pass, count at its start
        self._decks: dict[int, NDArray[np.int32]] = {}

    def _deck(self, epoch: int) -> NDArray[np.int32]:
        if epoch not in self._decks:
            while len(self._decks) > 1:  # ranks of one step lie in two passes at most
                self._decks.pop(next(iter(self._decks)))
            self._decks[epoch] = randperm(self.total // self.q * self.b if self.sharding else self.total // self.b * self.b, epoch)
        return self._decks[epoch]

    def _batches(self, rank: int, consumed: int) -> int:
        """Micro batches that the pass entered with this count gives a rank."""
        position = consumed % self.active
        if position % self.q:
            raise RunError(
                f"the cyclic loader would start at {consumed} consumed samples, which is no multiple of {self.q} "
                "(micro batch x ranks) within a pass: the trainer refuses it",
                hint="check consumed, micro_batch_size and data_parallel_size of the launch",
            )
        if self.sharding:
            return (self.total // self.q * self.b - position // self.dp) // self.b
        return len(range(position + rank, self.total // self.b * self.b, self.dp)) // self.b

    def _pass_of(self, rank: int, batch: int) -> tuple[int, int]:
        """Count with which the pass of a rank's n-th micro batch was entered, and the number of the batch within."""
        opens, counts = self._passes[rank]
        while batch >= opens[-1] + (given := self._batches(rank, counts[-1])):
            if not given:
                raise NotReplayable(f"rank {rank} gets no batch out of a pass over {self.total} samples: the trainer never returns from this")
            opens.append(opens[-1] + given)
            counts.append(counts[-1] + given * self.q)
        at = bisect.bisect_right(opens, batch) - 1
        return counts[at], batch - opens[at]

    def _samples(self, rank: int, begin: int, stop: int) -> NDArray[np.int64]:
        """Samples of a rank's micro batches `begin` to `stop`, counted from the launch's start."""
        out: list[NDArray[np.int64]] = []
        while begin < stop:
            consumed, inner = self._pass_of(rank, begin)
            take = min(stop - begin, self._batches(rank, consumed) - inner)
            epoch, position = divmod(consumed, self.active)
            deck = self._deck(epoch)
            if self.sharding:
                at = position // self.dp + inner * self.b
                out.append(deck[at : at + take * self.b].astype(np.int64) + rank * (self.total // self.q * self.b))
            else:
                at = position + rank + inner * self.b * self.dp
                out.append(deck[at :: self.dp][: take * self.b].astype(np.int64))
            begin += take
        return np.concatenate(out) if out else np.empty(0, np.int64)

    def rows(self, first: int, positions: NDArray[np.int64]) -> Rows:
        """Rows of consecutive steps."""
        step, sequence = _layout(first, positions)
        begin, stop = (int(positions[0]) - self.start) // self.q, (int(positions[-1]) - self.start) // self.q
        grid = np.empty((stop - begin, self.dp, self.b), np.int64)
        for rank in range(self.dp):
            grid[:, rank, :] = self._samples(rank, begin, stop).reshape(stop - begin, self.b)
        rank_of, microbatch = _ranks(sequence, self.b, self.dp)
        return Rows(step, sequence.astype(np.int32), grid.reshape(-1), rank_of, microbatch)
