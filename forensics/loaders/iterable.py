"""`datasets.IterableDataset`: which examples each step read, from the start of an epoch and on from saved states.

Reproduces interleaved, concatenated, shuffled (shards; a buffer of one example), skipped, taken, repeated and per-node split data sets
of datasets 5.1 and 5.2 read by `for batch in ds.iter(n)` or by a loader without workers. The tree itself is in `iterable_order`; here are
options, epochs and steps. Refused by name: shuffle buffers (a resume loses what they held), workers, `map` and `filter`.

`data` lists the sources: a file, or `{paths, shards, shard_rule, pipeline}`; `pipeline` lists the operations in the order in which the
run's code applied them (`[{interleave: {probabilities: [0.7, 0.3], seed: 42}}, {skip: 100}]`); the options in `FLAT` are its short form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from forensics.errors import ConfigError, NotReplayable, RunError
from forensics.loaders import iterable_order as tree
from forensics.loaders.arguments import Arguments
from forensics.loaders.base import LOADERS
from forensics.loaders.examples import ExampleStore
from forensics.loaders.planned import History, PlannedLoader, Rows, batch_rows
from forensics.loaders.pytorch import Position, TorchOrder
from forensics.run import Launch, RunSpec
from forensics.steps import StepRange
from forensics.unpickle import load as load_checkpoint

Ids = NDArray[np.int64]
RECORD = "record the ids of each batch (trainer: recorded)"
FLAT = (
    "interleave_probabilities", "interleave_seed", "stopping_strategy", "concatenate", "shuffle_seed", "shuffle_buffer_size", "max_buffer_input_shards",
    "skip", "take", "repeat", "split_dataset_by_node", "split_strategy",
)  # fmt: skip
KNOWN = (
    "loader", "data", "column", "max_length", "shards_per_source", "shard_rule", "pipeline", "batch_size", "drop_last", "world_size", "num_workers",
    "gradient_accumulation_steps", "partial_accumulation", "epoch", "epochs", "max_steps", "set_epoch_called", "state", "skip_first_batches", *FLAT,
)  # fmt: skip
HARMLESS = ("pin_memory", "prefetch_factor", "learning_rate", "output_dir", "save_steps", "logging_steps")
OPERATIONS = ("interleave", "concatenate", "shuffle", "skip", "take", "repeat", "split_dataset_by_node")
GROWTH = 1 << 12  # examples read at once from a tree


class Stream:
    """The examples of an epoch on one rank, read as far as they are asked for."""

    def __init__(self, examples: Iterator[int]) -> None:
        self._examples, self._ids, self.whole = examples, np.zeros(0, np.int64), False

    def grow(self, count: int) -> int:
        """Read until so many are there; how many there are."""
        while not self.whole and len(self._ids) < count:
            want = max(GROWTH, count - len(self._ids), len(self._ids) // 2)
            more = np.fromiter(islice(self._examples, want), np.int64)
            self.whole = len(more) < want
            self._ids = np.concatenate([self._ids, more])
        return len(self._ids)

    def all(self) -> int:
        """Read to the end; how many there are."""
        while not self.whole:
            self.grow(len(self._ids) + GROWTH)
        return len(self._ids)

    def batches(self, start: int, stop: int, size: int) -> Ids:
        """Batches [batch, place], -1 where the last one is short."""
        found = self._ids[start * size : stop * size]
        return np.concatenate([found, np.full((stop - start) * size - len(found), -1, np.int64)]).reshape(-1, size)


@dataclass
class StreamOrder(TorchOrder):
    """What one launch reads; epochs differ in length.

    Attributes:
        node: the tree of epoch 0.
        split: strategy of `split_dataset_by_node`; None on one rank.
        first: epoch at the start; `passes` how many are read.
        told: whether `set_epoch` was called before each pass.
        states: where each rank stood, and the epoch in which; empty where it began anew.
    """

    node: tree.Node = field(default_factory=lambda: tree.Source(()))
    split: str | None = None
    first: int = 0
    passes: int = 1
    told: bool = True
    drop_last: bool = False
    skipped: int = 0
    states: Sequence[tree.State] = ()
    state_epoch: int = -1
    max_steps: int | None = None
    _streams: dict[int, list[Stream]] = field(default_factory=dict)
    _lengths: dict[int, int] = field(default_factory=dict)

    def number(self, done: int) -> int:
        """Epoch of a pass."""
        return self.first + done if self.told else self.first

    def streams(self, done: int) -> list[Stream]:
        """A pass, per rank."""
        if done not in self._streams:
            epoch = self.number(done)
            node = tree.of_epoch(self.node, epoch)
            each = [node if self.split is None else tree.of_rank(node, self.ranks, r, self.split) for r in range(self.ranks)]
            states = self.states if epoch == self.state_epoch else [None] * self.ranks
            self._streams = {k: v for k, v in self._streams.items() if k == done - 1}
            self._streams[done] = [Stream(islice(n.iterate(s), 0 if done else self.skipped * self.size, None)) for n, s in zip(each, states)]
        return self._streams[done]

    def _has(self, done: int, micro: int) -> bool:
        """Whether a pass has so many micro batches on every rank."""
        need = micro * self.size - (0 if self.drop_last else self.size - 1)
        return all(s.grow(need) >= need for s in self.streams(done))

    def length(self, done: int) -> int:
        """Micro batches of a whole pass: as many as the rank with the fewest has."""
        if done not in self._lengths:
            counts = [s.all() for s in self.streams(done)]
            self._lengths[done] = min(c // self.size if self.drop_last else -(-c // self.size) for c in counts)
        return self._lengths[done]

    def _whole_steps(self, micros: int) -> int:
        return micros // self.accumulation if self.partial == "dropped" else -(-micros // self.accumulation)

    def parts(self, step: int) -> list[tuple[int, int, int]]:
        """Pass, first and last (exclusive) micro batch of what a step reads.

        Raises:
            RunError: the data ends before it.
        """
        at, a = step - self.launch.after_step - 1, self.accumulation
        if self.partial == "carried":
            return self._carried(at * a)
        for done in range(self.passes):
            if self._has(done, (at + 1) * a):
                return [(done, at * a, (at + 1) * a)]
            steps = self._whole_steps(self.length(done))
            if at < steps:
                return [(done, at * a, min((at + 1) * a, self.length(done)))]
            at -= steps
        raise self._over(step)

    def _carried(self, micro: int) -> list[tuple[int, int, int]]:
        out: list[tuple[int, int, int]] = []
        left = self.accumulation
        for done in range(self.passes):
            if self._has(done, micro + left):
                return [*out, (done, micro, micro + left)]
            length = self.length(done)
            if micro < length:
                out.append((done, micro, length))
                left -= length - micro
            micro = max(micro - length, 0)
        if not out:
            raise self._over(self.launch.after_step + 1)
        return out

    def _over(self, step: int) -> RunError:
        return RunError(f"the data of this launch ends before step {step}", hint="check `epochs`, `repeat`, `take` and the files; `epochs` is 1 if not given")

    def ends(self) -> int:
        """One past the last step of all passes."""
        if self.partial == "carried":
            steps = self._whole_steps(sum(self.length(done) for done in range(self.passes)))
        else:
            steps = sum(self._whole_steps(self.length(done)) for done in range(self.passes))
        return self.launch.after_step + steps + 1

    def rows(self, steps: StepRange) -> Rows:
        """The examples of these steps."""
        out = []
        for step in steps:
            number = 0
            for done, start, stop in self.parts(step):
                streams = self.streams(done)
                for s in streams:
                    s.grow(stop * self.size)
                ids = np.stack([s.batches(start, stop, self.size) for s in streams], 1)
                out.append(batch_rows(np.full(len(ids), step), ids, self.number(done), microbatch=np.arange(number, number + len(ids))))
                number += len(ids)
        return Rows.concat(out)


def _by_steps(epoch: int) -> Ids:
    raise RuntimeError("epochs of a stream are read by their steps")


@dataclass
class _Opener:
    run: RunSpec
    names: dict[str, int] = field(default_factory=dict)
    files: dict[int, ExampleStore] = field(default_factory=dict)

    def open(self, launch: Launch) -> StreamOrder:
        """One launch."""
        read = Arguments("datasets", launch.args, KNOWN, HARMLESS)
        read.refuse("num_workers", 0, "each worker reads shards of its own and draws with a generator of its own")
        used: list[int] = []
        sources = [self._source(read, s, used) for s in read.listed("data")]
        if not sources:
            raise ConfigError("datasets needs `data`: the files of each source, in their order")
        ranks, accumulation = read.integer("world_size", 1, least=1), read.integer("gradient_accumulation_steps", 1, least=1)
        if accumulation > 1 and "partial_accumulation" not in read:
            raise NotReplayable(
                "what the loop does with the micro batches that remain at an epoch's end decides every later step",
                hint="say it: --set args.partial_accumulation=dropped, kept (a shorter step) or carried (into the next epoch)",
            )
        operations = _operations(read, len(sources))
        node, split = _build(sources, operations)
        if ranks > 1 and split is None:
            raise NotReplayable(
                "how the ranks share the examples is not given", hint=f"say `split_dataset_by_node: true` where the run called it; else {RECORD}"
            )
        order = StreamOrder(
            launch, [self.files[i] for i in used], used, _by_steps, Position(), accumulation,
            partial=read.choice("partial_accumulation", ("dropped", "kept", "carried"), "kept"), ranks=ranks, size=read.integer("batch_size", least=1),
            node=node, split=split if ranks > 1 else None, passes=read.integer("epochs", 1, least=1), told=read.flag("set_epoch_called", True),
            drop_last=read.flag("drop_last", False), max_steps=read.optional("max_steps", least=1),
        )  # fmt: skip
        self._begin(order, read)
        shuffled = any(isinstance(o, Mapping) and "shuffle" in o for o in [*operations, *(o for _, own in sources for o in own)])
        _versioned(order, shuffled)
        order.plain = ("datasets", repr(sorted(launch.args.items(), key=str)), repr(sorted(order.states, key=str)))
        if order.max_steps is not None:
            order.limit = order.max_steps + 1
        elif not tree.endless(order.node):
            order.limit = order.ends()
        return order

    def _source(self, read: Arguments, given: object, used: list[int]) -> tuple[tree.Node, list[Any]]:
        """A source's shards, and what is done to it before it meets the others."""
        own = Arguments("a source of `data`", given if isinstance(given, Mapping) else {"paths": given}, ("paths", "shards", "shard_rule", "pipeline"))
        paths = [str(p) for p in own.listed("paths")]
        if not paths:
            raise ConfigError("a source of `data` needs `paths`")
        parts = []
        for path in paths:
            number = self.names.setdefault(path, len(self.names))
            if number not in self.files:
                self.files[number] = ExampleStore(self.run.path(path), read.get("column"), read.optional("max_length", least=1))
            used.append(number)
            first = sum(self.files[i].n_documents for i in used[:-1])
            parts.append(first + np.arange(self.files[number].n_documents))
        shards = own.integer("shards", read.integer("shards_per_source", len(paths), least=1), least=1)
        shared = read.text("shard_rule", "files" if shards == len(paths) else "contiguous")
        rule = own.text("shard_rule", shared)
        return tree.Source(_shards(parts, shards, rule)), own.listed("pipeline")

    def _begin(self, order: StreamOrder, read: Arguments) -> None:
        """Where a launch starts."""
        files = [str(p) for p in read.listed("state")]
        if files and len(files) != order.ranks:
            raise ConfigError(f"{len(files)} states are given for {order.ranks} ranks", hint="one per rank, in their order")
        found = [_read_state(self.run.path(f)) for f in files]
        if found:
            epochs = {epoch for epoch, _ in found}
            if len(epochs) > 1:
                raise RunError(f"the states are of different epochs: {sorted(epochs)}")
            order.state_epoch, order.states = found[0][0], [s for _, s in found]
            for state in order.states:
                tree.countable(state)
        elif order.launch.after_step and "skip_first_batches" not in read:
            raise NotReplayable(
                f"a launch after step {order.launch.after_step} goes on from a state that is not given",
                hint="give what it loaded: `state: FILE` (IterableDataset.state_dict() as JSON or .pt), or `epoch` and `skip_first_batches`",
            )
        order.skipped = read.integer("skip_first_batches", 0, least=0)
        order.first = read.integer("epoch", order.state_epoch if found else 0, least=0)


