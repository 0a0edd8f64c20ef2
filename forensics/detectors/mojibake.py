"""Text that was decoded with the wrong character encoding, once or twice, or lost characters on the way.

Seen are: UTF-8 read as a one-byte encoding (what `ftfy` sees) or as GBK, Shift-JIS, CP949, Big5 (what it does not), legacy CJK and Cyrillic text read as
Latin-1, mix-ups
of Cyrillic encodings, Shift-JIS read as cp1252, U+FFFD, and `?` in place of letters. Each test marks damaged characters; the one that explains most names
the chain.
Charts of character sets and manuals of encodings hold odd characters one by one, not in windows full of them: that is the hard negative this rests on. Short
texts, which have no
windows, go by `ftfy` itself.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forensics.detectors import pairs
from forensics.detectors.base import DETECTORS, SPANS_KEPT, Detector, Evidence, Found, Measure, Text
from forensics.stores.batch import DocumentBatch

MEASURES = (
    Measure("damaged", "character", "characters that a wrong decoding made"),
    Measure("share", "1", "damaged characters / characters"),
    Measure("lost", "character", "U+FFFD and C1 control characters"),
)
FEW = 20  # non-ASCII characters below which there are no windows, and ftfy decides
LEAST, LEAST_OWN = 14, 19  # of a window of 20, see misread.OWN_SCRIPT
NEAR = 120  # characters between damaged ones of one span
CHART = 40  # non-ASCII characters that stand in the order of their codes
PLAUSIBLE = -3.6  # mean log frequency of letters; Russian and Ukrainian prose have about -3.05, other languages' letters less
HALF_KANA = (0xFF61, 0xFFA0)
AROUND = 8  # characters read on both sides of a pair that is evidence
NARROW = re.compile("[\x80-\u2e7f]")
QUESTION = re.compile(r"(?<![\w/.=?&-])[^\W\d_]+\?[^\W\d_A-Z]+(?![\w/=&.(])")
QUESTIONS = re.compile(r"(?:(?<!\S)\?{2,}[.,;:!]?\s){4,}")


@dataclass(frozen=True)
class Damage:
    """Damaged characters of a text: their places, and the probable chain in words."""

    places: NDArray[np.int64]
    chain: str

    def __len__(self) -> int:
        return len(self.places)


NOTHING = Damage(np.zeros(0, np.int64), "")


def _one_byte(codes: NDArray[np.uint32], high: NDArray[np.int64]) -> Damage:
    from forensics.detectors.misread import ONE_BYTE, OWN_SCRIPT, WINDOW, dense, sequences, totals, utf8_roles

    marks = sequences(codes, high, utf8_roles())
    count = totals(marks)
    best = NOTHING
    out = np.zeros(len(high), np.bool_)
    for k, name in enumerate(ONE_BYTE):
        if count[k] > len(best) and dense(marks, k, WINDOW, LEAST_OWN if name in OWN_SCRIPT else LEAST, out) > len(best):
            best = Damage(high[out], f"UTF-8 read as {name}")
    return best


def _two_byte(string: str, codes: NDArray[np.uint32]) -> Damage:
    from forensics.detectors.misread import TWO_BYTE, encoded_again, utf8_lines

    places = np.flatnonzero(codes >= 0x2E80)
    if len(places) < FEW // 2:
        return NOTHING
    letter = ((codes | 32) >= 97) & ((codes | 32) <= 122)
    inside = letter[places - 1] | letter[np.minimum(places + 1, len(codes) - 1)]
    line = np.cumsum(codes == 10)[places]
    row = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.diff(line) > 0)])
    first = np.flatnonzero(np.diff(row, prepend=-1))
    size, latin = np.bincount(row), np.bincount(row[inside], minlength=row[-1] + 1)
    # a line of a few Han characters may undo by chance; one that has them inside of Latin words may not
    chosen = (size >= 8) | (2 * latin >= size)
    kept = "\n".join(_wide_of(string, int(places[a])) for a in first[chosen].tolist())
    numbers = np.flatnonzero(chosen)
    best = NOTHING
    for name in TWO_BYTE if kept else ():
        good, high = utf8_lines(encoded_again(kept, name), len(numbers)).T
        undone = (high > 0) & (good >= np.where(high < 16, 0.7, 0.8) * high)
        if int(size[numbers[undone]].sum()) > len(best):
            best = Damage(places[np.isin(row, numbers[undone])], f"UTF-8 read as {name}")
    return best


def _wide_of(string: str, place: int) -> str:
    """The line around a place; characters between ASCII and the Han blocks as `?`."""
    start, stop = string.rfind("\n", 0, place) + 1, string.find("\n", place)
    return NARROW.sub("?", string[start : stop if stop >= 0 else len(string)])


def _latin(codes: NDArray[np.uint32], high: NDArray[np.int64]) -> Damage:
    from forensics.detectors.misread import WINDOW, dense, latin_runs

    marks = latin_runs(codes, high)
    out = np.zeros(len(high), np.bool_)
    if not marks.any() or not dense(marks, 0, WINDOW, LEAST, out):
        return NOTHING
    return Damage(_uncharted(codes, high[out]), "a legacy encoding (GBK, Big5, EUC, Windows-1251 ...) read as Latin-1")


def _cyrillic(codes: NDArray[np.uint32]) -> Damage:
    from forensics.detectors.misread import CYRILLIC, cyrillic_gain, cyrillic_scores

    letter = (codes >= 0x400) & (codes < 0x500)
    inside = letter.copy()
    inside[1:] &= letter[:-1]
    inside[:-1] &= letter[1:]
    places = np.flatnonzero(inside)
    if len(places) < 30:
        return NOTHING
    out = np.zeros(len(places), np.bool_)
    count, pair = cyrillic_gain(codes, places, cyrillic_scores(), 30, 0.7, PLAUSIBLE, out)
    return Damage(places[out], f"{CYRILLIC[pair][0]} read as {CYRILLIC[pair][1]}") if count else NOTHING


def _uncharted(codes: NDArray[np.uint32], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places without those where a chart lists characters in the order of their codes, at least four in a row."""
    if len(places) < 4:
        return places
    step = np.diff(codes[places].astype(np.int64)) == 1
    three = step[:-2] & step[1:-1] & step[2:]
    inside = np.zeros(len(places), np.bool_)
    for k in range(4):
        inside[k : len(places) - 3 + k] |= three
    return places[~inside]


