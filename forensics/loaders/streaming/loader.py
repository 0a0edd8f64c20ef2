"""MosaicML Streaming, Composer and LLM-Foundry: from a step to the samples its ranks read.

One step is one batch of every rank. A launch starts at a state (given, or where the launch before stood after the step
it resumed from), goes on through that epoch and then through whole ones. Checked against the library: see
`tests/oracles`. A state brings its own canonical nodes and seed; whether they outlive the resumed epoch depends on
where the library keeps them (`_later`).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from forensics.errors import RunError
from forensics.loaders.planned import VERIFIED, History, Inserted, PlannedLoader, Rows, Segments, batch_rows, cut, places
from forensics.loaders.streaming.batching import Plan, epoch_batches
from forensics.loaders.streaming.state import Settings, State, plan_of, read_settings, read_state
from forensics.run import Launch, RunSpec
from forensics.steps import MAX_STEP, StepRange
from forensics.stores.mds import MdsStore

Ids = NDArray[np.int64]


@dataclass
class StreamingOrder:
    """What one launch reads.

    Attributes:
        corpora: corpus number of each stream.
        first: stored sample number at which each stream begins [streams + 1].
        state: at the start.
        resumed, later: plans of the epoch of the start, and of those after it.
    """

    launch: Launch
    settings: Settings
    stores: tuple[MdsStore, ...]
    corpora: tuple[int, ...]
    state: State
    resumed: Plan
    later: Plan
    limit: int | None = None
    origin: str = VERIFIED
    note: str = ""
    target_samples: int | None = None
    _epochs: OrderedDict[int, Ids] = field(default_factory=OrderedDict)
    _length: int | None = None

    @property
    def first(self) -> Ids:
        """Stored sample number at which each stream begins, and their sum [streams + 1]."""
        return np.cumsum([0, *(s.n_samples for s in self.stores)])

    @property
    def rows_per_step(self) -> int:
        """Samples of a full step."""
        return self.resumed.global_batch

    @property
    def row_width(self) -> int | None:
        """Tokens of the longest sample."""
        return max((int(np.diff(s.sample_bounds).max()) for s in self.stores), default=None)

    @property
    def data_parallel_size(self) -> int | None:
        """Ranks that see different samples."""
        return self.settings.world.ranks

    @property
    def micro_batch_size(self) -> int | None:
        """Samples per rank and microbatch."""
        return self.settings.microbatch or self.settings.batch_size

    @property
    def identity(self) -> tuple[object, ...]:
        """Everything that decides the order."""
        plan = self.later
        streams = [(s.shards.tolist(), s.proportion, s.repeat, s.choose) for s in plan.streams]
        return (self.state, streams, plan.weights.choose.tolist(), replace(plan, streams=(), weights=None), self.settings.drop_last)  # type: ignore[arg-type]

    def batches(self, epoch: int) -> Ids:
        """Stored samples of an epoch [batch, rank, place] from where this launch enters it."""
        if epoch not in self._epochs:
            entered = epoch == self.state.epoch
            found = epoch_batches(self.resumed if entered else self.later, epoch, self.state.sample_in_epoch if entered else 0)
            held = (found >= 0).sum(2)
            if self.settings.drop_last:
                found = np.where((held == found.shape[2])[:, :, None], found, -1)
            self._epochs[epoch] = found[(found >= 0).any((1, 2))]
            if len(self._epochs) > 2:
                self._epochs.popitem(last=False)
        return self._epochs[epoch]

    def place(self, step: int) -> tuple[int, int]:
        """Epoch and batch of the epoch (counted from where this launch entered it) that a step reads."""
        done = step - self.launch.after_step - 1
        entered = len(self.batches(self.state.epoch))
        if done < entered:
            return self.state.epoch, done
        if self._length is None:
            self._length = len(self.batches(self.state.epoch + 1))
        if not self._length:
            raise RunError(f"an epoch of this run holds no whole batch of {self.rows_per_step}")
        epoch, batch = divmod(done - entered, self._length)
        return self.state.epoch + 1 + epoch, batch

    def state_after(self, step: int) -> State:
        """What `StreamingDataLoader.state_dict()` gives after a step of this launch."""
        plan = self.resumed if self.place(step)[0] == self.state.epoch else self.later
        epoch, sample = self._counted(step)
        return State(epoch, sample, plan.num_canonical_nodes, plan.sampling.seed, plan.initial_physical_nodes or plan.world.nodes)

    def _counted(self, step: int) -> tuple[int, int]:
        epoch, batch = self.place(step)
        yielded = int((self.batches(epoch)[: batch + 1, 0] >= 0).sum())
        return epoch, (self.state.sample_in_epoch if epoch == self.state.epoch else 0) + yielded * self.settings.world.ranks

    def rows(self, steps: StepRange) -> Rows:
        """The samples of these steps."""
        out = []
        at = steps.start
        while at < steps.stop:
            epoch, batch = self.place(at)
            found = self.batches(epoch)[batch : batch + steps.stop - at]
            step = np.arange(at, at + len(found))
            size = self.settings.microbatch or found.shape[2]
            if size >= found.shape[2]:
                out.append(batch_rows(step, found, epoch))
            else:
                out.append(self._micro(step, found, epoch, size))
            at += len(found)
        return Rows.concat(out)

    def _micro(self, step: Ids, found: Ids, epoch: int, size: int) -> Rows:
        """A rank's batch in pieces of `size`, pieces outermost."""
        n, ranks, width = found.shape
        found = np.concatenate([found, np.full((n, ranks, -width % size), -1, np.int64)], 2)
        pieces = found.shape[2] // size
        split = found.reshape(n, ranks, pieces, size).transpose(0, 2, 1, 3).reshape(n * pieces, ranks, size)
        return batch_rows(np.repeat(step, pieces), split, epoch, microbatch=np.tile(np.arange(pieces), n))

    def segments(self, rows: Rows) -> Segments:
        """What these samples consist of."""
        stream = np.searchsorted(self.first, rows.sample, side="right") - 1
        row, corpus, document, start, stop = [], [], [], [], []
        for i in np.unique(stream).tolist():
            mine = np.flatnonzero(stream == i)
            store = self.stores[i]
            local = rows.sample[mine] - self.first[i]
            owner, doc, begin, end = cut(store.bounds, store.sample_bounds[local], store.sample_bounds[local + 1])
            row.append(mine[owner])
            corpus.append(np.full(len(doc), self.corpora[i], np.int64))
            document.append(doc)
            start.append(begin)
            stop.append(end)
        if not row:
            none = np.zeros(0, np.int64)
            return Segments(none, none, none, none, none, none)
        at = np.concatenate(row)
        order = np.argsort(at, kind="stable")
        columns = [np.concatenate(x)[order] for x in (corpus, document, start, stop)]
        return Segments(at[order], places(at[order], columns[3] - columns[2]), *columns)

    def inserted(self, rows: Rows, segments: Segments) -> Inserted | None:
        """Streaming adds no tokens."""
        return None

    def candidates(self, corpus: int, documents: Ids) -> Ids | None:
        """Samples that hold tokens of these documents."""
        out = [np.zeros(0, np.int64)]
        for i, number in enumerate(self.corpora):
            if number == corpus:
                store = self.stores[i]
                known = documents[documents < store.n_documents]
                begin, end = store.bounds[known], store.bounds[known + 1]
                low = np.searchsorted(store.sample_bounds, begin, side="right") - 1
                high = np.searchsorted(store.sample_bounds, end, side="left")
                out += [np.arange(a, b) + self.first[i] for a, b in zip(low.tolist(), high.tolist())]
        return np.unique(np.concatenate(out))

    def counter(self, steps: StepRange) -> Ids:
        """`sample_in_epoch` after each step."""
        return np.array([self._counted(step)[1] for step in steps], np.int64)


