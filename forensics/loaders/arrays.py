"""Raw token arrays as OLMo's trainers read them: nothing but token ids of one type, documents ended by a token.

What OLMo, OLMo-core and Dolma write, although the name ends in `.npy`: little-endian unsigned integers without a header
(`olmo_core/data/utils.py`, 3.0.0). A producer may leave `<name>.csv.gz` beside it with the start and end of every
document; where it lies there it names the documents, because the token scan joins a document that lost its end token to
the one behind it. The trainer itself scans unless it was told otherwise, so both sets of bounds are offered. (`stores.flat` opens such files for an
audit, where nobody says what a trainer saw in them.)
"""

from __future__ import annotations

import gzip
import mmap
import zlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.errors import StoreError
from forensics.files import digest, stamp
from forensics.stores.base import lengths_between, refuse_beyond
from forensics.stores.gather import copy_runs

NPY_MAGIC = b"\x93NUMPY"
BLOCK = 1 << 24


class ArrayStore:
    """One file of token ids.

    Args:
        path: the file.
        dtype: type of the ids.
        end: token that ends a document; None where the file is one document.
        begin: token that must follow an end for it to count (`bos_token_id`), None where every end counts.

    Raises:
        StoreError: no such file, or one with a header.
    """

    format = "flat"

    def __init__(self, path: Path, dtype: str | np.dtype[Any], *, end: int | None = None, begin: int | None = None) -> None:
        self.path, self.end, self.begin = path, end, begin
        self.dtype = np.dtype(dtype).newbyteorder("<")
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                raw: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror or error})", hint="paths as the run saw them are translated by `moved`") from error
        if raw[: len(NPY_MAGIC)] == NPY_MAGIC:
            raise StoreError(
                f"{path} begins with a numpy header, but the trainer reads raw token arrays and would take the header for tokens",
                hint="strip the header, or use the file that was trained on",
            )
        self.size_bytes = size
        self.tokens: NDArray[Any] = np.frombuffer(raw, self.dtype, size // self.dtype.itemsize)

    @property
    def n_tokens(self) -> int:
        """Tokens of the file."""
        return len(self.tokens)

    @property
    def fingerprint(self) -> str:
        """Changes when the file does."""
        beside = self.path.with_name(self.path.name.removesuffix(".npy") + ".csv.gz")
        return digest(self.dtype.str, self.end, self.begin, stamp(self.path), stamp(beside) if beside.exists() else None)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """Where the trainer's scan sees documents end: int64, one past each end token."""
        if self.end is None:
            return np.zeros(0, np.int64)
        found = [np.flatnonzero(self.tokens[at : at + BLOCK] == self.end) + at for at in range(0, len(self.tokens), BLOCK)]
        last = np.concatenate(found).astype(np.int64) if found else np.zeros(0, np.int64)
        if self.begin is not None and len(last):
            inner = last[last + 1 < len(self.tokens)]
            inner = inner[self.tokens[inner + 1] == self.begin]
            last = np.append(inner, last[-1]) if last[-1] + 1 == len(self.tokens) else inner
        return last + 1

    @cached_property
    def listed(self) -> NDArray[np.int64] | None:
        """Start and stop of each document as the file beside this one says [documents, 2]; None without such a file.

        Raises:
            StoreError: a line that holds no numbers, or a document outside the file.
        """
        beside = self.path.with_name(self.path.name.removesuffix(".npy") + ".csv.gz")
        if not beside.exists():
            return None
        try:
            with gzip.open(beside, "rt", encoding="utf-8", errors="replace") as lines:
                found = np.array([[int(x) for x in line.split(",", 2)[:2]] for line in lines if line.strip()], np.int64).reshape(-1, 2)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise StoreError(f"{beside} lists no documents ({error})", hint="lines of start,end,... were expected") from error
        if len(found) and (found.min() < 0 or found.max() > self.n_tokens or np.any(found[:, 1] < found[:, 0])):
            raise StoreError(f"{beside} lists a document outside the {self.n_tokens} tokens of {self.path.name}")
        return found

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """First token of each document and the end of the last [documents + 1]; tokens after the last end are one more document."""
        found = np.concatenate([np.zeros(1, np.int64), self.ends])
        if self.listed is not None and len(self.listed):
            starts = np.unique(np.concatenate([np.zeros(1, np.int64), self.listed[:, 0], self.listed[-1:, 1]]))
            found = starts if starts[-1] <= self.n_tokens else found
        return found if found[-1] == self.n_tokens else np.append(found, self.n_tokens)

    @property
    def n_documents(self) -> int:
        """Documents."""
        return len(self.bounds) - 1

    @property
    def n_sequences(self) -> int:
        """Stored sequences: documents."""
        return self.n_documents

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
        refuse_beyond(self.path, self.document_lengths(documents), starts, stops)
        copy_runs(self.tokens, self.bounds[documents] + starts, stops - starts, target, places)
