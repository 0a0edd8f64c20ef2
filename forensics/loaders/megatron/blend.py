"""Mixing corpora by weight: the order in which samples are drawn from each.

Follows `megatron/core/datasets/blended_dataset.py` and `helpers.cpp` (`build_blending_indices`,
`build_exhaustive_blending_indices`), megatron-core 0.5 to 0.19.

The order is greedy and sequential: at position i the corpus with the largest `w * max(i, 1) - drawn` comes next, the
first one on a tie, in float64. Nothing here keeps the order of a whole run in memory: kernels walk it and note what
was asked for. They must not be compiled with fast-math: a fused multiply-add breaks ties otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
from numpy.typing import NDArray

from forensics.loaders.megatron.indices import normalize

NO_LIMIT = np.inf


@numba.njit(cache=True, inline="always")  # type: ignore[misc, unused-ignore]
def _next(weights, drawn, position):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """The corpus furthest behind its share at a position, the first one on a tie; counts are whole numbers in float64."""
    scale = float(max(position, 1))
    best, error = 0, weights[0] * scale - drawn[0]
    for c in range(1, len(weights)):
        mine = weights[c] * scale - drawn[c]
        if mine > error:
            best, error = c, mine
    return best


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def _walk(weights, limits, drawn, begin, at, corpus, sample):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Go on from position `begin` and note corpus and sample number at the ascending positions `at`; one used up weighs minus infinity."""
    found, position = 0, begin
    while found < len(at):
        best = _next(weights, drawn, position)
        while found < len(at) and at[found] == position:
            corpus[found], sample[found] = best, np.int64(drawn[best])
            found += 1
        drawn[best] += 1.0
        if drawn[best] >= limits[best]:
            weights[best] = -np.inf
        position += 1
    return position


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def _seek(weights, limits, length, wanted, start, stop, out):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Positions of the wanted (corpus, sample number) pairs; `wanted[start[c]:stop[c]]` ascends; -1 where absent."""
    drawn = np.zeros(len(weights))
    at = start.copy()
    left = len(wanted)
    for position in range(length):
        if left == 0:
            break
        best = _next(weights, drawn, position)
        while at[best] < stop[best] and wanted[at[best]] == np.int64(drawn[best]):
            out[at[best]] = position
            at[best] += 1
            left -= 1
        drawn[best] += 1.0
        if drawn[best] >= limits[best]:
            weights[best] = -np.inf
    return left


class BlendOrder:
    """The order of a blend, walked as far as it is asked for.

    Args:
        weights: as handed to the blend: normalised once by the builder, or sizes.
        length: samples in the blend.
        sizes: for the exhaustive form (no size wanted), the samples of each corpus, which leaves the set when used up;
            weights are then sizes over their sum.
    """

    def __init__(self, weights: Sequence[float], length: int, sizes: Sequence[int] | None = None) -> None:
        if sizes is None:
            self.weights = np.array(normalize(list(weights)), dtype=np.float64)
            self.limits = np.full(len(self.weights), NO_LIMIT)
        else:
            self.limits = np.array(sizes, dtype=np.float64)
            self.weights = self.limits / np.float64(sum(map(int, sizes)))
        self.length = length
        self._rewind()

    def _rewind(self) -> None:
        self._left, self._drawn, self._position = self._start()[0], np.zeros(len(self.weights)), 0

    def _start(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Weights of the corpora that hold anything, and all limits."""
        return np.where(self.limits > 0, self.weights, -np.inf), self.limits

    def pick(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        """Corpus and its sample number at each position, in any order; goes on from the last call where it can."""
        if len(positions) > 1 and (positions[1:] < positions[:-1]).any():
            order = np.argsort(positions, kind="stable")
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            corpus, sample = self.pick(positions[order])
            return corpus[back], sample[back]
        at = np.ascontiguousarray(positions)
        corpus, sample = np.empty(len(at), np.int16), np.empty(len(at), np.int64)
        if len(at):
            if at[-1] >= self.length or at[0] < 0:
                raise IndexError(f"position {int(at[-1])} of a blend of {self.length}")
            if at[0] < self._position:
                self._rewind()
            self._position = int(_walk(self._left, self.limits, self._drawn, self._position, at, corpus, sample))
        return corpus, sample

    def counts(self) -> NDArray[np.int64]:
        """Samples drawn from each corpus over the whole blend, int64 [corpora]."""
        drawn = np.zeros(len(self.weights))
        if self.length:
            one = np.array([self.length - 1])
            _walk(*self._start(), drawn, 0, one, np.empty(1, np.int16), np.empty(1, np.int64))
        return drawn.astype(np.int64)

    def seek(self, corpus: NDArray[np.int64], sample: NDArray[np.int64]) -> NDArray[np.int64]:
        """Position of each (corpus, sample number); -1 where the blend does not reach it."""
        order = np.lexsort((sample, corpus))
        wanted = np.ascontiguousarray(sample[order], dtype=np.int64)
        edges = np.searchsorted(corpus[order], np.arange(len(self.weights) + 1))
        found = np.full(len(wanted), -1, dtype=np.int64)
        _seek(*self._start(), self.length, wanted, edges[:-1].astype(np.int64), edges[1:].astype(np.int64), found)
        out = np.empty_like(found)
        out[order] = found
        return out
