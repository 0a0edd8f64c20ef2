"""Surgery on GPT-NeoX's shuffle indices.

`gpt2_dataset.py` of May 2026 loads `<prefix>_<name>_indexmap_..._shuffle_idx.npy` beside the data when the three files are
there, and checks nothing; so a patched copy needs the data beside it, which are linked. Read in the source, not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from forensics.errors import ForensicsError, UsageError
from forensics.loaders.base import loader_of
from forensics.manifests.surgical import SURGEONS, Ids, Index, Swap, Target, Written, check_folder, consumed_rows, link, save
from forensics.run import RunSpec
from forensics.schemas import DOC_BITS, DOC_MASK
from forensics.steps import StepRange
from forensics.stores.gather import expand_runs

BLOCK = 1 << 20


class NeoxSurgeon:
    """Swaps entries of shuffle indices."""

    name = "neox"

    def steps(self, run: RunSpec, launch: int, after: int) -> StepRange:
        """Steps after `after` that the launch would still run."""
        order = order_of(run, launch)
        first = max(after, order.launch.after_step) + 1
        if order.limit is None or first >= order.limit:
            raise UsageError(f"nothing comes after step {after} of launch {launch}", hint="train_iters ends the run")
        return StepRange(first, order.limit)

    def indices(self, target: Target) -> list[Index]:
        """One index per corpus with guilty samples still to come."""
        order = order_of(target.run, target.launch)
        used = _used(order, target)
        out = []
        for i, corpus in enumerate(order.corpora):
            inner = getattr(corpus, "order", None)
            documents = target.documents[target.documents >> DOC_BITS == corpus.corpus_id] & DOC_MASK
            if not len(documents):
                continue
            if inner is None:
                raise ForensicsError("only `pack_impl: packed` reads samples through a shuffle index that can be patched", hint="use the plain list")
            first = np.asarray(corpus.store.bounds[documents], np.int64)
            sequences = expand_runs(first, np.asarray(corpus.store.bounds[documents + 1], np.int64) - first)[0]
            ever, coming = used[i]
            found = inner.find(sequences)
            guilty = found[coming[found]]
            if not len(guilty):
                continue
            path = _shuffle_file(target.run, inner)
            label = f"{corpus.store.path.name} (launch {target.launch})"
            out.append(Index(path.name, np.asarray(inner.shuffle), guilty, np.flatnonzero(~ever).astype(np.int64), _behind(corpus), label))
        if len({x.file for x in out}) < len(out):
            raise ForensicsError("two corpora of the run read the same index file: an entry cannot be swapped for one of them only")
        return out

    def write(self, target: Target, swaps: Sequence[Swap], folder: Path) -> Written:
        """Data and index files, linked, and the patched shuffle indices."""
        order = order_of(target.run, target.launch)
        sources = list(dict.fromkeys(c.store.path.parent for c in order.corpora))
        check_folder(folder, [*sources, *target.run.cache])
        new = {s.index.file: s.patched() for s in swaps}
        linked = 0
        for corpus in order.corpora:
            stem = corpus.store.path.name.removesuffix(".bin").removesuffix(".idx")
            files = [p for f in (*target.run.cache, corpus.store.path.parent) for p in (sorted(f.glob(f"{stem}_*indexmap*")) if f.is_dir() else [])]
            for file in [corpus.store.idx, corpus.store.bin, *files]:
                if file.name not in new and not (folder / file.name).exists():
                    link(file, folder / file.name, symbolic=file.suffix != ".npy")
                    linked += 1
        for name, array in new.items():
            save(folder / name, array)
        use = f"the same prefixes under {folder} in data_path or train_data_paths, with everything else as it was"
        return Written(folder, tuple(new), linked, use, ("GPT-NeoX trusts its index files by reading of its source; no trainer was run on a patched one",))

    def rows(self, target: Target, steps: StepRange, folder: Path | None, swaps: Sequence[Swap]) -> Ids:
        """What steps read, through the folder's files where one is given."""
        run = target.run if folder is None else replace(target.run, cache=(folder, *target.run.cache))
        return consumed_rows(pa.concat_tables(list(loader_of(run).consumed(run, steps, target.launch))))


def order_of(run: RunSpec, launch: int) -> Any:
    """The order of one launch."""
    loader: Any = loader_of(run)
    orders = loader.opened(run).orders
    if not 0 <= launch < len(orders):
        raise UsageError(f"the run has {len(orders)} launches (0 to {len(orders) - 1}), not a launch {launch}")
    return orders[launch]


def _used(order: Any, target: Target) -> list[tuple[Any, Any]]:
    """Per corpus: whether each built sample number is read at all, and by a step still to come; every launch of the same order counts."""
    sizes = [len(c.order.shuffle) if hasattr(c, "order") else 0 for c in order.corpora]
    out = [(np.zeros(n, np.bool_), np.zeros(n, np.bool_)) for n in sizes]
    loader: Any = loader_of(target.run)
    for other in loader.opened(target.run).orders:
        if [c.corpus_id for c in other.corpora] != [c.corpus_id for c in order.corpora] or other.limit is None:
            continue
        for block in StepRange(other.launch.after_step + 1, max(other.limit, other.launch.after_step + 2)).blocks(max(1, BLOCK // other.rows_per_step)):
            rows = other.rows(block)
            coming = rows.step >= target.steps.start if other is order else np.zeros(len(rows), np.bool_)
            for i, inner, mine in _inner(other, rows.sample):
                keep = inner < len(out[i][0])
                out[i][0][inner[keep]] = True
                out[i][1][inner[keep & coming[mine]]] = True
    return out


def _inner(order: Any, samples: Ids) -> Iterator[tuple[int, Ids, Ids]]:
    """Corpus, its sample numbers, and which of the samples they are; beyond its end the library takes the number modulo its length."""
    if order.blend is None:
        which, number = np.zeros(len(samples), np.int64), samples
    else:
        which, number = order.blend.pick(samples)
    for i in np.unique(which).tolist():
        mine = np.flatnonzero(which == i)
        size = max(order.corpora[i].size, 1)
        inner = np.asarray(number[mine], np.int64)
        yield int(i), np.where(inner > size, inner % size, inner), mine


def _shuffle_file(run: RunSpec, inner: Any) -> Path:
    """The file behind a cached index.

    Raises:
        ForensicsError: the run's index files are not here.
    """
    if inner.cached is None:
        raise ForensicsError(
            f"no index files of {inner.store.path.name} are here, and versions of GPT-NeoX name them differently",
            hint="bring the run's *_indexmap_*.npy beside the data, or name their folder: `cache:` in forensics.yaml",
        )
    for folder in (*run.cache, inner.store.path.parent):
        path: Path = folder / f"{inner.cached.name}_shuffle_idx.npy"
        if path.is_file():
            return path
    raise ForensicsError(f"the shuffle index of {inner.store.path.name} was read and is gone")


def _behind(corpus: Any) -> Any:
    def behind(places: Ids) -> tuple[Ids, Ids]:
        parts = corpus.order.parts(places)
        return parts.row, np.asarray(corpus.store.documents_of(parts.sequence), np.int64) | (corpus.corpus_id << DOC_BITS)

    return behind


SURGEONS.add("neox", NeoxSurgeon(), __name__)
