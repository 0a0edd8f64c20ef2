"""Surgery: guilty documents, the steps still to come, clean spares, a patched copy of the index files, and its proof.

case or list of documents -> guilty -> entries that hold them -> spares, screened -> swaps -> folder -> replay through it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from forensics.pipelines.locate import documents_of, read_words
from forensics.pipelines.passes import find_faults
from numpy.typing import NDArray

from forensics.case import open_case
from forensics.clustering.minhash import sign
from forensics.detectors.thresholds import read_thresholds
from forensics.errors import UsageError
from forensics.files import write_text
from forensics.loaders.base import loader_of
from forensics.manifests.surgical import SURGEONS, Proven, Swap, Target, Written, choose, prove
from forensics.run import RunSpec, open_run
from forensics.schemas import CLUSTERS, DOC_BITS, DOC_MASK, SKIPS
from forensics.stores.base import TokenStore

Ids = NDArray[np.int64]
NEAR = 0.5  # estimated Jaccard to a guilty document from which a spare is no stand-in for it
MOST_GUILTY = 4096  # guilty documents that spares are compared with
WIDTH = 128  # permutations of a signature
KINDS = ("exact", "near", "template")  # clusters that make a neighbour of a guilty document unfit


@dataclass(frozen=True)
class Wanted:
    """Whom to leave out, and what else must not come in.

    Attributes:
        run: of the case, or as given.
        guilty: doc_keys, ascending.
        avoid: doc_keys of their copies and near-copies, as far as a case knows them.
        after: the last step that is kept as it was; None where unknown.
        unknown: entries of a list that name no document.
    """

    run: RunSpec
    guilty: Ids
    avoid: Ids
    after: int | None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Applied:
    """What was done."""

    target: Target
    swaps: tuple[Swap, ...]
    written: Written
    proven: Proven


def from_case(folder: Path, settings: Sequence[str] = ()) -> Wanted:
    """The guilty documents of a case's verdict, its clusters and its rollback step.

    Raises:
        UsageError: the case names no guilty documents.
    """
    case = open_case(folder)
    described, before = case.described()
    run = open_run(described, [*before, *settings])
    keys = sorted({k for r in case.get(SKIPS).to_pylist() if r["kind"] == "documents" for k in range(r["start"], r["stop"])})
    if not keys:
        raise UsageError(f"{folder} names no guilty documents", hint="give your own list with --documents FILE --run RUN")
    guilty = np.array(keys, np.int64)
    avoid = np.empty(0, np.int64)
    if case.has(CLUSTERS.name):
        table = case.get(CLUSTERS)
        kind, cluster, doc = np.array(table["kind"].to_pylist(), dtype=object), table["cluster"].to_numpy(), table["doc_key"].to_numpy()
        parts = [doc[(kind == k) & np.isin(cluster, cluster[(kind == k) & np.isin(doc, guilty)])] for k in KINDS]
        avoid = np.setdiff1d(np.concatenate(parts), guilty).astype(np.int64)
    verdict = case.json("verdict.json") or {}
    return Wanted(run, guilty, avoid, (verdict.get("rollback") or {}).get("step"))


def from_list(path: Path, run: Path | None, settings: Sequence[str] = ()) -> Wanted:
    """Documents of the user's own list."""
    opened = open_run(run, settings)
    found = documents_of(opened, read_words(path))
    return Wanted(opened, found.doc_keys, np.empty(0, np.int64), None, found.unknown)


def surgeon_name(run: RunSpec) -> str:
    """Whose index files can be patched.

    Raises:
        UsageError: not those of this trainer.
    """
    if run.trainer not in SURGEONS.names():
        raise UsageError(
            f"the order of `{run.trainer}` does not come from index files that it reads back, so there is nothing to patch",
            hint=f"index files are known of: {', '.join(SURGEONS.names())}; elsewhere skip steps: `forensics manifest`",
        )
    return run.trainer


def apply(wanted: Wanted, folder: Path, after: int | None = None, launch: int | None = None, descriptions: Path | None = None) -> Applied:
    """Write a patched copy of the run's index files to `folder` and prove it by replaying through it.

    Args:
        wanted: guilty documents.
        folder: new; nothing of the run is changed.
        after: the step of the checkpoint that training goes on from; later steps are changed.
        launch: whose index files; the last one by default.
        descriptions: folder with Megatron's description files, where its index files were not kept.

    Raises:
        UsageError: nothing to do, or a folder that is in use.
        ForensicsError: too few spares, index files that are not here, a proof that fails.
    """
    run = wanted.run
    surgeon = SURGEONS.get(surgeon_name(run))
    number = len(run.launches) - 1 if launch is None else launch
    start = after if after is not None else wanted.after if wanted.after is not None else max([*run.checkpoints, run.launch(number).after_step])
    target = Target(run, number, surgeon.steps(run, number, start), wanted.guilty, descriptions)
    indices = surgeon.indices(target)
    if not indices:
        raise UsageError(
            f"no step from {target.steps.start} on reads any of these {len(wanted.guilty):,} documents", hint="forensics locate lists where they come up"
        )
    screen = Screen(loader_of(run).store(run), wanted.guilty, wanted.avoid)
    swaps = choose(indices, wanted.guilty, screen)
    written = surgeon.write(target, swaps, folder)
    proven = prove(surgeon, target, written, swaps)
    done = Applied(target, tuple(swaps), written, proven)
    write_text(folder / "forensics-surgery.txt", "\n".join(sentences(done)) + "\n")
    return done


