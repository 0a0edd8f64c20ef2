"""Surgery on Megatron's shuffle indices: Megatron-LM, Megatron Bridge and NeMo 2, which share megatron-core's cache.

`GPTDataset._build_document_sample_shuffle_indices` loads `<md5>-GPTDataset-train-shuffle_index.npy` whenever the set of
files is complete. Sample j of a corpus is built sample `shuffle[j]`; the sampler and the blend decide which j are read.
Tried with megatron-core 0.19: the rows asked for change, no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from forensics.errors import ForensicsError, UsageError
from forensics.loaders.base import loader_of
from forensics.manifests.surgical import SURGEONS, Ids, Index, Swap, Target, Written, check_folder, consumed_rows, link, save
from forensics.run import RunSpec
from forensics.schemas import DOC_BITS, DOC_MASK
from forensics.steps import StepRange
from forensics.stores.gather import expand_runs

if TYPE_CHECKING:
    from forensics.loaders.megatron.corpus import CorpusOrder
    from forensics.loaders.megatron.plan import Plan

BLOCK = 1 << 20  # samples at a time


class MegatronSurgeon:
    """Swaps entries of shuffle indices."""

    name = "megatron"

    def steps(self, run: RunSpec, launch: int, after: int) -> StepRange:
        """Steps after `after` that the launch would still run."""
        plan = _plan(run, launch)
        first = max(after, plan.launch.after_step) + 1
        if first > plan.last_planned:
            raise UsageError(f"launch {launch} ends with step {plan.last_planned}, nothing comes after step {after}")
        return StepRange(first, plan.last_planned + 1)

    def indices(self, target: Target) -> list[Index]:
        """One index per cached set of files with guilty samples still to come."""
        plan = _plan(target.run, target.launch)
        data = plan.data("train")
        used = _used(target, plan)
        out: dict[str, Index] = {}
        for corpus in data.corpora:
            sequences = _sequences(corpus, target.documents)
            if not len(sequences):
                continue
            shared = [i for i, other in enumerate(data.corpora) if _file(other) == _file(corpus)]  # a blend may name the same data twice
            ever = np.logical_or.reduce([used[i][0] for i in shared])
            coming = np.logical_or.reduce([used[i][1] for i in shared])
            found = corpus.find(sequences)
            guilty = found[coming[found]]
            if not len(guilty):
                continue
            name = f"{_base(target, plan, corpus).name}shuffle_index.npy"
            label = f"{corpus.store.path.name} (launch {target.launch})"
            out[name] = Index(name, np.asarray(corpus.shuffle), guilty, np.flatnonzero(~ever).astype(np.int64), _behind(corpus), label)
        return list(out.values())

    def write(self, target: Target, swaps: Sequence[Swap], folder: Path) -> Written:
        """All cached files of the run, linked, and the patched shuffle indices."""
        history: Any = loader_of(target.run)
        folders = history.history(target.run).files.caches.folders
        check_folder(folder, folders)
        new = {s.index.file: s.patched() for s in swaps}
        linked = 0
        for source in folders:
            for file in sorted(p for p in source.iterdir() if p.is_file() and p.suffix in (".npy", ".txt") and p.name not in new):
                if not (folder / file.name).exists():
                    link(file, folder / file.name)
                    linked += 1
        for name, array in new.items():
            save(folder / name, array)
        linked += _rebuilt(target, set(new), folder)
        use = f"--data-cache-path {folder} (Megatron Bridge and NeMo: dataset.path_to_cache / index_mapping_dir), with everything else as it was"
        return Written(folder, tuple(new), linked, use)

    def rows(self, target: Target, steps: StepRange, folder: Path | None, swaps: Sequence[Swap]) -> Ids:
        """What steps read, through the folder's files where one is given."""
        run = target.run if folder is None else replace(target.run, cache=(folder, *target.run.cache))
        return consumed_rows(pa.concat_tables(list(loader_of(run).consumed(run, steps, target.launch))))


def _plan(run: RunSpec, launch: int) -> Plan:
    loader: Any = loader_of(run)
    plans: Sequence[Plan] = loader.history(run).plans
    if not 0 <= launch < len(plans):
        raise UsageError(f"the run has {len(plans)} launches (0 to {len(plans) - 1}), not a launch {launch}")
    return plans[launch]


def _base(target: Target, plan: Plan, corpus: CorpusOrder) -> Path:
    """Path of the index files of a corpus without what tells them apart: where they lie, or where their description does.

    Raises:
        ForensicsError: neither index files nor a description are here.
    """
    from forensics.loaders.megatron.cache import CacheFolders

    if corpus.cached is not None:
        return corpus.cached.description.base
    split = plan.split("train")
    assert split is not None
    laid = split.laid[plan.data("train").corpora.index(corpus)]
    folders = [target.descriptions] if target.descriptions else list(plan.files.caches.folders)
    found = CacheFolders(folders).named(plan._wanted_index(split, laid))
    if len(found) != 1:
        given = f"{len(found)} descriptions in {', '.join(map(str, folders))} fit" if folders else "no cached index is here"
        raise ForensicsError(
            f"{corpus.store.path.name}: {given}, so the name under which the trainer would look for a patched index is not known",
            hint="the name is a hash over the tokenizer and paths as the cluster saw them; give the run's cache folder (`cache:` in forensics.yaml), "
            "or a folder with its *-description.txt files: --descriptions",
        )
    return found[0].base


