"""An epoch's stored samples dealt to ranks and batches, per batching method of MosaicML Streaming.

Reproduces `streaming/base/batching/{random,per_stream,stratified,device_per_stream}.py`, read in 0.13.0. The result has
the axes (batch, rank, place in batch): batches in the order a training loop reads them; -1 where a rank has no sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forensics.errors import RunError
from forensics.loaders.streaming.partition import World, partition
from forensics.loaders.streaming.shuffle import shuffle_order
from forensics.loaders.streaming.weights import Resampling, StreamShards, Weights, resample

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """All that decides an epoch's order, under the data set's own names."""

    streams: tuple[StreamShards, ...]
    weights: Weights
    sampling: Resampling
    world: World
    batch_size: int
    num_canonical_nodes: int
    initial_physical_nodes: int | None
    partition_algo: str
    shuffle_algo: str
    shuffle_block_size: int
    batching_method: str

    @property
    def global_batch(self) -> int:
        """Samples per step over all ranks."""
        return self.batch_size * self.world.ranks


def epoch_batches(plan: Plan, epoch: int, sample_in_epoch: int) -> Ids:
    """Stored sample numbers [batch, rank, place] from `sample_in_epoch` on."""
    return METHODS[plan.batching_method](plan, epoch, sample_in_epoch)


def _in_order(grid: Ids) -> Ids:
    """[node, rank, worker, batch, place] -> [batch, rank, place]."""
    nodes, ranks, workers, batches, places = grid.shape
    return grid.transpose(3, 2, 0, 1, 4).reshape(batches * workers, nodes * ranks, places)


def _stored(positions: Ids, order: Ids | None, stored: Ids) -> Ids:
    """Positions of the epoch -> stored samples, through the shuffle; -1 stays."""
    inside = positions != -1
    picked = positions if order is None else np.where(inside, order[positions], -1)
    return np.where(inside, stored[picked], -1)


def _random(plan: Plan, epoch: int, sample_in_epoch: int) -> Ids:
    units, stored = resample(plan.streams, plan.weights.choose, plan.sampling, epoch)
    grid = partition(
        plan.partition_algo, plan.weights.epoch_size, plan.num_canonical_nodes, plan.world, plan.batch_size, sample_in_epoch, plan.initial_physical_nodes
    )
    order = (
        shuffle_order(plan.shuffle_algo, units, plan.num_canonical_nodes, plan.sampling.seed, epoch, plan.shuffle_block_size) if plan.sampling.shuffle else None
    )
    return _stored(_in_order(grid), order, stored)


def _one_stream(plan: Plan, epoch: int, stream: int, world: World, batch_size: int) -> Ids:
    """A stream partitioned and shuffled alone [node, rank, worker, batch, place]."""
    units, stored = resample(plan.streams, plan.weights.choose, plan.sampling, epoch, only=stream)
    grid = partition(plan.partition_algo, len(stored), plan.num_canonical_nodes, world, batch_size, 0, plan.initial_physical_nodes)
    order = None
    if plan.sampling.shuffle:
        block = int(plan.shuffle_block_size * float(plan.weights.proportion[stream]))
        order = shuffle_order(plan.shuffle_algo, units, plan.num_canonical_nodes, plan.sampling.seed, epoch, block)
    return _stored(grid, order, stored)


def _whole(batches: Ids) -> Ids:
    """The leading batches without holes; the library counts all full ones and takes as many from the front."""
    return batches[: int(np.count_nonzero(batches.min(1) >= 0))]


def _mixed(counts: Sequence[int], rng: np.random.Generator) -> Ids:
    """Row numbers of stacked per-stream batches in an order that shuffles streams but keeps each one's own order."""
    origins = np.repeat(np.arange(len(counts)), counts)
    rng.shuffle(origins)
    rows = np.empty(len(origins), np.int64)
    rows[np.argsort(origins, kind="stable")] = np.arange(len(origins))
    return rows


