"""Bitmaps of documents: what is far from near is told without comparing the documents themselves.

Every shingle of a document sets one bit of its bitmap, the one that its hash names. A bit that only one of two documents has stands for a shingle that
the other lacks; each such shingle has at most one bit. Of two documents with similarity J and s shingles together, counted once in each, only
(1 - J) / (1 + J) of s are in one alone: where more bits differ, the pair is less similar. How many different shingles a document has is told from the
places in its bitmap that are left free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba as nb
import numpy as np

from forensics.clustering.minhash import units
from forensics.clustering.sketch import BLOCK, WIDTH, low_hashes
from forensics.clustering.verify import pieces

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.clustering.verify import Reader

BITS, WORDS = 4, 1 << 23  # bits of a bitmap for each shingle, at least, and words of all bitmaps together from which on shingles are sampled
READ = 1 << 20  # tokens read at a time
FEW, SURE = 64, 4.0  # shingles of two documents below which nothing is told; standard errors that are allowed for what is estimated
u4, u8 = np.uint32, np.uint64


@nb.njit(inline="always")
def _ones(x: np.uint64) -> np.uint64:
    x = x - ((x >> u8(1)) & u8(0x5555555555555555))
    x = (x & u8(0x3333333333333333)) + ((x >> u8(2)) & u8(0x3333333333333333))
    x = (x + (x >> u8(4))) & u8(0x0F0F0F0F0F0F0F0F)
    return (x * u8(0x0101010101010101)) >> u8(56)


@nb.njit(cache=True, nogil=True)
def _count(bits: NDArray[np.uint64]) -> np.int64:
    total = u8(0)
    for k in range(len(bits)):
        total += _ones(bits[k])
    return np.int64(total)


@nb.njit(cache=True, nogil=True)
def _mark(ids: NDArray[Any], offsets: NDArray[np.int64], bits: NDArray[np.uint64], bounds: NDArray[np.int64], shift: int, most: NDArray[np.float64]) -> None:
    """Set the bit of each shingle whose hash ends in `shift` zeros; and how many different ones there are, at most.

    Of m places n shingles leave m exp(-n / m) free; the standard error of n so found is sqrt(m (exp(n / m) - n / m - 1)) (Whang et al. 1990, linear counting).
    """
    lo, rest, s = np.empty(BLOCK, np.uint32), u4((1 << shift) - 1), u4(shift)
    for d in range(len(offsets) - 1):
        doc, mine = ids[offsets[d] : offsets[d + 1]], bits[bounds[d] : bounds[d + 1]]
        n, places, mask = len(doc) - WIDTH + 1, 64 * len(mine), u4(len(mine) - 1)
        for start in range(0, n, BLOCK):
            part = lo[: min(BLOCK, n - start)]
            low_hashes(doc[start : start + len(part) + WIDTH - 1], part)
            for i in range(len(part)):
                h = part[i] >> s
                mine[(h >> u4(6)) & mask] |= u8(part[i] & rest == 0) << u8(h & u4(63))
        free = places - _count(mine)
        most[d] = max(0, n)
        if free:
            load = np.log(places / free)
            most[d] = min(most[d], places * load + SURE * np.sqrt(places * max(0.0, places / free - 1 - load)))


@nb.njit(cache=True, nogil=True)
def _apart(x: NDArray[np.uint64], y: NDArray[np.uint64]) -> np.int64:
    """Bits that only one of two documents has; the longer one is folded onto the shorter."""
    total = u8(0)
    if len(x) == len(y):
        for k in range(len(x)):
            total += _ones(x[k] ^ y[k])
        return np.int64(total)
    if len(x) < len(y):
        x, y = y, x
    for k in range(len(y)):
        word = x[k]
        for j in range(k + len(y), len(x), len(y)):
            word |= x[j]
        total += _ones(word ^ y[k])
    return np.int64(total)


@nb.njit(cache=True, nogil=True)
def _may_be(
    bits: NDArray[np.uint64], bounds: NDArray[np.int64], most: NDArray[np.float64], sure: float, a: NDArray[np.int64], b: NDArray[np.int64], least: float
) -> NDArray[np.bool_]:
    out = np.ones(len(a), np.bool_)
    for p in range(len(a)):
        apart = _apart(bits[bounds[a[p]] : bounds[a[p] + 1]], bits[bounds[b[p]] : bounds[b[p] + 1]])
        union = (most[a[p]] + most[b[p]] + apart) / 2
        out[p] = union < FEW or apart <= (1 - least) * union + sure * np.sqrt(least * (1 - least) * union)
    return out


def _words(shingles: NDArray[np.int64]) -> NDArray[np.int64]:
    """Words of a bitmap for so many shingles: a power of two."""
    return np.asarray(1 << np.ceil(np.log2(np.maximum(1, shingles * (BITS / 64)))).astype(np.int64), np.int64)


class Bitmaps:
    """Bitmaps of some documents.

    What they refuse is near with a chance below 1 in 30,000, by which more shingles are different than was estimated; the error of a sample, where bitmaps of
    all shingles would need more than `WORDS` and a kilobyte a document, is allowed for in the same way.

    Args:
        reader: where the documents are.
        doc_key, lengths: of all rows, int64 [n].
        rows: which of them may be asked for, int64.
    """

    def __init__(self, reader: Reader, doc_key: NDArray[np.int64], lengths: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        self._place, shift = np.zeros(len(doc_key), np.int64), 0
        self._place[rows] = np.arange(len(rows))
        while (words := _words(lengths[rows] >> shift)).sum() > max(WORDS, 128 * len(rows)):
            shift += 1
        self._sure, self._bounds = SURE if shift else 0.0, np.concatenate([[0], np.cumsum(words)])
        self._bits, self._most = np.zeros(self._bounds[-1], np.uint64), np.zeros(len(rows))
        for part in pieces(np.arange(len(rows)), lengths[rows], READ):
            ids, offsets = units(reader.documents(doc_key[rows[part]]))
            a, b = part[0], part[-1] + 1
            _mark(np.ascontiguousarray(ids), offsets, self._bits, self._bounds[a : b + 1], shift, self._most[a:b])

    def may_be(self, a: NDArray[np.int64], b: NDArray[np.int64], least: float) -> NDArray[np.bool_]:
        """Whether pairs of rows may be similar by `least`: bool [pairs]."""
        return np.asarray(_may_be(self._bits, self._bounds, self._most, self._sure, self._place[a], self._place[b], least), np.bool_)