def open_streaming(run: RunSpec) -> History:
    """A run with its streams opened and its launches chained."""
    numbers: dict[str, int] = {}
    files: dict[int, MdsStore] = {}
    orders: list[StreamingOrder] = []
    for launch in run.launches:
        settings = read_settings(launch.args)
        read = settings.args
        for folder in settings.folders:
            number = numbers.setdefault(folder, len(numbers))
            if number not in files:
                files[number] = MdsStore(
                    run.path(folder),
                    column=read.get("column"),
                    encoding=read.text("token_encoding_type", "int64"),
                    end=read.optional("eos_token_id"),
                    limit=read.optional("max_seq_len", least=1),
                )
        corpora = [numbers[f] for f in settings.folders]
        orders.append(_order(run, launch, settings, [files[n] for n in corpora], corpora, orders))
    return History(dict(files), {n: p for p, n in numbers.items()}, tuple(orders))


def _order(run: RunSpec, launch: Launch, settings: Settings, stores: list[MdsStore], corpora: list[int], before: list[StreamingOrder]) -> StreamingOrder:
    read = settings.args
    state = State()
    if "state" in read:
        state = read_state(read.get("state"), run.folder)
    elif launch.after_step:
        state = _chained(launch, before)
    shards = [s.samples for s in stores]
    blank = State()
    resumed = plan_of(settings, shards, state)
    order = StreamingOrder(launch, settings, tuple(stores), tuple(corpora), state, resumed, resumed)
    order.later = _later(run, order, plan_of(settings, shards, blank))
    order.limit = _end(order)
    return order


