"""What people know about documents from elsewhere: the sidecar, joined by corpus and number.

A sidecar is a Parquet, CSV or JSON Lines file with `corpus` (name, or the tail of its path), `document` (number in the
file, from 0) and any of `source`, `url`, `crawl`, `file`, `offset`, `date`, `id`, `language`. Other columns are kept where the
caller asks for the sidecar itself; they have no meaning here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.errors import StoreError, UsageError, nearest
from forensics.files import open_binary
from forensics.schemas import DOC_BITS, DOCUMENTS, Corpora, Documents

WORDS = ("corpus", "source", "url", "crawl", "file", "date", "id", "language")
NUMBERS = ("document", "offset", "line")
PARQUET = b"PAR1"


def read_sidecar(paths: Sequence[Path]) -> pa.Table:
    """Sidecar files, one after the other.

    Returns:
        Columns `corpus` string, `document` int64, and those of the known ones that any file has.

    Raises:
        StoreError: a file that does not read, is no UTF-8, or lacks a column it must have.
    """
    tables = [_typed(_read(path), path) for path in paths]
    return (
        pa.concat_tables(tables, promote_options="default") if tables else pa.table({"corpus": pa.array([], pa.string()), "document": pa.array([], pa.int64())})
    )


def _read(path: Path) -> pa.Table:
    if not path.is_file():
        raise StoreError(f"the sidecar {path} does not exist")
    try:
        with path.open("rb") as file:
            head = file.read(4)
        if head == PARQUET:
            import pyarrow.parquet as pq

            return pq.read_table(path, partitioning=None)
        with open_binary(path) as stream:
            if path.name.lower().removesuffix(".gz").removesuffix(".zst").endswith((".csv", ".tsv")):
                from pyarrow import csv

                delimiter = "\t" if ".tsv" in path.name.lower() else ","
                return csv.read_csv(
                    stream,
                    parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                    convert_options=csv.ConvertOptions(strings_can_be_null=True, null_values=[""]),
                )
            from pyarrow import json

            return json.read_json(stream, parse_options=json.ParseOptions(newlines_in_values=False))
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise StoreError(f"the sidecar {path} does not read: {' '.join(str(error).split())}", hint="it must be Parquet, CSV or JSON Lines in UTF-8") from error


def _typed(table: pa.Table, path: Path) -> pa.Table:
    for needed in ("corpus", "document"):
        if needed not in table.column_names:
            raise StoreError(
                f"the sidecar {path} lacks the column `{needed}`{nearest(needed, table.column_names)}",
                hint="it needs `corpus` and `document`, and any of " + ", ".join(WORDS[1:]),
            )
    columns: dict[str, Any] = {}
    for name in table.column_names:
        if name in WORDS or name in NUMBERS:
            try:
                columns[name] = table.column(name).cast(pa.string() if name in WORDS else pa.int64())
                columns[name].validate(full=True)
            except pa.ArrowException as error:
                wrong = "is not UTF-8" if "utf8" in str(error).lower() else f"cannot be read: {error}"
                raise StoreError(f"column `{name}` of the sidecar {path} {wrong}", hint="numbers must be whole, words must be UTF-8") from error
    return pa.table(columns)


def corpus_numbers(names: Iterable[str], corpora: Corpora) -> dict[str, int]:
    """The corpus that each name means: its name, or the tail of its path with or without `.bin` and `.idx`.

    Raises:
        UsageError: a name that fits several corpora equally well.
    """
    known = [(int(r["corpus_id"]), _parts(r["path"])) for r in corpora.select(["corpus_id", "path"]).to_pylist()]
    out: dict[str, int] = {}
    for name in names:
        tail = _parts(name)
        fits = [number for number, parts in known if tail and parts[-len(tail) :] == tail]
        if len(fits) > 1:
            exact = [number for number, parts in known if parts == tail]
            if len(exact) != 1:
                raise UsageError(f"the corpus `{name}` of the sidecar or of a list fits {len(fits)} corpora", hint="name more of its path")
            fits = exact
        if fits:
            out[name] = fits[0]
    return out


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.replace("\\", "/").removesuffix(".bin").removesuffix(".idx").split("/") if part not in ("", "."))


def attach(documents: Documents, sidecar: pa.Table, corpora: Corpora) -> Documents:
    """Documents with source, name, crawl and language as the sidecar gives them; rows it does not know stay as they are.

    The name is the first of `url`, `id` and `file` (with its `line` or `offset`) that is known.
    """
    names = [n for n in sidecar.column("corpus").unique().to_pylist() if n is not None]
    numbers = corpus_numbers(names, corpora)
    corpus = pc.index_in(sidecar.column("corpus"), value_set=pa.array(list(numbers), pa.string()))
    known = pc.and_(corpus.is_valid(), sidecar.column("document").is_valid())
    side, corpus = sidecar.filter(known), corpus.filter(known)
    ids = np.array(list(numbers.values()), np.int64)
    keys = (ids[corpus.to_numpy()] << DOC_BITS | side.column("document").to_numpy()) if len(side) else np.empty(0, np.int64)
    at = pc.index_in(documents.column("doc_key"), value_set=pa.array(keys))
    columns = {name: documents.column(name) for name in documents.column_names}
    for target, origin in (("source", side.column("source") if "source" in side.column_names else None), ("name", _name_of(side)),
                           ("crawl", side.column("crawl") if "crawl" in side.column_names else None),
                           ("language", side.column("language") if "language" in side.column_names else None)):  # fmt: skip
        if origin is not None:
            found: Any = origin.take(at) if len(origin) else pa.nulls(len(documents), pa.string())
            columns[target] = pc.coalesce(found, documents.column(target).cast(pa.string()))
    return Documents(DOCUMENTS.of(columns))


def _name_of(side: pa.Table) -> Any:
    options: list[Any] = [side.column(name) for name in ("url", "id") if name in side.column_names]
    if "file" in side.column_names:
        place: Any = next((side.column(n).cast(pa.string()) for n in ("line", "offset") if n in side.column_names), None)
        file: Any = side.column("file")
        options.append(file if place is None else pc.if_else(place.is_valid(), pc.binary_join_element_wise(file, place, ":"), file))
    return pc.coalesce(*options) if options else None
