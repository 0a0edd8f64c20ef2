"""Per-id numbers that the screens add up: made once per vocabulary, a few megabytes, kept in the user's cache beside the vocabulary.

Each id has two 64-bit words of four 16-bit counts (bytes, bytes of 0x80 and above, white space, marks; digits, filler, frame, odd bytes), so that one
addition counts four things for a block of up to 64 ids; letters by script; counts and bits for `linescan`; and a 32-bit word for the automaton of character
classes that looks for mojibake across the borders of ids.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forensics.detectors import linescan, pairs
from forensics.detectors.language import LETTERS
from forensics.stores.vocab import Vocabulary, cache_folder

FORMAT = 17
# bits of the automaton's word: first class, last class (10 bits each), evidence inside (6 bits, saturated), kind
INSIDE, KIND = 20, 26
ASKED = 1 << 28  # begins or ends with a question mark
ASCII, WHOLE, WALK = 0, 1, 2  # kinds: only ASCII; whole characters whose pairs were looked up here; bytes to be walked
# anchors of page frames and of filler text: substrings, lower case
FRAME = tuple(
    word.replace("_", " ")
    for word in [
        "cookie",
        "privacy",
        "sitemap",
        "newsletter",
        "all_rights",
        "rights_reserved",
        "terms_of",
        "log_in",
        "login",
        "sign_in",
        "add_to_cart",
        "checkout",
        "share_on",
        "tweet",
        "pin_it",
        "subscribe",
        "confidentialit",
        "datenschutz",
        "impressum",
        "anmelden",
        "mentions_légales",
        "隐私",
        "登录",
        "注册",
        "联系我们",
        "隱私",
        "登入",
        "プライバシー",
        "ログイン",
        "お問い合わせ",
        "политика",
        "войти",
        "로그인",
    ]
)
# of several words the one that says most; none where each is common by itself
RAREST = {
    "all rights": "",
    "rights reserved": "reserved",
    "terms of": "",
    "log in": "",
    "sign in": "",
    "add to cart": "cart",
    "share on": "",
    "pin it": "",
    "mentions légales": "",
}
MARKS = b"<>&{}[]|"
ALPHABET = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Features:
    """Arrays by id, one more than the vocabulary has: the last one stands for every id beyond it.

    Attributes:
        low, high: uint64 [size + 1], packed counts.
        letters: uint64 [size + 1], letters of the Latin script, << 16 those of others, by the first byte of each, and << 32 the bytes of ids of eight or more
            equal characters, << 48 whether it has `?` at an end.
        automaton: uint32 [size + 1].
        lengths: int32 [size + 1], bytes.
        line: uint64 [size + 1], packed counts and bits for `linescan.line_scan`.
        hashed: uint16 [size + 1], for the same: seven bits of a hash, whether it is a unit of a line, whether it holds columns.
        flags: uint16 [size + 1], bits for `linescan`.
    """

    low: NDArray[np.uint64]
    high: NDArray[np.uint64]
    letters: NDArray[np.uint64]
    automaton: NDArray[np.uint32]
    lengths: NDArray[np.int32]
    line: NDArray[np.uint64]
    hashed: NDArray[np.uint16]
    flags: NDArray[np.uint16]


ARRAYS = tuple(field.name for field in dataclasses.fields(Features))


@functools.lru_cache(maxsize=4)
def features(vocabulary: Vocabulary) -> Features:
    """Features of a vocabulary, from the cache where they were made before."""
    stored = cache_folder() / f"features-{FORMAT}-{vocabulary.hash}.npz"
    try:
        with np.load(stored, allow_pickle=False) as z:
            return Features(*(z[name] for name in ARRAYS))
    except (OSError, ValueError, KeyError, EOFError):  # absent or torn: made again
        found = make(vocabulary)
    if vocabulary.kind != "byte":
        _save(stored, found)
    return found


def _save(stored: object, f: Features) -> None:
    from pathlib import Path

    from forensics.errors import ForensicsError
    from forensics.files import writing

    try:
        with writing(Path(str(stored))) as part, part.open("wb") as out:
            np.savez(out, **{name: getattr(f, name) for name in ARRAYS})
    except (ForensicsError, OSError):  # a cache that cannot be written costs time only
        pass


def make(vocabulary: Vocabulary) -> Features:
    """Features from the bytes of every id."""
    size = vocabulary.size
    raw = vocabulary.data
    owner = np.repeat(np.arange(size), vocabulary.lengths)
    plain = ~vocabulary.special

    def count(flags: NDArray[np.bool_]) -> NDArray[np.uint64]:
        return np.minimum(np.bincount(owner[flags], minlength=size) * plain, 255).astype(np.uint64)

    marks = np.zeros(256, np.bool_)
    marks[list(MARKS)] = True
    space = np.isin(raw, list(b" \t\r\n\x0b\x0c"))
    control = ((raw < 32) & ~space & (raw != 27)) | (raw == 127)
    everything = np.ones(len(raw), np.bool_)
    filler, frame, uniform, automaton = _by_text(vocabulary)
    low = count(everything) | count(raw >= 128) << np.uint64(16) | count(space) << np.uint64(32) | count(marks[raw]) << np.uint64(48)
    high = count((raw >= 48) & (raw <= 57)) | filler << np.uint64(16) | frame << np.uint64(32) | count(control) << np.uint64(48)
    end = np.zeros(1, np.uint64)
    lengths = np.where(plain, vocabulary.lengths, 0).astype(np.int32)
    code, letter = np.isin(raw, list(b"(){};=")), np.isin(raw, list(ALPHABET)) | (raw >= 128)
    digit = (raw >= 48) & (raw <= 57)
    flags = _flags(vocabulary)
    line = np.zeros(size + 1, np.uint64)
    for k, part in enumerate((everything, space, digit, code, ~(space | digit | code | letter), raw >= 128)):
        line[:size] |= count(part) << np.uint64(linescan.FIELD * k)
    for k, on in enumerate((flags & linescan.FEED, flags & (linescan.STARTS_SPACE | linescan.BREAK))):
        line[:size] |= (on > 0).astype(np.uint64) << np.uint64(60 + k)
    hashed = np.zeros(size + 1, np.uint16)
    hashed[:size] = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(57)
    hashed[:size] |= (flags & linescan.SILENT == 0).astype(np.uint16) << 7 | (flags & linescan.COLUMN > 0).astype(np.uint16) << 8
    latin = (raw < 128) & letter | (raw >= 0xC3) & (raw < 0xCB)
    alphabet, east = (raw >= 0xCD) & (raw < 0xE2), (raw >= 0xE3) & (raw < 0xEE)
    letters = (
        count(latin)
        | count(alphabet) + np.uint64(LETTERS) * count(east) << np.uint64(16)
        | np.minimum(lengths * uniform, 255).astype(np.uint64) << np.uint64(32)
        | (automaton & np.uint32(ASKED) > 0).astype(np.uint64) << np.uint64(48)
    )
    return Features(
        np.append(low, end), np.append(high, end), np.append(letters, end), np.append(automaton, np.uint32(0)),
        np.append(lengths, np.int32(0)), line, hashed, np.append(flags, np.uint16(linescan.BREAK | linescan.SILENT)),
    )  # fmt: skip


def _flags(vocabulary: Vocabulary) -> NDArray[np.uint16]:
    """Bits for `linescan`, from the bytes of every id."""
    size, raw = vocabulary.size, vocabulary.data
    owner = np.repeat(np.arange(size), vocabulary.lengths)
    some = vocabulary.lengths > 0

    def any_of(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.bincount(owner[flags], minlength=size) > 0

    space = np.isin(raw, list(b" \t\r\n\x0b\x0c"))
    first = np.zeros(size, np.uint8)
    final = np.zeros(size, np.uint8)
    first[some], final[some] = raw[vocabulary.starts[:-1][some]], raw[vocabulary.starts[1:][some] - 1]
    begins = np.zeros(len(raw), np.bool_)
    begins[vocabulary.starts[:-1][some]] = True
    two = np.zeros(len(raw), np.bool_)
    two[1:] = (raw[1:] == 32) & (raw[:-1] == 32) & (owner[1:] == owner[:-1])
    digit = (raw >= 48) & (raw <= 57)
    word = np.isin(raw, list(ALPHABET)) | digit | (raw >= 128)
    bits = {
        linescan.FEED: any_of(raw == 10),
        linescan.COLUMN: any_of((raw == 9) | two),
        linescan.STARTS_SPACE: (first == 32) & some,
        linescan.ENDS_SPACE: (final == 32) & some,
        linescan.BREAK: any_of((space & ~begins) | (raw >= 127) | (raw < 32) | np.isin(raw, list(b"\"'`,\\"))) | vocabulary.special | ~some,
        linescan.WIDE: any_of(raw >= 128),
        linescan.DIGITS: any_of(digit) & ~any_of(~digit & ~space),
        linescan.SILENT: ~any_of(word) | vocabulary.special,
        linescan.TRIGGER: any_of(np.isin(raw, list(b"<&{[:(="))),
    }
    out = np.zeros(size, np.uint16)
    for bit, on in bits.items():
        out[on] |= np.uint16(bit)
    return out


def _by_text(vocabulary: Vocabulary) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.bool_], NDArray[np.uint32]]:
    from forensics.detectors.placeholder import LOREM

    size = vocabulary.size
    filler, frame, uniform = np.zeros(size, np.uint64), np.zeros(size, np.uint64), np.zeros(size, np.bool_)
    automaton = np.zeros(size, np.uint32)
    pieces = {w[a:b].decode() for w in LOREM for a in range(len(w)) for b in range(a + 3, len(w) + 1)} | {
        "do",
        "ut",
        "et",
        "ad",
        "ex",
        "ea",
        "si",
        "se",
        "el",
        "it",
    }
    table, walker = pairs.class_of(), _Walker()
    words, parts = _anchor_words(vocabulary)
    for i in range(size):
        raw = vocabulary.bytes_of(i)
        if not raw or vocabulary.special[i]:
            continue
        if vocabulary.kind == "byte":
            automaton[i] = int(table[i]) | int(table[i]) << 10 | ASKED * (raw == b"?") if i < 128 else WALK << KIND
            continue
        uniform[i] = len(raw) >= 8 and len(set(raw)) == 1
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            automaton[i] = WALK << KIND
            continue
        word = text.strip().lower().strip(".,;:!?")
        if word in pieces:
            filler[i] = min(255, len(raw))
        if word in parts or any(a in word for a in words):
            frame[i] = 1
        automaton[i] = walker.word(text) | np.uint32(ASKED * (text[0] == "?" or text[-1] == "?"))
    return filler, frame, uniform, automaton


def _anchor_words(vocabulary: Vocabulary) -> tuple[list[str], set[str]]:
    """Anchors that some id holds whole, and of the others the longest piece of three and more letters that is an id."""
    known = {vocabulary.bytes_of(i).decode("utf-8", "ignore").strip().lower() for i in range(vocabulary.size)} if vocabulary.kind != "byte" else set()
    everything = "\n".join(sorted(known))
    wanted = [RAREST.get(a, a) for a in FRAME if RAREST.get(a, a)]
    parts = set()
    for word in wanted:
        if word not in everything:
            pieces = [word[a:b] for a in range(len(word)) for b in range(a + 3, len(word) + 1) if word[a:b] in known]
            parts |= {max(pieces, key=len)} if pieces else set()
    return [w for w in wanted if w in everything], parts


class _Walker:
    """The automaton's word of a text of whole characters."""

    def __init__(self) -> None:
        self.table, self.pairs, self.single, self.latin = pairs.class_of(), pairs.pair_table(), pairs.singles(), pairs.latin()

    def word(self, text: str) -> int:
        classes = [int(self.table[ord(c)]) if ord(c) < 65536 else pairs.OTHER for c in text]
        if all(c < "\x80" for c in text):
            return classes[0] | classes[-1] << 10
        if any(self.latin[c] or self.single[c] for c in classes) or (
            any(c in (pairs.HAN, pairs.RARE_HAN, pairs.HANGUL) for c in (classes[0], classes[-1])) and any(c < "\x80" for c in text)
        ):
            return WALK << KIND
        inside = sum(int(self.pairs[a, b]) & 1 for a, b in zip(classes, classes[1:]))
        return classes[0] | classes[-1] << 10 | min(inside, 63) << INSIDE | WHOLE << KIND
