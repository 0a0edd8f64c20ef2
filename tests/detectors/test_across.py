"""Passes over the whole corpus: one skeleton in many documents, lengths far from a source's; both the same for any split."""

from __future__ import annotations

import random

import numpy as np

from forensics.detectors.across import across_count, across_flag, across_merge
from forensics.detectors.length import length_count, length_flag, length_merge
from forensics.stores.batch import DocumentBatch

PAGE = (
    "The page provides the exchange rate of {n} {a} to {b}, sale and conversion rate. Moreover, we added the list of the most popular "
    "conversions for visualization and the history table with exchange rate diagram for {n} {a} to {b} from {n} days. "
    "How much {a} are in one {b}? Try our simple calculator below, it shows today's rate. "
)


def pages() -> list[str]:
    r = random.Random(4)
    names = ["dirham", "yen", "krone", "peso", "rupee", "dinar", "franc", "zloty", "real", "rand"]
    words = ["river", "mill", "swan", "bridge", "miller", "week", "rain", "train", "signal", "window", "green", "coat", "paper", "clock", "sheds", "fox"]
    templated = [PAGE.format(n=r.randrange(10**6), a=r.choice(names), b=r.choice(names)) for _ in range(20)]
    return templated + [" ".join(r.choices(words, k=120)) for _ in range(30)]


def test_pages_of_one_skeleton_are_found_and_others_not() -> None:
    batch = DocumentBatch.from_texts(pages())
    whole = across_count(batch)
    found = across_flag([whole], across_merge([whole]))
    assert found.column("doc_key").to_pylist() == list(range(20))
    assert set(found.column("cause").to_pylist()) == {"template"} and not any(found.column("garbage").to_pylist())
    parts = [across_count(batch.part(a, b)) for a, b in ((0, 7), (7, 8), (8, 50))]
    assert across_flag(parts, across_merge(parts)).equals(found)


def test_identical_pages_are_duplicates_not_templates() -> None:
    batch = DocumentBatch.from_texts([PAGE.format(n=3, a="yen", b="peso")] * 30)
    part = across_count(batch)
    assert across_flag([part], across_merge([part])).num_rows == 0


def test_nothing_comes_of_nothing() -> None:
    assert across_merge([]).size == 0
    part = across_count(DocumentBatch.of_documents([[1, 2, 3]]))
    assert part.piece.size == 0 and across_flag([part], across_merge([part])).num_rows == 0


def test_lengths_far_from_the_source_and_whole_rows_of_sequences() -> None:
    r = np.random.default_rng(0)
    lengths = [*r.integers(80, 600, 3000).tolist(), 50000]
    batch = DocumentBatch.of_documents([np.zeros(n, np.uint16) for n in lengths], source=["web"] * len(lengths))
    counts = length_merge([length_count(p) for p in batch.parts(5000)])
    assert counts["web"].tolist() == length_count(batch)["web"].tolist()
    plain = length_flag(batch, counts)
    assert plain.num_rows == 0  # one in three thousand says nothing below one in ten thousand
    (row,) = length_flag(batch, counts, seq_length=2048).to_pylist()
    assert row["doc_key"] == 3000 and row["measure"] == "sequences" and not row["garbage"]
