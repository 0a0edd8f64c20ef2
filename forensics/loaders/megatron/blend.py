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

NO_LIMIT = np.iinfo(np.int64).max


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def _walk(weights, limits, drawn, begin, at, corpus, sample):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Go on from position `begin` and note corpus and sample number at the ascending positions `at`."""
    n, found = len(weights), 0
    position = begin
    while found < len(at):
        scale = float(max(position, 1))
        best, error = -1, 0.0
        for c in range(n):
            if drawn[c] >= limits[c]:
                continue
            mine = weights[c] * scale - float(drawn[c])
            if best < 0 or mine > error:
                best, error = c, mine
        while found < len(at) and at[found] == position:
            corpus[found], sample[found] = best, drawn[best]
            found += 1
        drawn[best] += 1
        position += 1
    return position


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def _seek(weights, limits, length, wanted, start, stop, out):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Positions of the wanted (corpus, sample number) pairs; `wanted[start[c]:stop[c]]` ascends; -1 where absent."""
    n = len(weights)
    drawn = np.zeros(n, np.int64)
    at = start.copy()
    left = len(wanted)
    for position in range(length):
        if left == 0:
            break
        scale = float(max(position, 1))
        best, error = -1, 0.0
        for c in range(n):
            if drawn[c] >= limits[c]:
                continue
            mine = weights[c] * scale - float(drawn[c])
            if best < 0 or mine > error:
                best, error = c, mine
        while at[best] < stop[best] and wanted[at[best]] == drawn[best]:
            out[at[best]] = position
            at[best] += 1
            left -= 1
        drawn[best] += 1
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
            self.limits = np.full(len(self.weights), NO_LIMIT, dtype=np.int64)
        else:
            self.limits = np.array(sizes, dtype=np.int64)
            self.weights = self.limits / np.float64(int(self.limits.sum()))
        self.length = length
        self._rewind()

    def _rewind(self) -> None:
        self._drawn = np.zeros(len(self.weights), dtype=np.int64)
        self._position = 0

    def pick(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        """Corpus and its sample number at each position, in any order; goes on from the last call where it can."""
        order = np.argsort(positions, kind="stable")
        at = np.ascontiguousarray(positions[order])
        corpus, sample = np.empty(len(at), np.int16), np.empty(len(at), np.int64)
        if len(at):
            if at[-1] >= self.length or at[0] < 0:
                raise IndexError(f"position {int(at[-1])} of a blend of {self.length}")
            if at[0] < self._position:
                self._rewind()
            self._position = int(_walk(self.weights, self.limits, self._drawn, self._position, at, corpus, sample))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return corpus[back], sample[back]

    def counts(self) -> NDArray[np.int64]:
        """Samples drawn from each corpus over the whole blend, int64 [corpora]."""
        drawn = np.zeros(len(self.weights), dtype=np.int64)
        if self.length:
            one = np.array([self.length - 1])
            _walk(self.weights, self.limits, drawn, 0, one, np.empty(1, np.int16), np.empty(1, np.int64))
        return drawn

    def seek(self, corpus: NDArray[np.int64], sample: NDArray[np.int64]) -> NDArray[np.int64]:
        """Position of each (corpus, sample number); -1 where the blend does not reach it."""
        order = np.lexsort((sample, corpus))
        wanted = np.ascontiguousarray(sample[order], dtype=np.int64)
        edges = np.searchsorted(corpus[order], np.arange(len(self.weights) + 1))
        found = np.full(len(wanted), -1, dtype=np.int64)
        _seek(self.weights, self.limits, self.length, wanted, edges[:-1].astype(np.int64), edges[1:].astype(np.int64), found)
        out = np.empty_like(found)
        out[order] = found
        return out
