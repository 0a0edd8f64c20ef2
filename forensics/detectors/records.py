"""Kernels that recognise lines by what they begin with: records of a log, rows of a hexadecimal dump. What a pattern says, without a pattern's price.

A log's line has in its first 80 bytes a date with a time, a time, a month and a day, a bracketed time since start, a level, or the two dashes of a web
server's record; or it begins with a training step. A dump's line is an offset of 6..16 hexadecimal digits and at least four groups of 2..8 of them, as xxd,
hexdump and od -x write.
"""

# mypy: disable-error-code="assignment, no-any-return"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

import functools

import numba
import numpy as np
from numpy.typing import NDArray

HEAD = 80  # bytes of a line in which a record's mark stands
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
LEVELS = ("debug", "info", "warn", "warning", "error", "fatal", "trace")
COUNTERS = ("step", "iter", "iteration", "epoch")
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


@numba.njit(cache=True, nogil=True)
def _dumps(x: NDArray[np.uint8], lines: NDArray[np.int64], kinds: NDArray[np.uint8]) -> NDArray[np.bool_]:
    out = np.zeros(len(lines), np.bool_)
    for r in range(len(lines)):
        i, stop = lines[r, 0], lines[r, 1]
        if i and x[i - 1] != 10:
            continue
        groups = -1  # the offset
        while groups < 4:
            at = i
            while i < stop and (x[i] == 32 or x[i] == 9):
                i += 1
            if groups >= 0 and i == at:
                break
            most = 16 if groups < 0 else 8
            at = i
            while i < stop and i - at < most and kinds[x[i]] & 2:
                i += 1
            if i - at < (6 if groups < 0 else 2):
                break
            if groups < 0 and i < stop and x[i] == 58:
                i += 1
            groups += 1
        out[r] = groups == 4
    return out


def dump_lines(x: NDArray[np.uint8], lines: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows of hexadecimal dumps: bool [lines]."""
    from forensics.detectors.lines import kinds

    return _dumps(x, lines, kinds())
