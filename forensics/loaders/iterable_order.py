"""Which example a `datasets.IterableDataset` yields next: its tree of sources, from the start of an epoch or from a saved state.

Follows datasets/iterable_dataset.py (5.2.0; 5.1.0 has the same), compared with it over random trees. A node yields examples by
number. States are what `state_dict()` holds: a node that interleaves looks one example ahead of each source, so its state keeps
where each source stood before that, and the generator's state from before the present batch of 1000 draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any, Protocol

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from forensics.errors import NotReplayable, RunError

Ids = NDArray[np.int64]
State = Mapping[str, Any]
DRAWS = 1000  # sources drawn at once; a state counts within such a batch
TABLES = "RebatchedArrowExamplesIterable"
PASSING = ("SkipExamplesIterable", "TakeExamplesIterable", "RepeatExamplesIterable", "StepExamplesIterable")
STRATEGIES = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")


class OrderIsFixed(Exception):
    """A tree that holds `skip` or `take` keeps its shards in their order when it is shuffled."""


class Node(Protocol):
    """A part of the tree."""

    @property
    def shards(self) -> int:
        """Shards that can be dealt out."""
        ...

    def iterate(self, state: State | None = None) -> Iterator[int]:
        """Examples by number, from the start or from a state."""
        ...

    def shuffled(self, generator: Generator) -> Node:
        """With its shards in another order."""
        ...

    def shifted(self, value: int) -> Node:
        """With generators moved on, for an epoch."""
        ...

    def shard(self, count: int, index: int, contiguous: bool = True) -> Node:
        """Some of the shards."""
        ...


def entry(state: State, name: str, kind: type) -> Any:
    """A value of a state, checked.

    Raises:
        RunError: when it is missing or of another type.
    """
    value = state.get(name)
    if not isinstance(value, kind) or (isinstance(value, int) and value < 0):
        raise RunError(f"the state holds {value!r} as `{name}` of {state.get('type', 'a node')}, {kind.__name__} was expected")
    return value


def opened(state: State | None, kind: str) -> tuple[State | None, int]:
    """The state of a node inside the wrappers that tables need, and examples to pass over after it.

    Args:
        state: as saved.
        kind: class whose state is wanted.

    Raises:
        RunError: another class's state lies there.
    """
    ahead = 0
    if state is not None and not isinstance(state, Mapping):
        raise RunError(f"the state holds {state!r} where the state of a {kind} was expected")
    while state is not None and state.get("type") == TABLES:
        if state.get("previous_state") is None:
            state = entry(state, "examples_iterable", Mapping)
        else:
            ahead += entry(state, "cropped_chunk_length", int) or entry(state, "num_chunks_since_previous_state", int)
            state = entry(state, "previous_state", Mapping)
    if state is not None and state.get("type") != kind:
        raise RunError(
            f"the state is that of a {state.get('type')}, the description has a {kind} there",
            hint="describe the operations in the order in which the run's code applied them: `pipeline`",
        )
    return state, ahead


def countable(state: State) -> None:
    """Check that a whole state counts examples: tables are single examples below sources that are interleaved, else of the files' own sizes.

    Raises:
        NotReplayable: it counts tables of unknown sizes.
    """
    below = state.get("previous_state")
    if state.get("type") != TABLES or below is None:
        return
    chunks, cropped = entry(state, "num_chunks_since_previous_state", int), entry(state, "cropped_chunk_length", int)
    while isinstance(below, Mapping) and below.get("type") in PASSING:
        below = below.get("examples_iterable")
    kind = str(below.get("type")) if isinstance(below, Mapping) else ""
    known = not chunks or (chunks == 1 and cropped > 0)
    if not known and kind != TABLES and not kind.endswith("CyclingMultiSourcesExamplesIterable"):
        raise NotReplayable(
            "the state counts tables of the files' own sizes (`num_chunks_since_previous_state`), not examples",
            hint="record the ids of each batch (trainer: recorded), or save states while examples are read one by one",
        )


def shares(number: int, parts: int) -> list[int]:
    """A number in near-equal parts, the larger ones first."""
    return [number // parts + (i < number % parts) for i in range(parts)]


def dealt(total: int, count: int, index: int, contiguous: bool) -> list[int]:
    """Which of `total` shards part `index` of `count` gets."""
    if not contiguous:
        return list(range(index, total, count))
    sizes = shares(total, count)
    return list(range(sum(sizes[:index]), sum(sizes[: index + 1])))


@dataclass(frozen=True)
class Source:
    """The shards of one data set; each an array of example numbers.

    Attributes:
        parts: examples of each shard, in the order in which they are read.
    """

    parts: tuple[Ids, ...]

    @property
    def shards(self) -> int:
        """Shards."""
        return max(len(self.parts), 1)

    def iterate(self, state: State | None = None) -> Iterator[int]:
        """Shard by shard."""
        name = "ArrowExamplesIterable" if _leaf(state) == "ArrowExamplesIterable" else "ExamplesIterable"
        at, ahead = opened(state, name)
        first, inside = (0, 0) if at is None else (entry(at, "shard_idx", int), entry(at, "shard_example_idx", int))
        if first > len(self.parts) or (first < len(self.parts) and inside > len(self.parts[first])):
            raise RunError(f"the state stands in shard {first}, example {inside}, beyond the {len(self.parts)} shards described")
        inside += ahead
        for part in self.parts[first:]:
            yield from part[inside:].tolist()
            inside = max(inside - len(part), 0)

    def shuffled(self, generator: Generator) -> Source:
        """All sources shuffle with a copy of the same generator."""
        order = list(range(len(self.parts)))
        deepcopy(generator).shuffle(order)
        return Source(tuple(self.parts[i] for i in order))

    def shifted(self, value: int) -> Source:
        """It draws nothing."""
        return self

    def shard(self, count: int, index: int, contiguous: bool = True) -> Source:
        """Some of the shards."""
        return Source(tuple(self.parts[i] for i in dealt(len(self.parts), count, index, contiguous)))


def _leaf(state: State | None) -> object:
    """Class of the innermost state under wrappers."""
    while state is not None and state.get("type") == TABLES:
        state = state.get("previous_state") or state.get("examples_iterable")
    return state.get("type") if state is not None else None


@dataclass(frozen=True)
class Interleaved:
    """Sources in turn, or drawn by probabilities.

    Attributes:
        nodes: the sources.
        strategy: when it ends.
        probabilities: of each source; None where they come in turn.
        generator: draws; None where its seed is not known.
    """

    nodes: tuple[Node, ...]
    strategy: str
    probabilities: tuple[float, ...] | None = None
    generator: Generator | None = None

    @property
    def shards(self) -> int:
        """Those of the source with the fewest."""
        return min((n.shards for n in self.nodes), default=0)

    @property
    def kind(self) -> str:
        """Class name in states."""
        return "CyclingMultiSourcesExamplesIterable" if self.probabilities is None else "RandomlyCyclingMultiSourcesExamplesIterable"

    def iterate(self, state: State | None = None) -> Iterator[int]:
        """One example of the source whose turn it is; each source is read one example ahead, to know when it ends."""
        at, ahead = opened(state, self.kind)
        yield from islice(self._iterate(at), ahead, None)

    def _iterate(self, state: State | None) -> Iterator[int]:
        count = len(self.nodes)
        before = [None] * count if state is None else entry(state, "previous_states", list)
        over = [False] * count if state is None else list(entry(state, "is_exhausted", list))
        if len(before) != count or len(over) != count:
            raise RunError(f"the state knows {len(before)} sources, the description {count} there")
        once = self.strategy == STRATEGIES[2]
        ends = any if self.strategy == STRATEGIES[0] else all
        readers = [node.iterate(s) for node, s in zip(self.nodes, before)]
        waiting: list[int | None] = [None] * count
        fresh = [True] * count
        for i in self._turns(state):
            if ends(over):
                return
            if once and over[i]:
                continue
            if fresh[i]:
                waiting[i], fresh[i] = next(readers[i], None), False
            example, waiting[i] = waiting[i], next(readers[i], None)
            if waiting[i] is None:
                over[i] = True
                if not once:
                    readers[i], fresh[i] = self.nodes[i].iterate(), True
            if example is not None:
                yield example

    def _turns(self, state: State | None) -> Iterator[int]:
        count = len(self.nodes)
        if not count:
            return
        if self.probabilities is None:
            yield from islice(cycle(range(count)), 0 if state is None else entry(state, "ex_iterable_idx", int), None)
        generator, offset = self._drawing(state)
        while True:
            yield from generator.choice(count, size=DRAWS, p=self.probabilities)[offset:].tolist()
            offset = 0

    def _drawing(self, state: State | None) -> tuple[Generator, int]:
        if state is None:
            if self.generator is None:
                raise NotReplayable(
                    "sources were drawn by a generator without a seed", hint="give `interleave_seed`, or a saved `state`, which holds the generator"
                )
            return deepcopy(self.generator), 0
        generator = default_rng(0)
        saved = entry(state, "bit_generator_state", Mapping)
        try:
            generator.bit_generator.state = {**saved, "state": dict(saved["state"])}
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise RunError(f"the state of the generator is none of PCG64 ({error!r})") from error
        return generator, entry(state, "bit_generator_index_offset", int)

    def shuffled(self, generator: Generator) -> Interleaved:
        """The given generator takes the place of the one that drew."""
        return replace(self, nodes=tuple(n.shuffled(generator) for n in self.nodes), generator=None if self.probabilities is None else generator)

    def shifted(self, value: int) -> Interleaved:
        """A generator seeded by a draw of the old one, less the value."""
        nodes = tuple(n.shifted(value) for n in self.nodes)
        if self.generator is None:
            return replace(self, nodes=nodes)
        return replace(self, nodes=nodes, generator=default_rng(int(deepcopy(self.generator).integers(0, 1 << 63)) - value))

    def shard(self, count: int, index: int, contiguous: bool = True) -> Interleaved:
        """The same part of every source."""
        total = self.shards
        nodes = self.nodes if count < total or index < total else ()
        return replace(self, nodes=tuple(n.shard(min(count, total), index, contiguous) for n in nodes))


@dataclass(frozen=True)
class Concatenated:
    """Sources one after the other."""

    nodes: tuple[Node, ...]

    @property
    def shards(self) -> int:
        """Those of all sources."""
        return sum(n.shards for n in self.nodes)

    def iterate(self, state: State | None = None) -> Iterator[int]:
        """From the source that the state stands in."""
        at, ahead = opened(state, "VerticallyConcatenatedMultiSourcesExamplesIterable")
        first, saved = (0, [None] * len(self.nodes)) if at is None else (entry(at, "ex_iterable_idx", int), entry(at, "ex_iterables", list))
        if len(saved) != len(self.nodes):
            raise RunError(f"the state knows {len(saved)} sources, the description {len(self.nodes)} there")
        yield from islice((x for node, s in list(zip(self.nodes, saved))[first:] for x in node.iterate(s)), ahead, None)

    def _single(self) -> list[Node]:
        return [n.shard(n.shards, i) for n in self.nodes for i in range(n.shards)]

    def shuffled(self, generator: Generator) -> Concatenated:
        """Shards of all sources mixed."""
        mixed = self._single()
        deepcopy(generator).shuffle(mixed)
        return Concatenated(tuple(mixed))

    def shifted(self, value: int) -> Concatenated:
        """Every source."""
        return Concatenated(tuple(n.shifted(value) for n in self.nodes))

    def shard(self, count: int, index: int, contiguous: bool = True) -> Concatenated:
        """Some of the shards."""
        single = self._single()
        return Concatenated(tuple(single[i] for i in dealt(len(single), count, index, contiguous)))


@dataclass(frozen=True)
class Wrapped:
    """A node around one other, which deals and shuffles what is inside."""

    node: Node

    @property
    def shards(self) -> int:
        """Those inside."""
        return self.node.shards

    def iterate(self, state: State | None = None) -> Iterator[int]:
        """What is inside."""
        return self.node.iterate(state)

    def shuffled(self, generator: Generator) -> Node:
        """What is inside, shuffled."""
        return replace(self, node=self.node.shuffled(generator))

    def shifted(self, value: int) -> Node:
        """What is inside, moved on."""
        return replace(self, node=self.node.shifted(value))

    def shard(self, count: int, index: int, contiguous: bool = True) -> Node:
        """Part of what is inside."""
        return replace(self, node=self.node.shard(count, index, contiguous))

    def _inside(self, state: State | None, kind: str, counter: str) -> tuple[int, Iterator[int], int]:
        """Counter of a state, what is inside from there on, and examples to pass over."""
        at, ahead = opened(state, kind)
        if at is None:
            return 0, self.node.iterate(), ahead
        return entry(at, counter, int), self.node.iterate(entry(at, "examples_iterable", Mapping)), ahead


@dataclass(frozen=True)
class ShardsInTurn(Wrapped):
    """What `shuffle` does before its buffer: up to `most` parts of the shards, one example of each in turn."""

    most: int

    def iterate(self, state: State | None = None) -> Iterator[int]:
        """One example of each part in turn until all are read."""
        count = min(self.node.shards, self.most)
        if not count:
            return self.node.iterate(state)
        return Interleaved(tuple(self.node.shard(count, i) for i in range(count)), STRATEGIES[2]).iterate(state)


@dataclass(frozen=True)
class Part(Wrapped):
    """`skip` or `take`: all but the first `n` examples, or only those.

    Attributes:
        n: examples.
        take: which of the two.
        split: whether ranks share `n`: it was applied before `split_dataset_by_node`.
    """

    n: int
    take: bool
    split: bool = True

    def iterate(self, state: State | None = None) -> Iterator[int]:
        """What is left to skip or to take."""
        kind, counter = ("TakeExamplesIterable", "taken") if self.take else ("SkipExamplesIterable", "skipped")
        done, inside, ahead = self._inside(state, kind, counter)
        left = max(self.n - done, 0)
        part = islice(inside, left) if self.take else islice(inside, left, None)
        return islice(part, ahead, None)

    def shuffled(self, generator: Generator) -> Node:
        """Never."""
        raise OrderIsFixed

    def shard(self, count: int, index: int, contiguous: bool = True) -> Node:
        """Part of what is inside."""
        among = min(count, self.shards)
        n = self.n if not self.split else shares(self.n, among)[index] if index < among else 0
        return replace(self, node=self.node.shard(count, index, contiguous), n=n)


@dataclass(frozen=True)
class Repeated(Wrapped):
    """`repeat`: the same, in the same order, `times` times; None for ever."""

    times: int | None

    def iterate(self, state: State | None = None) -> Iterator[int]:
        """Passes, until one is empty."""
        done, inside, ahead = self._inside(state, "RepeatExamplesIterable", "repeat_index")
        return islice(self._passes(done, inside), ahead, None)

    def _passes(self, done: int, inside: Iterator[int]) -> Iterator[int]:
        first = True
        while self.times is None or done < self.times:
            empty = True
            for example in inside:
                empty = False
                yield example
            if empty and not first and self.times is None:
                return
            first, done, inside = False, done + 1, self.node.iterate()


@dataclass(frozen=True)
class EachNth(Wrapped):
    """Every rank's share where shards do not divide: one example of `step`."""

    step: int
    offset: int

    def iterate(self, state: State | None = None) -> Iterator[int]:
        """One of each `step` examples."""
        stepped, inside, ahead = self._inside(state, "StepExamplesIterable", "stepped")
        return islice(islice(inside, (self.offset - stepped) % self.step, None, self.step), ahead, None)