def _shards(parts: Sequence[Ids], count: int, rule: str) -> tuple[Ids, ...]:
    """A source's examples in shards.

    Raises:
        NotReplayable: a rule that is not known.
        ConfigError: a number of shards that the rule does not allow.
    """
    if rule == "files":
        if count != len(parts):
            raise ConfigError(f"`shard_rule: files` makes {len(parts)} shards, {count} are named")
        return tuple(parts)
    whole = np.concatenate(list(parts))
    if rule == "modulo":
        return tuple(whole[i::count] for i in range(count))
    if rule == "contiguous":
        return tuple(np.array_split(whole, count))
    raise NotReplayable(
        f"`shard_rule: {rule}` is not modelled", hint="known: files (a shard each), contiguous (near-equal blocks), modulo (every n-th example)"
    )


def _operations(read: Arguments, sources: int) -> list[Any]:
    """What is done to the sources, one after the other."""
    flat = [n for n in FLAT if n in read]
    if "pipeline" in read:
        if flat:
            raise ConfigError(f"`pipeline` already lists the operations, `{flat[0]}` is given beside it")
        return read.listed("pipeline")
    out: list[Any] = []
    drawn = [n for n in ("interleave_probabilities", "interleave_seed", "stopping_strategy") if n in read]
    if read.flag("concatenate", False):
        if drawn:
            raise ConfigError(f"`concatenate` and `{drawn[0]}` contradict each other")
        out.append("concatenate")
    elif drawn:
        names = {"probabilities": "interleave_probabilities", "seed": "interleave_seed", "stopping_strategy": "stopping_strategy"}
        out.append({"interleave": {k: read.get(v) for k, v in names.items() if v in read}})
    elif sources > 1:
        raise ConfigError("how the sources are put together is not given", hint="`interleave_probabilities`, `stopping_strategy` or `concatenate: true`")
    moves = [n for n in ("skip", "take", "repeat") if n in read]
    shuffles = {k: read.get(v) for k, v in (("seed", "shuffle_seed"), ("buffer_size", "shuffle_buffer_size"), ("max_buffer_input_shards",) * 2) if v in read}
    if len(moves) + bool(shuffles) > 1:
        raise ConfigError(f"`{moves[0]}` and other operations depend on their order", hint="list them in it: `pipeline: [{shuffle: {...}}, {skip: 3}]`")
    out += [{"shuffle": shuffles}] if shuffles else []
    out += [{n: read.get(n)} for n in moves]
    if read.flag("split_dataset_by_node", False):
        out.append({"split_dataset_by_node": {"strategy": read.text("split_strategy", "auto")}})
    return out


