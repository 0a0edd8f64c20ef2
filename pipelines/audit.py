"""A corpus without a run: every document measured, clustered and weighed, shard by shard, resumable.

    files -> shards -> documents, measures, findings, signatures (one task each, any number of processes)
          -> clusters -> dedup, sources, lengths, buckets

A shard's results are files with a mark; a second run does what is missing. What follows looks at all shards together and
works on numbers per document alone: 512 bytes of signature and about a hundred of everything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from forensics.case import Case
from forensics.clustering.cluster import ClusterSettings, bands_of, cluster
from forensics.clustering.duplicates import with_duplicates
from forensics.clustering.exact import content_hashes
from forensics.clustering.minhash import SCHEME, sign
from forensics.clustering.sources import constant
from forensics.config import build, merge, overrides, preset
from forensics.detectors.base import DETECTORS
from forensics.detectors.flagging import flag
from forensics.detectors.measuring import measure
from forensics.detectors.thresholds import Thresholds, read_thresholds
from forensics.documents.buckets import buckets
from forensics.documents.build import text_bytes
from forensics.documents.dedup import dedup_summary, source_matrix
from forensics.documents.lengths import length_summary, source_summary
from forensics.engines.base import Engine, EngineSettings, TaskError
from forensics.engines.local import local_engine
from forensics.errors import StoreError
from forensics.files import digest, write_text
from forensics.schemas import CORPORA, DOC_BITS, DOC_MASK, DOCUMENTS, FAILURES, FINDINGS, NOT_EVALUATED, SIGNATURES, Documents, Findings, Signatures
from forensics.stage import MARK, stage
from forensics.stores.corpus import Corpus, source_name
from forensics.stores.records import Failure, Part, ReadOptions, RecordFile, Shard
from forensics.stores.sniff import expand, open_records

SCAN = 1  # raised when a shard's results change for the same input


class AuditSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an audit asks, from `configs/audit`; `thresholds` and `engine` refer to their own presets."""

    jaccard: float = 0.8
    recall: float = 0.98
    seq_length: int = 4096
    batch: int = 1
    max_failed_share: float = 0.05
    thresholds: dict[str, Any] = {}
    engine: EngineSettings = EngineSettings()


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


@dataclass(frozen=True)
class Plan:
    """What will be read, known before anything is."""

    corpus: Corpus
    tasks: list[Task]
    done: int
    size_bytes: int
    refused: list[Failure]


def read_settings(settings: Sequence[str] = (), file: dict[str, Any] | None = None) -> AuditSettings:
    """Presets, then a user's file, then `--set` overrides."""
    base = merge(preset("audit/default"), {"engine": preset("engines/local")})
    return build(AuditSettings, merge(merge(base, file or {}), overrides(settings)), "audit settings")


def plan(paths: Sequence[Path], case: Path, options: ReadOptions, settings: AuditSettings) -> Plan:
    """Files opened, cut into shards, and which of these are done already."""
    files, refused = open_all(expand(paths), options)
    thresholds = read_thresholds(over=settings.thresholds)
    detectors = [(name, d.version) for name, d in DETECTORS.items()]
    tasks = []
    for number, file in enumerate(files):
        for index, shard in enumerate(file.shards(settings.engine.shard_mb << 20)):
            mark = digest(SCAN, SCHEME, file.fingerprint, number, shard.start, shard.stop, thresholds.fingerprint, detectors)
            tasks.append(Task(file.path, options, number, shard, case / "parts", f"{number:05d}-{index:06d}", mark, settings.engine.batch_mb << 20, thresholds))
    done = sum(finished(task) is not None for task in tasks)
    return Plan(Corpus(files, case / "parts", settings.engine.batch_mb << 20), tasks, done, sum(t.shard.size for t in tasks), refused)


def open_all(paths: Sequence[Path], options: ReadOptions) -> tuple[list[RecordFile], list[Failure]]:
    """Every file that opens, and why others do not.

    Raises:
        StoreError: when none does.
    """
    files: list[RecordFile] = []
    refused: list[Failure] = []
    for path in paths:
        try:
            files.append(open_records(path, options))
        except StoreError as error:
            if len(paths) == 1:
                raise
            refused.append(Failure(str(path), error.message))
    if not files:
        raise StoreError(f"none of the {len(paths)} files can be read; the first: {refused[0].error}")
    return files, refused


