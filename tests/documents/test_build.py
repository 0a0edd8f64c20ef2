"""Consumed segments to documents, and what a sidecar adds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forensics.documents.build import build_documents, describe, document_batches, label_counts, text_bytes, usage
from forensics.documents.provenance import attach, corpus_numbers, read_sidecar
from forensics.errors import StoreError, UsageError
from forensics.schemas import CONSUMED, CORPORA, Consumed, Corpora, doc_key
from forensics.stores.batch import DocumentBatch


class Store:
    """Documents of given lengths in two corpora; document d of length n holds d, d, ..."""

    fingerprint = "store"
    corpora = Corpora(CORPORA.of({
        "corpus_id": [0, 7], "name": ["web_text_document", "code_text_document"], "path": ["/data/a/web_text_document", "/data/b/code_text_document"],
        "format": ["megatron"] * 2, "source": ["web_text_document", "code_text_document"], "documents": [10, 10],
    }))  # fmt: skip

    def document_lengths(self, doc_keys: np.ndarray) -> np.ndarray:
        return (doc_keys & 15) * 3

    def documents(self, doc_keys: np.ndarray) -> DocumentBatch:
        return DocumentBatch.of_documents([np.full((k & 15) * 3, k & 15) for k in doc_keys.tolist()], doc_keys)


def consumed(rows: list[tuple[int, int, int, int, int]]) -> Consumed:
    """Rows (step, seq_start, doc_key, doc_start, doc_stop)."""
    steps, starts, keys, first, last = zip(*rows)
    n = len(rows)
    return Consumed(CONSUMED.of({
        "launch": np.zeros(n, np.int16), "step": list(steps), "sequence": np.arange(n, dtype=np.int32), "seq_start": np.array(starts, np.int32),
        "doc_key": list(keys),
        "doc_start": list(first), "doc_stop": list(last),
    }))  # fmt: skip


def test_labels_are_tokens_without_the_first_of_a_row() -> None:
    table = consumed([(1, 0, 3, 0, 5), (1, 5, 4, 0, 4), (1, 0, 3, 4, 5)])
    assert label_counts(table).tolist() == [4, 4, 0]


def test_documents_of_all_roles() -> None:
    other = doc_key(7, 2)
    window = consumed([(10, 0, 3, 0, 6), (11, 4, 3, 6, 9), (12, 0, other, 0, 6)])
    baseline = consumed([(2, 1, 3, 0, 9), (3, 0, 1, 0, 3)])
    got = build_documents({"window": window, "baseline": baseline}, Store()).to_pylist()
    assert [(r["doc_key"], r["corpus_id"], r["doc"], r["source"], r["tokens"]) for r in got] == [
        (1, 0, 1, "web_text_document", 3), (3, 0, 3, "web_text_document", 9), (other, 7, 2, "code_text_document", 6),
    ]  # fmt: skip
    assert [(r["used_window"], r["used_baseline"], r["used_lookback"], r["first_step"], r["last_step"]) for r in got] == [
        (0, 2, None, 3, 3),
        (8, 9, None, 2, 11),
        (5, 0, None, 12, 12),
    ]
    assert build_documents({}, Store()).num_rows == 0


def test_usage_counts_how_often_a_document_came_up() -> None:
    found = usage(consumed([(1, 3, 5, 0, 2), (2, 3, 5, 0, 2), (2, 9, 4, 0, 2)]))
    assert found.keys.tolist() == [4, 5] and found.segments.tolist() == [1, 2] and found.labels.tolist() == [2, 4]


def test_documents_are_read_in_bounded_batches_and_described() -> None:
    documents = build_documents({"window": consumed([(1, 1, k, 0, 1) for k in (1, 2, 3, 9)])}, Store())
    batches = list(document_batches(documents, Store(), 10))
    assert [b.doc_key.tolist() for b in batches] == [[1, 2], [3], [9]]
    facts = [
        pa.table({"doc_key": b.doc_key, "bytes": pa.array(b.lengths * 2), "content": pa.array([bytes([k] * 16) for k in b.doc_key.tolist()])})
        for b in batches[::-1]
    ]
    got = describe(documents, facts).to_pylist()
    assert [r["bytes"] for r in got] == [6, 12, 18, 54] and got[3]["content"] == b"\t" * 16
    assert describe(documents, []).equals(documents)


def test_bytes_of_texts_and_of_ids_without_tokenizer() -> None:
    assert text_bytes(DocumentBatch.from_texts(["a", "", "äö"]).part(1, 3)).to_pylist() == [0, 4]
    assert text_bytes(DocumentBatch.of_documents([[1, 2]])).to_pylist() == [None]


SIDE = [
    {"corpus": "code_text_document", "document": 2, "source": "github", "url": "https://x.org/f", "crawl": "c-7", "stars": 5},
    {"corpus": "a/web_text_document.bin", "document": 3, "file": "raw.jsonl", "line": 9},
]


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz", "csv"])
def test_a_sidecar_names_documents(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"documents.{kind}"
    table = pa.Table.from_pylist(
        [{**dict.fromkeys(["corpus", "document", "source", "url", "crawl", "file", "line"]), **{k: v for k, v in r.items() if k != "stars"}} for r in SIDE]
    )
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "csv":
        from pyarrow import csv

        csv.write_csv(table, path)
    else:
        import gzip

        raw = "".join(json.dumps(r) + "\n" for r in SIDE).encode()
        path.write_bytes(gzip.compress(raw) if kind.endswith("gz") else raw)
    documents = build_documents({"window": consumed([(1, 1, 3, 0, 1), (1, 2, doc_key(7, 2), 0, 1), (1, 2, doc_key(7, 1), 0, 1)])}, Store())
    got = attach(documents, read_sidecar([path]), Store.corpora).to_pylist()
    assert [r["name"] for r in got] == ["raw.jsonl:9", None, "https://x.org/f"]
    assert [r["source"] for r in got] == ["web_text_document", "code_text_document", "github"] and [r["crawl"] for r in got] == [None, None, "c-7"]


def test_corpora_are_found_by_the_tail_of_their_path() -> None:
    assert corpus_numbers(["b/code_text_document.idx", "web_text_document", "else", "/data/a/web_text_document"], Store.corpora) == {
        "b/code_text_document.idx": 7, "web_text_document": 0, "/data/a/web_text_document": 0,
    }  # fmt: skip
    twice = Corpora(
        CORPORA.of({"corpus_id": [0, 1], "name": ["t", "t"], "path": ["/a/t", "/b/t"], "format": ["megatron"] * 2, "source": ["t", "t"], "documents": [1, 1]})
    )
    with pytest.raises(UsageError, match="fits 2 corpora"):
        corpus_numbers(["t"], twice)


def test_bad_sidecars_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        read_sidecar([tmp_path / "x.parquet"])
    (tmp_path / "a.jsonl").write_text('{"corpus": "a", "documents": 3}\n')
    with pytest.raises(StoreError, match="lacks the column `document`; did you mean `documents`"):
        read_sidecar([tmp_path / "a.jsonl"])
    (tmp_path / "b.csv").write_bytes(b"corpus,document,source\na,1,caf\xe9\n")
    with pytest.raises(StoreError, match="UTF-8"):
        read_sidecar([tmp_path / "b.csv"])
    (tmp_path / "c.csv").write_text("corpus,document\na,one\n")
    with pytest.raises(StoreError, match="`document`"):
        read_sidecar([tmp_path / "c.csv"])
    assert read_sidecar([]).num_rows == 0
