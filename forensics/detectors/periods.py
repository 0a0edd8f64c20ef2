"""Kernels that find text repeating itself: exact periods of a few tokens, as OLMo-core's filter does, and periodic runs of any period.

`longest_period_run` answers exactly what OLMo-core 3.0 (`olmo_core/data/utils.py`, `find_periodic_sequences`, used by its
`RepetitionFilter`) answers for one sequence: the largest number of times a unit of `low..high` tokens stands in a row. It looks only at every
(repeats - 1) x period-th token, since a run that long must cover one of them.
`periodic_runs` finds every stretch x[j] = x[j - d] of at least a given length, for any d, by a table of the last place of each n-gram:
one pass, whatever the period. Both take ids and bytes alike.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

TABLE_BITS = 15


@numba.njit(cache=True, nogil=True)
def longest_period_run(x: NDArray[Any], low: int, high: int, repeats: int) -> tuple[int, int, int, int]:
    """(times, period, start, stop) of the run with the most repetitions among those with at least `repeats`; zeros when there is none."""
    n = len(x)
    best_times, best_period, best_start, best_stop = 0, 0, 0, 0
    for period in range(low, high + 1):
        need = period * (repeats - 1)  # equal pairs (j, j - period) in a row
        at = need + period - 1
        done = period  # pairs before this one belong to runs seen already
        while at < n:
            if x[at] != x[at - period]:
                at += need
                continue
            start = at
            while start > done and x[start - 1] == x[start - 1 - period]:
                start -= 1
            stop = at + 1
            while stop < n and x[stop] == x[stop - period]:
                stop += 1
            times = (stop - start + period) // period
            if times >= repeats and times > best_times:
                best_times, best_period, best_start, best_stop = times, period, start - period, stop
            done = stop + 1
            at = stop + need
    return best_times, best_period, best_start, best_stop


@numba.njit(cache=True, nogil=True)
def period_runs(x: NDArray[Any], offsets: NDArray[np.int64], low: int, high: int, repeats: int) -> NDArray[np.int64]:
    """int64 [n, 4]: `longest_period_run` of every document."""
    out = np.zeros((len(offsets) - 1, 4), np.int64)
    for i in range(len(offsets) - 1):
        times, period, start, stop = longest_period_run(x[offsets[i] : offsets[i + 1]], low, high, repeats)
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = times, period, start, stop
    return out


@numba.njit(cache=True, nogil=True)
def periodic_runs(x: NDArray[Any], gram: int, shortest: int, repeats: int, table: NDArray[np.int64], base: int, out: NDArray[np.int64]) -> int:
    """Stretches that repeat themselves.

    Args:
        x: ids or bytes [n].
        gram: length of the n-gram that a repetition is recognised by.
        shortest: shortest stretch wanted, its first unit included.
        repeats: fewest times the unit stands in it.
        table: int64 [2**TABLE_BITS], places of n-grams, shared between calls.
        base: added to places in the table: larger than every place stored by earlier calls.
        out: int64 [capacity, 3]: start, stop, period.

    Returns:
        How many were found (at most the capacity).
    """
    n = len(x)
    found = 0
    if n < gram:
        return 0
    mask = len(table) - 1
    i = 0
    while i + gram <= n:
        h = np.uint64(0)
        for k in range(gram):
            h = (h ^ np.uint64(x[i + k])) * np.uint64(0x9E3779B97F4A7C15)
            h ^= h >> np.uint64(29)
        slot = np.int64(h & np.uint64(mask))
        before = table[slot] - base
        table[slot] = i + base
        if before < 0 or x[before] != x[i] or x[before + gram - 1] != x[i + gram - 1]:
            i += 1
            continue
        stop = i
        while stop < n and x[stop] == x[stop - i + before]:
            stop += 1
        period = i - before
        if stop - i < gram:
            i += 1
            continue
        start = before
        while start > 0 and x[start - 1] == x[start - 1 + period]:
            start -= 1
        if stop - start >= shortest and stop - start >= repeats * period and found < len(out):
            if found and out[found - 1, 2] == period and out[found - 1, 1] >= stop:
                pass
            else:
                out[found, 0], out[found, 1], out[found, 2] = start, stop, period
                found += 1
        i = max(i + 1, stop - gram + 1)
    return found
