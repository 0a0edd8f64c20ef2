"""Lines and left-overs of mark-up on ids: what the screens need to know before anything is decoded.

`line_scan` goes once over the ids and closes a line at every id that holds a line feed. Per document it adds up bytes in lines that stood before, in rows of
numbers, in packed code and in long dense words, and follows rows that agree with one of the last few: templates. `mark_scan` stops only at ids with one of a
few characters (`<`, `&`, `{`, `[`, `:`, `(`, `=`), reads the bytes around them across the borders of ids, and counts tags, entities, style rules,
scripts and wiki templates. Both are upper bounds for the text detectors, not verdicts.
"""

# mypy: disable-error-code="assignment, call-overload, operator, no-any-return, return-value, index"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

# flags of an id
FEED, COLUMN, STARTS_SPACE, ENDS_SPACE, BREAK, WIDE, DIGITS, SILENT, TRIGGER, EVEN = (1 << k for k in range(10))
# columns of `line_scan`
REPEATED, NUMERIC_ROWS, DIGIT_ROWS, PACKED, DENSE, DUMPED, ALIKE, LINES = range(8)
LINE_SCAN_COLUMNS = 8
UNITS, BACK, NEAR = 96, 4, 4  # units of a line that are compared; rows back; other lines allowed between rows
AHEAD = 12
CUT = 512  # bytes after which a line is closed
SLOTS = 1 << 13


