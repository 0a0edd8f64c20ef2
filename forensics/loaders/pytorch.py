"""Plain PyTorch, torchdata, Accelerate and the Hugging Face Trainer: from a step to the examples its ranks read.

`loader` says which: `DistributedSampler`, `DataLoader` (sequential, or shuffled by a generator of known seed),
`StatefulDataLoader`, `Accelerate`, `Trainer`. The orders are in `pytorch_order`; here are options, steps and resumes. Orders that
depend on the global random state (a shuffled `DataLoader` without generator, `group_by_length`) cannot be recomputed.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.errors import ConfigError, NotReplayable, RunError
from forensics.loaders.arguments import Arguments
from forensics.loaders.base import LOADERS
from forensics.loaders.examples import ExampleStore
from forensics.loaders.planned import VERIFIED, History, Inserted, PlannedLoader, Rows, Segments, batch_rows, places
from forensics.loaders.pytorch_options import LOADER_NAMES, read_accelerator, read_options
from forensics.loaders.pytorch_order import LoaderEpochs, Sharding, StatefulEpochs, TorchGenerator, distributed, sharded
from forensics.run import Launch, RunSpec
from forensics.steps import StepRange
from forensics.unpickle import Tensor
from forensics.unpickle import load as load_checkpoint

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Position:
    """Where a launch starts: an epoch, from 0, and micro batches of it that are passed over."""

    epoch: int = 0
    micro: int = 0


@dataclass
class TorchOrder:
    """What one launch reads.

    Attributes:
        stores: data files in the order the data set counts them; `corpora` their numbers.
        batches: micro batches of an epoch [micro batch, rank, place].
        start: position at the start.
        accumulation: micro batches per step; `partial` what happens to the rest of an epoch: dropped, kept or carried.
    """

    launch: Launch
    stores: Sequence[ExampleStore]
    corpora: Sequence[int]
    batches: Callable[[int], Ids]
    start: Position
    accumulation: int
    partial: str
    ranks: int
    size: int
    plain: tuple[object, ...] = ()
    limit: int | None = None
    origin: str = VERIFIED
    note: str = ""
    target_samples: int | None = None
    _kept: OrderedDict[int, Ids] = field(default_factory=OrderedDict)
    _length: int | None = None

    @property
    def rows_per_step(self) -> int:
        """Examples of a full step."""
        return self.size * self.ranks * self.accumulation

    @property
    def row_width(self) -> int | None:
        """Tokens of the longest example."""
        return max((int(np.diff(s.bounds).max(initial=0)) for s in self.stores), default=0)

    @property
    def data_parallel_size(self) -> int | None:
        """Ranks."""
        return self.ranks

    @property
    def micro_batch_size(self) -> int | None:
        """Examples per rank and micro batch."""
        return self.size

    @property
    def identity(self) -> tuple[object, ...]:
        """Everything that decides the order."""
        return (*self.plain, self.start)

    def epoch(self, number: int) -> Ids:
        """Micro batches of an epoch, all of them."""
        if number not in self._kept:
            self._kept[number] = self.batches(number)
            if len(self._kept) > 2:
                self._kept.popitem(last=False)
        return self._kept[number]

    @property
    def micros(self) -> int:
        """Micro batches of an epoch."""
        if self._length is None:
            self._length = len(self.epoch(self.start.epoch))
        if not self._length:
            raise RunError("an epoch of this run holds no batch", hint="check the batch size and `drop_last`")
        return self._length

    def _steps(self, micro: int) -> int:
        """Steps of what is left of an epoch after `micro` micro batches."""
        left = max(self.micros - micro, 0)
        return left // self.accumulation if self.partial == "dropped" else -(-left // self.accumulation)

    def place(self, step: int) -> tuple[Position, int]:
        """First micro batch of a step and how many of its epoch it takes."""
        done = step - self.launch.after_step - 1
        if self.partial == "carried":
            epoch, micro = divmod(self.start.epoch * self.micros + self.start.micro + done * self.accumulation, self.micros)
            return Position(epoch, micro), self.accumulation
        first = self._steps(self.start.micro)
        if done < first:
            at = Position(self.start.epoch, self.start.micro + done * self.accumulation)
        else:
            whole = self._steps(0)
            if not whole:
                raise RunError(f"an epoch of {self.micros} micro batches makes no step of {self.accumulation}")
            epoch, inside = divmod(done - first, whole)
            at = Position(self.start.epoch + 1 + epoch, inside * self.accumulation)
        return at, min(self.accumulation, self.micros - at.micro)

    def after(self, step: int) -> Position:
        """Where an uninterrupted run stands after a step."""
        at, count = self.place(step)
        epoch, micro = divmod(at.epoch * self.micros + at.micro + count, self.micros)
        if self.partial != "carried" and micro and not self._steps(micro):
            return Position(epoch + 1, 0)
        return Position(epoch, micro)

    def rows(self, steps: StepRange) -> Rows:
        """The examples of these steps."""
        out = []
        for step in steps:
            at, count = self.place(step)
            done = 0
            while done < count:
                ids = self.epoch(at.epoch)[at.micro : at.micro + count - done]
                number = np.arange(done, done + len(ids))
                out.append(batch_rows(np.full(len(ids), step), ids, at.epoch, microbatch=number))
                done += len(ids)
                at = Position(at.epoch + 1, 0)
        return Rows.concat(out)

    def segments(self, rows: Rows) -> Segments:
        """Whole examples."""
        first = np.cumsum([0, *(s.n_documents for s in self.stores)])
        which = np.searchsorted(first, rows.sample, side="right") - 1
        document = rows.sample - first[which]
        size = np.zeros(len(rows), np.int64)
        for i in np.unique(which).tolist():
            size[which == i] = self.stores[i].document_lengths(document[which == i])
        keep = size > 0
        at = np.flatnonzero(keep)
        corpus = np.asarray(self.corpora, np.int64)[which[keep]]
        return Segments(at, places(at, size[keep]), corpus, document[keep], np.zeros(len(at), np.int64), size[keep])

    def inserted(self, rows: Rows, segments: Segments) -> Inserted | None:
        """Padding is the collator's own and no part of an example."""
        return None

    def candidates(self, corpus: int, documents: Ids) -> Ids | None:
        """The examples themselves."""
        first = np.cumsum([0, *(s.n_documents for s in self.stores)])
        out = [documents[documents < self.stores[i].n_documents] + first[i] for i, number in enumerate(self.corpora) if number == corpus]
        return np.unique(np.concatenate(out)) if out else np.zeros(0, np.int64)

    def counter(self, steps: StepRange) -> Ids:
        """These loops keep no count of examples."""
        return np.full(len(steps), -1, np.int64)


