"""Token files of Megatron and its relatives: `PREFIX.bin` holds tokens, `PREFIX.idx` where each sequence lies.

Layout of the index (`megatron/core/datasets/indexed_dataset.py`, `_IndexReader`; the same in GPT-NeoX and all forks
since 2020): magic, version 1, token type, number of sequences n and of document bounds m, then lengths int32 [n], byte
offsets int64 [n], document bounds int64 [m], and in multimodal files one mode byte per sequence. The stored offsets are
trusted, not the running sum of lengths: hand-merged files share sequences and leave gaps. A document may be stored in
several sequences (sentence splitting); Megatron splits and shuffles sequences.

Both files are memory-mapped; nothing is read before it is asked for, except the bounds check at opening.
"""

from __future__ import annotations

import mmap
import struct
from functools import cached_property
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from forensics.errors import StoreError
from forensics.files import digest, stamp
from forensics.stores.base import FORMATS, Format, read
from forensics.stores.gather import copy_runs, expand_runs, offsets_of

MAGIC = b"MMIDIDX\x00\x00"
OLD_MAGIC = b"TNTIDX\x00\x00"
HEADER_BYTES = 34
# 6 and 7 are float64 and float32 in Megatron, the other way round in GPT-NeoX; tokens are never stored as either.
TOKEN_TYPES: dict[int, type[np.generic]] = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
FLOAT_TYPES = (6, 7)


def prefix_of(path: Path) -> Path:
    """The prefix of a data file: the path itself without `.idx` or `.bin`."""
    return path.with_suffix("") if path.suffix in (".idx", ".bin") else path


def _file(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(prefix.name + suffix)


def _map(path: Path) -> NDArray[np.uint8]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if not size:
                return np.empty(0, np.uint8)
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except FileNotFoundError as error:
        raise StoreError(
            f"{path} does not exist", hint="give the prefix of the .bin and .idx files; paths as the run saw them are translated by `moved`"
        ) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror or error})") from error


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def _before(lengths, bounds, sequences, documents, out):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    """Tokens of the same document before each sequence."""
    for k in range(len(sequences)):
        total = np.int64(0)
        for s in range(bounds[documents[k]], sequences[k]):
            total += lengths[s]
        out[k] = total


