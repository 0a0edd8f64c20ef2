"""Kernels that recognise text read in the wrong encoding: by undoing the error and seeing UTF-8, or another script, come out.

UTF-8 read as a one-byte encoding leaves characters whose bytes in that encoding are UTF-8 sequences; one read as a two-byte encoding likewise, after
encoding it again. Legacy text read as Latin-1 leaves long runs of accented letters, which no language has; a mix-up of Cyrillic encodings leaves letters in
frequencies that no language has. Every test works on windows of the non-ASCII characters, so that a damaged part of a sound text is found.
"""

# mypy: disable-error-code="assignment"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

import functools

import numba
import numpy as np
from numpy.typing import NDArray

WINDOW = 20
# what UTF-8 is read as, commonest first: of two that explain a text equally well the first is named
ONE_BYTE = (
    "cp1252", "latin-1", "cp1251", "cp1250", "mac_roman", "cp437", "cp850", "cp1253", "cp1254", "cp1257", "koi8-r", "cp866", "iso8859-2",
    "iso8859-15", "cp1256", "cp1255",
    "cp874", "cp1258", "mac_cyrillic", "iso8859-5", "cp852", "cp775",
)  # fmt: skip
TWO_BYTE = ("gbk", "shift_jis", "cp949", "big5")
OWN_SCRIPT = frozenset(
    ("cp1251", "cp1253", "koi8-r", "cp866", "cp1256", "cp1255", "cp874", "mac_cyrillic", "iso8859-5")
)  # ordinary words of their languages undo now and then
ODD = 8  # of so many letters inside of words one at least is not of а..я
ANY = 0xFFFFFFFF  # unknown: may continue a sequence under every encoding
CYRILLIC = (
    ("koi8-r", "cp1251"),
    ("cp1251", "koi8-r"),
    ("cp866", "cp1251"),
    ("cp1251", "cp866"),
    ("iso8859-5", "cp1251"),
    ("cp1251", "iso8859-5"),
    ("koi8-r", "cp866"),
    ("cp866", "koi8-r"),
)
# frequency of letters per thousand in Russian and Ukrainian prose together (rounded; counted over the manual pages and quotations of the test texts)
LETTERS = dict(
    zip(
        "оаеинтсрвлкмдпуяыьгзбчйхжшюцщэфіїєґёъ",
        (105, 82, 80, 75, 65, 61, 53, 47, 45, 43, 35, 32, 30, 28, 27, 20, 17, 18, 17, 16, 16, 14, 12, 10, 9, 7, 6, 5, 4, 3, 3, 12, 3, 3, 1, 1, 1),
        strict=True,
    )
)


@functools.cache
def utf8_roles() -> NDArray[np.uint32]:
    """uint32 [65536, 4], a bit per encoding of `ONE_BYTE`: the byte that a character is there leads a UTF-8 sequence of 2, 3, 4 bytes, or continues one.

    U+FFFD may be any byte: its last word is `ANY`.
    """
    out = np.zeros((1 << 16, 4), np.uint32)
    for k, name in enumerate(ONE_BYTE):
        for byte in range(0x80, 0xF5):
            if byte in (0xC0, 0xC1):
                continue
            role = 3 if byte < 0xC0 else 0 if byte < 0xE0 else 1 if byte < 0xF0 else 2
            try:
                text = bytes([byte]).decode(name)
            except UnicodeDecodeError:
                text = chr(byte)  # programs that do not stop there keep the control character
            if ord(text) >= 0x80:
                out[ord(text), :] &= ~np.uint32(1 << k)
                out[ord(text), role] |= np.uint32(1 << k)
    out[0xFFFD] = 0, 0, 0, ANY
    return out


