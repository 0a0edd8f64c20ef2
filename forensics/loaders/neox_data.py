"""Data sets of GPT-NeoX: split, epochs, the three packings, and the run's own index files.

Reproduces megatron/data/{gpt2_dataset,data_utils}.py, read at ea7aefd8 of 2026-05-20. `packed` shuffles documents of all epochs
together and then all samples; `pack_until_overflow` and `unpacked` keep documents whole and read one token of the document
behind. `packed` is compared with recorded runs, the other two are read only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forensics.errors import ConfigError, NotReplayable
from forensics.loaders.megatron.cache import CachedIndex, load
from forensics.loaders.megatron.corpus import CorpusOrder
from forensics.loaders.megatron.indices import Epochs
from forensics.stores.gather import expand_runs, offsets_of
from forensics.stores.megatron import MegatronStore

Ids = NDArray[np.int64]


def split_bounds(split: str, n: int) -> tuple[int, int, int, int]:
    """Bounds of the train, validation and test part of `n` sequences; the rounding excess is taken from every bound but the first.

    Raises:
        ConfigError: a string the trainer refuses.
    """
    try:
        parts = [float(x) for x in split.split("," if "," in split else "/")]
    except ValueError as error:
        raise ConfigError(f"the split `{split}` holds something that is no number") from error
    parts = (parts + [0.0, 0.0])[:3]
    total = sum(parts)
    if not total > 0:
        raise ConfigError(f"the split `{split}` gives no part anything")
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + round(part / total * float(n)))
    excess = ends[-1] - n
    return ends[0], *(end - excess for end in ends[1:])  # type: ignore[return-value]


def count_weights(counts: Sequence[int], alpha: float) -> list[float]:
    """Weights from numbers of documents (`weight_by_num_documents`), in the library's own order of operations."""
    if len(counts) == 1:
        return [1.0]
    total = sum(counts)
    plain = [n / total for n in counts]
    raised = [p**alpha for p in plain]
    probability = [p / sum(raised) for p in raised]
    weights = [p * q for p, q in zip(probability, [1 - p for p in plain])]
    return [w / sum(weights) for w in weights]


