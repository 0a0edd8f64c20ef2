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
    ends = np.full((len(power), 2), -1, np.int64)
    times, met = np.zeros(len(bounds), np.int64), np.empty(len(bounds), np.int64)
    for d in range(len(bounds) - 1):
        n = 0
        for i in range(bounds[d], bounds[d + 1]):
            first, last = ends[codes[i]]
            if first < 0:
                ends[codes[i], 0] = d
            for other in (first, last if last != first else -1):
                if other >= 0:
                    if not times[other]:
                        met[n] = other
                        n += 1
                    times[other] += 1
            ends[codes[i], 1] = d
        for other in met[:n]:
            if times[other] >= TALLY and find(parent, d) != find(parent, other) and likeness(codes, bounds, power, total, rate, d, other, least) >= SHARE:
                union(parent, d, other)
            times[other] = 0


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


@nb.njit(cache=True, nogil=True)
def _place(keys: NDArray[np.int64], key: int) -> int:
    """`searchsorted`, which takes numba half a second to compile."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@nb.njit(cache=True, nogil=True)
def tally(
    docs: NDArray[np.int64],
    runs: NDArray[np.uint64],
    keys: NDArray[np.int64],
    taken: NDArray[np.bool_],
    total: NDArray[np.int64],
    lowest: NDArray[np.uint64],
    counters: NDArray[np.uint8],
) -> None:
    """Count runs of the documents taken per document and per counter (up to 255), and collect the bits of each document's runs.

    Args:
        docs, runs: a part of the samples: key of the document and run.
        keys: of all documents, ascending.
        taken: whether a document counts.
        total, lowest: per document, changed.
        counters: a power of two of them, changed.
    """
    mask, at = np.uint64(len(counters) - 1), 0
    for i in range(len(docs)):
        if keys[at] != docs[i]:
            at = _place(keys, docs[i])
        if taken[at]:
            total[at] += 1
            lowest[at] |= runs[i]
            counter = (runs[i] >> _ABOVE) & mask  # bits that the sampling left to chance
            if counters[counter] < 255:
                counters[counter] += 1


@nb.njit(cache=True, nogil=True)
def frequent(
    docs: NDArray[np.int64], runs: NDArray[np.uint64], keys: NDArray[np.int64], taken: NDArray[np.bool_], counters: NDArray[np.uint8], least: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Row of the document and hash of those runs that may stand in `least` documents, by the counters of `tally`."""
    rows, kept = np.empty(len(docs), np.int64), np.empty(len(docs), np.uint64)
    mask, at, n = np.uint64(len(counters) - 1), 0, 0
    for i in range(len(docs)):
        if keys[at] != docs[i]:
            at = _place(keys, docs[i])
        if taken[at] and counters[(runs[i] >> _ABOVE) & mask] >= least:
            rows[n], kept[n] = at, runs[i]
            n += 1
    return rows[:n].copy(), kept[:n].copy()


@nb.njit(cache=True, nogil=True)
def thinned(rows: NDArray[np.int64], codes: NDArray[np.int64], distinct: int, total: NDArray[np.int64], documents: int, runs: int) -> int:
    """Move to the front the runs that so many documents have, of documents that keep so many runs and a share `SHARE` of theirs; how many."""
    count, held, n = np.zeros(distinct, np.int64), np.zeros(len(total), np.int64), 0
    for i in range(len(codes)):
        count[codes[i]] += 1
    for i in range(len(codes)):
        if count[codes[i]] >= documents:
            rows[n], codes[n] = rows[i], codes[i]
            held[rows[i]] += 1
            n += 1
    kept = 0
    for i in range(n):
        if held[rows[i]] >= runs and held[rows[i]] >= SHARE * total[rows[i]]:
            rows[kept], codes[kept] = rows[i], codes[i]
            kept += 1
    return kept
