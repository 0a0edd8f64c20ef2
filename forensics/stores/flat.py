"""Raw arrays of token ids without a header: OLMo's `.npy` files, nanotron's `.ds`, and any other; also real `.npy`, and `.bin` of nanoGPT's kin.

Documents end with an end-of-document id, unless the file's own companions say where they lie: `NAME.csv.gz` of dolma's tokenizer (start,
end, id, source, place) or `NAME.index` of nanotron (uint64 ends). A document includes its end-of-document id. The type of the ids is not written
anywhere; when it is not given it is told from the values: ids of 32 bits have an upper half that hardly varies.
"""

from __future__ import annotations

import csv
import io
import mmap
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forensics.errors import StoreError, UsageError
from forensics.files import digest, open_binary, stamp
from forensics.stores.batch import DocumentBatch
from forensics.stores.gather import copy_runs
from forensics.stores.records import Part, ReadOptions, Shard, keys_of, vocabulary_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.stores.vocab import Vocabulary

TYPES = ("uint8", "uint16", "uint32", "int32", "uint64", "int64")
NPY = b"\x93NUMPY"
NANOGPT = np.int32(20240520)
NANOGPT_BYTES = 1024
SAMPLE = 1 << 20
BLOCK = 1 << 24


class FlatFile:
    """A file of token ids, one after the other.

    Args:
        path: the file.
        dtype: type of the ids; told from the file where it is not given.
        eos: id that ends a document; not needed where a companion file gives the bounds.

    Attributes:
        dtype_told: how the type was found, for reports.

    Raises:
        StoreError: the size is no multiple of the type's.
        UsageError: nothing says where documents end.
    """

    format = "flat"
    is_text = False

    def __init__(self, path: Path, dtype: str | None = None, eos: int | None = None, *, options: ReadOptions | None = None) -> None:
        self.path = path
        self.options = options or ReadOptions(dtype=dtype, eos=eos)
        self.eos = eos if eos is not None else self.options.eos
        wanted = dtype or self.options.dtype
        if wanted is not None and wanted not in TYPES:
            raise UsageError(f"token ids cannot be of type {wanted}", hint=f"one of {', '.join(TYPES)}")
        raw = _map(path)
        skip, found, self.dtype_told = _layout(raw, path)
        if wanted is not None:
            found, self.dtype_told = np.dtype(wanted), "as given"
        elif found is None:
            found, self.dtype_told = guess_type(raw[skip:]), "told from the values"
        self.dtype = found.newbyteorder("<")
        body = raw[skip:]
        if len(body) % self.dtype.itemsize:
            raise StoreError(
                f"{path} holds {len(body)} bytes of ids, no multiple of {self.dtype.itemsize} ({self.dtype.name}, {self.dtype_told})",
                hint="give the type with `--dtype`",
            )
        self.tokens: NDArray[Any] = body.view(self.dtype)
        if self.eos is None and not self._companions():
            raise UsageError(f"nothing says where documents of {path} end", hint="give the id that ends a document with `--eos`, e.g. --eos 50256")

    def _companions(self) -> list[Path]:
        stem = self.path.with_suffix("")
        options = (stem.with_suffix(".csv.gz"), self.path.with_name(self.path.name + ".csv.gz"), self.path.with_name(self.path.name + ".index"))
        return [p for p in options if p.is_file()]

    @cached_property
    def _described(self) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str | None] | None, list[str | None] | None]:
        """First token and one past the last of every document, names, sources."""
        companions = self._companions() if self.options.eos is None else []
        for companion in companions:
            if companion.name.endswith(".index"):
                ends = np.fromfile(companion, "<u8").astype(np.int64)
                self._check(companion, ends)
                return np.concatenate([[0], ends[:-1]]).astype(np.int64), ends, None, None
            return self._from_csv(companion)
        ends = ends_of(self.tokens, np.int64(self.eos if self.eos is not None else -1))
        return np.concatenate([[0], ends[:-1]]).astype(np.int64), ends, None, None

    def _from_csv(self, companion: Path) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str | None] | None, list[str | None] | None]:
        try:
            with open_binary(companion) as stream:
                rows = list(csv.reader(io.TextIOWrapper(stream, "utf-8", errors="replace", newline="")))
            starts, ends = (np.array([int(r[i]) for r in rows if r], np.int64) for i in (0, 1))
        except (OSError, EOFError, ValueError, IndexError, csv.Error) as error:
            raise StoreError(f"{companion} is no list of documents (start,end,id,source,place): {error}") from error
        self._check(companion, ends)
        names: list[str | None] = [r[2] if len(r) > 2 else None for r in rows if r]
        sources: list[str | None] = [r[3] if len(r) > 3 else None for r in rows if r]
        return starts, ends, names, sources

    def _check(self, companion: Path, ends: NDArray[np.int64]) -> None:
        if len(ends) and (int(ends.max()) > len(self.tokens) or np.any(np.diff(ends) < 0)):
            raise StoreError(
                f"{companion} has documents up to token {int(ends.max())}, {self.path} holds {len(self.tokens)} ({self.dtype.name}, {self.dtype_told})",
                hint="give the type with `--dtype`",
            )

    @property
    def assumed(self) -> list[str]:
        """What was taken for granted: the type of the ids; that they are one document, where no id ends any."""
        out = [f"{self.path}: ids of type {self.dtype.name}, {self.dtype_told}"]
        if self.eos is not None and self.n_documents == 1 and self.n_tokens > 1 and self.tokens[-1] != self.eos:
            out.append(f"{self.path}: one document, since the id {self.eos} that ends one occurs nowhere in it (`--eos`)")
        return out

    @property
    def fingerprint(self) -> str:
        """Changes when the file, its companions, its type or its end id does."""
        return digest(stamp(self.path), [stamp(p) for p in self._companions()], self.dtype.str, self.eos, str(self.options.tokenizer))

    @property
    def n_documents(self) -> int:
        """Documents, the unfinished last one included."""
        return len(self._described[0])

    @property
    def n_sequences(self) -> int:
        """The same: this format knows no other unit."""
        return self.n_documents

    @property
    def n_tokens(self) -> int:
        """Ids in the file."""
        return len(self.tokens)

    def document_lengths(self, documents: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Tokens of the documents named, or of all."""
        starts, ends, _, _ = self._described
        return ends - starts if documents is None else ends[documents] - starts[documents]

    def read_into(
        self, documents: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64], target: NDArray[Any], places: NDArray[np.int64]
    ) -> None:
        """Copy parts of documents into a flat array, each from its place on."""
        copy_runs(self.tokens, self._described[0][documents] + starts, stops - starts, target, places)

    def documents(self, numbers: NDArray[np.int64], corpus_id: int) -> DocumentBatch:
        """Whole documents by number, in the order given."""
        lengths = self.document_lengths(numbers)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        out = np.empty(int(offsets[-1]), self.dtype.newbyteorder("="))
        self.read_into(numbers, np.zeros(len(numbers), np.int64), lengths, out, offsets[:-1])
        return DocumentBatch.of_tokens(out, offsets, keys_of(numbers, corpus_id), self.vocabulary)

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """The tokenizer that was named."""
        return vocabulary_of(self.options)

    def shards(self, size_bytes: int) -> list[Shard]:
        """Ranges of documents of about this size."""
        return document_shards(self.document_lengths() * self.dtype.itemsize, size_bytes)

    def parts(self, shard: Shard, corpus_id: int, max_bytes: int) -> Iterator[Part]:
        """Documents of a shard; ids lie where they are mapped."""
        starts, ends, names, sources = self._described
        for a, b in runs_of(ends[shard.start : shard.stop] - starts[shard.start : shard.stop], max_bytes // self.dtype.itemsize):
            a, b = a + shard.start, b + shard.start
            flat = self.tokens[starts[a] : ends[b - 1]]
            bounds = np.concatenate([starts[a:b], ends[b - 1 : b]]) - starts[a]
            if np.any(starts[a + 1 : b] != ends[a : b - 1]):
                flat = np.concatenate([self.tokens[x:y] for x, y in zip(starts[a:b], ends[a:b])])
                bounds = np.concatenate([[0], np.cumsum(ends[a:b] - starts[a:b])]).astype(np.int64)
            batch = DocumentBatch.of_tokens(flat, bounds, keys_of(np.arange(a, b), corpus_id), self.vocabulary)
            yield Part(batch, None if names is None else names[a:b], None if sources is None else sources[a:b])


def _map(path: Path) -> NDArray[np.uint8]:
    try:
        with path.open("rb") as file:
            if not file.seek(0, 2):
                return np.empty(0, np.uint8)
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror or error})") from error


def _layout(raw: NDArray[np.uint8], path: Path) -> tuple[int, np.dtype[Any] | None, str]:
    """Bytes before the ids, their type where a header gives it, and how it was found."""
    if raw[:6].tobytes() == NPY:
        stream = io.BytesIO(raw[:65536].tobytes())
        try:
            version = np.lib.format.read_magic(stream)
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream) if version == (1, 0) else np.lib.format.read_array_header_2_0(stream)
        except ValueError as error:
            raise StoreError(f"{path} has a damaged npy header ({error})") from error
        if dtype.name not in TYPES:
            raise StoreError(f"{path} holds {dtype.name} of shape {shape}, no token ids")
        return stream.tell(), dtype, "in its header"
    if len(raw) >= NANOGPT_BYTES and raw[:4].view("<i4")[0] == NANOGPT:
        return NANOGPT_BYTES, np.dtype(np.uint16), "in its header"
    return 0, None, ""


def guess_type(raw: NDArray[np.uint8]) -> np.dtype[Any]:
    """The type of ids from their bytes, uint16 or uint32: of 32-bit ids every second half is below 16 (a vocabulary below a million)."""
    sample = raw[: min(len(raw), SAMPLE) // 4 * 4].view("<u2")
    upper = sample[1::2]
    return np.dtype(np.uint32 if len(upper) and len(raw) % 4 == 0 and float((upper < 16).mean()) > 0.999 else np.uint16)


def ends_of(tokens: NDArray[Any], eos: np.int64) -> NDArray[np.int64]:
    """One past each end-of-document id; the last document may lack it."""
    found = [start + np.flatnonzero(tokens[start : start + BLOCK] == eos) + 1 for start in range(0, len(tokens), BLOCK)]
    ends = np.concatenate(found) if found else np.empty(0, np.int64)
    return np.append(ends, len(tokens)).astype(np.int64) if len(tokens) and (not len(ends) or ends[-1] < len(tokens)) else ends.astype(np.int64)


def runs_of(sizes: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Consecutive documents of at most `most` together, one at least: half-open ranges."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        done = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + most, side="right")))
        yield start, stop
        start = stop


def document_shards(sizes: NDArray[np.int64], size_bytes: int) -> list[Shard]:
    """Documents of these sizes in bytes as shards of about `size_bytes`."""
    found = [Shard(a, b, a, int(sizes[a:b].sum())) for a, b in runs_of(sizes, size_bytes)]
    return found or [Shard(0, 0, 0, 0)]