def _build(sources: Sequence[tuple[tree.Node, list[Any]]], operations: Sequence[Any]) -> tuple[tree.Node, str | None]:
    """The tree, and the strategy by which ranks share it."""
    nodes = []
    for source, own in sources:
        node, split = _applied([source], own)
        if split is not None:
            raise NotReplayable("`split_dataset_by_node` of a single source is not modelled", hint="split after they are put together, or " + RECORD)
        nodes.append(node)
    return _applied(nodes, operations)


def _applied(nodes: list[tree.Node], operations: Sequence[Any]) -> tuple[tree.Node, str | None]:
    split: str | None = None
    for operation in operations:
        name, value = next(iter(operation.items())) if isinstance(operation, Mapping) and len(operation) == 1 else (operation, None)
        if name == "interleave":
            nodes = [_interleaved(nodes, _options("interleave", value, ("probabilities", "seed", "stopping_strategy")))]
        elif name == "concatenate":
            nodes = [tree.Concatenated(tuple(nodes))]
        elif len(nodes) != 1:
            raise ConfigError(f"`{name}` comes before {len(nodes)} sources are put together", hint="`interleave` or `concatenate` first")
        elif name == "shuffle":
            nodes = [_shuffled(nodes[0], _options("shuffle", value, ("seed", "buffer_size", "max_buffer_input_shards")))]
        elif name in ("skip", "take"):
            nodes = [tree.Part(nodes[0], Arguments(name, {"n": value}, ("n",)).integer("n", least=0), name == "take", split is None)]
        elif name == "repeat":
            nodes = [tree.Repeated(nodes[0], None if value is None else Arguments(name, {"n": value}, ("n",)).integer("n"))]
        elif name == "split_dataset_by_node":
            split = _options(name, value, ("strategy",)).choice("strategy", ("auto", "shards", "examples"), "auto")
        else:
            raise NotReplayable(f"the operation `{name}` is not modelled", hint=f"known: {', '.join(OPERATIONS)}; else {RECORD}")
    if len(nodes) != 1:
        raise ConfigError(f"{len(nodes)} sources are not put together", hint="`interleave` or `concatenate`")
    return nodes[0], split


