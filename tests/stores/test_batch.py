"""Batches of documents: texts as bytes, ids of any type, places of evidence, parts."""

from __future__ import annotations

import mmap
from pathlib import Path

import numba
import numpy as np

from forensics.stores.batch import DocumentBatch
from forensics.stores.vocab import parse_vocabulary

VOCAB = parse_vocabulary('{"a": 0, "bc": 1, "Ã©": 2, "<|endoftext|>": 3}'.encode(), "vocab.json")


def test_texts_come_back_and_lone_surrogates_and_nuls_survive_as_damage() -> None:
    batch = DocumentBatch.from_texts(["", "é\x00", "a\ud800b", b"\xff"])
    assert len(batch) == 4 and batch.is_text and batch.lengths.tolist() == [0, 3, 5, 1]
    assert [batch.text(i) for i in range(4)] == ["", "é\x00", "a���b", "�"]


def test_special_ids_are_no_text_and_ids_beyond_give_nothing() -> None:
    batch = DocumentBatch.of_documents([[0, 1, 3], [2, 99], []], vocabulary=VOCAB)
    assert [batch.text(i) for i in range(3)] == ["abc", "é", ""]
    assert batch.text(0, 1, 2) == "bc"


def test_places_are_the_ids_that_hold_the_bytes() -> None:
    batch = DocumentBatch.of_documents([[0, 1, 2, 3, 1]], vocabulary=VOCAB)  # a|bc|é|<end>|bc: bytes 0, 1-2, 3-4, none, 5-6
    assert batch.place(0, [(0, 1), (2, 4), (5, 7)]) == [(0, 1), (1, 3), (4, 5)]
    text = DocumentBatch.from_texts(["abcdef"])
    assert text.place(0, [(2, 4)]) == [(2, 4)]


def test_parts_hold_the_same_documents() -> None:
    batch = DocumentBatch.of_documents([[1] * n for n in (5, 0, 3, 40, 2)], doc_key=np.array([9, 8, 7, 6, 5]))
    parts = list(batch.parts(10))
    assert [k for p in parts for k in p.doc_key.tolist()] == [9, 8, 7, 6, 5]
    assert max(len(p.tokens) for p in parts if len(p) > 1) <= 10
    assert [p.tokens_of(i).tolist() for p in parts for i in range(len(p))] == [batch.tokens_of(i).tolist() for i in range(5)]


def test_kernels_see_mapped_files_texts_and_memory_as_one_type(tmp_path: Path) -> None:
    """A read-only array is another type to numba, and every kernel would be compiled twice."""
    np.arange(9, dtype=np.int32).tofile(tmp_path / "ids.bin")
    with (tmp_path / "ids.bin").open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.int32)
    batch = DocumentBatch.of_tokens(mapped, [0, 4, 9])
    assert numba.typeof(batch.tokens) == numba.typeof(np.zeros(3, np.uint32)) == numba.typeof(batch.part(1, 2).tokens)
    assert batch.tokens.ctypes.data == mapped.ctypes.data
    del mapped
    assert batch.tokens_of(1).tolist() == [4, 5, 6, 7, 8]
    assert {numba.typeof(DocumentBatch.from_texts(t).tokens) for t in (["a", b"bc"], [])} == {numba.typeof(np.zeros(3, np.uint8))}
