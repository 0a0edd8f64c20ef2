"""Shuffled order of an epoch's samples, per shuffling method of MosaicML Streaming.

Reproduces `streaming/base/shuffle/{naive,py1s,py1e,py1br,py2s}.py`, read in 0.13.0. Each function maps the positions of a
resampled epoch (0 .. n-1) to resampled sample numbers. They depend on sizes, seed and epoch alone, so a step can be
reconstructed without shards. All random numbers come from numpy's PCG64 `Generator` in the library's order of draws;
`Generator.shuffle` draws the same numbers for a list and for an array, which lets spans live in arrays here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from forensics.errors import RunError

Ids = NDArray[np.int64]
Spans = NDArray[np.int64]


def shuffle_order(algo: str, units: Ids, canonical_nodes: int, seed: int, epoch: int, block_size: int) -> Ids:
    """Sample numbers in shuffled order.

    Args:
        algo: `shuffle_algo` of the data set.
        units: sizes of the shuffle units [unit], in order: one per shard and repeat.
        canonical_nodes: `num_canonical_nodes`.
        seed: `shuffle_seed`.
        epoch: from 0.
        block_size: `shuffle_block_size`, used by py1e and py1br.

    Returns:
        [sum(units)], position -> sample number of the resampled epoch.

    Raises:
        RunError: a block too small to draw from; the library stops there too.
    """
    low, high = int(0.75 * block_size), int(1.25 * block_size)
    if (algo == "py1e" and high <= low) or (algo == "py1br" and low < 1):
        raise RunError(
            f"a shuffle block of {block_size} samples is too small for {algo}",
            hint="streaming fails on this too: check `shuffle_block_size` and the streams' proportions",
        )
    return ALGORITHMS[algo](units, canonical_nodes, seed, epoch, block_size)


def naive(units: Ids, canonical_nodes: int, seed: int, epoch: int, block_size: int) -> Ids:
    """All samples permuted together."""
    return np.random.default_rng(seed + epoch).permutation(int(units.sum()))


def node_spans(units: Ids, canonical_nodes: int, seed: int) -> list[Spans]:
    """The sample ranges that each canonical node works on, fixed for the whole run.

    Returns:
        per node [span, 2], half-open, cut at the node's bounds `c * n // canonical_nodes`; a unit without samples
        stays with the node during which it comes up, because later draws count spans.
    """
    stops = np.cumsum(units)
    spans = np.stack([stops - units, stops], 1)
    np.random.default_rng(seed).shuffle(spans)
    total = int(stops[-1]) if len(stops) else 0
    parts: list[Spans] = []
    at, done, lead = 0, 0, 0
    for node in range(canonical_nodes):
        bound = total * (node + 1) // canonical_nodes
        mine: list[tuple[int, int]] = []
        while at < len(spans):
            start, stop = int(spans[at, 0]) + lead, int(spans[at, 1])
            if done + stop - start > bound:
                if done < bound:
                    cut = bound - done
                    mine.append((start, start + cut))
                    lead += cut
                    done += cut
                break
            mine.append((start, stop))
            done += stop - start
            at, lead = at + 1, 0
        parts.append(np.array(mine, np.int64).reshape(-1, 2))
    return parts


def _epoch_spans(units: Ids, canonical_nodes: int, seed: int, epoch: int) -> tuple[np.random.Generator, list[Spans]]:
    parts = node_spans(units, canonical_nodes, seed)
    rng = np.random.default_rng(seed + epoch)
    for part in parts:
        rng.shuffle(part)
    return rng, parts


def py1s(units: Ids, canonical_nodes: int, seed: int, epoch: int, block_size: int) -> Ids:
    """Spans shuffled inside each node, samples inside each span."""
    rng, parts = _epoch_spans(units, canonical_nodes, seed, epoch)
    order = np.empty(int(units.sum()), np.int64)
    at = 0
    for part in parts:
        for start, stop in part.tolist():
            piece = order[at : at + stop - start]
            piece[:] = np.arange(start, stop)
            rng.shuffle(piece)
            at += stop - start
    return order


def py1e(units: Ids, canonical_nodes: int, seed: int, epoch: int, block_size: int) -> Ids:
    """Like py1s, then every span's samples are moved by uniform shifts and the node is sorted by position.

    Raises:
        RunError: a canonical node without samples; the library stops there too.
    """
    rng, parts = _epoch_spans(units, canonical_nodes, seed, epoch)
    order = np.empty(int(units.sum()), np.int64)
    at = 0
    for part in parts:
        sizes = part[:, 1] - part[:, 0]
        count = int(sizes.sum())
        if not count:
            raise RunError(
                f"a canonical node has no samples with {canonical_nodes} canonical nodes", hint="streaming refuses this too: check `num_canonical_nodes`"
            )
        samples = np.empty(count, np.int64)
        done = 0
        for start, stop in part.tolist():
            piece = samples[done : done + stop - start]
            piece[:] = np.arange(start, stop)
            rng.shuffle(piece)
            done += stop - start
        order[at : at + count] = samples[np.argsort(_shifted_positions(rng, sizes, block_size))]
        at += count
    return order


def _shifted_positions(rng: np.random.Generator, sizes: Ids, block_size: int) -> NDArray[np.float64]:
    low, high = int(0.75 * block_size), int(1.25 * block_size)
    count = int(sizes.sum())
    positions = np.arange(count).astype(np.float64)
    done = 0
    for size in sizes.tolist():
        reach = max((int(rng.integers(low, high)) - size) / 2, 0)
        positions[done : done + size] += rng.uniform(max(-reach, -done), min(reach, count - done - size), size)
        done += size
    return positions


def py1br(units: Ids, canonical_nodes: int, seed: int, epoch: int, block_size: int) -> Ids:
    """Spans shuffled inside each node, then blocks of random size, staggered per node, shuffled."""
    rng, parts = _epoch_spans(units, canonical_nodes, seed, epoch)
    order = np.empty(int(units.sum()), np.int64)
    low, high = int(0.75 * block_size), int(1.25 * block_size)
    stagger = rng.integers(0, low, (canonical_nodes,))
    begin = 0
    for node, part in enumerate(parts):
        end = begin
        for start, stop in part.tolist():
            order[end : end + stop - start] = np.arange(start, stop)
            end += stop - start
        blocks, at = [], begin
        while at < end:
            size = int(rng.integers(low, high))
            block = max(at - int(stagger[node]), begin), min(at + size - int(stagger[node]), end)
            blocks.append(block)
            at += block[1] - block[0]
        for start, stop in blocks:
            rng.shuffle(order[start:stop])
        begin = end
    return order


def py2s(units: Ids, canonical_nodes: int, seed: int, epoch: int, block_size: int) -> Ids:
    """Units and their samples shuffled for the run, cut at node bounds, both shuffled again for the epoch."""
    stops = np.cumsum(units)
    shards = [np.arange(stop - size, stop) for stop, size in zip(stops.tolist(), units.tolist())]
    fixed = np.random.default_rng(seed)
    places = np.arange(len(shards))
    fixed.shuffle(places)
    shards = [shards[i] for i in places.tolist()]
    for shard in shards:
        fixed.shuffle(shard)
    rng = np.random.default_rng(seed + epoch)
    total = int(stops[-1]) if len(stops) else 0
    out: list[Ids] = []
    at, done, lead = 0, 0, 0
    nodes: list[list[Ids]] = []
    for node in range(canonical_nodes):
        bound = total * (node + 1) // canonical_nodes
        mine: list[Ids] = []
        while at < len(shards):
            rest = shards[at][lead:]
            if done + len(rest) > bound:
                if done < bound:
                    mine.append(rest[: bound - done])
                    lead += bound - done
                    done = bound
                break
            mine.append(rest)
            done += len(rest)
            at, lead = at + 1, 0
        nodes.append(mine)
    for mine in nodes:
        places = np.arange(len(mine))
        rng.shuffle(places)
        mine = [mine[i] for i in places.tolist()]
        for shard in mine:
            rng.shuffle(shard)
        out += mine
    return np.concatenate(out) if out else np.zeros(0, np.int64)


ALGORITHMS: dict[str, Callable[[Ids, int, int, int, int], Ids]] = {"naive": naive, "py1s": py1s, "py1e": py1e, "py1br": py1br, "py2s": py2s}
