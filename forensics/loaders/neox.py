"""GPT-NeoX and Pythia: from a step to the samples its ranks read.

Reproduces megatron/data/{gpt2_dataset,data_utils,blendable_dataset,samplers}.py, read at ea7aefd8 of 2026-05-20 and in v1.0 and v2.0. What sets it
apart from Megatron-LM: documents of all epochs are shuffled together, never a last epoch apart; the length is one sample
less than what is built; the position is the iteration, no sample count; after the last micro batch the loader repeats
what this launch has read. `packed` is compared with recorded runs, the other packings are read only.
Pythia's published data are already in training order (`preshuffled: true`): one stored sequence a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.errors import ConfigError, NotReplayable, RunError
from forensics.loaders.arguments import Arguments
from forensics.loaders.base import LOADERS
from forensics.loaders.megatron.blend import BlendOrder
from forensics.loaders.megatron.corpus import CorpusOrder
from forensics.loaders.neox_data import Corpus, Packed, Whole, cached_index, count_weights, epochs_of, one_each, split_bounds, until_overflow
from forensics.loaders.neox_names import BYSTANDERS, KNOWN, REFUSED
from forensics.loaders.planned import CACHED, UNVERIFIED, VERIFIED, History, Inserted, PlannedLoader, Rows, Segments, padded
from forensics.run import Launch, RunSpec
from forensics.steps import StepRange
from forensics.stores.gather import expand_runs
from forensics.stores.megatron import MegatronStore

Ids = NDArray[np.int64]
SURPLUS = 1.005


@dataclass
class NeoxOrder:
    """What one launch reads: micro batches of the data set in order, from the one its iteration points at.

    Attributes:
        corpora: the data sets.
        blend: order of a blend; None for a single data set.
        micro, ranks, accumulation: sequences per rank, data-parallel ranks, micro batches per step.
        wraps: whether the loader begins again after its end.
    """

    launch: Launch
    corpora: list[Corpus]
    blend: BlendOrder | None
    micro: int
    ranks: int
    accumulation: int
    width: int
    pad: bool
    wraps: bool
    limit: int | None = None
    origin: str = VERIFIED
    note: str = ""
    target_samples: int | None = None
    plain: tuple[object, ...] = ()
    sizes: tuple[int, ...] = field(default=())

    @property
    def rows_per_step(self) -> int:
        """Sequences of a step."""
        return self.micro * self.ranks * self.accumulation

    @property
    def row_width(self) -> int | None:
        """Tokens of a row."""
        return self.width

    @property
    def data_parallel_size(self) -> int | None:
        """Data-parallel ranks."""
        return self.ranks

    @property
    def micro_batch_size(self) -> int | None:
        """Sequences per rank and micro batch."""
        return self.micro

    @property
    def identity(self) -> tuple[object, ...]:
        """Everything that decides the order."""
        return self.plain

    @cached_property
    def length(self) -> int:
        """Samples of the data set: of a blend, all that its parts have."""
        return sum(c.size for c in self.corpora)

    @cached_property
    def loader_length(self) -> int:
        """Micro batches of the loader.

        Raises:
            RunError: fewer samples than one micro batch.
        """
        found = self.length // (self.micro * self.ranks)
        if not found:
            raise RunError(f"the data set has {self.length} samples, one micro batch of all ranks takes {self.micro * self.ranks}")
        return found

    def rows(self, steps: StepRange) -> Rows:
        """The samples of these steps."""
        n, each = self.loader_length, self.micro * self.ranks
        start = self.launch.after_step * self.accumulation % n
        k = np.arange((steps.start - 1 - self.launch.after_step) * self.accumulation, (steps.stop - 1 - self.launch.after_step) * self.accumulation)
        if not self.wraps and len(k) and k[-1] >= n - start:
            raise RunError(
                f"the loader ends after step {self.launch.after_step + (n - start) // self.accumulation}", hint="this version of GPT-NeoX does not begin again"
            )
        batch = start + k % (n - start)
        sample = (batch[:, None] * each + np.arange(each)).reshape(-1)
        step = np.repeat(self.launch.after_step + 1 + k // self.accumulation, each)
        rank = np.tile(np.repeat(np.arange(self.ranks), self.micro), len(k))
        return Rows(step, sample, rank, np.repeat(k % self.accumulation, each), np.full(len(sample), -1, np.int64))

    def _picked(self, samples: Ids) -> tuple[Ids, Ids]:
        if self.blend is None:
            return np.zeros(len(samples), np.int64), samples
        which, number = self.blend.pick(samples)
        return which.astype(np.int64), number

    def segments(self, rows: Rows) -> Segments:
        """What these samples consist of."""
        which, number = self._picked(rows.sample)
        columns = []
        for i in np.unique(which).tolist():
            mine = np.flatnonzero(which == i)
            row, place, sequence, start, stop, epoch = self.corpora[i].parts(number[mine])
            store = self.corpora[i].store
            document = store.documents_of(sequence)
            shift = store.starts_in_document(sequence, document)
            rows.epoch[mine[row]] = epoch
            columns.append((mine[row], place, np.full(len(row), self.corpora[i].corpus_id), document, start + shift, stop + shift, sequence))
        if not columns:
            none = np.zeros(0, np.int64)
            return Segments(none, none, none, none, none, none, none)
        row, place, corpus, document, start, stop, sequence = (np.concatenate(c) for c in zip(*columns))
        order = np.lexsort((place, row))
        return Segments(row[order], place[order], corpus[order], document[order], start[order], stop[order], sequence[order])

    def inserted(self, rows: Rows, segments: Segments) -> Inserted | None:
        """Zeros behind whole documents, where packing leaves room."""
        if not self.pad:
            return None
        return padded(rows, segments, self.width, 0)

    def candidates(self, corpus: int, documents: Ids) -> Ids | None:
        """Samples that hold tokens of these documents."""
        out = [np.zeros(0, np.int64)]
        for i, one in enumerate(self.corpora):
            if one.corpus_id != corpus:
                continue
            known = documents[documents < one.store.n_documents]
            sequences, _ = expand_runs(one.store.bounds[known].astype(np.int64), np.diff(one.store.bounds)[known].astype(np.int64))
            found = one.find(sequences)
            if found is None or (self.blend is not None and one.size < self._asked(i)):
                return None
            if self.blend is not None:
                found = self.blend.seek(np.full(len(found), i, np.int64), found)
            out.append(found[found >= 0])
        return np.unique(np.concatenate(out))

    def _asked(self, corpus: int) -> int:
        assert self.blend is not None
        return int(self.blend.counts()[corpus])

    def counter(self, steps: StepRange) -> Ids:
        """GPT-NeoX keeps no count of samples."""
        return np.full(len(steps), -1, np.int64)


@dataclass
class Preshuffled(NeoxOrder):
    """Pythia's published files: row k of the run is stored sequence k."""

    @cached_property
    def length(self) -> int:
        """Rows of the file."""
        return self.corpora[0].store.n_sequences

    def rows(self, steps: StepRange) -> Rows:
        """Stored sequences of these steps, whatever launch."""
        each, accumulation = self.micro * self.ranks, self.accumulation
        if (steps.stop - 1) * each * accumulation > self.length:
            raise RunError(
                f"the pre-shuffled file has {self.length} rows, enough for {self.length // (each * accumulation)} steps; step {steps.last} is asked for"
            )
        k = np.arange((steps.start - 1) * accumulation, (steps.stop - 1) * accumulation)
        sample = (k[:, None] * each + np.arange(each)).reshape(-1)
        rank = np.tile(np.repeat(np.arange(self.ranks), self.micro), len(k))
        return Rows(np.repeat(1 + k // accumulation, each), sample, rank, np.repeat(k % accumulation, each), np.full(len(sample), -1, np.int64))

    def segments(self, rows: Rows) -> Segments:
        """One stored sequence a row."""
        store = self.corpora[0].store
        document = store.documents_of(rows.sample)
        shift = store.starts_in_document(rows.sample, document)
        at = np.arange(len(rows))
        size = store.lengths[rows.sample].astype(np.int64)
        return Segments(at, np.zeros(len(at), np.int64), np.full(len(at), self.corpora[0].corpus_id), document, shift, shift + size, rows.sample)

    def candidates(self, corpus: int, documents: Ids) -> Ids | None:
        """The stored sequences of these documents."""
        store = self.corpora[0].store
        known = documents[documents < store.n_documents]
        return np.sort(expand_runs(store.bounds[known].astype(np.int64), np.diff(store.bounds)[known].astype(np.int64))[0])


@dataclass
class Opener:
    """Opens a run's launches over one set of files."""

    run: RunSpec
    files: dict[int, MegatronStore] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)

    def file(self, prefix: str) -> tuple[int, MegatronStore]:
        """Number and store of a data file."""
        if prefix not in self.names:
            self.names[prefix] = len(self.names)
            self.files[self.names[prefix]] = MegatronStore(self.run.path(prefix))
        return self.names[prefix], self.files[self.names[prefix]]

    def folders(self, prefix: str) -> list[Path]:
        """Where index files of a corpus may lie."""
        return [*self.run.cache, self.run.path(prefix).parent]

    def open(self, launch: Launch) -> tuple[NeoxOrder, list[dict[str, Any]]]:
        """One launch, and its rows of the `blends` table."""
        read = read_options(launch.args)
        micro, ranks, accumulation = batch_of(read)
        total = micro * ranks * accumulation
        length, seed = read.integer("seq_length", least=1), read.integer("seed", 1234)
        packing = read.choice("pack_impl", ("packed", "pack_until_overflow", "unpacked"), "packed")
        iterations = read.optional("train_iters", least=0)
        wanted = None if iterations is None else iterations * read.integer("train_batch_size", total)
        if iterations is None and "train_epochs" not in read and not read.flag("preshuffled", False):
            raise ConfigError("GPT-NeoX needs `train_iters` (or `train_epochs`): it decides how many epochs are laid out, and so the whole order")
        make = _Maker(self, read, length, seed, packing)
        if read.flag("preshuffled", False):
            number, store = self.file(read.text("data_path"))
            corpora: list[Corpus] = [Whole(store, number, np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64), length + 1)]
            order: NeoxOrder = Preshuffled(launch, corpora, None, micro, ranks, accumulation, length + 1, False, False)
            order.limit = store.n_sequences // total + 1
            return order, []
        if "train_data_paths" in read:
            corpora, weights, rows = make.blended(wanted)
            blend = BlendOrder(weights, sum(c.size for c in corpora))
        else:
            corpora, rows = make.single(wanted)
            blend = None
        wraps = not (launch.version or "").lower().lstrip("v").startswith(("1.", "2."))
        order = NeoxOrder(launch, corpora, blend, micro, ranks, accumulation, length + 1, packing != "packed", wraps, target_samples=wanted)
        order.origin = UNVERIFIED if packing != "packed" else CACHED if all(isinstance(c, Packed) and c.order.cached for c in corpora) else VERIFIED
        if iterations is None:
            iterations = order.loader_length * read.integer("train_epochs", least=1) // accumulation
        order.limit = iterations + 1
        if not wraps:
            order.limit = min(
                order.limit, launch.after_step + (order.loader_length - launch.after_step * accumulation % order.loader_length) // accumulation + 1
            )
        order.plain = (repr(sorted(launch.args.items())), launch.after_step, wraps)
        for row in rows:
            row.update(launch=launch.number, split="train", origin="cached_index" if order.origin == CACHED else "recomputed")
        return order, rows


