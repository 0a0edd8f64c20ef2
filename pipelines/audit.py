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
from forensics.config import build, merge, overrides, preset
from forensics.detectors.flagging import flag
from forensics.detectors.measuring import measure
from forensics.detectors.thresholds import Thresholds, read_thresholds
from forensics.documents.buckets import buckets
from forensics.documents.build import text_bytes
from forensics.documents.dedup import dedup_summary, source_matrix
from forensics.documents.lengths import length_summary, source_summary
from forensics.engines.base import Engine, EngineSettings, TaskError
from forensics.engines.local import local_engine
from forensics.files import digest, write_text
from forensics.schemas import CORPORA, DOC_BITS, DOC_MASK, DOCUMENTS, FAILURES, FINDINGS, NOT_EVALUATED, SIGNATURES, Documents, Findings, Signatures
from forensics.stores.corpus import Corpus, source_name
from forensics.stores.records import Failure, Part, ReadOptions, Shard
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


def read_settings(settings: Sequence[str] = (), file: dict[str, Any] | None = None) -> AuditSettings:
    """Presets, then a user's file, then `--set` overrides."""
    base = merge(preset("audit/default"), {"engine": preset("engines/local")})
    return build(AuditSettings, merge(merge(base, file or {}), overrides(settings)), "audit settings")


def plan(paths: Sequence[Path], case: Path, options: ReadOptions, settings: AuditSettings) -> Plan:
    """Files opened, cut into shards, and which of these are done already."""
    files = [open_records(path, options) for path in expand(paths)]
    thresholds = read_thresholds(over=settings.thresholds)
    tasks = []
    for number, file in enumerate(files):
        for shard in file.shards(settings.engine.shard_mb << 20):
            mark = digest(SCAN, SCHEME, file.fingerprint, number, shard.start, shard.stop, thresholds.fingerprint)
            tasks.append(
                Task(file.path, options, number, shard, case / "parts", f"{number:05d}-{shard.first:012d}", mark, settings.engine.batch_mb << 20, thresholds)
            )
    done = sum(finished(task) is not None for task in tasks)
    return Plan(Corpus(files, case / "parts", settings.engine.batch_mb << 20), tasks, done, sum(t.shard.size for t in tasks))


