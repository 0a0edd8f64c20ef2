"""Copying many short runs of a memory map into one array: the kernels under every token store.

Compiled, because a Python loop over slices costs more than the copy; each run is one contiguous copy. A map is passed as
a plain array (`np.asarray`), never as `np.memmap`.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def _copy(source, starts, lengths, target, places):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    for k in range(len(starts)):
        n = lengths[k]
        a, b = source[starts[k] : starts[k] + n], target[places[k] : places[k] + n]
        for i in range(n):
            b[i] = a[i]


def copy_runs(source: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64], target: NDArray[Any], places: NDArray[np.int64]) -> None:
    """Copy `source[starts[k]:starts[k] + lengths[k]]` to `target` from `places[k]` on, for every k.

    Args:
        source: tokens of a file, one-dimensional.
        starts: int64 [runs], in tokens.
        lengths: int64 [runs].
        target: one-dimensional, contiguous.
        places: int64 [runs], where each run begins in `target`.

    Raises:
        IndexError: when a run lies outside either array.
    """
    if not len(starts):
        return
    if min(starts.min(), places.min(), lengths.min()) < 0 or (starts + lengths).max() > len(source) or (places + lengths).max() > len(target):
        raise IndexError("a run of tokens lies outside its file or its target")
    starts, lengths, places = (np.ascontiguousarray(x, np.int64) for x in (starts, lengths, places))
    _copy(np.ascontiguousarray(source), starts, lengths, target, places)


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def expand_runs(first, counts):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """`first[k], first[k] + 1, ...`, `counts[k]` of each, and the k of every entry: int64 [sum], int64 [sum]."""
    total = 0
    for k in range(len(counts)):
        total += counts[k]
    values, owner = np.empty(total, np.int64), np.empty(total, np.int64)
    at = 0
    for k in range(len(counts)):
        for i in range(counts[k]):
            values[at], owner[at] = first[k] + i, k
            at += 1
    return values, owner


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where runs of these lengths begin when laid end to end, and the total: int64 [n + 1]."""
    out = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=out[1:])
    return out
