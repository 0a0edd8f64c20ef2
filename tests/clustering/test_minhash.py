"""Signatures: equal to the plain definition, unbiased, no worse than 128 independent draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.clustering.minhash import estimate, minhash, sign, units, values_of
from forensics.clustering.sketch import FEW, HIGH, LOW, PAD, A, B, K
from forensics.stores.batch import DocumentBatch

MASK = (1 << 32) - 1


def finalise(x: int) -> int:
    x ^= x >> 16
    x = x * 0x85EBCA6B & MASK
    x ^= x >> 13
    x = x * 0xC2B2AE35 & MASK
    return x ^ (x >> 16)


def plain(ids: list[int]) -> list[int]:
    """The definition in the module's docstring, step by step, on Python's integers."""
    if not ids:
        return [MASK] * K
    shingles = [tuple(ids[i : i + 5]) for i in range(len(ids) - 4)] or [tuple(ids) + (PAD,) * (5 - len(ids))]
    hashes = {tuple(finalise(sum(t * int(c) for t, c in zip(s, constants)) & MASK) for constants in (LOW, HIGH)) for s in shingles}
    out: list[int | None] = [None] * K
    for k in range(K):
        if own := [(hi, lo) for lo, hi in hashes if hi % K == k]:
            out[k] = min(own)[1]
    if out.count(None) > FEW:
        for k in [k for k in range(K) if out[k] is None]:
            if own := [(lo, hi) for lo, hi in hashes if ((hi ^ lo) * 0x85EBCA6B & MASK) >> 25 == k]:
                out[k] = min(own)[1]
    return [min((int(A[k]) * lo + int(B[k])) & MASK for lo, _ in hashes) if v is None else v for k, v in enumerate(out)]


def signatures(documents: list[list[int]], dtype: type[np.generic] = np.uint32) -> np.ndarray:
    offsets = np.cumsum([0] + [len(d) for d in documents]).astype(np.int64)
    return minhash(np.array([i for d in documents for i in d], dtype), offsets)[0]


@given(st.lists(st.lists(st.integers(0, MASK), max_size=40), max_size=6))
@settings(max_examples=60, deadline=None)
def test_kernel_equals_the_plain_definition(documents: list[list[int]]) -> None:
    got = signatures(documents)
    assert got.tolist() == [plain(d) for d in documents]


@pytest.mark.parametrize("vocabulary", [1, 2, 7, 50_000, MASK])
@pytest.mark.parametrize("length", [120, 700, 4100, 9000])
def test_kernel_equals_the_plain_definition_on_long_documents(length: int, vocabulary: int) -> None:
    ids = np.random.default_rng(length).integers(0, vocabulary, length).tolist()
    assert signatures([ids])[0].tolist() == plain(ids)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64, np.uint64])
def test_the_type_of_the_ids_does_not_matter(dtype: type[np.generic]) -> None:
    ids = np.random.default_rng(0).integers(0, 60_000, 500).tolist()
    assert np.array_equal(signatures([ids], dtype), signatures([ids]))


def test_a_document_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(1)
    documents = [rng.integers(0, 1000, n).tolist() for n in (0, 3, 5000, 40, 0, 700)]
    together = signatures(documents)
    assert all(np.array_equal(together[i], signatures([d])[0]) for i, d in enumerate(documents))


def pairs_of(shingles: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Estimates and exact similarities of random pairs of sets of this size."""
    rng = np.random.default_rng(shingles)
    got, exact = [], []
    for _ in range(pairs):
        shared = round(2 * shingles * (j := rng.uniform(0.1, 0.95)) / (1 + j))
        base = rng.integers(0, 1 << 31, shared + 4)
        a, b = (np.concatenate([base, rng.integers(0, 1 << 31, shingles - shared)]).tolist() for _ in range(2))
        x, y = ({tuple(d[i : i + 5]) for i in range(len(d) - 4)} for d in (a, b))
        exact.append(len(x & y) / len(x | y))
        got.append(float((lambda s: (s[0] == s[1]).mean())(signatures([a, b]))))
    return np.array(got), np.array(exact)


@pytest.mark.parametrize(("shingles", "pairs"), [(36, 1500), (146, 800), (596, 300)])
def test_error_is_that_of_128_draws_or_less(shingles: int, pairs: int) -> None:
    got, exact = pairs_of(shingles, pairs)
    ideal = np.sqrt(np.mean(exact * (1 - exact) / K))
    assert np.sqrt(np.mean((got - exact) ** 2)) <= 1.1 * ideal
    assert abs(np.mean(got - exact)) <= 0.01


def test_texts_are_signed_by_words() -> None:
    batch = DocumentBatch.from_texts(["One two three\u2028four five six", "one  two THREE four\nfive six", "eins zwei drei vier fünf"])
    _, bounds = units(batch)
    assert np.diff(bounds).tolist() == [6, 6, 5]
    values = values_of(sign(batch))
    assert np.array_equal(values[0], values[1])
    assert not np.array_equal(values[0], values[2])
    assert estimate(values, np.array([0, 0]), np.array([1, 2])).tolist()[0] == 1.0


def test_units_of_text_are_words_signs_and_ideographs() -> None:
    count = lambda text: int(units(DocumentBatch.from_texts([text]))[1][-1])  # noqa: E731
    assert count("don't stop") == 4
    assert count("漢字かな 한국어") == 5
    assert count("привет, мир") == 3
    assert count("") == 0
    assert int(units(DocumentBatch.from_texts([b"\xff\xfe ab\xc3"]))[1][-1]) == 4


def test_a_table_gives_back_its_signatures_after_slicing() -> None:
    batch = DocumentBatch.of_documents([[1, 2, 3, 4, 5, 6], [], [9] * 40])
    table = sign(batch)
    assert table.column("shingles").to_pylist() == [2, 0, 36]
    assert values_of(table.slice(1)).tolist() == values_of(table)[1:].tolist()
    assert values_of(table.slice(3)).shape == (0, K)