def _from_batch(plan: Plan, batches: Ids, sample_in_epoch: int) -> Ids:
    """Global batches [batch, place] -> [batch, rank, place], without those that were read before."""
    return batches[sample_in_epoch // plan.global_batch :].reshape(-1, plan.world.ranks, plan.batch_size)


def _per_stream(plan: Plan, epoch: int, sample_in_epoch: int) -> Ids:
    parts = []
    for i in range(len(plan.streams)):
        grid = _one_stream(plan, epoch, i, plan.world, plan.batch_size)
        parts.append(_whole(_in_order(grid).reshape(-1, plan.global_batch)))
        if not len(parts[-1]):
            raise RunError(
                f"stream {i} has too few samples for one global batch of {plan.global_batch}", hint="streaming refuses this with batching_method per_stream"
            )
    rows = _mixed([len(p) for p in parts], np.random.default_rng(plan.sampling.by_epoch(epoch)))
    return _from_batch(plan, np.concatenate(parts)[rows], sample_in_epoch)


def _stratified(plan: Plan, epoch: int, sample_in_epoch: int) -> Ids:
    total = plan.global_batch
    share = np.array([int(p * total) for p in plan.weights.proportion], np.int64)
    if missing := total - int(share.sum()):
        left = total * plan.weights.proportion - share
        share[np.flip(np.argsort(left))[:missing]] += 1
    if (share <= 0).any():
        raise RunError(
            f"stream {int(np.argmax(share <= 0))} gets no place in a global batch of {total}", hint="streaming refuses this with batching_method stratified"
        )
    parts = []
    for i, size in enumerate(share.tolist()):
        grid = _one_stream(plan, epoch, i, World(1, plan.world.ranks_per_node, plan.world.workers), 1)
        flat = grid.transpose(3, 2, 0, 1, 4).reshape(-1)
        flat = np.concatenate([flat, np.full(-len(flat) % size, -1, np.int64)])
        parts.append(flat.reshape(-1, size))
    batches = min(int(np.count_nonzero(p.min(1) >= 0)) for p in parts)
    return _from_batch(plan, np.concatenate([p[:batches] for p in parts], 1), sample_in_epoch)


def _device_per_stream(plan: Plan, epoch: int, sample_in_epoch: int) -> Ids:
    world, nodes = plan.world, plan.world.nodes
    if plan.num_canonical_nodes % nodes:
        raise RunError(
            f"{plan.num_canonical_nodes} canonical nodes are no multiple of {nodes} nodes", hint="streaming refuses this with batching_method device_per_stream"
        )
    each = plan.num_canonical_nodes // nodes
    grids = []
    for i in range(len(plan.streams)):
        if plan.sampling.shuffle and not int(plan.shuffle_block_size * float(plan.weights.proportion[i])):
            raise RunError(
                f"stream {i} is too small a part for a shuffle block of {plan.shuffle_block_size}",
                hint="streaming refuses this with batching_method device_per_stream",
            )
        grids.append(_one_stream(plan, epoch, i, World(plan.num_canonical_nodes, world.ranks_per_node, world.workers), 1))
    rng = np.random.default_rng(plan.sampling.by_epoch(epoch))
    per_node = []
    for node in range(nodes):
        parts = []
        for i, grid in enumerate(grids):
            flat = grid[node * each : (node + 1) * each].transpose(3, 2, 0, 1, 4).reshape(-1)
            # The library pads a whole batch where nothing is missing; it holds no sample and is cut off again.
            flat = np.concatenate([flat, np.full(plan.batch_size - len(flat) % plan.batch_size, -1, np.int64)])
            parts.append(_whole(flat.reshape(-1, plan.batch_size)))
            if not len(parts[-1]):
                raise RunError(
                    f"stream {i} has too few samples for one batch of {plan.batch_size}", hint="streaming refuses this with batching_method device_per_stream"
                )
        per_node.append(parts)
    longest = max(sum(len(p) for p in parts) for parts in per_node)
    longest += world.ranks - longest % world.ranks
    ordered = []
    for parts in per_node:
        rows = _mixed([len(p) for p in parts], rng)
        ordered.append(np.concatenate([np.concatenate(parts)[rows], np.full((longest - len(rows), plan.batch_size), -1, np.int64)]))
    merged = np.stack(ordered, 1).reshape(-1, plan.global_batch)
    return _from_batch(plan, merged, sample_in_epoch)


METHODS = {"random": _random, "per_stream": _per_stream, "stratified": _stratified, "device_per_stream": _device_per_stream}