def endless(node: Node) -> bool:
    """Whether an epoch never ends."""
    if isinstance(node, Concatenated):
        return any(map(endless, node.nodes))
    if isinstance(node, Interleaved):
        chances = node.probabilities or (1.0,) * len(node.nodes)
        never = [endless(n) or not p for n, p in zip(node.nodes, chances)]
        return bool(never) and (all(never) if node.strategy == STRATEGIES[0] else any(never))
    if isinstance(node, Part) and node.take:
        return False
    return isinstance(node, Wrapped) and (
        endless(node.node) or (isinstance(node, Repeated) and node.times is None and next(node.node.iterate(), None) is not None)
    )


def of_epoch(node: Node, epoch: int) -> Node:
    """The tree as it is read in an epoch; epoch 0 is the tree itself."""
    if not epoch:
        return node
    try:
        node = node.shuffled(default_rng(epoch))
    except OrderIsFixed:
        pass
    return node.shifted(epoch)


def of_rank(node: Node, ranks: int, rank: int, strategy: str) -> Node:
    """What `split_dataset_by_node` leaves to a rank.

    Raises:
        RunError: shards that are fewer than ranks, where whole shards were asked for.
    """
    if strategy == "shards" and node.shards < ranks:
        raise RunError(f"`strategy: shards` with {node.shards} shards and {ranks} ranks leaves a rank without data", hint="the library refuses this too")
    if strategy == "shards" or (strategy == "auto" and node.shards % ranks == 0):
        return node.shard(ranks, rank, False)
    return EachNth(node, ranks, rank)


def reshuffled(node: Node, seed: int | None, most: int) -> Node:
    """`shuffle` with a buffer of one example.

    Raises:
        NotReplayable: no seed.
    """
    if seed is None:
        raise NotReplayable("`shuffle` without a seed orders shards by chance", hint="give its seed, or record the ids of each batch (trainer: recorded)")
    try:
        node = node.shuffled(default_rng(seed))
    except OrderIsFixed:
        most = 1
    return ShardsInTurn(node, most) if most > 1 else node
