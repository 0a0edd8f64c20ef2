"""Banding: which documents are worth comparing, without comparing all with all.

A signature is cut into bands of `rows` numbers; two documents that agree in all rows of some band are candidates. With
similarity J that happens with probability 1 - (1 - J^rows)^bands, the S-curve that `Bands` states. Bands are solved one
after the other, so that only a few bands' keys (8 bytes a document each) live at a time; each could be solved elsewhere.

A band's key and the document's number share one 64-bit word, which sorts faster than two arrays. The key bits left over
are too few to trust beyond about a million documents, so nothing is joined on a key alone: either the band's rows are
compared (`collisions`), or the whole signatures are (`candidates`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numba as nb
import numpy as np

from forensics.clustering.components import find, union

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEADERS = 8
TOGETHER = 6  # bands whose keys are made in one pass over the signatures
u4, u8 = np.uint32, np.uint64
M1, M2 = u8(0xBF58476D1CE4E5B9), u8(0x94D049BB133111EB)


@dataclass(frozen=True)
class Bands:
    """How a signature is cut: `bands` times `rows` of its numbers."""

    bands: int
    rows: int

    def probability(self, jaccard: float) -> float:
        """Chance that two documents of this similarity become candidates."""
        return float(1.0 - (1.0 - jaccard**self.rows) ** self.bands)

    def curve(self) -> str:
        """The S-curve in words, for reports."""
        points = ", ".join(f"{j:.1f}: {self.probability(j):.3f}" for j in (0.3, 0.5, 0.6, 0.7, 0.8, 0.9))
        return f"{self.bands} bands of {self.rows} rows; chance to become candidates by similarity: {points}"


def choose_bands(jaccard: float, recall: float = 0.98, permutations: int = 128) -> Bands:
    """The longest bands that still find pairs at `jaccard` with probability `recall`: the fewest needless candidates."""
    for rows in range(permutations, 1, -1):
        found = Bands(permutations // rows, rows)
        if found.probability(jaccard) >= recall:
            return found
    return Bands(permutations, 1)


@nb.njit(cache=True, nogil=True)
def _pack(values: NDArray[np.uint32], members: NDArray[np.int64], first: int, rows: int, shift: int, out: NDArray[np.uint64]) -> None:
    s = u8(shift)
    for i in range(members.shape[0]):
        document = values[members[i]]
        for k in range(out.shape[0]):
            at = first + k * rows
            row = document[at : at + rows]
            h = u8(at + 1) * M1
            for j in range(rows):
                h = u8(h ^ u8(row[j])) * M2
                h ^= h >> u8(29)
            h *= M1
            out[k, i] = ((h >> s) << s) | u8(i)


def band_orders(values: NDArray[np.uint32], members: NDArray[np.int64], bands: Bands) -> Iterator[tuple[int, NDArray[np.uint64], int]]:
    """Every band's keys in order, each with the place of its document in `members` in the low bits.

    Yields:
        First row of the band, sorted words uint64 [members], and how many low bits hold the place.
    """
    shift = max(1, int(len(members) - 1).bit_length())
    for start in range(0, bands.bands, TOGETHER):
        packed = np.empty((min(TOGETHER, bands.bands - start), len(members)), np.uint64)
        _pack(values, members, start * bands.rows, bands.rows, shift, packed)
        for k, words in enumerate(packed):
            words.sort()
            yield (start + k) * bands.rows, words, shift


@nb.njit(cache=True, nogil=True)
def _same(x: NDArray[np.uint32], y: NDArray[np.uint32]) -> bool:
    equal = True
    for j in range(x.shape[0]):
        equal &= x[j] == y[j]
    return equal


@nb.njit(cache=True, nogil=True)
def _join_equal(
    packed: NDArray[np.uint64], shift: int, values: NDArray[np.uint32], members: NDArray[np.int64], first: int, rows: int, parent: NDArray[np.int64]
) -> None:
    n, s, mask = packed.shape[0], u8(shift), u8((1 << shift) - 1)
    start = 0
    while start < n:
        stop = start + 1
        while stop < n and packed[stop] >> s == packed[start] >> s:
            stop += 1
        for i in range(start + 1, stop):
            me = members[packed[i] & mask]
            for j in range(start, i):
                other = members[packed[j] & mask]
                if _same(values[me][first : first + rows], values[other][first : first + rows]):
                    union(parent, other, me)
                    break
        start = stop


def collisions(values: NDArray[np.uint32], members: NDArray[np.int64], bands: Bands, parent: NDArray[np.int64]) -> None:
    """Join in `parent` all members that agree in a whole band, unverified: what an LSH index calls neighbours.

    Args:
        values: signatures uint32 [n, permutations].
        members: rows that take part, int64, ascending.
        bands: how to cut.
        parent: union-find int64 [n], changed in place.
    """
    for first, packed, shift in band_orders(values, members, bands):
        _join_equal(packed, shift, values, members, first, bands.rows, parent)


@nb.njit(cache=True, nogil=True)
def _matches(x: NDArray[np.uint32], y: NDArray[np.uint32]) -> int:
    total = u4(0)
    for j in range(x.shape[0]):
        total = u4(total + u4(x[j] == y[j]))
    return int(total)


@nb.njit(cache=True, nogil=True)
def _find_pairs(
    packed: NDArray[np.uint64],
    shift: int,
    values: NDArray[np.uint32],
    members: NDArray[np.int64],
    parent: NDArray[np.int64],
    need: int,
    a: NDArray[np.int64],
    b: NDArray[np.int64],
) -> int:
    n, s, mask = packed.shape[0], u8(shift), u8((1 << shift) - 1)
    leaders = np.empty(LEADERS, np.int64)
    found, start = 0, 0
    while start < n:
        stop = start + 1
        while stop < n and packed[stop] >> s == packed[start] >> s:
            stop += 1
        if stop - start > 1:
            leaders[0] = members[packed[start] & mask]
            known = 1
            for i in range(start + 1, stop):
                me, taken = members[packed[i] & mask], False
                for k in range(known):
                    if find(parent, leaders[k]) == find(parent, me):
                        taken = True
                        break
                    if _matches(values[leaders[k]], values[me]) >= need:
                        a[found], b[found] = leaders[k], me
                        found += 1
                        taken = True
                        break
                if not taken and known < LEADERS:
                    leaders[known] = me
                    known += 1
        start = stop
    return found


def candidates(
    values: NDArray[np.uint32], members: NDArray[np.int64], bands: Bands, parent: NDArray[np.int64], least: float
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs of each band that are not yet connected in `parent` and whose whole signatures agree in at least a share `least`.

    In a bucket each document is compared with at most `LEADERS` earlier ones that are unlike each other, so a bucket of k costs
    k times a small number and never k squared.

    Yields:
        The smaller and the larger row of each pair, int64 [pairs], in the order of the band's keys; join them before the next band.
    """
    a, b = np.empty(len(members), np.int64), np.empty(len(members), np.int64)
    need = int(np.ceil(least * values.shape[1] - 1e-9))
    for _, packed, shift in band_orders(values, members, bands):
        found = _find_pairs(packed, shift, values, members, parent, need, a, b)
        yield a[:found].copy(), b[:found].copy()
