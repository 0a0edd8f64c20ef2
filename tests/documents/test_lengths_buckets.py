"""Histograms, packing and bucket bounds against their plain definitions."""

from __future__ import annotations

import bisect
import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.documents.buckets import CORNERS, buckets, corners, expected_cut, recommend, schemes, waste_of
from forensics.documents.lengths import bin_bounds, length_summary, source_summary
from forensics.documents.packing import best_fit_rows, bucket_bounds
from forensics.schemas import CLUSTERS, DOCUMENTS, FINDINGS, Documents


def documents(lengths: list[int], **columns: object) -> Documents:
    n = len(lengths)
    base = {
        "doc_key": np.arange(n),
        "corpus_id": np.zeros(n, np.int32),
        "doc": np.arange(n),
        "source": pa.array(["a"] * n, pa.string()),
        "tokens": np.array(lengths, np.int64),
    }
    return Documents(DOCUMENTS.of({**base, **columns}))


def plain_best_fit(lengths: list[int], size: int) -> int:
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        rooms.sort()
        at = bisect.bisect_left(rooms, length)
        if length and at < len(rooms):
            rooms[at] -= length
        elif length:
            rooms.append(size - length)
    return len(rooms)


@given(st.integers(1, 40).flatmap(lambda size: st.tuples(st.just(size), st.lists(st.integers(0, size), max_size=60))))
@settings(max_examples=300, deadline=None)
def test_best_fit_from_the_histogram_equals_best_fit_document_by_document(case: tuple[int, list[int]]) -> None:
    size, lengths = case
    assert best_fit_rows(np.bincount(lengths, minlength=size + 1).astype(np.int64)) == plain_best_fit(lengths, size)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=25), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_bucket_bounds_have_the_least_padding(lengths: list[int], k: int) -> None:
    values, counts = np.unique(lengths, return_counts=True)

    def padded(bounds: tuple[int, ...]) -> int:
        return sum(min(b for b in bounds if b >= length) for length in lengths)

    least = min(padded((*some, int(values[-1]))) for some in itertools.combinations(values[:-1].tolist(), min(k, len(values)) - 1))
    got = bucket_bounds(values.astype(np.int64), counts.astype(np.int64), k)
    assert padded(tuple(got.tolist())) == least and len(got) == min(k, len(values)) and got[-1] == values[-1]


def test_cuts_of_a_random_order_are_what_a_random_order_gives() -> None:
    rng = np.random.default_rng(0)
    lengths, size = rng.integers(1, 300, 400), 128
    seen = []
    for _ in range(60):
        order = rng.permutation(lengths)
        start = np.concatenate([[0], np.cumsum(order)[:-1]]) + rng.integers(size)
        seen.append(np.maximum(0, order - (size - start % size)).sum())
    assert expected_cut(lengths, size) == pytest.approx(np.mean(seen), rel=0.02)