@dataclass
class _Maker:
    """Builds the data sets of one launch."""

    opener: Opener
    read: Arguments
    length: int
    seed: int
    packing: str

    def single(self, wanted: int | None) -> tuple[list[Corpus], list[dict[str, Any]]]:
        """`data_path` and `split`."""
        if self.packing == "unpacked":
            raise NotReplayable(
                "`pack_impl: unpacked` reads label files, which `data_path` has no place for",
                hint="GPT-NeoX fails on this too; give train_data_paths and train_label_data_paths",
            )
        prefix = self.read.text("data_path")
        number, store = self.opener.file(prefix)
        start, stop, *_ = split_bounds(self.read.text("split", "969, 30, 1"), store.n_sequences)
        if stop <= start:
            raise RunError("the split leaves no document for training")
        corpus, row = self._corpus(prefix, number, store, (start, stop), "train", wanted, None)
        return [corpus], [{**row, "position": 0}]

    def blended(self, wanted: int | None) -> tuple[list[Corpus], list[float], list[dict[str, Any]]]:
        """`train_data_paths` and weights."""
        paths = [str(p) for p in self.read.listed("train_data_paths")]
        labels = [str(p) for p in self.read.listed("train_label_data_paths")] or [""] * len(paths)
        weights = [float(w) for w in self.read.listed("train_data_weights")] or [1.0] * len(paths)
        if not len(paths) == len(weights) == len(labels):
            raise ConfigError(f"{len(paths)} train_data_paths, {len(weights)} weights and {len(labels)} label paths do not fit together")
        opened = [self.opener.file(p) for p in paths]
        if self.read.flag("weight_by_num_documents", False):
            weights = count_weights([s.n_sequences for _, s in opened], self.read.number("weighted_sampler_alpha", 1.0))
        if sum(weights) <= 0 or min(weights) < 0:
            raise ConfigError(f"train_data_weights {weights} cannot be normalised")
        total = sum(weights)
        weights = [w / total for w in weights]
        corpora, rows = [], []
        for i, ((number, store), path) in enumerate(zip(opened, paths)):
            own = None if wanted is None else math.ceil(wanted * weights[i] * SURPLUS)
            masked = self._masked(labels[i], store) if labels[i] else None
            corpus, row = self._corpus(path, number, store, (0, store.n_sequences), f"train_{i}", own, masked)
            corpora.append(corpus)
            rows.append({**row, "position": i, "weight": weights[i]})
        return corpora, weights, rows

    def _masked(self, prefix: str, store: MegatronStore) -> NDArray[np.bool_]:
        """Documents whose labels are all ignored, as far as they are read."""
        labels = MegatronStore(self.opener.run.path(prefix))
        if labels.n_sequences != store.n_sequences:
            raise RunError(f"{prefix} has {labels.n_sequences} sequences, its data file {store.n_sequences}")
        limit = self.length if self.packing == "unpacked" else self.length + 1
        out = np.empty(labels.n_sequences, np.bool_)
        for i in range(labels.n_sequences):
            size = min(int(labels.lengths[i]), limit)
            row = np.empty(size, labels.dtype.newbyteorder("="))
            labels.gather_sequences(np.array([i]), np.array([0]), np.array([size]), row, np.array([0]))
            out[i] = bool(np.all(row == -100))
        return out

    def _corpus(
        self, prefix: str, number: int, store: MegatronStore, part: tuple[int, int], name: str, wanted: int | None, masked: NDArray[np.bool_] | None
    ) -> tuple[Corpus, dict[str, Any]]:
        chopped = self.read.flag("allow_chopped", True)
        tokens = int(store.lengths[part[0] : part[1]].sum(dtype=np.int64))
        row = {"corpus_id": number, "weight": None, "wanted_samples": wanted, "tokens_per_epoch": tokens, "separate_last_epoch": False}
        if self.packing == "packed":
            epochs = epochs_of(tokens, self.length, wanted)
            cached = cached_index(self.opener.folders(prefix), self.opener.run.path(prefix), name, wanted, self.length, self.seed, "packed", chopped)
            if cached is not None and (problem := cached.contradiction(epochs.epochs * (part[1] - part[0]), epochs.samples)):
                raise RunError(
                    f"the run's index files {cached.name} do not fit the description: {problem}",
                    hint="their name holds no split: files of another split are reused silently; bring back the run's split, or move them away",
                )
            order = CorpusOrder(number, store, part, epochs, seed=self.seed, length=self.length, extra=1, cached=cached)
            return Packed(order), {**row, "epochs": epochs.epochs, "built_samples": epochs.samples}
        if wanted is None:
            raise NotReplayable(f"`pack_impl: {self.packing}` with `train_epochs` is refused by GPT-NeoX")
        n = part[1] - part[0]
        if self.packing == "unpacked":
            if masked is None:
                raise NotReplayable("`pack_impl: unpacked` needs train_label_data_paths, without which GPT-NeoX fails")
            built = one_each(store, n, wanted, self.length + 1, self.seed, chopped, masked)
        else:
            built = until_overflow(store, n, wanted, self.length + 1, self.seed, chopped, masked)
        return Whole(store, number, *built, self.length + 1), {**row, "epochs": None, "built_samples": len(built[1]) - 1}


