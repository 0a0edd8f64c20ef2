"""Words that speak of filler text and page frames, counted in bytes: what per-id features are for token corpora, for text.

A table of hashed four-byte beginnings rejects nearly every place; what is left is compared.
"""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

BITS = 14


@numba.njit(cache=True, nogil=True)
def _count(
    x: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    lower: NDArray[np.uint8],
    heads: NDArray[np.int32],
    words: NDArray[np.uint8],
    starts: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    nexts: NDArray[np.int32],
) -> NDArray[np.int64]:
    out = np.zeros((len(offsets) - 1, 2), np.int64)
    for d in range(len(offsets) - 1):
        part = x[offsets[d] : offsets[d + 1]]
        n = len(part)
        key = np.uint32(0)
        for i in range(n):
            key = np.uint32(np.uint32(key << np.uint32(8)) | np.uint32(lower[part[i]]))
            w = heads[np.int64(np.uint32(key * np.uint32(2654435761)) >> np.uint32(18))]
            while w >= 0:
                a, b = starts[w], starts[w + 1]
                at = i - 3
                if at >= 0 and at + b - a <= n:
                    same = True
                    for k in range(b - a):
                        if lower[part[at + k]] != words[a + k]:
                            same = False
                            break
                    if same:
                        out[d, kinds[w]] += 1
                w = nexts[w]
    return out


@functools.cache
def _tables() -> tuple[NDArray[Any], ...]:
    from forensics.detectors.features import FRAME
    from forensics.detectors.placeholder import RARE, notice_lines

    items = [(w, 0) for w in RARE] + [(w.encode(), 1) for w in FRAME] + [(w, 0) for w in notice_lines() for _ in range(3)]
    lower = np.arange(256, dtype=np.uint8)
    lower[65:91] += 32
    heads = np.full(1 << BITS, -1, np.int32)
    nexts = np.full(len(items), -1, np.int32)
    starts = np.zeros(len(items) + 1, np.int64)
    np.cumsum([len(w) for w, _ in items], out=starts[1:])
    for k, (word, _) in enumerate(items):
        slot = (int.from_bytes(word[:4], "big") * 2654435761 & 0xFFFFFFFF) >> 18
        nexts[k], heads[slot] = heads[slot], k
    words = np.frombuffer(b"".join(w for w, _ in items), np.uint8)
    return lower, heads, words, starts, np.array([kind for _, kind in items], np.uint8), nexts


def anchor_counts(x: NDArray[Any], offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(filler words, page-frame anchors) per document: int64 [n] each. A whole notice counts as three filler words."""
    found = _count(x, offsets, *_tables())
    return found[:, 0], found[:, 1]