def _options(name: str, value: object, known: tuple[str, ...]) -> Arguments:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"`{name}: {value!r}`: a block of options was expected", hint=f"known: {', '.join(known)}")
    return Arguments(name, value or {}, known)


def _interleaved(nodes: Sequence[tree.Node], read: Arguments) -> tree.Node:
    strategy = read.choice("stopping_strategy", tree.STRATEGIES, tree.STRATEGIES[0])
    given = read.listed("probabilities")
    if not given:
        return tree.Interleaved(tuple(nodes), strategy)
    try:
        chances = tuple(float(p) for p in given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"`probabilities` are {given!r}, numbers were expected") from error
    if len(chances) != len(nodes) or min(chances) < 0 or abs(sum(chances) - 1) > 1e-8:
        raise ConfigError(f"`probabilities` {list(chances)} of {len(nodes)} sources", hint="one per source, not negative, together 1")
    if strategy == tree.STRATEGIES[2] and min(chances) == 0:
        raise RunError(f"a source of probability 0 is never exhausted: `{strategy}` never ends")
    seed = read.optional("seed", least=0)
    return tree.Interleaved(tuple(nodes), strategy, chances, None if seed is None else default_rng(seed))


def _shuffled(node: tree.Node, read: Arguments) -> tree.Node:
    if read.integer("buffer_size", 1000, least=1) != 1:
        raise NotReplayable(
            f"a shuffle buffer (`buffer_size: {read.integer('buffer_size', 1000)}`) is not in the state: a resume loses the examples it held",
            hint=f"{RECORD}; with `buffer_size: 1` only shards are shuffled, which is replayed",
        )
    return tree.reshuffled(node, read.optional("seed", least=0), read.integer("max_buffer_input_shards", 10, least=1))