def _lost(codes: NDArray[np.uint32]) -> Damage:
    places = _uncharted(codes, np.flatnonzero((codes == 0xFFFD) | ((codes >= 0x80) & (codes < 0xA0) & (codes != 0x85))))
    return Damage(places, "characters lost (U+FFFD) or control characters left by a wrong decoding")


def _half_kana(codes: NDArray[np.uint32]) -> Damage:
    """EUC read as Shift-JIS: half-width katakana in runs, mixed with rare characters."""
    kana = (codes >= HALF_KANA[0]) & (codes < HALF_KANA[1])
    wide = np.count_nonzero((codes >= 0x3040) & (codes < 0x3100))
    count = int(np.count_nonzero(kana))
    return (
        Damage(np.flatnonzero(kana), "EUC-JP read as Shift-JIS")
        if count >= FEW and count > 4 * wide and np.count_nonzero(codes == 0xFFFD) * 20 > count
        else NOTHING
    )


@functools.cache
def badness() -> re.Pattern[str]:
    """Ftfy's pattern of unlikely character pairs."""
    from ftfy.badness import BADNESS_RE

    return BADNESS_RE  # type: ignore[no-any-return]


def _ftfy(string: str, codes: NDArray[np.uint32], high: NDArray[np.int64]) -> Damage:
    """What ftfy's pattern finds, looked for around characters whose pair with a neighbour is evidence."""
    from forensics.detectors.misread import pair_places

    hits = high.copy()
    hits = hits[: pair_places(codes, hits, pairs.class_of(), pairs.pair_table(), pairs.singles())]
    if not len(hits):
        return NOTHING
    cuts = np.flatnonzero(np.diff(hits) > 2 * AROUND) + 1
    starts, stops = hits[np.append(0, cuts)] - AROUND, hits[np.append(cuts - 1, len(hits) - 1)] + AROUND + 1
    found: list[int] = []
    for start, stop in zip(np.maximum(starts, 0).tolist(), stops.tolist()):
        for m in badness().finditer(string, start, stop):
            found += [k for k in range(m.start(), m.end()) if string[k] >= "\x80"]
    return Damage(np.array(found, np.int64), "as ftfy sees it")


