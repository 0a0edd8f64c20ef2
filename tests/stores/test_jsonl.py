r"""JSON Lines: split on `\n` alone, every bad line accounted for, any cut of the file the same."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import zstandard

from forensics.schemas import DOC_MASK
from forensics.stores.jsonl import JsonlFile, as_one
from forensics.stores.records import Failure, Part, ReadOptions, Shard

ODD = [
    {"id": "a", "text": "one\u2028two\u0085three\x0cfour"},
    {"id": "b", "text": ""},
    {"id": "c", "text": "lone \ud800 surrogate"},
    {"id": "d", "text": "x" * 5000, "meta": {"source": "web", "lang": "de"}},
]


def read(path: Path, size: int = 1 << 30, max_bytes: int = 1 << 20, options: ReadOptions = ReadOptions()) -> list[Part]:  # noqa: B008
    file = JsonlFile(path, options)
    return [part for shard in file.shards(size) for part in file.parts(shard, 3, max_bytes)]


def rows(parts: list[Part]) -> list[tuple[int, bytes, str | None, str | None]]:
    return [
        (int(key) & DOC_MASK, p.batch.tokens_of(i).tobytes(), p.name[i] if p.name else None, p.source[i] if p.source else None)
        for p in parts
        for i, key in enumerate(p.batch.doc_key)
    ]


def failures(parts: list[Part]) -> list[tuple[str, str]]:
    return [(f.item.rsplit("/", 1)[1], f.error) for p in parts for f in p.failures]


def lines(records: list[dict[str, object]], ascii_only: bool = False) -> bytes:
    return b"".join(json.dumps(r, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") + b"\n" for r in records)


@pytest.mark.parametrize("pack", [lambda b: b, gzip.compress, zstandard.ZstdCompressor().compress, lambda b: gzip.compress(b[:100]) + gzip.compress(b[100:])])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_texts_come_out_as_they_were_written(tmp_path: Path, pack, ascii_only: bool) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(pack(lines(ODD, ascii_only)))
    got = read(path)
    assert [(n, t.decode("utf-8", "surrogatepass")) for n, t, _, _ in rows(got)] == [(i, r["text"]) for i, r in enumerate(ODD)]
    assert [r[2] for r in rows(got)] == ["a", "b", "c", "d"] and rows(got)[3][3] == "web" and got[0].language == [None, None, None, "de"]
    assert failures(got) == []


@pytest.mark.parametrize("pack", [lambda b: b, gzip.compress])
@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_chosen_records_are_those_of_all_and_other_lines_are_not_read(tmp_path: Path, pack, max_bytes: int) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(pack(lines(ODD) + b"{torn\n" + lines(ODD) + b"{torn"))
    wanted = np.array([3, 1, 5, 8])
    everything, some = rows(read(path)), list(JsonlFile(path).chosen(wanted, 3, max_bytes))
    assert rows(some) == [r for r in everything if r[0] in (1, 3, 5, 8)] and len(rows(some)) == 4
    assert failures(some) == [] != failures(read(path))


def test_what_holds_no_document_is_a_failure_and_leaves_its_number_free(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    deep = b'{"text":"t","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    bad = [b"{torn", b"[1]", b'{"text": null}', b'{"words": 1}', b"", b"   ", b'{"text": ["a"]}', deep, b'{"text": "caf\xe9"}', b'{"text": "good"}']
    path.write_bytes(b"\n".join(bad))
    got = read(path)
    assert [(n, t) for n, t, _, _ in rows(got)] == [(8, "caf\ufffd".encode()), (9, b"good")]
    said = dict(failures(got))
    assert set(said) == {f"bad.jsonl:{i}" for i in (1, 2, 3, 4, 7, 8, 9)}
    assert said["bad.jsonl:3"] == "no text: `text` holds null" and "the keys are words" in said["bad.jsonl:4"] and "U+FFFD" in said["bad.jsonl:9"]
    assert "nested too deeply" in said["bad.jsonl:8"] or "no JSON" in said["bad.jsonl:8"]


def test_a_byte_order_mark_is_part_of_no_record(tmp_path: Path) -> None:
    path = tmp_path / "bom.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + lines(ODD) + b"\xef\xbb\xbf" + lines(ODD[:1]))
    got = read(path)
    assert [r[2] for r in rows(got)] == ["a", "b", "c", "d"] and [item for item, _ in failures(got)] == ["bom.jsonl:5"]


@pytest.mark.parametrize("size", [1, 7, 64, 1000, 5100])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_any_cut_gives_the_same_documents(tmp_path: Path, size: int, end: bytes) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(lines([*ODD, *ODD[:3]])[:-1] + end)
    whole = rows(read(path))
    assert rows(read(path, size, max_bytes=10)) == whole and len(whole) == 7


def test_a_torn_compressed_file_gives_what_was_there(tmp_path: Path) -> None:
    records = [{"text": f"{i} {'word ' * (i % 90)}{i * 7919 % 1000}"} for i in range(3000)]
    for packed in (zstandard.ZstdCompressor(level=1).compress(lines(records)), gzip.compress(lines(records))):
        path = tmp_path / "torn.jsonl.zst"
        path.write_bytes(packed[: len(packed) // 2])
        got = read(path)
        assert 0 < len(rows(got)) < 3000 and rows(got)[0][1] == records[0]["text"].encode()
        assert any("ends too early" in e for _, e in failures(got))
        damaged = bytearray(packed)
        damaged[len(packed) // 2 : len(packed) // 2 + 40] = b"\xff" * 40
        path.write_bytes(damaged)
        assert any("damaged" in e or "ends too early" in e or "no JSON" in e for _, e in failures(read(path)))


def test_many_failures_are_counted_by_kind(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"{\n" * 500)
    found = [f for p in read(path) for f in p.failures]
    assert sum(f.count for f in found) == 500 and len(found) == 21 and found[-1].error == "no JSON (further lines)"


@pytest.mark.parametrize("size", [40, 500, 1700])
def test_failures_of_shards_are_those_of_the_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes((b'{"text": "a"}\n{\n["b"]\n' * 50 + b'{"text": 3}\n') * 3)

    def found(size: int) -> list[Failure]:
        file = JsonlFile(path)
        return as_one(path, [f for s in file.shards(size) for p in file.parts(s, 0, 1 << 20) for f in p.failures])

    whole = found(1 << 30)
    assert found(size) == whole and len(whole) == 23 and sum(f.count for f in whole) == 303
    assert whole == [f for p in JsonlFile(path).parts(Shard(0, path.stat().st_size, 0, 0), 0, 1 << 20) for f in p.failures]


def test_named_keys_win(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(lines([{"text": "no", "body": "yes", "id": "x", "key": 7}]))
    got = rows(read(path, options=ReadOptions(text="body", name="key")))
    assert got[0][1:3] == (b"yes", "7")


def test_records_have_lines_and_offsets(tmp_path: Path) -> None:
    from forensics.stores.jsonl import Tally

    path = tmp_path / "docs.jsonl"
    content = b"\n" + lines(ODD)
    path.write_bytes(content)
    found = list(JsonlFile(path).records(Tally(path)))
    assert [n for n, _, _, _ in found] == [1, 2, 3, 4]
    for _, offset, _, record in found:
        assert json.loads(content[offset:].split(b"\n")[0].decode("utf-8", "surrogatepass")) == record
