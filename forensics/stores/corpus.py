"""Several files of documents behind one numbering: what an audit reads, and where single documents can be had again.

Token files give any document at once. Texts can only be read from front to back, so those that will be asked for again are
copied once into a spool, a flat file of their bytes that is mapped.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from forensics.errors import StoreError
from forensics.files import digest, writing
from forensics.schemas import CORPORA, DOC_BITS, DOC_MASK, Corpora
from forensics.stores.batch import DocumentBatch
from forensics.stores.records import Part, ReadOptions, RecordFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENDINGS = (".gz", ".zst", ".jsonl", ".json", ".ndjson", ".parquet", ".arrow", ".feather", ".npy", ".bin", ".ds")
SHARD_BYTES = 1 << 28


@runtime_checkable
class RandomAccess(Protocol):
    """A file that can give any of its documents."""

    def documents(self, numbers: NDArray[np.int64], corpus_id: int) -> DocumentBatch:
        """Whole documents by number, in the order given."""
        ...


@runtime_checkable
class Selective(Protocol):
    """A file that is read from front to back, but can pass over what nobody wants."""

    def chosen(self, numbers: NDArray[np.int64], corpus_id: int, max_bytes: int) -> Iterator[Part]:
        """Some documents, by number, in their order."""
        ...


class Spool:
    """Copies of documents, by key, in one mapped file.

    Args:
        path: the file; made by `write`.
        keys: int64 [n], ascending.
        bounds: where each lies, in ids, int64 [n + 1].
        like: an empty batch of the same kind, for vocabulary and type.
    """

    def __init__(self, path: Path, keys: NDArray[np.int64], bounds: NDArray[np.int64], like: DocumentBatch) -> None:
        self.path, self.keys, self.bounds, self.like = path, keys, bounds, like
        self._map: NDArray[Any] = np.empty(0, like.tokens.dtype)
        if len(bounds) and bounds[-1]:
            with path.open("rb") as file:
                self._map = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), like.tokens.dtype)

    def __contains__(self, key: int) -> bool:
        at = int(np.searchsorted(self.keys, key))
        return at < len(self.keys) and int(self.keys[at]) == key

    def get(self, key: int) -> NDArray[Any]:
        """Ids or bytes of one document that it holds."""
        at = int(np.searchsorted(self.keys, key))
        return self._map[self.bounds[at] : self.bounds[at + 1]]


class Corpus:
    """Files of documents in the order of their corpus numbers.

    Args:
        files: open files.
        folder: where spools may be written.
        batch_bytes: of content, read at a time.
    """

    def __init__(self, files: Sequence[RecordFile], folder: Path, batch_bytes: int = 1 << 23) -> None:
        self.files, self.folder, self.batch_bytes = list(files), folder, batch_bytes
        self._spools: dict[int, Spool] = {}

    @property
    def fingerprint(self) -> str:
        """Changes when any file does."""
        return digest([f.fingerprint for f in self.files])

    @property
    def texts(self) -> tuple[int, ...]:
        """Numbers of the files whose documents are text."""
        return tuple(n for n, f in enumerate(self.files) if f.is_text)

    def table(self, documents: Sequence[int], tokens: Sequence[int]) -> Corpora:
        """The files as the table `corpora`, with counts that were found when they were read."""
        return Corpora(CORPORA.of({
            "corpus_id": list(range(len(self.files))),
            "name": [f.path.name for f in self.files],
            "path": [str(f.path) for f in self.files],
            "format": [f.format for f in self.files],
            "source": [source_name(f.path) for f in self.files],
            "documents": list(documents),
            "tokens": list(tokens),
            "unit": ["byte" if f.is_text else "token" for f in self.files],
        }))  # fmt: skip

    def prepare(self, doc_keys: NDArray[np.int64]) -> None:
        """Copy the documents of text files that will be asked for again, in one pass over each file."""
        keys = np.unique(np.asarray(doc_keys, np.int64))
        for number in np.unique(keys >> DOC_BITS).tolist():
            if not isinstance(self.files[number], RandomAccess):
                self._spools[number] = self._copy(number, keys[keys >> DOC_BITS == number], self.folder / f"spool-{number}.bin")

    def _copy(self, number: int, wanted: NDArray[np.int64], path: Path) -> Spool:
        file = self.files[number]
        if isinstance(file, Selective):
            parts = file.chosen(wanted & DOC_MASK, number, self.batch_bytes)
        else:
            parts = (part for shard in file.shards(SHARD_BYTES) for part in file.parts(shard, number, self.batch_bytes))
        found: list[NDArray[np.int64]] = []
        sizes: list[NDArray[np.int64]] = []
        like: DocumentBatch | None = None
        left = len(wanted)
        with writing(path) as place, place.open("wb") as out:
            for part in parts:
                batch = part.batch
                rows = np.flatnonzero(np.isin(batch.doc_key, wanted))
                like = batch.part(0, 0)
                for i in rows.tolist():
                    out.write(np.ascontiguousarray(batch.tokens_of(i)).tobytes())
                found.append(batch.doc_key[rows])
                sizes.append(batch.lengths[rows])
                left -= len(rows)
                if not left:
                    break
        keys = np.concatenate(found) if found else np.empty(0, np.int64)
        bounds = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64) if sizes else np.zeros(1, np.int64)
        return Spool(path, keys, bounds, like if like is not None else DocumentBatch.from_texts([]))

    def forget(self) -> None:
        """Drop the copies."""
        for spool in self._spools.values():
            spool.path.unlink(missing_ok=True)
        self._spools.clear()

    def documents(self, doc_keys: NDArray[np.int64]) -> DocumentBatch:
        """Whole documents in the order given.

        Raises:
            StoreError: documents of a text file that were not spooled.
        """
        keys = np.asarray(doc_keys, np.int64)
        numbers = np.unique(keys >> DOC_BITS).tolist()
        if len(numbers) == 1 and isinstance(file := self.files[numbers[0]], RandomAccess):
            return file.documents(keys & DOC_MASK, numbers[0])
        pieces: list[NDArray[Any]] = [np.empty(0, np.uint8)] * len(keys)
        like: DocumentBatch | None = None
        for number in numbers:
            rows = np.flatnonzero(keys >> DOC_BITS == number)
            file = self.files[number]
            if isinstance(file, RandomAccess):
                like = file.documents(keys[rows] & DOC_MASK, number)
                for i, row in enumerate(rows.tolist()):
                    pieces[row] = like.tokens_of(i)
                continue
            spool = self._spools.get(number)
            for row in rows.tolist():
                if spool is None or int(keys[row]) not in spool:
                    raise StoreError(f"document {int(keys[row]) & DOC_MASK} of {file.path} was not kept for a second look")
                pieces[row], like = spool.get(int(keys[row])), spool.like
        offsets = np.concatenate([[0], np.cumsum([len(p) for p in pieces])]).astype(np.int64)
        flat = np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
        return DocumentBatch.of_tokens(flat, offsets, keys, like.vocabulary if like is not None else None)

    def one(self, key: int) -> DocumentBatch:
        """One document, read now.

        Raises:
            StoreError: no such file or document.
        """
        keys = np.array([key], np.int64)
        if key >> DOC_BITS >= len(self.files):
            raise StoreError(f"there are {len(self.files)} files, no number {key >> DOC_BITS}")
        self.prepare(keys)
        found = self.documents(keys)
        self.forget()
        return found


def reopen(paths: Sequence[str], options: Mapping[str, Any], folder: Path) -> Corpus:
    """Files that were audited before, as `case.json` names them, opened again in the same order.

    Args:
        paths: of the files.
        options: fields of `ReadOptions`.
        folder: where spools may be written.

    Raises:
        StoreError: a file that is not there any more or does not open.
    """
    from forensics.stores.sniff import open_records

    tokenizer = options.get("tokenizer")
    given = ReadOptions(**{**options, "tokenizer": Path(tokenizer) if tokenizer else None})
    for path in paths:
        if not Path(path).exists() and not Path(f"{path}.idx").exists():
            raise StoreError(f"{path} does not exist any more")
    return Corpus([open_records(Path(path), given) for path in paths], folder)


def source_name(path: Path) -> str:
    """Default source label of a file: its name without the usual endings."""
    name = path.name
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return name or path.name
