"""Streaming's shards: every encoding of token columns, compression, and damage that is named."""

import bz2
import gzip
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import zstandard

from forensics.errors import StoreError
from forensics.stores.base import open_file, read
from forensics.stores.mds import MdsStore

PACK: dict[str, Callable[[bytes], bytes]] = {"zstd:3": zstandard.ZstdCompressor().compress, "gz": gzip.compress, "bz2": bz2.compress}
DOCUMENTS = [[[5, 6, 7], [8], [9, 10, 0, 11]], [[12, 0], [13]]]


def shard(samples: Sequence[bytes], size: int | None) -> bytes:
    """One shard with a text column in front of the token column."""
    rows = []
    for sample in samples:
        name = b"name"
        head = struct.pack("<I", len(name)) + (b"" if size else struct.pack("<I", len(sample)))
        rows.append(head + name + sample)
    config = b"{}"
    begin = 4 * (len(rows) + 2) + len(config)
    offsets = np.cumsum([begin, *map(len, rows)]).astype("<u4")
    return struct.pack("<I", len(rows)) + offsets.tobytes() + config + b"".join(rows)


def write(
    folder: Path, encoding: str = "ndarray:uint16", compression: str | None = None, shards: Sequence[Sequence[Sequence[int]]] = DOCUMENTS, **wrong: object
) -> Path:
    folder.mkdir(parents=True)
    entries = []
    for number, documents in enumerate(shards):
        samples = []
        for document in documents:
            if encoding == "bytes":
                samples.append(np.array(document, "<i8").tobytes())
            else:  # one size byte: log2 of its bytes, and the number of dimensions
                kind = b"" if ":" in encoding else bytes([16])
                samples.append(kind + bytes([1 << 2]) + bytes([len(document)]) + np.array(document, "<u2").tobytes())
        raw = shard(samples, None)
        name = f"shard.{number:05}.mds"
        packed = f"{name}.{compression.partition(':')[0]}" if compression else None
        (folder / (packed or name)).write_bytes(PACK[compression](raw) if compression in PACK else raw)
        entries.append(
            {
                "format": "mds", "version": 2, "samples": len(samples), "raw_data": {"basename": name, "bytes": len(raw), "hashes": {}},
                "zip_data": {"basename": packed} if packed else None, "compression": compression, "column_names": ["name", "tokens"],
                "column_encodings": ["str", encoding], "column_sizes": [None, None], **wrong,
            }
        )  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"shards": entries, "version": 2}))
    return folder


@pytest.mark.parametrize("encoding", ["ndarray:uint16", "ndarray", "bytes"])
@pytest.mark.parametrize("compression", [None, "zstd:3", "gz", "bz2"])
def test_documents_are_read_whatever_their_encoding(tmp_path: Path, encoding: str, compression: str | None) -> None:
    store = MdsStore(write(tmp_path / "s", encoding, compression))
    assert store.n_documents == store.n_sequences == 5
    tokens, offsets = read(store, np.array([4, 0, 2]))
    assert [tokens[a:b].tolist() for a, b in zip(offsets, offsets[1:])] == [[13], [5, 6, 7], [9, 10, 0, 11]]
    tokens, offsets = read(store, np.array([2, 0]), np.array([1, 2]), np.array([3, 3]))
    assert [tokens[a:b].tolist() for a, b in zip(offsets, offsets[1:])] == [[10, 0], [7]]


def test_documents_end_at_their_token_across_samples(tmp_path: Path) -> None:
    store = MdsStore(write(tmp_path / "s"), end=0)
    assert store.document_lengths().tolist() == [7, 3, 1]
    tokens, offsets = read(store, np.array([1, 2, 0]))
    assert [tokens[a:b].tolist() for a, b in zip(offsets, offsets[1:])] == [[11, 12, 0], [13], [5, 6, 7, 8, 9, 10, 0]]


def test_a_text_column_is_bytes_and_a_shard_may_be_empty(tmp_path: Path) -> None:
    folder = write(tmp_path / "s", "ndarray", shards=[[], *DOCUMENTS])
    assert MdsStore(folder).n_documents == 5
    text = MdsStore(folder, column="name")
    assert read(text, np.array([1]))[0].tobytes() == b"name"


def test_a_stream_is_a_known_format(tmp_path: Path) -> None:
    assert open_file(write(tmp_path / "s")).format == "mds"


@pytest.mark.parametrize("compression", [None, "zstd:3", "gz", "bz2"])
def test_damage_is_named(tmp_path: Path, compression: str | None) -> None:
    folder = write(tmp_path / "s", compression=compression)
    path = next(folder.glob("shard.00001*"))
    whole = path.read_bytes()
    for kept in (0, 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(StoreError):
            read(MdsStore(folder), np.arange(5))
    path.unlink()
    with pytest.raises(StoreError, match="does not exist"):
        read(MdsStore(folder), np.arange(5))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"format": "json"}, "only mds version 2"),
        ({"raw_data": {"basename": "../x"}}, "outside its folder"),
        ({"column_encodings": ["str", "pkl"]}, "without running code"),
        ({"column_names": ["name", "labels"]}, "none of them called tokens"),
        ({"samples": "many"}, "is no index"),
        ({"compression": "snappy"}, "is not read"),
    ],
)
def test_an_index_that_cannot_be_followed_is_refused(tmp_path: Path, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(StoreError, match=message):
        read(MdsStore(write(tmp_path / "s", **wrong)), np.arange(1))  # type: ignore[arg-type]


def test_parts_beyond_a_document_are_refused(tmp_path: Path) -> None:
    store = MdsStore(write(tmp_path / "s"))
    for document, stop in ((0, 4), (9, 1)):
        with pytest.raises(StoreError):
            read(store, np.array([document]), np.array([0]), np.array([stop]))


@pytest.mark.parametrize("encoding", ["ndarray:float16", "ndarray:no-such-type", "ndarray:O"])
def test_a_column_of_a_type_that_holds_no_ids_is_refused(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(StoreError, match="token ids are one of"):
        MdsStore(write(tmp_path / "s", encoding))
