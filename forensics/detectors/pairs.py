"""Which two characters in a row speak of a wrong decoding: the table behind the mojibake screen, and the classes of characters it works on.

The pairs of ftfy's own characters were found by asking `ftfy.badness` (6.3.1) about each, in the contexts that its longer patterns need; the table is data
(`data/pairs.npz`), since asking takes longer than scanning a corpus, and a test compares it with the installed ftfy. What ftfy does not look at was added:
Han characters that neither
GB 2312, Big5 nor JIS has in its first level, syllables outside KS X 1001, half-width katakana in a row, and pairs of Cyrillic letters that Russian,
Ukrainian, Bulgarian, Serbian,
Macedonian and Belarusian texts do not have.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib import resources

import numpy as np
from numpy.typing import NDArray

# classes of characters: a few groups, then one class per character that ftfy or the Cyrillic table knows
OTHER_ASCII, LOWER, UPPER, QUESTION, SPACE = 0, 1, 2, 3, 4
HAN, RARE_HAN, KANA, HALF_KANA, HANGUL, RARE_HANGUL, OTHER = 5, 6, 7, 8, 9, 10, 11
FIRST = 16  # class of the first single character
CLASSES = 576
HIT = 1  # bit of the pair table: evidence
CONTEXTS = tuple((a, b) for a in ("", "a", "A", " ", "Г", "С", "Ø", "б") for b in ("", "a", " ", "Г", "С", "Ø²", "1", "°"))


def ftfy_characters() -> list[str]:
    """Characters that ftfy's categories and patterns name, in order of code."""
    import re

    from ftfy.badness import BADNESS_RE, MOJIBAKE_CATEGORIES

    found: set[str] = set()
    for category in MOJIBAKE_CATEGORIES.values():
        found |= {chr(c) for c in range(0x80, 0x10000) if re.match(f"[{category}]", chr(c))}
    found |= {c for c in BADNESS_RE.pattern if c >= "\x80"}
    return sorted(found)


def is_pair(first: str, second: str) -> bool:
    """Whether ftfy finds `first second` bad in some context that is not bad without the pair."""
    from ftfy.badness import is_bad

    if is_bad(first + second):
        return True
    plain = first < "\x80" or second < "\x80"  # an ASCII character proves nothing about what stands two places off
    return any(is_bad(a + first + second + b) and not is_bad(a + first) and not is_bad(second + b) for a, b in CONTEXTS if not plain or (a + b).isascii())


def cyrillic_never(texts: Iterable[str], least: float = 2e-6) -> list[str]:
    """Pairs of small Cyrillic letters that hardly occur inside of words of these texts."""
    import re
    from collections import Counter

    letters = [chr(c) for c in range(0x430, 0x460)]
    seen: Counter[str] = Counter()
    total = 0
    for text in texts:
        for word in re.findall("[а-џ]+", text.lower()):
            seen.update(a + b for a, b in zip(word, word[1:]))
            total += len(word) - 1
    return sorted(a + b for a in letters for b in letters if seen[a + b] <= least * total)


def build(texts: Iterable[str], names: list[str] | None = None) -> dict[str, NDArray[np.generic]]:
    """The content of the data file, from the installed ftfy and Cyrillic texts."""
    import ftfy

    characters = sorted(set(names or ftfy_characters()) | {chr(c) for c in range(0x400, 0x460)})
    bad = np.zeros((len(characters), len(characters)), np.bool_)
    ascii_bad = np.zeros((4, len(characters), 2), np.bool_)
    for i, a in enumerate(characters):
        for j, b in enumerate(characters):
            bad[i, j] = is_pair(a, b)
        for k, c in enumerate("aA? "):
            ascii_bad[k, i] = is_pair(c, a), is_pair(a, c)
    never = "".join(cyrillic_never(texts))
    return {
        "characters": np.array([ord(c) for c in characters], np.uint32),
        "bad": np.packbits(bad),
        "ascii_bad": np.packbits(ascii_bad),
        "cyrillic": np.array([ord(c) for c in never], np.uint16),
        "ftfy": np.array(ftfy.__version__),
    }


@functools.cache
def table() -> dict[str, NDArray[np.generic]]:
    """The shipped data."""
    with resources.files("forensics.detectors").joinpath("data", "pairs.npz").open("rb") as file, np.load(file, allow_pickle=False) as z:
        return {k: z[k] for k in z.files}