def test_every_scheme_accounts_for_every_token() -> None:
    lengths = np.random.default_rng(1).lognormal(4, 1.2, 3000).astype(np.int64) + 1
    rows = schemes(lengths, 256, 4, (2, 4, 8))
    for scheme in ("concat_and_cut", "best_fit", "buckets_2", "buckets_4", "buckets_8"):
        mine = [r for r in rows if r["scheme"] == scheme]
        assert sum(r["tokens"] for r in mine) == lengths.sum() and sum(r["documents"] for r in mine) == 3000
        assert all(r["padding_tokens"] >= 0 for r in mine)
        if scheme.startswith("buckets"):
            assert [r["start"] for r in mine] == [1, *(r["stop"] for r in mine[:-1])] and mine[-1]["stop"] <= 257
            assert all(r["batch"] == max(1, 1024 // (r["stop"] - 1)) for r in mine)
        assert sum(r["truncated_tokens"] for r in mine) == (expected_cut(lengths, 256) if scheme == "concat_and_cut" else np.maximum(lengths - 256, 0).sum())
    as_is = rows[0]
    assert as_is["padding_tokens"] == np.maximum(256 - lengths, 0).sum()
    wastes = [waste_of(rows, s) for s in ("as_is", "buckets_2", "buckets_4", "buckets_8")]
    assert wastes == sorted(wastes, reverse=True)


def test_one_length_wastes_nothing_in_buckets() -> None:
    rows = schemes(np.full(10, 64), 128, 1, (1, 2))
    assert waste_of(rows, "buckets_1") == 0 and waste_of(rows, "best_fit") == 0 and waste_of(rows, "as_is") == 0.5
    assert not [r for r in rows if r["scheme"] == "buckets_2"]


def test_the_recommendation_prefers_whole_documents() -> None:
    rng = np.random.default_rng(0)
    assert recommend(schemes(rng.integers(1, 128, 5000), 128, 1, (2, 4))) == "best_fit"
    assert recommend(schemes(np.full(1000, 70), 128, 1, (2,))) in ("best_fit", "concat_and_cut")
    assert recommend(schemes(np.concatenate([np.full(1000, 70), np.full(1000, 90)]), 128, 1, (2,))) == "buckets_2"
    assert recommend([]) == ""
    table = buckets(documents([5, 0, 9, 300]), 128)
    assert set(table.filter(table.column("recommended")).column("scheme").to_pylist()) == {"best_fit"} or table.num_rows
    assert buckets(documents([0, 0]), 128).num_rows == 0


def test_candidate_bounds_stay_few_and_keep_the_longest() -> None:
    pieces = np.zeros(100_001, np.int64)
    pieces[1:] = 3
    lengths, counts = corners(pieces)
    assert len(lengths) <= CORNERS + 1 and lengths[-1] == 100_000 and counts.sum() == 300_000 and np.all(np.diff(lengths) > 0)


def test_histograms_and_summaries_per_source_and_role() -> None:
    docs = documents(
        [0, 1, 3, 700],
        source=pa.array(["b", "a", "a", "a"]),
        used_window=pa.array([0, 1, 2, None]),
        used_baseline=pa.array([5, 0, 1, 0]),
        bytes=pa.array([0, 4, None, 9]),
    )
    got = length_summary(docs).to_pylist()
    assert [(r["source"], r["role"], r["start"], r["stop"], r["documents"], r["tokens"]) for r in got] == [
        ("a", "baseline", 2, 4, 1, 3), ("a", "window", 1, 2, 1, 1), ("a", "window", 2, 4, 1, 3), ("b", "baseline", 0, 1, 1, 0),
    ]  # fmt: skip
    findings = FINDINGS.of({
        "doc_key": [2], "detector": ["x"], "measure": ["x"], "cause": ["mojibake"], "primary": [True], "garbage": [True],
        "version": [1], "value": [1.0], "threshold": [0.5],
    })  # fmt: skip
    clusters = CLUSTERS.of({"kind": ["near", "near", "source"], "cluster": [0, 0, 0], "doc_key": [1, 2, 3], "representative": [2, 2, None]})
    summary = source_summary(docs, findings, clusters).to_pylist()
    window = next(r for r in summary if r["role"] == "window")
    assert (window["documents"], window["tokens"], window["flagged_tokens"], window["duplicate_tokens"], window["length_max"], window["bytes"]) == (
        2,
        4,
        3,
        1,
        3,
        None,
    )
    audit = documents([10, 20, 30])
    assert [r["role"] for r in source_summary(audit).to_pylist()] == ["corpus"] and length_summary(audit).num_rows == 2
    assert length_summary(documents([])).num_rows == 0 and source_summary(documents([])).num_rows == 0


def test_bins_double() -> None:
    assert bin_bounds(0).tolist() == [0, 1, 2] and bin_bounds(8).tolist() == [0, 1, 2, 4, 8, 16]
