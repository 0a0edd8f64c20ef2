"""The exact similarity of candidate pairs, from the documents themselves.

A signature of 128 numbers errs by 0.035 at 0.8; what is joined or dropped should rest on the real sets. The shingles of
one document of a pair fill a small hash table, those of the other are looked up in it. Documents beyond `LARGE` shingles
are compared on a fixed share of their shingles (those whose hash ends in zeros), which errs by less than 0.001.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numba as nb
import numpy as np

from forensics.clustering.sketch import BLOCK, PAD, WIDTH, shingle_hashes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.stores.batch import DocumentBatch

LARGE = 1 << 20
BLOCK_TOKENS = 1 << 22
u4, u8 = np.uint32, np.uint64


class Reader(Protocol):
    """Where documents can be had by key: a token store, or an audited file."""

    @property
    def fingerprint(self) -> str:
        """Changes when the data do."""
        ...

    def documents(self, doc_keys: NDArray[np.int64]) -> DocumentBatch:
        """Whole documents in the order given."""
        ...


@nb.njit(inline="always")
def _place(table: NDArray[np.uint64], mask: int, key: np.uint64) -> np.uint64:
    """Where a key stands in the table, or where it would go; a free place holds 0."""
    at = (key ^ (key >> u8(32))) & u8(mask)
    while table[at] != u8(0) and table[at] != key:
        at = (at + u8(1)) & u8(mask)
    return at


@nb.njit(cache=True, nogil=True)
def _hashes(doc: NDArray[Any], start: int, lo: NDArray[np.uint32], hi: NDArray[np.uint32]) -> int:
    """Shingle hashes of positions `start` to `start + BLOCK` of a document that is not empty; how many there are."""
    length = doc.shape[0]
    if length < WIDTH:
        short = np.full(WIDTH, u4(PAD))
        for i in range(length):
            short[i] = u4(doc[i])
        shingle_hashes(short, lo[:1], hi[:1])
        return 1
    size = int(min(BLOCK, length - WIDTH + 1 - start))
    shingle_hashes(doc[start : start + size + WIDTH - 1], lo[:size], hi[:size])
    return size


@nb.njit(cache=True, nogil=True)
def _insert(doc: NDArray[Any], keep: int, table: NDArray[np.uint64], mask: int) -> int:
    """Put a document's shingles into an empty table; how many different ones."""
    distinct, lo, hi = 0, np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    for start in range(0, max(1, doc.shape[0] - WIDTH + 1) if doc.shape[0] else 0, BLOCK):
        for i in range(_hashes(doc, start, lo, hi)):
            key = max(u8(1), (u8(hi[i]) << u8(32)) | u8(lo[i]))
            if lo[i] & u4(keep) == 0:
                at = _place(table, mask, key)
                distinct += table[at] == u8(0)
                table[at] = key
    return distinct


@nb.njit(cache=True, nogil=True)
def _compare(
    doc: NDArray[Any], keep: int, table: NDArray[np.uint64], mask: int, seen: NDArray[np.uint32], stamp: int, rest: NDArray[np.uint64], rest_mask: int
) -> tuple[int, int]:
    """How many different shingles of a document another's table holds, which are stamped in `seen`, and how many others it has, by an empty table for these."""
    both, others, lo, hi = 0, 0, np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    for start in range(0, max(1, doc.shape[0] - WIDTH + 1) if doc.shape[0] else 0, BLOCK):
        for i in range(_hashes(doc, start, lo, hi)):
            key = max(u8(1), (u8(hi[i]) << u8(32)) | u8(lo[i]))
            if lo[i] & u4(keep) == 0:
                at = _place(table, mask, key)
                if table[at] == key:
                    both += seen[at] != stamp
                    seen[at] = stamp
                else:
                    at = _place(rest, rest_mask, key)
                    others += rest[at] == u8(0)
                    rest[at] = key
    return both, others


@nb.njit(cache=True, nogil=True)
def _mask_for(length: int) -> int:
    size = 16
    while size < 2 * min(length, 2 * LARGE) + 2:
        size *= 2
    return size - 1


@nb.njit(cache=True, nogil=True)
def _jaccard(ids: NDArray[Any], offsets: NDArray[np.int64], a: NDArray[np.int64], b: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    longest = np.int64(1)
    for i in range(offsets.shape[0] - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    size = _mask_for(longest) + 1
    table, seen, rest = np.empty(size, np.uint64), np.zeros(size, np.uint32), np.empty(size, np.uint64)
    held, held_keep, distinct, mask = -1, 0, 0, 15
    for p in range(a.shape[0]):
        x, y = ids[offsets[a[p]] : offsets[a[p] + 1]], ids[offsets[b[p]] : offsets[b[p] + 1]]
        keep = 1
        while max(x.shape[0], y.shape[0]) // keep > LARGE:
            keep *= 2
        if a[p] != held or keep != held_keep:
            held, held_keep, mask = a[p], keep, _mask_for(x.shape[0])
            table[: mask + 1] = 0
            distinct = _insert(x, keep - 1, table, mask)
        rest_mask = _mask_for(y.shape[0])
        rest[: rest_mask + 1] = 0
        both, others = _compare(y, keep - 1, table, mask, seen, u4(p + 1), rest, rest_mask)
        out[p] = both / (distinct + others) if distinct + others else 0.0


def jaccard(ids: NDArray[Any], offsets: NDArray[np.int64], a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float32]:
    """Exact similarity of pairs among documents that lie one behind the other.

    Args:
        ids: [tokens] or word ids.
        offsets: bounds [n + 1].
        a, b: places of the documents of each pair, int64 [pairs].

    Returns:
        float32 [pairs]; 0 where a document is empty.
    """
    out = np.zeros(len(a), np.float32)
    _jaccard(np.ascontiguousarray(ids), np.ascontiguousarray(offsets, np.int64), np.ascontiguousarray(a, np.int64), np.ascontiguousarray(b, np.int64), out)
    return out


def exact_jaccard(reader: Reader, doc_key: NDArray[np.int64], lengths: NDArray[np.int64], a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float32]:
    """Exact similarity of pairs of documents that are read for it, a bounded number of tokens at a time.

    Args:
        reader: where the documents are.
        doc_key: int64 [n], keys of all rows.
        lengths: int64 [n], their tokens (bytes where they are text).
        a, b: rows of each pair, int64 [pairs].

    Returns:
        float32 [pairs].
    """
    from forensics.clustering.minhash import units

    out = np.zeros(len(a), np.float32)
    order = np.lexsort((b, a))
    for part in pieces(order, lengths[a[order]] + lengths[b[order]]):
        rows, inverse = np.unique(np.concatenate([a[part], b[part]]), return_inverse=True)
        ids, offsets = units(reader.documents(doc_key[rows]))
        out[part] = jaccard(ids, offsets, inverse[: len(part)], inverse[len(part) :])
    return out


def pieces(order: NDArray[np.int64], cost: NDArray[np.int64], size: int = BLOCK_TOKENS) -> Iterator[NDArray[np.int64]]:
    """Consecutive parts of `order` whose costs sum to about `size`."""
    block = (np.cumsum(cost) - cost) // size
    for bounds in np.split(order, np.flatnonzero(np.diff(block)) + 1):
        if len(bounds):
            yield bounds
