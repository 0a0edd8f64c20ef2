"""Lines on ids: what the screens need to know before anything is decoded.

`line_scan` goes once over the ids and closes a line at every id that holds a line feed. Per document it adds up bytes in lines that stood before, in rows of
numbers, in packed code and in long dense words, and follows rows that agree with one of the last few: templates. Upper bounds for the text detectors, not
verdicts.
"""

# mypy: disable-error-code="arg-type, assignment, call-overload, operator, no-any-return, return-value, index"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

from typing import Any

import numba
import numba.extending
import numpy as np
from numpy.typing import NDArray

# flags of an id
FEED, COLUMN, STARTS_SPACE, ENDS_SPACE, BREAK, WIDE, DIGITS, SILENT, TRIGGER, EVEN = (1 << k for k in range(10))
# columns of `line_scan`
REPEATED, NUMERIC_ROWS, DIGIT_ROWS, PACKED, DENSE, DUMPED, ALIKE, LINES = range(8)
LINE_SCAN_COLUMNS = 8
UNITS, BACK, NEAR = 96, 4, 4  # units of a line that are compared; rows back; other lines allowed between rows
AHEAD = 12
SETS = 12  # twentieths of their units that two rows must have in common before their order is looked at: what the detector asks of words
PAIRS = 8  # the same for pairs of units, where these are letters
ROWS, ENOUGH = 5, 400  # rows of a group, and bytes from which it is looked for closely
CUT = 512  # bytes after which a line is closed: a power of two
SHORTEST = 18  # bytes of a line that counts
IN_WORD = 13  # ids in a row that a word of 40 bytes takes at least, where each is of three bytes or less
FIELD = 10  # bits of a packed count: a line has less than 1024 bytes
SLOTS = 1 << 12


