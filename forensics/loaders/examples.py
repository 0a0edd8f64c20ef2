"""Data sets of torch and Hugging Face as loaders count them: examples, one after the other, over several files.

An example is a list of token ids (`input_ids`) or a text, whose tokens are its bytes. Read are JSON lines, Parquet and
Arrow files and folders that `datasets.save_to_disk` wrote; the number of an example in its file is the document.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.errors import StoreError, nearest
from forensics.files import digest, lines, open_binary, stamp
from forensics.stores.base import lengths_between, refuse_beyond
from forensics.stores.gather import copy_runs, offsets_of

COLUMNS = ("input_ids", "tokens", "text", "content")


class ExampleStore:
    """One file or folder of examples, held in memory as flat tokens.

    Args:
        path: the file, or a folder of a saved data set.
        column: token ids or text; the first known one by default.
        limit: tokens of an example that are read, None for all.
    """

    format = "examples"

    def __init__(self, path: Path, column: str | None = None, limit: int | None = None) -> None:
        self.path, self.column, self.limit = path, column, limit
        if not path.exists():
            raise StoreError(f"{path} does not exist", hint="paths as the run saw them are translated by `moved`")

    @cached_property
    def _held(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        tokens, lengths = self._arrow() if self.path.is_dir() or self._head() in (b"PAR1", b"ARRO") else self._lines()
        bounds = offsets_of(lengths)
        if self.limit is not None and len(lengths) and int(lengths.max()) > self.limit:
            kept = np.minimum(lengths, self.limit)
            out = np.empty(int(kept.sum()), tokens.dtype)
            copy_runs(tokens, bounds[:-1], kept, out, offsets_of(kept)[:-1])
            return out, offsets_of(kept)
        return tokens, bounds

    def _head(self) -> bytes:
        with open_binary(self.path) as file:
            return file.read(4)

    def _chosen(self, names: list[str]) -> str:
        if self.column is not None:
            if self.column not in names:
                raise StoreError(f"{self.path} has no column `{self.column}`{nearest(self.column, names)}")
            return self.column
        for name in COLUMNS:
            if name in names:
                return name
        raise StoreError(
            f"{self.path} has the columns {', '.join(names)}, none of them known", hint="name the one with token ids or text: --set args.column=..."
        )

    def _lines(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        parts: list[NDArray[Any]] = []
        column = None
        with open_binary(self.path) as stream:
            for number, line in enumerate(lines(stream)):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                    column = column or self._chosen(list(record))
                    value = record[column]
                    parts.append(np.frombuffer(value.encode("utf-8", "surrogatepass"), np.uint8) if isinstance(value, str) else np.asarray(value, np.int64))
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    raise StoreError(f"{self.path}: line {number + 1} is no example ({error!r})") from error
        lengths = np.array([len(p) for p in parts], np.int64)
        return (np.concatenate(parts) if parts else np.zeros(0, np.int64)), lengths

    def _arrow(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        from forensics.stores.arrow import dataset_files

        tables = []
        for file in dataset_files(self.path) if self.path.is_dir() else [self.path]:
            try:
                with file.open("rb") as raw:
                    head = raw.read(4)
                if head == b"PAR1":
                    tables.append(pq.read_table(file))
                else:
                    source = pa.memory_map(str(file))
                    tables.append(pa.ipc.open_file(source).read_all() if head == b"ARRO" else pa.ipc.open_stream(source).read_all())
            except (pa.ArrowInvalid, OSError) as error:
                raise StoreError(f"{file} is neither Parquet nor Arrow ({' '.join(str(error).split())[:120]})") from error
        if not tables:
            raise StoreError(f"{self.path} holds no data files")
        values: Any = pa.concat_tables([t.select([self._chosen(t.column_names)]) for t in tables]).column(0).combine_chunks()
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            values = values.cast(pa.large_binary())
            lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
            joined = b"".join(v or b"" for v in values.to_pylist())
            return np.frombuffer(joined, np.uint8), lengths
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        return values.flatten().to_numpy(zero_copy_only=False), lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the token ids."""
        return self._held[0].dtype

    @property
    def bounds(self) -> NDArray[np.int64]:
        """First token of each example, and the end of the last [examples + 1]."""
        return self._held[1]

    @property
    def n_documents(self) -> int:
        """Examples."""
        return len(self.bounds) - 1

    @property
    def n_sequences(self) -> int:
        """Stored sequences: examples."""
        return self.n_documents

    @property
    def n_tokens(self) -> int:
        """Tokens of all examples."""
        return int(self.bounds[-1])

    @property
    def fingerprint(self) -> str:
        """Changes when the file does."""
        files = sorted(p for p in self.path.iterdir() if p.is_file()) if self.path.is_dir() else [self.path]
        return digest(self.column, self.limit, [stamp(p) for p in files])

    def document_lengths(self, documents: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Tokens of the examples named, or of all."""
        return lengths_between(self.path, self.bounds, documents)

    def read_into(
        self, documents: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64], target: NDArray[Any], places: NDArray[np.int64]
    ) -> None:
        """Copy parts `[starts, stops)` of examples into a flat array, each from its place on.

        Raises:
            StoreError: when a part does not lie inside its example.
        """
        documents = np.asarray(documents, np.int64)
        refuse_beyond(self.path, self.document_lengths(documents), starts, stops)
        copy_runs(self._held[0], self.bounds[documents] + starts, stops - starts, target, places)
