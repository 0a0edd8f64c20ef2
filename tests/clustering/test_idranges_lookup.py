"""Runs of neighbours alike, and asking whether a page is in a corpus."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forensics.clustering import lookup
from forensics.clustering.idranges import LEAST, id_ranges, segments
from forensics.clustering.lookup import Index, open_index, save
from forensics.clustering.minhash import sign, values_of
from forensics.errors import StoreError
from forensics.schemas import DOCUMENTS, Documents, doc_key
from forensics.stores.batch import DocumentBatch


def table(lengths: np.ndarray, corpus: int = 0, step: int = 1) -> Documents:
    n = len(lengths)
    numbers = np.arange(n) * step
    return Documents(DOCUMENTS.of({
        "doc_key": numbers + doc_key(corpus, 0), "corpus_id": np.full(n, corpus, np.int32), "doc": numbers, "source": pa.array(["s"] * n, pa.string()),
        "tokens": lengths.astype(np.int64),
    }))  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_a_run_that_is_marked_is_found_to_its_ends(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(6, 1.2, 3000)
    start, size = int(rng.integers(200, 2500)), int(rng.integers(60, 300))
    marks = (rng.random(3000) < 0.02).astype(float)
    marks[start : start + size] = rng.random(size) < 0.7
    found = id_ranges(table(lengths, 5, step=3), {"garbage": marks}).to_pylist()
    runs = sorted({(r["cluster"], r["label"]) for r in found})
    assert len(runs) == 3 and len(found) == 3000
    inside = [(r["doc_key"] - doc_key(5, 0)) // 3 for r in found if r["cluster"] == 1]
    assert abs(inside[0] - start) <= 10 and abs(inside[-1] - (start + size - 1)) <= 10
    assert runs[1][1] == f"corpus 5: documents {inside[0] * 3}-{inside[-1] * 3}"


def test_chance_makes_no_runs() -> None:
    cuts = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        cuts += len(segments(np.stack([rng.normal(6, 1.2, 2000), (rng.random(2000) < 0.02).astype(float)], axis=1))) - 2
    assert cuts <= 1


def test_corpora_are_cut_apart_and_short_ones_not_at_all() -> None:
    lengths = np.concatenate([np.full(100, 50), np.full(100, 5000)]) + np.arange(200) % 7
    two = pa.concat_tables([table(lengths), table(lengths[:90], 1), table(lengths[:3], 2)])
    found = id_ranges(Documents(two)).to_pylist()
    assert {r["label"] for r in found} == {"corpus 0: documents 0-99", "corpus 0: documents 100-199"}
    assert id_ranges(table(np.array([5]))).num_rows == 0 and id_ranges(table(np.empty(0))).num_rows == 0
    assert segments(np.zeros((5 * LEAST, 1))).tolist() == [0, 5 * LEAST]


def corpus(n: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 50_000, 120) for _ in range(n)]


@pytest.mark.parametrize("by_index", [False, True])
def test_a_page_and_its_edited_copy_are_found(tmp_path: Path, by_index: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_index:
        monkeypatch.setattr(lookup, "SMALL", 0)
    documents = corpus(300)
    batch = DocumentBatch.of_documents(documents, np.arange(300) + 1000)
    save(sign(batch), tmp_path / "index.parquet")
    index = open_index(tmp_path / "index.parquet")
    edited = documents[7].copy()
    edited[60] = 1
    asked = DocumentBatch.of_documents([documents[7], edited, corpus(1, 9)[0], []])
    same, near, other, empty = index.ask(asked, 0.6)
    assert (same[0].doc_key, same[0].jaccard) == (1007, 1.0) and len(same) == 1
    assert near[0].doc_key == 1007 and 0.8 < near[0].jaccard < 1.0
    assert other == [] and empty == []


def test_the_parts_of_a_case_are_an_index(tmp_path: Path) -> None:
    documents = corpus(4)
    for i in range(2):
        batch = DocumentBatch.of_documents(documents[2 * i : 2 * i + 2], np.arange(2) + 2 * i)
        pq.write_table(sign(batch), tmp_path / f"part-{i}.parquet")
    index = open_index(tmp_path)
    assert isinstance(index, Index) and index.doc_key.tolist() == [0, 1, 2, 3]
    assert np.array_equal(index.values, values_of(sign(DocumentBatch.of_documents(documents))))
    assert [h[0].doc_key for h in index.ask(DocumentBatch.of_documents(documents))] == [0, 1, 2, 3]


def test_foreign_signatures_are_refused(tmp_path: Path) -> None:
    table = sign(DocumentBatch.of_documents(corpus(1)))
    pq.write_table(table.replace_schema_metadata({"forensics.scheme": "other/3"}), tmp_path / "x.parquet")
    with pytest.raises(StoreError, match="scheme `other/3`"):
        open_index(tmp_path / "x.parquet")
    (tmp_path / "x.parquet").write_bytes(b"nothing")
    with pytest.raises(StoreError, match="does not read"):
        open_index(tmp_path / "x.parquet")
    with pytest.raises(StoreError, match="no signatures"):
        open_index(tmp_path / "..")
