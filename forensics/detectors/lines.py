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
START, STOP, SPACE, UPPER, LOWER, DIGIT, HIGH, CONTROL, CODE, ANGLE, TAG, ENTITY = range(12)
LINE_COLUMNS = 12
# columns of the table of long words
W_START, W_STOP, W_UPPER, W_LOWER, W_DIGIT, W_HEX, W_PERCENT, W_SIXTYFOUR, W_DNA, W_SWITCH = range(10)
WORD_COLUMNS = 10


# what a byte is: bits of `_KIND`
WORDY, HEX, LETTER, STOPS, INSIDE, SIXTYFOUR, DNA = (1 << k for k in range(7))


def _tables() -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Packed counts of each byte (uint64 [256]: white space, upper, lower, digit, high, control, code, angle, eight bits each) and its kinds (uint8 [256])."""
    byte = np.arange(256)

    def one_of(characters: bytes) -> NDArray[np.bool_]:
        return np.isin(byte, list(characters))

    upper, lower, digit, high = (byte >= 65) & (byte <= 90), (byte >= 97) & (byte <= 122), (byte >= 48) & (byte <= 57), byte >= 128
    control = ((byte < 32) & ~one_of(b"\t\n\r\x0c\x1b")) | (byte == 127)
    packed = np.zeros(256, np.uint64)
    for k, on in enumerate((one_of(b" \t\r"), upper, lower, digit, high, control, one_of(b"(){};="), one_of(b"<>"))):
        packed[on] += np.uint64(1 << 8 * k)
    kinds = np.zeros(256, np.uint8)
    for bit, on in (
        (WORDY, upper | lower | digit | high | (byte == 95)),
        (HEX, digit | one_of(b"abcdefABCDEF")),
        (LETTER, (byte >= 65) & (byte != 95)),
        (STOPS, one_of(b"\n<&")),
        (INSIDE, (byte > 32) & (byte < 127) & ~one_of(b"\"',\\`")),
        (SIXTYFOUR, upper | lower | digit | one_of(b"+/_-=")),
        (DNA, one_of(b"ACGTUNacgtun")),
    ):
        kinds[on] |= bit
    return packed, kinds


_PACKED, _KIND = _tables()


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
def line_table(x: NDArray[np.uint8], longest: int, packed: NDArray[np.uint64], kinds: NDArray[np.uint8]) -> NDArray[np.int64]:
    """int64 [lines, LINE_COLUMNS]: extent and counts of bytes by class, of tags and of entities."""
    n, feeds = len(x), 0
    for i in range(n):
        feeds += x[i] == 10
    rows = np.zeros((feeds + n // longest + 1, LINE_COLUMNS), np.int64)
    r, start, tag_from, tag_until, a = 0, 0, 0, 0, np.uint64(0)
    pause = min(n, 255) - 1  # where counts of eight bits are full, or the line must stop
    for i in range(n):
        c = x[i]
        a += packed[c]
        if i < pause and not kinds[c] & 8:
            continue
        row = rows[r]
        if c == 60 and i >= tag_until:
            row[10] += max(0, tag_until - tag_from)
            tag_from, tag_until = i, _tag_stop(x, i, n)
        elif c == 38 and i >= tag_until:
            for j in range(i + 2, min(n, i + 10)):
                if x[j] == 59:
                    row[11] += j - i + 1
                    break
                if not (kinds[x[j]] & 1 or x[j] == 35):
                    break
        done = c == 10 or (i + 1 - start >= longest and (c & 0xC0) != 0x80) or i == n - 1
        if not done and i < pause:
            continue
        for k in range(8):
            row[2 + k] += np.int64(a >> np.uint64(8 * k) & np.uint64(0xFF))
        a = np.uint64(0)
        if done:
            row[0], row[1] = start, i + 1
            if tag_until > tag_from:
                row[10] += min(tag_until, i + 1) - tag_from - (c == 10 and i < tag_until)
                tag_from = min(tag_until, i + 1)
            r += 1
            start = i + 1
        pause = min(i + 255, n - 1)
        if start + longest > i + 1:
            pause = min(pause, start + longest - 1)
        else:
            pause = i + 1
    return rows[:r]


@numba.njit(cache=True, nogil=True)
def word_table(x: NDArray[np.uint8], shortest: int, kinds: NDArray[np.uint8]) -> NDArray[np.int64]:
    """int64 [words, WORD_COLUMNS]: runs of printable ASCII without space, quote, comma or backslash of at least `shortest` bytes, with counts of byte classes.

    The last column counts changes between upper case, lower case and digits: many in random text, few in words and paths. Only every `shortest`-th byte is
    looked at, and from there back to what ends a run.
    """
    rows = np.zeros((len(x) // (shortest + 1) + 1, WORD_COLUMNS), np.int64)
    r, start, known, n = 0, 0, 0, len(x)  # the run may begin at `start`; bytes start..known belong to it
    while start + shortest <= n:
        i = start + shortest - 1
        while i >= known and kinds[x[i]] & 16:
            i -= 1
        if i >= known:
            start, known = i + 1, start + shortest
            known = max(known, start)
            continue
        stop = start + shortest
        while stop < n and kinds[x[stop]] & 16:
            stop += 1
        row = rows[r]
        row[0], row[1] = start, stop
        before = 0
        for j in range(start, stop):
            c = x[j]
            kind = kinds[c]
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
            if now and now != before:
                row[9] += 1
                before = now
            row[5] += kind & 2 != 0
            row[7] += kind & 32 != 0
            row[8] += kind & 64 != 0
        r += 1
        start = known = stop + 1
    return rows[:r]


@numba.njit(cache=True, nogil=True)
def characters(x: NDArray[np.uint8], start: int, stop: int) -> int:
    """Characters of UTF-8 bytes start..stop."""
    n = 0
    for i in range(start, stop):
        n += (x[i] & 0xC0) != 0x80
    return n


@numba.njit(cache=True, nogil=True)
def characters_of(x: NDArray[np.uint8]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The characters of UTF-8 bytes, each byte that belongs to none as U+FFFD: their codes uint32 [n], and where each begins int64 [n + 1]."""
    n = len(x)
    codes, places = np.empty(n, np.uint32), np.empty(n + 1, np.int64)
    i, found = 0, 0
    while i < n:
        c = x[i]
        code, size = np.uint32(c), 1
        if c >= 0x80:
            code = np.uint32(0xFFFD)
            more = 0 if c < 0xC2 or c >= 0xF5 else 1 if c < 0xE0 else 2 if c < 0xF0 else 3
            if more and i + more < n:
                second = x[i + 1]
                low, high = 0xA0 if c == 0xE0 else 0x90 if c == 0xF0 else 0x80, 0x9F if c == 0xED else 0x8F if c == 0xF4 else 0xBF
                whole, value = low <= second <= high, np.uint32(c & (0x3F >> more))
                for k in range(1, more + 1):
                    whole = whole and (x[i + k] & 0xC0) == 0x80
                    value = value << np.uint32(6) | np.uint32(x[i + k] & 0x3F)
                if whole:
                    code, size = value, more + 1
        codes[found], places[found] = code, i
        found += 1
        i += size
    places[found] = n
    return codes[:found], places[: found + 1]


def lines_of(x: NDArray[np.uint8]) -> NDArray[Any]:
    """The table of lines of one text."""
    return line_table(x, LINE, _PACKED, _KIND)


def words_of(x: NDArray[np.uint8], shortest: int) -> NDArray[Any]:
    """The table of long words of one text."""
    return word_table(x, shortest, _KIND)


def kinds() -> NDArray[np.uint8]:
    """uint8 [256]: the kinds of each byte, as bits."""
    return _KIND