def _questions(string: str, codes: NDArray[np.uint32]) -> Damage:
    asked = np.flatnonzero(codes == 63)
    if len(asked) < 4:
        return NOTHING
    letter = ((codes | 32) >= 97) & ((codes | 32) <= 122) | (codes >= 0x80)
    single, runs = [], []
    if (letter[asked - 1] & letter[np.minimum(asked + 1, len(codes) - 1)]).any():
        single = [m.start() + m[0].index("?") for m in QUESTION.finditer(string)]
    if np.count_nonzero(np.diff(asked) == 1) >= 4:
        runs = [k for m in QUESTIONS.finditer(string) for k in range(m.start(), m.end()) if string[k] == "?"]
    words = max(1, string.count(" "))
    if len(single) < 0.01 * words or string.count(";") * 50 > len(codes):
        single = []
    return Damage(np.array(sorted(set(single + runs)), np.int64), "letters replaced by question marks")


def _short(string: str, codes: NDArray[np.uint32]) -> Damage:
    """Texts with few non-ASCII characters: ftfy's verdict, or its repair where that changes something."""
    from ftfy import fix_encoding

    seen = _ftfy(string, codes, np.flatnonzero(codes >= 0x80))
    if len(seen):
        return seen
    return Damage(np.flatnonzero(codes >= 0x80), "as ftfy repairs it") if fix_encoding(string) != string else NOTHING


def examine(string: str) -> Damage:
    """The damaged characters of a text by the test that finds most of them."""
    from forensics.detectors.misread import code_points

    codes = code_points(string)
    high = np.flatnonzero(codes >= 0x80)
    found = [_lost(codes), _questions(string, codes)]
    if len(high) and len(high) < FEW:
        found.append(_short(string, codes))
    elif len(high):
        found += [_one_byte(codes, high), _two_byte(string, codes), _latin(codes, high), _cyrillic(codes), _half_kana(codes)]
        if 2 * max(map(len, found)) < len(high):  # nothing says yet what happened to most of them
            found.append(_ftfy(string, codes, high))
    best = max(found, key=len)
    charted = len(high) - len(_uncharted(codes, high))
    if charted >= CHART and charted * 3 >= len(best):
        return NOTHING  # a chart of a character set, or the code that holds one
    named = max(found[2:] or found, key=len)
    return Damage(best.places, named.chain) if named is not best and len(named) * 2 >= len(best) else best


def repair(string: str) -> tuple[str, str] | None:
    """The text with the error undone and the chain, where it can be undone without loss; else None."""
    damage = examine(string)
    m = re.fullmatch(r"(.+) read as (\S+)", damage.chain)
    if not m:
        from ftfy import fix_encoding

        fixed = fix_encoding(string)
        return (fixed, "ftfy's repair") if fixed != string and len(damage) else None
    written = {"UTF-8": "utf-8"}.get(m[1], m[1].split(" ")[0].lower())
    try:
        return string.encode(m[2]).decode(written), damage.chain
    except (UnicodeError, LookupError):
        return None


def _sample(string: str, damage: Damage) -> str:
    """A damaged stretch and what it was, where that can be undone."""
    start = int(damage.places[0])
    m = re.match(r"[^\s]{1,40}", string[start:])
    piece = m[0] if m else ""
    undone = None
    if len(piece) > 3 and (chain := re.fullmatch(r"(.+) read as (\S+)", damage.chain)):
        try:
            undone = piece.encode(chain[2], "ignore").decode(chain[1].split(" ")[0].lower(), "ignore")
        except LookupError:
            undone = None
    return f"{damage.chain}: {piece!r}" + (f" was {undone!r}" if undone else "")


def _spans(text: Text, damage: Damage) -> list[tuple[int, int]]:
    """Ranges of bytes around damaged characters, near ones joined, the longest ones."""
    at = text.places
    cut = np.flatnonzero(np.diff(damage.places) > NEAR) + 1
    groups = np.split(damage.places, cut)
    groups.sort(key=lambda g: -len(g))
    return sorted((int(at[g[0]]), int(at[g[-1] + 1])) for g in groups[:SPANS_KEPT])


def _run(docs: DocumentBatch, chosen: NDArray[np.bool_], texts: Sequence[Text | None]) -> Found:
    found = Found({m.name: np.zeros(len(docs), np.float32) for m in MEASURES})
    for i in np.flatnonzero(chosen).tolist():
        text = texts[i]
        if text is None or not len(text):
            continue
        string = text.string
        damage = examine(string)
        if not len(damage):
            continue
        found.columns["damaged"][i] = len(damage)
        found.columns["share"][i] = len(damage) / len(string)
        found.columns["lost"][i] = string.count("\ufffd")
        found.evidence[i] = Evidence(docs.place(i, _spans(text, damage)), _sample(string, damage))
    return found


DETECTORS.add("mojibake", Detector("mojibake", MEASURES, 2, "text", _run, None, "mojibake"), __name__)
