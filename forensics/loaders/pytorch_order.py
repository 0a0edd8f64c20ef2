"""Which example comes when: samplers of torch, torchdata, Accelerate and the Hugging Face Trainer as pure functions.

Reproduces torch/utils/data/{sampler,distributed}.py (2.13), torchdata's StatefulDataLoader (0.11), accelerate/data_loader.py (1.15) and
the epoch loop of transformers/trainer.py (5.24), compared with each of them. Batches are arrays [micro batch, rank, place]; -1
where a rank has no example. Random numbers are raw outputs of the Mersenne Twister, whose state torch saves as bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forensics.errors import RunError
from forensics.loaders.megatron.randperm import _swap

Ids = NDArray[np.int64]
STATE_BYTES = 24 + 624 * 8


class TorchGenerator:
    """torch's CPU generator as far as samplers use it.

    Args:
        seed: of `manual_seed`.
        state: bytes of `get_state()`, instead of a seed.

    Raises:
        RunError: bytes that are no such state.
    """

    def __init__(self, seed: int = 0, state: NDArray[np.uint8] | None = None) -> None:
        self._raw = np.random.RandomState(seed & 0xFFFFFFFF)
        if state is not None:
            if len(state) < STATE_BYTES:
                raise RunError(f"a generator state of {len(state)} bytes is none of torch's CPU generator")
            left, position = int(state[8:12].view("<i4")[0]), int(state[16:24].view("<u8")[0])
            key = np.ascontiguousarray(state[24:STATE_BYTES]).view("<u8").astype(np.uint32)
            self._raw.set_state(("MT19937", key, 624 if left == 1 else position, 0, 0.0))

    def permutation(self, n: int) -> Ids:
        """`torch.randperm(n)`: Fisher-Yates from the front, n - 1 raw numbers."""
        order = np.arange(n)
        if n > 1:
            _swap(order, self._raw.randint(0, 2**32, size=n - 1, dtype=np.uint32), 0, n)
        return order

    def draw(self) -> None:
        """One 64-bit number, as a loader takes it for its workers: two raw ones."""
        self._raw.randint(0, 2**32, size=2, dtype=np.uint32)


def batches_of(order: Ids, size: int, drop_last: bool) -> Ids:
    """A rank's examples in batches [batch, place]."""
    whole = len(order) // size * size
    if drop_last or whole == len(order):
        return order[:whole].reshape(-1, size)
    return np.concatenate([order, np.full(-len(order) % size, -1, np.int64)]).reshape(-1, size)


def distributed(n: int, ranks: int, size: int, *, seed: int, epoch: int, shuffle: bool, sampler_drop_last: bool, drop_last: bool) -> Ids:
    """`DistributedSampler` and one `DataLoader` per rank."""
    order = TorchGenerator(seed + epoch).permutation(n) if shuffle else np.arange(n)
    if sampler_drop_last and n % ranks:
        order = order[: math.ceil((n - ranks) / ranks) * ranks]
    else:
        order = np.resize(order, math.ceil(n / ranks) * ranks)
    return np.stack([batches_of(order[r::ranks], size, drop_last) for r in range(ranks)], 1)


@dataclass(frozen=True)
class Sharding:
    """How Accelerate deals a loader's batches to processes."""

    ranks: int
    split_batches: bool = False
    even_batches: bool = True
    dispatch_batches: bool = False


def sharded(order: Ids, size: int, drop_last: bool, how: Sharding) -> Ids:
    """A loader's examples dealt to processes [micro batch, rank, place]."""
    if how.dispatch_batches:
        return _dispatched(order, size, drop_last, how)
    if how.ranks == 1:
        return batches_of(order, size, drop_last)[:, None, :]
    if how.split_batches:
        return _split(order, size, drop_last, how)
    return _dealt(order, size, drop_last, how)