def epochs_of(tokens: int, length: int, wanted: int | None) -> Epochs:
    """Passes over a corpus until `wanted` samples fit, one where none are asked for; no pass is set apart."""
    if wanted is not None and tokens <= 0:
        raise NotReplayable(
            f"{wanted} samples are wanted from a part without tokens: GPT-NeoX itself never returns from this", hint="check `split` and the data files"
        )
    epochs = 1 if wanted is None else max(1, -(-(wanted * length + 1) // tokens))
    samples = max(0, (epochs * tokens - 1) // length)
    return Epochs(wanted, tokens, epochs, False, samples, samples)


class NeoxCache(CachedIndex):
    """The run's own index files of one corpus."""

    def __init__(self, base: str) -> None:
        self.name = Path(base).name
        self.documents = load(Path(f"{base}_doc_idx.npy"), 1)
        self.samples = load(Path(f"{base}_sample_idx.npy"), 2)
        self.shuffle = load(Path(f"{base}_shuffle_idx.npy"), 1)


def cached_index(folders: Sequence[Path], prefix: Path, name: str, wanted: int | None, length: int, seed: int, packing: str, chopped: bool) -> NeoxCache | None:
    """Index files of a corpus under the names of current or older versions, None where they do not lie in any folder."""
    stem = f"{prefix.name}_{name}_indexmap_{wanted}ns_{length}sl_{seed}s"
    for folder in folders:
        for base in (f"{folder / stem}_{packing}pi{'_ac' if chopped else ''}", *([str(folder / stem)] if packing == "packed" and chopped else [])):
            if all(Path(f"{base}_{what}_idx.npy").is_file() for what in ("doc", "sample", "shuffle")):
                return NeoxCache(base)
    return None


class Corpus(Protocol):
    """The samples of one data set."""

    @property
    def store(self) -> MegatronStore:
        """The data file."""
        ...

    @property
    def corpus_id(self) -> int:
        """Its number."""
        ...

    @property
    def size(self) -> int:
        """Its length as the library has it: one less than what was shuffled."""
        ...

    def parts(self, samples: Ids) -> tuple[Ids, Ids, Ids, Ids, Ids, Ids]:
        """Row, place, stored sequence, start, stop and epoch of what samples are made of."""
        ...

    def find(self, sequences: Ids) -> Ids | None:
        """Samples that hold tokens of stored sequences; None where that is not inverted."""
        ...


@dataclass
class Packed:
    """`pack_impl: packed`: documents end to end, cut into samples."""

    order: CorpusOrder

    @property
    def store(self) -> MegatronStore:
        """The data file."""
        return self.order.store

    @property
    def corpus_id(self) -> int:
        """Its number."""
        return self.order.corpus_id

    @cached_property
    def size(self) -> int:
        """Samples that can be asked for."""
        return max(len(self.order.shuffle) - 1, 0)

    def _inside(self, samples: Ids) -> Ids:
        """Beyond what was shuffled, the library takes the number modulo its length."""
        return np.where(samples > self.size, samples % max(self.size, 1), samples)

    def parts(self, samples: Ids) -> tuple[Ids, Ids, Ids, Ids, Ids, Ids]:
        """What samples are made of."""
        p = self.order.parts(self._inside(samples))
        return p.row, p.place, p.sequence, p.start, p.stop, p.epoch.astype(np.int64)

    def find(self, sequences: Ids) -> Ids | None:
        """Samples that hold tokens of stored sequences."""
        return self.order.find(sequences)


@dataclass
class Whole:
    """`pack_until_overflow` and `unpacked`: whole documents per sample, and the first token of the one behind it.

    Attributes:
        documents: stored sequences in reading order.
        first: entry of `documents` with which each sample begins, and the end [samples + 1].
        shuffle: sample built of each sample number.
    """

    store: MegatronStore
    corpus_id: int
    documents: Ids
    first: Ids
    shuffle: Ids
    width: int

    @property
    def size(self) -> int:
        """Samples that can be asked for."""
        return min(len(self.shuffle), len(self.first)) - 1

    def _built(self, samples: Ids) -> Ids:
        built = self.shuffle[np.where(samples >= len(self.shuffle), samples % max(self.size, 1), samples)]
        # The last sample built has no document behind it: the library fails over to its number modulo the length.
        late = self.first[built + 1] >= len(self.documents)
        again = np.where(late, self.shuffle[built % max(self.size, 1)], built)
        if np.any(self.first[again + 1] >= len(self.documents)):
            raise NotReplayable("the last sample built is drawn in place of itself, on which GPT-NeoX itself never returns")
        return again

    def parts(self, samples: Ids) -> tuple[Ids, Ids, Ids, Ids, Ids, Ids]:
        """What samples are made of: whole documents, one more token, cut at the width."""
        built = self._built(samples)
        counts = self.first[built + 1] - self.first[built] + 1
        entry, row = expand_runs(self.first[built], counts)
        sequence = self.documents[entry]
        size = self.store.lengths[sequence].astype(np.int64)
        edges = offsets_of(counts)
        last = edges[1:] - 1
        if np.any(size[last] < 1):
            raise NotReplayable("a sample is followed by an empty document, of which GPT-NeoX reads a token of the next one")
        size[last] = 1
        before = offsets_of(size)
        place = before[:-1] - np.repeat(before[edges[:-1]], counts)
        stop = np.minimum(size, self.width - place)
        keep = stop > 0
        return row[keep], place[keep], sequence[keep], np.zeros(int(keep.sum()), np.int64), stop[keep], np.full(int(keep.sum()), -1, np.int64)

    def find(self, sequences: Ids) -> Ids | None:
        """Not inverted."""
        return None


def until_overflow(store: MegatronStore, n: int, wanted: int, width: int, seed: int, chopped: bool, masked: NDArray[np.bool_] | None) -> tuple[Ids, Ids, Ids]:
    """Documents, sample bounds and shuffle of `pack_until_overflow`; documents are numbered from the split's own first one."""
    state = np.random.RandomState(seed)
    shuffle = np.arange(wanted)
    state.shuffle(shuffle)
    order = np.arange(n)
    state.shuffle(order)
    sizes = store.lengths
    first: list[int] = []
    documents: list[int] = []
    running, at = 0, 0
    while len(first) < wanted:
        if at >= n:
            raise NotReplayable("a document that is left out is the last one of a pass, on which GPT-NeoX itself stops")
        document = int(order[at])
        if (not chopped and sizes[document] > width) or (masked is not None and masked[document]):
            at += 1
            continue
        size = int(sizes[document])
        if running == 0 or running + size > width:
            first.append(len(documents))
            running = size
        else:
            running += size
        documents.append(document)
        at += 1
        if at == n:
            at = 0
            state.shuffle(order)
    return np.array(documents, np.int64), np.array([*first, len(documents)], np.int64), shuffle


def one_each(store: MegatronStore, n: int, wanted: int, width: int, seed: int, chopped: bool, masked: NDArray[np.bool_]) -> tuple[Ids, Ids, Ids]:
    """Documents, sample bounds and shuffle of `unpacked`: documents in file order, again and again."""
    state = np.random.RandomState(seed)
    shuffle = np.arange(wanted)
    state.shuffle(shuffle)
    usable = np.flatnonzero(~masked[:n] & (chopped | (store.lengths[:n] <= width)))
    if not len(usable):
        raise NotReplayable("no document is left, on which GPT-NeoX itself never returns")
    return np.resize(usable, wanted + 1), np.arange(wanted + 1), shuffle
