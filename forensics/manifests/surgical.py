"""Leaving sequences out without losing a step: guilty ones swapped with ones the run never reaches, in a copy of its index files.

Trainers that shuffle through an index file trust the file they find. In a copy of it the entries of guilty sequences
that are still to come are exchanged with entries that no step reads (the surplus, the tail of the last epoch): no step,
no learning-rate step and no clean sequence is lost, and nothing that was read already moves. What differs between
trainers is here a `Surgeon`: which entries are read when, what is behind them, which files are written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forensics.errors import ForensicsError, UsageError
from forensics.files import make_folder, writing
from forensics.registry import Registry
from forensics.run import RunSpec
from forensics.steps import StepRange

Ids = NDArray[np.int64]
Unclean = Callable[[Ids], NDArray[np.bool_]]
LOOK = 256  # spare entries looked at in one go


@dataclass(frozen=True)
class Index:
    """One index file, as a sequence of entries of which some are read.

    Attributes:
        file: its name in the patched folder.
        entries: its content [n].
        guilty: places that steps still to come read and that hold a guilty document, ascending.
        spare: places that no step reads, ascending.
        behind: places [m] -> (which of them, doc_key) of every document behind them.
        label: which data it orders, in words.
    """

    file: str
    entries: NDArray[Any]
    guilty: Ids
    spare: Ids
    behind: Callable[[Ids], tuple[Ids, Ids]]
    label: str


@dataclass(frozen=True)
class Swap:
    """What is exchanged in one index: `entries[out]` with `entries[spare]`; `looked`: spare places that had to be looked at."""

    index: Index
    out: Ids
    spare: Ids
    looked: int

    def patched(self) -> NDArray[Any]:
        """The entries after it."""
        new = np.array(self.index.entries)
        new[self.out], new[self.spare] = self.index.entries[self.spare], self.index.entries[self.out]
        return new


@dataclass(frozen=True)
class Target:
    """What shall be left out of which steps.

    Attributes:
        run, launch: whose order; steps: those still to come, from the first after the rollback on.
        documents: doc_keys, ascending.
        descriptions: folder with the trainer's own description files, where its index files were not kept; None without.
    """

    run: RunSpec
    launch: int
    steps: StepRange
    documents: Ids
    descriptions: Path | None = None


@dataclass(frozen=True)
class Written:
    """A patched folder.

    Attributes:
        folder: where.
        files: written anew; `linked`: taken over as they are.
        use: what to change in the trainer's options.
        warnings: what was not tried.
    """

    folder: Path
    files: tuple[str, ...]
    linked: int
    use: str
    warnings: tuple[str, ...] = field(default=())


class Surgeon(Protocol):
    """Index files of one trainer."""

    name: str

    def steps(self, run: RunSpec, launch: int, after: int) -> StepRange:
        """Steps after `after` that the launch would still run."""
        ...

    def indices(self, target: Target) -> list[Index]:
        """Index files that hold guilty entries still to come.

        Raises:
            ForensicsError: the trainer's files cannot be patched, and why.
        """
        ...

    def write(self, target: Target, swaps: Sequence[Swap], folder: Path) -> Written:
        """The patched copy."""
        ...

    def rows(self, target: Target, steps: StepRange, folder: Path | None, swaps: Sequence[Swap]) -> Ids:
        """What steps read: (step, sequence, doc_key, doc_start, doc_stop) [m, 5], through the patched folder where one is given."""
        ...


SURGEONS: Registry[Surgeon] = Registry("surgeon", "forensics.manifests")


def choose(indices: Sequence[Index], guilty: Ids, unclean: Unclean) -> list[Swap]:
    """A clean spare entry for every guilty one, the first that serve.

    Args:
        indices: of the run.
        guilty: doc_keys, ascending.
        unclean: doc_keys -> those that may not come in: faulty, or near-duplicates of the guilty.

    Raises:
        ForensicsError: too few.
    """
    swaps, short = [], []
    for index in indices:
        found: list[Ids] = []
        have = looked = 0
        while have < len(index.guilty) and looked < len(index.spare):
            places = index.spare[looked : looked + LOOK]
            looked += len(places)
            which, keys = index.behind(places)
            bad = np.isin(keys, guilty)
            bad[~bad] = unclean(keys[~bad])
            dirty = np.zeros(len(places), np.bool_)
            dirty[which[bad]] = True
            found.append(places[~dirty])
            have += int((~dirty).sum())
        spare = np.concatenate(found)[: len(index.guilty)] if found else np.empty(0, np.int64)
        if len(spare) < len(index.guilty):
            short.append(f"{index.label}: {len(index.guilty)} guilty sequences to come, {len(index.spare)} never reached, {len(spare)} of them clean")
        else:
            swaps.append(Swap(index, index.guilty, spare, looked))
    if short:
        error = ForensicsError(
            "there are too few spare sequences for the guilty ones",
            hint="skip the steps (`forensics manifest`), name fewer documents, or let the run end earlier so that more is never reached",
        )
        for line in short:
            error.add_note(line)
        raise error
    return swaps


def check_folder(folder: Path, sources: Iterable[Path]) -> None:
    """Refuse to write where something lies already, or into the run's own files.

    Raises:
        UsageError: the folder is not empty, or is one of the run's.
    """
    own = folder.resolve()
    if any(own == s.resolve() or own in s.resolve().parents for s in sources):
        raise UsageError(f"{folder} holds the run's own index files, which are never changed", hint="give a new folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty", hint="give a new folder")
    make_folder(folder)


def link(source: Path, target: Path, *, symbolic: bool = False) -> None:
    """The same file under another name: a hard link where the file system allows, else a symbolic link or a copy."""
    make_folder(target.parent)
    try:
        os.link(source.resolve(), target)
    except OSError:
        if symbolic:
            target.symlink_to(source.resolve())
        else:
            shutil.copy2(source, target)


def save(path: Path, array: NDArray[Any]) -> None:
    """A whole .npy file; the file that a name was linked to stays as it is."""
    with writing(path) as part, part.open("wb") as out:
        np.save(out, array)


@dataclass(frozen=True)
class Proven:
    """What replaying through the patched files showed.

    Attributes:
        steps: that were compared; changed: (step, sequence) whose content differs, exactly the intended ones.
    """

    steps: int
    changed: tuple[tuple[int, int], ...]


def prove(surgeon: Surgeon, target: Target, written: Written, swaps: Sequence[Swap], extra: int = 64) -> Proven:
    """Replay before and after: the rows with guilty documents differ, no others, and no guilty document is left.

    Args:
        surgeon, target, written, swaps: as above.
        extra: further steps to compare, spread over the rest of the run.

    Raises:
        ForensicsError: anything else differs; the folder must not be used then.
    """
    spread = np.unique(np.linspace(target.steps.start, target.steps.last, min(extra, len(target.steps))).astype(np.int64))
    guilty_steps = _guilty_steps(surgeon, target)
    changed: list[tuple[int, int]] = []
    compared = 0
    for block in _blocks(np.union1d(spread, guilty_steps)):
        before, after = surgeon.rows(target, block, None, ()), surgeon.rows(target, block, written.folder, swaps)
        compared += len(block)
        if np.isin(after[:, 2], target.documents).any():
            raise ForensicsError(f"guilty documents are still read in steps {block} through {written.folder}")
        intended = _pairs(before[np.isin(before[:, 2], target.documents)])
        found = _differing(before, after)
        if found != intended:
            odd = sorted(found ^ intended)[:3]
            raise ForensicsError(f"through {written.folder} rows differ that should not, or the other way round: (step, sequence) {odd}")
        changed += sorted(intended)
    count = sum(len(s.out) for s in swaps)
    if len(changed) < count:
        raise ForensicsError(f"{count} entries were swapped, but {len(changed)} rows differ")
    return Proven(compared, tuple(changed))


def _guilty_steps(surgeon: Surgeon, target: Target) -> Ids:
    from forensics.loaders.base import loader_of

    found = [np.empty(0, np.int64)]
    for table in loader_of(target.run).locate(target.run, target.documents):
        mine = table["launch"].to_numpy() == target.launch
        found.append(np.asarray(table["step"].to_numpy()[mine], np.int64))
    steps = np.unique(np.concatenate(found))
    return np.asarray(steps[(steps >= target.steps.start) & (steps < target.steps.stop)], np.int64)


def _blocks(steps: Ids) -> Iterable[StepRange]:
    from forensics.steps import ranges_of

    for part in ranges_of(steps.tolist()):
        yield from part.blocks(64)


def _pairs(rows: Ids) -> set[tuple[int, int]]:
    return set(zip(rows[:, 0].tolist(), rows[:, 1].tolist()))


def _differing(a: Ids, b: Ids) -> set[tuple[int, int]]:
    """(step, sequence) whose segments are not the same in both."""
    one, two = ({tuple(r) for r in x.tolist()} for x in (a, b))
    return {(r[0], r[1]) for r in one ^ two}


def consumed_rows(table: Any) -> Ids:
    """(step, sequence, doc_key, doc_start, doc_stop) of a consumed table."""
    names = ("step", "sequence", "doc_key", "doc_start", "doc_stop")
    return np.stack([np.asarray(table[n].to_numpy(), np.int64) for n in names], axis=1)
