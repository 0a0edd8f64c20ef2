"""Mixtures of sources by ratio: how many tokens of each file take part.

Reproduces `SourceMixtureDatasetConfig.build` (data/source_mixture.py) and `calculate_sample_sizes`
(data/composable/utils.py) of OLMo-core 3.0.0, float by float.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forensics.errors import ConfigError


@dataclass(frozen=True)
class MixedSource:
    """One source: its share and the tokens of its files."""

    name: str
    target_ratio: float
    tokens: tuple[int, ...]
    max_repetition_ratio: float = 1.0
    max_source_fraction: float = 1.0


def _wanted(source: MixedSource, requested: int) -> list[tuple[int, int, int]]:
    """(file, tokens wanted, tokens it has), once per pass over the source."""
    population = sum(source.tokens)
    needed = int(requested * source.target_ratio)
    most = int((population * source.max_source_fraction) * source.max_repetition_ratio)
    if most < needed:
        raise ConfigError(f"source {source.name} has {most} tokens to give, {needed} are wanted", hint="OLMo-core refuses this too")
    left = needed / population
    passes = []
    if left > 1:
        while left > 0:
            passes.append(min(1.0, left))
            left -= passes[-1]
    else:
        passes.append(left)
    return [(i, math.ceil(n * share), n) for share in passes for i, n in enumerate(source.tokens)]


def mixture(sources: Sequence[MixedSource], requested_tokens: int, batch_tokens: int, length: int) -> list[tuple[int, int, int]]:
    """Files of a mixture and the tokens taken from each.

    Args:
        sources: in the order of the configuration.
        requested_tokens: of the configuration.
        batch_tokens: `global_batch_size` of the mixture's configuration.
        length: `sequence_length`.

    Returns:
        (source, file of the source, tokens), in the data set's order; a file may come up several times, files without tokens are left out.
    """
    if batch_tokens % length:
        raise ConfigError(f"global_batch_size {batch_tokens} of the mixture is no multiple of sequence_length {length}")
    files = [(s, *one) for s, source in enumerate(sources) for one in _wanted(source, requested_tokens)]
    room = [have // length for *_, have in files]
    taken = [min(want // length, most) for (_, _, want, _), most in zip(files, room)]
    remainder = [(want % length) / length if got < most else 0.0 for (_, _, want, _), got, most in zip(files, taken, room)]
    missing = math.ceil(requested_tokens / batch_tokens) * (batch_tokens // length) - sum(taken)
    free = [i for i, most in enumerate(room) if taken[i] < most]
    if missing > 0 and free:
        base = missing // len(free)
        for i in free if base else []:
            taken[i] += min(base, room[i] - taken[i])
        missing = math.ceil(requested_tokens / batch_tokens) * (batch_tokens // length) - sum(taken)
        if missing > 0:
            for _, i in sorted(((remainder[i], i) for i in free if taken[i] < room[i]), reverse=True)[:missing]:
                taken[i] += 1
    return [(s, i, n * length) for (s, i, _, _), n in zip(files, taken) if n]


def sample_sizes(sizes: Sequence[int], ratios: Sequence[float], repetition: Sequence[float], target: int | None) -> list[int]:
    """Tokens to take from each source so that the shares hold.

    Args:
        sizes: tokens of each source.
        ratios: shares, normalised where they do not sum to 1.
        repetition: how often each source may be repeated, at least 1.
        target: tokens wanted in all; None for the sum of sizes, as far as it goes.

    Raises:
        ConfigError: a target that cannot be met.
    """
    share, size, most = np.array(ratios), np.array(sizes), np.array(repetition)
    if (share <= 0).any() or (most < 1).any() or (size <= 0).any():
        raise ConfigError("a mixture needs ratios above 0, repetition factors of at least 1 and sources with tokens", hint="OLMo-core refuses this too")
    strict = target is not None
    wanted = size.sum() if target is None else target
    if not np.allclose(share.sum(), 1.0):
        share = share / share.sum()
    ideal = wanted * share
    usable = size * np.minimum(most, np.maximum(ideal / size, 1.0))
    actual = ideal * min(1.0, (usable / ideal).min())
    if strict and not np.allclose(wanted, actual.sum()):
        raise ConfigError(f"the mixture cannot give {wanted} tokens, only {int(actual.sum())}", hint="OLMo-core refuses this too")
    return [int(n) for n in actual.astype(np.uint64)]
