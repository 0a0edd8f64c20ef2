"""Parquet, Arrow and raw token arrays, and the opening of all of them by content."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forensics.errors import StoreError, UsageError
from forensics.schemas import DOC_BITS, DOC_MASK
from forensics.stores.arrow import ArrowFile
from forensics.stores.corpus import Corpus
from forensics.stores.flat import FlatFile, ends_of, guess_type
from forensics.stores.jsonl import JsonlFile
from forensics.stores.records import Part, ReadOptions, RecordFile
from forensics.stores.sniff import MegatronRecords, expand, open_records
from forensics.stores.write import MegatronWriter

TEXTS = ["first", "", "dritter äöü", None, "fünfter " * 40, "six"]


def read(file: RecordFile, size: int = 1 << 30, max_bytes: int = 1 << 20) -> list[Part]:
    return [part for shard in file.shards(size) for part in file.parts(shard, 2, max_bytes)]


def rows(parts: list[Part]) -> list[tuple[int, list[int]]]:
    return [(int(k) & DOC_MASK, p.batch.tokens_of(i).tolist()) for p in parts for i, k in enumerate(p.batch.doc_key)]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view(), pa.binary()])
def test_text_columns_of_every_type(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array(TEXTS, pa.string()).cast(pa.binary()) if kind == pa.binary() else pa.array(TEXTS, pa.string()).cast(kind)
    table = pa.table({"url": [f"u{i}" for i in range(6)], "text": column, "source": pa.array(["web"] * 6).dictionary_encode()})
    expected = [(i, list(t.encode())) for i, t in enumerate(TEXTS) if t is not None]
    paths = [tmp_path / name for name in ("a.parquet", "b.arrow", "c.arrow")]
    if kind != pa.string_view():
        pq.write_table(table, paths[0], row_group_size=2)
    with pa.ipc.new_file(paths[1], table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    with pa.ipc.new_stream(paths[2], table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    for path in (p for p in paths if p.exists()):
        for size, most in ((1 << 30, 1 << 20), (1, 10)):
            got = read(open_records(path), size, most)
            assert rows(got) == expected
            assert [n for p in got for n in p.name or []] == ["u0", "u1", "u2", "u4", "u5"]
            assert {s for p in got for s in p.source or []} == {"web"}
            assert [f.error for p in got for f in p.failures] == ["`text` is null"]


def test_token_columns(tmp_path: Path) -> None:
    path = tmp_path / "tokens.parquet"
    pq.write_table(pa.table({"input_ids": [[1, 2], [], None, [70_000, 4, 5]], "id": [10, 11, 12, 13]}), path)
    got = read(open_records(path))
    assert rows(got) == [(0, [1, 2]), (1, []), (3, [70_000, 4, 5])] and got[0].name == ["10", "11", "13"]
    assert not got[0].batch.is_text


def test_a_table_without_documents_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [1], "b": ["t"]}), path)
    with pytest.raises(StoreError, match="its columns are a, b"):
        ArrowFile(path)
    assert rows(read(ArrowFile(path, ReadOptions(text="b")))) == [(0, [116])]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StoreError, match="does not read"):
        ArrowFile(path)


def test_a_torn_stream_gives_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    table = pa.table({"text": [f"text {i}" * 50 for i in range(400)]})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    path.write_bytes(path.read_bytes()[:-30_000])
    got = read(open_records(path))
    assert 100 <= len(rows(got)) < 400 and any("does not read further" in f.error for p in got for f in p.failures)


def test_a_saved_dataset_is_its_files_in_its_order(tmp_path: Path) -> None:
    for i in range(2):
        with pa.ipc.new_stream(tmp_path / f"data-{i}.arrow", pa.schema([("text", pa.string())])) as writer:
            writer.write_table(pa.table({"text": [f"t{i}"]}))
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "data-1.arrow"}, {"filename": "data-0.arrow"}]}')
    assert [p.name for p in expand([tmp_path])] == ["data-1.arrow", "data-0.arrow"]


DOCS = [[5, 6, 0], [0], [9, 9, 9, 0], [7, 8]]


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "uint64", "int64"])
def test_raw_arrays_of_every_type(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "part.npy"
    np.concatenate([np.array(d) for d in DOCS]).astype(dtype).tofile(path)
    file = open_records(path, ReadOptions(dtype=dtype, eos=0))
    assert isinstance(file, FlatFile)
    for size, most in ((1 << 30, 1 << 20), (1, 1)):
        assert rows(read(file, size, most)) == list(enumerate(DOCS))
    assert file.documents(np.array([2, 0]), 1).tokens.tolist() == [9, 9, 9, 0, 5, 6, 0]
    assert file.document_lengths(np.array([3])).tolist() == [2] and file.n_tokens == 10


def test_the_type_is_told_from_the_values() -> None:
    ids = np.random.default_rng(0).integers(0, 50_000, 4000)
    assert guess_type(ids.astype("<u2").view(np.uint8)) == np.uint16
    assert guess_type(ids.astype("<u4").view(np.uint8)) == np.uint32
    assert guess_type((ids + 100_000).astype("<u4").view(np.uint8)) == np.uint32
    assert guess_type(np.empty(0, np.uint8)) == np.uint16


def test_headers_and_companions(tmp_path: Path) -> None:
    flat = np.concatenate([np.array(d, np.uint32) for d in DOCS])
    np.save(tmp_path / "real.npy", flat)
    assert rows(read(open_records(tmp_path / "real.npy", ReadOptions(eos=0)))) == list(enumerate(DOCS))
    nano = np.zeros(256, "<i4")
    nano[:3] = 20240520, 1, len(flat)
    (tmp_path / "fine.bin").write_bytes(nano.tobytes() + flat.astype("<u2").tobytes())
    assert rows(read(open_records(tmp_path / "fine.bin", ReadOptions(eos=0)))) == list(enumerate(DOCS))
    flat.tofile(tmp_path / "dolma.npy")
    (tmp_path / "dolma.csv.gz").write_bytes(gzip.compress(b"0,3,one,s3://a/b.jsonl.gz,4\n4,8,two,s3://a/b.jsonl.gz,5\n"))
    got = read(open_records(tmp_path / "dolma.npy", ReadOptions(dtype="uint32")))
    assert rows(got) == [(0, DOCS[0]), (1, DOCS[2])] and got[0].name == ["one", "two"]
    flat.astype("<u2").tofile(tmp_path / "n.ds")
    np.cumsum([len(d) for d in DOCS]).astype("<u8").tofile(tmp_path / "n.ds.index")
    assert rows(read(open_records(tmp_path / "n.ds", ReadOptions(dtype="uint16")))) == list(enumerate(DOCS))


def test_what_a_raw_array_lacks_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"\x01\x02\x03")
    with pytest.raises(StoreError, match="no multiple of 2"):
        FlatFile(path, "uint16", 0)
    path.write_bytes(b"\x01\x02")
    with pytest.raises(UsageError, match="where documents"):
        FlatFile(path, "uint16")
    with pytest.raises(UsageError, match="float32"):
        FlatFile(path, "float32", 0)
    with pytest.raises(UsageError, match="type no-such-type"):
        FlatFile(path, "no-such-type", 0)
    path.write_bytes(b"")
    assert read(FlatFile(path, "uint16", 0)) == []


def test_ends_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forensics.stores.flat.BLOCK", 3)
    assert ends_of(np.array([1, 0, 2, 0, 0, 5, 6]), np.int64(0)).tolist() == [2, 4, 5, 7]
    assert ends_of(np.array([1, 2, 0]), np.int64(0)).tolist() == [3]
    assert ends_of(np.empty(0, np.uint16), np.int64(0)).tolist() == []


def test_formats_are_told_by_content(tmp_path: Path) -> None:
    with MegatronWriter(tmp_path / "m", np.dtype(np.int32)) as writer:
        writer.add(np.array([1, 2, 3]), np.array([2, 1]))
    (tmp_path / "no-suffix").write_bytes(b'\n {"text": "a"}\n')
    (tmp_path / "list.json").write_text('[{"text": "a"}]')
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("hello")
    for name in ("m", "m.idx", "m.bin"):
        assert isinstance(open_records(tmp_path / name), MegatronRecords)
    assert rows(read(open_records(tmp_path / "m"))) == [(0, [1, 2]), (1, [3])]
    assert isinstance(open_records(tmp_path / "no-suffix"), JsonlFile)
    assert rows(read(open_records(tmp_path / "empty.jsonl"))) == []
    with pytest.raises(StoreError, match="one JSON list"):
        open_records(tmp_path / "list.json")
    with pytest.raises(StoreError, match="no file of documents"):
        open_records(tmp_path / "notes.txt")
    assert [p.name for p in expand([tmp_path])] == ["empty.jsonl", "list.json", "m"]
    with pytest.raises(UsageError, match="does not exist"):
        expand([tmp_path / "nothing"])
    (tmp_path / "sub").mkdir()
    with pytest.raises(UsageError, match="holds no file"):
        expand([tmp_path / "sub"])


def test_a_corpus_gives_documents_again(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "alpha"}\n\n{"text": "beta"}\n')
    pq.write_table(pa.table({"text": ["gamma", "delta"]}), tmp_path / "b.parquet")
    corpus = Corpus([open_records(tmp_path / n) for n in ("a.jsonl", "b.parquet")], tmp_path)
    keys = np.array([(1 << DOC_BITS) | 1, 2, 0, 2])
    with pytest.raises(StoreError, match="second look"):
        corpus.documents(keys)
    corpus.prepare(keys)
    batch = corpus.documents(keys)
    assert [batch.text(i) for i in range(4)] == ["delta", "beta", "alpha", "beta"] and batch.doc_key.tolist() == keys.tolist()
    corpus.forget()
    assert not list(tmp_path.glob("spool*"))
    assert corpus.table([2, 2], [9, 10]).column("source").to_pylist() == ["a", "b"]
