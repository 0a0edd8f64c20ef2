"""Kernels over the bytes of one text: a table of its lines, and of its long words.

Text detectors look at suspects only, but a suspect may be a whole book of base64: counting is done here, in one pass each, and the detectors decide from
whole columns. A line longer than `LINE` bytes is cut, so that evidence in a page without line feeds is still local.
"""

# mypy: disable-error-code="assignment, no-any-return"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

LINE = 2048  # bytes after which a line is cut

# columns of the table of lines
START, STOP, SPACE, UPPER, LOWER, DIGIT, HIGH, CONTROL, CODE, ANGLE, HEXWORD, WORDS, LETTERWORDS, TAG, ENTITY = range(15)
LINE_COLUMNS = 15
# columns of the table of long words
W_START, W_STOP, W_UPPER, W_LOWER, W_DIGIT, W_HEX, W_PERCENT, W_SIXTYFOUR, W_DNA, W_SWITCH = range(10)
WORD_COLUMNS = 10

_CODE = np.zeros(256, np.bool_)
_CODE[list(b"(){};=")] = True
_HEX = np.zeros(256, np.bool_)
_HEX[list(b"0123456789abcdefABCDEF")] = True
_SIXTYFOUR = np.zeros(256, np.bool_)
_SIXTYFOUR[list(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+/_-=")] = True
_DNA = np.zeros(256, np.bool_)
_DNA[list(b"ACGTUNacgtun")] = True
_WORD = np.zeros(256, np.bool_)
_WORD[list(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")] = True
_WORD[128:] = True


@numba.njit(cache=True, nogil=True)
def count_lines(x: NDArray[np.uint8], longest: int) -> int:
    """Rows that `line_table` will fill."""
    n, width = 0, 0
    for i in range(len(x)):
        width += 1
        if x[i] == 10 or (width >= longest and (x[i] & 0xC0) != 0x80):
            n += 1
            width = 0
    return n + 1


@numba.njit(cache=True, nogil=True)
def _tag_stop(x: NDArray[np.uint8], i: int, stop: int) -> int:
    """One past the `>` of the tag that begins at i, or 0 where none does."""
    if i + 2 >= stop:
        return 0
    c = x[i + 1]
    letter = (c | 32) >= 97 and (c | 32) <= 122
    if not (letter or c == 33 or (c == 47 and (x[i + 2] | 32) >= 97 and (x[i + 2] | 32) <= 122)):
        return 0
    for j in range(i + 2, min(stop, i + 600)):
        if x[j] == 62:
            return j + 1
        if x[j] == 60:
            return 0
    return 0


@numba.njit(cache=True, nogil=True)
def line_table(x: NDArray[np.uint8], longest: int, code: NDArray[np.bool_], hexa: NDArray[np.bool_], wordy: NDArray[np.bool_]) -> NDArray[np.int64]:
    """int64 [lines, LINE_COLUMNS]: extent and counts of bytes by class, words, pairs of hexadecimal digits, tags and entities."""
    rows = np.zeros((count_lines(x, longest), 15), np.int64)
    n = len(x)
    r, width = 0, 0
    word_start, hex_only, letters_only = -1, True, True
    tag_until = 0
    for i in range(n + 1):
        c = x[i] if i < n else np.uint8(10)
        if i < n:
            row = rows[r]
            width += 1
            if c == 32 or c == 9 or c == 13:
                row[2] += 1
            elif c >= 97 and c <= 122:
                row[4] += 1
            elif c >= 65 and c <= 90:
                row[3] += 1
            elif c >= 48 and c <= 57:
                row[5] += 1
            elif c >= 128:
                row[6] += 1
            elif (c < 32 and c != 10 and c != 12 and c != 27) or c == 127:
                row[7] += 1
            elif code[c]:
                row[8] += 1
            elif c == 60 or c == 62:
                row[9] += 1
            if c == 60 and i >= tag_until:
                stop = _tag_stop(x, i, n)
                if stop:
                    tag_until = stop
            if i < tag_until and c != 10:
                row[13] += 1
            elif c == 38:
                for j in range(i + 2, min(n, i + 10)):
                    if x[j] == 59:
                        row[14] += j - i + 1
                        break
                    if not (wordy[x[j]] or x[j] == 35):
                        break
        if wordy[c] and i < n:
            if word_start < 0:
                word_start, hex_only, letters_only = i, True, True
            hex_only = hex_only and hexa[c]
            letters_only = letters_only and (c >= 65 and c != 95)
        elif word_start >= 0:
            size = i - word_start
            rows[r, 11] += 1
            if hex_only and size == 2:
                rows[r, 10] += size
            if letters_only and size >= 2:
                rows[r, 12] += 1
            word_start = -1
        if i < n and (c == 10 or (width >= longest and (c & 0xC0) != 0x80)):
            rows[r, 1] = i + 1
            r += 1
            rows[r, 0] = i + 1
            width = 0
    rows[r, 1] = n
    return rows[: r + 1] if rows[r, 1] > rows[r, 0] else rows[:r]


@numba.njit(cache=True, nogil=True)
def word_table(x: NDArray[np.uint8], shortest: int, hexa: NDArray[np.bool_], sixtyfour: NDArray[np.bool_], dna: NDArray[np.bool_]) -> NDArray[np.int64]:
    """int64 [words, WORD_COLUMNS]: runs of printable ASCII without space, quote, comma or backslash of at least `shortest` bytes, with counts of byte classes.

    The last column counts changes between upper case, lower case and digits: many in random text, few in words and paths.
    """
    rows = np.zeros((len(x) // (shortest + 1) + 1, 10), np.int64)
    r, start = 0, -1
    n = len(x)
    kind = 0
    for i in range(n + 1):
        c = x[i] if i < n else np.uint8(32)
        inside = c > 32 and c < 127 and c != 34 and c != 39 and c != 44 and c != 92 and c != 96
        if inside:
            if start < 0:
                start = i
                kind = 0
                for k in range(10):
                    rows[r, k] = 0
            row = rows[r]
            now = 0
            if c >= 97 and c <= 122:
                row[3] += 1
                now = 1
            elif c >= 65 and c <= 90:
                row[2] += 1
                now = 2
            elif c >= 48 and c <= 57:
                row[4] += 1
                now = 3
            elif c == 37:
                row[6] += 1
            if now and now != kind:
                row[9] += 1
                kind = now
            row[5] += hexa[c]
            row[7] += sixtyfour[c]
            row[8] += dna[c]
        elif start >= 0:
            if i - start >= shortest:
                rows[r, 0], rows[r, 1] = start, i
                r += 1
            start = -1
    return rows[:r]


@numba.njit(cache=True, nogil=True)
def characters(x: NDArray[np.uint8], start: int, stop: int) -> int:
    """Characters of UTF-8 bytes start..stop."""
    n = 0
    for i in range(start, stop):
        n += (x[i] & 0xC0) != 0x80
    return n


def lines_of(x: NDArray[np.uint8]) -> NDArray[Any]:
    """The table of lines of one text."""
    return line_table(x, LINE, _CODE, _HEX, _WORD)


def words_of(x: NDArray[np.uint8], shortest: int) -> NDArray[Any]:
    """The table of long words of one text."""
    return word_table(x, shortest, _HEX, _SIXTYFOUR, _DNA)
