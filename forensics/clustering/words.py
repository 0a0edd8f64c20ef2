"""Words as ids: what stands in for tokens where a corpus is text and nobody named a tokenizer.

Shingles of five bytes would find any two English texts alike; shingles of five words behave like shingles of five
tokens. One pass over UTF-8 bytes cuts them into units and hashes each: runs of letters and digits (ASCII case folded,
at most `LONGEST` bytes), single ideographs, kana and Thai characters, single signs. White space only separates. Bytes
that are no UTF-8 count as signs. Compiled, imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba as nb
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONGEST = 48
SPACE, WORD, SIGN, BEYOND = 0, 1, 2, 3
u4 = np.uint32
FNV, PRIME = u4(0x811C9DC5), u4(0x01000193)

_CLASS = np.full(256, SIGN, np.uint8)
_CLASS[[*range(0x30, 0x3A), *range(0x41, 0x5B), *range(0x61, 0x7B), 0x5F]] = WORD
_CLASS[[0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x20]] = SPACE
_CLASS[128:] = BEYOND
_FOLD = np.arange(256, dtype=np.uint32)
_FOLD[0x41:0x5B] += 32


@nb.njit(cache=True, nogil=True)
def _kind(code: int) -> int:
    """Class of a character beyond ASCII."""
    if code in (0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF) or 0x2000 <= code <= 0x200D:
        return SPACE
    if code < 0xC0 or code in (0xD7, 0xF7) or 0x2010 <= code <= 0x2BFF or code >= 0x10000:
        return SIGN
    if 0x0E00 <= code <= 0x0EFF or 0x1000 <= code <= 0x109F or 0x1780 <= code <= 0x17FF or 0x2E80 <= code <= 0xA4CF or 0xD800 <= code <= 0xFFFF:
        return SIGN
    return WORD


@nb.njit(cache=True, nogil=True)
def _step(text: NDArray[np.uint8], i: int) -> tuple[int, int]:
    """Length in bytes and class of the character at `i`; a byte that begins no character is a sign of its own."""
    n = text.shape[0]
    first = text[i]
    if first < 0x80:
        return 1, _CLASS[first]
    size = 2 if 0xC2 <= first < 0xE0 else 3 if 0xE0 <= first < 0xF0 else 4 if 0xF0 <= first < 0xF5 else 1
    if size == 1 or i + size > n:
        return 1, SIGN
    code = int(first) & (0x7F >> size)
    for j in range(1, size):
        if text[i + j] & 0xC0 != 0x80:
            return 1, SIGN
        code = (code << 6) | (int(text[i + j]) & 0x3F)
    return size, _kind(code)


@nb.njit(cache=True, nogil=True)
def _words_of(text: NDArray[np.uint8], out: NDArray[np.uint32]) -> int:
    n, i, found = text.shape[0], np.int64(0), 0  # a plain 0 is a type of its own, for which `_step` would be compiled too
    while i < n:
        kind = _CLASS[text[i]]
        if kind == SPACE:
            i += 1
            continue
        size, kind = _step(text, i)
        if kind == SPACE:
            i += size
            continue
        start, h = i, FNV
        while True:
            for j in range(size):
                h = u4(u4(h ^ _FOLD[text[i + j]]) * PRIME)
            i += size
            if kind != WORD:
                break
            stop = min(n, start + LONGEST)
            while i < stop and _CLASS[text[i]] == WORD:
                h = u4(u4(h ^ _FOLD[text[i]]) * PRIME)
                i += 1
            if i >= stop or _CLASS[text[i]] != BEYOND:
                break
            size, following = _step(text, i)
            if following != WORD:
                break
        out[found] = h
        found += 1
    return found


@nb.njit(cache=True, nogil=True)
def words(text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Word ids of texts that lie one behind the other.

    Args:
        text: UTF-8 bytes [bytes].
        offsets: bounds [n + 1].

    Returns:
        Ids [words] and their bounds [n + 1].
    """
    ids = np.empty(text.shape[0], np.uint32)
    bounds = np.zeros(offsets.shape[0], np.int64)
    at = 0
    for d in range(offsets.shape[0] - 1):
        at += _words_of(text[offsets[d] : offsets[d + 1]], ids[at:])
        bounds[d + 1] = at
    return ids[:at].copy(), bounds
