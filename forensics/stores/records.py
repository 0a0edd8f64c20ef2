"""Files of documents read from front to back: what an audit needs of every format, text or tokens.

A file is cut into shards that can be read by themselves; a shard yields parts, a batch of documents each with what the
file says of them besides their content. Document numbers do not depend on how the file is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from forensics.schemas import DOC_BITS
from forensics.stores.batch import DocumentBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.stores.vocab import Vocabulary

TEXT_KEYS = ("text", "content", "raw_content", "document", "body", "page_content")
TOKEN_KEYS = ("input_ids", "tokens", "token_ids")
NAME_KEYS = ("id", "doc_id", "document_id", "uuid", "_id", "warc_record_id", "url", "uri", "path", "file_path", "file", "title")
SOURCE_KEYS = ("source", "subset", "dataset", "domain", "data_source", "pile_set_name")
CRAWL_KEYS = ("crawl", "dump", "snapshot", "cc_dump", "shard")
LANGUAGE_KEYS = ("language", "lang", "language_code")
NESTED = ("meta", "metadata", "attributes")


@dataclass(frozen=True)
class ReadOptions:
    """How to read where a file does not say so itself.

    Attributes:
        text: name of the column or key that holds the text; found by usual names otherwise.
        name: name of the column or key with the record's id; found by usual names otherwise.
        dtype: type of the ids of a raw token array: uint16, uint32, ...
        eos: id that ends a document in a raw token array.
        tokenizer: folder or file; gives token files their text.
    """

    text: str | None = None
    name: str | None = None
    dtype: str | None = None
    eos: int | None = None
    tokenizer: Path | None = None


@dataclass(frozen=True)
class Shard:
    """A part of a file that can be read by itself.

    Attributes:
        start, stop: half-open; bytes of JSON Lines, row groups of Parquet, documents of token files.
        first: number of the first document in it.
        size: bytes to read, for progress and for balance.
    """

    start: int
    stop: int
    first: int
    size: int


@dataclass(frozen=True)
class Failure:
    """Something that could not be read: where, what, how often."""

    item: str
    error: str
    count: int = 1


@dataclass
class Part:
    """Documents in the order of the file, with what the file says of each; a list that is None is unknown throughout."""

    batch: DocumentBatch
    name: Sequence[str | None] | None = None
    source: Sequence[str | None] | None = None
    crawl: Sequence[str | None] | None = None
    language: Sequence[str | None] | None = None
    failures: list[Failure] = field(default_factory=list)


class RecordFile(Protocol):
    """One file of documents."""

    format: str
    path: Path

    @property
    def is_text(self) -> bool:
        """Whether its documents are text, whose lengths are counted in bytes."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when the file does."""
        ...

    def shards(self, size_bytes: int) -> list[Shard]:
        """The whole file in pieces of about this size, in order."""
        ...

    def parts(self, shard: Shard, corpus_id: int, max_bytes: int) -> Iterator[Part]:
        """Documents of a shard, about `max_bytes` of content at a time (one document at least)."""
        ...


def keys_of(numbers: NDArray[np.int64] | Sequence[int], corpus_id: int) -> NDArray[np.int64]:
    """Document numbers of a file as `doc_key`s."""
    return np.asarray(numbers, np.int64) | (np.int64(corpus_id) << np.int64(DOC_BITS))


def first_known(names: Sequence[str], present: Sequence[str], wanted: str | None = None) -> str | None:
    """The first of the usual names that is present, or the one asked for."""
    if wanted is not None:
        return wanted if wanted in present else None
    return next((n for n in names if n in present), None)


def vocabulary_of(options: ReadOptions) -> Vocabulary | None:
    """The tokenizer that was named, opened; None without one."""
    if options.tokenizer is None:
        return None
    from forensics.stores.vocab import open_vocabulary

    return open_vocabulary(options.tokenizer)


def word(value: Any) -> str | None:
    """A value as a label: strings and whole numbers; anything else is no label."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
