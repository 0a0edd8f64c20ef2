"""Kernels that recognise lines: records of a log, rows of numbers, packed code, rows of a hexadecimal dump. What a pattern says, without a pattern's price.

A log's line has in its first 80 bytes a date with a time, a time, a month and a day, a bracketed time since start, a level, or the two dashes of a web
server's record; or it begins with a training step. A dump's line is an offset of 6..16 hexadecimal digits and at least four groups of 2..8 of them, as xxd,
hexdump and od -x write; or most of it is pairs of hexadecimal digits. Packed code is a long line with hardly a space and full of code's punctuation, braces,
semicolons or `=` among it.
"""

# mypy: disable-error-code="assignment, no-any-return"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

import functools

import numba
import numpy as np
from numpy.typing import NDArray

HEAD = 80  # bytes of a line in which a record's mark stands
LINE = 400  # bytes of a line of packed code; programs for people have statements of half of that
STAMP = 24  # ... and a time that it begins with
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
LEVELS = ("debug", "info", "warn", "warning", "error", "fatal", "trace")
COUNTERS = ("step", "iter", "iteration", "epoch")
PACKED, DUMP = 1, 2  # of `data_lines`
DATED, STAMPED = len(MONTHS), len(MONTHS) + len(LEVELS)  # marks before these are months, and levels


@functools.cache
def _marks() -> NDArray[np.uint64]:
    """uint64 [words]: months, levels and counters as their letters, eight bits each; the last letters of longer ones."""
    return np.array([int.from_bytes(w.encode()[-8:], "big") for w in MONTHS + LEVELS + COUNTERS], np.uint64)


@numba.njit(cache=True, nogil=True)
def _digits(x: NDArray[np.uint8], i: int, stop: int) -> int:
    """Where the digits that begin at i end."""
    while i < stop and x[i] >= 48 and x[i] <= 57:
        i += 1
    return i


@numba.njit(cache=True, nogil=True)
def _is_time(x: NDArray[np.uint8], i: int, j: int, stop: int) -> bool:
    """Whether the digits i..j begin a time, a date with a time, or an address with two dashes."""
    if j - i >= 2 and j + 5 < stop and x[j] == 58:
        return _digits(x, j + 1, j + 3) == j + 3 and x[j + 3] == 58 and _digits(x, j + 4, j + 6) == j + 6
    if j - i >= 4 and j + 11 < stop and x[j] == 45 and x[j + 3] == 45 and (x[j + 6] == 32 or x[j + 6] | 32 == 116) and x[j + 9] == 58:
        return (
            _digits(x, j + 1, j + 3) == j + 3
            and _digits(x, j + 4, j + 6) == j + 6
            and _digits(x, j + 7, j + 9) == j + 9
            and _digits(x, j + 10, j + 12) == j + 12
        )
    dots = 0
    while dots < 3 and j < stop and x[j] == 46:
        end = _digits(x, j + 1, stop)
        if end == j + 1:
            return False
        j = end
        dots += 1
    return dots == 3 and j + 3 < stop and x[j] == 32 and x[j + 1] == 45 and x[j + 2] == 32 and x[j + 3] == 45


