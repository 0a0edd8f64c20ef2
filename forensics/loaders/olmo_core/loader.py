"""OLMo-core: from a step to the instances its ranks read.

One step is one global batch. A launch starts at the counters of the state it loaded (given, found in the checkpoint
folder, or where the launch before stood), and the loader goes on by tokens (fixed lengths) or batches (variable lengths).
Order, epochs and batch sizes: `order`; what an instance is: `fsl`, `padded`, `packed`, `vsl`, `composable`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.errors import ConfigError, NotReplayable, RunError
from forensics.loaders.arguments import Arguments
from forensics.loaders.olmo_core.composable import Picked, joined
from forensics.loaders.olmo_core.config import KINDS, LOADER_HARMLESS, DataSet, Files, open_dataset, read_filter, read_tokenizer
from forensics.loaders.olmo_core.instances import Instances
from forensics.loaders.olmo_core.order import Change, Counters, Walk, chunked_order
from forensics.loaders.olmo_core.repetition import Filter
from forensics.loaders.olmo_core.sources import Builder
from forensics.loaders.olmo_core.state import State, fingerprint, read_state
from forensics.loaders.olmo_core.trainer import LengthWarmup, read_trainer
from forensics.loaders.olmo_core.vsl import Curriculum, VslInstances
from forensics.loaders.planned import CACHED, UNVERIFIED, VERIFIED, History, Inserted, PlannedLoader, Rows, Segments, cut
from forensics.run import Launch, RunSpec
from forensics.steps import StepRange

Ids = NDArray[np.int64]
TOP = ("dataset", "data_loader", "trainer", "sources", "dp_world_size", "world_size", "state", "rank_microbatch_size")
LOADER = ("global_batch_size", "seed", "shuffle", "work_dir", "ignore_fingerprint_mismatch")
COMPOSABLE = ("shuffle_strategy", "sources_per_epoch", "instance_filter_config")
COMPARED = ("fsl", "padded", "packed", "interleaved", "vsl", "mixture", "composable")


@dataclass(frozen=True)
class Epochs:
    """Instances of every epoch and the order in which batches take them.

    Attributes:
        groups: what the epochs read, in turn.
        seed: of the loader.
        shuffle: whether instances are shuffled.
        strategy: of the composable loader; `inter_source` otherwise.
        curriculum: of a data set of variable lengths.
    """

    groups: tuple[tuple[Instances, ...], ...]
    seed: int
    shuffle: bool
    strategy: str
    curriculum: Curriculum | None = None

    def sources(self, epoch: int) -> tuple[Instances, ...]:
        """What an epoch reads."""
        return self.groups[(epoch - 1) % len(self.groups)]

    def length(self, epoch: int) -> int:
        """Instances of an epoch."""
        sizes = [s.length for s in self.sources(epoch)]
        return min(sizes) * len(sizes) if self.shuffle and self.strategy == "interleaved_source" else sum(sizes)

    def batches(self, epoch: int, batch_tokens: int) -> int:
        """Whole batches of an epoch."""
        if self.curriculum is not None:
            return sum(n for _, n in self.curriculum.batches(self._variable(epoch).buckets, batch_tokens))
        return self.length(epoch) // (batch_tokens // self.sources(epoch)[0].width)

    def _variable(self, epoch: int) -> VslInstances:
        found = self.sources(epoch)[0]
        assert isinstance(found, VslInstances)
        return found

    def order(self, epoch: int) -> NDArray[np.uint32]:
        """Instances of an epoch in the order they are read, numbered over its sources."""
        sources = self.sources(epoch)
        chunk = sources[0].chunk
        if not self.shuffle or self.strategy == "inter_source":
            return chunked_order(self.length(epoch), chunk, self.seed + epoch if self.shuffle else None)
        offsets = np.cumsum([0, *(s.length for s in sources)]).astype(np.uint32)
        if self.strategy == "intra_source":
            return np.concatenate([chunked_order(s.length, chunk, self.seed + epoch + i) + offsets[i] for i, s in enumerate(sources)])
        least = min(s.length for s in sources)
        out = np.empty(least * len(sources), np.uint32)
        for i in range(len(sources)):
            out[i :: len(sources)] = chunked_order(least, chunk, self.seed + epoch + i) + offsets[i]
        return out

    def variable_batches(self, epoch: int, batch_tokens: int) -> list[Ids]:
        """Instances of every batch of an epoch of variable lengths, in the order they are read."""
        assert self.curriculum is not None
        source = self._variable(epoch)
        shares = self.curriculum.batches(source.buckets, batch_tokens)
        numbered: list[Ids] = []
        for length, count in shares:
            ids = source.buckets[length]
            if self.shuffle:
                ids = np.random.Generator(np.random.PCG64(self.seed + epoch + length)).permutation(ids)
            size = batch_tokens // length
            numbered += list(ids[: count * size].reshape(count, size))
        order = self.curriculum.order(shares, self.seed + epoch) if self.shuffle else range(len(numbered))
        return [numbered[i] for i in order]


@dataclass
class CoreOrder:
    """What one launch reads.

    Attributes:
        epochs: instances and their order.
        walk: steps to batches.
        ranks: data-parallel ranks.
        corpora: corpus of each file as the instances count files.
        masks: the n-gram filter, None without.
        warmup: of the sequence length, None without.
    """

    launch: Launch
    epochs: Epochs
    walk: Walk
    ranks: int
    corpora: Sequence[int]
    masks: Filter | None
    batch_tokens: int
    width: int
    origin: str = VERIFIED
    note: str = ""
    limit: int | None = None
    micro_batch_size: int | None = None
    target_samples: int | None = None
    plain: tuple[object, ...] = ()
    warmup: LengthWarmup | None = None
    _orders: OrderedDict[tuple[int, int], Any] = field(default_factory=OrderedDict)

    @property
    def rows_per_step(self) -> int:
        """Instances of a batch; of variable lengths, of the shortest ones."""
        least = min((s.shortest if isinstance(s, VslInstances) else s.width) for s in self.epochs.sources(1))
        return max(self.batch_tokens // least, 1)

    @property
    def row_width(self) -> int | None:
        """Tokens of the longest instance."""
        return self.width

    @property
    def data_parallel_size(self) -> int | None:
        """Data-parallel ranks."""
        return self.ranks

    @property
    def identity(self) -> tuple[object, ...]:
        """Everything that decides the order."""
        return self.plain

    def _kept(self, epoch: int, batch_tokens: int) -> Any:
        key = (epoch, batch_tokens if self.epochs.curriculum else 0)
        if key not in self._orders:
            self._orders[key] = self.epochs.variable_batches(epoch, batch_tokens) if self.epochs.curriculum else self.epochs.order(epoch)
            if len(self._orders) > 2:
                self._orders.popitem(last=False)
        return self._orders[key]

    def rows(self, steps: StepRange) -> Rows:
        """The instances of these steps."""
        out = []
        at = steps.start
        while at < steps.stop:
            epoch, batch, tokens, last = self.walk.place(at)
            count = min(steps.stop, last + 1) - at
            found = self._kept(epoch, tokens)
            if self.epochs.curriculum:
                out += [self._batch(at + i, epoch, np.asarray(found[batch + i], np.int64), contiguous=True) for i in range(count)]
            else:
                size = tokens // self.epochs.sources(epoch)[0].width
                ids = np.asarray(found[batch * size : (batch + count) * size], np.int64).reshape(count, size)
                out.append(self._batches(at, epoch, ids))
            at += count
        return Rows.concat(out)

    def _batches(self, step: int, epoch: int, ids: Ids) -> Rows:
        """Batches [step, instance]: rank r takes every ranks-th instance from r on."""
        n, size = ids.shape
        order = np.argsort(np.arange(size) % self.ranks, kind="stable")
        rank = np.tile((np.arange(size) % self.ranks)[order], n)
        steps = np.repeat(np.arange(step, step + n), size)
        return Rows(steps, ids[:, order].reshape(-1), rank, np.zeros(n * size, np.int64), np.full(n * size, epoch - 1))

    def _batch(self, step: int, epoch: int, ids: Ids, *, contiguous: bool) -> Rows:
        """A batch of variable lengths: every rank takes a contiguous part, a rest is not read."""
        each = len(ids) // self.ranks
        ids = ids[: each * self.ranks]
        n = len(ids)
        return Rows(np.full(n, step), ids, np.repeat(np.arange(self.ranks), each), np.zeros(n, np.int64), np.full(n, epoch - 1))

    def _by_source(self, rows: Rows) -> list[tuple[Ids, Instances, Ids]]:
        """Rows, the source they come from, and their numbers in it."""
        out = []
        for epoch in np.unique(rows.epoch).tolist():
            sources = self.epochs.sources(epoch + 1)
            first = np.cumsum([0, *(s.length for s in sources)])
            mine = np.flatnonzero(rows.epoch == epoch)
            source = np.searchsorted(first, rows.sample[mine], side="right") - 1
            out += [(mine[source == i], sources[i], rows.sample[mine[source == i]] - first[i]) for i in np.unique(source).tolist()]
        return out

    def segments(self, rows: Rows) -> Segments:
        """What these instances consist of."""
        columns: list[tuple[Ids, Ids, Ids, Ids, Ids, Ids]] = []
        numbers = np.asarray(self.corpora, np.int64)
        for mine, source, ids in self._by_source(rows):
            p = source.pieces(ids)
            for file in np.unique(p.file).tolist():
                here = np.flatnonzero(p.file == file)
                owner, document, start, stop = cut(source.files[file].bounds, p.start[here], p.stop[here])
                at = here[owner]
                inside = start + source.files[file].bounds[document] - p.start[at]
                columns.append((mine[p.row[at]], p.place[at] + inside, np.full(len(at), numbers[file]), document, start, stop))
        if not columns:
            none = np.zeros(0, np.int64)
            return Segments(none, none, none, none, none, none)
        row, place, corpus, document, start, stop = (np.concatenate(c) for c in zip(*columns))
        order = np.lexsort((place, row))
        if self.warmup is not None:
            stop = np.minimum(stop, start + np.maximum(self._widths(rows)[row] - place, 0))
            order = order[stop[order] > start[order]]
        return Segments(row[order], place[order], corpus[order], document[order], start[order], stop[order])

    def _widths(self, rows: Rows) -> Ids:
        """Tokens that the trainer keeps of each row."""
        if self.warmup is None:
            return np.full(len(rows), self.width)
        steps, owner = np.unique(rows.step, return_inverse=True)
        return np.array([self.warmup.width(step, self.width) for step in steps.tolist()], np.int64)[owner]

    def inserted(self, rows: Rows, segments: Segments) -> Inserted | None:
        """Padding and special tokens that the data set adds."""
        out = []
        for mine, source, ids in self._by_source(rows):
            added = source.added(ids, source.pieces(ids))
            if added is not None:
                keep = added.place < self._widths(rows)[mine[added.row]]
                out.append((mine[added.row[keep]], added.place[keep], added.token[keep]))
        return Inserted(*(np.concatenate(c) for c in zip(*out))) if out else None

    def candidates(self, corpus: int, documents: Ids) -> Ids | None:
        """All instances may hold a document: how they are made is not inverted."""
        return None

    def counter(self, steps: StepRange) -> Ids:
        """Tokens seen by the trainer after each step."""
        return np.array([self.walk.after(step).total_tokens for step in steps], np.int64)


class CoreLoader(PlannedLoader):
    """The loader, with what only this trainer has: instances whose loss is masked."""

    def masked(self, run: RunSpec, steps: StepRange, launch: int) -> NDArray[np.bool_]:
        """Whether the n-gram filter masks each row of these steps; all False without a filter."""
        order = self.opened(run).orders[launch]
        out = []
        for rows, tokens in self.sequences(run, steps, launch):
            masks = order.masks if isinstance(order, CoreOrder) else None
            out.append(np.zeros(len(rows), np.bool_) if masks is None else ~masks.keeps(tokens))
        return np.concatenate(out) if out else np.zeros(0, np.bool_)


def open_core(run: RunSpec) -> History:
    """A run with its data opened and its launches chained."""
    files = Files(run.path)
    orders: list[CoreOrder] = []
    for launch in run.launches:
        orders.append(_order(run, launch, files, orders))
    names = dict(enumerate(files.names))
    return History(dict(enumerate(files.stores)), names, tuple(orders))


def _order(run: RunSpec, launch: Launch, files: Files, before: list[CoreOrder]) -> CoreOrder:
    top = Arguments("olmo_core", launch.args, TOP)
    composable = "sources" in top
    loader = Arguments("data_loader", top.mapping("data_loader"), (*LOADER, *(COMPOSABLE if composable else ())), LOADER_HARMLESS)
    trainer = read_trainer(top.mapping("trainer"), launch)
    state = _state(run, launch, top, before)
    batch = loader.integer("global_batch_size", least=1)
    seed = loader.integer("seed", 0) if state is None or state.seed is None else state.seed
    shuffle = loader.flag("shuffle", True)
    caches = [*run.cache, *(run.path(str(b.get("work_dir"))) for b in (loader.given, top.mapping("dataset")) if b.get("work_dir"))]
    if composable:
        data, epochs, numbers, masks = _composable(top, loader, files, seed, shuffle)
    else:
        data = open_dataset(top.mapping("dataset"), files, caches)
        epochs = Epochs(((data.instances,),), seed, shuffle, "inter_source", data.curriculum)
        numbers, masks = data.numbers, data.masks
    width = max(s.width for group in epochs.groups for s in group)
    ranks = top.integer("dp_world_size", top.integer("world_size", 1), least=1)
    _check_batch(batch, trainer.schedule, epochs, ranks)
    if data is not None and state is not None:
        _check_fingerprint(data, state, files, loader.flag("ignore_fingerprint_mismatch", bool(top.mapping("dataset").get("ignore_fingerprint_mismatch"))))
    start = (
        Counters(launch.after_step, 1, 0, 0, 0, batch)
        if state is None
        else Counters(launch.after_step, state.epoch, state.batches, state.tokens, state.total_tokens, batch)
    )
    walk = Walk(start, epochs.batches, data is None or data.curriculum is None, trainer.schedule)
    order = CoreOrder(launch, epochs, walk, ranks, numbers, masks, batch, width)
    order.launch = replace(launch, skipped=(*launch.skipped, *trainer.skipped))
    order.limit = trainer.end(walk, start)
    order.warmup = trainer.warmup
    order.micro_batch_size = top.integer("rank_microbatch_size") // width if "rank_microbatch_size" in top else None
    order.plain = (repr(dict(launch.args)), seed, start)
    order.origin, order.note = _origin(data, epochs)
    if order.warmup is not None and not order.warmup.truncate:
        split = f"up to step {order.warmup.steps} the trainer split every instance into shorter rows, which are shown whole"
        order.note = "; ".join(filter(None, (order.note, split)))
    return order


def _origin(data: DataSet | None, epochs: Epochs) -> tuple[str, str]:
    kind = "composable" if data is None else data.kind
    if data is not None and data.kind == "packed" and getattr(data.instances, "cached", False):
        return CACHED, data.note
    return (VERIFIED if kind in COMPARED else UNVERIFIED), "" if data is None else data.note


def _check_batch(batch: int, schedule: Sequence[Change], epochs: Epochs, ranks: int) -> None:
    for size in {batch, *(c.batch_size for c in schedule)}:
        if epochs.curriculum is None and size % (epochs.sources(1)[0].width * ranks):
            raise ConfigError(
                f"global_batch_size {size} is no multiple of sequence_length {epochs.sources(1)[0].width} on {ranks} ranks",
                hint="OLMo-core counts it in tokens",
            )
    if schedule and epochs.curriculum is not None:
        raise NotReplayable(
            "a batch size schedule over a data set of variable lengths is not modelled", hint="record what the run consumes instead (trainer: recorded)"
        )


def _state(run: RunSpec, launch: Launch, top: Arguments, before: Sequence[CoreOrder]) -> State | None:
    if "state" in top:
        state = read_state(run.path(top.text("state")))
    elif launch.after_step == 0:
        return None
    else:
        state = _chained(launch, before) or _in_checkpoints(run, launch)
    if state.step != launch.after_step:
        raise RunError(f"launch {launch.number} is said to start after step {launch.after_step}, but the state it loads stands at step {state.step}")
    return state


def _chained(launch: Launch, before: Sequence[CoreOrder]) -> State | None:
    for earlier in reversed(before):
        last = earlier.launch.last_step
        if earlier.launch.after_step < launch.after_step and (last is None or launch.after_step <= last):
            now = earlier.walk.after(launch.after_step)
            return State(now.step, now.epoch, now.tokens, now.batches, now.total_tokens, earlier.epochs.seed)
    return None


def _in_checkpoints(run: RunSpec, launch: Launch) -> State:
    for folder in [f for f in (run.checkpoint, *run.checkpoint_folders) if f]:
        for place in (folder / f"step{launch.after_step}", folder if folder.name == f"step{launch.after_step}" else folder / "absent"):
            if place.is_dir():
                return read_state(place)
    raise RunError(
        f"launch {launch.number} starts after step {launch.after_step}, which no earlier launch of the description ran",
        hint="describe the launch that ran it, name the folder of checkpoints as `checkpoint`, or give the trainer's state as `state`",
    )


def _check_fingerprint(data: DataSet, state: State, files: Files, ignored: bool) -> None:
    if not state.fingerprint or not data.fingerprint_fields or data.kind == "mixture":
        return
    sizes = [(p, files.stores[n].size_bytes) for p, n in zip(data.paths, data.numbers)]
    own = fingerprint(KINDS[data.kind], data.fingerprint_fields, sizes)
    if own != state.fingerprint and not ignored and all(value is not None for name, value in data.fingerprint_fields if name == "vocab_size"):
        raise RunError(
            f"the data set described has the fingerprint {own[:12]}..., the state was saved with {state.fingerprint[:12]}...",
            hint="files, tokenizer or type of ids differ; if the run itself went on with other data, set data_loader.ignore_fingerprint_mismatch",
        )


def _composable(top: Arguments, loader: Arguments, files: Files, seed: int, shuffle: bool) -> tuple[None, Epochs, Sequence[int], Filter | None]:
    words = read_tokenizer(
        Arguments("data_loader", {"tokenizer": loader.get("tokenizer") or {}}, ("tokenizer", "eos_token_id", "pad_token_id", "bos_token_id", "vocab_size"))
    )
    builder = Builder(files, words)
    sources: list[Picked] = [builder.instances(s) for s in top.listed("sources")]
    joined(sources)
    each = loader.integer("sources_per_epoch", -1, least=-1)
    each = len(sources) if each in (-1, 0) else each
    if len(sources) % each:
        raise ConfigError(f"sources_per_epoch {each} does not divide the {len(sources)} sources", hint="OLMo-core refuses this too")
    strategy = loader.choice("shuffle_strategy", ("inter_source", "intra_source", "interleaved_source"), "inter_source")
    groups = tuple(tuple(sources[i : i + each]) for i in range(0, len(sources), each))
    if "seed" not in loader and shuffle:
        raise NotReplayable(
            "the seed of the composable loader is not given", hint="take it from the saved configuration or state: --set args.data_loader.seed=..."
        )
    return None, Epochs(groups, seed, shuffle, strategy), range(len(files.stores)), read_filter(loader.get("instance_filter_config"))


CORE = CoreLoader("olmo-core", open_core)
