"""One shard of an audit, as any process can do it: what is read, and the files that it leaves.

A shard's tables are parts under `CASE/parts` (signatures at once under `CASE/tables`), put in place together; a JSON file with the shard's
mark comes last and says that it is done. That layout is the seam for other engines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from forensics.case import Parts
from forensics.clustering.exact import content_hashes
from forensics.clustering.minhash import sign
from forensics.clustering.skeletons import skeletons
from forensics.clustering.sources import constant
from forensics.detectors.flagging import flag
from forensics.detectors.measuring import measure
from forensics.detectors.scripts import scripts_of
from forensics.detectors.thresholds import Thresholds
from forensics.documents.build import text_bytes
from forensics.files import digest, write_text
from forensics.schemas import DOC_BITS, DOC_MASK, DOCUMENTS, FAILURES, SIGNATURES, Documents, Signatures, TableType
from forensics.stage import MARK
from forensics.stores.bigrams import bigrams_of
from forensics.stores.corpus import source_name
from forensics.stores.fit import Fit, plain
from forensics.stores.records import Failure, Part, ReadOptions, Shard
from forensics.stores.sniff import open_records

HEAD = 1 << 20  # bytes read at a time of a file's first documents, until enough of them are counted
WHOLE = 1 << 62  # bytes: one shard


@dataclass(frozen=True)
class Task:
    """One shard's work, as another process gets it."""

    path: Path
    options: ReadOptions
    corpus_id: int
    shard: Shard
    folder: Path
    name: str
    mark: str
    batch_bytes: int
    thresholds: Thresholds


def scan_shard(task: Task) -> str:
    """Read one shard and write what is found in it; returns its mark."""
    writer = PartWriter(task)
    skipped: dict[str, str] = {}
    fit = Fit()
    file = open_records(task.path, task.options)
    bigrams = bigrams_of(part.batch for shard in file.shards(WHOLE) for part in file.parts(shard, task.corpus_id, HEAD))
    with writer:
        for part in file.parts(task.shard, task.corpus_id, task.batch_bytes):
            batch = replace(part.batch, bigrams=bigrams)
            measures = measure(batch, task.thresholds)
            skipped |= measures.not_evaluated
            fit.add(batch)
            writer.add("documents", describe(part, source_name(file.path)))
            writer.add("signatures", sign(batch))
            writer.add("skeletons", skeletons(batch))
            writer.add("scripts", scripts_of(batch))
            writer.add("findings", flag(measures, task.thresholds))
            for name, table in measures.tables().items():
                writer.add(f"measures/{name}", table)
            writer.add("failures", failure_table(part.failures))
    write_text(task.folder / f"part-{task.name}.json", json.dumps({"mark": task.mark, "tables": writer.names, "not_evaluated": skipped, "fit": plain(fit)}))
    return task.mark


def describe(part: Part, default_source: str) -> Documents:
    """Documents of a part as a table."""
    batch, n = part.batch, len(part.batch)

    def words(values: Sequence[str | None] | None) -> Any:
        return pa.nulls(n, pa.string()) if values is None else pa.array(values, pa.string())

    return Documents(DOCUMENTS.of({
        "doc_key": batch.doc_key, "corpus_id": (batch.doc_key >> DOC_BITS).astype(np.int32), "doc": batch.doc_key & DOC_MASK,
        "source": constant(default_source, n) if part.source is None else pa.array([default_source if s is None else s for s in part.source], pa.string()),
        "name": words(part.name), "crawl": words(part.crawl), "language": words(part.language),
        "tokens": batch.lengths, "bytes": text_bytes(batch), "content": content_hashes(batch),
    }))  # fmt: skip


def failure_table(failures: Sequence[Failure], stage_name: str = "read") -> pa.Table:
    """Failures as the table of that name."""
    return FAILURES.of({
        "stage": pa.array([stage_name] * len(failures), pa.string()), "item": [f.item for f in failures], "error": [f.error for f in failures],
        "count": [f.count for f in failures],
    })  # fmt: skip


class PartWriter:
    """The tables of one shard, written batch by batch and put in place together when the shard is done."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._open: dict[str, tuple[pq.ParquetWriter, Path, Path]] = {}

    @property
    def names(self) -> list[str]:
        """Tables that were written."""
        return sorted(self._open)

    def __enter__(self) -> PartWriter:
        (self.task.folder / f"part-{self.task.name}.json").unlink(missing_ok=True)
        return self

    def add(self, name: str, table: pa.Table) -> None:
        """Append rows to a table of the shard."""
        if name not in self._open:
            path = part_path(self.task, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            place = path.with_suffix(".tmp")
            self._open[name] = (pq.ParquetWriter(place, table.schema, compression="none" if name == "signatures" else "zstd", store_schema=True), place, path)
        self._open[name][0].write_table(table)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for writer, place, path in self._open.values():
            writer.close()
            if kind is None:
                place.replace(path)
            else:
                place.unlink(missing_ok=True)


def part_path(task: Task, name: str) -> Path:
    """Where a shard's table lies; signatures, the largest, at once in their place in the case."""
    folder = task.folder.parent / "tables" if name == "signatures" else task.folder
    return folder / name / f"part-{task.name}.parquet"


def finished(task: Task) -> dict[str, Any] | None:
    """What a shard left behind when it was done for these inputs, else None."""
    path = task.folder / f"part-{task.name}.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    whole = found.get("mark") == task.mark and all(part_path(task, name).exists() for name in found.get("tables", ["?"]))
    return found if whole else None


class Shards:
    """The finished shards' tables, in the order of `doc_key`.

    Args:
        tasks: finished ones.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = list(tasks)

    @property
    def fingerprint(self) -> str:
        """Changes when any shard's results do."""
        return digest([t.mark for t in self.tasks])

    def tables(self, name: str) -> list[pa.Table]:
        """A table of every shard that has it."""
        return [pq.read_table(path, partitioning=None) for path in self.paths(name)]

    def paths(self, name: str) -> list[Path]:
        """Where a table of every shard that has it lies."""
        return [path for task in self.tasks if (path := part_path(task, name)).exists()]

    def failures(self) -> dict[Path, list[Failure]]:
        """What could not be read, by file."""
        found: dict[Path, list[Failure]] = {}
        for task in self.tasks:
            if (path := part_path(task, "failures")).exists():
                rows = pq.read_table(path, partitioning=None).to_pylist()
                found.setdefault(task.path, []).extend(Failure(r["item"], r["error"], r["count"]) for r in rows)
        return found

    def measures(self) -> list[str]:
        """Detectors that left measures."""
        return sorted({p.name for t in self.tasks[:1] for p in (t.folder / "measures").glob("*")})

    def parts(self, table: TableType) -> Parts:
        """A table to be read shard by shard."""
        return Parts(table, tuple(self.paths(table.name)), digest(table.name, self.fingerprint))

    def signatures(self) -> Signatures:
        """All signatures, 512 bytes a document."""
        found = SIGNATURES.concat([SIGNATURES.of(t) for t in self.tables("signatures")])
        return Signatures(found.replace_schema_metadata({**(found.schema.metadata or {}), MARK: digest("signatures", self.fingerprint).encode()}))