@numba.njit(cache=True, nogil=True)
def _is_record(x: NDArray[np.uint8], start: int, stop: int, kinds: NDArray[np.uint8], marks: NDArray[np.uint64]) -> bool:
    i, first = start, True
    while i < stop:
        c = x[i]
        if c >= 48 and c <= 57:
            j = _digits(x, i, stop)
            if _is_time(x, i, j, stop):
                return True
            first, i = False, j
        elif c == 91:
            j = _digits(x, i + 1, stop)
            if j > i + 1 and j < stop and x[j] == 46:
                k = _digits(x, j + 1, stop)
                if k > j + 1 and k < stop and x[k] == 93:
                    return True
            first, i = False, i + 1
        elif kinds[c] & 1:
            j, word = i, np.uint64(0)
            while j < stop and (x[j] | 32) >= 97 and (x[j] | 32) <= 122:
                word = word << np.uint64(8) | np.uint64(x[j] | 32)
                j += 1
            alone = j == stop or not (kinds[x[j]] & 1 and x[j] < 128)
            before = i > start and kinds[x[i - 1]] & 1 and x[i - 1] < 128
            if alone and not before and j - i >= 3:
                for k in range(len(marks)):
                    if word != marks[k]:
                        continue
                    at = j
                    if k < DATED:
                        while at < stop and (x[at] == 32 or x[at] == 9):
                            at += 1
                        end = _digits(x, at, stop)
                        if at > j and end - at >= 1 and end - at <= 2 and (end == stop or not kinds[x[end]] & 1):
                            return True
                    elif k < STAMPED:
                        return True
                    elif first:
                        while at < stop and (x[at] == 58 or x[at] == 32 or x[at] == 61):
                            at += 1
                        if at > j and _digits(x, at, stop) > at:
                            return True
            first, i = False, max(j, i + 1)
        else:
            first, i = first and (c == 32 or c == 9), i + 1
    return False


@numba.njit(cache=True, nogil=True)
def _records(x: NDArray[np.uint8], lines: NDArray[np.int64], head: int, kinds: NDArray[np.uint8], marks: NDArray[np.uint64]) -> NDArray[np.bool_]:
    out = np.zeros(len(lines), np.bool_)
    for r in range(len(lines)):
        if lines[r, 5] >= 1:
            out[r] = _is_record(x, lines[r, 0], min(lines[r, 0] + head, lines[r, 1]), kinds, marks)
    return out


