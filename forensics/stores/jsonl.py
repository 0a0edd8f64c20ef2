r"""JSON Lines, plain or compressed: one record per line, split on `\n` alone.

Texts contain U+2028, U+0085 and form feeds, which other line splitters break records at. A record that does not parse, has no
text, or is torn goes to the failures and its line number stays free, so that a document's number is always its line, from 0.
Unpaired surrogates, written as escapes or as three raw bytes, are kept; bytes that are no UTF-8 at all become U+FFFD and are reported. A
compressed file that ends too early gives what could be read, and says so.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.files import GZIP, ZSTD, digest, stamp
from forensics.stores.batch import DocumentBatch
from forensics.stores.records import (
    CRAWL_KEYS,
    LANGUAGE_KEYS,
    NAME_KEYS,
    NESTED,
    SOURCE_KEYS,
    TEXT_KEYS,
    Failure,
    Part,
    ReadOptions,
    Shard,
    keys_of,
    word,
)

BLOCK = 1 << 22
BATCH_DOCUMENTS = 1 << 16
WINDOW = 1 << 31  # zstandard --long=31 needs as much; smaller frames take what they say
BOM = b"\xef\xbb\xbf"  # some editors begin a file with it; it is part of no record
SHOWN = 20  # failures of a file listed one by one; the rest is counted by kind
FURTHER = " (further lines)"
JSON_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number", type(None): "null"}


class JsonlFile:
    """A file of JSON records.

    Args:
        path: the file.
        options: which key holds the text and the id.
    """

    format = "jsonl"
    is_text = True

    def __init__(self, path: Path, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008
        self.path, self.options = path, options
        with path.open("rb") as file:
            head = file.read(4)
        self.compressed = head.startswith(GZIP) or head == ZSTD

    @property
    def fingerprint(self) -> str:
        """Changes when the file or the keys asked for do."""
        return digest(stamp(self.path), self.options.text, self.options.name)

    def shards(self, size_bytes: int) -> list[Shard]:
        """Ranges of bytes whose lines begin in them; a compressed file is one."""
        size = self.path.stat().st_size
        if self.compressed or size <= size_bytes:
            return [self._whole()]
        out, first = [], 0
        with self.path.open("rb") as file:
            for start in range(0, size, size_bytes):
                stop = min(size, start + size_bytes)
                out.append(Shard(start, stop, first, stop - start))
                left = stop - start
                while left and (block := file.read(min(BLOCK, left))):
                    first += block.count(b"\n")
                    left -= len(block)
        return out

    def parts(self, shard: Shard, corpus_id: int, max_bytes: int) -> Iterator[Part]:
        """Records of a shard, about `max_bytes` of text at a time."""
        failures = Tally(self.path)
        return self._parts(((number, line) for number, _, line in self._numbered(shard, failures)), corpus_id, max_bytes, failures)

    def chosen(self, numbers: NDArray[np.int64], corpus_id: int, max_bytes: int) -> Iterator[Part]:
        """Some records, by number: other lines are passed over unread."""
        wanted, failures = set(numbers.tolist()), Tally(self.path)
        lines = ((number, line) for number, _, line in self._numbered(self._whole(), failures) if number in wanted)
        return self._parts(itertools.islice(lines, len(wanted)), corpus_id, max_bytes, failures)

    def _parts(self, lines: Iterable[tuple[int, bytes]], corpus_id: int, max_bytes: int, failures: Tally) -> Iterator[Part]:
        taken: list[tuple[int, bytes, Any]] = []
        size = 0
        for number, line in lines:
            record = self._record(number, line, failures)
            if record is None:
                continue
            text = self._text(record)
            taken.append((number, text, labels_of(record, self.options)))
            size += len(text)
            if size >= max_bytes or len(taken) >= BATCH_DOCUMENTS:
                yield self._part(taken, corpus_id)
                taken, size = [], 0
        last = self._part(taken, corpus_id)
        last.failures = failures.all()
        yield last

    def records(self, failures: Tally) -> Iterator[tuple[int, int, bytes, dict[str, Any]]]:
        """Every record that holds a text: line, byte offset of the line (in the content, where it is compressed), text, and the record."""
        for number, at, line in self._numbered(self._whole(), failures):
            record = self._record(number, line, failures)
            if record is not None:
                yield number, at, self._text(record), record

    def _whole(self) -> Shard:
        size = self.path.stat().st_size
        return Shard(0, size, 0, size)

    def _numbered(self, shard: Shard, failures: Tally) -> Iterator[tuple[int, int, bytes]]:
        """Lines that begin in the shard, with their numbers and offsets; blank ones too."""
        if self.compressed:
            at = 0
            for number, line in enumerate(_split(decompressed(self.path, failures))):
                yield number, at, line
                at += len(line) + 1
            return
        with self.path.open("rb") as file:
            number, at = shard.first, shard.start
            if at:
                file.seek(at - 1)
                torn = file.readline()
                at += len(torn) - 1
                number += torn != b"\n"
            for line in _split(iter(lambda: file.read(BLOCK), b"")):
                if at >= shard.stop:
                    return
                yield number, at, line
                number += 1
                at += len(line) + 1

    def _record(self, number: int, line: bytes, failures: Tally) -> dict[str, Any] | None:
        """The record of a line, or None where it holds no document."""
        if not line.strip():
            return None
        if number == 0:
            line = line.removeprefix(BOM)
        try:
            try:
                record = _parse(line)
            except UnicodeDecodeError:
                failures.add(number, "bytes that are no UTF-8, read as U+FFFD")
                record = json.loads(line.decode("utf-8", "replace"))
            self._text(record)
        except RecursionError:
            failures.add(number, "no JSON: nested too deeply")
        except ValueError as error:
            failures.add(number, f"no JSON: {str(error)[:120]}")
        except LookupError as error:
            failures.add(number, str(error.args[0]))
        else:
            found: dict[str, Any] = record
            return found
        return None

    def _text(self, record: Any) -> bytes:
        """The record's text.

        Raises:
            LookupError: with what is there instead.
        """
        if not isinstance(record, dict):
            raise LookupError(f"JSON, but {JSON_NAMES[type(record)]}, not an object")
        key = self.options.text or next((k for k in TEXT_KEYS if k in record), None)
        if key is None or key not in record:
            raise LookupError(f"no text: the keys are {', '.join(sorted(map(str, record))[:8]) or 'none'}")
        text = record[key]
        if not isinstance(text, str):
            raise LookupError(f"no text: `{key}` holds {JSON_NAMES[type(text)]}")
        return text.encode("utf-8", "surrogatepass")

    def _part(self, taken: list[tuple[int, bytes, Any]], corpus_id: int) -> Part:
        batch = DocumentBatch.from_texts([t[1] for t in taken], keys_of([t[0] for t in taken], corpus_id))
        names, sources, crawls, languages = ([t[2][i] for t in taken] for i in range(4))
        return Part(batch, names, sources, crawls, languages)


class Tally:
    """Failures of a shard: the first ones by line, the rest counted by what went wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listed: list[Failure] = []
        self.counts: dict[str, int] = {}

    def add(self, number: int | None, error: str) -> None:
        """Note one, by line number (from 0) where it has one."""
        if len(self.listed) < SHOWN:
            self.listed.append(Failure(str(self.path) if number is None else f"{self.path}:{number + 1}", error))
        else:
            kind = error.split(":")[0]
            self.counts[kind] = self.counts.get(kind, 0) + 1

    def all(self) -> list[Failure]:
        """Everything noted."""
        return self.listed + [Failure(str(self.path), kind + FURTHER, n) for kind, n in sorted(self.counts.items())]


