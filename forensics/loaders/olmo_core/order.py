"""Global order of instances and the walk through it, as OLMo-core 3.0.0 does both.

Reproduces `NumpyFSLDataLoader._build_global_indices` and `build_global_indices` (data/data_loader.py,
data/composable/utils.py), the counters of `TextDataLoaderBase`, `BatchSizeSchedulerCallback`
(train/callbacks/batch_size_scheduler.py) and the epoch loop of `Trainer._fit_epoch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forensics.errors import RunError

Ids = NDArray[np.int64]


def permutation(seed: int | None, n: int) -> NDArray[np.uint32]:
    """0..n-1 shuffled as the library's own generator does; in order without a seed."""
    order: NDArray[np.uint32] = np.arange(n, dtype=np.uint32)
    if seed is not None:
        np.random.Generator(np.random.PCG64(seed)).shuffle(order)
    return order


def chunked_order(n: int, chunk: int, seed: int | None) -> NDArray[np.uint32]:
    """Instances of a data set in shuffled order, `chunk` consecutive ones kept together [n]."""
    order = permutation(seed, n // chunk)
    if chunk == 1:
        return order
    return np.asarray((order[:, None] * np.uint32(chunk) + np.arange(chunk, dtype=np.uint32)).reshape(-1), np.uint32)


@dataclass(frozen=True)
class Change:
    """From when on a batch size holds: `unit` is steps, tokens or epochs."""

    batch_size: int
    value: int
    unit: str

    def due(self, step: int, tokens: int, epoch: int) -> bool:
        """Whether it has come."""
        return {"steps": step >= self.value, "tokens": tokens >= self.value, "epochs": epoch > self.value}[self.unit]


@dataclass(frozen=True)
class Counters:
    """Where trainer and loader stand after a step; epochs count from 1, batches and tokens from the epoch's start."""

    step: int = 0
    epoch: int = 1
    batches: int = 0
    tokens: int = 0
    total_tokens: int = 0
    batch_size: int = 0


class Walk:
    """Which batch of which epoch every step of a launch reads.

    Args:
        start: counters at the start; `batch_size` is the configured one.
        batches: number of batches of an epoch at a batch size.
        by_tokens: whether a resumed loader goes by its tokens (fixed lengths) or by its batches (variable lengths).
        schedule: changes of the batch size, the first one from the beginning; empty without.
    """

    def __init__(self, start: Counters, batches: Callable[[int, int], int], by_tokens: bool, schedule: Sequence[Change] = ()) -> None:
        self._batches, self._schedule = batches, tuple(schedule)
        size = start.batch_size
        if schedule:
            # Attached before a checkpoint is loaded: at that time step, tokens and epoch are those of a new run.
            size = self._rescaled(Counters(batch_size=size)).batch_size
        here = replace(start, batch_size=size, batches=start.tokens // size if by_tokens else start.batches)
        self._runs: list[Counters] = []
        self._ends: list[int] = []
        self._next = self._rescaled(here) if schedule and start.step else here

    def _rescaled(self, now: Counters) -> Counters:
        """The counters with the batch size that is due, where the number of batches allows it."""
        for change in reversed(self._schedule):
            if not change.due(now.step, now.total_tokens, now.epoch):
                continue
            ratio, rest = divmod(max(change.batch_size, now.batch_size), min(change.batch_size, now.batch_size))
            if rest:
                raise RunError(
                    f"the batch size cannot change from {now.batch_size} to {change.batch_size} tokens: neither divides the other",
                    hint="OLMo-core refuses this too",
                )
            if change.batch_size > now.batch_size:
                return replace(now, batches=now.batches // ratio, batch_size=change.batch_size) if now.batches % ratio == 0 else now
            return replace(now, batches=now.batches * ratio, batch_size=change.batch_size)
        return now

    def _extend(self, step: int) -> None:
        """Lay out runs of steps of one epoch and batch size until `step` lies in one."""
        empty = 0
        while not self._ends or self._ends[-1] < step:
            now = self._rescaled(self._next) if self._schedule else self._next
            left = self._batches(now.epoch, now.batch_size) - now.batches
            if left <= 0:
                empty += 1
                if empty > 64:
                    raise RunError(f"an epoch of this run holds no whole batch of {now.batch_size} tokens")
                self._next = replace(now, epoch=now.epoch + 1, batches=0, tokens=0)
                continue
            empty = 0
            steps = 1 if self._changing(now) else left
            self._runs.append(now)
            self._ends.append(now.step + steps)
            self._next = self._advanced(now, steps)

    def _changing(self, now: Counters) -> bool:
        """Whether another batch size can still come."""
        return bool(self._schedule) and now.batch_size != self._schedule[-1].batch_size

    @staticmethod
    def _advanced(now: Counters, steps: int) -> Counters:
        grown = steps * now.batch_size
        return replace(now, step=now.step + steps, batches=now.batches + steps, tokens=now.tokens + grown, total_tokens=now.total_tokens + grown)

    def _run(self, step: int) -> Counters:
        self._extend(step)
        return self._runs[int(np.searchsorted(self._ends, step))]

    def place(self, step: int) -> tuple[int, int, int, int]:
        """Epoch, batch and batch size that a step reads, and the last step for which all but the batch stay."""
        run = self._run(step)
        end = self._ends[int(np.searchsorted(self._ends, step))]
        return run.epoch, run.batches + step - run.step - 1, run.batch_size, end

    def after(self, step: int) -> Counters:
        """Counters after a step of this launch."""
        run = self._run(step)
        return self._advanced(run, step - run.step)