@numba.extending.intrinsic
def _bits(_context: Any, v: Any) -> Any:
    """Bits set in a uint64."""

    def build(_: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return numba.int64(numba.uint64), build


@numba.njit(cache=True, nogil=True)
def _in_order(a: NDArray[np.uint32], n: int, b: NDArray[np.uint32], m: int, least: float) -> int:
    """Units of a[:n] found in b[:m] in the same order, each looked for among the next `AHEAD`; 0 where less than `least`.

    At most the longest common subsequence. Behind its units `b` has `AHEAD` zeros, so that all places are compared at once.
    """
    j, found = 0, 0
    for i in range(n):
        now, part, at = a[i], b[j : j + AHEAD], np.int32(AHEAD)
        if found * 4 < i - 4 or found + n - i < least:
            return 0  # hopeless
        for k in range(AHEAD):
            at = min(at, np.int32(k) if part[k] == now else np.int32(AHEAD))
        met = np.int64(at < AHEAD)
        found += met
        j = min(m, j + met * (at + 1))
    return found


@numba.njit(cache=True, nogil=True)
def _units(ids: NDArray[Any], start: int, stop: int, flags: NDArray[np.uint16], out: NDArray[np.uint32], row: int) -> int:
    """The units of a line (ids with letters; digits in a row are one) into `out[row]`; returns how many, 0 where it cannot be a template's row.

    It cannot with columns, with few units, or where the words of an alphabet are not parted by spaces.
    """
    last = len(flags) - 1
    n, wide, gaps, ended_space, digits_before = 0, 0, 0, 0, 0
    for i in range(start, min(stop, start + 2 * UNITS)):
        k = min(np.int64(ids[i]), last)
        f = np.int64(flags[k])
        if f & 2 or (ended_space and f & 4):
            return 0
        ended_space = f & 8
        gaps += f >> 2 & 1
        digit = f >> 6 & 1
        keep = (1 - (f >> 7 & 1)) & (1 - (digit & digits_before))
        digits_before = (digit & keep) | (digits_before & (1 - keep))
        out[row, min(n, UNITS)] = np.uint32((k + 2) * (1 - digit) + digit)
        n += keep
        wide += keep & (f >> 5)
    if n < 6 or (gaps < 5 and wide * 4 < n):
        return 0
    n = min(n, UNITS)
    out[row, n : n + AHEAD] = 0
    return n


@numba.njit(cache=True, nogil=True)
def _dense(ids: NDArray[Any], start: int, stop: int, counts: NDArray[np.uint64], flags: NDArray[np.uint16]) -> int:
    """Bytes in words of at least 40 bytes that take an id for every three bytes or less: at least `IN_WORD` ids in a row none of which parts words."""
    last, parts = len(counts) - 1, np.uint64(1 << 61)
    i, longest = start + IN_WORD - 1, False
    while i < stop and not longest:  # a row of so many holds every one of these places, or none of its ids parts words
        k = i
        while k > i - IN_WORD and not counts[min(np.int64(ids[k]), last)] & parts:
            k -= 1
        longest = k == i - IN_WORD
        i = k + IN_WORD
    if not longest:
        return 0
    total, size, n = 0, 0, 0
    for i in range(start, stop + 1):
        k = min(np.int64(ids[i]), last) if i < stop else last
        f = np.int64(flags[k])
        if f & 0x14:  # starts with a space, or breaks words
            if size >= 40 and size <= 3 * n:
                total += size
            size, n = 0, 0
        if not f & 0x10:
            size += np.int64(counts[k] & np.uint64(0x3FF))
            n += 1
    return total


@numba.njit(inline="always")
def _next_line(ids: NDArray[Any], counts: NDArray[np.uint64]) -> tuple[int, np.uint64]:
    """The line that ids begin with: how many ids, and the sum of their packed counts."""
    ceiling, n, total = np.uint32(len(counts) - 1), 0, np.uint64(0)
    for j in range(len(ids)):
        total += counts[min(np.uint32(ids[j]), ceiling)]
        n += 1
        if total & np.uint64(1 << 60 | CUT):  # bytes are the lowest count, and fewer than twice `CUT`
            break
    return n, total


@numba.njit(inline="always")
def _hash(line: NDArray[Any], d: int) -> np.uint64:
    """A hash of the ids of a line of document d, whatever their order."""
    h = np.uint64(0)
    for j in range(len(line)):
        v = np.uint64(np.uint32(line[j])) * np.uint64(0x9E3779B1)
        h += v ^ v >> np.uint64(15)
    return (h + np.uint64(d) * np.uint64(0xBF58476D1CE4E5B9)) * np.uint64(0x9E3779B97F4A7C15)


@numba.njit(inline="always")
def _mask(line: NDArray[Any], hashed: NDArray[np.uint16], paired: int) -> tuple[np.uint64, np.uint64, int]:
    """128 bits for the units of a line, or its pairs of units in a row, each by its hash, and whether it holds columns."""
    ceiling, pair, one = np.uint32(len(hashed) - 1), np.uint64(paired), np.uint64(1)
    low, high, every, before = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
    for j in range(len(line)):
        u = np.uint64(hashed[min(np.uint32(line[j]), ceiling)])
        at = u + before * pair
        bit = (u >> np.uint64(7) & one) << (at & np.uint64(63))
        upper = np.uint64(0) - (at >> np.uint64(6) & one)
        low |= bit & upper
        high |= bit & ~upper
        every |= u
        before = u * np.uint64(5)
    return low, high, np.int64(every >> np.uint64(8))


@numba.njit(inline="always")
def _is_row(n_ids: int, total: np.uint64) -> bool:
    """Whether a line may be a row of running text."""
    low = np.uint64(0x3FF)
    size, space, digits = np.int64(total & low), np.int64((total >> np.uint64(10)) & low), np.int64((total >> np.uint64(20)) & low)
    code, other, wide = np.int64((total >> np.uint64(30)) & low), np.int64((total >> np.uint64(40)) & low), np.int64(total >> np.uint64(50) & low)
    letters = size - space - digits - code - other
    prose = (code * 100 <= 9 * size) & (other * 100 <= 24 * size) & (letters * 100 >= 34 * size)
    return (n_ids >= 7) & (size >= 28) & prose & ((space >= 5) | (wide >= 2))  # fewer have no units, see `_units`


@numba.njit(inline="always")
def _may_agree(both: int, one: int, other: int, least: int) -> bool:
    """Whether two lines with so many bits set may share so many twentieths of their units, by the bits they share, beyond those that unlike lines do."""
    chance = one * other >> 7
    return (both - chance) * 20 >= least * (max(one, other) - chance)


@numba.njit(cache=True, nogil=True)
def line_scan(
    x: NDArray[Any], offsets: NDArray[np.int64], counts: NDArray[np.uint64], hashed: NDArray[np.uint16], flags: NDArray[np.uint16], like: float
) -> NDArray[np.int64]:
    """Sums over the lines of every document; lines are cut after `CUT` bytes.

    Args:
        x: ids of all documents.
        offsets: int64 [n + 1].
        counts: uint64 [size + 1], six packed counts of 10 bits per id (bytes, white space, digits, code's punctuation, other punctuation, non-ASCII bytes),
            and bits that say that it holds a line feed, parts words.
        hashed: uint16 [size + 1], seven bits of a hash of each id, and bits that say that it is a unit of rows that are compared, holds columns.
        flags: uint16 [size + 1].
        like: share of units in common, in order, from which a row agrees with another.

    Returns:
        int64 [n, LINE_SCAN_COLUMNS]: bytes in lines that stood at least four times before (the same ids in any order); in rows of numbers; in lines with at
        least two digits; in packed code; in long dense words; in rows of hexadecimal numbers made of short ids; in the longest group of at least five rows
        of running text that agree; and lines.
    """
    out = np.zeros((len(offsets) - 1, LINE_SCAN_COLUMNS), np.int64)
    keys, times = np.zeros(SLOTS, np.uint64), np.zeros(SLOTS, np.int32)
    units, mine = np.zeros((BACK, UNITS + AHEAD), np.uint32), np.zeros((1, UNITS + AHEAD), np.uint32)
    sizes, bits, at = np.zeros(BACK, np.int64), np.zeros(BACK, np.int64), np.zeros(BACK, np.int64)
    begins, ends = np.zeros(BACK, np.int64), np.zeros(BACK, np.int64)
    masks, more, hashes = np.zeros(BACK, np.uint64), np.zeros(BACK, np.uint64), np.zeros(BACK, np.uint64)
    low, last, indented = np.uint64(0x3FF), len(flags) - 1, np.uint16(SILENT | ENDS_SPACE)
    for d in range(len(offsets) - 1):
        ids = x[offsets[d] : offsets[d + 1]]
        row = out[d]
        at[:] = -1000
        ring, line, stop = 0, 0, np.int64(0)  # a plain 0 is a type of its own, for which what is called with it would be compiled too
        group_rows, group_bytes, group_line = 0, 0, -1000
        while stop < len(ids):
            begin = stop
            n_ids, total = _next_line(ids[begin:], counts)
            stop += n_ids
            size = np.int64(total & low)
            if size < SHORTEST:
                continue
            line += 1
            space, digits = np.int64((total >> np.uint64(10)) & low), np.int64((total >> np.uint64(20)) & low)
            code, other, wide = np.int64((total >> np.uint64(30)) & low), np.int64((total >> np.uint64(40)) & low), np.int64((total >> np.uint64(50)) & low)
            seen = size - space
            letters = seen - digits - code - other
            some = size * (digits >= 2)
            row[2] += some
            row[1] += some * (digits * 100 >= 18 * seen)
            # charts in code have 18 to 31 % digits
            row[5] += some * ((digits * 100 >= 32 * seen) & (letters * 2 <= seen) & (code * 20 <= seen) & (size * 10 <= 26 * n_ids))
            if size >= 180 and letters * 100 >= 18 * size:
                row[3] += size * (
                    (space * 100 <= 7 * size and code * 1000 >= 35 * size)
                    or (space * 100 <= 16 * size and code * 100 >= 7 * size)
                    or (size >= 500 and space * 100 <= 12 * size and (code + other) * 100 >= 27 * size)
                )
            if (size >= 40) & (wide * 4 < size) & ((size * 10 <= 30 * n_ids) | (space * 100 <= 6 * size)):
                row[4] += _dense(ids, begin, stop, counts, flags)
            h = _hash(ids[begin:stop], d)
            slot = np.int64(h >> np.uint64(52))
            if keys[slot] == h:
                times[slot] += 1
                row[0] += size * (times[slot] >= 5)
            else:
                keys[slot], times[slot] = h, 1
            if not _is_row(n_ids, total) or (flags[min(np.int64(ids[begin]), last)] & indented) == indented:
                continue
            letterwise = (size * 10 <= 28 * n_ids) & (wide * 2 >= size)  # an id is hardly more than a letter: any two lines share most of them
            mask, high, columns = _mask(ids[begin:stop], hashed, np.int64(letterwise))
            if columns:
                continue
            count, met = _bits(mask) + _bits(high), False
            for q in range(BACK):
                met |= _may_agree(_bits(mask & masks[q]) + _bits(high & more[q]), count, bits[q], PAIRS if letterwise else SETS)
            best, my_size = 0.0, -1
            for q in range(BACK if met else 0):
                if line - at[q] > 2 * BACK or hashes[q] == h or sizes[q] == 0:
                    continue
                if not _may_agree(_bits(mask & masks[q]) + _bits(high & more[q]), count, bits[q], PAIRS if letterwise else SETS):
                    continue
                if my_size < 0:
                    my_size = _units(ids, begin, stop, flags, mine, np.int64(0))
                    if my_size == 0:
                        break
                if sizes[q] < 0:
                    sizes[q] = _units(ids, begins[q], ends[q], flags, units, q)
                a, b = my_size, sizes[q]
                if 2 * min(a, b) >= max(a, b):
                    best = max(best, _in_order(mine[0], a, units[q], b, like * max(a, b)) / max(a, b))
            if my_size == 0:
                continue
            if best >= like:
                if line - group_line > NEAR + 1:
                    group_rows, group_bytes = 1, size
                group_rows += 1
                group_bytes += size
                group_line = line
                if group_rows >= ROWS:
                    row[6] = max(row[6], group_bytes)
            masks[ring], more[ring], hashes[ring], bits[ring], sizes[ring], at[ring], begins[ring], ends[ring] = mask, high, h, count, -1, line, begin, stop
            ring = (ring + 1) % BACK
        row[7] = line
    return out
