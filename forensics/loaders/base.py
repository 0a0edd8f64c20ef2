"""What a loader is: it knows, for one trainer, which part of which document every step read.

A loader takes a `RunSpec` and answers in tables. It registers itself under the name that `trainer:` gives in a run
description; `LOADERS` finds it. What several loaders share lies here: which launch ran which step.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.errors import RunError, UsageError
from forensics.registry import Registry
from forensics.run import HOMES, RunSpec
from forensics.schemas import Blends, Consumed, Corpora, Launches
from forensics.steps import StepRange

if TYPE_CHECKING:
    from forensics.stores.base import TokenStore

BLOCK_ROWS = 1 << 16  # sequences per yielded table: some 10 MB of rows at five segments each


@dataclass(frozen=True)
class StepFacts:
    """What is known of each step besides its rows; arrays of one length, in order of launch and step.

    Attributes:
        launch: int16.
        step: int64, as logged.
        sequences: int64, rows of its global batch.
        consumed_after: int64, the trainer's counter after it; -1 where the trainer keeps none.
        trained: bool; False where the step was read or counted but dropped.
    """

    launch: NDArray[np.int16]
    step: NDArray[np.int64]
    sequences: NDArray[np.int64]
    consumed_after: NDArray[np.int64]
    trained: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.step)

    @classmethod
    def concat(cls, parts: Sequence[StepFacts]) -> StepFacts:
        """Several, one after the other."""
        if not parts:
            none = np.empty(0, np.int64)
            return cls(none.astype(np.int16), none, none, none, none.astype(np.bool_))
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("launch", "step", "sequences", "consumed_after", "trained")))


class Loader(Protocol):
    """One trainer's data order."""

    name: str

    def launches(self, run: RunSpec) -> Launches:
        """The run's history."""
        ...

    def corpora(self, run: RunSpec) -> Corpora:
        """The run's data files, numbered."""
        ...

    def blends(self, run: RunSpec) -> Blends:
        """What each launch mixed; empty where the trainer knows no such thing."""
        ...

    def consumed(self, run: RunSpec, steps: StepRange, launch: int | None = None) -> Iterator[Consumed]:
        """What the steps read, one table per block of steps.

        Args:
            run: the description.
            steps: as logged.
            launch: which launch, where a step was run twice; the last one that ran it by default.

        Raises:
            NotReplayable: the order cannot be recomputed.
            RunError: steps that no launch ran or could run; files that contradict each other.
        """
        ...

    def trained(self, run: RunSpec, steps: StepRange, launch: int | None = None) -> StepFacts:
        """Whether each step was trained on, and the counter after it."""
        ...

    def locate(self, run: RunSpec, doc_keys: NDArray[np.int64]) -> Iterator[Consumed]:
        """Every segment of these documents in the steps of all launches, those the last one would still run included."""
        ...

    def store(self, run: RunSpec) -> TokenStore:
        """The run's data files, opened."""
        ...


OPEN_END = 1 << 31  # one past the last step of a run of unknown length; none is longer
LOADERS: Registry[Loader] = Registry("loader", "forensics.loaders", HOMES)


class _Deferred:
    """A loader whose module is imported when it is first used: kernels are compiled on import."""

    def __init__(self, name: str, module: str, attribute: str) -> None:
        self.name = name
        self._where = module, attribute
        self._loader: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._loader is None:
            module, attribute = self._where
            self._loader = getattr(importlib.import_module(module), attribute)()
        return getattr(self._loader, name)


def deferred(name: str, module: str, attribute: str) -> Loader:
    """A loader to register without importing it yet.

    Args:
        name: as `trainer:` gives it.
        module: where its class is.
        attribute: the class, called without arguments.
    """
    return cast(Loader, _Deferred(name, module, attribute))


def loader_of(run: RunSpec) -> Loader:
    """The loader that the run names."""
    return LOADERS.get(run.trainer)


def open_store(run: RunSpec) -> TokenStore:
    """The run's data files, opened by its loader."""
    return loader_of(run).store(run)


@dataclass(frozen=True)
class Span:
    """Steps `start` to `stop` (half-open) that one launch ran, and the `limit` up to which it may be asked.

    A launch whose last step nobody stated is taken to end where the next one begins, yet may be asked for all that its
    arguments allow; so may the last launch, whose further steps are still to come.
    """

    launch: int
    start: int
    stop: int
    limit: int


