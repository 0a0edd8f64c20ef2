"""Half-open ranges of optimizer steps, numbered as the trainer's own log numbers them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from forensics.errors import UsageError

MAX_STEP = 2**62


@dataclass(frozen=True, order=True)
class StepRange:
    """Steps `start` up to but without `stop`."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.stop > MAX_STEP:
            raise UsageError(f"steps {self.start}:{self.stop} lie outside what a run can have")
        if self.stop <= self.start:
            raise UsageError(f"the step range {self.start}:{self.stop} is empty", hint="ranges are half-open: 41200:41500 is steps 41200 to 41499")

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and self.start <= step < self.stop

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"

    @property
    def last(self) -> int:
        """The last step of the range."""
        return self.stop - 1

    def overlap(self, other: StepRange) -> StepRange | None:
        """The steps that lie in both, or None."""
        start, stop = max(self.start, other.start), min(self.stop, other.stop)
        return StepRange(start, stop) if start < stop else None

    def blocks(self, size: int) -> Iterator[StepRange]:
        """Consecutive pieces of at most `size` steps."""
        for start in range(self.start, self.stop, size):
            yield StepRange(start, min(start + size, self.stop))


def parse_steps(text: str) -> StepRange:
    """A range `A:B` (half-open), or a single step `A`.

    Raises:
        UsageError: for anything else, with the form expected.
    """
    found = re.fullmatch(r"\s*([\d_]{1,19})\s*(?::\s*([\d_]{1,19})\s*)?", text)
    if not found:
        raise UsageError(f"`{text}` is no step range", hint="write START:STOP, half-open: 41200:41500 is 300 steps")
    start = int(found[1])
    return StepRange(start, int(found[2]) if found[2] else start + 1)


def ranges_of(steps: Iterable[int]) -> list[StepRange]:
    """The fewest half-open ranges that hold exactly these steps, ascending."""
    out: list[StepRange] = []
    for step in sorted(set(steps)):
        if out and out[-1].stop == step:
            out[-1] = StepRange(out[-1].start, step + 1)
        else:
            out.append(StepRange(step, step + 1))
    return out
