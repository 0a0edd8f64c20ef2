"""What an engine is: a thin launcher of tasks over shard files. The files are the contract, not the engine.

A task is a module-level function and one argument that pickles; it writes its results to files itself and returns something
small. So the same task runs in this process, in processes of this machine, and in whatever else can import the package and see the
files (`--task I/N` of a batch system, Ray tasks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

A = TypeVar("A")
B = TypeVar("B")


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes, from `configs/engines`.

    Attributes:
        workers: processes; 0 = one per usable core.
        shard_mb: file content per task.
        batch_mb: content in memory at a time, per worker.
        inline_mb: work below this is done in this process.
    """

    workers: int = 0
    shard_mb: int = 256
    batch_mb: int = 8
    inline_mb: int = 64


@dataclass(frozen=True)
class TaskError:
    """What a task that failed leaves in place of a result: its place in the list, and the error in words."""

    index: int
    error: str


class Engine(Protocol):
    """Runs a function over many arguments."""

    def map(self, function: Callable[[A], B], items: Sequence[A], on_done: Callable[[int, B | TaskError], None] | None = None) -> Iterator[B | TaskError]:
        """Results in the order of the items, whatever order they are made in.

        Args:
            function: module-level, so that other processes can import it.
            items: arguments that pickle.
            on_done: called with the place of each item as it is finished.
        """
        ...
