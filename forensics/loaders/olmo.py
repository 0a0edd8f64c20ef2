"""Old OLMo (allenai/OLMo): from a step to the instances its ranks read.

Reproduces `IterableDataset` (olmo/data/iterable_dataset.py), `MemMapDataset` (olmo/data/memmap_dataset.py) and the counters of
`Trainer` (olmo/train.py), read at 59a53e3f of 2025-09-04. Options are those of `TrainConfig`. Epochs count from 0. Before the
change named in OLMo#268 the order also depended on ranks and workers; such runs are not modelled. Where the run saved
its indices (`data-indices/rank*.tsv.gz`), they are the truth and are used in place of the order.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.errors import ConfigError, NotReplayable, RunError, StoreError
from forensics.loaders.arguments import Arguments
from forensics.loaders.arrays import ArrayStore
from forensics.loaders.base import LOADERS
from forensics.loaders.olmo_core.fsl import FslInstances
from forensics.loaders.olmo_core.repetition import Filter
from forensics.loaders.planned import RECORDED, VERIFIED, History, Inserted, PlannedLoader, Rows, Segments, cut, places
from forensics.run import Launch, RunSpec
from forensics.steps import StepRange
from forensics.unpickle import load, plain

Ids = NDArray[np.int64]
TOP = (
    "data", "model", "seed", "global_train_batch_size", "device_train_microbatch_size", "epoch", "fast_forward_batches", "restore_dataloader", "max_duration",
    "stop_at", "world_size", "state", "data_indices",
)  # fmt: skip
DATA = ("paths", "datasets", "memmap_dtype", "seed", "drop_last", "instance_filter", "custom_dataset", "num_workers")
DATA_HARMLESS = (
    "label_mask_paths", "pad_direction", "generate_attention_mask", "generate_doc_lengths", "pin_memory", "prefetch_factor",
    "persistent_workers", "timeout",
)  # fmt: skip


def global_order(n: int, seed: int, epoch: int, ranks: int, drop_last: bool) -> NDArray[np.uint32]:
    """Instances of an epoch in shuffled order, cut or filled up to a multiple of the ranks."""
    order: NDArray[np.uint32] = np.arange(n, dtype=np.uint32)
    np.random.Generator(np.random.PCG64(seed + epoch)).shuffle(order)
    if drop_last:
        return order[: (math.ceil((n - ranks) / ranks) if n % ranks else n // ranks) * ranks]
    return np.resize(order, math.ceil(n / ranks) * ranks)


@dataclass(frozen=True)
class State:
    """Where a launch starts: step, epoch, examples of the epoch read or passed over, tokens trained on."""

    step: int = 0
    epoch: int = 0
    examples: int = 0
    tokens: int = 0


def read_state(path: Path, batch: int, length: int) -> State:
    """A trainer's state of any layout: `train/rank0.pt`, `train.pt` or `rank0.pt` of a checkpoint folder, or a file.

    Raises:
        RunError: no such file, or one that lacks what it must hold.
    """
    files = [path] if path.is_file() else [p for p in (path / "train" / "rank0.pt", path / "train.pt", path / "rank0.pt") if p.is_file()]
    if not files:
        raise RunError(f"{path} holds no trainer state of OLMo", hint="train/rank0.pt, train.pt and rank0.pt were looked for")
    found = plain(load(files[0]))
    if not isinstance(found, Mapping) or "global_step" not in found:
        raise RunError(f"{files[0]} lacks `global_step`")
    step = int(found["global_step"])
    older = int(found.get("global_data_step", step)) * batch
    examples = found.get("global_train_examples_seen_this_epoch", found.get("global_train_examples_seen", older))
    return State(step, int(found.get("epoch") or 0), int(examples), int(found.get("global_train_tokens_seen", older * length)))


@dataclass
class OlmoOrder:
    """What one launch reads."""

    launch: Launch
    instances: FslInstances
    corpora: Sequence[int]
    seed: int
    ranks: int
    batch: int
    drop_last: bool
    start: State
    masks: Filter | None = None
    microbatch: int | None = None
    workers: int = 0
    limit: int | None = None
    origin: str = VERIFIED
    note: str = ""
    recorded: Mapping[int, list[Ids]] | None = None
    target_samples: int | None = None
    _epochs: OrderedDict[int, NDArray[np.uint32]] = field(default_factory=OrderedDict)

    @property
    def rows_per_step(self) -> int:
        """Instances of a batch."""
        return self.batch

    @property
    def row_width(self) -> int | None:
        """Tokens of an instance."""
        return self.instances.width

    @property
    def data_parallel_size(self) -> int | None:
        """Ranks."""
        return self.ranks

    @property
    def micro_batch_size(self) -> int | None:
        """Instances per rank and microbatch."""
        return self.microbatch or self.batch // self.ranks

    @property
    def identity(self) -> tuple[object, ...]:
        """Everything that decides the order."""
        return (self.instances.counts, self.instances.width, self.seed, self.ranks, self.batch, self.drop_last, self.start)

    def _order(self, epoch: int) -> NDArray[np.uint32]:
        if epoch not in self._epochs:
            self._epochs[epoch] = global_order(self.instances.length, self.seed, epoch, self.ranks, self.drop_last)
            if len(self._epochs) > 2:
                self._epochs.popitem(last=False)
        return self._epochs[epoch]

    def _each(self, start: int) -> int:
        """Instances of every rank from an index of the order on."""
        n = self.instances.length
        total = (math.ceil((n - self.ranks) / self.ranks) if self.drop_last and n % self.ranks else math.ceil(n / self.ranks)) * self.ranks
        return max(total - start, 0) // self.ranks

    def _batches(self, start: int) -> int:
        """Batches of every rank from an index of the order on."""
        each, size = self._each(start), self.batch // self.ranks
        return each // size if self.drop_last else -(-each // size)

    def _check_end(self, step: int, start: int) -> None:
        """Refuse an epoch's end that several workers share: each makes a short batch, and so a step, of its part of the rest."""
        rest = self._each(start) % (self.batch // self.ranks)
        if self.workers > 1 and rest > 1 and not self.drop_last:
            raise NotReplayable(
                f"step {step} lies at or after an epoch's end, where `num_workers: {self.workers}` without `drop_last` split the last batch into several steps",
                hint="ask for steps before it, or record what the run consumes (trainer: recorded)",
            )

    def place(self, step: int) -> tuple[int, int, int]:
        """Epoch, index of the order and batches left in the epoch, of a step."""
        done = step - self.start.step - 1
        first = self._batches(self.start.examples)
        if done >= first - 1:
            self._check_end(step, self.start.examples)
        if done < first:
            return self.start.epoch, self.start.examples + done * self.batch, first - done
        whole = self._batches(0)
        if not whole:
            raise RunError(f"an epoch of {self.instances.length} instances holds no batch of {self.batch}")
        epoch, batch = divmod(done - first, whole)
        if epoch or batch == whole - 1:
            self._check_end(step, 0)
        return self.start.epoch + 1 + epoch, batch * self.batch, whole - batch

    def after(self, step: int) -> State:
        """The state that a checkpoint of this step holds."""
        epoch, index, _ = self.place(step)
        return State(step, epoch, index + self.batch, self.start.tokens + (step - self.start.step) * self.batch * self.instances.width)

    def rows(self, steps: StepRange) -> Rows:
        """The instances of these steps."""
        out = []
        at = steps.start
        while at < steps.stop:
            epoch, index, left = self.place(at)
            count = min(steps.stop - at, left)
            self.place(at + count - 1)  # refuses an end of the epoch that is not known
            ids = self._order(epoch)[index : index + count * self.batch].astype(np.int64)
            ids = np.concatenate([ids, np.full(count * self.batch - len(ids), -1, np.int64)])
            out.append(self._rows(at, epoch, ids.reshape(count, self.batch // self.ranks, self.ranks).transpose(0, 2, 1)))
            at += count
        rows = Rows.concat(out)
        return rows if self.recorded is None else self._as_recorded(rows)

    def _rows(self, step: int, epoch: int, ids: Ids) -> Rows:
        """Rows of batches [step, rank, place]: microbatches outermost, then ranks."""
        n, ranks, size = ids.shape
        micro = np.arange(size) // (self.microbatch or size)
        number = np.broadcast_to(micro, ids.shape).reshape(n, -1)
        order = np.argsort(number, axis=1, kind="stable")
        rank = np.broadcast_to(np.arange(ranks)[:, None], (ranks, size)).reshape(-1)
        flat = np.take_along_axis(ids.reshape(n, -1), order, 1).reshape(-1)
        rows = Rows(
            np.repeat(np.arange(step, step + n), ranks * size),
            flat,
            rank[order].reshape(-1),
            np.take_along_axis(number, order, 1).reshape(-1),
            np.full(len(flat), epoch),
        )
        return rows if (flat >= 0).all() else rows.take(flat >= 0)

    def _as_recorded(self, rows: Rows) -> Rows:
        """The rows with the numbers that the run wrote down, where it wrote down as many."""
        assert self.recorded is not None
        sample = rows.sample.copy()
        for step in np.unique(rows.step).tolist():
            if step not in self.recorded:
                continue
            mine = rows.step == step
            for rank in range(self.ranks):
                here = np.flatnonzero(mine & (rows.rank == rank))
                listed = self.recorded[step][rank] if rank < len(self.recorded[step]) else np.zeros(0, np.int64)
                if len(listed) != len(here):
                    raise RunError(
                        f"the run wrote down {len(listed)} indices for step {step} of rank {rank}, {len(here)} are expected",
                        hint="check global_train_batch_size and world_size",
                    )
                sample[here] = listed
        return replace(rows, sample=sample)

    def segments(self, rows: Rows) -> Segments:
        """What these instances consist of."""
        pieces = self.instances.pieces(rows.sample)
        columns = []
        for file in np.unique(pieces.file).tolist():
            here = np.flatnonzero(pieces.file == file)
            owner, document, start, stop = cut(self.instances.files[file].bounds, pieces.start[here], pieces.stop[here])
            columns.append((here[owner], np.full(len(owner), self.corpora[file]), document, start, stop))
        if not columns:
            none = np.zeros(0, np.int64)
            return Segments(none, none, none, none, none, none)
        row, corpus, document, start, stop = (np.concatenate(c) for c in zip(*columns))
        order = np.argsort(row, kind="stable")
        row, corpus, document, start, stop = row[order], corpus[order], document[order], start[order], stop[order]
        return Segments(row, places(row, stop - start), corpus, document, start, stop)

    def inserted(self, rows: Rows, segments: Segments) -> Inserted | None:
        """OLMo adds no tokens."""
        return None

    def candidates(self, corpus: int, documents: Ids) -> Ids | None:
        """Windows that hold tokens of these documents."""
        width, first = self.instances.width, np.cumsum([0, *self.instances.counts])
        out = [np.zeros(0, np.int64)]
        for file, number in enumerate(self.corpora):
            if number == corpus:
                bounds = self.instances.files[file].bounds
                known = documents[documents < len(bounds) - 1]
                for begin, end in zip(bounds[known].tolist(), bounds[known + 1].tolist()):
                    last = min(-(-end // width), self.instances.counts[file])
                    out.append(np.arange(begin // width, max(last, begin // width)) + first[file])
        return np.unique(np.concatenate(out))

    def counter(self, steps: StepRange) -> Ids:
        """`global_train_tokens_seen` after each step."""
        done = np.arange(steps.start, steps.stop) - self.start.step
        return self.start.tokens + done * self.batch * self.instances.width


def read_indices(folder: Path) -> dict[int, list[list[Ids]]]:
    """Indices that a run wrote down: step -> for each time it was run, indices by rank.

    Raises:
        StoreError: no such files, or lines that hold no numbers.
    """
    files = sorted(folder.glob("rank*.tsv.gz"), key=lambda p: int("".join(filter(str.isdigit, p.name.split(".")[0])) or 0))
    if not files:
        raise StoreError(f"{folder} holds no rank*.tsv.gz")
    out: dict[int, list[list[Ids]]] = {}
    for rank, path in enumerate(files):
        seen: dict[int, int] = {}
        try:
            with gzip.open(path, "rt", encoding="ascii", errors="replace") as lines:
                for line in lines:
                    step, *ids = line.split()
                    times = out.setdefault(int(step), [])
                    at = seen[int(step)] = seen.get(int(step), -1) + 1
                    if at == len(times):
                        times.append([])
                    times[at] += [np.zeros(0, np.int64)] * (rank - len(times[at]))
                    times[at].append(np.array([int(i) for i in ids], np.int64))
        except (ValueError, OSError, EOFError, zlib.error) as error:
            raise StoreError(f"{path} is damaged ({error})", hint="a run that is still going has its last lines unwritten: stop at an earlier step") from error
    return out


def open_olmo(run: RunSpec) -> History:
    """A run with its data opened and its launches chained."""
    stores: dict[str, int] = {}
    files: dict[int, ArrayStore] = {}
    orders: list[OlmoOrder] = []
    for launch in run.launches:
        orders.append(_order(run, launch, stores, files, orders))
    return History(dict(files), {n: p for p, n in stores.items()}, tuple(orders), sources=_labels(run, stores))


def _labels(run: RunSpec, stores: Mapping[str, int]) -> dict[int, str]:
    out = {}
    for launch in run.launches:
        for label, paths in (dict(launch.args.get("data") or {}).get("datasets") or {}).items():
            out.update({stores[str(p)]: str(label) for p in paths if str(p) in stores})
    return out


def _order(run: RunSpec, launch: Launch, stores: dict[str, int], files: dict[int, ArrayStore], before: Sequence[OlmoOrder]) -> OlmoOrder:
    top = Arguments("olmo", launch.args, TOP)
    data = Arguments("data", top.mapping("data"), DATA, DATA_HARMLESS)
    data.refuse("custom_dataset", None, "a foreign data set decides what an instance is")
    model = Arguments(
        "model", {k: v for k, v in top.mapping("model").items() if k in ("max_sequence_length", "eos_token_id")}, ("max_sequence_length", "eos_token_id")
    )
    paths = _paths(data)
    for path in paths:
        if path not in stores:
            stores[path] = len(stores)
            files[stores[path]] = ArrayStore(run.path(path), data.text("memmap_dtype", "uint16"), end=model.optional("eos_token_id"))
    corpora = [stores[p] for p in paths]
    width, ranks = model.integer("max_sequence_length", least=1), top.integer("world_size", 1, least=1)
    batch = top.integer("global_train_batch_size", least=1)
    if batch % ranks:
        raise ConfigError(f"global_train_batch_size {batch} is no multiple of world_size {ranks}", hint="OLMo refuses this too")
    seed = data.integer("seed", top.integer("seed", 6198))
    masks = _filter(data.mapping("instance_filter"))
    instances = FslInstances([files[n] for n in corpora], width, width)
    start = _start(run, launch, top, batch, width, before)
    order = OlmoOrder(launch, instances, corpora, seed, ranks, batch, data.flag("drop_last", False), start, masks, top.optional("device_train_microbatch_size"))
    order.workers = data.integer("num_workers", 0, least=0)
    order.limit = _end(top, order)
    if "data_indices" in top:
        order.recorded, order.origin = _recorded(run, top.text("data_indices"), launch, before), RECORDED
    return order


def _filter(given: Mapping[str, Any]) -> Filter | None:
    if not given:
        return None
    read = Arguments("instance_filter", given, ("repetition_max_period", "repetition_min_period", "repetition_max_count"))
    return Filter(read.integer("repetition_max_period", 13), read.integer("repetition_min_period", 1), read.integer("repetition_max_count", 32))


def _paths(data: Arguments) -> list[str]:
    if "datasets" in data:
        if data.listed("paths"):
            raise ConfigError("OLMo takes `data.paths` or `data.datasets`, not both")
        blocks = data.mapping("datasets")
        return [str(p) for label in sorted(blocks) for p in blocks[label]]
    paths = [str(p) for p in data.listed("paths")]
    if not paths:
        raise ConfigError("OLMo needs `data.paths` or `data.datasets`")
    return paths


def _start(run: RunSpec, launch: Launch, top: Arguments, batch: int, width: int, before: Sequence[OlmoOrder]) -> State:
    """Where a launch starts, fast-forward and a forced epoch included."""
    if not top.flag("restore_dataloader", True) or ("state" not in top and launch.after_step == 0):
        if launch.after_step:
            raise RunError(
                "with `restore_dataloader: false` OLMo counts steps from 0 again, so the launch starts after step 0", hint="set `after_step: 0` for it"
            )
        return State(epoch=top.integer("epoch", 0))
    found = read_state(run.path(top.text("state")), batch, width) if "state" in top else _chained(run, launch, before, batch, width)
    if found.step != launch.after_step:
        raise RunError(f"launch {launch.number} is said to start after step {launch.after_step}, but the state it loads stands at step {found.step}")
    if "epoch" in top and top.integer("epoch") != found.epoch:
        found = replace(found, epoch=top.integer("epoch"), examples=0)
    return replace(found, examples=found.examples + top.integer("fast_forward_batches", 0, least=0) * batch)


def _chained(run: RunSpec, launch: Launch, before: Sequence[OlmoOrder], batch: int, width: int) -> State:
    for earlier in reversed(before):
        last = earlier.launch.last_step
        if earlier.launch.after_step < launch.after_step and (last is None or launch.after_step <= last):
            return earlier.after(launch.after_step)
    for folder in [f for f in (run.checkpoint, *run.checkpoint_folders) if f]:
        for name in (f"step{launch.after_step}", f"step{launch.after_step}-unsharded"):
            if (folder / name).is_dir():
                return read_state(folder / name, batch, width)
    raise RunError(
        f"launch {launch.number} starts after step {launch.after_step}, which no earlier launch of the description ran",
        hint="describe the launch that ran it, name the folder of checkpoints as `checkpoint`, or give the trainer's state as `state`",
    )


def _recorded(run: RunSpec, folder: str, launch: Launch, before: Sequence[OlmoOrder]) -> dict[int, list[Ids]]:
    """Of each step, the indices of the time at which this launch ran it."""
    out = {}
    for step, times in read_indices(run.path(folder)).items():
        earlier = sum(
            b.recorded is not None and b.launch.args.get("data_indices") == folder and b.launch.after_step < step <= (b.launch.last_step or step)
            for b in before
        )
        if step > launch.after_step:
            out[step] = times[min(earlier, len(times) - 1)]
    return out


def _end(top: Arguments, order: OlmoOrder) -> int | None:
    """One past the last step that `max_duration` (steps, `<n>T` tokens, `<n>ep` epochs) and `stop_at` allow."""
    ends = [top.integer("stop_at") + 1] if "stop_at" in top else []
    given = top.get("max_duration")
    if given is not None:
        text = str(given).strip()
        n = order.instances.length
        total = (math.ceil((n - order.ranks) / order.ranks) if order.drop_last and n % order.ranks else math.ceil(n / order.ranks)) * order.ranks
        try:
            if text.endswith("ep"):
                ends.append(int(text[:-2]) * (total // order.batch) + 1)
            elif text.endswith("T"):
                left = max(int(float(text[:-1])) - order.start.tokens, 0)
                ends.append(order.start.step + math.ceil(left / (order.batch * order.instances.width)) + 1)
            else:
                ends.append(int(float(text)) + 1)
        except ValueError as error:
            raise ConfigError(f"`max_duration` is {given!r}: steps, tokens as in 3e12T or epochs as in 2ep were expected") from error
    return min(ends, default=None)


class OlmoLoader(PlannedLoader):
    """The loader, with what only this trainer has: instances whose loss is masked."""

    def masked(self, run: RunSpec, steps: StepRange, launch: int) -> NDArray[np.bool_]:
        """Whether the n-gram filter masks each row of these steps; all False without a filter."""
        order = self.opened(run).orders[launch]
        masks = order.masks if isinstance(order, OlmoOrder) else None
        found = [np.zeros(len(rows), np.bool_) if masks is None else ~masks.keeps(tokens) for rows, tokens in self.sequences(run, steps, launch)]
        return np.concatenate(found) if found else np.zeros(0, np.bool_)


OLMO = OlmoLoader("olmo", open_olmo)
LOADERS.add("olmo", OLMO, __name__)
