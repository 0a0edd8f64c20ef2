"""How ids are spread and what they cost, against plain counting; the sample; documents measured by others only."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from forensics.detectors import distribution as module
from forensics.detectors.distribution import BYTES, TOKENS
from forensics.detectors.measuring import NO_BIGRAMS, measure
from forensics.losses.difficulty import code_lengths
from forensics.stores.batch import DocumentBatch
from forensics.stores.bigrams import LEAST, bigrams_of

PROSE = "the quick brown fox jumps over a lazy dog while seven wizards boil potions in old kettles near rivers and nobody minds"
WORDS = PROSE.split()


def sample(ids: np.ndarray, stretch: int) -> list[np.ndarray]:
    n = len(ids)
    if n <= 2 * stretch:
        return [ids]
    middle = max(stretch, (n - stretch) // 2)
    return [ids[:stretch], ids[middle : middle + stretch]]


def plain(ids: np.ndarray, stretch: int, gram: int) -> dict[str, float]:
    parts = sample(ids, stretch)
    single = Counter(k for p in parts for k in p.tolist())
    grams = Counter(tuple(p[i : i + gram].tolist()) for p in parts for i in range(len(p) - gram + 1))
    n, many = sum(single.values()), sum(grams.values())
    most = max(grams.values(), default=0)
    return {
        "distinct": len(single) / n if n else 0.0,
        "entropy": -sum(c / n * np.log(c / n) for c in single.values()) if n else 0.0,
        "top": most / many if most > 1 else 0.0,
        "duplicated": sum(c - 1 for c in grams.values()) / many if many else 0.0,
    }


def walk(rng: np.random.Generator, n: int, size: int = 400) -> np.ndarray:
    """Ids of which each is followed by one of three."""
    out = np.zeros(n, np.int64)
    for i in range(1, n):
        out[i] = (out[i - 1] * 7 + rng.integers(0, 3)) % size
    return out


@pytest.mark.parametrize("texts", [False, True])
def test_measures_are_those_of_plain_counting(texts: bool) -> None:
    rng = np.random.default_rng(1)
    docs = [walk(rng, n) for n in (0, 1, 3, 4, 100, 256, 257, 300, 400, 5000)] + [np.full(900, 5), np.tile([1, 2, 3], 300), rng.integers(0, 1 << 20, 700)]
    if texts:
        prose = [" ".join(rng.choice(WORDS, n)).encode() for n in (1, 30, 180, 2000)]
        batch = DocumentBatch.from_texts([*prose, b"", b"=" * 3000, bytes(rng.integers(0, 256, 5000).astype(np.uint8))])
    else:
        batch = DocumentBatch.of_documents(docs)
    found = measure(batch, only=["distribution"]).columns["distribution"]
    for i in range(len(batch)):
        for name, value in plain(batch.tokens_of(i), *(BYTES if texts else TOKENS)).items():
            # of two n-grams at one place the earlier one is forgotten
            assert found[name][i] == pytest.approx(value, abs=1e-5, rel=0.05 if name in ("duplicated", "top") else 1e-4), (i, name)


@pytest.mark.parametrize("texts", [False, True])
def test_huge_documents_are_not_copied(texts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    ids = walk(rng, 9001, 200)
    batch = DocumentBatch.from_texts([ids.astype(np.uint8).tobytes()]) if texts else DocumentBatch.of_documents([ids])
    batch = replace(batch, bigrams=bigrams_of([DocumentBatch.from_texts([rng.bytes(9000) for _ in range(4)])]))
    names = ["distribution", "bigrams"]
    whole = measure(batch, only=names).columns
    monkeypatch.setattr(module, "HUGE", 8000)
    assert measure(batch, only=names).columns == whole


def test_a_sample_is_the_beginning_and_the_middle() -> None:
    rng = np.random.default_rng(2)
    ids = rng.integers(0, 500, 2000)
    other = ids.copy()
    other[TOKENS.stretch : 936] = 7
    other[1064:] = 9
    a, b = (measure(DocumentBatch.of_documents([x]), only=["distribution"]).columns["distribution"] for x in (ids, other))
    assert all(a[name][0] == b[name][0] for name in a)
    other[1000:1010] = 600
    assert measure(DocumentBatch.of_documents([other]), only=["distribution"]).columns["distribution"]["entropy"][0] != a["entropy"][0]


def test_code_lengths_are_those_of_the_other_documents_pairs() -> None:
    rng = np.random.default_rng(3)
    docs = [walk(rng, n) for n in rng.integers(2, 240, 300)] + [rng.permutation(walk(rng, 200)), rng.integers(0, 5000, 200)]
    batch = DocumentBatch.of_documents(docs)
    batch = replace(batch, bigrams=bigrams_of([batch]))
    found = measure(batch, only=["bigrams"]).columns["bigrams"]["code_length"]
    for side in (0, 1):
        _, after = code_lengths(batch.tokens, batch.offsets, np.arange(len(docs)) % 2 != side)
        for i in range(side, len(docs), 2):
            expected = after[batch.offsets[i] + 1 : batch.offsets[i + 1]].mean()
            assert found[i] == pytest.approx(expected, abs=0.02)
    assert np.median(found[:300]) < 2 and found[300] > 4 and found[301] > 5


def test_the_tables_do_not_depend_on_how_a_file_is_read() -> None:
    rng = np.random.default_rng(4)
    batch = DocumentBatch.from_texts([" ".join(rng.choice(WORDS, n)) for n in rng.integers(0, 400, 400)])
    whole = bigrams_of([batch])
    assert whole is not None
    cut = bigrams_of(batch.parts(1000))
    assert cut is not None and all(np.array_equal(getattr(whole, k), getattr(cut, k)) for k in ("pairs", "after", "alone"))
    found = measure(replace(batch, bigrams=whole), only=["bigrams"]).columns["bigrams"]["code_length"]
    parts = [measure(p, only=["bigrams"]).columns["bigrams"]["code_length"] for p in replace(batch, bigrams=whole).parts(5000)]
    assert np.array_equal(np.concatenate(parts), found)


def test_scrambled_text_costs_more_than_text() -> None:
    rng = np.random.default_rng(5)
    texts = [" ".join(rng.choice(WORDS, 300)) for _ in range(100)]
    texts += ["".join(rng.permutation(list(texts[0]))), "".join(rng.permutation(list(texts[1])))]
    batch = DocumentBatch.from_texts(texts)
    found = measure(replace(batch, bigrams=bigrams_of([batch])), only=["bigrams"]).columns["bigrams"]["code_length"]
    assert found[100:].min() > 2 * found[:100].max()


def test_too_few_documents_to_compare_with_are_said() -> None:
    batch = DocumentBatch.of_documents([np.arange(LEAST - 1), np.arange(LEAST)])
    assert bigrams_of([batch]) is None and bigrams_of([]) is None
    found = measure(batch)
    assert found.not_evaluated["bigrams"] == NO_BIGRAMS
    assert found.tables()["bigrams"]["code_length"].null_count == 2