def audit(case: Case, found: Plan, settings: AuditSettings, engine: Engine | None = None, on_done: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Run what is missing and summarise.

    Returns:
        Numbers for the last lines on the terminal.
    """
    results = scan(found, engine or local_engine(settings.engine, found.size_bytes, len(found.tasks)), on_done)
    lost = [(t, r) for t, r in zip(found.tasks, results) if isinstance(r, TaskError)]
    tasks = [t for t, r in zip(found.tasks, results) if not isinstance(r, TaskError)]
    documents, signatures, findings = collect(case, tasks)
    failures = failures_of(case, tasks, lost)
    near = ClusterSettings(settings.jaccard, settings.recall)
    clusters = case.run(cluster, signatures, documents, near, found.corpus)
    findings = Findings(case.put(FINDINGS, with_duplicates(findings, clusters, settings.jaccard)))
    dedup = case.run(dedup_summary, documents, clusters)
    write_plain(case, "source_matrix", source_matrix(documents, clusters))
    sources = case.run(source_summary, documents, findings, clusters)
    case.run(length_summary, documents)
    weighed = case.run(buckets, documents, settings.seq_length, settings.batch)
    counts = [int((documents.column("corpus_id").to_numpy() == i).sum()) for i in range(len(found.corpus.files))]
    tokens = np.bincount(documents.column("corpus_id").to_numpy(), weights=documents.column("tokens").to_numpy(), minlength=len(counts)).astype(np.int64)
    case.put(CORPORA, found.corpus.table(counts, tokens.tolist()))
    skipped = not_evaluated(case, tasks)
    found.corpus.forget()
    case.close(command="audit", settings=msgspec.to_builtins(settings), bands=bands_of(near).curve(), signature_scheme=SCHEME, assumed=assumed(found.corpus))
    return {
        "documents": documents,
        "findings": findings,
        "clusters": clusters,
        "dedup": dedup,
        "sources": sources,
        "buckets": weighed,
        "failures": failures,
        "not_evaluated": skipped,
        "lost": lost,
    }


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
    write_text(task.folder / f"part-{task.name}.json", json.dumps({"mark": task.mark, "not_evaluated": skipped}))
    return task.mark


def describe(part: Part, default_source: str) -> Documents:
    """Documents of a part as a table."""
    batch, n = part.batch, len(part.batch)
    sources = [s if s is not None else default_source for s in part.source] if part.source is not None else [default_source] * n
    return Documents(DOCUMENTS.of({
        "doc_key": batch.doc_key, "corpus_id": (batch.doc_key >> DOC_BITS).astype(np.int32), "doc": batch.doc_key & DOC_MASK,
        "source": pa.array(sources, pa.string()), "name": pa.array(part.name if part.name is not None else [None] * n, pa.string()),
        "crawl": pa.array(part.crawl if part.crawl is not None else [None] * n, pa.string()),
        "language": pa.array(part.language if part.language is not None else [None] * n, pa.string()),
        "tokens": batch.lengths, "bytes": text_bytes(batch), "content": content_hashes(batch),
    }))  # fmt: skip


def failure_table(failures: Sequence[Failure]) -> pa.Table:
    """Failures as the table of that name."""
    return FAILURES.of(
        {
            "stage": pa.array(["read"] * len(failures), pa.string()),
            "item": [f.item for f in failures],
            "error": [f.error for f in failures],
            "count": [f.count for f in failures],
        }
    )


class PartWriter:
    """The tables of one shard, written batch by batch and put in place together when the shard is done."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._open: dict[str, tuple[pq.ParquetWriter, Path, Path]] = {}

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
    return found if found.get("mark") == task.mark else None


def collect(case: Case, tasks: Sequence[Task]) -> tuple[Documents, Signatures, Findings]:
    """The shards' tables laid together in the case, in the order of `doc_key`."""

    def parts(name: str) -> list[pa.Table]:
        return [pq.read_table(path, partitioning=None) for task in tasks if (path := part_path(task, name)).exists()]

    documents = Documents(case.put(DOCUMENTS, DOCUMENTS.concat([DOCUMENTS.of(t) for t in parts("documents")])))
    findings = Findings(FINDINGS.concat([FINDINGS.of(t) for t in parts("findings")]))
    signatures = Signatures(SIGNATURES.concat([SIGNATURES.of(t) for t in parts("signatures")]))
    for name in sorted(p.name for p in (case.path / "parts" / "measures").glob("*")):
        write_plain(case, f"measures/{name}", pa.concat_tables(parts(f"measures/{name}")))
    return documents, signatures, findings


def write_plain(case: Case, name: str, table: pa.Table) -> None:
    """A table whose columns no schema fixes: one detector's measures, a matrix."""
    path = case.path / "tables" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd")


def failures_of(case: Case, tasks: Sequence[Task], lost: Sequence[tuple[Task, TaskError]]) -> pa.Table:
    """Everything that could not be read, as the case's table."""
    parts = [FAILURES.of(pq.read_table(path, partitioning=None)) for task in tasks if (path := part_path(task, "failures")).exists()]
    parts.append(
        FAILURES.of(
            {
                "stage": ["scan"] * len(lost),
                "item": [f"{t.path} from document {t.shard.first}" for t, _ in lost],
                "error": [e.error for _, e in lost],
                "count": [1] * len(lost),
            }
        )
    )
    return case.put(FAILURES, FAILURES.concat(parts))


def not_evaluated(case: Case, tasks: Sequence[Task]) -> pa.Table:
    """Detectors that had no inputs somewhere, and why."""
    why = sorted({(name, reason) for task in tasks for name, reason in ((finished(task) or {}).get("not_evaluated") or {}).items()})
    return case.put(NOT_EVALUATED, NOT_EVALUATED.of({"what": [f"detector {n}" for n, _ in why], "why": [w for _, w in why]}))


def assumed(corpus: Corpus) -> list[str]:
    """What was taken for granted when the files were opened."""
    return [f"{f.path}: ids of type {f.dtype.name}, {f.dtype_told}" for f in corpus.files if hasattr(f, "dtype_told") and hasattr(f, "dtype")]
