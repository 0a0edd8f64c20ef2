"""Kernels that recognise text read in the wrong encoding: by undoing the error and seeing UTF-8, or another script, come out.

UTF-8 read as a one-byte encoding leaves characters whose bytes in that encoding are UTF-8 sequences; one read as a two-byte encoding likewise, after
encoding it again. Legacy text read as Latin-1 leaves long runs of accented letters, which no language has; a mix-up of Cyrillic encodings leaves letters in
frequencies that no language has. Every test works on windows of the non-ASCII characters, so that a damaged part of a sound text is found.
"""

# mypy: disable-error-code="assignment"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

import functools
from typing import Any

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
ANY = 0xFFFFFFFF  # unknown: may continue a sequence under every encoding
CYRILLIC = (
    ("koi8-r", "cp1251"),
    ("cp1251", "koi8-r"),
    ("cp866", "cp1251"),
    ("cp1251", "cp866"),
    ("iso8859-5", "cp1251"),
    ("cp1251", "iso8859-5"),
    ("mac_cyrillic", "cp1251"),
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
    """float32 [pairs + 1, 65536]: log frequency of each character as a letter (row 0), and of what it was if text in encoding a was read as b."""
    floor = np.log(0.3 / 1000)
    out = np.full((len(CYRILLIC) + 1, 1 << 16), floor, np.float32)

    def score(letter: str) -> float:
        small = letter.lower()
        return float(np.log(LETTERS.get(small, 0.3) / 1000))

    for code in range(0x400, 0x500):
        out[0, code] = score(chr(code))
    for k, (a, b) in enumerate(CYRILLIC, 1):
        for byte in range(0x80, 0x100):
            try:
                seen, meant = bytes([byte]).decode(b), bytes([byte]).decode(a)
            except UnicodeDecodeError:
                continue
            out[k, ord(seen)] = score(meant)
    return out


@numba.njit(cache=True, nogil=True)
def sequences(codes: NDArray[np.uint32], high: NDArray[np.int64], roles: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Per non-ASCII character the encodings, as bits, under which it belongs to a UTF-8 sequence once undone: uint32 [high].

    Args:
        codes: uint32 [characters].
        high: int64, places of the non-ASCII ones.
        roles: `utf8_roles`. Unknown characters continue anything, but not alone.
    """
    n = len(high)
    out = np.zeros(n, np.uint32)
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
    return out


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


@numba.njit(cache=True, nogil=True)
def totals(marks: NDArray[np.uint32]) -> NDArray[np.int64]:
    """int64 [32]: characters marked per bit."""
    out = np.zeros(32, np.int64)
    for i in range(len(marks)):
        m = marks[i]
        for k in range(32):
            out[k] += (m >> np.uint32(k)) & np.uint32(1)
    return out


@numba.njit(cache=True, nogil=True)
def utf8_lines(x: NDArray[np.uint8], lines: int) -> NDArray[np.int64]:
    """int64 [lines, 2]: per line bytes of non-ASCII UTF-8 sequences, and bytes of 0x80 and above, of bytes that may be anything."""
    out = np.zeros((lines, 2), np.int64)
    i, n, line = 0, len(x), 0
    while i < n:
        c = x[i]
        if c < 0x80:
            line += c == 10
            i += 1
            continue
        size = 2 if c >= 0xC2 and c < 0xE0 else 3 if c >= 0xE0 and c < 0xF0 else 4 if c >= 0xF0 and c < 0xF5 else 1
        k = 1
        while k < size and i + k < n and (x[i + k] & 0xC0) == 0x80:
            k += 1
        if size > 1 and k == size:
            out[line, 0] += size
            out[line, 1] += size
            i += size
        else:
            out[line, 1] += 1
            i += 1
    return out


@numba.njit(cache=True, nogil=True)
def latin_runs(codes: NDArray[np.uint32], high: NDArray[np.int64]) -> NDArray[np.uint32]:
    """uint32 [high], 1 for characters of U+0080..U+00FF that stand in runs of at least three."""
    n = len(high)
    out = np.zeros(n, np.uint32)
    run = 0
    for i in range(n):
        c = codes[high[i]]
        if c < 0x100 or c == 0xFFFD:
            run = run + 1 if run and high[i] == high[i - 1] + 1 else 1
        else:
            run = 0
        if run >= 3:
            out[i - 2 : i + 1] = 1
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
    """Characters in windows that become ordinary letters when a mix-up of Cyrillic encodings is undone: (how many, by which pair)."""
    n = len(places)
    best, which = 0, -1
    chosen = np.zeros(n, np.bool_)
    for pair in range(1, len(scores)):
        for j in range(n):
            chosen[j] = False
        gain, after = 0.0, 0.0
        width = min(window, n)
        for i in range(n):
            c = codes[places[i]]
            gain += scores[pair, c] - scores[0, c]
            after += scores[pair, c]
            if i >= width:
                d = codes[places[i - width]]
                gain -= scores[pair, d] - scores[0, d]
                after -= scores[pair, d]
            if i >= width - 1 and gain >= least * width and after >= plausible * width:
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


def encoded_again(text: str, encoding: str) -> NDArray[Any]:
    """The bytes a text has in an encoding; what it lacks becomes `?`."""
    return np.frombuffer(text.encode(encoding, "replace"), np.uint8)
