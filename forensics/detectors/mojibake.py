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
ASIDE = 200  # characters beside such ones that belong to the chart
LETTERS = 30  # Cyrillic letters inside of words, of a window
PLAUSIBLE = -3.6  # mean log frequency of letters; Russian and Ukrainian prose have about -3.05, other languages' letters less
AROUND = 4  # characters read on both sides of a pair that is evidence
WIDEST = 8  # characters, and one, of what ftfy's pattern matches
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
    from forensics.detectors.misread import ONE_BYTE, OWN_SCRIPT, WINDOW, dense, sequences, utf8_roles

    marks, count = sequences(codes, high, utf8_roles())
    best, most, width = NOTHING, 0, min(WINDOW, len(high))
    out = np.zeros(len(high), np.bool_)
    for k, (name, many) in enumerate(zip(ONE_BYTE, count.tolist())):
        least = LEAST_OWN if name in OWN_SCRIPT else LEAST
        if many > most and many * WINDOW >= least * width and (found := dense(marks, k, WINDOW, least, out)) > most:
            if np.count_nonzero(codes[high[out]] - np.uint32(0x2500) < 0xA0) * 10 > 9 * found:
                continue  # boxes and blocks of a drawing
            best, most = Damage(high[out], f"UTF-8 read as {name}"), found
    return best


def _two_byte(codes: NDArray[np.uint32], count: NDArray[np.int64]) -> Damage:
    from forensics.detectors.misread import TWO_BYTE, WIDE, two_byte_codes, undone_lines

    if count[WIDE] < FEW // 2:
        return NOTHING
    places, best = undone_lines(codes, two_byte_codes())
    return Damage(places, f"UTF-8 read as {TWO_BYTE[best]}") if len(places) else NOTHING


def _latin(codes: NDArray[np.uint32], high: NDArray[np.int64], count: NDArray[np.int64]) -> Damage:
    from forensics.detectors.misread import LOW, WINDOW, dense, latin_runs, uncharted

    if count[LOW] < LEAST:
        return NOTHING
    out = np.zeros(len(high), np.bool_)
    if not dense(latin_runs(codes, high), 0, WINDOW, LEAST, out):
        return NOTHING
    return Damage(uncharted(codes, high[out]), "a legacy encoding (GBK, Big5, EUC, Windows-1251 ...) read as Latin-1")


def _cyrillic(codes: NDArray[np.uint32], count: NDArray[np.int64]) -> Damage:
    from forensics.detectors.misread import CYRILLIC, CYRILLIC_LETTERS, cyrillic_gain, cyrillic_scores

    if count[CYRILLIC_LETTERS] < LETTERS:
        return NOTHING
    letter = (codes >= 0x400) & (codes < 0x500)
    inside = letter.copy()
    inside[1:] &= letter[:-1]
    inside[:-1] &= letter[1:]
    places = np.flatnonzero(inside)
    if len(places) < LETTERS:
        return NOTHING
    out = np.zeros(len(places), np.bool_)
    total, pair = cyrillic_gain(codes, places, cyrillic_scores(), LETTERS, 0.7, PLAUSIBLE, out)
    return Damage(places[out], f"{CYRILLIC[pair][0]} read as {CYRILLIC[pair][1]}") if total else NOTHING


def _lost(codes: NDArray[np.uint32], high: NDArray[np.int64], count: NDArray[np.int64]) -> Damage:
    from forensics.detectors.misread import LOST, uncharted

    if not count[LOST]:
        return NOTHING
    code = codes[high]
    places = uncharted(codes, high[(code == 0xFFFD) | (code < 0xA0) & (code != 0x85)])
    return Damage(places, "characters lost (U+FFFD) or control characters left by a wrong decoding")


def _half_kana(codes: NDArray[np.uint32], count: NDArray[np.int64]) -> Damage:
    """EUC read as Shift-JIS: half-width katakana in runs, mixed with rare characters."""
    from forensics.detectors.misread import HALF_KANA, KANA

    if count[HALF_KANA] < FEW or count[HALF_KANA] <= 4 * count[KANA] or np.count_nonzero(codes == 0xFFFD) * 20 <= count[HALF_KANA]:
        return NOTHING
    return Damage(np.flatnonzero((codes >= 0xFF61) & (codes < 0xFFA0)), "EUC-JP read as Shift-JIS")


@functools.cache
def badness() -> re.Pattern[str]:
    """Ftfy's pattern of unlikely character pairs."""
    from ftfy.badness import BADNESS_RE

    return BADNESS_RE  # type: ignore[no-any-return]


