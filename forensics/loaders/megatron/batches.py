"""How many sequences each step reads: constant, ramp-up, step schedule, and rounding down to the ranks.

Follows `megatron/core/num_microbatches_calculator.py` and `update_train_iters` of `megatron/training/training.py`. A
step's batch depends on the samples consumed before it alone, so a schedule is a function of that number; the ramp
divides in float64, which decides at its edges.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forensics.errors import ConfigError, RunError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
MOST_STEPS = 10**8


@dataclass(frozen=True)
class BatchSchedule:
    """Batch size as a function of the samples consumed before a step.

    Attributes:
        batch: of a constant schedule, and after a ramp.
        ramp: start, increment, samples; None without.
        steps: (samples consumed, batch) of a step schedule, ascending, the first at 0; empty without.
        unit: the running batch is rounded down to a multiple of this; 1 leaves it.
    """

    batch: int
    ramp: tuple[int, int, int] | None = None
    steps: tuple[tuple[int, int], ...] = ()
    unit: int = 1

    def __post_init__(self) -> None:
        if self.ramp:
            start, increment, _ = self.ramp
            if start > self.batch or (self.batch - start) % increment or start == self.batch:
                raise RunError(f"a ramp from {start} by {increment} does not reach the batch of {self.batch}; the trainer refuses it")

    def full(self, consumed: int) -> int:
        """Batch size before rounding down."""
        if self.steps:
            return [batch for threshold, batch in self.steps if threshold <= consumed][-1]
        if self.ramp is None or consumed > self.ramp[2]:
            return self.batch
        start, increment, samples = self.ramp
        return start + int(consumed / (samples / ((self.batch - start) // increment))) * increment

    def running(self, consumed: int) -> int:
        """Sequences that the step really reads."""
        return self.full(consumed) // self.unit * self.unit

    def _constant_until(self, consumed: int) -> int | None:
        """Consumed count below which the batch stays as it is now; None = for ever."""
        if self.steps:
            return next((threshold for threshold, _ in self.steps if threshold > consumed), None)
        return None if self.ramp is None or consumed > self.ramp[2] else consumed + 1

    def positions(self, consumed: int, n: int) -> NDArray[np.int64]:
        """Samples consumed before each of `n` steps and after the last: int64 [n + 1]."""
        pieces, count = [np.array([consumed], dtype=np.int64)], 0
        while count < n:
            batch = self.running(consumed)
            if batch <= 0:
                raise RunError(f"at {consumed} consumed samples a step would hold no full micro batch on every rank")
            limit = self._constant_until(consumed)
            take = n - count if limit is None else min(n - count, -(-(limit - consumed) // batch))
            pieces.append(consumed + batch * np.arange(1, take + 1, dtype=np.int64))
            consumed += batch * take
            count += take
        return np.concatenate(pieces)

    def count(self, samples: int) -> int:
        """Steps that a budget of samples gives, as the trainer counts them at its start.

        The ramp is counted with full batches even where they are rounded down; a step schedule overshoots its budget.
        """
        consumed = count = 0
        if self.steps:
            while consumed < samples:
                batch, limit = self.full(consumed), self._constant_until(consumed)
                take = -(-(min(samples, limit if limit is not None else samples) - consumed) // batch)
                consumed, count = consumed + take * batch, count + take
            return count
        if self.ramp is None:
            return samples // self.batch
        while consumed <= self.ramp[2] and consumed <= samples:
            consumed += self.full(consumed)
            count += 1
        return count + max(0, samples - consumed) // self.batch


def parse_schedule(text: str, length: int) -> tuple[tuple[int, int], ...]:
    """A step schedule `"0:768 250B:1536"` as (samples consumed, batch), ascending.

    Thresholds are tokens, cut to whole samples; both numbers may carry K, M, B or T.

    Args:
        text: as typed; entries separated by blanks or commas.
        length: sequence length.

    Raises:
        ConfigError: for what the trainer refuses.
    """
    out = []
    for entry in re.split(r"[\s,]+", text.strip()):
        threshold, colon, batch = entry.partition(":")
        if not colon:
            raise ConfigError(f"`{entry}` in `step_batch_size_schedule` is no `threshold:batch`")
        out.append((_amount(threshold) // length, _amount(batch)))
    out.sort()
    if out[0][0] != 0 or any(b[0] <= a[0] for a, b in zip(out, out[1:])) or min(batch for _, batch in out) <= 0:
        raise ConfigError(
            f"`step_batch_size_schedule` {text!r} is refused by the trainer too",
            hint="the first threshold is 0, thresholds differ by a sample at least, batches are above 0",
        )
    return tuple(out)


def _amount(text: str) -> int:
    found = re.fullmatch(r"([0-9.eE+\-]+)([KMBT]?)", text.strip(), re.IGNORECASE)
    try:
        if found:
            return int(float(found[1]) * _UNITS[found[2].upper()])
    except (ValueError, OverflowError):
        pass
    raise ConfigError(f"`{text}` in `step_batch_size_schedule` is no number with K, M, B or T")
