"""Parquet, Arrow IPC files and streams, and folders of Hugging Face `datasets`: a column of text, or of lists of token ids.

The bytes of a text column are used where they lie. Rows are numbered through the whole file, nulls included, so that a document's
number is its row. A shard is a range of row groups (Parquet) or record batches (IPC).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.errors import StoreError
from forensics.files import digest, stamp
from forensics.stores.batch import DocumentBatch
from forensics.stores.records import (
    CRAWL_KEYS,
    LANGUAGE_KEYS,
    NAME_KEYS,
    SOURCE_KEYS,
    TEXT_KEYS,
    TOKEN_KEYS,
    Failure,
    Part,
    ReadOptions,
    Shard,
    first_known,
    keys_of,
    vocabulary_of,
)
from forensics.stores.vocab import byte_vocabulary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.stores.vocab import Vocabulary

ROWS = 1 << 13
PARQUET, IPC_FILE, IPC_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"


class ArrowFile:
    """A Parquet or Arrow IPC file.

    Args:
        path: the file.
        options: which columns hold text and id, and the tokenizer of token columns.

    Raises:
        StoreError: no column of text or tokens, or a file that does not read.
    """

    format = "arrow"

    def __init__(self, path: Path, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008
        self.path, self.options = path, options
        with path.open("rb") as file:
            head = file.read(8)
        self.kind = "parquet" if head.startswith(PARQUET) else "file" if head.startswith(IPC_FILE) else "stream"
        self.format = "parquet" if self.kind == "parquet" else "arrow"
        schema = self._read(lambda: self._open().schema if self.kind == "stream" else self._schema())
        self.columns = self._columns(schema)
        self.is_text = _is_text(schema.field(self.columns["content"]).type)

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """Of token columns."""
        return vocabulary_of(self.options)

    @property
    def fingerprint(self) -> str:
        """Changes when the file, the columns asked for, or the tokenizer does."""
        tokenizer = self.options.tokenizer
        return digest(stamp(self.path), self.options.text, self.options.name, str(tokenizer) if tokenizer else None)

    def shards(self, size_bytes: int) -> list[Shard]:
        """Ranges of row groups of about this size; an IPC file or stream is one shard."""
        size = self.path.stat().st_size
        if self.kind != "parquet":
            return [Shard(0, -1, 0, size)]
        meta = self._open().metadata
        out: list[Shard] = []
        start, first, held, rows = 0, 0, 0, 0
        for i in range(meta.num_row_groups):
            held += meta.row_group(i).total_byte_size
            rows += meta.row_group(i).num_rows
            if held >= size_bytes or i + 1 == meta.num_row_groups:
                out.append(Shard(start, i + 1, first, held))
                start, first, held, rows = i + 1, first + rows, 0, 0
        return out or [Shard(0, 0, 0, 0)]

    def parts(self, shard: Shard, corpus_id: int, max_bytes: int) -> Iterator[Part]:
        """Rows of a shard, about `max_bytes` of content at a time."""
        row = shard.first
        batches = self._batches(shard)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                yield Part(DocumentBatch.from_texts([]), failures=[Failure(f"{self.path}: row {row}", f"does not read further: {_reason(error)}")])
                return
            if batch is None:
                return
            for piece in _pieces(batch, self.columns["content"], max_bytes):
                yield self._part(piece, row, corpus_id)
                row += piece.num_rows

    def _part(self, batch: pa.RecordBatch, row: int, corpus_id: int) -> Part:
        content: Any = batch.column(self.columns["content"])
        keys = keys_of(np.arange(row, row + len(content)), corpus_id)
        failures = []
        if content.null_count:
            known = content.is_valid().to_numpy(zero_copy_only=False)
            failures.append(
                Failure(f"{self.path}: row {row + int(np.flatnonzero(~known)[0])}", f"`{self.columns['content']}` is null", int(content.null_count))
            )
            keys, batch = keys[known], batch.filter(pa.array(known))
            content = batch.column(self.columns["content"])
        values, offsets = flat(content)
        found = DocumentBatch.of_tokens(values, offsets, keys, self.vocabulary if _is_tokens(content.type) else byte_vocabulary())
        labels = {role: _words(batch.column(name)) for role, name in self.columns.items() if role != "content"}
        return Part(found, labels.get("name"), labels.get("source"), labels.get("crawl"), labels.get("language"), failures)

    def _columns(self, schema: pa.Schema) -> dict[str, str]:
        """Role -> column, for content and the labels."""
        names = schema.names
        content = first_known(TEXT_KEYS, [n for n in names if _is_text(schema.field(n).type)], self.options.text)
        content = content or first_known(TOKEN_KEYS, [n for n in names if _is_tokens(schema.field(n).type)], self.options.text)
        if content is None:
            wanted = (
                f"no column `{self.options.text}`"
                if self.options.text
                else f"no column of text ({', '.join(TEXT_KEYS[:4])}, ...) or token ids ({', '.join(TOKEN_KEYS)})"
            )
            raise StoreError(f"{self.path} has {wanted}; its columns are {', '.join(names)}", hint="name the column with `--text`")
        out = {"content": content}
        for role, keys in (
            ("name", (self.options.name,) if self.options.name else NAME_KEYS),
            ("source", SOURCE_KEYS),
            ("crawl", CRAWL_KEYS),
            ("language", LANGUAGE_KEYS),
        ):
            found = first_known(keys, [n for n in names if n != content and _is_label(schema.field(n).type)])
            if found:
                out[role] = found
        return out

    def _open(self) -> Any:
        if self.kind == "parquet":
            import pyarrow.parquet as pq

            return self._read(lambda: pq.ParquetFile(self.path, memory_map=True))
        source = pa.memory_map(str(self.path))
        return self._read(lambda: pa.ipc.open_file(source) if self.kind == "file" else pa.ipc.open_stream(source))

    def _schema(self) -> pa.Schema:
        opened = self._open()
        schema: pa.Schema = opened.schema_arrow if self.kind == "parquet" else opened.schema
        return schema

    def _batches(self, shard: Shard) -> Iterator[pa.RecordBatch]:
        wanted = list(dict.fromkeys(self.columns.values()))
        opened = self._open()
        if self.kind == "parquet":
            yield from opened.iter_batches(batch_size=ROWS, row_groups=list(range(shard.start, shard.stop)), columns=wanted, use_threads=False)
        else:
            batches = (opened.get_batch(i) for i in range(opened.num_record_batches)) if self.kind == "file" else opened
            for batch in batches:
                yield batch.select(wanted)

    def _read(self, what: Any) -> Any:
        try:
            return what()
        except (pa.ArrowException, OSError) as error:
            raise StoreError(f"{self.path} does not read: {_reason(error)}", hint="the file is damaged or was not written to its end") from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _is_tokens(kind: pa.DataType) -> bool:
    lists: Any = kind
    return (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)) and pa.types.is_integer(lists.value_type)


def _is_label(kind: pa.DataType) -> bool:
    return _is_text(kind) or pa.types.is_integer(kind)


def plain(content: Any) -> Any:
    """A column of text or lists as large binary or large lists, whose layout `flat` knows."""
    if pa.types.is_dictionary(content.type):
        content = content.dictionary_decode()
    if _is_tokens(content.type):
        return content.cast(pa.large_list(content.type.value_type))
    if pa.types.is_string_view(content.type):
        content = content.cast(pa.string())
    return content.cast(pa.large_string() if pa.types.is_string(content.type) else content.type).cast(pa.large_binary())


def flat(content: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The values of a `plain` column without nulls: bytes of text or ids [values], and where each document begins [n + 1], from 0."""
    if not len(content):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    bounds = np.frombuffer(content.buffers()[1], np.int64)[content.offset : content.offset + len(content) + 1]
    if _is_tokens(content.type):
        ids: Any = content.values.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
        return ids.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False), bounds - bounds[0]
    data = content.buffers()[2]
    whole = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return whole[bounds[0] : bounds[-1]], bounds - bounds[0]


