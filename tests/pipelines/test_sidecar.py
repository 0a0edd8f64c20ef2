"""A sidecar from raw lines and the .idx made from them: texts compared, gaps named, the place where it stops."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import typer
from forensics.pipelines.sidecar import make_sidecar
from typer.testing import CliRunner

from forensics.cli.sidecar import command
from forensics.documents.provenance import read_sidecar
from forensics.errors import StoreError, UsageError
from forensics.stores.records import ReadOptions
from forensics.stores.write import MegatronWriter

TEXTS = [f"Document {i}: {'äöü words and more ' * (i % 7 + 1)}{i * 7919}" for i in range(60)]
END = 256


def tokenizer(folder: Path) -> Path:
    """A byte-level vocabulary: one token per byte, and one that ends a document."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in keep} | {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in keep)}
    vocabulary = {letters[b]: b for b in range(256)}
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({
        "version": "1.0", "added_tokens": [{"id": END, "content": "<|endoftext|>", "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }))  # fmt: skip
    return path


def write(folder: Path, texts: list[str]) -> Path:
    with MegatronWriter(folder / "c_text_document", np.dtype(np.uint16)) as writer:
        for t in texts:
            ids = np.append(np.frombuffer(t.encode(), np.uint8).astype(np.uint16), END)
            writer.add(ids, np.array([len(ids)]))
    return folder / "c_text_document.idx"


def raw(path: Path, texts: list[str], first: int = 0) -> Path:
    lines = [json.dumps({"text": t, "url": f"https://x.org/{first + i}", "crawl": "c-1", "meta": {"source": "web"}}) for i, t in enumerate(texts)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_every_document_gets_its_line(tmp_path: Path) -> None:
    files = [raw(tmp_path / "a.jsonl", TEXTS[:20]), raw(tmp_path / "b.jsonl", ["", *TEXTS[20:], "  "], 19)]
    out = make_sidecar(files, write(tmp_path, TEXTS), tmp_path / "side.parquet", ReadOptions(tokenizer=tokenizer(tmp_path)))
    rows = pq.read_table(tmp_path / "side.parquet").to_pylist()
    assert out.exact == 60 and out.alignment.pairs == 60 and not out.alignment.gaps and out.stopped_at is None
    assert [r["document"] for r in rows] == list(range(60)) and [r["line"] for r in rows] == [*range(20), *range(1, 41)]
    assert rows[30]["url"] == "https://x.org/30" and rows[30]["source"] == "web" and rows[30]["crawl"] == "c-1" and rows[30]["corpus"] == "c_text_document"
    for r in rows[::13]:
        assert json.loads(Path(r["file"]).read_bytes()[r["offset"] :].split(b"\n")[0])["text"] == TEXTS[r["document"]]
    assert read_sidecar([tmp_path / "side.parquet"]).num_rows == 60


def test_without_a_tokenizer_order_and_length_speak(tmp_path: Path) -> None:
    out = make_sidecar([raw(tmp_path / "a.jsonl", TEXTS)], write(tmp_path, TEXTS), tmp_path / "side.parquet", ReadOptions())
    assert out.exact is None and out.alignment.pairs == 60


def test_missing_records_and_documents_are_gaps(tmp_path: Path) -> None:
    options = ReadOptions(tokenizer=tokenizer(tmp_path))
    out = make_sidecar([raw(tmp_path / "a.jsonl", TEXTS)], write(tmp_path, TEXTS[:10] + TEXTS[14:]), tmp_path / "side.parquet", options)
    assert [(g.record, g.records, g.documents) for g in out.alignment.gaps] == [(10, 4, 0)]
    rows = pq.read_table(tmp_path / "side.parquet").to_pylist()
    assert [r["line"] for r in rows] == [*range(10), *range(14, 60)] and [r["document"] for r in rows] == list(range(56))
    assert make_sidecar([raw(tmp_path / "a.jsonl", TEXTS[:50])], write(tmp_path, TEXTS), tmp_path / "side.parquet", options).alignment.documents_left == 10


def test_it_says_where_it_stops_matching(tmp_path: Path) -> None:
    corpus = write(tmp_path, TEXTS[:25] + [t[::-1] for t in TEXTS])
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(
        app, [str(raw(tmp_path / "a.jsonl", TEXTS)), "--corpus", str(corpus), "-o", str(tmp_path / "s.parquet"), "--tokenizer", str(tokenizer(tmp_path))]
    )
    assert done.exit_code == 1 and "25 documents matched, 25 of them equal" in done.stdout
    assert f"stops matching at {tmp_path / 'a.jsonl'}:26 and document 25" in done.stdout
    assert pq.read_table(tmp_path / "s.parquet").num_rows == 25


def test_nothing_fits(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no record of"):
        make_sidecar(
            [raw(tmp_path / "a.jsonl", TEXTS)], write(tmp_path, [t[::-1] for t in TEXTS]), tmp_path / "s.parquet", ReadOptions(tokenizer=tokenizer(tmp_path))
        )
    assert not (tmp_path / "s.parquet").exists()


def test_normalised_texts_still_match_but_are_not_counted_as_equal(tmp_path: Path) -> None:
    out = make_sidecar(
        [raw(tmp_path / "a.jsonl", [f" {t}\n\n" for t in TEXTS])], write(tmp_path, TEXTS), tmp_path / "s.parquet", ReadOptions(tokenizer=tokenizer(tmp_path))
    )
    assert out.alignment.pairs == 60 and out.exact == 0


def test_raw_records_and_corpora_are_never_overwritten(tmp_path: Path) -> None:
    lines, idx = raw(tmp_path / "a.jsonl", TEXTS), write(tmp_path, TEXTS)
    for there in (lines, idx, idx.with_suffix(".bin")):
        before = there.read_bytes()
        with pytest.raises(UsageError, match="no sidecar"):
            make_sidecar([lines], idx, there, ReadOptions())
        assert there.read_bytes() == before
    make_sidecar([lines], idx, tmp_path / "side.parquet", ReadOptions())
    make_sidecar([lines], idx, tmp_path / "side.parquet", ReadOptions())
