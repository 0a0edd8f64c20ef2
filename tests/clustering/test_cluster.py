"""Clusters against brute force, with and without the documents themselves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from forensics.clustering.cluster import ClusterSettings, cluster
from forensics.clustering.duplicates import with_duplicates
from forensics.clustering.exact import content_hashes, same_content
from forensics.clustering.minhash import sign
from forensics.clustering.verify import jaccard
from forensics.schemas import DOCUMENTS, FINDINGS, Documents
from forensics.stores.batch import DocumentBatch


class Kept:
    """Documents in memory as a reader that counts what is asked."""

    fingerprint = "kept"

    def __init__(self, documents: list[np.ndarray]) -> None:
        self.all, self.asked = documents, 0
        self.prepared: set[int] = set()

    def prepare(self, doc_keys: np.ndarray) -> None:
        self.prepared |= set(doc_keys.tolist())

    def documents(self, doc_keys: np.ndarray) -> DocumentBatch:
        assert set(doc_keys.tolist()) <= self.prepared, "asked for what was not announced"
        self.asked += len(doc_keys)
        return DocumentBatch.of_documents([self.all[k] for k in doc_keys], doc_keys)


def shingles(ids: np.ndarray) -> set[tuple[int, ...]]:
    d = ids.tolist()
    return {tuple(d[i : i + 5]) for i in range(len(d) - 4)} or ({tuple(d)} if d else set())


def corpus(seed: int, n: int = 150) -> list[np.ndarray]:
    """Random documents, edited copies of some at various distances, exact copies, empty and one-token ones."""
    rng = np.random.default_rng(seed)
    out = [rng.integers(0, 50_000, rng.integers(20, 500)) for _ in range(n)]
    for i in range(0, n, 3):
        copy = out[i].copy()
        copy[rng.integers(0, len(copy), max(1, int(len(copy) * rng.choice([0.005, 0.02, 0.05, 0.3]))))] = 50_001
        out.append(copy)
    return [*out, out[4].copy(), out[4].copy(), np.array([], np.int64), np.array([], np.int64), np.array([7]), np.array([7]), np.array([8])]


def table_of(documents: list[np.ndarray], batch: DocumentBatch, **more: list[str | None]) -> Documents:
    n = len(documents)
    return Documents(DOCUMENTS.of({
        "doc_key": batch.doc_key, "corpus_id": np.zeros(n, np.int32), "doc": batch.doc_key, "source": ["web" if i % 2 else "code" for i in range(n)],
        "tokens": batch.lengths, "content": content_hashes(batch), **{k: pa.array(v, pa.string()) for k, v in more.items()},
    }))  # fmt: skip


def members(table: pa.Table, kind: str) -> dict[int, set[int]]:
    out: dict[int, set[int]] = {}
    for row in table.to_pylist():
        if row["kind"] == kind:
            out.setdefault(row["cluster"], set()).add(row["doc_key"])
    return out


def brute_force(documents: list[np.ndarray], threshold: float) -> set[frozenset[int]]:
    sets = [shingles(d) for d in documents]
    found: list[set[int]] = []
    for i in range(len(sets)):
        joined = {i}
        for j in range(i):
            if sets[i] and sets[j] and len(sets[i] & sets[j]) / len(sets[i] | sets[j]) >= threshold:
                joined |= next(c for c in found if j in c)
        found = [c for c in found if not c & joined] + [joined]
    return {frozenset(c) for c in found if len(c) > 1}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_near_clusters_are_those_of_brute_force(seed: int) -> None:
    documents = corpus(seed)
    batch = DocumentBatch.of_documents(documents)
    found = cluster(sign(batch), table_of(documents, batch), ClusterSettings(0.8, 0.9999), Kept(documents))
    assert {frozenset(m) for m in members(found, "near").values()} == brute_force(documents, 0.8)
    for row in found.to_pylist():
        if row["kind"] == "near":
            a, b = shingles(documents[row["representative"]]), shingles(documents[row["doc_key"]])
            assert row["jaccard"] == pytest.approx(len(a & b) / len(a | b), abs=1e-6)


def test_exact_clusters_hold_equal_documents_and_no_empty_ones() -> None:
    documents = corpus(0)
    batch = DocumentBatch.of_documents(documents)
    found = members(cluster(sign(batch), table_of(documents, batch)), "exact")
    n = len(documents)
    assert set(map(frozenset, found.values())) == {frozenset({4, n - 7, n - 6}), frozenset({n - 3, n - 2})}


def test_the_representative_is_the_longest_then_the_lowest() -> None:
    base = np.arange(300)
    documents = [base[:290], base, base.copy(), base[:280]]
    batch = DocumentBatch.of_documents(documents)
    rows = [r for r in cluster(sign(batch), table_of(documents, batch), reader=Kept(documents)).to_pylist() if r["kind"] == "near"]
    assert {r["representative"] for r in rows} == {1} and {r["doc_key"] for r in rows} == {0, 1, 2, 3}


def test_exact_copies_of_the_first_document_need_no_other_pair() -> None:
    documents = [np.arange(300), np.arange(300), np.arange(900, 1200)]
    batch = DocumentBatch.of_documents(documents)
    rows = [r for r in cluster(sign(batch), table_of(documents, batch), reader=Kept(documents)).to_pylist() if r["kind"] == "near"]
    assert [(r["doc_key"], r["jaccard"]) for r in rows] == [(0, 1.0), (1, 1.0)]


def test_without_documents_signatures_decide() -> None:
    documents = corpus(1)
    batch = DocumentBatch.of_documents(documents)
    found = members(cluster(sign(batch), table_of(documents, batch)), "near")
    loose = brute_force(documents, 0.55)
    assert all(any(m <= c for c in loose) for m in found.values())
    assert {frozenset(m) for m in found.values()} >= brute_force(documents, 0.97)


def test_labels_become_clusters() -> None:
    documents = [np.arange(9), np.arange(10, 30), np.arange(40, 70)]
    batch = DocumentBatch.of_documents(documents)
    table = table_of(documents, batch, name=["https://User@Example.org:8080/a?b", "http://example.org", "no url"], crawl=["c2", None, "c1"])
    rows = [r for r in cluster(sign(batch), table).to_pylist() if r["kind"] in ("source", "crawl", "host")]
    assert [(r["kind"], r["label"], r["cluster"], r["doc_key"]) for r in rows] == [
        ("crawl", "c1", 0, 2), ("crawl", "c2", 1, 0), ("host", "example.org", 0, 0), ("host", "example.org", 0, 1),
        ("source", "code", 0, 0), ("source", "code", 0, 2), ("source", "web", 1, 1),
    ]  # fmt: skip


def test_batches_do_not_change_contents_or_clusters() -> None:
    documents = corpus(2)
    whole = DocumentBatch.of_documents(documents)
    parts = list(whole.parts(1000))
    assert pa.concat_arrays([content_hashes(p) for p in parts]).equals(content_hashes(whole))
    signatures = pa.concat_tables([sign(p) for p in parts])
    table = table_of(documents, whole)
    assert cluster(signatures, table, reader=Kept(documents)).equals(cluster(sign(whole), table, reader=Kept(documents)))


def test_hashes_are_those_that_others_can_compute() -> None:
    import xxhash

    ids = [5, 6, 70_000]
    assert content_hashes(DocumentBatch.of_documents([ids]))[0].as_py() == xxhash.xxh3_128_digest(np.array(ids, "<u4").tobytes())
    assert content_hashes(DocumentBatch.from_texts(["grün"]))[0].as_py() == xxhash.xxh3_128_digest("grün".encode())
    assert content_hashes(DocumentBatch.of_tokens(np.array(ids, np.int64), np.array([0, 3])))[0] == content_hashes(DocumentBatch.of_documents([ids]))[0]


def test_unknown_contents_stand_alone() -> None:
    assert same_content(pa.array([b"a" * 16, None, b"a" * 16, None, b"b" * 16], pa.binary(16))).tolist() == [0, 1, 0, 3, 4]
    assert same_content(pa.array([], pa.binary(16))).tolist() == []
    halves = [b"a" * 8 + b"b" * 8, b"a" * 8 + b"c" * 8, b"a" * 8 + b"b" * 8, b"d" * 8 + b"b" * 8]
    assert same_content(pa.array(halves, pa.binary(16))).tolist() == [0, 1, 0, 3]


def test_exact_similarity_of_pairs() -> None:
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 9, n) for n in (0, 1, 3, 5, 60, 60, 4000, 9000)] + [np.full(5000, 3)]
    ids, offsets = np.concatenate(documents).astype(np.uint32), np.cumsum([0] + [len(d) for d in documents]).astype(np.int64)
    a, b = np.array([(i, j) for i in range(len(documents)) for j in range(len(documents))]).T
    sets = [shingles(d) for d in documents]
    expected = [len(sets[i] & sets[j]) / len(sets[i] | sets[j]) if sets[i] and sets[j] else 0.0 for i, j in zip(a, b)]
    np.testing.assert_allclose(jaccard(ids, offsets, a, b), expected, atol=1e-6)


def test_huge_documents_are_compared_on_a_share_of_their_shingles(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    base = rng.integers(0, 1 << 31, 3_000_000, dtype=np.uint32)
    other = base.copy()
    other[:150_000] = rng.integers(0, 1 << 31, 150_000, dtype=np.uint32)
    got = jaccard(np.concatenate([base, other]), np.array([0, len(base), 2 * len(base)]), np.array([0]), np.array([1]))
    assert got[0] == pytest.approx(2_850_000 / 3_150_000, abs=0.002)


def test_copies_are_findings_but_no_garbage() -> None:
    documents = corpus(0)
    batch = DocumentBatch.of_documents(documents)
    clusters = cluster(sign(batch), table_of(documents, batch), reader=Kept(documents))
    n = len(documents)
    flagged = FINDINGS.of({
        "doc_key": [n - 7], "detector": ["repetition"], "measure": ["share"], "cause": ["repetition"], "primary": [True], "garbage": [True],
        "version": [1], "value": [0.5], "threshold": [0.2],
    })  # fmt: skip
    rows = {r["doc_key"]: r for r in with_duplicates(flagged, clusters, 0.8).to_pylist() if r["cause"] == "duplicate"}
    assert not any(r["garbage"] for r in rows.values())
    assert rows[n - 7]["measure"] == "exact" and not rows[n - 7]["primary"]
    assert rows[n - 6]["primary"] and rows[n - 6]["detail"] == "copy of document 4"
    assert 4 not in rows and any(r["measure"] == "jaccard" and 0.8 <= r["value"] < 1 for r in rows.values())
    assert with_duplicates(FINDINGS.empty(), clusters.slice(0, 0), 0.8).num_rows == 0
