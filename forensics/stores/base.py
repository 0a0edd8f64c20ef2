"""What every token store offers, and one store over all data files of a run.

A file format implements `TokenFile`: lengths of documents and a copy of parts of them into an array. `RunStore` puts
several files behind `doc_key`s and is what stages get. Text corpora have a byte vocabulary: their tokens are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.errors import StoreError
from forensics.files import digest
from forensics.registry import Registry
from forensics.schemas import CORPORA, DOC_BITS, DOC_MASK, Corpora
from forensics.stores.gather import offsets_of

if TYPE_CHECKING:
    from forensics.stores.batch import DocumentBatch
    from forensics.stores.vocab import Vocabulary


@runtime_checkable
class TokenFile(Protocol):
    """One data file: documents as runs of token ids."""

    format: str
    path: Path

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its token ids."""
        ...

    @property
    def n_documents(self) -> int:
        """Documents, empty ones included."""
        ...

    @property
    def n_sequences(self) -> int:
        """Stored sequences; the number of documents where the format knows no difference."""
        ...

    @property
    def n_tokens(self) -> int:
        """Tokens of all documents."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when the file does."""
        ...

    def document_lengths(self, documents: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Tokens of the documents named, or of all."""
        ...

    def read_into(
        self, documents: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64], target: NDArray[Any], places: NDArray[np.int64]
    ) -> None:
        """Copy parts `[starts, stops)` of documents into a flat array, each from its place on."""
        ...


class TokenStore(Protocol):
    """All tokens of a run, by document."""

    @property
    def fingerprint(self) -> str:
        """Changes when any file does."""
        ...

    @property
    def corpora(self) -> Corpora:
        """The data files, table `corpora`."""
        ...

    def lengths(self, corpus_id: int) -> NDArray[np.int64]:
        """Tokens of each document of a corpus."""
        ...

    def document_lengths(self, doc_keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of the documents named, in the order given."""
        ...

    def documents(self, doc_keys: NDArray[np.int64]) -> DocumentBatch:
        """Whole documents, in the order given."""
        ...

    def gather(self, consumed: pa.Table) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Tokens of the segments of a `consumed` table, end to end in row order, and offsets [rows + 1] into them."""
        ...

    def batches(self, corpus_id: int, max_tokens: int) -> Iterator[DocumentBatch]:
        """All documents of a corpus, in order, at most `max_tokens` at a time (one document at least)."""
        ...


def lengths_between(path: Path, bounds: NDArray[np.int64], documents: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Tokens of the documents named, or of all, of a file whose documents lie end to end.

    Args:
        path: for the message.
        bounds: int64 [documents + 1].
        documents: int64 [n].

    Raises:
        StoreError: a document that the file does not have.
    """
    if documents is None:
        return np.diff(bounds)
    chosen = np.asarray(documents, np.int64)
    if len(chosen) and (chosen.min() < 0 or chosen.max() >= len(bounds) - 1):
        raise StoreError(f"{path} has {len(bounds) - 1} documents, another number is asked for")
    return np.asarray(bounds[chosen + 1] - bounds[chosen], np.int64)


def refuse_beyond(path: Path, lengths: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
    """Stop where a part does not lie inside its document.

    Raises:
        StoreError: naming the file.
    """
    if len(lengths) and (np.any(starts < 0) or np.any(stops > lengths) or np.any(stops < starts)):
        raise StoreError(f"{path}: a part of a document beyond its end is asked for")


def read(
    file: TokenFile,
    documents: NDArray[np.int64],
    starts: NDArray[np.int64] | None = None,
    stops: NDArray[np.int64] | None = None,
    dtype: np.dtype[Any] | None = None,
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Tokens of documents of one file, or of parts of them, end to end.

    Args:
        file: an open file.
        documents: int64 [n], in any order, repeats allowed.
        starts: int64 [n], first token wanted; absent = 0.
        stops: int64 [n], one past the last; absent = the document's length.
        dtype: of the result; absent = the file's own type.

    Returns:
        Tokens [sum], and offsets int64 [n + 1].
    """
    documents = np.asarray(documents, dtype=np.int64)
    first = np.zeros(len(documents), np.int64) if starts is None else np.asarray(starts, np.int64)
    last = file.document_lengths(documents) if stops is None else np.asarray(stops, np.int64)
    offsets = offsets_of(last - first)
    out = np.empty(int(offsets[-1]), dtype=dtype or file.dtype.newbyteorder("="))
    file.read_into(documents, first, last, out, offsets[:-1])
    return out, offsets


class RunStore:
    """All data files of a run behind one numbering of documents.

    Args:
        files: corpus number -> open file.
        names: corpus number -> path as configured; the file's own path where absent.
        vocabulary: opens the run's vocabulary, called once when text is first asked for; None without a tokenizer.
    """

    def __init__(
        self, files: Mapping[int, TokenFile], *, names: Mapping[int, str] | None = None, vocabulary: Callable[[], Vocabulary | None] | None = None
    ) -> None:
        self.files = dict(files)
        self._names = dict(names or {})
        self._open_vocabulary = vocabulary
        self.notes: list[str] = []

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """The run's vocabulary; None without a tokenizer and where it cannot be read, which `notes` then says: ids need no text."""
        try:
            return self._open_vocabulary() if self._open_vocabulary else None
        except StoreError as error:
            self.notes.append(f"no text: {error.message}")
            return None

    @cached_property
    def fingerprint(self) -> str:
        """Changes when any file does."""
        return digest(sorted((number, file.fingerprint) for number, file in self.files.items()))

    @cached_property
    def corpora(self) -> Corpora:
        """The data files, table `corpora`; the default source label is the last part of the path."""
        rows = [(number, file, Path(self._names.get(number, str(file.path)))) for number, file in sorted(self.files.items())]
        return Corpora(CORPORA.of({
            "corpus_id": [number for number, _, _ in rows],
            "name": [path.name for _, _, path in rows],
            "path": [str(file.path) for _, file, _ in rows],
            "format": [file.format for _, file, _ in rows],
            "source": [path.name for _, _, path in rows],
            "documents": [file.n_documents for _, file, _ in rows],
            "stored_seqs": [file.n_sequences for _, file, _ in rows],
            "tokens": [file.n_tokens for _, file, _ in rows],
        }))  # fmt: skip

    def file(self, corpus_id: int) -> TokenFile:
        """One data file.

        Raises:
            StoreError: when the run has none of that number.
        """
        if corpus_id not in self.files:
            raise StoreError(f"the run has no corpus {corpus_id}, only {sorted(self.files)}")
        return self.files[corpus_id]

    def lengths(self, corpus_id: int) -> NDArray[np.int64]:
        """Tokens of each document of a corpus."""
        return self.file(corpus_id).document_lengths()

    def document_lengths(self, doc_keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of the documents named, in the order given."""
        keys = np.asarray(doc_keys, dtype=np.int64)
        out = np.empty(len(keys), dtype=np.int64)
        for corpus, rows in _by_corpus(keys):
            out[rows] = self.file(corpus).document_lengths(keys[rows] & DOC_MASK)
        return out

    def documents(self, doc_keys: NDArray[np.int64]) -> DocumentBatch:
        """Whole documents, in the order given."""
        keys = np.asarray(doc_keys, dtype=np.int64)
        whole = {"doc_key": keys, "doc_start": np.zeros_like(keys), "doc_stop": self.document_lengths(keys)}
        tokens, offsets = self.gather(pa.table({name: pa.array(values) for name, values in whole.items()}))
        return self._batch(tokens, offsets, keys)

    def gather(self, consumed: pa.Table) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Tokens of the segments of a `consumed` table, end to end in row order, and offsets [rows + 1] into them."""
        offsets = offsets_of(consumed.column("doc_stop").to_numpy() - consumed.column("doc_start").to_numpy())
        out = np.empty(int(offsets[-1]), dtype=self.dtype_of(consumed))
        self.gather_into(consumed, out, offsets[:-1])
        return out, offsets

    def gather_into(self, consumed: pa.Table, target: NDArray[Any], places: NDArray[np.int64]) -> None:
        """Copy the tokens of the segments of a `consumed` table into a flat array, each from its place on; places int64 [rows]."""
        keys, starts, stops = (consumed.column(name).to_numpy() for name in ("doc_key", "doc_start", "doc_stop"))
        for corpus, rows in _by_corpus(keys):
            self.file(corpus).read_into(keys[rows] & DOC_MASK, starts[rows], stops[rows], target, places[rows])

    def dtype_of(self, consumed: pa.Table) -> np.dtype[Any]:
        """A type that holds the token ids of every corpus of a `consumed` table."""
        types = [self.file(corpus).dtype.newbyteorder("=") for corpus, _ in _by_corpus(consumed.column("doc_key").to_numpy())]
        return np.result_type(*types) if types else np.dtype(np.int32)

    def batches(self, corpus_id: int, max_tokens: int) -> Iterator[DocumentBatch]:
        """All documents of a corpus, in order, at most `max_tokens` at a time (one document at least)."""
        file = self.file(corpus_id)
        ends = offsets_of(file.document_lengths())[1:]
        first = 0
        while first < len(ends):
            done = int(ends[first - 1]) if first else 0
            stop = max(first + 1, int(np.searchsorted(ends, done + max_tokens, side="right")))
            documents = np.arange(first, stop, dtype=np.int64)
            tokens, offsets = read(file, documents)
            yield self._batch(tokens, offsets, documents | (corpus_id << DOC_BITS))
            first = stop

    def _batch(self, tokens: NDArray[Any], offsets: NDArray[np.int64], keys: NDArray[np.int64]) -> DocumentBatch:
        from forensics.stores.batch import DocumentBatch

        return DocumentBatch.of_tokens(tokens, offsets, keys, self.vocabulary)


def _by_corpus(keys: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64] | slice]]:
    """Each corpus among the keys and the rows that belong to it."""
    corpus = keys >> DOC_BITS
    if not len(keys):
        return
    if int(corpus.min()) == int(corpus.max()):
        yield int(corpus[0]), slice(None)
        return
    order = np.argsort(corpus, kind="stable")
    numbers, first = np.unique(corpus[order], return_index=True)
    for number, rows in zip(numbers, np.split(order, first[1:])):
        yield int(number), rows


@dataclass(frozen=True)
class Format:
    """A file format that can be opened by looking at it.

    Attributes:
        sniff: whether a path (file, folder or prefix) is of this format; must not raise.
        open: opens it.
    """

    sniff: Callable[[Path], bool]
    open: Callable[[Path], TokenFile]


FORMATS: Registry[Format] = Registry("store format", "forensics.stores")


def open_file(path: Path) -> TokenFile:
    """A data file of any known format.

    Raises:
        StoreError: no format fits.
    """
    for _, form in FORMATS.items():
        if form.sniff(path):
            return form.open(path)
    raise StoreError(
        f"{path} is of no known format", hint=f"known: {', '.join(FORMATS.names())}; a Megatron corpus is given by the prefix of its .bin and .idx"
    )


def prepare(reader: object, doc_keys: NDArray[np.int64]) -> None:
    """Tell a reader which documents it will be asked for, where it wants to know beforehand."""
    if callable(make_ready := getattr(reader, "prepare", None)):
        make_ready(doc_keys)
