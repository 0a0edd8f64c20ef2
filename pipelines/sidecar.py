"""From the raw JSON Lines and the .idx that was made from them to a sidecar: which document came from which line, url and crawl.

    raw records, documents of the store -> pairs in order -> documents.parquet

With the tokenizer, a document's ids are turned back into text and compared with the record; without it, only the order and the proportion of bytes to tokens
speak, which is said. What does not fit is listed, and where the two part for good, the sidecar ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from forensics.documents.alignment import Alignment, align
from forensics.errors import StoreError, UsageError
from forensics.files import open_binary, writing
from forensics.schemas import DOC_MASK
from forensics.stores.jsonl import JsonlFile, Tally, labels_of
from forensics.stores.records import Failure, ReadOptions, word
from forensics.stores.sniff import open_records

ROWS = 1 << 15
BATCH_BYTES = 1 << 23
EDGE = 24  # bytes compared at both ends where texts are not equal to the last byte
CLOSE = 0.03  # difference of lengths that normalisation and special tokens explain
POSSIBLE = (0.3, 30.0)  # bytes per token of any tokenizer, until the usual number is learnt
RATIO = 4.0  # without a tokenizer: bytes per token may differ from the usual by this factor
WORDS = ("id", "url", "source", "crawl", "language", "date")
FIELDS: list[pa.Field[Any]] = [
    pa.field("corpus", pa.string()), pa.field("document", pa.int64()), pa.field("file", pa.string()), pa.field("line", pa.int64()),
    pa.field("offset", pa.int64()), pa.field("tokens", pa.int64()), *(pa.field(name, pa.string()) for name in WORDS),
]  # fmt: skip
SCHEMA = pa.schema(FIELDS)
URL_KEYS, DATE_KEYS = ("url", "uri", "URL", "source_url"), ("date", "timestamp", "created", "crawl_date")


@dataclass(frozen=True)
class Record:
    """A raw record: its text and where it stands."""

    file: str
    line: int
    offset: int
    text: bytes
    labels: dict[str, str | None]


@dataclass(frozen=True)
class Document:
    """A stored document: number, tokens, and its text where a tokenizer gives it."""

    number: int
    tokens: int
    text: bytes | None


@dataclass
class Outcome:
    """What was written and what did not fit.

    Attributes:
        alignment: pairs, gaps, where it stopped.
        exact: pairs whose text is equal to the last byte; None without a tokenizer.
        stopped_at: file and line of the record and number of the document where the two part for good.
        failures: raw lines that hold no record.
    """

    alignment: Alignment[Record, Document]
    exact: int | None
    stopped_at: tuple[str, int, int] | None
    failures: list[Failure]


def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet does."""
    if not path.is_file():
        return False
    with open_binary(path) as stream:
        return stream.read(4) == b"PAR1"


def make_sidecar(raw: Sequence[Path], corpus: Path, output: Path, options: ReadOptions, on_pairs: Callable[[int], None] | None = None) -> Outcome:
    """Align and write.

    Args:
        raw: JSON Lines files in the order in which they were tokenised.
        corpus: the .idx, its .bin or their prefix; or a raw token array.
        output: sidecar to write, Parquet.
        options: tokenizer, keys, and how to read a raw token array.
        on_pairs: called with the number of pairs now and then.

    Raises:
        StoreError: nothing fits at all.
        UsageError: `output` is there already and is no Parquet file: raw records or a corpus are never overwritten.
    """
    if output.exists() and not is_parquet(output):
        raise UsageError(f"{output} is there already and is no sidecar", hint="give another file with `-o`; one that a sidecar wrote before is replaced")
    store: Any = open_records(corpus, options)
    failures: list[Failure] = []
    found: Alignment[Record, Document] = Alignment()
    checker = Checker(options.tokenizer is not None)
    pairs = _learning(checker, align(read_records(raw, options, failures), read_documents(store), checker.same, found, optional=lambda r: not r.text.strip()))
    name = store.path.name
    with writing(output) as part, pq.ParquetWriter(part, SCHEMA, compression="zstd") as writer:
        for rows in _blocks(pairs, ROWS):
            writer.write_table(pa.Table.from_pylist([row_of(name, r, d) for r, d in rows], SCHEMA))
            if on_pairs:
                on_pairs(found.pairs)
        if not found.pairs:
            raise StoreError(
                f"no record of {raw[0]} fits the first documents of {store.path}",
                hint="give the raw files in the order in which they were tokenised, and the tokenizer that was used, with `--tokenizer`",
            )
    stop = (found.parted[0].file, found.parted[0].line + 1, found.parted[1].number) if found.parted else None
    return Outcome(found, checker.exact if checker.with_text else None, stop, failures)


