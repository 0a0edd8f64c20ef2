"""Who shares a skeleton with whom: kernels over sampled runs, used by `templates`.

A sample is runs as numbers, ascending within a document; bounds of documents; per run the power of two that divides its hash; per document how
many runs it has in all, and one of how many it keeps. Two documents are compared at the coarser of their rates. Compiled, imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba as nb
import numpy as np

from forensics.clustering.components import find, union

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHARE = 0.4  # of the longer skeleton that two documents of one template have in common
_ABOVE = np.uint64(33)
TALLY = 3  # runs for which an earlier document must be the first or the last to have had them, to be compared with


@nb.njit(cache=True, nogil=True)
def likeness(
    codes: NDArray[np.int64], bounds: NDArray[np.int64], power: NDArray[np.int64], total: NDArray[np.int64], rate: NDArray[np.int64], a: int, b: int, least: int
) -> float:
    """Runs that two documents have in common by those of the longer one; 0 where they are fewer than `least`."""
    coarse = max(rate[a], rate[b])
    i, j, common = bounds[a], bounds[b], 0
    while i < bounds[a + 1] and j < bounds[b + 1]:
        if codes[i] < codes[j]:
            i += 1
        elif codes[i] > codes[j]:
            j += 1
        else:
            common += power[codes[i]] >= coarse
            i += 1
            j += 1
    most = max(total[a] * rate[a], total[b] * rate[b]) / coarse
    return min(1.0, common / most) if common >= least else 0.0


@nb.njit(cache=True, nogil=True)
def link(
    codes: NDArray[np.int64],
    bounds: NDArray[np.int64],
    power: NDArray[np.int64],
    total: NDArray[np.int64],
    rate: NDArray[np.int64],
    parent: NDArray[np.int64],
    least: int,
) -> None:
    """Join every document with earlier ones that it resembles; candidates are the first and the last that had its runs.

    Args:
        codes, bounds, power, total, rate: the sample.
        parent: union-find, changed.
        least: runs in common.
    """
    first, last = np.full(len(power), -1, np.int64), np.full(len(power), -1, np.int64)
    for d in range(len(bounds) - 1):
        size = bounds[d + 1] - bounds[d]
        met = np.empty(2 * size, np.int64)
        n = 0
        for i in range(bounds[d], bounds[d + 1]):
            c = codes[i]
            if first[c] < 0:
                first[c] = d
            else:
                met[n] = first[c]
                n += 1
                if last[c] != first[c]:
                    met[n] = last[c]
                    n += 1
            last[c] = d
        met[:n].sort()
        start = 0
        for i in range(1, n + 1):
            if i < n and met[i] == met[start]:
                continue
            other = met[start]
            if i - start >= TALLY and find(parent, d) != find(parent, other) and likeness(codes, bounds, power, total, rate, d, other, least) >= SHARE:
                union(parent, d, other)
            start = i


@nb.njit(cache=True, nogil=True)
def leader_likeness(
    codes: NDArray[np.int64],
    bounds: NDArray[np.int64],
    power: NDArray[np.int64],
    total: NDArray[np.int64],
    rate: NDArray[np.int64],
    leader: int,
    members: NDArray[np.int64],
    least: int,
) -> NDArray[np.float64]:
    """Likeness of a document to each of others: float64 [members]."""
    out = np.empty(len(members))
    for i in range(len(members)):
        out[i] = likeness(codes, bounds, power, total, rate, leader, members[i], least)
    return out


@nb.njit(cache=True, nogil=True)
def leader_of(codes: NDArray[np.int64], bounds: NDArray[np.int64], left: NDArray[np.int64], count: NDArray[np.int64]) -> int:
    """The document with most of the runs that half of them have, then most that any others have, then the lowest number.

    Args:
        codes, bounds: of the sample.
        left: documents, int64.
        count: int64 [codes], zero, and left so.
    """
    for d in left:
        for i in range(bounds[d], bounds[d + 1]):
            count[codes[i]] += 1
    best, best_common, best_most = -1, -1, -1
    for d in left:
        common, most = 0, 0
        for i in range(bounds[d], bounds[d + 1]):
            common += 2 * count[codes[i]] >= len(left)
            most += count[codes[i]]
        if common > best_common or (common == best_common and (most > best_most or (most == best_most and d < best))):
            best, best_common, best_most = d, common, most
    for d in left:
        for i in range(bounds[d], bounds[d + 1]):
            count[codes[i]] = 0
    return best


@nb.njit(cache=True, nogil=True)
def _codes(runs: NDArray[np.uint64], distinct: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    place, mask, out = np.full(1 << bits, -1, np.int64), (1 << bits) - 1, np.empty(len(runs), np.int64)
    for k in range(len(distinct)):
        at = np.int64(distinct[k] >> _ABOVE) & mask
        while place[at] >= 0:
            at = (at + 1) & mask
        place[at] = k
    for i in range(len(runs)):
        at = np.int64(runs[i] >> _ABOVE) & mask
        while distinct[place[at]] != runs[i]:
            at = (at + 1) & mask
        out[i] = place[at]
    return out


def numbered(runs: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Distinct runs, ascending, and the place of each run among them: what `numpy.unique` answers, at a tenth of the cost."""
    distinct = np.sort(runs)
    distinct = distinct[np.append(np.ones(min(1, len(runs)), np.bool_), distinct[1:] != distinct[:-1])]
    return distinct, np.asarray(_codes(runs, distinct, max(1, len(distinct).bit_length() + 1)), np.int64)


def counter_of(runs: NDArray[np.uint64], counters: int) -> NDArray[np.int64]:
    """Which of so many counters (a power of two) counts a run: int64 [runs]; bits that the sampling left to chance."""
    return ((runs >> _ABOVE) & np.uint64(counters - 1)).astype(np.int64)


@nb.njit(cache=True, nogil=True)
def tally(rows: NDArray[np.int64], runs: NDArray[np.uint64], total: NDArray[np.int64], lowest: NDArray[np.uint64], counters: NDArray[np.uint8]) -> None:
    """Count runs per document and per counter (up to 255), and collect the bits of each document's runs."""
    mask = np.uint64(len(counters) - 1)
    for i in range(len(rows)):
        total[rows[i]] += 1
        lowest[rows[i]] |= runs[i]
        at = (runs[i] >> _ABOVE) & mask
        if counters[at] < 255:
            counters[at] += 1