@functools.cache
def class_of() -> NDArray[np.uint16]:
    """uint16 [65536]: class of each character of the basic plane; those beyond it are `OTHER`."""
    out = np.full(1 << 16, OTHER, np.uint16)
    out[:128] = OTHER_ASCII
    out[ord("a") : ord("z") + 1] = LOWER
    out[ord("A") : ord("Z") + 1] = UPPER
    out[ord("?")] = QUESTION
    out[[9, 10, 13, 32]] = SPACE
    out[0x3040:0x3100] = KANA
    out[0xFF61:0xFFA0] = HALF_KANA
    out[0x3400:0xA000] = RARE_HAN
    out[0xF900:0xFB00] = RARE_HAN
    out[0xAC00:0xD7A4] = RARE_HANGUL
    for encoding, high, low, kind in (
        ("gb2312", range(0xB0, 0xD8), range(0xA1, 0xFF), HAN),
        ("big5", range(0xA4, 0xC7), range(0x40, 0xFF), HAN),
        ("euc_jp", range(0xB0, 0xD0), range(0xA1, 0xFF), HAN),
        ("euc_kr", range(0xB0, 0xC9), range(0xA1, 0xFF), HANGUL),
    ):
        for a in high:
            for b in low:
                try:
                    code = ord(bytes([a, b]).decode(encoding))
                except UnicodeDecodeError:
                    continue
                if out[code] in (RARE_HAN, RARE_HANGUL):
                    out[code] = kind
    for k, code in enumerate(table()["characters"].tolist()):
        out[code] = FIRST + k
    return out


@functools.cache
def ftfy_pairs() -> NDArray[np.uint8]:
    """uint8 [CLASSES, CLASSES]: `HIT` where ftfy finds the two classes in a row bad."""
    data = table()
    n = len(data["characters"])
    out = np.zeros((CLASSES, CLASSES), np.uint8)
    out[FIRST : FIRST + n, FIRST : FIRST + n] = np.unpackbits(np.asarray(data["bad"], np.uint8), count=n * n).reshape(n, n)
    sides = np.unpackbits(np.asarray(data["ascii_bad"], np.uint8), count=8 * n).reshape(4, n, 2)
    for k, kind in enumerate((LOWER, UPPER, QUESTION, SPACE)):
        out[kind, FIRST : FIRST + n] |= sides[k, :, 0]
        out[FIRST : FIRST + n, kind] |= sides[k, :, 1]
    return out


@functools.cache
def pair_table() -> NDArray[np.uint8]:
    """uint8 [CLASSES, CLASSES]: `HIT` where the two classes in a row are evidence."""
    data, out = table(), ftfy_pairs().copy()
    characters = data["characters"].tolist()
    place = {code: FIRST + k for k, code in enumerate(characters)}
    never = np.asarray(data["cyrillic"]).reshape(-1, 2).tolist()
    capital = {c: ord(chr(c).upper()) for c in range(0x430, 0x460)}
    for a, b in never:
        for x in (a, capital[a]):
            for y in (b, capital[b]):
                out[place[x], place[y]] = HIT
    small = [place[c] for c in range(0x430, 0x460)]
    large = [place[c] for c in range(0x400, 0x430)]
    out[np.ix_(small, large)] = HIT  # a capital inside of a word: Cyrillic has no camel case
    east = (HAN, KANA, HANGUL, HALF_KANA, RARE_HAN, RARE_HANGUL)
    for kind in (RARE_HAN, RARE_HANGUL):
        out[kind, list(east)] = HIT
        out[list(east), kind] = HIT
    for byte in range(0x80, 0xC0):  # UTF-8 Cyrillic read as MacRoman: dashes right before accented letters and signs
        mac = ord(bytes([byte]).decode("mac_roman"))
        for dash in (0x2013, 0x2014):
            if mac in place:
                out[place[dash], place[mac]] = HIT
    out[HALF_KANA, [HALF_KANA, HAN, RARE_HAN]] = HIT
    out[HAN, HANGUL] = out[HANGUL, HAN] = HIT
    return out


@functools.cache
def singles() -> NDArray[np.bool_]:
    """Bool [CLASSES]: classes that are evidence alone: C1 control characters and U+FFFD."""
    out = np.zeros(CLASSES, np.bool_)
    codes = table()["characters"]
    for k, code in enumerate(codes.tolist()):
        out[FIRST + k] = 0x80 <= code < 0xA0 or code == 0xFFFD
    return out


@functools.cache
def ftfy_singles() -> NDArray[np.bool_]:
    """Bool [CLASSES]: those of `singles` that ftfy finds bad alone: all but U+FFFD."""
    out = singles().copy()
    out[class_of()[0xFFFD]] = False
    return out


@functools.cache
def latin() -> NDArray[np.bool_]:
    """Bool [CLASSES]: single characters of U+00A1..U+00FF, four of which in a row are evidence."""
    out = np.zeros(CLASSES, np.bool_)
    for k, code in enumerate(table()["characters"].tolist()):
        out[FIRST + k] = 0xA1 <= code < 0x100
    return out
