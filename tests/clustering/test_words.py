"""Words of texts: equal to a walk over characters, for any text and any bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.clustering.words import LONGEST, SIGN, SPACE, WORD, _kind, words


def kind(character: str) -> int:
    if character.isascii():
        return SPACE if character in "\t\n\v\f\r " else WORD if character.isalnum() or character == "_" else SIGN
    return int(_kind(ord(character)))


def fnv(text: str) -> int:
    h = 0x811C9DC5
    for byte in "".join(c.lower() if c.isascii() else c for c in text).encode("utf-8", "surrogatepass"):
        h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
    return h


def plain(text: str) -> list[int]:
    """Units of a text, character by character."""
    found, word = [], ""
    for c in text:
        if word and (kind(c) != WORD or len(word.encode()) >= LONGEST):
            found.append(word)
            word = ""
        if kind(c) == WORD:
            word += c
        elif kind(c) == SIGN:
            found.append(c)
    return [fnv(w) for w in [*found, word] if w]


def units(texts: list[bytes]) -> list[list[int]]:
    offsets = np.cumsum([0] + [len(t) for t in texts]).astype(np.int64)
    ids, bounds = words(np.frombuffer(b"".join(texts), np.uint8), offsets)
    return [ids[a:b].tolist() for a, b in zip(bounds[:-1], bounds[1:])]


ALPHABET = st.one_of(st.sampled_from("abZ_09 \n.,-\u2028\u00a0äñЖש漢ぎ한ก\U0001f600"), st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.text(ALPHABET, max_size=80), max_size=4))
@settings(max_examples=150, deadline=None)
def test_units_equal_a_walk_over_characters(texts: list[str]) -> None:
    assert units([t.encode() for t in texts]) == [plain(t) for t in texts]


@given(st.binary(max_size=60), st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_bytes_do_and_neighbours_do_not_matter(a: bytes, b: bytes) -> None:
    together = units([a, b])
    assert together == [units([a])[0], units([b])[0]]
    assert len(together[0]) <= len(a)


def test_the_classes() -> None:
    assert [kind(c) for c in "éßЖאع한हि"] == [WORD] * 8
    assert [kind(c) for c in "漢ぎガก。—×÷€\U0001f600"] == [SIGN] * 10
    assert [kind(c) for c in "\u00a0\u2003\u2028\u3000\u0085\ufeff"] == [SPACE] * 6


def test_long_words_are_cut() -> None:
    assert len(units([b"a" * 100])[0]) == 3
    assert units([b"One two"]) == units([b"ONE\n\ttwo"])
