"""Bitmaps against exact similarity: what is near is never refused, what is far mostly is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.clustering import bitmaps
from forensics.clustering.bitmaps import Bitmaps
from forensics.clustering.verify import jaccard
from forensics.stores.batch import DocumentBatch


class Kept:
    """Documents in memory as a reader."""

    fingerprint = "kept"

    def __init__(self, documents: list[np.ndarray]) -> None:
        self.all = documents

    def documents(self, doc_keys: np.ndarray) -> DocumentBatch:
        return DocumentBatch.of_documents([self.all[k] for k in doc_keys], doc_keys)


def edited(document: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """A copy with some ids replaced and, now and then, another end."""
    copy = document.copy()
    copy[rng.integers(0, len(copy), int(len(copy) * share))] = rng.integers(0, 50_000)
    return copy[: rng.integers(len(copy) // 2, len(copy) + 1)] if rng.random() < 0.3 else copy


def answers(documents: list[np.ndarray], least: float) -> tuple[np.ndarray, np.ndarray]:
    """Exact similarity of all pairs, and whether they may be similar by `least`."""
    n, lengths = len(documents), np.array([len(d) for d in documents])
    a, b = (x.ravel() for x in np.meshgrid(np.arange(n), np.arange(n)))
    found = Bitmaps(Kept(documents), np.arange(n), lengths, np.arange(n)).may_be(a, b, least)
    ids, offsets = np.concatenate(documents).astype(np.uint32), np.concatenate([[0], np.cumsum(lengths)])
    return jaccard(ids, offsets, a, b), found


@given(seed=st.integers(0, 1 << 30), kinds=st.sampled_from([3, 50, 50_000]), least=st.sampled_from([0.5, 0.8, 0.95]))
@settings(max_examples=60, deadline=None)
def test_near_documents_are_never_refused(seed: int, kinds: int, least: float) -> None:
    rng = np.random.default_rng(seed)
    documents = [rng.integers(0, kinds, rng.integers(1, 3000)) for _ in range(4)]
    documents += [edited(d, share, rng) for d in documents for share in (0.001, 0.01, 0.03)] + [np.tile(documents[0], 3), np.array([], np.int64)]
    exact, found = answers(documents, least)
    assert found[exact >= least].all()


def test_far_documents_are_refused() -> None:
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 50_000, n) for n in (300, 1000, 1100, 5000, 8000)]
    documents += [edited(d, 0.05, rng) for d in documents] + [np.tile(documents[0], 9), np.tile(documents[1], 9)]
    exact, found = answers(documents, 0.8)
    assert not found[exact < 0.7].any() and (exact < 0.7).sum() > 100


def test_more_than_there_is_room_for_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    documents = [rng.integers(0, 50_000, n) for n in (40, 9_000, 10_000, 30_000)]
    documents += [edited(d, share, rng) for d in documents for share in (0.005, 0.05)]
    monkeypatch.setattr(bitmaps, "WORDS", 1)
    made = Bitmaps(Kept(documents), np.arange(12), np.array([len(d) for d in documents]), np.arange(12))
    assert made._sure and len(made._bits) <= 128 * 12
    exact, found = answers(documents, 0.8)
    assert found[exact >= 0.8].all() and (exact >= 0.8).sum() > 12
    assert found[(exact < 0.6)].mean() < 0.5