def read_options(args: Mapping[str, Any]) -> Arguments:
    """A launch's options; `-` and `_` are the same in names.

    Raises:
        ConfigError, NotReplayable: unknown names, and options whose effect is not modelled.
    """
    given = {str(k).replace("-", "_"): v for k, v in args.items()}
    read = Arguments("neox", given, KNOWN | REFUSED, BYSTANDERS)
    for name in sorted(REFUSED):
        value = given.get(name)
        if value not in (None, False, [], {}, "") and not (isinstance(value, Mapping) and not value.get("enabled", True)):
            raise NotReplayable(
                f"`{name}` of neox is not modelled: it changes which samples are read", hint="record what the run consumes instead (trainer: recorded)"
            )
    read.refuse("dataset_impl", "gpt2", "pairwise and online data sets read other files")
    read.choice("data_impl", ("mmap", "infer"), "infer")
    return read


def batch_of(read: Arguments) -> tuple[int, int, int]:
    """Sequences per rank, data-parallel ranks and micro batches per step.

    Raises:
        ConfigError: too little is known, or sizes contradict each other.
    """
    if "data_parallel_size" in read:
        ranks = read.integer("data_parallel_size", least=1)
    else:
        world = read.integer("world_size", read.integer("global_num_gpus", 0))
        split = (
            max(read.integer("pipe_parallel_size", 1), 1) * max(read.integer("model_parallel_size", 1), 1) * max(read.integer("context_parallel_size", 1), 1)
        )
        if not world or world % split:
            raise ConfigError(
                "GPT-NeoX needs `data_parallel_size`, or `world_size` with the parallel sizes that divide it", hint="--set args.data_parallel_size=N"
            )
        ranks = world // split
    total, micro, steps = (read.optional(n, least=1) for n in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))
    if total is not None and micro is not None:
        steps = steps or total // micro // ranks
    elif total is not None:
        micro = total // ranks // (steps or 1)
        steps = steps or 1
    elif micro is not None:
        steps = steps or 1
        total = micro * steps * ranks
    else:
        raise ConfigError("GPT-NeoX needs `train_batch_size` or `train_micro_batch_size_per_gpu`")
    if micro * steps * ranks != total:
        raise ConfigError(
            f"train_batch_size {total} is not {micro} per GPU x {steps} accumulated x {ranks} data-parallel ranks", hint="DeepSpeed refuses this too"
        )
    return micro, ranks, steps


def open_neox(run: RunSpec) -> History:
    """A run with its data files opened."""
    opener = Opener(run)
    orders, blends = [], []
    for launch in run.launches:
        order, rows = opener.open(launch)
        orders.append(order)
        blends += rows
    return History(dict(opener.files), {n: p for p, n in opener.names.items()}, tuple(orders), blends)


NEOX = PlannedLoader("neox", open_neox)
LOADERS.add("neox", NEOX, __name__)
