"""Compiled kernels of the MinHash signature: shingle hashes and a two-round similarity sketch.

Imported by `minhash.py` on first use only, because it brings numba. The scheme, per document:

1. Every run of five ids has two 32-bit hashes `lo` and `hi`: a multilinear sum with odd constants, then the finaliser
   of MurmurHash3. A document of one to four ids is one shingle, padded behind with `PAD`.
2. Round one: a shingle belongs to slot `hi % 128`; a slot keeps the shingle with the smallest `hi * 2**32 + lo`, and
   its value is that shingle's `lo`.
3. Round two, when more than `FEW` slots are still empty: slots by other bits, the smallest `lo * 2**32 + hi`, value `hi`.
4. Slots that are empty even then hold the minimum of `a * lo + b` over all shingles.

Each slot is thus the minimum of one fixed random order of all shingles, so that two documents agree in a slot with
probability equal to their Jaccard similarity, and the cost of a long document is one step per shingle instead of 128.
The plain definition in Python, and its error against exact similarity, are in the tests.

numba widens uint32 arithmetic to 64 bits; every step below is therefore cast back, and arrays are sliced before they
are indexed from 0, without which the loops do not vectorise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba as nb
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

K = 128
WIDTH = 5
FEW = 4
BLOCK = 4096
PAD = 0xFFFFFFFF
DISTINCT = 1 << 13

u4, u8 = np.uint32, np.uint64
NONE = u8(0xFFFFFFFFFFFFFFFF)
FULL = u4(0xFFFFFFFF)

_constants = np.random.Generator(np.random.PCG64(20260117)).integers(0, 1 << 32, 2 * WIDTH + 2 * K, dtype=np.uint32)
LOW = _constants[:WIDTH] | u4(1)
HIGH = _constants[WIDTH : 2 * WIDTH] | u4(1)
A = _constants[2 * WIDTH : 2 * WIDTH + K] | u4(1)
B = _constants[2 * WIDTH + K :].copy()
L0, L1, L2, L3, L4 = (u4(x) for x in LOW)
H0, H1, H2, H3, H4 = (u4(x) for x in HIGH)
F1, F2 = u4(0x85EBCA6B), u4(0xC2B2AE35)


@nb.njit(cache=True, nogil=True)
def low_hashes(ids: NDArray[Any], lo: NDArray[np.uint32]) -> None:
    """The first hash of every run of five ids: `ids` [n + 4], `lo` [n]."""
    n = lo.shape[0]
    a, b, c, d, e = ids[0:n], ids[1 : n + 1], ids[2 : n + 2], ids[3 : n + 3], ids[4 : n + 4]
    for i in range(n):
        x = u4(u4(u4(u4(u4(u4(a[i]) * L0) + u4(u4(b[i]) * L1)) + u4(u4(c[i]) * L2)) + u4(u4(d[i]) * L3)) + u4(u4(e[i]) * L4))
        x = u4(x ^ (x >> u4(16)))
        x = u4(x * F1)
        x = u4(x ^ (x >> u4(13)))
        x = u4(x * F2)
        lo[i] = u4(x ^ (x >> u4(16)))


@nb.njit(cache=True, nogil=True)
def shingle_hashes(ids: NDArray[Any], lo: NDArray[np.uint32], hi: NDArray[np.uint32]) -> None:
    """Both hashes of every run of five ids: `ids` [n + 4], `lo` and `hi` [n]."""
    low_hashes(ids, lo)
    n = lo.shape[0]
    a, b, c, d, e = ids[0:n], ids[1 : n + 1], ids[2 : n + 2], ids[3 : n + 3], ids[4 : n + 4]
    for i in range(n):
        x = u4(u4(u4(u4(u4(u4(a[i]) * H0) + u4(u4(b[i]) * H1)) + u4(u4(c[i]) * H2)) + u4(u4(d[i]) * H3)) + u4(u4(e[i]) * H4))
        x = u4(x ^ (x >> u4(16)))
        x = u4(x * F1)
        x = u4(x ^ (x >> u4(13)))
        x = u4(x * F2)
        hi[i] = u4(x ^ (x >> u4(16)))


@nb.njit(cache=True, nogil=True)
def _first(lo: NDArray[np.uint32], hi: NDArray[np.uint32], best: NDArray[np.uint64]) -> None:
    for i in range(lo.shape[0]):
        h = hi[i]
        k = u8(h & u4(127))
        best[k] = min(best[k], (u8(h) << u8(32)) | u8(lo[i]))


@nb.njit(cache=True, nogil=True)
def _take(best: NDArray[np.uint64], empty: NDArray[np.int64], m: int, out: NDArray[np.uint32]) -> int:
    left = 0
    for j in range(m):
        k = empty[j]
        v = best[k]
        out[k] = u4(v)
        empty[left] = k
        left += v == NONE
    return left


@nb.njit(cache=True, nogil=True)
def _rest(
    lo: NDArray[np.uint32],
    hi: NDArray[np.uint32],
    best: NDArray[np.uint64],
    empty: NDArray[np.int64],
    m: int,
    out: NDArray[np.uint32],
    work: NDArray[np.uint32],
) -> None:
    n = lo.shape[0]
    if m > FEW:
        for j in range(m):
            best[empty[j]] = NONE
        for i in range(n):
            k = u8(u4(u4(hi[i] ^ lo[i]) * F1) >> u4(25))
            best[k] = min(best[k], (u8(lo[i]) << u8(32)) | u8(hi[i]))
        m = _take(best, empty, m, out)
    a, b, low = work[0], work[1], work[2]
    for j in range(m):
        a[j], b[j], low[j] = A[empty[j]], B[empty[j]], FULL
    if n > 4 * m:
        for j in range(m):
            aj, bj, least = a[j], b[j], FULL
            for i in range(n):
                least = min(least, u4(u4(aj * lo[i]) + bj))
            low[j] = least
    else:
        wide = (m + 7) // 8 * 8
        aa, bb, cc = a[:wide], b[:wide], low[:wide]
        for i in range(n):
            x = lo[i]
            for j in range(wide):
                cc[j] = min(cc[j], u4(u4(aa[j] * x) + bb[j]))
    for j in range(m):
        out[empty[j]] = low[j]


@nb.njit(cache=True, nogil=True)
def _distinct(ids: NDArray[Any], n: int, lo: NDArray[np.uint32], hi: NDArray[np.uint32], table: NDArray[np.uint64], used: NDArray[np.uint8]) -> int:
    """Distinct shingles of a long document that has few of them, gathered at the front of `lo` and `hi`."""
    used[:] = 0
    mask = u8(table.shape[0] - 1)
    bl, bh = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    found = 0
    for start in range(0, n, BLOCK):
        size = min(BLOCK, n - start)
        shingle_hashes(ids[start : start + size + WIDTH - 1], bl[:size], bh[:size])
        for i in range(size):
            key = (u8(bh[i]) << u8(32)) | u8(bl[i])
            at = u8(bl[i]) & mask
            while used[at] and table[at] != key:
                at = (at + u8(1)) & mask
            if not used[at] and found < lo.shape[0]:
                used[at], table[at] = 1, key
                lo[found], hi[found] = bl[i], bh[i]
                found += 1
    return found


@nb.njit(cache=True, nogil=True)
def sign_documents(ids: NDArray[Any], offsets: NDArray[np.int64], out: NDArray[np.uint32], shingles: NDArray[np.int32]) -> None:
    """Signatures of documents that lie one behind the other.

    Args:
        ids: token ids [tokens].
        offsets: bounds [n + 1].
        out: filled with signatures [n, 128]; all ones for an empty document.
        shingles: filled with the number of shingle positions [n].
    """
    best = np.empty(K, np.uint64)
    empty = np.empty(K + 1, np.int64)
    work = np.zeros((3, K), np.uint32)
    lo, hi = np.empty(DISTINCT, np.uint32), np.empty(DISTINCT, np.uint32)
    table, used = np.empty(4 * DISTINCT, np.uint64), np.zeros(4 * DISTINCT, np.uint8)
    short = np.empty(WIDTH, np.uint32)
    for d in range(offsets.shape[0] - 1):
        doc = ids[offsets[d] : offsets[d + 1]]
        length = doc.shape[0]
        row = out[d]
        if length == 0:
            row[:] = FULL
            shingles[d] = 0
            continue
        n = max(1, length - WIDTH + 1)
        shingles[d] = min(n, 2147483647)
        for k in range(K):
            best[k] = NONE
            empty[k] = k
        if length < WIDTH:
            short[:] = u4(PAD)
            for i in range(length):
                short[i] = u4(doc[i])
            shingle_hashes(short, lo[:1], hi[:1])
            _first(lo[:1], hi[:1], best)
        else:
            for start in range(0, n, BLOCK):
                size = min(BLOCK, n - start)
                shingle_hashes(doc[start : start + size + WIDTH - 1], lo[:size], hi[:size])
                _first(lo[:size], hi[:size], best)
        m = _take(best, empty, np.int64(K), row)
        if m:
            have = n if n <= BLOCK else _distinct(doc, n, lo, hi, table, used)
            _rest(lo[:have], hi[:have], best, empty, m, row, work)
