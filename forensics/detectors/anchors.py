"""Words that speak of filler text and page frames, counted in bytes: what per-id features are for token corpora, for text.

A table of hashed four-byte beginnings rejects nearly every place; what is left is compared.
"""

# mypy: disable-error-code="call-overload, no-any-return"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from forensics.stores.batch import DocumentBatch

BITS = 14  # of the table of beginnings
LEAST, APART = 4, 800  # phrases of a page's frame, and bytes for each of them, at most
NEAR = 96  # ids beside one that holds a word of a page frame: small vocabularies hold few of them whole


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
            w = heads[np.int64(np.uint32(key * np.uint32(2654435761)) >> np.uint32(32 - BITS))]
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
        slot = (int.from_bytes(word[:4], "big") * 2654435761 & 0xFFFFFFFF) >> 32 - BITS
        nexts[k], heads[slot] = heads[slot], k
    words = np.frombuffer(b"".join(w for w, _ in items), np.uint8)
    return lower, heads, words, starts, np.array([kind for _, kind in items], np.uint8), nexts


@dataclass(frozen=True)
class Strings:
    """Byte strings of two and more bytes to be looked for together, each of a kind.

    Attributes:
        lower: uint8 [256], what a byte is compared as; where white space is a space, a space of a string stands for any of it.
        heads: int16 [65536], the first string that begins with two bytes, -1 where none does; `nexts`, int16 [strings], the next one.
        words, starts: uint8 [bytes], int64 [strings + 1].
        kinds: uint8 [strings].
    """

    lower: NDArray[np.uint8]
    heads: NDArray[np.int16]
    nexts: NDArray[np.int16]
    words: NDArray[np.uint8]
    starts: NDArray[np.int64]
    kinds: NDArray[np.uint8]

    @classmethod
    def of(cls, strings: Sequence[tuple[bytes, int]], *, lower: bool = False) -> Strings:
        """Strings with their kinds; with `lower`, small letters that stand for capitals too, and spaces for any white space."""
        same = np.arange(256, dtype=np.uint8)
        if lower:
            same[65:91] += 32
            same[[9, 10, 11, 12, 13]] = 32
        heads, nexts = np.full(1 << 16, -1, np.int16), np.full(len(strings), -1, np.int16)
        for k, (word, _) in enumerate(strings):
            slot = word[0] << 8 | word[1]
            nexts[k], heads[slot] = heads[slot], k
        starts = np.cumsum([0, *(len(w) for w, _ in strings)])
        words = np.frombuffer(b"".join(w for w, _ in strings), np.uint8)
        return cls(same, heads, nexts, words, starts, np.array([kind for _, kind in strings], np.uint8))

    def places(self, x: NDArray[np.uint8], ranges: NDArray[np.int64], kinds: int = 1) -> NDArray[np.int64]:
        """Places in ranges of bytes (int64 [n, >= 2]) where strings of each kind stand: int64 [n, kinds]."""
        return _places(x, ranges, kinds, self.lower, self.heads, self.nexts, self.words, self.starts, self.kinds)


@numba.njit(cache=True, nogil=True)
def _places(
    x: NDArray[np.uint8],
    ranges: NDArray[np.int64],
    n_kinds: int,
    lower: NDArray[np.uint8],
    heads: NDArray[np.int16],
    nexts: NDArray[np.int16],
    words: NDArray[np.uint8],
    starts: NDArray[np.int64],
    kinds: NDArray[np.uint8],
) -> NDArray[np.int64]:
    out = np.zeros((len(ranges), n_kinds), np.int64)
    for r in range(len(ranges)):
        stop, before = ranges[r, 1], np.int64(0)
        for i in range(ranges[r, 0], stop):
            now = np.int64(lower[x[i]])
            w, before = heads[before << 8 | now], now
            while w >= 0:
                j, k = i - 1, starts[w]
                while k < starts[w + 1] and j < stop and lower[x[j]] == words[k]:
                    j += 1
                    while words[k] == 32 and j < stop and lower[x[j]] == 32:
                        j += 1
                    k += 1
                out[r, kinds[w]] += k == starts[w + 1] and i > ranges[r, 0]
                w = nexts[w]
    return out


@numba.njit(cache=True, nogil=True)
def _around(
    x: NDArray[Any], offsets: NDArray[np.int64], chosen: NDArray[np.bool_], high: NDArray[np.uint64], near: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    ceiling, frame = np.uint32(len(high) - 1), np.uint64(0xFFFF << 32)
    room = 0
    for d in range(len(chosen)):
        if chosen[d]:
            room += offsets[d + 1] - offsets[d]
    out, ends = np.empty(room, np.uint32), np.zeros(len(offsets), np.int64)
    n = 0
    for d in range(len(chosen)):
        if chosen[d]:
            ids = x[offsets[d] : offsets[d + 1]]
            copied = 0
            for begin in range(0, len(ids), 32):
                part, some = ids[begin : begin + 32], np.uint64(0)
                for i in range(len(part)):
                    some |= high[min(np.uint32(part[i]), ceiling)]
                if not some & frame:
                    continue
                for i in range(begin, begin + len(part)):
                    if high[min(np.uint32(ids[i]), ceiling)] & frame:
                        start, stop = max(copied, i - near), min(len(ids), i + near + 1)
                        for j in range(start, stop):
                            out[n] = ids[j]
                            n += 1
                        copied = max(copied, stop)
        ends[d + 1] = n
    return out[:n], ends


def framed(docs: DocumentBatch, chosen: NDArray[np.bool_], high: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Chosen documents that may hold a page's frame, and of them those with a line that the markup detector would read as one: bool [n] each.

    Near ids that hold a word of a frame stand at least `LEAST` of its phrases, no farther apart than `APART`.
    """
    from forensics.detectors.lines import lines_of
    from forensics.detectors.markup import framed_lines
    from forensics.stores.decode import copy_bytes, document_bytes

    assert docs.vocabulary is not None
    v = docs.vocabulary
    ids, ends = _around(docs.tokens, docs.offsets, chosen, high, NEAR)
    at = document_bytes(ids, ends, v.plain_lengths)
    raw = copy_bytes(ids, v)
    frames = anchor_counts(raw, at)[1]
    near = (frames >= LEAST) & (frames * APART >= np.diff(at))
    some, lines = near.nonzero()[0], np.zeros_like(near)
    if len(some):
        feed = np.full(1, 10, np.uint8)
        joined = np.concatenate([part for i in some.tolist() for part in (raw[at[i] : at[i + 1]], feed)])
        table = lines_of(joined)
        ends = np.cumsum(np.diff(at)[some] + 1)
        lines[some[np.searchsorted(ends, table[framed_lines(joined, table), 0], "right")]] = True
    return near, lines


def anchor_counts(x: NDArray[Any], offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(filler words, page-frame anchors) per document: int64 [n] each. A whole notice counts as three filler words."""
    found = _count(x, offsets, *_tables())
    return found[:, 0], found[:, 1]
