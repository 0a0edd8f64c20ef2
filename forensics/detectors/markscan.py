"""Left-overs of mark-up on ids: tags, entities, style rules, scripts and wiki templates, before a document is decoded.

Only blocks of ids that are rich in marks (`<`, `&`, `{`, `[` ...) are looked at: their bytes are put together, so that what ids cut is whole, and each mark is
read on or back from. An upper bound for the text detector, not a verdict.
"""

# mypy: disable-error-code="assignment, call-overload, operator, no-any-return, return-value, index"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from forensics.stores.decode import move

TAG, STYLE, CALL, ASSIGNED = 1, 2, 4, 8
STYLES = [
    "margin", "padding", "color", "background", "display", "float", "width", "height", "font", "border", "position", "text", "line", "overflow", "z", "top",
    "left", "right", "bottom", "visibility", "clear", "cursor", "opacity", "list",
]  # fmt: skip
CALLS = ["gtag", "fbq", "ga", "jquery", "$", "getelementbyid", "createelement", "write"]
ASSIGNS = ["datalayer", "onclick", "_gaq", "googletag", "addthis", "adsbygoogle"]
HOT = 36  # marks per thousand bytes, of two blocks, from which a block is read
WINDOW = 64  # bytes read from a character on that may begin mark-up
BEFORE, AFTER = 10, 32  # ids read beside a block
_BEGINS = np.zeros(256, np.uint8)  # what mark-up is read on from, and back from
_BEGINS[list(b"<&{[")] = 1
_BEGINS[list(b":(=")] = 2


@numba.njit(cache=True, nogil=True)
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
    place: NDArray[np.uint64],
    data: NDArray[np.uint8],
    block: int,
    names: NDArray[np.uint32],
    kinds: NDArray[np.uint8],
    hot: int = HOT,
    most: int = 1 << 30,
) -> NDArray[np.int64]:
    """Bytes of mark-up, estimated, in the richest four blocks in a row of each chosen document: int64 [n]. Blocks with less than `hot` marks per
    thousand bytes are not read, and no document further than to where it has `most`.
    """
    out = np.zeros(len(offsets) - 1, np.int64)
    ceiling = np.uint32(len(place) - 1)
    b = np.zeros((block + BEFORE + AFTER) * 256 + 16, np.uint8)
    for d in range(len(offsets) - 1):
        if not chosen[d]:
            continue
        ids = x[offsets[d] : offsets[d + 1]]
        n = len(ids)
        one, two, three = 0, 0, 0
        marks_before, size_before, edge = 0, 0, 0
        while edge < n and out[d] < most:
            begin, edge = edge, min(n, edge + block)
            part, a = ids[begin:edge], np.uint64(0)
            for j in range(len(part)):
                a += low[min(np.uint32(part[j]), ceiling)]
            marks, size = np.int64(a >> np.uint64(48)), np.int64(a & np.uint64(0xFFFF))
            rich = (marks + marks_before) * 1000 >= hot * (size + size_before)
            marks_before, size_before = marks, size
            now = 0
            if rich:
                at, first, stop = 0, 0, 0
                from_id = max(0, begin - BEFORE)
                part = ids[from_id : min(n, edge + AFTER)]
                for j in range(len(part)):
                    if j == begin - from_id:
                        first = at
                    entry = place[min(np.uint32(part[j]), ceiling)]
                    width, source = np.int64(entry & np.uint64(0xFFFFFF)), np.int64(entry >> np.uint64(24))
                    if width <= 16 and source + 16 <= len(data):
                        move(b, at, data, source)
                        at += width
                    elif width <= 255:
                        for r in range(width):
                            b[at + r] = data[source + r]
                        at += width
                    if j == edge - 1 - from_id:
                        stop = at
                for r in range(first, stop):
                    kind = _BEGINS[b[r]]
                    if kind == 1:
                        now += _after(b, r, min(at, r + WINDOW), names, kinds)
                    elif kind == 2:
                        now += _before(b, r, names, kinds)
                out[d] = max(out[d], now + one + two + three)
            three, two, one = two, one, now
    return out


@numba.njit(cache=True, nogil=True)
def _is_space(c: int) -> bool:
    return c == 32 or (c >= 9 and c <= 13)


@numba.njit(cache=True, nogil=True)
def _tag(b: NDArray[np.uint8], i: int, n: int, names: NDArray[np.uint32], kinds: NDArray[np.uint8]) -> int:
    """Bytes of the tag, comment mark or entity that begins at b[i] and ends before n, as `markup.TAGS` has it; 0 where none does."""
    c = b[i]
    if c == 45:
        return 3 if i + 2 < n and b[i + 1] == 45 and b[i + 2] == 62 else 0
    if c == 38:
        j, least, most = i + 1, 2, 8
        if j + 1 < n and b[j] == 35:
            most, six = 5, (b[j + 1] | 32) == 120
            j += 1 + six
            start = j
            while j < n and ((b[j] >= 48 and b[j] <= 57) or (six and (b[j] | 32) >= 97 and (b[j] | 32) <= 102)):
                j += 1
        else:
            start = j
            while j < n and (b[j] | 32) >= 97 and (b[j] | 32) <= 122:
                j += 1
        return j + 1 - i if j < n and b[j] == 59 and j - start >= least and j - start <= most else 0
    if i + 3 < n and b[i + 1] == 33 and b[i + 2] == 45 and b[i + 3] == 45:
        return 4
    j = i + 1
    if j < n and b[j] == 33:
        h = np.uint64(0)
        for k in range(j + 1, min(n, j + 8)):
            h = h << np.uint64(8) | np.uint64(b[k] | 32)
        return 9 if h == np.uint64(0x646F6374797065) else 0
    j += j < n and b[j] == 47
    start = j
    h = np.uint32(2166136261)
    while j < n and (((b[j] | 32) >= 97 and (b[j] | 32) <= 122) or (b[j] >= 48 and b[j] <= 57)):
        h = np.uint32((h ^ np.uint32(b[j] | 32)) * np.uint32(16777619))
        j += 1
    if j == start or j >= n or not _known(h, names, kinds) & 1:
        return 0
    if not _is_space(b[j]):
        j += j + 1 < n and b[j] == 47
        return j + 1 - i if b[j] == 62 else 0
    start = j + 1
    j = start
    while j < n and b[j] != 62 and b[j] != 60:
        j += 1
    return j + 1 - i if j < n and b[j] == 62 and j - start <= 500 + (b[j - 1] == 47) else 0


@numba.njit(cache=True, nogil=True)
def tag_bytes(
    x: NDArray[np.uint8], lines: NDArray[np.int64], special: NDArray[np.bool_], share: float, names: NDArray[np.uint32], kinds: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Tags, comment marks and entities in special lines and those that seem to hold many: (bytes, int64 [lines]; whether they are such a share, bool [lines]).

    White space around a line does not count, and a line of less than four bytes has no share.
    """
    out, enough = np.zeros(len(lines), np.int64), np.zeros(len(lines), np.bool_)
    for r in range(len(lines)):
        i, stop = lines[r, 0], lines[r, 1]
        if not special[r] and lines[r, 10] + lines[r, 11] < 0.2 * max(1, stop - i - lines[r, 2]):
            continue
        while stop > i and _is_space(x[stop - 1]):
            stop -= 1
        while i < stop and _is_space(x[i]):
            i += 1
        body = stop - i
        while i < stop:
            size = _tag(x, i, stop, names, kinds) if x[i] == 60 or x[i] == 38 or x[i] == 45 else 0
            out[r] += size
            i += max(1, size)
        enough[r] = body >= 4 and out[r] >= share * body
    return out, enough


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
