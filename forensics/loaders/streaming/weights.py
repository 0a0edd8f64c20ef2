"""How often each sample of each stream takes part in an epoch: MosaicML Streaming's weights and resampling.

Reproduces `Stream.apply_weights` (streaming/base/stream.py), `get_sampling` (sampling.py) and
`StreamingDataset.resample_streams` (dataset.py), read in 0.13.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forensics.errors import ConfigError

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class StreamShards:
    """One stream: its shards' sizes and its weight (at most one of the three)."""

    shards: Ids
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None

    @property
    def samples(self) -> int:
        """Samples stored in the stream."""
        return int(self.shards.sum())


@dataclass(frozen=True)
class Weights:
    """Samples to draw from each stream per epoch [stream], their proportions [stream], and their sum."""

    choose: Ids
    proportion: NDArray[np.float64]
    epoch_size: int


def apply_weights(streams: Sequence[StreamShards], epoch_size: int | None, seed: int) -> Weights:
    """Samples per stream and epoch.

    Args:
        streams: in the order of the configuration.
        epoch_size: as configured, or None.
        seed: `shuffle_seed` of the configuration: the data set's own, even when a state brings another.

    Raises:
        ConfigError: weights that the library refuses.
    """
    for i, s in enumerate(streams):
        if sum(x is not None for x in (s.proportion, s.repeat, s.choose)) > 1:
            raise ConfigError(f"stream {i} gives more than one of `proportion`, `repeat` and `choose`")
        if any(x is not None and x < 0 for x in (s.proportion, s.repeat, s.choose)):
            raise ConfigError(f"stream {i} has a negative weight")
    relative = streams[0].proportion is not None
    if any((s.proportion is not None) != relative for s in streams):
        raise ConfigError("streams mix `proportion` with absolute weights", hint="streaming wants `proportion` for all streams or for none")
    sizes = np.array([s.samples for s in streams], np.int64)
    unset = all(s.repeat is None and s.choose is None for s in streams)
    if relative or (unset and epoch_size):
        parts = np.array([s.proportion for s in streams], np.float64) if relative else sizes.astype(np.float64)
        return _shares(parts, epoch_size or int(sizes.sum()), seed)
    if epoch_size:
        raise ConfigError("`epoch_size` needs streams weighted by `proportion` or not at all")
    choose = np.array([int(s.repeat * n) if s.repeat is not None else n if s.choose is None else s.choose for s, n in zip(streams, sizes.tolist())], np.int64)
    return Weights(choose, choose / choose.sum(), int(choose.sum()))


def _shares(parts: NDArray[np.float64], epoch_size: int, seed: int) -> Weights:
    parts = parts / parts.sum()
    choose = (epoch_size * parts).astype(np.int64)
    short = epoch_size - choose.sum()
    choose[np.random.default_rng(seed).choice(len(parts), short, False)] += 1
    return Weights(choose, parts, epoch_size)


def spread(shards: Ids, choose: int, granularity: int, seed: int) -> Ids:
    """Samples to draw from each shard [shard]: whole passes, then picks of `granularity` samples in random order."""
    total = int(shards.sum())
    if choose % total == 0:
        return shards * (choose // total)
    picks = -(-shards // granularity)
    owner = np.repeat(np.arange(len(shards)), picks)
    sizes = np.full(len(owner), granularity, np.int64)
    sizes[np.cumsum(picks) - 1] = shards - (picks - 1) * granularity
    order = np.random.default_rng(seed).permutation(len(owner))
    taken = np.minimum(np.cumsum(sizes[order]), choose % total)
    return shards * (choose // total) + np.bincount(owner[order], np.diff(taken, prepend=0), len(shards)).astype(np.int64)


@dataclass(frozen=True)
class Resampling:
    """Parameters of the drawing: `sampling_method`, `sampling_granularity`, `shuffle_seed`, `shuffle`."""

    method: str
    granularity: int
    seed: int
    shuffle: bool

    def by_epoch(self, epoch: int) -> int:
        """Seed of draws that change with the epoch only if data are shuffled and sampling is balanced."""
        return self.seed + epoch if self.shuffle and self.method == "balanced" else self.seed


def resample(streams: Sequence[StreamShards], choose: Ids, how: Resampling, epoch: int, only: int | None = None) -> tuple[Ids, Ids]:
    """The epoch's shuffle units and, for each of its samples, the stored sample it is.

    Args:
        streams: all streams.
        choose: samples per stream [stream].
        how: drawing.
        epoch: from 0.
        only: one stream alone; the random numbers start afresh for it.

    Returns:
        sizes of units [unit], stored sample numbers [sample], counted over all streams and shards.
    """
    rng = np.random.default_rng(how.seed + epoch if how.method == "balanced" else how.seed)
    units: list[list[int]] = []
    ids: list[Ids] = []
    first = 0
    for i, stream in enumerate(streams):
        if only is None or i == only:
            drawn = spread(stream.shards, int(choose[i]), how.granularity, how.by_epoch(epoch))
            at = first
            for size, count in zip(stream.shards.tolist(), drawn.tolist()):
                whole, rest = divmod(count, size) if size else (0, 0)
                units.append([size] * whole + [rest] * bool(rest))
                ids += [np.arange(at, at + size)] * whole
                if rest:
                    part = at + rng.choice(size, rest, False)
                    part.sort()
                    ids.append(part)
                at += size
        first += stream.samples
    return np.array([u for unit in units for u in unit], np.int64), np.concatenate(ids).astype(np.int64) if ids else np.zeros(0, np.int64)
