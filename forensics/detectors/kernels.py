"""Kernels of the screens: one pass each over the ids of a batch.

All take ids of any unsigned type, so that text under the byte vocabulary goes through the same code; ids beyond the vocabulary are looked up as its last
row, which counts nothing.
numba widens 32-bit arithmetic to 64 bits and does not vectorise `a[start + i]` for a computed start: slices are taken first.
"""

# mypy: disable-error-code="assignment, call-overload, operator"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

# columns of `block_scan`
BYTES, NONASCII, WHITE, MARK, NUMBER, FILLER, FRAME, ODD, TIGHT, MARKED, FILLED, FRAMED, NUMERIC, UNIFORM, LATIN, FOREIGN, ASKED = range(17)
SCAN_COLUMNS = 17
WINDOW = 32  # ids of which `pair_scan` finds out together whether they hold only ASCII


@numba.njit(cache=True, nogil=True)
def block_scan(
    x: NDArray[Any],
    offsets: NDArray[np.int64],
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
    letters: NDArray[np.uint64],
    block: int,
) -> NDArray[np.int64]:
    """Counts per document, and the extremes over its blocks of so many ids.

    Returns:
        int64 [n, SCAN_COLUMNS]: bytes, non-ASCII bytes, white space, marks, digits, filler, frame anchors and odd bytes of the whole; then, over blocks: how
        many are tight (hardly any space), most marks per thousand bytes of two in a row, most filler per thousand, most frame anchors, how many are mostly
        digits, bytes of ids of one repeated character; and of the whole, letters of the Latin script and of others, and ids with `?` at an end.
    """
    out = np.zeros((len(offsets) - 1, SCAN_COLUMNS), np.int64)
    ceiling, field = np.uint32(len(low) - 1), np.uint64(0xFFFF)
    for d in range(len(offsets) - 1):
        ids = x[offsets[d] : offsets[d + 1]]
        row = out[d]
        n = len(ids)
        start = 0
        marks_before, size_before = 0, 0
        while start < n:
            part = ids[start : start + block]
            a, b, c = np.uint64(0), np.uint64(0), np.uint64(0)
            for i in range(len(part)):
                k = min(np.uint32(part[i]), ceiling)
                a += low[k]
                b += high[k]
                c += letters[k]
            size = np.int64(a & field)
            wide, space, marks = (
                np.int64((a >> np.uint64(16)) & field),
                np.int64((a >> np.uint64(32)) & field),
                np.int64(a >> np.uint64(48)),
            )
            digits, filler, frame, odd = (
                np.int64(b & field),
                np.int64((b >> np.uint64(16)) & field),
                np.int64((b >> np.uint64(32)) & field),
                np.int64(b >> np.uint64(48)),
            )
            row[0] += size
            row[1] += wide
            row[2] += space
            row[3] += marks
            row[4] += digits
            row[5] += filler
            row[6] += frame
            row[7] += odd
            if size >= 32:
                if space * 100 <= 9 * size and wide * 5 <= size:
                    row[8] += 1
                row[9] = max(row[9], (marks + marks_before) * 1000 // (size + size_before))
                marks_before, size_before = marks, size
                row[10] = max(row[10], filler * 1000 // max(1, size - space))
                if digits * 100 >= 22 * (size - space):
                    row[12] += 1
            row[11] = max(row[11], frame)
            row[13] = max(row[13], np.int64((c >> np.uint64(32)) & field))
            row[14] += np.int64(c & field)
            row[15] += np.int64((c >> np.uint64(16)) & field)
            row[16] += np.int64(c >> np.uint64(48))
            start += block
    return out


@numba.njit(cache=True, nogil=True)
def run_scan(x: NDArray[Any], offsets: NDArray[np.int64], lengths: NDArray[np.int32], every: int, bits: int) -> NDArray[np.int64]:
    """Bytes of the longest stretch of each document that consists of three or more copies of a unit of ids, whatever its length: int64 [n].

    Every run of three ids is put into a table of 2**bits places, each `every`-th one is looked up in it: a stretch is met when it is so many ids, and three,
    longer than its unit, and its unit shorter than the table.
    """
    out = np.zeros(len(offsets) - 1, np.int64)
    last = len(lengths) - 1
    table = np.zeros(1 << bits, np.uint32)
    shift = np.uint64(64 - bits)
    golden, third_place, next_place = np.uint64(0x9E3779B97F4A7C15), np.uint64(42), np.uint64(21)
    for d in range(len(offsets) - 1):
        begin = offsets[d]
        ids = x[begin : offsets[d + 1]]
        n = len(ids)
        i = 0
        while i + 3 <= n:
            stop = min(n - 2, i + every)
            part = ids[i : stop + 2]
            key, slot, before = np.uint64(part[0]) << next_place ^ np.uint64(part[1]) << third_place, np.uint64(0), np.uint32(0)
            for j in range(len(part) - 2):
                key = key >> next_place ^ np.uint64(part[j + 2]) << third_place
                slot = key * golden >> shift
                before = table[slot]
                table[slot] = np.uint32(begin + i + j + 1)
            i = stop
            here, there = stop - 1, np.int64(before) - begin - 1
            if there < 0 or ids[there] != ids[here] or ids[there + 1] != ids[here + 1] or ids[there + 2] != ids[here + 2]:
                continue
            period = here - there
            stop = here + 3
            while stop < n and ids[stop] == ids[stop - period]:
                stop += 1
            start = there
            while start > 0 and ids[start - 1] == ids[start - 1 + period]:
                start -= 1
            if stop - start >= 3 * period:
                size = 0
                for k in range(start, stop):
                    size += lengths[min(np.int64(ids[k]), last)]
                out[d] = max(out[d], size)
            i = max(i, stop - 2)
    return out


@numba.njit(cache=True, nogil=True)
def repeat_scan(
    x: NDArray[Any], offsets: NDArray[np.int64], lengths: NDArray[np.int32], gram: int, near: int, block: int, table: NDArray[np.int64]
) -> NDArray[np.int64]:
    """How far each document repeats itself.

    Args:
        x: ids of all documents.
        offsets: int64 [n + 1].
        lengths: int32 [size + 1], bytes of each id.
        gram: ids of the n-gram that a repetition is recognised by.
        near: ids back within which a repeated n-gram counts for its block.
        block: ids of a block.
        table: int64 [2**k], scratch; filled with -1.

    Returns:
        int64 [n, 4]: bytes of the longest stretch that consists of three or more copies of a unit; its period in ids; n-grams that stood shortly before in
        the poorest of four blocks in a row, per thousand, the most of them; n-grams that stood anywhere before in the document (its stretches included).
    """
    out = np.zeros((len(offsets) - 1, 4), np.int64)
    mask = np.uint64(len(table) - 1)
    last = len(lengths) - 1
    base = np.uint64(0x9E3779B97F4A7C15)
    drop = np.uint64(1)  # base ** gram, by which the id that leaves the n-gram is taken out of the rolling hash
    for _ in range(gram):
        drop *= base
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        row = out[d]
        i = begin
        edge, count = begin + block, 0
        one, two, three = 0, 0, 0  # counts of the three blocks before
        fresh = True
        h = np.uint64(0)
        while i + gram <= end:
            while i >= edge:
                row[2] = max(row[2], min(min(count, one), min(two, three)) * 1000 // block)
                three, two, one, count = two, one, count, 0
                edge += block
            if fresh:
                h = np.uint64(0)
                for k in range(gram):
                    h = h * base + np.uint64(x[i + k])
                fresh = False
            else:
                h = h * base + np.uint64(x[i + gram - 1]) - np.uint64(x[i - 1]) * drop
            slot = np.int64((h * base >> np.uint64(40)) & mask)
            before = table[slot]
            table[slot] = i
            if before < begin or x[before] != x[i] or x[before + 1] != x[i + 1] or x[before + gram - 1] != x[i + gram - 1]:
                i += 1
                continue
            period = i - before
            stop = i
            while stop < end and x[stop] == x[stop - period]:
                stop += 1
            if stop - i < gram:
                i += 1
                continue
            new = stop - i - gram + 1
            row[3] += new
            if period <= near:
                count += min(new, block)
            if stop - before >= 3 * period and stop - before >= 3:
                size = 0
                for k in range(before, stop):
                    size += lengths[min(np.int64(x[k]), last)]
                if size > row[0]:
                    row[0], row[1] = size, period
            if stop - gram + 1 > i + 1:
                i = stop - gram + 1
                fresh = True
            else:
                i += 1
        row[2] = max(row[2], min(min(count, one), min(two, three)) * 1000 // block)
    return out


@numba.njit(cache=True, nogil=True)
def pair_scan(
    x: NDArray[Any],
    offsets: NDArray[np.int64],
    chosen: NDArray[np.bool_],
    automaton: NDArray[np.uint32],
    starts: NDArray[np.int64],
    data: NDArray[np.uint8],
    classes: NDArray[np.uint16],
    pairs: NDArray[np.uint8],
    single: NDArray[np.bool_],
    latin: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Evidence of wrong decodings in chosen documents, counted over characters whatever way ids cut them.

    Returns:
        int64 [n, 3]: pieces of evidence, non-ASCII characters (about: whole ids count their pairs), question marks between letters or in a row.
    """
    out = np.zeros((len(offsets) - 1, 3), np.int64)
    last = np.uint32(len(automaton) - 1)
    for d in range(len(offsets) - 1):
        if not chosen[d]:
            continue
        ids = x[offsets[d] : offsets[d + 1]]
        before = np.uint64(4)  # class of the character before: a space
        hits, wide, asked = 0, 0, 0
        run, armed, need, code = 0, False, 0, 0
        for start in range(0, len(ids), WINDOW):
            part = ids[start : start + WINDOW]
            busy = np.uint32(0)
            for j in range(len(part)):
                busy |= automaton[min(np.uint32(part[j]), last)]
            if busy < 0x4000000 and before < 5 and before != 3 and not armed:
                before = np.uint64(automaton[min(np.uint32(part[len(part) - 1]), last)] >> np.uint32(10) & np.uint32(0x3FF))
                run, need = 0, 0
                continue
            for j in range(len(part)):
                token = min(np.uint32(part[j]), last)
                word = np.uint64(automaton[token])
                kind = word >> np.uint64(26) & np.uint64(3)
                if kind < 2:
                    first = word & np.uint64(0x3FF)
                    if kind == 0:
                        if before >= 5:
                            hits += pairs[before, first]
                            if armed and first == 1:
                                hits += 1
                        elif (first == 3 and before <= 3) or (before == 3 and first == 1):
                            asked += before == 1 or before == 3
                    else:
                        hits += pairs[before, first] + np.int64(word >> np.uint64(20) & np.uint64(63))
                        wide += 2
                    before = word >> np.uint64(10) & np.uint64(0x3FF)
                    run, armed, need = 0, False, 0
                    continue
                if token == last:
                    continue
                for k in range(np.uint64(starts[token]), np.uint64(starts[token + np.uint32(1)])):
                    c = np.int64(data[k])
                    if c < 0x80:
                        code, need = c, 0
                    elif (c & 0xC0) == 0x80:
                        if need == 0:
                            continue
                        code = code << 6 | c & 0x3F
                        need -= 1
                        if need:
                            continue
                    else:
                        need = 1 if c < 0xE0 else 2 if c < 0xF0 else 3
                        code = c & (0x1F if c < 0xE0 else 0x0F if c < 0xF0 else 0x07)
                        continue
                    now = np.uint64(classes[np.uint64(code)]) if code < 65536 else np.uint64(11)
                    hits += pairs[before, now]
                    if code >= 0x80:
                        wide += 1
                        hits += single[now]
                        if latin[now]:
                            run += 1
                            hits += run >= 4  # three stand in Turkish words (küçük)
                        else:
                            run = 0
                        armed = before == 1 and (now == 5 or now == 6 or now == 9)
                    else:
                        run = 0
                        if armed and now == 1:
                            hits += 1
                        armed = False
                    before = now
        out[d, 0], out[d, 1], out[d, 2] = hits, wide, asked
    return out