def pieces(spans: Sequence[Span], steps: StepRange, launch: int | None = None) -> list[tuple[int, StepRange]]:
    """Which launch to read each step from, as consecutive (launch, steps).

    A step that was run twice belongs to the later launch, since its result is the one that was kept.

    Args:
        spans: every launch's steps, in order of time.
        steps: asked for.
        launch: only this launch.

    Raises:
        UsageError: the run has no such launch.
        RunError: a step that no launch ran or could run.
    """
    if launch is not None:
        if not 0 <= launch < len(spans):
            raise UsageError(f"the run has {len(spans)} launches (0 to {len(spans) - 1}), not a launch {launch}")
        one = spans[launch]
        if steps.start < one.start or steps.stop > one.limit:
            raise RunError(f"launch {launch} ran steps {one.start} to {one.limit - 1}, steps {steps.start} to {steps.last} are asked for", hint=_known(spans))
        return [(launch, steps)]
    reach = [s.limit if i == len(spans) - 1 else s.stop for i, s in enumerate(spans)]
    out: list[tuple[int, StepRange]] = []
    at = steps.start
    while at < steps.stop:
        owners = [i for i, s in enumerate(spans) if s.start <= at < reach[i]]
        if not owners:
            raise RunError(f"no launch ran step {at}", hint=_known(spans))
        own = owners[-1]
        later = [s.start for i, s in enumerate(spans) if i > own and at < s.start < reach[i]]
        stop = min([steps.stop, reach[own], *later])
        out.append((own, StepRange(at, stop)))
        at = stop
    return out


def path_of(launches: Launches, steps: StepRange, launch: int) -> list[tuple[int, StepRange]]:
    """The history that one launch belongs to: which launch ran each step before it, and went on after it.

    Steps before the launch's start are those of the last earlier launch that ran them, since it started from their
    result; steps after its end are those of a later launch that went on exactly there.

    Args:
        launches: the run's history.
        steps: wanted; what no launch of this history ran or would run is left out at both ends.
        launch: the launch that all is seen from.

    Returns:
        Consecutive (launch, steps).
    """
    bounds = zip(launches["first_step"].to_numpy().tolist(), launches["stop_step"].to_numpy().tolist())
    ran = [StepRange(a, b) if b > a else None for a, b in bounds]
    own = ran[launch]
    if own is None:
        return []
    out = [(launch, own)]
    at, n = own.start, launch
    while at > steps.start and (earlier := [i for i, r in enumerate(ran[:n]) if r is not None and r.start < at <= r.stop]):
        n = earlier[-1]
        start = cast(StepRange, ran[n]).start
        out.insert(0, (n, StepRange(start, at)))
        at = start
    at, n = own.stop, launch
    while at < steps.stop and (later := [i for i, r in enumerate(ran) if i > n and r is not None and r.start == at]):
        n = later[-1]
        out.append((n, cast(StepRange, ran[n])))
        at = out[-1][1].stop
    return [(n, part) for n, r in out if (part := r.overlap(steps)) is not None]


def ran_twice(spans: Sequence[Span], steps: StepRange) -> list[tuple[StepRange, tuple[int, ...]]]:
    """Steps of the range that more than one launch ran, with those launches."""
    edges = sorted({steps.start, steps.stop, *(e for s in spans for e in (s.start, s.stop) if steps.start < e < steps.stop)})
    out = []
    for start, stop in zip(edges, edges[1:]):
        who = tuple(s.launch for s in spans if s.start <= start and stop <= s.stop)
        if len(who) > 1:
            out.append((StepRange(start, stop), who))
    return out


def _known(spans: Sequence[Span]) -> str:
    known = ", ".join(f"launch {s.launch}: {s.start} to {(s.limit if i == len(spans) - 1 else s.stop) - 1}" for i, s in enumerate(spans))
    options = "args.train_iters (Megatron, NeoX), args.max_steps (Hugging Face), args.trainer.max_duration (OLMo-core)"
    return f"steps of the run: {known}; if it was started for more, say so with --set and the trainer's own option, e.g. {options}"


def blocks_of(steps: StepRange, rows_per_step: int) -> Iterator[StepRange]:
    """The range in blocks that keep a table in bounds."""
    yield from steps.blocks(max(1, BLOCK_ROWS // max(1, rows_per_step)))


def select(table: pa.Table, keep: NDArray[np.bool_]) -> pa.Table:
    """The rows where `keep` holds."""
    return table.filter(pa.array(keep))
