"""The language of documents that mix scripts, and whether it is what the rest of the document is written in.

Measured are the letters of each script in the beginning, middle and end of a text; the screen is on ids, so that texts and tokens are judged alike. The
language is `py3langid`'s answer where that is installed (a model in the package, nothing is fetched). Reported, never garbage: an unexpected language is
judged against its source by whoever knows the source.
"""

# mypy: disable-error-code="assignment"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from forensics.detectors.base import DETECTORS, Detector, Evidence, Found, Measure, Text
from forensics.stores.batch import DocumentBatch

MEASURES = (Measure("mixed", "1", "share of letters that are not of the document's main script, where at least a tenth of its words are"),)
LOOKED_AT = 4000  # characters; bytes are counted twice
DENSE, LETTERS = ("HAN", "HANGUL"), 3  # ... kana with them: a translated page has about a third of its original's letters
MARGIN, NO_LANGUAGE = 5.0, "zxx"  # e to the fifth; the library's name for code and tables
SHOWN = 100  # characters from which the language is told: 0.16 ms; 82 % right on manual pages in 11 languages (91 % with 200)


@functools.cache
def _scripts() -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """Script of every character of the basic plane, by its Unicode name (0: no letter), and the scripts' names."""
    names = [""]
    out = np.zeros(1 << 16, np.uint8)
    known: dict[str, int] = {}
    for code in range(1 << 16):
        character = chr(code)
        if character.isalpha():
            name = unicodedata.name(character, "").split(" ")[0]
            name = "HAN" if name in ("CJK", "HIRAGANA", "KATAKANA") else name
            if name not in known:
                known[name] = min(len(names), 255)
                names.append(name)
            out[code] = known[name]
    return out, tuple(names)


@functools.cache
def _model() -> tuple[Any, ...] | None:
    """The tables of `py3langid`'s model as arrays, its weights as the bits of half floats, with the names of its languages; None without the library."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        return None
    model = LanguageIdentifier.from_model_file(MODEL_FILE)
    moves = np.frombuffer(model.tk_nextmove, f"u{model.tk_nextmove.itemsize}").copy()  # memory of its own lies in large pages
    states = np.array([model.tk_row, model.tk_output], np.int32).T.copy()
    weights = np.array(model.nb_ptc, np.float16).view(np.int16)
    return moves, states, weights, model.nb_pc.astype(np.float32), list(model.nb_classes)


@numba.njit(cache=True, nogil=True)
def _features(x: NDArray[np.uint8], moves: NDArray[Any], states: NDArray[np.int32]) -> NDArray[np.int32]:
    """Ends of known strings, as they come."""
    found, n, state = np.empty(len(x), np.int32), 0, 0
    for i in range(len(x)):
        state = np.int64(moves[(np.int64(states[state, 0]) << 8) + x[i]])
        if states[state, 1] >= 0:
            found[n] = states[state, 1]
            n += 1
    return found[:n]


@numba.njit(cache=True, nogil=True)
def _scores(
    met: NDArray[np.int32],
    weights: NDArray[np.int16],
    prior: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Log-likelihood of every language from the features that were met, in order: each counts by the logarithm of its number."""
    n = len(met)
    mine = weights[met]  # all at once: they lie far apart in memory
    out, start = prior.copy(), 0
    if not n:
        out[:] = 0  # nothing is known: the first language, as the library answers
    bits = np.empty(len(out), np.int32)
    values, scale = bits.view(np.float32), np.float32(2.0**112)  # a half float's exponent and fraction are a float's, 112 lower
    for i in range(1, n + 1):
        if i < n and met[i] == met[start]:
            continue
        much, row = np.float32(np.log1p(i - start)), mine[start]
        for k in range(len(bits)):
            bits[k] = np.int64(row[k]) << 13 & np.int64(-0x70000001)
        for k in range(len(out)):
            out[k] += much * (values[k] * scale)
        start = i
    return out


def identify(string: str) -> str | None:
    """ISO code of the language, as `py3langid.classify` answers in several times as long, since it walks in Python; None without the library."""
    found = _best(string)
    return found[0] if found else None


def clearly(string: str) -> str | None:
    """The language where it is `MARGIN` ahead of any other and there is one; else None."""
    found = _best(string)
    return found[0] if found and found[1] >= MARGIN and found[0] != NO_LANGUAGE else None


def _best(string: str) -> tuple[str, float] | None:
    """ISO code of the likeliest language, and how far it is ahead of the next [nats]; None without the library."""
    model = _model()
    if model is None:
        return None
    moves, states, weights, prior, names = model
    text = unicodedata.normalize("NFC", string.lower() if string.isupper() else string)
    raw = np.frombuffer(bytearray(text.encode("utf-8", "surrogatepass")), np.uint8)
    met = _features(raw, moves, states)
    met.sort()
    scores = _scores(met, weights, prior)
    best = int(scores.argmax())
    most, scores[best] = scores[best], -np.inf
    return str(names[best]), float(most - scores.max())


@numba.njit(cache=True, nogil=True)
def count_scripts(x: NDArray[np.uint8], table: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Letters per entry of the table, of UTF-8 bytes that may be cut anywhere: int64 [256]."""
    out = np.zeros(256, np.int64)
    i, n, latin = 0, len(x), 0
    while i < n:
        c = np.int64(x[i])
        i += 1
        if c < 0x80:
            latin += (c | 32) >= 97 and (c | 32) <= 122
            continue
        if c < 0xC0:
            continue
        need = 1 if c < 0xE0 else 2 if c < 0xF0 else 3
        code = c & (0x3F >> need)
        while need and i < n and (x[i] & 0xC0) == 0x80:
            code = code << 6 | (np.int64(x[i]) & 0x3F)
            need -= 1
            i += 1
        if not need and code < 65536:
            out[table[code]] += 1
    out[table[97]] += latin
    return out


def scripts(text: Text) -> dict[str, int]:
    """Letters per script in the beginning, middle and end of a text; a character of a script without an alphabet counts as `LETTERS` of them."""
    third, size = LOOKED_AT // 3 * 2, len(text)
    parts = ((0, size),) if size <= 2 * LOOKED_AT else ((0, third), (size // 2, size // 2 + third), (size - third, size))
    table, names = _scripts()
    count = sum(count_scripts(text.raw[a:b], table) for a, b in parts)
    met = [k for k in count.nonzero()[0].tolist() if k]
    return {names[k]: int(count[k]) * (LETTERS if names[k] in DENSE else 1) for k in met}


def _run(docs: DocumentBatch, chosen: NDArray[np.bool_], texts: Sequence[Text | None]) -> Found:
    found = Found({"mixed": np.zeros(len(docs), np.float32)})
    for i in np.flatnonzero(chosen).tolist():
        text = texts[i]
        if text is None or len(text) < 200:
            continue
        count = scripts(text)
        total = sum(count.values())
        if total < 100 or len(count) < 2:
            continue
        (main, most), *rest = sorted(count.items(), key=lambda item: -item[1])
        share = 1 - most / total
        found.columns["mixed"][i] = share
        if share >= 0.3:
            said = identify(text.piece(0, 4 * SHOWN).decode("utf-8", "ignore")[:SHOWN]) or "not identified"
            parts = f"{main.lower()} {most / total:.0%}, {rest[0][0].lower()} {rest[0][1] / total:.0%}"
            found.evidence[i] = Evidence([], f"{parts}; language {said}")
    return found


DETECTORS.add("language", Detector("language", MEASURES, 3, "text", _run, None, "language"), __name__)
