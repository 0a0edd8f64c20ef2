"""What copies cost, and which record became which document."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.documents.alignment import Alignment, Gap, align
from forensics.documents.dedup import dedup_summary, source_matrix, times_seen
from forensics.schemas import CLUSTERS, CONSUMED, DOCUMENTS, Documents

DOCS = Documents(DOCUMENTS.of({
    "doc_key": [10, 11, 12, 13, 14], "corpus_id": np.zeros(5, np.int32), "doc": [10, 11, 12, 13, 14], "source": ["web", "code", "web", "web", "math"],
    "tokens": [100, 90, 80, 70, 60],
    "used_window": [5, 0, 3, None, 0], "used_baseline": [0, 9, 0, 0, 0],
}))  # fmt: skip
GROUPS = CLUSTERS.of({
    "kind": ["exact", "exact", "near", "near", "near", "near", "near", "source"], "cluster": [0, 0, 0, 0, 0, 1, 1, 0],
    "doc_key": [12, 13, 10, 11, 12, 13, 14, 10],
    "representative": [12, 12, 10, 10, 10, 13, 13, None],
})  # fmt: skip


def test_what_removing_copies_saves() -> None:
    times = pa.table({"doc_key": [10, 11, 12], "times": [4, 1, 2]})
    got = dedup_summary(DOCS, GROUPS, times).to_pylist()
    assert [(r["kind"], r["cluster"], r["members"], r["representative"], r["tokens"], r["tokens_saved"], r["sources"]) for r in got] == [
        ("exact", 0, 2, 12, 150, 70, ["web"]), ("near", 0, 3, 10, 270, 170, ["code", "web"]), ("near", 1, 2, 13, 130, 60, ["math", "web"]),
    ]  # fmt: skip
    assert [(r["window_documents"], r["baseline_documents"], r["times_seen"]) for r in got] == [(1, 0, 2), (2, 1, 7), (0, 0, 0)]


def test_without_roles_or_copies() -> None:
    plain = DOCS.drop_columns(["used_window", "used_baseline"])
    got = dedup_summary(Documents(DOCUMENTS.of(plain)), GROUPS)
    assert got.column("window_documents").null_count == 3 and got.column("times_seen").null_count == 3
    assert dedup_summary(DOCS, GROUPS.slice(7)).num_rows == 0
    assert source_matrix(DOCS, GROUPS.slice(7)).num_rows == 0


def test_how_often_documents_were_consumed() -> None:
    class Store:
        def document_lengths(self, doc_keys: np.ndarray) -> np.ndarray:
            return np.full(len(doc_keys), 100)

    def read(keys: list[int], tokens: list[int]) -> pa.Table:
        n = len(keys)
        return CONSUMED.of({
            "launch": np.zeros(n, np.int16), "step": np.zeros(n, np.int64), "sequence": np.zeros(n, np.int32), "seq_start": np.zeros(n, np.int32),
            "doc_key": keys,
            "doc_start": np.zeros(n, np.int64), "doc_stop": tokens,
        })  # fmt: skip

    got = times_seen([read([7, 7, 3], [60, 40, 100]), read([7, 9, 3], [100, 20, 100])], Store())
    assert got.to_pydict() == {"doc_key": [3, 7, 9], "times": [2, 2, 1]}
    assert times_seen([], Store()).num_rows == 0


def test_who_copies_whom() -> None:
    got = {(r["source"], r["other"]): (r["documents"], r["tokens"]) for r in source_matrix(DOCS, GROUPS).to_pylist()}
    assert got == {("web", "web"): (2, 180), ("web", "code"): (2, 180), ("code", "web"): (1, 90), ("web", "math"): (1, 70), ("math", "web"): (1, 60)}


def run(records: list[int], documents: list[int], optional: set[int] = frozenset()) -> tuple[list[tuple[int, int]], Alignment[int, int]]:
    found: Alignment[int, int] = Alignment()
    return list(align(records, documents, lambda a, b: a == b, found, lambda r: r in optional)), found


def test_equal_streams_pair_off() -> None:
    pairs, found = run([1, 2, 3], [1, 2, 3])
    assert pairs == [(1, 1), (2, 2), (3, 3)] and found == Alignment(3)


@pytest.mark.parametrize(("records", "documents", "gap"), [
    ([1, 2, 9, 3, 4, 5], [1, 2, 3, 4, 5], Gap(2, 2, 1, 0)),
    ([1, 2, 3, 4, 5], [1, 9, 9, 2, 3, 4, 5], Gap(1, 1, 0, 2)),
    ([1, 7, 8, 2, 3, 4], [1, 9, 2, 3, 4], Gap(1, 1, 2, 1)),
])  # fmt: skip
def test_streams_meet_again(records: list[int], documents: list[int], gap: Gap) -> None:
    pairs, found = run(records, documents)
    assert found.gaps == [gap] and found.parted is None and [a for a, _ in pairs] == [r for r in documents if r != 9]


def test_empty_records_may_be_dropped_or_kept() -> None:
    assert run([0, 1, 0, 0, 2, 0], [1, 2], {0})[1] == Alignment(2)
    assert run([0, 1, 0, 2], [0, 1, 0, 2], {0})[1] == Alignment(4)


def test_a_chance_meeting_is_not_believed() -> None:
    pairs, found = run([1, 5, 6, 7, 8], [1, 9, 5, 2, 3, 4])
    assert pairs == [(1, 1)] and found.parted == (5, 9)


def test_what_is_left_over_is_counted() -> None:
    assert run([1, 2, 3, 4], [1, 2])[1].records_left == 2
    assert run([1, 2], [1, 2, 3])[1].documents_left == 1


@given(st.sets(st.integers(0, 59), max_size=12), st.sets(st.integers(0, 59), max_size=12))
@settings(max_examples=100, deadline=None)
def test_pairs_are_right_and_nothing_common_is_lost(a: set[int], b: set[int]) -> None:
    records, documents = [i for i in range(60) if i not in a], [i for i in range(60) if i not in b]
    pairs, found = run(records, documents)
    assert all(x == y for x, y in pairs) and found.pairs == len(pairs)
    if found.parted is None:
        tail = max((x for x, _ in pairs), default=-1)
        assert [x for x, _ in pairs] == [i for i in range(60) if i not in a | b and i <= tail] or len(found.gaps) > 0