def _later(run: RunSpec, order: StreamingOrder, blank: Plan) -> Plan:
    """The plan of the epochs after a resumed one.

    The state's values live on in the data set of the main process, and in the workers forked from it, once the main
    process has looked at the state: always without workers, else at the first checkpoint saved in the resumed epoch.
    """
    if order.state == State() or order.settings.args.integer("num_workers", 0) == 0:
        return order.resumed
    same = (blank.num_canonical_nodes, blank.sampling.seed) == (order.resumed.num_canonical_nodes, order.resumed.sampling.seed)
    start = order.launch.after_step
    stop = start + len(order.batches(order.state.epoch))
    if same or any(start < step <= stop for step in run.checkpoints):
        return order.resumed
    order.note = (
        "the state's canonical nodes or seed differ from the configuration, and no checkpoint of the resumed epoch is known: later epochs follow the latter"
    )
    return blank


def _chained(launch: Launch, before: list[StreamingOrder]) -> State:
    for earlier in reversed(before):
        last = earlier.launch.last_step
        if earlier.launch.after_step < launch.after_step and (last is None or launch.after_step <= last):
            return earlier.state_after(launch.after_step)
    raise RunError(
        f"launch {launch.number} starts after step {launch.after_step}, which no earlier launch of the description ran",
        hint="describe the launch that ran it, or give the loader's state at that step as `state`",
    )


def _end(order: StreamingOrder) -> int | None:
    """One past the last step that `max_duration` allows: batches (`ba`), epochs (`ep`) or samples (`sp`)."""
    given = order.settings.args.get("max_duration")
    if given is None:
        return None
    text = str(given)
    number, unit = (int(text[:-2]), text[-2:]) if text[-2:] in ("ba", "ep", "sp") and text[:-2].isdigit() else (None, "")
    if number is None:
        return None
    if unit == "ba":
        return number + 1
    if unit == "sp":
        return number // order.rows_per_step + 1
    entered = len(order.batches(order.state.epoch))
    whole = max(number - order.state.epoch - 1, 0)
    stop = order.launch.after_step + entered + whole * (len(order.batches(order.state.epoch + 1)) if whole else 0) + 1
    return min(stop, MAX_STEP)


LOADER = PlannedLoader("streaming", open_streaming)