def as_one(path: Path, failures: Iterable[Failure]) -> list[Failure]:
    """Failures of a file's shards, one shard after the other, as if the file had been read in one."""
    tally = Tally(path)
    for failure in failures:
        kind = failure.error.split(":")[0].removesuffix(FURTHER)
        if not failure.error.endswith(FURTHER) and len(tally.listed) < SHOWN:
            tally.listed.append(failure)
        else:
            tally.counts[kind] = tally.counts.get(kind, 0) + failure.count
    return tally.all()


def labels_of(record: dict[str, Any], options: ReadOptions) -> tuple[str | None, str | None, str | None, str | None]:
    """Name, source, crawl and language of a record, from its own keys or those of `meta`, `metadata` or `attributes`."""
    places = [record, *(record[k] for k in NESTED if isinstance(record.get(k), dict))]

    def find(keys: tuple[str, ...]) -> str | None:
        for place in places:
            for k in keys:
                if k in place and (found := word(place[k])) is not None:
                    return found
        return None

    return find((options.name,) if options.name else NAME_KEYS), find(SOURCE_KEYS), find(CRAWL_KEYS), find(LANGUAGE_KEYS)


def _parse(line: bytes) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return json.loads(line.decode("utf-8", "surrogatepass"))


def _split(blocks: Iterator[bytes]) -> Iterator[bytes]:
    r"""Lines without their `\n`; the last one may be torn."""
    rest: list[bytes] = []
    for block in blocks:
        first, *whole = block.split(b"\n")
        rest.append(first)
        if whole:
            yield b"".join(rest)
            yield from whole[:-1]
            rest = [whole[-1]]
    if last := b"".join(rest):
        yield last


def decompressed(path: Path, failures: Tally) -> Iterator[bytes]:
    """Content of a gzip or zstandard file of one or more frames; a damaged or torn end becomes a failure, what came before is kept."""
    import zstandard

    with path.open("rb") as file:
        kind = file.read(4)
        file.seek(0)
        fresh: Any = (lambda: zlib.decompressobj(31)) if kind.startswith(GZIP) else (lambda: zstandard.ZstdDecompressor(max_window_size=WINDOW).decompressobj())
        stream, begun = fresh(), False
        while block := file.read(1 << 18):
            while block:
                try:
                    begun = True
                    out = stream.decompress(block)
                except (zlib.error, zstandard.ZstdError) as error:
                    failures.add(None, f"damaged before byte {file.tell()} of the compressed file ({error}); what came before was read")
                    return
                if out:
                    yield out
                block = b""
                if stream.eof:
                    block = stream.unused_data.lstrip(b"\0") if kind.startswith(GZIP) else stream.unused_data
                    stream, begun = fresh(), False
        if begun:
            failures.add(None, "the compressed file ends too early; what was there was read")