def read_records(raw: Sequence[Path], options: ReadOptions, failures: list[Failure]) -> Iterator[Record]:
    """Records of all raw files, in order."""
    for path in raw:
        tally = Tally(path)
        for line, offset, text, record in JsonlFile(path, options).records(tally):
            name, source, crawl, language = labels_of(record, options)
            found = {"id": name, "source": source, "crawl": crawl, "language": language, "url": _find(record, URL_KEYS), "date": _find(record, DATE_KEYS)}
            yield Record(str(path), line, offset, text, found)
        failures += tally.all()


def _find(record: dict[str, Any], keys: Sequence[str]) -> str | None:
    places = [record, *(v for k, v in record.items() if k in ("meta", "metadata") and isinstance(v, dict))]
    return next((w for place in places for k in keys if (w := word(place.get(k))) is not None), None)


def read_documents(store: Any) -> Iterator[Document]:
    """Documents of the store, in order, with their text where there is a tokenizer."""
    for shard in store.shards(1 << 28):
        for part in store.parts(shard, 0, BATCH_BYTES):
            batch = part.batch
            for i, key in enumerate(batch.doc_key.tolist()):
                yield Document(key & DOC_MASK, int(batch.lengths[i]), batch.raw(i).tobytes() if batch.vocabulary is not None else None)


class Checker:
    """Whether a document was made from a record.

    Args:
        with_text: whether documents have text; else the usual number of bytes per token is learnt on the way.
    """

    def __init__(self, with_text: bool) -> None:
        self.with_text, self.exact = with_text, 0
        self._usual, self._seen = 4.0, 0

    def same(self, record: Record, document: Document) -> bool:
        """Text equal, or equal at both ends and nearly as long; without text, a plausible number of tokens."""
        if document.text is None:
            if len(record.text) < 2 * EDGE and document.tokens < EDGE:
                return True
            ratio = (len(record.text) + 1) / (document.tokens + 1)
            low, high = (self._usual / RATIO, self._usual * RATIO) if self._seen >= EDGE else POSSIBLE
            return low <= ratio <= high
        if record.text == document.text:
            return True
        a, b = record.text.strip(), document.text.strip()
        return abs(len(a) - len(b)) <= max(4, CLOSE * len(a)) and a[:EDGE] == b[:EDGE] and a[-EDGE:] == b[-EDGE:]

    def learn(self, record: Record, document: Document) -> None:
        """Count a pair whose text is equal; take over its bytes per token, by a running geometric mean."""
        self.exact += record.text == document.text
        if document.text is None and document.tokens >= EDGE:
            self._seen += 1
            weight = max(1 / self._seen, 1 / 256)
            self._usual *= ((len(record.text) + 1) / (document.tokens + 1) / self._usual) ** weight


def row_of(corpus: str, record: Record, document: Document) -> dict[str, Any]:
    """A pair as a row of the sidecar."""
    return {
        "corpus": corpus,
        "document": document.number,
        "file": record.file,
        "line": record.line,
        "offset": record.offset,
        "tokens": document.tokens,
        **record.labels,
    }


def _learning(checker: Checker, pairs: Iterable[tuple[Record, Document]]) -> Iterator[tuple[Record, Document]]:
    for record, document in pairs:
        checker.learn(record, document)
        yield record, document


def _blocks(pairs: Iterable[tuple[Record, Document]], size: int) -> Iterator[list[tuple[Record, Document]]]:
    held = []
    for pair in pairs:
        held.append(pair)
        if len(held) == size:
            yield held
            held = []
    yield held
