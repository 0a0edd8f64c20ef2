"""Kernels that recognise text read in the wrong encoding: by undoing the error and seeing UTF-8, or another script, come out.

UTF-8 read as a one-byte encoding leaves characters whose bytes in that encoding are UTF-8 sequences; one read as a two-byte encoding likewise, after
encoding it
again. Legacy text read as Latin-1 leaves long runs of accented letters, which no language has; a mix-up of Cyrillic encodings leaves letters in frequencies
that no
language has. Every test works on windows of the non-ASCII characters, so that a damaged part of a sound text is found.
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
def one_byte_classes() -> NDArray[np.uint8]:
    """uint8 [encodings, 65536]: the role in UTF-8 of the byte that each character is: 1 continues, 2..4 leads a sequence so long, 9 unknown (U+FFFD)."""
    out = np.zeros((len(ONE_BYTE), 1 << 16), np.uint8)
    for k, name in enumerate(ONE_BYTE):
        for byte in range(0x80, 0xF5):
            role = 1 if byte < 0xC0 else 0 if byte < 0xC2 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            try:
                text = bytes([byte]).decode(name)
            except UnicodeDecodeError:
                text = chr(byte)  # programs that do not stop there keep the control character
            if ord(text) >= 0x80:
                out[k, ord(text)] = role
        out[k, 0xFFFD] = 9
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
def sequences(codes: NDArray[np.uint32], classes: NDArray[np.uint8], flags: NDArray[np.uint8]) -> int:
    """Mark characters that belong to a UTF-8 sequence once undone; returns how many. Unknown characters continue anything."""
    n = len(codes)
    total = 0
    i = 0
    while i < n:
        flags[i] = 0
        c = codes[i]
        role = classes[c] if c < 65536 else np.uint8(0)
        if role < 2 or role == 9:
            i += 1
            continue
        size = np.int64(role)
        k, certain = 1, 0
        while k < size and i + k < n:
            d = codes[i + k]
            r = classes[d] if d < 65536 else np.uint8(0)
            if r == 1:
                certain += 1
            elif r != 9:
                break
            k += 1
        if k == size and certain:
            for j in range(size):
                flags[i + j] = 1
            total += size
            i += size
        else:
            i += 1
    return total


@numba.njit(cache=True, nogil=True)
def dense(places: NDArray[np.int64], flags: NDArray[np.uint8], window: int, least: int, out: NDArray[np.bool_]) -> int:
    """Of the characters at `places`, those in a window of so many of them with at least so many flagged; returns how many flagged ones."""
    n = len(places)
    width = min(window, n)
    count = 0
    for i in range(n):
        count += flags[places[i]]
        if i >= width:
            count -= flags[places[i - width]]
        if i >= width - 1 and count * window >= least * width:
            for j in range(i - width + 1, i + 1):
                out[j] = True
    total = 0
    for i in range(n):
        total += out[i] and flags[places[i]] > 0
    return total


@numba.njit(cache=True, nogil=True)
def utf8_share(x: NDArray[np.uint8]) -> tuple[int, int]:
    """(bytes of non-ASCII UTF-8 sequences, bytes of 0x80 and above) of bytes that may be anything."""
    high, good = 0, 0
    i, n = 0, len(x)
    while i < n:
        c = x[i]
        if c < 0x80:
            i += 1
            continue
        high += 1
        size = 2 if c >= 0xC2 and c < 0xE0 else 3 if c >= 0xE0 and c < 0xF0 else 4 if c >= 0xF0 and c < 0xF5 else 0
        k = 1
        while k < size and i + k < n and (x[i + k] & 0xC0) == 0x80:
            k += 1
        if size and k == size:
            high += size - 1
            good += size
            i += size
        else:
            i += 1
    return good, high


@numba.njit(cache=True, nogil=True)
def latin_runs(codes: NDArray[np.uint32], flags: NDArray[np.uint8]) -> int:
    """Mark characters of U+0080..U+00FF (and of cp1252) that stand in runs of at least three; returns how many."""
    n = len(codes)
    total, start = 0, -1
    for i in range(n + 1):
        c = codes[i] if i < n else np.uint32(0)
        if i < n:
            flags[i] = 0
        if (c >= 0x80 and c < 0x100) or c == 0xFFFD:
            if start < 0:
                start = i
        elif start >= 0:
            if i - start >= 3:
                for j in range(start, i):
                    flags[j] = 1
                total += i - start
            start = -1
    return total


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