def audit(case: Case, found: Plan, settings: AuditSettings, engine: Engine | None = None, on_done: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Run what is missing and summarise.

    Returns:
        Tables and lists for the last lines on the terminal, by name.
    """
    results = scan(found, engine or local_engine(settings.engine, found.size_bytes, len(found.tasks)), on_done)
    lost = [(t, r) for t, r in zip(found.tasks, results) if isinstance(r, TaskError)]
    shards = Shards([t for t, r in zip(found.tasks, results) if not isinstance(r, TaskError)])
    near = ClusterSettings(settings.jaccard, settings.recall)
    documents = case.run(all_documents, shards)
    flagged = all_findings(shards)
    clusters = case.run(cluster, shards.signatures(), documents, near, found.corpus, flagged)
    findings = case.run(with_duplicates, flagged, clusters, settings.jaccard)
    tables = {
        "documents": documents,
        "findings": findings,
        "clusters": clusters,
        "dedup": case.run(dedup_summary, documents, clusters),
        "sources": case.run(source_summary, documents, findings, clusters),
        "lengths": case.run(length_summary, documents),
        "buckets": case.run(buckets, documents, settings.seq_length, settings.batch),
        "failures": case.put(FAILURES, failures_of(shards, lost, found.refused)),
        "not_evaluated": case.put(NOT_EVALUATED, not_evaluated(shards)),
        "corpora": case.put(CORPORA, found.corpus.table(*sizes(documents, len(found.corpus.files)))),
    }
    for name in shards.measures():
        write_plain(case, f"measures/{name}", pa.concat_tables(shards.tables(f"measures/{name}")))
    write_plain(case, "source_matrix", source_matrix(documents, clusters))
    found.corpus.forget()
    case.close(command="audit", settings=msgspec.to_builtins(settings), bands=bands_of(near).curve(), signature_scheme=SCHEME, assumed=assumed(found.corpus))
    return {**tables, "lost": lost}


def scan(found: Plan, engine: Engine, on_done: Callable[[int], None] | None = None) -> list[str | TaskError]:
    """The marks of all shards in order, after doing those that are missing."""
    missing = [t for t in found.tasks if finished(t) is None]
    count = [len(found.tasks) - len(missing)]

    def step(index: int, result: str | TaskError) -> None:
        count[0] += 1
        if on_done:
            on_done(count[0])

    made = dict(zip((t.name for t in missing), engine.map(scan_shard, missing, step)))
    known = {t.name for t in found.tasks}
    for folder in {t.folder for t in found.tasks} | {part_path(t, "signatures").parent for t in found.tasks}:
        for old in folder.rglob("part-*"):
            if old.name.removeprefix("part-").split(".")[0] not in known:
                old.unlink()
    return [made.get(t.name, t.mark) for t in found.tasks]


def scan_shard(task: Task) -> str:
    """Read one shard and write what is found in it; returns its mark."""
    writer = PartWriter(task)
    skipped: dict[str, str] = {}
    file = open_records(task.path, task.options)
    with writer:
        for part in file.parts(task.shard, task.corpus_id, task.batch_bytes):
            batch = part.batch
            measures = measure(batch, task.thresholds)
            skipped |= measures.not_evaluated
            writer.add("documents", describe(part, source_name(file.path)))
            writer.add("signatures", sign(batch))
            writer.add("findings", flag(measures, task.thresholds))
            for name, table in measures.tables().items():
                writer.add(f"measures/{name}", table)
            writer.add("failures", failure_table(part.failures))
    write_text(task.folder / f"part-{task.name}.json", json.dumps({"mark": task.mark, "tables": writer.names, "not_evaluated": skipped}))
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
        return [pq.read_table(path, partitioning=None) for task in self.tasks if (path := part_path(task, name)).exists()]

    def measures(self) -> list[str]:
        """Detectors that left measures."""
        return sorted({p.name for t in self.tasks[:1] for p in (t.folder / "measures").glob("*")})

    def signatures(self) -> Signatures:
        """All signatures, 512 bytes a document."""
        found = SIGNATURES.concat([SIGNATURES.of(t) for t in self.tables("signatures")])
        return Signatures(found.replace_schema_metadata({**(found.schema.metadata or {}), MARK: digest("signatures", self.fingerprint).encode()}))


@stage(DOCUMENTS, version=1)
def all_documents(shards: Shards) -> Documents:
    """The documents of all shards."""
    return Documents(DOCUMENTS.concat([DOCUMENTS.of(t) for t in shards.tables("documents")]))


def all_findings(shards: Shards) -> Findings:
    """What the detectors flagged in all shards."""
    found = FINDINGS.concat([FINDINGS.of(t) for t in shards.tables("findings")])
    return Findings(found.replace_schema_metadata({**(found.schema.metadata or {}), MARK: digest("findings", shards.fingerprint).encode()}))


def sizes(documents: Documents, files: int) -> tuple[list[int], list[int]]:
    """Documents and tokens of each file."""
    corpus = documents.column("corpus_id").to_numpy()
    tokens = np.bincount(corpus, weights=documents.column("tokens").to_numpy(), minlength=files)
    return np.bincount(corpus, minlength=files).tolist(), tokens.astype(np.int64).tolist()


def write_plain(case: Case, name: str, table: pa.Table) -> None:
    """A table whose columns no schema fixes: one detector's measures, a matrix."""
    path = case.path / "tables" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd")


def failures_of(shards: Shards, lost: Sequence[tuple[Task, TaskError]], refused: Sequence[Failure]) -> pa.Table:
    """Everything that could not be read."""
    unfinished = [Failure(f"{t.path} from document {t.shard.first}", e.error) for t, e in lost]
    return FAILURES.concat([failure_table(refused, "open"), failure_table(unfinished, "scan"), *(FAILURES.of(t) for t in shards.tables("failures"))])


def not_evaluated(shards: Shards) -> pa.Table:
    """Detectors that had no inputs somewhere, and why."""
    left = [(finished(task) or {}).get("not_evaluated", {}) for task in shards.tasks]
    why = sorted({(name, reason) for notes in left for name, reason in notes.items()})
    return NOT_EVALUATED.of({"what": pa.array([f"detector {n}" for n, _ in why], pa.string()), "why": pa.array([w for _, w in why], pa.string())})


def assumed(corpus: Corpus) -> list[str]:
    """What was taken for granted when the files were opened."""
    return [f"{f.path}: ids of type {f.dtype.name}, {f.dtype_told}" for f in corpus.files if hasattr(f, "dtype_told") and hasattr(f, "dtype")]