@numba.njit(cache=True, nogil=True, inline="always")
def _bits(v: np.uint64) -> int:
    """Bits set."""
    v = v - ((v >> np.uint64(1)) & np.uint64(0x5555555555555555))
    v = (v & np.uint64(0x3333333333333333)) + ((v >> np.uint64(2)) & np.uint64(0x3333333333333333))
    v = (v + (v >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((v * np.uint64(0x0101010101010101)) >> np.uint64(56))


@numba.njit(cache=True, nogil=True)
def _in_order(a: NDArray[np.uint32], n: int, b: NDArray[np.uint32], m: int) -> int:
    """Units of a[:n] found in b[:m] in the same order, each looked for among the next `AHEAD`: at most the longest common subsequence."""
    j, found = 0, 0
    for i in range(n):
        now = a[i]
        if found * 4 < i - 4:
            return 0  # hopeless
        for k in range(j, min(m, j + AHEAD)):
            if b[k] == now:
                found += 1
                j = k + 1
                break
    return found


@numba.njit(cache=True, nogil=True)
def _units(ids: NDArray[Any], flags: NDArray[np.uint16], out: NDArray[np.uint32], found: NDArray[np.int64]) -> np.uint64:
    """The units of a line (ids with letters; digits in a row are one) into `out`, and the set of their hashes as bits.

    `found` gets how many units, how many with non-ASCII bytes, and whether the line has columns or is indented.
    """
    last = len(flags) - 1
    n, wide, column, ended_space, digits_before = 0, 0, 0, 0, 0
    mask = np.uint64(0)
    for i in range(min(len(ids), 2 * UNITS)):
        k = min(np.int64(ids[i]), last)
        f = np.int64(flags[k])
        column |= (f & 2) | ((ended_space & f) >> 2)
        ended_space = (f & 8) >> 1
        digit = f >> 6 & 1
        keep = (1 - (f >> 7 & 1)) & (1 - (digit & digits_before))
        digits_before = (digit & keep) | (digits_before & (1 - keep))
        v = np.uint32((k + 2) * (1 - digit) + digit)
        mask |= np.uint64(keep) << np.uint64(np.uint32(v * np.uint32(2654435761)) >> np.uint32(26))
        out[min(n, UNITS)] = v
        n += keep
        wide += keep & (f >> 5)
    found[0], found[1], found[2] = n, wide, column
    return mask


@numba.njit(cache=True, nogil=True)
def _dense(ids: NDArray[Any], counts: NDArray[np.uint64], flags: NDArray[np.uint16]) -> int:
    """Bytes in words of at least 40 bytes that take an id for every three bytes or less."""
    last = len(counts) - 1
    total, size, n, wide = 0, 0, 0, 0
    for i in range(0, len(ids), 4):
        wide += (flags[min(np.int64(ids[i]), last)] & 0x20) != 0
    if wide * 8 > len(ids):
        return 0  # a script without spaces
    for i in range(len(ids) + 1):
        k = min(np.int64(ids[i]), last) if i < len(ids) else last
        f = np.int64(flags[k])
        if f & 0x14:  # starts with a space, or breaks words
            if size >= 40 and size <= 3 * n:
                total += size
            size, n = 0, 0
        if not f & 0x10:
            size += np.int64(counts[k] & np.uint64(0xFFF))
            n += 1
    return total


@numba.njit(cache=True, nogil=True)
def line_scan(x: NDArray[Any], offsets: NDArray[np.int64], counts: NDArray[np.uint64], flags: NDArray[np.uint16], like: float) -> NDArray[np.int64]:
    """Sums over the lines of every document; lines are cut after `CUT` bytes.

    Args:
        x: ids of all documents.
        offsets: int64 [n + 1].
        counts: uint64 [size + 1], five packed counts of 12 bits per id: bytes, white space, digits, code's punctuation, other punctuation; and a bit that
            says that the id holds a line feed.
        flags: uint16 [size + 1].
        like: share of units in common, in order, from which a row agrees with another.

    Returns:
        int64 [n, LINE_SCAN_COLUMNS]: bytes in lines that stood at least four times before; in rows of numbers; in lines with at least two digits; in
        packed code; in long dense words; in rows of numbers made of short ids; in the longest group of at least five rows of running text that agree; and
        lines.
    """
    out = np.zeros((len(offsets) - 1, 8), np.int64)
    last = len(counts) - 1
    keys = np.zeros(SLOTS, np.uint64)
    times = np.zeros(SLOTS, np.int32)
    units = np.zeros((BACK + 1, UNITS + 1), np.uint32)
    sizes, bits, at = np.zeros(BACK + 1, np.int64), np.zeros(BACK + 1, np.int64), np.zeros(BACK + 1, np.int64)
    masks, hashes = np.zeros(BACK + 1, np.uint64), np.zeros(BACK + 1, np.uint64)
    found = np.zeros(3, np.int64)
    prime, low = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFFF)
    for d in range(len(offsets) - 1):
        ids = x[offsets[d] : offsets[d + 1]]
        row = out[d]
        at[:] = -1000
        ring, line, start = 0, 0, 0
        group_rows, group_bytes, group_line = 0, 0, -1000
        n = len(ids)
        while start < n:
            total, i = np.uint64(0), start
            while i < n:
                total += counts[min(np.int64(ids[i]), last)]
                i += 1
                if total >> np.uint64(60) or (total & low) >= np.uint64(CUT):
                    break
            part = ids[start:i]
            start = i
            n_ids, size = len(part), np.int64(total & low)
            if size < 18:
                continue
            line += 1
            space, digits = np.int64((total >> np.uint64(12)) & low), np.int64((total >> np.uint64(24)) & low)
            code, other = np.int64((total >> np.uint64(36)) & low), np.int64((total >> np.uint64(48)) & low)
            seen = size - space
            letters = seen - digits - code - other
            if digits >= 2:
                row[2] += size
                if digits * 100 >= 18 * seen:
                    row[1] += size
                    row[5] += size * (size * 10 <= 26 * n_ids)
            if size >= 180 and letters * 100 >= 18 * size:
                row[3] += size * (
                    (space * 100 <= 7 * size and code * 1000 >= 35 * size)
                    or (space * 100 <= 16 * size and code * 100 >= 7 * size)
                    or (size >= 500 and space * 100 <= 12 * size and (code + other) * 100 >= 27 * size)
                )
            if size >= 40 and (size * 10 <= 30 * n_ids or space * 100 <= 6 * size):
                row[4] += _dense(part, counts, flags)
            h = np.uint64(d + 1)
            for j in range(n_ids):
                h = (h + np.uint64(part[j])) * prime
            h ^= h >> np.uint64(32)
            slot = np.int64(h & np.uint64(SLOTS - 1))
            if keys[slot] == h:
                times[slot] += 1
                row[0] += size * (times[slot] >= 5)
            else:
                keys[slot], times[slot] = h, 1
            if (
                n_ids < 7
                or size < 28
                or code * 100 > 9 * size
                or other * 100 > 24 * size
                or letters * 100 < 34 * size
                or (space < 5 and size < 3 * letters // 4)
            ):
                continue
            mask = _units(part, flags, units[ring], found)
            if found[2] or found[0] < 6 or (space < 5 and found[1] * 4 < found[0]) or (np.int64(flags[min(np.int64(part[0]), last)]) & 0x88) == 0x88:
                continue
            mine, best = _bits(mask), 0.0
            for q in range(BACK + 1):
                if q == ring or line - at[q] > 2 * BACK or hashes[q] == h:
                    continue
                chance = mine * bits[q] >> 6  # bits that unlike lines have in common
                if (_bits(mask & masks[q]) - chance) * 5 < 2 * (max(mine, bits[q]) - chance) or 2 * min(found[0], sizes[q]) < max(found[0], sizes[q]):
                    continue
                a, b = min(found[0], UNITS), min(sizes[q], UNITS)
                best = max(best, _in_order(units[ring], a, units[q], b) / max(a, b))
            if best >= like:
                if line - group_line > NEAR + 1:
                    group_rows, group_bytes = 1, size
                group_rows += 1
                group_bytes += size
                group_line = line
                if group_rows >= 5:
                    row[6] = max(row[6], group_bytes)
            masks[ring], hashes[ring], bits[ring], sizes[ring], at[ring] = mask, h, mine, found[0], line
            ring = (ring + 1) % (BACK + 1)
            at[ring] = -1000
        row[7] = line
    return out


TAG, STYLE, CALL, ASSIGNED = 1, 2, 4, 8
STYLES = [
    "margin", "padding", "color", "background", "display", "float", "width", "height", "font", "border", "position", "text", "line", "overflow", "z", "top",
    "left", "right", "bottom", "visibility", "clear", "cursor", "opacity", "list",
]  # fmt: skip
CALLS = ["gtag", "fbq", "ga", "jquery", "$", "getelementbyid", "createelement", "write"]
ASSIGNS = ["datalayer", "onclick", "_gaq", "googletag", "addthis", "adsbygoogle"]
WINDOW = 64  # bytes read before and after a character that may begin mark-up


@numba.njit(cache=True, nogil=True, inline="always")
def _known(h: np.uint32, names: NDArray[np.uint32], kinds: NDArray[np.uint8]) -> int:
    slot = np.int64(h >> np.uint32(20))
    while names[slot]:
        if names[slot] == h:
            return np.int64(kinds[slot])
        slot = (slot + 1) & 4095
    return 0


@numba.njit(cache=True, nogil=True)
def _after(b: NDArray[np.uint8], i: int, n: int, names: NDArray[np.uint32], kinds: NDArray[np.uint8]) -> int:
    """Bytes of the tag, entity or wiki template that begins at b[i]; 0 where none does."""
    c = b[i]
    if c == 60:  # <
        j = i + 1
        if j + 2 < n and b[j] == 33 and (b[j + 1] == 45 or (b[j + 1] | 32) == 100):
            return 12
        if j < n and b[j] == 47:
            j += 1
        start = j
        h = np.uint32(2166136261)
        while j < n and ((((b[j] | 32) >= 97) and ((b[j] | 32) <= 122)) or (b[j] >= 48 and b[j] <= 57)):
            h = np.uint32((h ^ np.uint32(b[j] | 32)) * np.uint32(16777619))
            j += 1
        if j == start or j >= n or not (b[j] == 62 or b[j] == 32 or b[j] == 47 or b[j] == 10) or not _known(h, names, kinds) & 1:
            return 0
        while j < n and b[j] != 62 and b[j] != 60:
            j += 1
        return j + 1 - i
    if c == 38:  # &
        j = i + 1
        while j < n and j < i + 9 and ((((b[j] | 32) >= 97) and ((b[j] | 32) <= 122)) or (b[j] >= 48 and b[j] <= 57) or b[j] == 35):
            j += 1
        return j + 1 - i if j < n and b[j] == 59 and j >= i + 3 else 0
    if i + 1 < n and ((c == 123 and (b[i + 1] == 123 or b[i + 1] == 124)) or (c == 91 and b[i + 1] == 91)):
        j = i + 2
        while j < n and b[j] != 10 and b[j] != 125 and b[j] != 93:
            j += 1
        return j - i
    return 0


@numba.njit(cache=True, nogil=True)
def _before(b: NDArray[np.uint8], i: int, names: NDArray[np.uint32], kinds: NDArray[np.uint8]) -> int:
    """Bytes that the style rule, call or assignment whose `:`, `(` or `=` stands at b[i] counts for."""
    c = b[i]
    wanted = STYLE if c == 58 else CALL if c == 40 else ASSIGNED
    j = i
    while j > 0 and c == 58 and b[j - 1] == 32:
        j -= 1
    start = j
    while start > 0:
        p = b[start - 1]
        if not (((p | 32) >= 97 and (p | 32) <= 122) or p == 95 or p == 36 or (c == 58 and p == 45)):
            break
        start -= 1
    if c == 58 and start > 0 and b[start - 1] != 32 and b[start - 1] != 59 and b[start - 1] != 123 and b[start - 1] != 10 and b[start - 1] != 9:
        if not (b[start - 1] == 34 or b[start - 1] == 39):
            return 0
        if start < 2 or b[start - 2] != 61:
            return 0
    h = np.uint32(2166136261)
    for k in range(start, j):
        if c == 58 and b[k] == 45 and k > start:
            break
        h = np.uint32((h ^ np.uint32(b[k] | 32)) * np.uint32(16777619))
    if j == start or not _known(h, names, kinds) & wanted:
        return 0
    return 20


@numba.njit(cache=True, nogil=True)
def mark_scan(
    x: NDArray[Any],
    offsets: NDArray[np.int64],
    chosen: NDArray[np.bool_],
    low: NDArray[np.uint64],
    flags: NDArray[np.uint16],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int32],
    data: NDArray[np.uint8],
    block: int,
    names: NDArray[np.uint32],
    kinds: NDArray[np.uint8],
) -> NDArray[np.int64]:
    """Bytes of mark-up, estimated, in the richest four blocks in a row of each chosen document: int64 [n]."""
    out = np.zeros(len(offsets) - 1, np.int64)
    last = len(flags) - 1
    b = np.zeros(3 * WINDOW + 512, np.uint8)
    for d in range(len(offsets) - 1):
        if not chosen[d]:
            continue
        ids = x[offsets[d] : offsets[d + 1]]
        n = len(ids)
        now, one, two, three = 0, 0, 0, 0
        marks_before, size_before, edge, hot = 0, 0, 0, False
        for i in range(n):
            if i >= edge:
                three, two, one, now = two, one, now, 0
                edge += block
                a = np.uint64(0)
                for j in range(i, min(n, edge)):
                    a += low[min(np.int64(ids[j]), last)]
                marks, size = np.int64(a >> np.uint64(48)), np.int64(a & np.uint64(0xFFFF))
                hot = (marks + marks_before) * 1000 >= 36 * (size + size_before)
                marks_before, size_before = marks, size
            if not hot:
                continue
            k = min(np.int64(ids[i]), last)
            if not flags[k] & 0x100:
                continue
            first = i  # ids before, for the word that a `:` or `(` follows
            room = 0
            while first > 0 and room < 20 and i - first < 10:
                first -= 1
                p = min(np.int64(ids[first]), last)
                room += lengths[p]
            at, begin, stop = 0, 0, 0
            j = first
            while j < n and at < 2 * WINDOW and (j <= i or at < stop + WINDOW):
                p = min(np.int64(ids[j]), last)
                if j == i:
                    begin = at
                if lengths[p] > 255:
                    break
                for r in range(lengths[p]):
                    b[at] = data[starts[p] + r]
                    at += 1
                if j == i:
                    stop = at
                j += 1
            for r in range(begin, stop):
                c = b[r]
                if c == 60 or c == 38 or c == 123 or c == 91:
                    now += _after(b, r, at, names, kinds)
                elif c == 58 or c == 40 or c == 61:
                    now += _before(b, r, names, kinds)
            out[d] = max(out[d], now + one + two + three)
    return out


@functools.cache
def names() -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Open table of hashed names (uint32 [4096]) and what they are (uint8 [4096])."""
    from forensics.detectors.markup import ELEMENTS

    table, kinds = np.zeros(4096, np.uint32), np.zeros(4096, np.uint8)
    items = [(w, TAG) for w in ELEMENTS] + [(w, STYLE) for w in STYLES] + [(w, CALL) for w in CALLS] + [(w, ASSIGNED) for w in ASSIGNS]
    for word, kind in items:
        h = 2166136261
        for c in word.lower().encode():
            h = (h ^ (c | 32)) * 16777619 & 0xFFFFFFFF
        slot = h >> 20
        while table[slot] and table[slot] != h:
            slot = (slot + 1) & 4095
        table[slot] = h
        kinds[slot] |= kind
    return table, kinds
