"""Algorithms behind the table `buckets`: best-fit packing and bucket bounds of least padding.

Both work on the histogram of lengths, not on the documents, so their cost depends on the sequence length alone: a corpus
of three million documents and one of three billion take the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba as nb
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@nb.njit(cache=True, nogil=True)
def best_fit_rows(counts: NDArray[np.int64]) -> int:
    """Rows that best-fit decreasing needs for whole documents.

    The longest documents go first, each into the fullest row that still has room, else into a new row. Documents of one
    length and rows of one room are handled together.

    Args:
        counts: documents of each length 0 to S, int64 [S + 1]; empty documents need no room.

    Returns:
        Rows of S tokens.
    """
    size = counts.shape[0] - 1
    room = np.zeros(size + 1, np.int64)
    rows = 0
    for length in range(size, 0, -1):
        left = counts[length]
        space = length
        while left > 0 and space < size:
            left -= _fill(room, space, length, left, room[space])
            space += 1
        if left > 0:
            new = (left + size // length - 1) // (size // length)
            rows += new
            room[size] = new
            _fill(room, size, length, left, new)
            room[size] = 0
    return rows


@nb.njit(cache=True, nogil=True)
def _fill(room: NDArray[np.int64], space: int, length: int, left: int, rows: int) -> int:
    """Put up to `left` documents into rows of this room, each row filled before the next; how many went in."""
    each = space // length
    full = min(rows, left // each)
    room[space] -= full
    room[space - each * length] += full
    placed = full * each
    rest = min(left - placed, each - 1) if full < rows else 0
    if rest > 0:
        room[space] -= 1
        room[space - rest * length] += 1
    return placed + rest


@nb.njit(cache=True, nogil=True)
def bucket_bounds(lengths: NDArray[np.int64], counts: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Longest lengths of at most k buckets with the least padding, every document padded to its bucket's longest.

    Args:
        lengths: candidate bounds, ascending, int64 [m]; the last one is the longest document.
        counts: documents with lengths in (lengths[i - 1], lengths[i]], int64 [m].
        k: buckets.

    Returns:
        Bounds, ascending, int64 [min(k, m)].
    """
    m = lengths.shape[0]
    k = min(k, m)
    before = np.zeros(m + 1, np.int64)
    for i in range(m):
        before[i + 1] = before[i] + counts[i]
    cost = np.full((k + 1, m + 1), np.inf)
    choice = np.zeros((k + 1, m + 1), np.int64)
    cost[0, 0] = 0.0
    for b in range(1, k + 1):
        for stop in range(1, m + 1):
            for start in range(b - 1, stop):
                c = cost[b - 1, start] + float(lengths[stop - 1]) * float(before[stop] - before[start])
                if c < cost[b, stop]:
                    cost[b, stop], choice[b, stop] = c, start
    out = np.empty(k, np.int64)
    stop = m
    for b in range(k, 0, -1):
        out[b - 1] = lengths[stop - 1]
        stop = choice[b, stop]
    return out