def _shuffled(n: int, seed: int) -> Callable[[int], Ids]:
    return lambda epoch: TorchGenerator(seed + epoch).permutation(n)


def _in_order(n: int) -> Callable[[int], Ids]:
    return lambda epoch: np.arange(n)


@dataclass
class _Opener:
    """Opens launches over one set of data files."""

    run: RunSpec
    default: str | None
    names: dict[str, int] = field(default_factory=dict)
    files: dict[int, ExampleStore] = field(default_factory=dict)
    orders: list[TorchOrder] = field(default_factory=list)

    def open(self, launch: Launch) -> TorchOrder:
        """One launch."""
        name = str(launch.args.get("loader") or self.default or "").split("+")[0].rpartition(".")[2]
        if name not in LOADER_NAMES:
            if name == "IterableDataset":
                raise ConfigError("a `datasets.IterableDataset` is a trainer of its own here", hint="trainer: datasets")
            raise ConfigError(f"`loader: {name}` is none of {', '.join(LOADER_NAMES)}")
        read = read_options(name, launch.args, self.run.folder)
        stores, corpora = self._data(read)
        n = sum(s.n_documents for s in stores)
        if not n:
            raise RunError("the data set holds no example")
        ranks, accumulation = read.integer("world_size", 1, least=1), read.integer("gradient_accumulation_steps", 1, least=1)
        if name == "Trainer":
            order = self._trainer(launch, read, stores, corpora, n, ranks, accumulation)
        else:
            size = read.integer("batch_size", least=1)
            partial = read.choice("partial_accumulation", ("dropped", "kept", "carried"), "kept")
            batches, start = self._loader(name, launch, read, n, ranks, size)
            order = TorchOrder(launch, stores, corpora, batches, start or Position(), accumulation, partial, ranks, size)
            if accumulation > 1 and "partial_accumulation" not in read and order.micros % accumulation:
                raise NotReplayable(
                    f"an epoch has {order.micros} micro batches, no multiple of {accumulation}: what the loop does with the rest decides every later step",
                    hint="say it: --set args.partial_accumulation=dropped, kept (a shorter step) or carried (into the next epoch)",
                )
            if start is None:
                order.start = self._chained(launch, order)
            if "epochs" in read and partial != "carried":
                order.limit = launch.after_step + order._steps(order.start.micro) + max(read.integer("epochs") - order.start.epoch - 1, 0) * order._steps(0) + 1
        if "max_steps" in read and read.integer("max_steps") > 0:
            order.limit = read.integer("max_steps") + 1
        order.plain = (name, repr(sorted(launch.args.items(), key=str)), n)
        self.orders.append(order)
        return order

    def _data(self, read: Arguments) -> tuple[list[ExampleStore], list[int]]:
        paths = [str(p) for p in read.listed("data")]
        if not paths:
            raise ConfigError(
                f"{read.owner} needs `data`: the files of the data set, in its order", hint="write it under `args:` of the description, or --set args.data=FILE"
            )
        for path in paths:
            if path not in self.names:
                self.names[path] = len(self.names)
                self.files[self.names[path]] = ExampleStore(self.run.path(path), read.get("column"), read.optional("max_length", least=1))
        return [self.files[self.names[p]] for p in paths], [self.names[p] for p in paths]

    def _loader(self, name: str, launch: Launch, read: Arguments, n: int, ranks: int, size: int) -> tuple[Callable[[int], Ids], Position | None]:
        """Batches per epoch, and the position at the start where the options give it."""
        drop = read.flag("drop_last", False)
        if name == "DistributedSampler":
            seed, shuffle, told = read.integer("seed", 0), read.flag("shuffle", True), read.flag("set_epoch_called", True)
            cut = read.flag("sampler_drop_last", False)
            return (
                lambda epoch: distributed(n, ranks, size, seed=seed, epoch=epoch if told else 0, shuffle=shuffle, sampler_drop_last=cut, drop_last=drop),
                None if launch.after_step else Position(),
            )
        if name == "Accelerate":
            return self._accelerate(launch, read, n, ranks, size, drop)
        if ranks > 1:
            raise NotReplayable(
                f"`{name}` on several ranks without a distributed sampler reads as each rank's own code says",
                hint="use `DistributedSampler`, or describe one rank",
            )
        how = Sharding(1)
        if not read.flag("shuffle", False):
            return (lambda epoch: sharded(np.arange(n), size, drop, how)), None if launch.after_step else Position()
        if name == "StatefulDataLoader":
            return self._stateful(launch, read, n, size, drop)
        if "generator_seed" not in read:
            raise NotReplayable(
                "a shuffled DataLoader without its own generator is seeded from the global random state at each epoch, which all draws before it moved",
                hint="record the ids of each batch (trainer: recorded), or give the loader a generator: `generator_seed`",
            )
        if launch.after_step and launch.number:
            raise NotReplayable(
                "a generator's state is not saved by a plain DataLoader: what a resumed run read depends on how it was seeded again",
                hint="use StatefulDataLoader, or record ids",
            )
        lasting = read.flag("persistent_workers", False) and read.integer("num_workers", 0, least=0) > 0
        epochs = LoaderEpochs(TorchGenerator(read.integer("generator_seed")), n, lasting)
        return (lambda epoch: sharded(epochs.order(epoch), size, drop, how)), Position()

    def _stateful(self, launch: Launch, read: Arguments, n: int, size: int, drop: bool) -> tuple[Callable[[int], Ids], Position]:
        workers, lasting = read.integer("num_workers", 0, least=0), read.flag("persistent_workers", False)
        if "state" in read:
            generator, yielded = read_stateful(self.run.path(read.text("state")))
            epochs = StatefulEpochs(generator, n, workers=workers, resumed=True, persistent=lasting)
            return (lambda epoch: sharded(epochs.order(epoch), size, drop, Sharding(1))), Position(0, yielded)
        if launch.after_step:
            raise NotReplayable(
                "where a StatefulDataLoader goes on after a resume depends on the whole chain of states",
                hint="give the state that this launch loaded: `state: FILE`",
            )
        if "generator_seed" not in read:
            raise NotReplayable("the generator of a StatefulDataLoader is not known", hint="give its seed as `generator_seed`, or a saved state as `state`")
        epochs = StatefulEpochs(TorchGenerator(read.integer("generator_seed")), n, workers=workers, resumed=False, persistent=lasting)
        return (lambda epoch: sharded(epochs.order(epoch), size, drop, Sharding(1))), Position()

    def _accelerate(self, launch: Launch, read: Arguments, n: int, ranks: int, size: int, drop: bool) -> tuple[Callable[[int], Ids], Position | None]:
        how = Sharding(ranks, read.flag("split_batches", False), read.flag("even_batches", True), read.flag("dispatch_batches", False))
        shuffle = read.flag("shuffle", True)
        if shuffle and not read.flag("use_seedable_sampler", True):
            raise NotReplayable(
                "without `use_seedable_sampler` Accelerate seeds the order from the global random state",
                hint="record the ids of each batch (trainer: recorded)",
            )
        seed = read.integer("data_seed" if read.get("data_seed") is not None else "seed") if shuffle else 0
        order = _shuffled(n, seed) if shuffle else _in_order(n)
        start = Position(read.integer("epoch", 0, least=0), read.integer("skip_first_batches", 0, least=0)) if launch.after_step else Position()
        if launch.after_step and "skip_first_batches" not in read and "epoch" not in read:
            return (lambda epoch: sharded(order(epoch), size, drop, how)), None
        late = _resumed_wrongly(read, start) if shuffle else False
        return (lambda epoch: sharded(order(0 if late and epoch == start.epoch else epoch), size, drop, how)), start

    def _chained(self, launch: Launch, order: TorchOrder) -> Position:
        """Where the launch that ran the step before stood, for loops that resume exactly."""
        for earlier in reversed(self.orders):
            last = earlier.launch.last_step
            if earlier.launch.after_step < launch.after_step and (last is None or launch.after_step <= last):
                return earlier.after(launch.after_step)
        epoch, inside = divmod(launch.after_step, max(order._steps(0), 1))
        return Position(epoch, inside * order.accumulation)

    def _trainer(
        self, launch: Launch, read: Arguments, stores: Sequence[ExampleStore], corpora: Sequence[int], n: int, ranks: int, accumulation: int
    ) -> TorchOrder:
        strategy = read.text("train_sampling_strategy", "random")
        config = read_accelerator(read)
        if strategy == "random" and not config.flag("use_seedable_sampler", True):
            raise NotReplayable(
                "without `use_seedable_sampler` the order depends on the global random state", hint="record the ids of each batch (trainer: recorded)"
            )
        how = Sharding(ranks, config.flag("split_batches", False), config.flag("even_batches", True), config.flag("dispatch_batches", False))
        size, drop = read.integer("per_device_train_batch_size", 8, least=1), read.flag("dataloader_drop_last", False)
        order = _shuffled(n, read.integer("data_seed", read.integer("seed", 42))) if strategy == "random" else _in_order(n)
        each = size // ranks if how.split_batches else size
        out = TorchOrder(launch, stores, corpora, lambda epoch: sharded(order(epoch), size, drop, how), Position(), accumulation, "kept", ranks, each)
        per_epoch = max(math.ceil(out.micros / accumulation), 1)
        epoch, inside = divmod(launch.after_step, per_epoch)
        out.start = Position(epoch, 0 if read.flag("ignore_data_skip", False) else inside * accumulation)
        out.limit = math.ceil(read.number("num_train_epochs", 3.0) * per_epoch) + 1
        return out