def _rebuilt(target: Target, names: set[str], folder: Path) -> int:
    """Document and sample indices and descriptions of corpora whose index files were not kept; how many files."""
    plan = _plan(target.run, target.launch)
    count = 0
    for corpus in plan.data("train").corpora:
        if corpus.cached is not None or not len(_sequences(corpus, target.documents)):
            continue
        base = _base(target, plan, corpus)
        if f"{base.name}shuffle_index.npy" not in names:
            continue
        ends = np.cumsum(np.r_[0, corpus.store.lengths[corpus.documents].astype(np.int64)])
        at = np.arange(len(corpus) + 1, dtype=np.int64) * corpus.length
        entry = np.minimum(np.searchsorted(ends, at, side="right") - 1, len(corpus.documents) - 1)
        version = plan.rules.version or (0, 19)
        small = version <= (0, 7) or (version >= (0, 10) and len(corpus.documents) < 2**31)
        save(folder / f"{base.name}document_index.npy", np.asarray(corpus.documents, np.int32))
        save(folder / f"{base.name}sample_index.npy", np.stack([entry, at - ends[entry]], axis=1).astype(np.int32 if small else np.int64))
        if not (folder / f"{base.name}description.txt").exists():
            link(base.with_name(f"{base.name}description.txt"), folder / f"{base.name}description.txt")
        count += 3
    return count


def _file(corpus: CorpusOrder) -> object:
    """What tells index files apart."""
    return corpus.cached.name if corpus.cached else id(corpus)


def _used(target: Target, plan: Plan) -> list[tuple[Any, Any]]:
    """Per place of the blend: whether each sample is read by any step of a launch with this order, and by a step still to come."""
    loader: Any = loader_of(target.run)
    data = plan.data("train")
    out = [(np.zeros(len(c), np.bool_), np.zeros(len(c), np.bool_)) for c in data.corpora]
    first = plan.launch.after_step + 1
    for samples in _samples(plan, StepRange(target.steps.start, target.steps.stop)):
        for mask, inner in _inner(data, samples):
            out[mask][1][inner] = True
            out[mask][0][inner] = True
    for other in loader.history(target.run).plans:
        if other.order_hash != plan.order_hash:
            continue
        stop = target.steps.start if other is plan else other.last_planned + 1
        start = first if other is plan else other.launch.after_step + 1
        if stop > start:
            for samples in _samples(other, StepRange(start, stop)):
                for mask, inner in _inner(data, samples):
                    out[mask][0][inner] = True
    return out


def _samples(plan: Plan, steps: StepRange) -> Iterator[Ids]:
    """Sample numbers that steps read, in blocks."""
    from forensics.loaders.megatron.sampler import Single

    first = plan.launch.after_step + 1
    positions = plan.positions[steps.start - first : steps.stop - first + 1] + plan.shift
    if isinstance(plan.sampler, Single):
        for start in range(int(positions[0]), int(positions[-1]), BLOCK):
            yield np.arange(start, min(start + BLOCK, int(positions[-1])), dtype=np.int64)
        return
    each = max(1, BLOCK // max(1, int(np.diff(positions).max())))
    for block in steps.blocks(each):
        yield plan.sampler.rows(block.start, positions[block.start - steps.start : block.stop - steps.start + 1]).sample


def _inner(data: Any, samples: Ids) -> Iterator[tuple[int, Ids]]:
    """Place of the blend and the samples of its corpus."""
    samples = samples[samples < len(data)]
    if data.order is None:
        yield 0, samples
        return
    position, inner = data.order.pick(samples)
    for number in np.unique(position):
        yield int(number), inner[position == number]


def _sequences(corpus: CorpusOrder, documents: Ids) -> Ids:
    """Stored sequences of the documents that lie in this file."""
    mine = documents[documents >> DOC_BITS == corpus.corpus_id] & DOC_MASK
    mine = mine[mine < corpus.store.n_documents]
    first = np.asarray(corpus.store.bounds[mine], np.int64)
    return np.asarray(expand_runs(first, np.asarray(corpus.store.bounds[mine + 1], np.int64) - first)[0], np.int64)


def _behind(corpus: CorpusOrder) -> Any:
    def behind(places: Ids) -> tuple[Ids, Ids]:
        parts = corpus.parts(places)
        return parts.row, np.asarray(corpus.store.documents_of(parts.sequence), np.int64) | (corpus.corpus_id << DOC_BITS)

    return behind


SURGEONS.add("megatron", MegatronSurgeon(), __name__)