def _ftfy(string: str, codes: NDArray[np.uint32], high: NDArray[np.int64]) -> Damage:
    """What ftfy's pattern finds, looked for around characters whose pair with a neighbour is evidence."""
    from forensics.detectors.misread import pair_places

    hits = high.copy()
    hits = hits[: pair_places(codes, hits, pairs.class_of(), pairs.ftfy_pairs(), pairs.ftfy_singles())]
    if not len(hits):
        return NOTHING
    cuts = np.flatnonzero(np.diff(hits) > 2 * AROUND) + 1
    starts, stops = hits[np.append(0, cuts)] - AROUND, hits[np.append(cuts - 1, len(hits) - 1)] + AROUND + 1
    found: list[int] = []
    search = badness().finditer
    for start, stop in zip(np.maximum(starts, 0).tolist(), stops.tolist()):
        for m in search(string, start, stop):
            found += [k for k in range(m.start(), m.end()) if string[k] >= "\x80"]
    return Damage(np.array(found, np.int64), "as ftfy sees it")


def _questions(string: str, count: NDArray[np.int64]) -> Damage:
    from forensics.detectors.misread import ASKED, ASKED_INSIDE, ASKED_TWICE

    if count[ASKED] < 4 or (not count[ASKED_INSIDE] and count[ASKED_TWICE] < 4):
        return NOTHING
    single, runs = [], []
    if count[ASKED_INSIDE]:
        single = [m.start() + m[0].index("?") for m in QUESTION.finditer(string)]
    if count[ASKED_TWICE] >= 4:
        runs = [k for m in QUESTIONS.finditer(string) for k in range(m.start(), m.end()) if string[k] == "?"]
    words = max(1, string.count(" "))
    if len(single) < 0.01 * words or string.count(";") * 50 > len(string):
        single = []
    return Damage(np.array(sorted(set(single + runs)), np.int64), "letters replaced by question marks")


def _short(string: str, codes: NDArray[np.uint32], high: NDArray[np.int64]) -> Damage:
    """Texts with few non-ASCII characters: ftfy's verdict, or its repair where that changes something."""
    from ftfy import fix_encoding

    seen = _ftfy(string, codes, high)
    if len(seen):
        return seen
    bad = any(badness().search(string, max(0, k - WIDEST), k + WIDEST + 1) for k in high.tolist())  # without, ftfy does nothing
    return Damage(high, "as ftfy repairs it") if bad and fix_encoding(string) != string else NOTHING


def examine(string: str, codes: NDArray[np.uint32] | None = None) -> Damage:
    """The damaged characters of a text by the test that finds most of them; `codes` are its characters, where they are at hand."""
    from forensics.detectors.misread import code_points, survey, uncharted

    codes = code_points(string) if codes is None else codes
    high, count = survey(codes)
    found = [_lost(codes, high, count), _questions(string, count)]
    if len(high) and len(high) < FEW:
        found.append(_short(string, codes, high))
    elif len(high):
        found += [_one_byte(codes, high), _two_byte(codes, count), _latin(codes, high, count), _cyrillic(codes, count), _half_kana(codes, count)]
        if 2 * max(map(len, found)) < len(high):  # nothing says yet what happened to most of them
            found.append(_ftfy(string, codes, high))
    best = max(found, key=len)
    if not len(best):
        return NOTHING
    places = best.places
    charted = np.setdiff1d(high, uncharted(codes, high), assume_unique=True)
    if len(charted) >= CHART and len(charted) * 3 >= len(best):  # a chart of a character set, or the code that holds one: what stands apart from it counts
        beside = np.searchsorted(charted, places)
        near = np.minimum(np.abs(charted[beside - 1] - places), np.abs(charted[np.minimum(beside, len(charted) - 1)] - places))
        places = places[near > ASIDE]
        if len(places) < FEW:
            return NOTHING
    named = max(found[2:] or found, key=len)
    return Damage(places, named.chain if named is not best and len(named) * 2 >= len(best) else best.chain)


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
    p, at = damage.places, text.places
    cuts = (p[1:] - p[:-1] > NEAR).nonzero()[0].tolist()
    spans = sorted(zip([0, *(c + 1 for c in cuts)], [*cuts, len(p) - 1]), key=lambda s: s[0] - s[1])[:SPANS_KEPT]
    return [(int(at[p[first]]), int(at[p[last] + 1])) for first, last in sorted(spans)]


def _run(docs: DocumentBatch, chosen: NDArray[np.bool_], texts: Sequence[Text | None]) -> Found:
    found = Found({m.name: np.zeros(len(docs), np.float32) for m in MEASURES})
    for i in np.flatnonzero(chosen).tolist():
        text = texts[i]
        if text is None or not len(text):
            continue
        damage = examine(text.string, text.codes)
        if not len(damage):
            continue
        found.columns["damaged"][i] = len(damage)
        found.columns["share"][i] = len(damage) / len(text.codes)
        found.columns["lost"][i] = np.count_nonzero(text.codes == 0xFFFD)
        found.evidence[i] = Evidence(text.place(_spans(text, damage)), _sample(text.string, damage))
    return found


DETECTORS.add("mojibake", Detector("mojibake", MEASURES, 3, "text", _run, None, "mojibake"), __name__)