def record_lines(x: NDArray[np.uint8], lines: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Lines that begin like records of a log: bool [lines]; they hold a digit at least."""
    from forensics.detectors.lines import kinds

    return _records(x, lines, HEAD, kinds(), _marks())


def stamped_lines(x: NDArray[np.uint8], lines: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Lines that begin with a time: bool [lines]; levels and steps, which are words of a language too, do not count."""
    from forensics.detectors.lines import kinds

    return _records(x, lines, STAMP, kinds(), _marks()[:DATED])


@numba.njit(cache=True, nogil=True)
def _words(x: NDArray[np.uint8], start: int, stop: int, kinds: NDArray[np.uint8]) -> tuple[int, int, int]:
    """Words that end in a line, those of two and more letters, and bytes in pairs of hexadecimal digits."""
    while start > 0 and kinds[x[start - 1]] & 1:  # a line that was cut inside a word
        start -= 1
    words, letters, hexed, size, every = 0, 0, 0, 0, np.uint8(255)
    last = stop == len(x)
    for i in range(start, stop + last):
        kind = kinds[x[i]] if i < stop else np.uint8(0)
        if kind & 1:
            size += 1
            every &= kind
        elif size:
            words += 1
            letters += size >= 2 and every & 4 != 0
            hexed += 2 * (size == 2 and every & 2 != 0)
            size, every = 0, np.uint8(255)
    return words, letters, hexed


@numba.njit(cache=True, nogil=True)
def _numeric(x: NDArray[np.uint8], lines: NDArray[np.int64], kinds: NDArray[np.uint8]) -> NDArray[np.bool_]:
    out = np.zeros(len(lines), np.bool_)
    for r in range(len(lines)):
        start, stop, space, upper, lower, digit, high, control = lines[r, :8]
        visible = max(1, stop - start - space)
        if control or digit < 0.2 * visible:
            continue
        words, letters, _ = _words(x, start, stop, kinds)
        few = digit >= 0.35 * visible and upper + lower + high <= 0.35 * visible
        out[r] = (few and words >= 3) or (letters <= 0.4 * words and words >= 5)
    return out


def numeric_lines(x: NDArray[np.uint8], lines: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows of numbers: bool [lines]."""
    from forensics.detectors.lines import kinds

    return _numeric(x, lines, kinds())


@numba.njit(cache=True, nogil=True)
def _is_dump(x: NDArray[np.uint8], i: int, stop: int, kinds: NDArray[np.uint8]) -> bool:
    groups = -1  # the offset
    while groups < 4:
        at = i
        while i < stop and (x[i] == 32 or x[i] == 9):
            i += 1
        if groups >= 0 and i == at:
            return False
        most = 16 if groups < 0 else 8
        at = i
        while i < stop and i - at < most and kinds[x[i]] & 2:
            i += 1
        if i - at < (6 if groups < 0 else 2):
            return False
        if groups < 0 and i < stop and x[i] == 58:
            i += 1
        groups += 1
    return True


@numba.njit(cache=True, nogil=True)
def _is_chart(x: NDArray[np.uint8], start: int, stop: int) -> bool:
    """Whether at least half of a line's pairs of hexadecimal digits follow each other as in a chart of a character set."""
    before, pairs, next_ones, i = -1, 0, 0, start
    while i + 1 < stop:
        value = 0
        for j in range(i, i + 2):
            c = np.int64(x[j]) | 32
            value = value * 16 + (c - 48 if c < 58 else c - 87) if (c >= 48 and c < 58) or (c >= 97 and c < 103) else -1000
        if value < 0:
            i += 1
            continue
        pairs += 1
        next_ones += value == before + 1
        before = value
        i += 2
    return 2 * next_ones >= pairs


@numba.njit(cache=True, nogil=True)
def _is_code(x: NDArray[np.uint8], start: int, stop: int) -> bool:
    """Whether a line has an end of a statement, a brace or `=` per 200 bytes, or is full of commas or quotes, and has fewer links of Markdown.

    Formulas, patterns of one language's keywords and aligned sequences have neither.
    """
    ends, links, listed = 0, 0, 0
    for i in range(start, stop):
        c = x[i]
        ends += c == 59 or c == 61 or c == 123 or c == 125
        listed += c == 44 or c == 34 or c == 39
        links += c == 40 and i > start and x[i - 1] == 93
    return (ends * 200 >= stop - start or listed * 6 >= stop - start) and links * 200 < stop - start


@numba.njit(cache=True, nogil=True)
def _data(x: NDArray[np.uint8], lines: NDArray[np.int64], kinds: NDArray[np.uint8]) -> NDArray[np.uint8]:
    out = np.zeros(len(lines), np.uint8)
    for r in range(len(lines)):
        start, stop, space, upper, lower, digit, high, control, code, angle, tag, _ = lines[r]
        size, letters = stop - start, upper + lower
        visible, other = size - space, size - space - letters - digit - high
        packed = False
        if size >= LINE:
            shape = high < 0.2 * size and letters >= 0.3 * size and tag < 0.4 * size and control == 0
            packed = shape and ((space <= 0.05 * size and code >= 0.045 * size) or (space <= 0.14 * size and code >= 0.08 * size))
            packed |= size >= 1000 and space <= 0.1 * size and other >= 0.3 * size and letters >= 0.2 * size and angle < 0.02 * size
            packed = packed and _is_code(x, start, stop)
        dump = (start == 0 or x[start - 1] == 10) and _is_dump(x, start, stop, kinds)
        if not (dump or packed) and digit >= 3 and digit >= 0.11 * visible:
            hexed = _words(x, start, stop, kinds)[2]
            dump = hexed >= 16 and hexed >= 0.6 * visible and digit < 0.9 * hexed and digit >= 0.2 * hexed and not _is_chart(x, start, stop)
        out[r] = PACKED * packed | DUMP * dump
    return out


def data_lines(x: NDArray[np.uint8], lines: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Lines of packed code and of hexadecimal dumps: uint8 [lines], the bits `PACKED` and `DUMP`."""
    from forensics.detectors.lines import kinds

    return _data(x, lines, kinds())
