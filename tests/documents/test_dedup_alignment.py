"""What copies cost, and which record became which document."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.documents.alignment import Alignment, Gap, align
from forensics.documents.dedup import count_seen, dedup_summary, source_matrix
from forensics.schemas import CLUSTERS, CONSUMED, DOCUMENTS, SEEN, Documents, Seen
from forensics.steps import StepRange

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
    seen = Seen(SEEN.of({"doc_key": [10, 11, 12], "window": [1, 0, 1], "so_far": [3, 1, 1], "run": [4, 1, 2]}))
    got = dedup_summary(DOCS, GROUPS, seen).to_pylist()
    assert [(r["kind"], r["cluster"], r["members"], r["representative"], r["tokens"], r["tokens_saved"], r["sources"]) for r in got] == [
        ("exact", 0, 2, 12, 150, 70, ["web"]), ("near", 0, 3, 10, 270, 170, ["code", "web"]), ("near", 1, 2, 13, 130, 60, ["math", "web"]),
    ]  # fmt: skip
    assert [(r["window_documents"], r["baseline_documents"]) for r in got] == [(1, 0), (2, 1), (0, 0)]
    assert [(r["times_window"], r["times_so_far"], r["times_seen"]) for r in got] == [(1, 1, 2), (2, 5, 7), (None, None, None)]


def test_without_roles_or_copies() -> None:
    plain = DOCS.drop_columns(["used_window", "used_baseline"])
    got = dedup_summary(Documents(DOCUMENTS.of(plain)), GROUPS)
    assert got.column("window_documents").null_count == 3 and got.column("times_seen").null_count == 3
    assert dedup_summary(DOCS, GROUPS.slice(7)).num_rows == 0
    assert source_matrix(DOCS, GROUPS.slice(7)).num_rows == 0


def test_how_often_documents_were_consumed_in_the_window_so_far_and_in_the_run() -> None:
    class Store:
        def document_lengths(self, doc_keys: np.ndarray) -> np.ndarray:
            return np.full(len(doc_keys), 100)

    def read(rows: list[tuple[int, int, int, int]]) -> pa.Table:
        """Launch, step, document, tokens."""
        launch, step, key, tokens = (list(c) for c in zip(*rows, strict=True))
        n = len(rows)
        return CONSUMED.of({
            "launch": launch, "step": step, "sequence": np.zeros(n, np.int32), "seq_start": np.zeros(n, np.int32), "doc_key": key,
            "doc_start": np.zeros(n, np.int64), "doc_stop": tokens,
        })  # fmt: skip

    path = [(0, StepRange(1, 10)), (2, StepRange(10, 100))]
    parts = [
        read([(0, 3, 7, 60), (0, 4, 7, 40), (0, 11, 7, 100), (1, 12, 7, 100), (2, 20, 7, 100)]),  # 11 of launch 0 and all of launch 1 were rolled back
        read([(2, 25, 9, 20), (2, 90, 7, 30), (2, 91, 3, 100)]),
    ]
    got = count_seen(parts, Store(), StepRange(20, 30), path)
    assert got.to_pylist() == [
        {"doc_key": 3, "window": 0, "so_far": 0, "run": 1}, {"doc_key": 7, "window": 1, "so_far": 2, "run": 3},
        {"doc_key": 9, "window": 1, "so_far": 1, "run": 1},
    ]  # fmt: skip
    assert count_seen([], Store(), StepRange(20, 30), path).num_rows == 0


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