def _words(column: Any) -> Sequence[str | None]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return [None if v is None else v.decode("utf-8", "replace") for v in column.to_pylist()]
    found: list[str | None] = column.cast(pa.string()).to_pylist()
    return found


def _pieces(batch: pa.RecordBatch, content: str, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Consecutive rows of about `max_bytes` of content, which is made `plain`."""
    column = plain(batch.column(content))
    batch = batch.set_column(batch.schema.get_field_index(content), content, column)
    sizes: Any = pc.list_value_length(column) if _is_tokens(column.type) else pc.binary_length(column)
    ends = np.cumsum(sizes.fill_null(0).to_numpy(zero_copy_only=False))
    start = 0
    while start < batch.num_rows:
        done = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + max_bytes, side="right")))
        yield batch.slice(start, stop - start)
        start = stop


def dataset_files(folder: Path) -> list[Path]:
    """The data files of a folder that `datasets.save_to_disk` wrote, in its own order; [] where it is none.

    Raises:
        StoreError: a state file that does not read.
    """
    import json

    state = folder / "state.json"
    if not state.exists():
        return []
    try:
        named = [folder / entry["filename"] for entry in json.loads(state.read_text())["_data_files"]]
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise StoreError(f"{state} is no state file of a dataset ({error})") from error
    return named