@functools.cache
def cyrillic_scores() -> NDArray[np.float32]:
    """float32 [pairs + 1, 256]: log frequency of U+0400..U+04FF as letters (row 0), and of what they were if text in encoding a was read as b."""
    floor = np.log(0.3 / 1000)
    out = np.full((len(CYRILLIC) + 1, 256), floor, np.float32)

    def score(letter: str) -> float:
        small = letter.lower()
        return float(np.log(LETTERS.get(small, 0.3) / 1000))

    for code in range(0x400, 0x500):
        out[0, code - 0x400] = score(chr(code))
    for k, (a, b) in enumerate(CYRILLIC, 1):
        for byte in range(0x80, 0x100):
            try:
                seen, meant = bytes([byte]).decode(b), bytes([byte]).decode(a)
            except UnicodeDecodeError:
                continue
            if 0x400 <= ord(seen) < 0x500:
                out[k, ord(seen) - 0x400] = score(meant)
    return out


@numba.njit(cache=True, nogil=True)
def sequences(codes: NDArray[np.uint32], high: NDArray[np.int64], roles: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Per non-ASCII character the encodings, as bits, under which it belongs to a UTF-8 sequence once undone: uint32 [high]; and how many do, int64 [32].

    Args:
        codes: uint32 [characters].
        high: int64, places of the non-ASCII ones.
        roles: `utf8_roles`. Unknown characters continue anything, but not alone.
    """
    n = len(high)
    out, count = np.zeros(n, np.uint32), np.zeros(32, np.int64)
    for i in range(n):
        c = min(codes[high[i]], np.uint32(0xFFFF))
        two, three, four = roles[c, 0], roles[c, 1], roles[c, 2]
        if not two | three | four:
            continue
        loose, certain = np.uint32(0xFFFFFFFF), np.uint32(0)
        for k in range(1, 4):
            if i + k >= n or high[i + k] != high[i] + k:
                break
            more = roles[min(codes[high[i + k]], np.uint32(0xFFFF)), 3]
            loose &= more
            if more != np.uint32(0xFFFFFFFF):
                certain |= more
            whole = (two if k == 1 else three if k == 2 else four) & loose & certain
            if whole:
                for j in range(i, i + k + 1):
                    out[j] |= whole
    for i in range(n):
        if out[i]:
            for k in range(32):
                count[k] += (out[i] >> np.uint32(k)) & np.uint32(1)
    return out, count


@numba.njit(cache=True, nogil=True)
def dense(marks: NDArray[np.uint32], bit: int, window: int, least: int, out: NDArray[np.bool_]) -> int:
    """Of the marked characters (those with that bit) the ones in a window of so many with at least so many marked, into `out`; returns how many."""
    n = len(marks)
    width = min(window, n)
    one = np.uint32(bit)
    count, reach, total = 0, 0, 0
    for i in range(n):
        out[i] = False
    for i in range(n):
        count += (marks[i] >> one) & np.uint32(1)
        if i >= width:
            count -= (marks[i - width] >> one) & np.uint32(1)
        if i >= width - 1 and count * window >= least * width:
            for j in range(max(reach, i - width + 1), i + 1):
                out[j] = (marks[j] >> one) & np.uint32(1)
                total += np.int64(out[j])
            reach = i + 1
    return total


@functools.cache
def two_byte_codes() -> NDArray[np.uint16]:
    """uint16 [65536, len(TWO_BYTE)]: the bytes that a character from U+2E80 on has in each encoding; `?` where it has none, and for what stands before."""
    out = np.full((1 << 16, len(TWO_BYTE)), ord("?"), np.uint16)
    wide = [c for c in range(0x2E80, 1 << 16) if not 0xD800 <= c < 0xE000]
    text = "\n".join(map(chr, wide))
    for k, name in enumerate(TWO_BYTE):
        out[wide, k] = [int.from_bytes(b, "big") for b in text.encode(name, "replace").split(b"\n")]
    return out


@numba.njit(inline="always")
def _undone(codes: NDArray[np.uint32], table: NDArray[np.uint16], name: int, raw: NDArray[np.uint8]) -> bool:
    """Whether most non-ASCII bytes that a line has in an encoding are UTF-8; `raw` has room for twice its characters and three bytes more.

    What the encoding cannot write did not come from it, and counts as a byte or two that are not.
    """
    n, foreign = 0, 0
    for i in range(len(codes)):
        c = codes[i]
        value = c if c < 0x80 else np.uint32(table[c, name]) if c < 0x10000 else np.uint32(63)
        foreign += value == 63 and c >= 0x80 and c != 0xFFFD
        if value >= 0x100:
            raw[n] = value >> np.uint32(8)
            n += 1
        raw[n] = value & np.uint32(0xFF)
        n += 1
    raw[n : n + 3] = 0
    good, high, i = 0, 2 * foreign, 0
    while i < n:
        c = raw[i]
        if c < 0x80:
            i += 1
            continue
        size = 2 if c >= 0xC2 and c < 0xE0 else 3 if c >= 0xE0 and c < 0xF0 else 4 if c >= 0xF0 and c < 0xF5 else 1
        k = 1
        while k < size and (raw[i + k] & 0xC0) == 0x80:
            k += 1
        whole = size > 1 and k == size
        step = size if whole else 1
        good += step * whole
        high += step
        i += step
    return high > 0 and good >= (0.7 if high < 16 else 0.8) * high


@numba.njit(cache=True, nogil=True)
def undone_lines(codes: NDArray[np.uint32], table: NDArray[np.uint16]) -> tuple[NDArray[np.int64], int]:
    """Places of wide characters in lines that an encoding of `TWO_BYTE` turns into UTF-8, and which encoding does so for most.

    A line of a few Han characters may undo by chance; one that has them inside of Latin words may not.
    """
    n, names = len(codes), table.shape[1]
    raw, lines = np.empty(2 * n + 3, np.uint8), np.zeros(n + 1, np.uint8)
    total = np.zeros(names, np.int64)
    start, line = 0, 0
    while start < n:
        stop, size, inside, turns, last = start, 0, 0, 0, np.uint32(0)
        while stop < n and codes[stop] != 10:
            if codes[stop] >= 0x2E80:
                size += 1
                turns += codes[stop] != last
                last = codes[stop]
                before, after = codes[stop - 1] | np.uint32(32), codes[min(stop + 1, n - 1)] | np.uint32(32)
                inside += (before >= 97 and before <= 122) or (after >= 97 and after <= 122)
            stop += 1
        if (size >= 8 and 3 * turns >= size) or (size and 2 * inside >= size):  # a ruler of one wide sign is no text
            for k in range(names):
                if _undone(codes[start:stop], table, k, raw):
                    total[k] += size
                    lines[line] |= np.uint8(1 << k)
        start, line = stop + 1, line + 1
    best = 0
    for k in range(names):
        best = k if total[k] > total[best] else best
    out, found, line = np.empty(total[best], np.int64), 0, 0
    for i in range(n if total[best] else 0):
        line += codes[i] == 10
        if codes[i] >= 0x2E80 and lines[line] >> best & 1:
            out[found] = i
            found += 1
    return out, best


# columns of `survey`
WIDE, LOW, CYRILLIC_LETTERS, KANA, HALF_KANA, LOST, ASKED, ASKED_TWICE, ASKED_INSIDE = range(9)


@numba.njit(cache=True, nogil=True)
def survey(codes: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of non-ASCII characters, and how many there are of the kinds that the tests ask for.

    The kinds, int64 [9]: from U+2E80 on; U+0080..U+00FF and U+FFFD; Cyrillic; kana; half-width katakana; U+FFFD and C1 control characters; `?`, those right
    behind another, and those between letters.
    """
    n, found = len(codes), 0
    high, count = np.empty(n, np.int64), np.zeros(9, np.int64)
    for i in range(n):
        c = codes[i]
        if c >= 0x80:
            high[found] = i
            found += 1
            count[WIDE] += c >= 0x2E80
            count[LOW] += c < 0x100 or c == 0xFFFD
            count[CYRILLIC_LETTERS] += c >= 0x400 and c < 0x500
            count[KANA] += c >= 0x3040 and c < 0x3100
            count[HALF_KANA] += c >= 0xFF61 and c < 0xFFA0
            count[LOST] += c == 0xFFFD or (c < 0xA0 and c != 0x85)
        elif c == 63:
            before, after = codes[i - 1], codes[min(i + 1, n - 1)]
            count[ASKED] += 1
            count[ASKED_TWICE] += i > 0 and before == 63
            count[ASKED_INSIDE] += (before >= 0x80 or (97 <= before | 32 <= 122)) and (after >= 0x80 or (97 <= after | 32 <= 122))
    return high[:found], count


@numba.njit(cache=True, nogil=True)
def uncharted(codes: NDArray[np.uint32], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places without those where a chart lists characters in the order of their codes, at least four in a row."""
    n, found, run = len(places), 0, 0
    out = np.empty(n, np.int64)
    for i in range(n):
        run = run + 1 if i and np.int64(codes[places[i]]) - np.int64(codes[places[i - 1]]) == 1 else 0
        if run < 3:
            out[found] = places[i]
            found += 1
        elif run == 3:
            found -= 3
    return out[:found]


@numba.njit(cache=True, nogil=True)
def latin_runs(codes: NDArray[np.uint32], high: NDArray[np.int64]) -> NDArray[np.uint32]:
    """uint32 [high], 1 for characters of U+0080..U+00FF that stand in runs of at least three.

    Runs of one sign, and of four and more in the order of their codes (lists of flags and letters), are none.
    """
    n = len(high)
    out = np.zeros(n, np.uint32)
    start = 0
    while start < n:
        stop, rising, turns = start, True, 0
        while stop < n and (codes[high[stop]] < 0x100 or codes[high[stop]] == 0xFFFD) and (stop == start or high[stop] == high[stop - 1] + 1):
            if stop > start:
                rising &= codes[high[stop]] > codes[high[stop - 1]]
                turns += codes[high[stop]] != codes[high[stop - 1]]
            stop += 1
        if stop - start >= 3 and 3 * turns >= stop - start and not (rising and stop - start >= 4):
            out[start:stop] = 1
        start = max(stop, start + 1)
    return out


@numba.njit(cache=True, nogil=True)
def pair_places(codes: NDArray[np.uint32], high: NDArray[np.int64], classes: NDArray[np.uint16], pairs: NDArray[np.uint8], single: NDArray[np.bool_]) -> int:
    """Places of `high` beside which the pair table has evidence are moved to its front; returns how many."""
    found = 0
    for i in range(len(high)):
        at = high[i]
        now = np.int64(classes[codes[at]]) if codes[at] < 65536 else 11
        before = np.int64(classes[codes[at - 1]]) if at and codes[at - 1] < 65536 else 4
        after = np.int64(classes[codes[at + 1]]) if at + 1 < len(codes) and codes[at + 1] < 65536 else 4
        if single[now] or pairs[before, now] or pairs[now, after]:
            high[found] = at
            found += 1
    return found


@numba.njit(cache=True, nogil=True)
def cyrillic_gain(
    codes: NDArray[np.uint32], places: NDArray[np.int64], scores: NDArray[np.float32], window: int, least: float, plausible: float, out: NDArray[np.bool_]
) -> tuple[int, int]:
    """Characters in windows that become ordinary letters when a mix-up of Cyrillic encodings is undone: (how many, by which pair).

    Every mix-up leaves letters that are no small ones of Russian inside of words, three in ten and more; languages that use the common ones in other
    frequencies, as Adyghe does, have none.
    """
    n = len(places)
    best, which = 0, -1
    chosen = np.zeros(n, np.bool_)
    for pair in range(1, len(scores)):
        for j in range(n):
            chosen[j] = False
        gain, after, odd = 0.0, 0.0, 0
        width = min(window, n)
        for i in range(n):
            c = codes[places[i]] - np.uint32(0x400)
            gain += scores[pair, c] - scores[0, c]
            after += scores[pair, c]
            odd += c < 0x30 or c > 0x4F
            if i >= width:
                d = codes[places[i - width]] - np.uint32(0x400)
                gain -= scores[pair, d] - scores[0, d]
                after -= scores[pair, d]
                odd -= d < 0x30 or d > 0x4F
            if i >= width - 1 and gain >= least * width and after >= plausible * width and odd * ODD >= width:
                for j in range(i - width + 1, i + 1):
                    chosen[j] = True
        total = 0
        for j in range(n):
            total += chosen[j]
        if total > best:
            best, which = total, pair - 1
            for j in range(n):
                out[j] = chosen[j]
    return best, which


def code_points(text: str) -> NDArray[np.uint32]:
    """uint32 [characters]."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