class MegatronStore:
    """One `.bin`/`.idx` pair.

    Args:
        path: its prefix, or either file.

    Attributes:
        path: the prefix.
        lengths: int32 [sequences], tokens.
        bounds: int64 [documents + 1], first sequence of each document.

    Raises:
        StoreError: when a file is missing, foreign, truncated, or contradicts the other one.
    """

    format = "megatron"

    def __init__(self, path: Path) -> None:
        self.path = prefix_of(path)
        self.idx, self.bin = _file(self.path, ".idx"), _file(self.path, ".bin")
        raw = _map(self.idx)
        try:
            self._read_index(raw)
        except StoreError as error:
            error.hint = error.hint or "copy the .idx again from where the run read it, together with its .bin"
            raise
        tokens = _map(self.bin)
        self._check_tokens(len(tokens))
        self.tokens: NDArray[Any] = tokens[: len(tokens) // self.dtype.itemsize * self.dtype.itemsize].view(self.dtype)

    def _read_index(self, raw: NDArray[np.uint8]) -> None:
        self._header(raw)
        n, m = self.n_sequences, self._n_bounds
        self.lengths: NDArray[np.int32] = np.frombuffer(raw, "<i4", n, HEADER_BYTES)
        self._offsets: NDArray[np.int64] = np.frombuffer(raw, "<i8", n, HEADER_BYTES + 4 * n)
        self.bounds: NDArray[np.int64] = np.frombuffer(raw, "<i8", m, HEADER_BYTES + 12 * n)
        self._check_bounds()

    def _header(self, raw: NDArray[np.uint8]) -> None:
        head = raw[:HEADER_BYTES].tobytes()
        if not head.startswith(MAGIC):
            if head.startswith(OLD_MAGIC):
                raise StoreError(
                    f"{self.idx} is of the older cached/lazy kind (magic TNTIDX), which Megatron stopped reading in 2023",
                    hint="convert it with the trainer's own tools to the mmap kind",
                )
            raise StoreError(f"{self.idx} is no Megatron index: it starts with {head[:9]!r}, expected {MAGIC!r}")
        if len(head) < HEADER_BYTES:
            raise StoreError(f"{self.idx} ends inside its header: {len(head)} bytes, expected at least {HEADER_BYTES}")
        version, code, n, m = struct.unpack("<QBQQ", head[9:])
        if version != 1:
            raise StoreError(f"{self.idx} has version {version} at byte 9, only version 1 exists")
        if code in FLOAT_TYPES:
            raise StoreError(f"{self.idx} stores floating-point values (type {code} at byte 17), no token ids")
        if code not in TOKEN_TYPES:
            raise StoreError(f"{self.idx} has the unknown token type {code} at byte 17, expected one of {sorted(TOKEN_TYPES)}")
        need = HEADER_BYTES + 12 * n + 8 * m
        self.has_modes = len(raw) == need + n and n > 0
        if len(raw) < need:
            raise StoreError(f"{self.idx} is truncated: {len(raw)} bytes, {need} expected for {n} sequences and {m} document bounds")
        if len(raw) > need and not self.has_modes:
            raise StoreError(f"{self.idx} is {len(raw) - need} bytes longer than its header says ({n} sequences, {m} document bounds)")
        self.n_sequences, self._n_bounds = int(n), int(m)
        self.dtype = np.dtype(TOKEN_TYPES[code]).newbyteorder("<")

    def _check_bounds(self) -> None:
        n, bounds = self.n_sequences, self.bounds
        if not len(bounds) or bounds[0] != 0 or bounds[-1] != n:
            ends = (int(bounds[0]), int(bounds[-1])) if len(bounds) else None
            raise StoreError(f"{self.idx}: document bounds run from {ends}, expected from 0 to {n} sequences")
        if len(bounds) > 1 and int(np.diff(bounds).min()) < 0:
            raise StoreError(f"{self.idx}: document bounds are not ascending")
        if n and int(self.lengths.min()) < 0:
            raise StoreError(f"{self.idx}: sequence {int(np.argmin(self.lengths))} has the negative length {int(self.lengths.min())}")

    def _check_tokens(self, size: int, block: int = 1 << 22) -> None:
        item = self.dtype.itemsize
        for first in range(0, self.n_sequences, block):
            offsets = self._offsets[first : first + block]
            ends = offsets + self.lengths[first : first + block].astype(np.int64) * item
            if int(offsets.min()) < 0 or np.any(offsets % item):
                bad = first + int(np.argmax((offsets < 0) | (offsets % item != 0)))
                raise StoreError(f"{self.idx}: sequence {bad} begins at byte {int(self._offsets[bad])} of the .bin, no multiple of {item}")
            if int(ends.max()) > size:
                bad = first + int(np.argmax(ends > size))
                raise StoreError(
                    f"{self.bin} is {size} bytes, shorter than its index needs: sequence {bad} ends at byte {int(ends[bad - first])}",
                    hint="the file is truncated or belongs to another .idx",
                )

    @property
    def n_documents(self) -> int:
        """Documents, empty ones included."""
        return self._n_bounds - 1

    @cached_property
    def n_tokens(self) -> int:
        """Tokens of all sequences; shared ones count each time."""
        return int(self.lengths.sum(dtype=np.int64))

    @cached_property
    def one_each(self) -> bool:
        """Whether every document is exactly one stored sequence."""
        return self.n_documents == self.n_sequences and bool(np.array_equal(self.bounds, np.arange(self.n_sequences + 1)))

    @property
    def fingerprint(self) -> str:
        """Changes when either file does."""
        return digest(stamp(self.idx), stamp(self.bin))

    def documents_of(self, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Document that holds each stored sequence."""
        if self.one_each:
            return sequences.astype(np.int64)
        return np.searchsorted(self.bounds, sequences, side="right").astype(np.int64) - 1

    def starts_in_document(self, sequences: NDArray[np.int64], documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of its document that lie before each stored sequence."""
        out = np.zeros(len(sequences), dtype=np.int64)
        if not self.one_each:
            _before(self.lengths, self.bounds, sequences, documents, out)
        return out

    def document_lengths(self, documents: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Tokens of each document named, or of all: int64."""
        chosen = np.arange(self.n_documents) if documents is None else np.asarray(documents, dtype=np.int64)
        self._check_documents(chosen)
        if self.one_each:
            return self.lengths[chosen].astype(np.int64)
        out = np.zeros(len(chosen), dtype=np.int64)
        _before(self.lengths, self.bounds, self.bounds[chosen + 1], chosen, out)
        return out

    def _check_documents(self, documents: NDArray[np.int64]) -> None:
        if len(documents) and (documents.min() < 0 or documents.max() >= self.n_documents):
            bad = documents[(documents < 0) | (documents >= self.n_documents)][0]
            raise StoreError(f"{self.path} has {self.n_documents} documents, number {int(bad)} is asked for")

    def gather_sequences(
        self, sequences: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64], target: NDArray[Any], places: NDArray[np.int64]
    ) -> None:
        """Copy parts of stored sequences into an array.

        Args:
            sequences: int64 [parts], stored sequences.
            starts: int64 [parts], first token in the sequence.
            lengths: int64 [parts], tokens.
            target: one-dimensional.
            places: int64 [parts], where each part goes.
        """
        copy_runs(self.tokens, self._offsets[sequences] // self.dtype.itemsize + starts, lengths, target, places)

    def read_into(
        self, documents: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64], target: NDArray[Any], places: NDArray[np.int64]
    ) -> None:
        """Copy parts `[starts, stops)` of documents into a flat array, each from its place on; all int64 [n].

        Raises:
            StoreError: when a part does not lie inside its document.
        """
        documents = np.asarray(documents, dtype=np.int64)
        if not len(documents):
            return
        if np.any(starts < 0) or np.any(stops > self.document_lengths(documents)) or np.any(stops < starts):
            raise StoreError(f"{self.path}: a part of a document beyond its end is asked for")
        if self.one_each:
            self.gather_sequences(documents, starts, stops - starts, target, places)
            return
        counts = self.bounds[documents + 1] - self.bounds[documents]
        sequences, owner = expand_runs(self.bounds[documents], counts)
        lengths = self.lengths[sequences].astype(np.int64)
        before = offsets_of(lengths)
        begin = before[:-1] - before[offsets_of(counts)[:-1]][owner]
        cut, stop = np.clip(starts[owner] - begin, 0, lengths), np.clip(stops[owner] - begin, 0, lengths)
        keep = stop > cut
        self.gather_sequences(sequences[keep], cut[keep], (stop - cut)[keep], target, (places[owner] + begin + cut - starts[owner])[keep])

    def __getitem__(self, document: int) -> NDArray[Any]:
        """Tokens of one document."""
        return read(self, np.array([document]))[0]


def sniff(path: Path) -> bool:
    """Whether a path or prefix is such a pair of files."""
    idx = _file(prefix_of(path), ".idx")
    try:
        with idx.open("rb") as file:
            return file.read(len(MAGIC)) in (MAGIC, OLD_MAGIC + MAGIC[len(OLD_MAGIC) :])
    except OSError:
        return False


FORMATS.add("megatron", Format(sniff, MegatronStore), __name__)