def _dealt(order: Ids, size: int, drop_last: bool, how: Sharding) -> Ids:
    """Whole batches to processes in turn; the last round is completed from the start of the order."""
    ranks = how.ranks
    batches = batches_of(order, size, drop_last)
    if drop_last:
        return batches[: len(batches) // ranks * ranks].reshape(-1, ranks, size)
    if how.even_batches and len(order):
        missing = -len(order) % (ranks * size)
        head = order[: min(ranks * size, len(order))]
        return np.concatenate([order, np.resize(head, missing)]).reshape(-1, ranks, size)
    short = -len(batches) % ranks
    return np.concatenate([batches, np.full((short, size), -1, np.int64)]).reshape(-1, ranks, size)


def _split(order: Ids, size: int, drop_last: bool, how: Sharding) -> Ids:
    """Every batch cut into one slice per process."""
    if size % how.ranks:
        raise RunError(f"split_batches needs a batch size that is a multiple of the {how.ranks} processes, not {size}", hint="Accelerate refuses this too")
    rest = order[len(order) // size * size :]
    if not drop_last and len(rest) and how.even_batches:
        head = order[:size]
        order = np.concatenate([order, np.resize(head, size - len(rest))])
    return batches_of(order, size, drop_last).reshape(-1, how.ranks, size // how.ranks)


def _dispatched(order: Ids, size: int, drop_last: bool, how: Sharding) -> Ids:
    """The first process reads for all and cuts what it read; what does not divide is completed from its first examples."""
    ranks = how.ranks
    at_once = size if how.split_batches else size * ranks
    whole = len(order) // at_once * at_once
    out = order[:whole].reshape(-1, ranks, at_once // ranks)
    rest = order[whole:]
    if drop_last or not len(rest):
        return out
    each = len(rest) // ranks
    if len(rest) % ranks:
        rest = np.concatenate([rest, order[:at_once][:ranks]])
        each += 1
    wide = max(each, at_once // ranks)
    out = np.concatenate([out, np.full((*out.shape[:2], wide - out.shape[2]), -1, np.int64)], 2)
    last = np.full((1, ranks, wide), -1, np.int64)
    for rank in range(ranks):
        part = rest[rank * each : (rank + 1) * each]
        last[0, rank, : len(part)] = part
    return np.concatenate([out, last])


class StatefulEpochs:
    """Orders of successive epochs; epoch 0 is the first one, or the one that the state belongs to.

    Between epochs the loader takes one 64-bit number, with workers also a permutation that nobody reads; neither where the
    workers persist. Without workers the number is missing between a resumed epoch and the next one, so that the run
    differs from an uninterrupted one.
    """

    def __init__(self, generator: TorchGenerator, n: int, *, workers: int, resumed: bool, persistent: bool = False) -> None:
        self._generator, self._n, self._workers, self._resumed = generator, n, workers, resumed
        self._persistent = persistent and bool(workers)
        self._orders: list[Ids] = []

    def order(self, epoch: int) -> Ids:
        """Examples of an epoch."""
        while len(self._orders) <= epoch:
            self._orders.append(self._next())
        return self._orders[epoch]

    def _next(self) -> Ids:
        g, n = self._generator, self._n
        done = len(self._orders)
        if self._workers:
            if (done and not self._persistent) or not (done or self._resumed):
                g.permutation(n)
                g.draw()
        elif done and not (self._resumed and done == 1):
            g.draw()
        return g.permutation(n)


class LoaderEpochs:
    """Orders of successive epochs of a plain `DataLoader(shuffle=True, generator=...)` in an uninterrupted run.

    Each epoch takes a 64-bit number (only the first one where workers persist), the permutation that is read, and one
    more that nobody reads.
    """

    def __init__(self, generator: TorchGenerator, n: int, persistent: bool = False) -> None:
        self._generator, self._n, self._persistent = generator, n, persistent
        self._orders: list[Ids] = []

    def order(self, epoch: int) -> Ids:
        """Examples of an epoch."""
        while len(self._orders) <= epoch:
            if not (self._orders and self._persistent):
                self._generator.draw()
            self._orders.append(self._generator.permutation(self._n))
            self._generator.permutation(self._n)
        return self._orders[epoch]