class Screen:
    """Which documents may not come in: known neighbours of the guilty, near-duplicates of them, and documents with a fault."""

    def __init__(self, store: TokenStore, guilty: Ids, avoid: Ids) -> None:
        self._store, self._avoid = store, avoid
        self._thresholds = read_thresholds("default")
        self._guilty = signatures(store, guilty[np.unique(np.linspace(0, len(guilty) - 1, min(len(guilty), MOST_GUILTY)).astype(np.int64))])
        self._known: dict[int, bool] = {}

    def __call__(self, keys: Ids) -> NDArray[np.bool_]:
        """Per document, whether it is unfit."""
        new = np.array(sorted(set(keys.tolist()) - self._known.keys()), np.int64)
        if len(new):
            bad = np.isin(new, self._avoid)
            findings = find_faults(new, self._store, self._thresholds)
            faulty = findings["doc_key"].to_numpy()[np.asarray(findings["garbage"].to_numpy(zero_copy_only=False), bool)]
            bad |= np.isin(new, faulty)
            mine = signatures(self._store, new)
            for row in range(len(new)):
                near = (self._guilty == mine[row]).mean(axis=1).max(initial=0.0) if len(self._guilty) else 0.0
                bad[row] |= bool(near >= NEAR)
            self._known.update(zip(new.tolist(), bad.tolist()))
        return np.array([self._known[k] for k in keys.tolist()], np.bool_)


def signatures(store: TokenStore, keys: Ids) -> NDArray[np.uint32]:
    """MinHash signatures [n, 128] of documents, in the order given; of those too short for a shingle a row that equals none."""
    table = sign(store.documents(keys))
    column: Any = table["minhash"].combine_chunks()
    values = np.asarray(column.flatten().to_numpy(zero_copy_only=False), np.uint32).reshape(-1, WIDTH)
    out = np.arange(len(keys) * WIDTH, dtype=np.uint32).reshape(len(keys), WIDTH)
    at = {k: i for i, k in enumerate(keys.tolist())}
    for row, (key, shingles) in enumerate(zip(table["doc_key"].to_pylist(), table["shingles"].to_pylist())):
        if shingles:
            out[at[key]] = values[row]
    return out


def _checkpoint(target: Target) -> str:
    """Where training goes on from."""
    known = [c for c in target.run.checkpoints if c < target.steps.start]
    if not known:
        return f"start from the checkpoint of step {target.steps.start - 1} (or an earlier one: what it reads before is unchanged)"
    began = target.run.launch(target.launch).after_step
    earlier = f", run launch {target.launch - 1} up to step {began} as it was, then go on" if known[-1] < began and target.launch else ""
    return f"start from the checkpoint of step {known[-1]}{earlier} (what is read before step {target.steps.start} is unchanged)"


def sentences(done: Applied) -> list[str]:
    """What was done and how to use it, for people."""
    target, steps = done.target, done.target.steps
    lines = [f"patched copy of the index files of run {target.run.name}, launch {target.launch}, for steps {steps.start} to {steps.last}", ""]
    for s in done.swaps:
        looked = f"{len(s.index.spare):,} are never reached, {s.looked:,} of them looked at"
        lines.append(f"- {s.index.file}: {len(s.out):,} sequences of {s.index.label} swapped for clean spare ones ({looked})")
    shown = ", ".join(f"{a}/{b}" for a, b in done.proven.changed[:8]) + (" ..." if len(done.proven.changed) > 8 else "")
    corpora = len(np.unique(target.documents >> DOC_BITS))
    first = int(target.documents[0]) & DOC_MASK
    return [
        *lines,
        f"- left out: {len(target.documents):,} documents of {corpora} corpora (the first: number {first})",
        f"- replayed through the copy: of {done.proven.steps:,} steps compared exactly {len(done.proven.changed):,} rows differ (step/sequence {shown}), "
        "and no guilty document is left in them",
        f"- {done.written.linked:,} other files are linked or copied as they were; the run's own files were not changed",
        f"- to use it: {_checkpoint(target)} with {done.written.use}",
        "- steps, learning rate, batch sizes and the place of all other sequences stay as they were; seed, arguments and data files must too",
        *(f"- unverified: {w}" for w in done.written.warnings),
    ]
