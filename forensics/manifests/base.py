"""Skip manifests: the trainer's own words for leaving steps out, with what they cost and how long they hold.

Dataset samples and documents are the truth; a list of steps is right only for one order. An exporter turns logged
steps into the syntax of one trainer, says what the trainer will do with it, and reads its own text back the trainer's
way, so that `round_trip` can apply the text to the reconstructed order and show that the guilty are gone and who goes
with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forensics.registry import Registry
from forensics.run import Launch, RunSpec
from forensics.schemas import Consumed
from forensics.steps import StepRange, ranges_of


@dataclass(frozen=True)
class Request:
    """What shall be left out.

    Attributes:
        run: the run, `launch`: the launch whose order the steps were found in.
        steps: logged step numbers to drop, ascending.
        documents: doc_keys of the guilty documents.
        tokens: label positions that the steps hold.
        ordinary_tokens: those of them that are not guilty.
        checkpoints: steps after which a checkpoint exists.
    """

    run: RunSpec
    launch: Launch
    steps: tuple[int, ...]
    documents: tuple[int, ...] = ()
    tokens: int = 0
    ordinary_tokens: int = 0
    checkpoints: tuple[int, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """A skip list for one trainer.

    Attributes:
        trainer, version: whose syntax it is.
        files: name -> text, to be written.
        flags: what to add to the command line or configuration; empty where there is nothing to add.
        says: sentences: what is dropped, what it costs, what must stay unchanged, what to verify.
        dropped: logged steps that are dropped when the flags are used, ascending.
    """

    trainer: str
    version: str | None
    files: Mapping[str, str]
    flags: str
    says: tuple[str, ...]
    dropped: tuple[int, ...] = ()


class Exporter(Protocol):
    """Writes a trainer's skip list and reads it back the trainer's way."""

    name: str

    def export(self, request: Request) -> Manifest:
        """The manifest; raises ForensicsError where this version of the trainer cannot skip."""
        ...

    def parse(self, manifest: Manifest, request: Request) -> list[int]:
        """Logged steps that the trainer would drop, read from the manifest's own text."""
        ...


EXPORTERS: Registry[Exporter] = Registry("exporter", "forensics.manifests")


@dataclass(frozen=True)
class RoundTrip:
    """What the exported text does to the reconstructed order.

    Attributes:
        dropped: steps that fall out; `guilty_tokens`: of guilty documents in them; `guilty_left`: outside them in the same range;
        clean_tokens: of other documents in them; `exact`: whether the steps dropped are those asked for.
    """

    dropped: tuple[int, ...]
    guilty_tokens: int
    guilty_left: int
    clean_tokens: int
    exact: bool = field(default=True)


def round_trip(manifest: Manifest, exporter: Exporter, request: Request, consumed: Consumed) -> RoundTrip:
    """Apply the exported text, read the trainer's way, to what the steps consume."""
    dropped = exporter.parse(manifest, request)
    step = consumed["step"].to_numpy()
    tokens = consumed["doc_stop"].to_numpy() - consumed["doc_start"].to_numpy()
    out = np.isin(step, np.asarray(dropped, np.int64))
    guilty = np.isin(consumed["doc_key"].to_numpy(), np.asarray(request.documents, np.int64))
    return RoundTrip(
        tuple(dropped), int(tokens[out & guilty].sum()), int(tokens[~out & guilty].sum()), int(tokens[out & ~guilty].sum()), tuple(dropped) == request.steps
    )


def rollback_step(checkpoints: Sequence[int], first_guilty: int) -> int | None:
    """The latest checkpoint that has not trained the first guilty step: step k holds the state after step k."""
    good = [k for k in checkpoints if k <= first_guilty - 1]
    return max(good) if good else None


def steps_in_words(steps: Sequence[int], most: int = 8) -> str:
    """`41200 to 41231 and 41240`, as logged, both ends included; of more than `most` ranges the count and the ends."""
    found = ranges_of(steps)
    if len(found) > most:
        return f"{found[0].start} to {found[-1].last} in {len(found)} pieces"
    parts = [f"{r.start}" if len(r) == 1 else f"{r.start} to {r.last}" for r in found]
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1] if parts else "none"


def spread(steps: Sequence[int]) -> float:
    """Share of the steps between the first and the last that are listed: near 1, dropping steps is giving up the stretch."""
    return len(steps) / (steps[-1] - steps[0] + 1) if steps else 0.0


def step_ranges(steps: NDArray[np.int64]) -> list[StepRange]:
    """Half-open ranges of an array of steps."""
    return ranges_of(int(s) for s in steps)


def version_of(text: str | None) -> tuple[int, int] | None:
    """`0.16.1` -> (0, 16); None where unknown or not of this form."""
    if text is None:
        return None
    parts = str(text).removeprefix("core_").removeprefix("v").split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        return None