def _resumed_wrongly(read: Arguments, start: Position) -> bool:
    """Whether the resumed epoch was shuffled with the seed of epoch 0: Accelerate before its change #4071.

    Raises:
        NotReplayable: the version is not known where it matters.
    """
    if not start.epoch or not start.micro:
        return False
    given = re.match(r"(\d+)\.(\d+)", str(read.get("accelerate_version") or ""))
    if given is None:
        raise NotReplayable(
            "older versions of Accelerate shuffle an epoch that is resumed in its middle with the seed of epoch 0, and the version is not given",
            hint="--set args.accelerate_version=1.15.0",
        )
    return (int(given[1]), int(given[2])) < (1, 15)


def read_stateful(path: Path) -> tuple[TorchGenerator, int]:
    """Generator and batches yielded of a saved `StatefulDataLoader.state_dict()`, with or without workers.

    Raises:
        RunError: a file that holds none, or the state of a finished epoch.
    """
    found = load_checkpoint(path)
    state = _find(found, "generator")
    if not isinstance(state, Tensor):
        raise RunError(f"{path} holds no generator state", hint="only a loader with a random sampler saves one")
    yielded = _find(found, "_num_yielded")
    if yielded is None:
        snapshot = _find(found, "_snapshot_step")
        since = _find(found, "_steps_since_snapshot")
        yielded = int(str(snapshot or 0)) + int(str(since or 0))
    if _find(found, "_iterator_finished") is True:
        raise NotReplayable(
            f"{path} was saved at the end of an epoch, where versions of torchdata differ in what comes next",
            hint="record the ids of each batch (trainer: recorded)",
        )
    return TorchGenerator(state=np.asarray(state.numpy(), np.uint8)), int(str(yielded))


def _find(value: object, key: str) -> object:
    """The first value under a key, in depth."""
    if isinstance(value, Mapping):
        if key in value:
            return value[key]
        for inner in value.values():
            if (found := _find(inner, key)) is not None:
                return found
    if isinstance(value, (list, tuple)):
        for inner in value:
            if (found := _find(inner, key)) is not None:
                return found
    return None


def _open(default: str | None) -> Callable[[RunSpec], History]:
    def opened(run: RunSpec) -> History:
        opener = _Opener(run, default)
        for launch in run.launches:
            opener.open(launch)
        files: dict[int, Any] = dict(opener.files)
        return History(files, {n: p for p, n in opener.names.items()}, tuple(opener.orders))

    return opened


PYTORCH, HF = PlannedLoader("pytorch", _open(None)), PlannedLoader("hf", _open("Trainer"))
LOADERS.add("pytorch", PYTORCH, __name__)
LOADERS.add("hf", HF, __name__)
