"""Kernels over the words of lines: how alike neighbouring lines are, word by word.

A row of a template has the same words in the same order as the row before it but for its slots. Words are hashed, numbers are one word, every CJK
character is a word of its own; likeness is the longest common subsequence of two lines' words by the longer one's length.
"""

# mypy: disable-error-code="no-any-return"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

MOST_WORDS = 64  # of a line; the rest is not compared
NUMBER = 1


@numba.njit(cache=True, nogil=True)
def _line_words(x: NDArray[np.uint8], i: int, stop: int, out: NDArray[np.uint32]) -> tuple[int, int]:
    """Hashes of the words of a line into `out`, as many as it has room for: (how many, bytes in words of letters)."""
    k, letters = 0, 0
    while i < stop and k < len(out):
        c = x[i]
        if c >= 0xE3 and c <= 0xED and i + 2 < stop:  # kana, Han, Hangul: a character is a word
            h = np.uint32(2166136261)
            for j in range(3):
                h = np.uint32((h ^ np.uint32(x[i + j])) * np.uint32(16777619))
            out[k] = h | np.uint32(2)
            letters += 3
            k += 1
            i += 3
            continue
        low = c | 32
        if not ((low >= 97 and low <= 122) or (c >= 48 and c <= 57) or c >= 128):
            i += 1
            continue
        start = i
        h = np.uint32(2166136261)
        digits = True
        while i < stop:
            c = x[i]
            low = c | 32
            if not ((low >= 97 and low <= 122) or (c >= 48 and c <= 57) or c >= 128) or (c >= 0xE3 and c <= 0xED):
                break
            digits = digits and c >= 48 and c <= 57
            h = np.uint32((h ^ np.uint32(c)) * np.uint32(16777619))
            i += 1
        if digits:
            h = np.uint32(NUMBER)
        else:
            h |= np.uint32(2)
            letters += i - start
        out[k] = h
        k += 1
    return k, letters


@numba.njit(cache=True, nogil=True)
def word_hashes(x: NDArray[np.uint8], lines: NDArray[np.int64], most: int) -> tuple[NDArray[np.uint32], NDArray[np.int32], NDArray[np.int32]]:
    """Words of every line.

    Returns:
        Hashes uint32 [lines, most], number of words int32 [lines], bytes in words of letters int32 [lines].
    """
    n = len(lines)
    hashes, counts, letters = np.zeros((n, most), np.uint32), np.zeros(n, np.int32), np.zeros(n, np.int32)
    for r in range(n):
        counts[r], letters[r] = _line_words(x, lines[r, 0], lines[r, 1], hashes[r])
    return hashes, counts, letters


@numba.njit(cache=True, nogil=True)
def _common(a: NDArray[np.uint32], n: int, b: NDArray[np.uint32], m: int, row: NDArray[np.int32]) -> int:
    """Length of the longest common subsequence of a[:n] and b[:m]."""
    for j in range(m + 1):
        row[j] = 0
    for i in range(n):
        diagonal = 0
        for j in range(m):
            up = row[j + 1]
            if a[i] == b[j]:
                row[j + 1] = diagonal + 1
            elif row[j] > up:
                row[j + 1] = row[j]
            diagonal = up
    return row[m]


@numba.njit(cache=True, nogil=True)
def likeness(
    hashes: NDArray[np.uint32], counts: NDArray[np.int32], usable: NDArray[np.bool_], back: int, least: int
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Likeness of every line to the most alike of the `back` usable lines before it, and which that is (-1: none).

    Identical lines count as unlike: copies are repetition, not a template.
    """
    n = len(counts)
    best = np.zeros(n, np.float32)
    which = np.full(n, -1, np.int32)
    row = np.zeros(hashes.shape[1] + 1, np.int32)
    masks = np.zeros(n, np.uint64)
    for r in range(n):
        for k in range(counts[r]):
            masks[r] |= np.uint64(1) << np.uint64(np.uint32(hashes[r, k] * np.uint32(2654435761)) >> np.uint32(26))
    for r in range(n):
        if not usable[r] or counts[r] < least:
            continue
        seen, q = 0, r - 1
        while q >= 0 and seen < back and r - q <= 2 * back:
            if usable[q] and counts[q] >= least:
                seen += 1
                longer, shorter = max(counts[r], counts[q]), min(counts[r], counts[q])
                if shorter * 2 >= longer:
                    common = 0
                    both = masks[r] & masks[q]
                    while both:
                        both &= both - np.uint64(1)
                        common += 1
                    if common * 4 >= min(shorter, 24):  # cheap: words in common, by hash
                        same = _common(hashes[r], counts[r], hashes[q], counts[q], row)
                        value = np.float32(same / longer)
                        if value > best[r]:
                            best[r], which[r] = value, q
            q -= 1
    return best, which


def compare(
    x: NDArray[np.uint8], lines: NDArray[np.int64], usable: NDArray[np.bool_], back: int, least: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(likeness, most alike earlier line, words, bytes of letters) of every line."""
    hashes, counts, letters = word_hashes(x, lines, MOST_WORDS)
    best, which = likeness(hashes, counts, usable, back, least)
    return best, which, counts, letters


@numba.njit(cache=True, nogil=True)
def sentence_like(x: NDArray[np.uint8], lines: NDArray[np.int64], shortest: int, spaces: int) -> NDArray[np.bool_]:
    """Lines that a row of running text could be: not indented, no columns (tabs, double spaces), words parted by spaces or written without."""
    out = np.zeros(len(lines), np.bool_)
    for r in range(len(lines)):
        start, stop = lines[r, 0], lines[r, 1]
        while stop > start and (x[stop - 1] == 10 or x[stop - 1] == 13 or x[stop - 1] == 32):
            stop -= 1
        if stop - start < shortest or (x[start] == 32 and x[start + 1] == 32) or x[start] == 9:
            continue
        gaps, wide, columns = 0, 0, False
        for i in range(start, stop):
            c = x[i]
            if c == 9 or (c == 32 and x[i + 1] == 32 and i + 1 < stop):
                columns = True
                break
            gaps += c == 32
            wide += c >= 0xE3 and c <= 0xED
        out[r] = not columns and (gaps >= spaces or wide * 7 >= stop - start)
    return out


@numba.njit(cache=True, nogil=True)
def known_lines(x: NDArray[np.uint8], lines: NDArray[np.int64], known: NDArray[np.bool_], least: int, most: int) -> NDArray[np.bool_]:
    """Lines of at least so many words, of the first `most` of which at least half have a hash that, cut to the table's size, is in it: bool [lines]."""
    out, row = np.zeros(len(lines), np.bool_), np.zeros(most, np.uint32)
    mask = np.uint32(len(known) - 1)
    for r in range(len(lines)):
        words, n = _line_words(x, lines[r, 0], lines[r, 1], row)[0], 0
        for k in range(words):
            n += known[row[k] & mask]
        out[r] = words >= least and 2 * n >= words
    return out
