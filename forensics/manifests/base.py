"""Skip manifests: the trainer's own words for leaving steps out, with what they cost and how long they hold.

Dataset samples and documents are the truth; a list of steps is right only for one order. An exporter turns logged
steps into the syntax of one trainer, says what the trainer will do with it, and reads its own text back the trainer's
way, so that `round_trip` can apply the text to the reconstructed order and show that the guilty are gone and who goes
with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from forensics.errors import UsageError
from forensics.registry import Registry
from forensics.run import Launch, RunSpec
from forensics.schemas import Consumed
from forensics.steps import ranges_of


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
        target: version (or date of the checkout) of the trainer that will read the list, where the run does not say or another one is meant.
    """

    run: RunSpec
    launch: Launch
    steps: tuple[int, ...]
    documents: tuple[int, ...] = ()
    tokens: int = 0
    ordinary_tokens: int = 0
    checkpoints: tuple[int, ...] = ()
    target: str | None = None

    @property
    def version(self) -> str | None:
        """The version that will read the list, as far as known."""
        return self.target or self.launch.version or self.run.version


@dataclass(frozen=True)
class Terms:
    """What a trainer does with its skip list, one phrase each.

    Attributes:
        numbering: what the numbers count, and from where.
        closure: whether both ends of a range are dropped.
        counters: which counters advance over what is dropped.
        schedule: what happens to the learning rate.
        later: whether later data move to other steps.
        restarts: what every later start needs.
        unchanged: what must stay as it is for the list to mean the same.
        unverified: what was not tried or read, empty where all was.
    """

    numbering: str
    closure: str
    counters: str
    schedule: str
    later: str
    restarts: str
    unchanged: tuple[str, ...]
    unverified: str = ""

    def sentences(self) -> tuple[str, ...]:
        """All of it, for people."""
        return (
            f"numbering: {self.numbering}; {self.closure}",
            f"counters: {self.counters}",
            f"learning rate: {self.schedule}",
            f"later data: {self.later}",
            f"restarts: {self.restarts}",
            "it holds only while these stay as they are: " + "; ".join(self.unchanged) + "; else locate the documents again (`forensics manifest`)",
            *([f"unverified: {self.unverified}"] if self.unverified else []),
        )


@dataclass(frozen=True)
class Manifest:
    """A skip list for one trainer.

    Attributes:
        trainer, version: whose syntax it is.
        files: name -> text, to be written.
        flags: what to add to the command line or configuration; empty where there is nothing to add.
        says: sentences: what is dropped, what it costs, what must stay unchanged, what to verify.
        dropped: logged steps that are dropped when the flags are used, ascending.
        terms: what the trainer does with it; None where it does nothing by itself.
    """

    trainer: str
    version: str | None
    files: Mapping[str, str]
    flags: str
    says: tuple[str, ...]
    dropped: tuple[int, ...] = ()
    terms: Terms | None = None


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
FAMILIES = (
    ("megatron", "megatron-bridge", "megatron-deepspeed", "nemo"), ("neox",), ("olmo",), ("olmo-core",), ("streaming",), ("pytorch", "hf", "datasets"),
)  # fmt: skip
"""Trainers and exporters that share a data order; names that stand in none (plain, recorded, a stranger's) go with all."""


def exporter_for(trainer: str, wanted: str | None = None) -> str:
    """Whose terms a run's skip list is written in: those asked for, else the trainer's own, else the plain list.

    Raises:
        UsageError: terms of a trainer that orders data otherwise: its numbers would drop other data.
    """
    if wanted is None:
        return trainer if trainer in EXPORTERS.names() else "plain"
    own = next((f for f in FAMILIES if trainer in f), None)
    if own is not None and wanted not in own and any(wanted in f for f in FAMILIES):
        said = f"the run's order is that of `{trainer}`: a list in the terms of `{wanted}` would drop other data"
        raise UsageError(said, hint=f"--for {own[0]}, or --for plain, which names steps and documents")
    return wanted


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


@dataclass(frozen=True)
class Start:
    """One start of a trainer that passes over data only where it starts.

    Attributes:
        after: step of the checkpoint that it loads, as the changed run numbers it.
        first: first step, in the numbers of the run as it was, whose data are passed over.
        count: steps whose data are passed over here.
        before: steps passed over at earlier starts.
    """

    after: int
    first: int
    count: int
    before: int

    @property
    def last(self) -> int:
        """Last step, in the numbers of the run as it was, whose data are passed over."""
        return self.first + self.count - 1


def starts_of(steps: Iterable[int]) -> list[Start]:
    """The starts that a trainer needs whose step counter does not advance over what it passes over."""
    out: list[Start] = []
    before = 0
    for part in ranges_of(steps):
        out.append(Start(part.start - 1 - before, part.start, len(part), before))
        before += len(part)
    return out


def start_words(starts: Sequence[Start], checkpoints: Sequence[int]) -> list[str]:
    """Which checkpoint each start needs, and how to come by one that is not there."""
    out = []
    for i, start in enumerate(starts):
        which = "the checkpoint" if len(starts) == 1 else f"start {i + 1}: the checkpoint"
        have = i == 0 and start.after in checkpoints
        earlier = rollback_step(checkpoints, start.first) if i == 0 else None
        made = "" if have else f"; none is known: run to it from {'step ' + str(earlier) if earlier is not None else 'the start before'} and save there"
        out.append(f"{which} of exactly step {start.after} is needed, since data are passed over only where the trainer starts{made}")
    return out


def cost(request: Request) -> str:
    """Tokens that are lost, in words."""
    return f"{request.tokens:,} tokens are lost, {request.ordinary_tokens:,} of them in documents that are not suspected"


def nothing(request: Request, trainer: str) -> tuple[str, ...]:
    """What to say where no whole step is to be dropped."""
    named = f"{len(request.documents):,} documents are named; " if request.documents else ""
    return (
        f"no step is to be dropped: {named}{trainer} leaves out whole steps only, and these hold mostly other documents",
        "without losing steps: swap their samples for spare ones in a copy of the index files (`forensics apply`), or build a corpus without them",
    )


def rollback_step(checkpoints: Sequence[int], first_guilty: int) -> int | None:
    """The latest checkpoint that has not trained the first guilty step: step k holds the state after step k."""
    good = [k for k in checkpoints if k <= first_guilty - 1]
    return max(good) if good else None


def start_from(request: Request) -> str:
    """Where to start so that the first step to drop is not trained yet."""
    first = request.steps[0]
    back = rollback_step(request.checkpoints, first)
    return (
        f"start from the checkpoint of step {back}"
        if back is not None
        else f"start from the latest checkpoint at step {first - 1} or before; none is known here"
    )


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


def version_of(text: str | None) -> tuple[int, int] | None:
    """`0.16.1` -> (0, 16); None where unknown or not of this form."""
    if text is None:
        return None
    parts = str(text).removeprefix("core_").removeprefix("v").split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        return None
