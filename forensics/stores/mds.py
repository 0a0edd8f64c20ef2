"""Shards of MosaicML Streaming (MDS): `index.json` beside `shard.*.mds`, plain or compressed.

Layout (`streaming/base/format/mds/{reader,encodings}.py`, read in 0.13.0): a shard is a little-endian uint32 sample count,
count + 1 uint32 byte offsets from the file's start, JSON configuration, then samples. A sample is one uint32 per column
of variable size, then the columns' bytes. Token columns are raw bytes of a fixed type (old conversions of LLM-Foundry)
or `ndarray` with an optional type and shape in front.

A stream is one data file here: its samples laid end to end. Where documents were packed into samples, they are found by
their end-of-document token across samples; otherwise a sample is a document. A text column's tokens are its bytes.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.errors import StoreError
from forensics.files import GZIP, ZSTD, digest, open_binary, read_text, stamp
from forensics.stores.base import FORMATS, Format, lengths_between, refuse_beyond
from forensics.stores.gather import copy_runs, expand_runs, offsets_of

INDEX = "index.json"
KEPT_SHARDS = 16
VALUE_TYPES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 32: "uint32", 33: "int32", 64: "uint64", 65: "int64"}
TEXT = ("str",)


@dataclass(frozen=True)
class Shard:
    """One entry of `index.json`."""

    samples: int
    raw: str
    packed: str | None
    compression: str | None
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]


def read_index(folder: Path) -> list[Shard]:
    """The shards of a stream.

    Raises:
        StoreError: no index, another format or version, or an index that lacks what it must hold.
    """
    path = folder / INDEX
    try:
        found = json.loads(read_text(path))
        shards = found["shards"]
        out = []
        for i, s in enumerate(shards):
            if s["format"] != "mds" or s["version"] != 2:
                raise StoreError(f"{path}: shard {i} is {s['format']} version {s['version']}, only mds version 2 is read")
            packed = s.get("zip_data")
            out.append(
                Shard(
                    int(s["samples"]), str(s["raw_data"]["basename"]), str(packed["basename"]) if packed else None, s.get("compression"),
                    tuple(s["column_names"]), tuple(s["column_encodings"]), tuple(s["column_sizes"]),
                )
            )  # fmt: skip
    except (RecursionError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is no index of a streaming data set ({error!r})") from error
    if not out or not sum(s.samples for s in out):
        raise StoreError(f"{path} holds no samples")
    for shard in out:
        for name in (shard.raw, shard.packed or ""):
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise StoreError(f"{path} names the shard `{name}`, which lies outside its folder")
    return out


class MdsStore:
    """One stream.

    Args:
        path: its folder.
        column: the token column; the only column called `tokens` or `input_ids`, else `text`, by default.
        encoding: type of the tokens where the column is raw bytes (`token_encoding_type` of LLM-Foundry).
        end: end-of-document token where documents were packed into samples; None where a sample is a document.
        limit: tokens of a sample that are read (`max_seq_len`), None for all.

    Attributes:
        samples: samples of each shard, int64.
    """

    format = "mds"

    def __init__(self, path: Path, *, column: str | None = None, encoding: str = "int64", end: int | None = None, limit: int | None = None) -> None:
        self.path = path
        self.shards = read_index(path)
        self.samples: NDArray[np.int64] = np.array([s.samples for s in self.shards], np.int64)
        self.column = column or self._default_column()
        self.end, self.limit = end, limit
        self._encoding = encoding
        self.dtype = self._dtype()
        self._kept: OrderedDict[int, tuple[NDArray[Any], NDArray[np.int64]]] = OrderedDict()

    def _default_column(self) -> str:
        names = self.shards[0].names
        for name in ("tokens", "input_ids", "text"):
            if name in names:
                return name
        raise StoreError(
            f"{self.path / INDEX} has the columns {', '.join(names)}, none of them called tokens", hint="name the column of token ids with `column`"
        )

    def _place(self, shard: Shard) -> int:
        if self.column not in shard.names:
            raise StoreError(f"{self.path / INDEX}: {shard.raw} lacks the column `{self.column}`")
        return shard.names.index(self.column)

    def _dtype(self) -> np.dtype[Any]:
        encoding = self.shards[0].encodings[self._place(self.shards[0])]
        kind, _, rest = encoding.partition(":")
        if kind in TEXT:
            return np.dtype(np.uint8)
        if kind == "bytes":
            return self._known(self._encoding)
        if kind == "ndarray":
            name = rest.split(":")[0]
            return self._known(name) if name else self._dynamic_dtype()
        raise StoreError(
            f"{self.path / INDEX}: the column `{self.column}` is encoded as `{encoding}`, which holds no token ids that can be read without running code"
        )

    def _known(self, name: str) -> np.dtype[Any]:
        if name not in VALUE_TYPES.values():
            raise StoreError(f"{self.path / INDEX}: the column `{self.column}` is of type `{name}`, token ids are one of {', '.join(VALUE_TYPES.values())}")
        return np.dtype(name)

    def _dynamic_dtype(self) -> np.dtype[Any]:
        raw, starts, _ = self._values(int(np.flatnonzero(self.samples)[0]))
        code = int(raw[starts[0]])
        if code not in VALUE_TYPES:
            raise StoreError(f"{self.path}: the first sample has the array type {code}, which holds no token ids")
        return np.dtype(VALUE_TYPES[code])

    @property
    def n_samples(self) -> int:
        """Samples of all shards."""
        return int(self.samples.sum())

    @cached_property
    def sample_bounds(self) -> NDArray[np.int64]:
        """First token of each sample in the stream, and the end of the last: int64 [samples + 1]."""
        return offsets_of(np.concatenate([self._lengths(i) for i in range(len(self.shards))]))

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """First token of each document in the stream, and the end of the last: int64 [documents + 1]."""
        if self.end is None:
            return self.sample_bounds
        ends = []
        for i in range(len(self.shards)):
            tokens, _ = self._shard(i)
            ends.append(np.flatnonzero(tokens == self.end) + self.sample_bounds[self._first[i]] + 1)
        found = np.concatenate([np.zeros(1, np.int64), *ends])
        return found if found[-1] == self.n_tokens else np.append(found, self.n_tokens)

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        return offsets_of(self.samples)

    @property
    def n_documents(self) -> int:
        """Documents."""
        return len(self.bounds) - 1

    @property
    def n_sequences(self) -> int:
        """Stored sequences: samples."""
        return self.n_samples

    @property
    def n_tokens(self) -> int:
        """Tokens of all samples."""
        return int(self.sample_bounds[-1])

    @property
    def fingerprint(self) -> str:
        """Changes when the index or a shard does."""
        files = [next((p for p in (self.path / s.raw, self.path / (s.packed or s.raw)) if p.exists()), self.path / INDEX) for s in self.shards]
        return digest(self.column, self.end, self.limit, stamp(self.path / INDEX), [stamp(p) for p in files])

    def document_lengths(self, documents: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Tokens of the documents named, or of all."""
        return lengths_between(self.path, self.bounds, documents)

    def read_into(
        self, documents: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64], target: NDArray[Any], places: NDArray[np.int64]
    ) -> None:
        """Copy parts `[starts, stops)` of documents into a flat array, each from its place on.

        Raises:
            StoreError: when a part does not lie inside its document.
        """
        documents = np.asarray(documents, np.int64)
        if not len(documents):
            return
        refuse_beyond(self.path, self.document_lengths(documents), starts, stops)
        begin, end = self.bounds[documents] + starts, self.bounds[documents] + stops
        edges = self.sample_bounds[self._first]
        first = np.searchsorted(edges, begin, side="right") - 1
        last = np.maximum(np.searchsorted(edges, end, side="left"), first + 1)
        shard, owner = expand_runs(first.astype(np.int64), (last - first).astype(np.int64))
        low = np.maximum(begin[owner], edges[shard])
        high = np.minimum(end[owner], edges[shard + 1])
        for number in np.unique(shard).tolist():
            mine = (shard == number) & (high > low)
            tokens, _ = self._shard(number)
            copy_runs(tokens, low[mine] - edges[number], (high - low)[mine], target, places[owner[mine]] + low[mine] - begin[owner[mine]])

    def _bytes(self, number: int) -> NDArray[np.uint8]:
        shard = self.shards[number]
        raw = self.path / shard.raw
        if raw.exists():
            return np.fromfile(raw, np.uint8)
        if shard.packed is None or not (self.path / shard.packed).exists():
            raise StoreError(
                f"{raw} does not exist" + (f", nor {shard.packed}" if shard.packed else ""),
                hint="the shards of a stream lie beside its index.json; fetch them from the remote",
            )
        return np.frombuffer(_unpacked(self.path / shard.packed, shard.compression or ""), np.uint8)

    def _values(self, number: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """Bytes of a shard, and where the column's bytes of each sample begin and end in them."""
        shard = self.shards[number]
        raw = self._bytes(number)
        where = self.path / shard.raw
        if len(raw) < 4 or int(raw[:4].view("<u4")[0]) != shard.samples:
            raise StoreError(f"{where} says it holds {int(raw[:4].view('<u4')[0]) if len(raw) >= 4 else 0} samples, its index.json {shard.samples}")
        n = shard.samples
        if len(raw) < 4 * (n + 2):
            raise StoreError(f"{where} is truncated inside its table of offsets")
        offsets = raw[4 : 4 * (n + 2)].view("<u4").astype(np.int64)
        if offsets[0] < 4 * (n + 2) or np.any(np.diff(offsets) < 0) or offsets[-1] > len(raw):
            raise StoreError(f"{where} is {len(raw)} bytes, its last sample ends at byte {int(offsets[-1])}", hint="the shard is truncated or damaged")
        column = self._place(shard)
        variable = [i for i, size in enumerate(shard.sizes) if not size]
        begin, size = offsets[:-1] + 4 * len(variable), np.zeros(n, np.int64)
        for i in range(column + 1):
            begin = begin + size
            fixed = shard.sizes[i]
            size = np.full(n, fixed, np.int64) if fixed else _unsigned(raw, offsets[:-1] + 4 * variable.index(i), 4)
        if np.any(begin + size > offsets[1:]):
            raise StoreError(f"{where}: the column `{self.column}` of sample {int(np.argmax(begin + size > offsets[1:]))} ends behind its sample")
        return raw, begin, begin + size

    def _runs(self, number: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """Bytes of a shard, where the tokens of each sample begin, and how many there are."""
        shard = self.shards[number]
        raw, begin, end = self._values(number)
        if not shard.samples:
            return raw, begin, begin
        kind, _, rest = shard.encodings[self._place(shard)].partition(":")
        name, _, shape = rest.partition(":")
        if kind == "ndarray" and not name:
            if np.any(raw[begin] != raw[begin[0]]):
                raise StoreError(f"{self.path / shard.raw}: the token arrays have several types")
            begin = begin + 1
        if kind == "ndarray" and not shape:
            head = raw[begin].astype(np.int64)
            begin = begin + 1 + (head >> 2 << (head & 3))
        counts = (end - begin) // self.dtype.itemsize
        return raw, begin, counts if self.limit is None else np.minimum(counts, self.limit)

    def _lengths(self, number: int) -> NDArray[np.int64]:
        return self._runs(number)[2]

    def _shard(self, number: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Tokens of a shard end to end, and the tokens of each sample."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        raw, begin, counts = self._runs(number)
        out = np.empty(int(counts.sum()), self.dtype)
        copy_runs(raw, begin, counts * self.dtype.itemsize, out.view(np.uint8), offsets_of(counts)[:-1] * self.dtype.itemsize)
        self._kept[number] = out, counts
        if len(self._kept) > KEPT_SHARDS:
            self._kept.popitem(last=False)
        return out, counts


def _unsigned(raw: NDArray[np.uint8], at: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Little-endian numbers at byte positions of any alignment."""
    out = np.zeros(len(at), np.int64)
    for i in range(width):
        out |= raw[at + i].astype(np.int64) << 8 * i
    return out


def _unpacked(path: Path, compression: str) -> bytes:
    kind = compression.partition(":")[0]
    if kind in _UNPACK:
        return _UNPACK[kind](path)
    raise StoreError(f"{path} is compressed with `{compression}`, which is not read", hint="decompress the shards first; plain, zstd, gz and bz2 are read")


def _stream(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(4)
    if not head.startswith(GZIP) and head != ZSTD:
        raise StoreError(f"{path} is not compressed as its index says: it begins with {head!r}")
    import zlib

    import zstandard

    try:
        with open_binary(path) as stream:
            return stream.read()
    except (OSError, EOFError, ValueError, zlib.error, zstandard.ZstdError) as error:
        raise StoreError(f"{path} is damaged ({error})") from error


def _bz2(path: Path) -> bytes:
    import bz2

    try:
        return bz2.decompress(path.read_bytes())
    except (OSError, ValueError, EOFError) as error:
        raise StoreError(f"{path} is damaged ({error})") from error


_UNPACK: dict[str, Callable[[Path], bytes]] = {"zstd": _stream, "gz": _stream, "bz2": _bz2}


def sniff(path: Path) -> bool:
    """Whether a folder is such a stream."""
    return (path / INDEX).is_file()


FORMATS.add("mds", Format(sniff, MdsStore), __name__)
