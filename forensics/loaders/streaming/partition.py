"""Which position of an epoch goes to which node, rank and batch, per partition method of MosaicML Streaming.

Reproduces `streaming/base/partition/{orig,relaxed}.py`, read in 0.13.0. The result has the axes (physical node, rank of
node, worker of rank, batch of worker, place in batch); places that hold nothing are -1. A batch of number k is read from
worker k modulo workers, so the number of workers never changes the order of full batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forensics.errors import RunError

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class World:
    """The processes that read: counts as Streaming sees them, after replication."""

    nodes: int
    ranks_per_node: int
    workers: int = 1

    @property
    def ranks(self) -> int:
        """Data-parallel ranks that see different samples."""
        return self.nodes * self.ranks_per_node


def partition(algo: str, samples: int, canonical_nodes: int, world: World, batch_size: int, drop_first: int = 0, initial_nodes: int | None = None) -> Ids:
    """Positions of one epoch [node, rank, worker, batch, place].

    Args:
        algo: `partition_algo`, orig or relaxed.
        samples: size of the (resampled) epoch.
        canonical_nodes: `num_canonical_nodes`.
        world: physical processes.
        batch_size: per rank.
        drop_first: `sample_in_epoch` at the start.
        initial_nodes: `initial_physical_nodes` of the state that was loaded; None in a fresh run.

    Raises:
        RunError: where the library itself refuses.
    """
    beyond = world.ranks - samples % world.ranks
    if samples + beyond < drop_first:
        raise RunError(
            f"the state stands at sample {drop_first} of an epoch of {samples}",
            hint="a state saved in the last batch of an epoch counts padded repeats and cannot be loaded by streaming either; give the state of the next epoch",
        )
    nodes = world.nodes
    fits = canonical_nodes % nodes == 0 if nodes <= canonical_nodes else nodes % canonical_nodes == 0
    if algo == "orig" or initial_nodes is None or fits:
        return _orig(samples, canonical_nodes, world, batch_size, drop_first)
    total = world.ranks * batch_size
    before = initial_nodes * world.ranks_per_node
    if total % before:
        raise RunError(
            f"a global batch of {total} cannot be dealt to the {before} ranks this run started with",
            hint="with partition_algo relaxed the global batch must stay as it was",
        )
    plan = _orig(samples, canonical_nodes, World(initial_nodes, world.ranks_per_node, world.workers), total // before, drop_first)
    in_order = plan.transpose(3, 2, 0, 1, 4).reshape(-1, world.workers, nodes, world.ranks_per_node, batch_size)
    return in_order.transpose(2, 3, 1, 0, 4)


def _orig(samples: int, canonical_nodes: int, world: World, batch_size: int, drop_first: int) -> Ids:
    nodes = world.nodes
    if max(nodes, canonical_nodes) % min(nodes, canonical_nodes):
        raise RunError(
            f"{canonical_nodes} canonical nodes and {nodes} nodes do not divide each other",
            hint="streaming refuses this too: check `num_canonical_nodes` and the number of nodes",
        )
    per_node = _node_rows(samples, canonical_nodes, nodes).T.reshape(-1)[drop_first - drop_first % nodes :].reshape(-1, nodes).T
    dealt: Ids = _whole_ranks(per_node, world.ranks_per_node).reshape(nodes, -1, world.ranks_per_node)
    step = world.workers * batch_size
    if short := -dealt.shape[1] % step:
        dealt = np.concatenate([dealt, np.full((nodes, short, world.ranks_per_node), -1, np.int64)], 1)
    return dealt.transpose(0, 2, 1).reshape(nodes, world.ranks_per_node, -1, world.workers, batch_size).transpose(0, 1, 3, 2, 4)


def _node_rows(samples: int, canonical_nodes: int, nodes: int) -> Ids:
    """Positions per canonical node [canonical node, place]: contiguous ranges, short rows filled with repeats."""
    width = -(-samples // canonical_nodes)
    ratio = nodes // canonical_nodes if canonical_nodes < nodes else 0
    padding = -width % ratio if ratio else 0
    if samples < canonical_nodes or (samples == canonical_nodes and canonical_nodes < nodes):
        return np.resize(np.arange(samples, dtype=np.int64), (canonical_nodes, width + padding))
    bounds = np.arange(canonical_nodes + 1) * samples // canonical_nodes
    rows = bounds[:-1, None] + np.arange(width + padding)
    rows[:, width - 1] -= np.diff(bounds) < width
    if padding:
        stop = width - ratio + 1
        if stop - padding < 0:
            raise RunError(f"an epoch of {samples} samples is too small for {nodes} nodes", hint="streaming fails on this too")
        rows[:, width:] = rows[:, stop - padding : stop]
    return rows


def _whole_ranks(per_node: Ids, ranks: int) -> Ids:
    """Each node's row [node, place] filled with earlier positions to a multiple of its ranks."""
    count = per_node.shape[1]
    short = -count % ranks
    if not short:
        return per_node
    if ranks + short - 1 <= count:
        last = per_node[:, count - ranks - short + 1 : count - ranks + 1]
    else:
        last = np.concatenate([np.tile(per_node, short // count), per_node[:, : short % count]], 1) if count else np.full((len(per_node), short), -1, np.int64)
    return np.concatenate([per_node, last], 1)