def _versioned(order: StreamOrder, shuffled: bool) -> None:
    """Shuffling, epochs and states changed between releases.

    Raises:
        NotReplayable: a release whose rules are not reproduced, or none given where it matters.
    """
    if not (shuffled or order.states or order.number(order.passes - 1) > 0 or order.split is not None):
        return
    given = order.launch.version or ""
    found = re.search(r"(\d+)\.(\d+)", given)
    if found is None:
        raise NotReplayable(
            "shuffling, epochs, splits and states of datasets changed between releases, and the version is not given", hint="give `version: 5.2.0`"
        )
    if (int(found[1]), int(found[2])) < (5, 1):
        raise NotReplayable(f"datasets {given} shuffles and saves states by older rules that are not reproduced; known from 5.1 on", hint=RECORD)


def _read_state(path: Path) -> tuple[int, tree.State]:
    """Epoch and tree of a saved `state_dict()`, alone or inside a loader's state.

    Raises:
        RunError: a file that holds none.
    """
    if not path.exists():
        raise RunError(f"{path} does not exist", hint="`state` names what `IterableDataset.state_dict()` returned, as JSON or .pt")
    try:
        held: Any = json.loads(path.read_text()) if path.suffix == ".json" else load_checkpoint(path)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is no JSON ({error})") from error
    found = _find(held)
    if found is None:
        raise RunError(f"{path} holds no state of an IterableDataset (`examples_iterable` and `epoch`)")
    return int(found["epoch"]), tree.entry(found, "examples_iterable", Mapping)


def _find(value: object) -> Mapping[str, Any] | None:
    if isinstance(value, Mapping):
        if isinstance(value.get("examples_iterable"), Mapping) and isinstance(value.get("epoch"), int):
            return value
        value = list(value.values())
    if isinstance(value, list):
        return next((found for inner in value if (found := _find(inner)) is not None), None)
    return None


def _open(run: RunSpec) -> History:
    opener = _Opener(run)
    orders = tuple(opener.open(launch) for launch in run.launches)
    files: dict[int, Any] = dict(opener.files)
    return History(files, {n: p for p, n in opener.names.items()}, orders)


LOADERS.add("datasets", PlannedLoader("datasets", _open), __name__)
