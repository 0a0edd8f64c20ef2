"""A corpus without a run: every document measured, clustered and weighed, shard by shard, resumable.

    files -> shards -> documents, measures, findings, signatures (one task each, any number of processes)
          -> clusters -> dedup, sources, lengths, buckets

A shard's results are files with a mark; a second run does what is missing. What follows looks at all shards together and
works on numbers per document alone: 512 bytes of signature and about a hundred of everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from forensics.pipelines.passes import with_corpus_findings
from forensics.pipelines.shards import Shards, Task, failure_table, finished, part_path, scan_shard

from forensics.case import Case
from forensics.clustering.cluster import ClusterSettings, bands_of, cluster
from forensics.clustering.minhash import SCHEME
from forensics.config import build, merge, overrides, preset
from forensics.detectors.base import DETECTORS
from forensics.detectors.thresholds import read_thresholds
from forensics.documents.buckets import buckets
from forensics.documents.dedup import dedup_summary, source_matrix
from forensics.documents.lengths import length_summary, source_summary
from forensics.engines.base import Engine, EngineSettings, TaskError
from forensics.engines.local import local_engine
from forensics.errors import StoreError
from forensics.files import digest, make_folder
from forensics.reports.audit import write_audit
from forensics.reports.excerpts import read_excerpts
from forensics.reports.tables import unit_of
from forensics.schemas import (
    CORPORA,
    DOC_BITS,
    DOCUMENTS,
    EXCERPTS,
    FAILURES,
    FINDINGS,
    IDENTITY,
    NOT_EVALUATED,
    SCRIPTS,
    SKELETONS,
    Documents,
    Excerpts,
    Findings,
)
from forensics.stage import MARK, stage
from forensics.stores.corpus import Corpus
from forensics.stores.fit import merged
from forensics.stores.flat import FlatFile
from forensics.stores.jsonl import as_one
from forensics.stores.records import Failure, ReadOptions, RecordFile
from forensics.stores.sniff import expand, open_records

IN_BYTES = "lengths of texts are in bytes; what batching costs is told of the tokenised files"
SCAN = 8  # raised when a shard's results change for the same input


class AuditSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an audit asks, from `configs/audit`; `thresholds` and `engine` refer to their own presets."""

    jaccard: float = 0.8
    recall: float = 0.98
    seq_length: int = 4096
    batch: int = 1
    max_failed_share: float = 0.05
    excerpts: int = 12
    redact: bool = True
    thresholds: dict[str, Any] = {}
    engine: EngineSettings = EngineSettings()


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
        Tables, lists, and the unit of lengths, for the last lines on the terminal, by name.
    """
    make_folder(case.path / "tables")  # before anything is read: where it cannot be written is said at once
    results = scan(found, engine or local_engine(settings.engine, found.size_bytes, len(found.tasks)), on_done)
    lost = [(t, r) for t, r in zip(found.tasks, results) if isinstance(r, TaskError)]
    shards = Shards([t for t, r in zip(found.tasks, results) if not isinstance(r, TaskError)])
    near = ClusterSettings(settings.jaccard, settings.recall)
    documents = case.run(all_documents, shards)
    flagged = all_findings(shards)
    clusters = case.run(cluster, shards.signatures(), documents, near, found.corpus, flagged, shards.parts(SKELETONS))
    texts = found.corpus.texts
    findings = case.run(with_corpus_findings, flagged, clusters, documents, shards.parts(SCRIPTS), found.corpus, settings.jaccard, settings.seq_length, texts)
    tables = {
        "documents": documents,
        "findings": findings,
        "clusters": clusters,
        "dedup": case.run(dedup_summary, documents, clusters),
        "sources": case.run(source_summary, documents, findings, clusters),
        "lengths": case.run(length_summary, documents),
        "buckets": case.run(buckets, tokenised(documents, texts), settings.seq_length, settings.batch),
        "failures": case.put(FAILURES, failures_of(shards, lost, found.refused)),
        "not_evaluated": case.put(NOT_EVALUATED, not_evaluated(shards, texts)),
        "identity": case.put(IDENTITY, tokenizer_checks(shards)),
        "corpora": case.put(CORPORA, found.corpus.table(*sizes(documents, len(found.corpus.files)))),
    }
    for name in shards.measures():
        case.put_plain(f"measures/{name}", pa.concat_tables(shards.tables(f"measures/{name}")))
    case.put_plain("source_matrix", source_matrix(documents, clusters))
    case.put(EXCERPTS, excerpts_of(found.corpus, findings, settings))
    found.corpus.forget()
    files = [str(f.path.absolute()) for f in found.corpus.files]
    taken = assumed(found.corpus)
    case.close(
        command="audit",
        files=files,
        options=described(found.tasks),
        settings=msgspec.to_builtins(settings),
        bands=bands_of(near).curve(),
        signature_scheme=SCHEME,
        assumed=taken,
    )
    write_audit(case)
    return {**tables, "lost": lost, "assumed": taken, "unit": unit_of(tables["corpora"].to_pylist())}


def tokenised(documents: Documents, texts: Sequence[int]) -> Documents:
    """Documents that are token ids; the lengths of others are not those that a trainer would batch."""
    return Documents(documents.filter(pa.array(~np.isin(documents.column("corpus_id").to_numpy(), list(texts))))) if texts else documents


def excerpts_of(corpus: Corpus, findings: Findings, settings: AuditSettings) -> Excerpts:
    """Text of the first flagged documents of each cause in each file."""
    rows = findings.filter(findings["primary"])
    keys = rows["doc_key"].to_numpy()
    columns: dict[str, Any] = {"file": pa.array(keys >> DOC_BITS), "cause": rows["cause"].cast(pa.string()), "key": pa.array(keys)}
    group = pa.table(columns)
    listed: list[Any] = group.sort_by("key").group_by(["file", "cause"], use_threads=False).aggregate([("key", "list")])["key_list"].to_pylist()
    chosen = np.array(sorted(k for found in listed for k in found[: settings.excerpts]), np.int64)
    corpus.prepare(chosen)
    parts = [read_excerpts(chosen[chosen >> DOC_BITS == k], corpus, findings, settings.redact) for k in np.unique(chosen >> DOC_BITS).tolist()]
    return Excerpts(EXCERPTS.concat(parts))


def scan(found: Plan, engine: Engine, on_done: Callable[[int], None] | None = None) -> list[str | TaskError]:
    """The marks of all shards in order, after doing those that are missing."""
    missing = [t for t in found.tasks if finished(t) is None]
    count = [len(found.tasks) - len(missing)]

    def step(index: int, result: str | TaskError) -> None:
        count[0] += 1
        if on_done:
            on_done(count[0])

    made = {task.name: result for result, task in zip(engine.map(scan_shard, missing, step), missing)}
    known = {t.name for t in found.tasks}
    for folder in {t.folder for t in found.tasks} | {part_path(t, "signatures").parent for t in found.tasks}:
        for old in folder.rglob("part-*"):
            if old.name.removeprefix("part-").split(".")[0] not in known:
                old.unlink()
    return [made.get(t.name, t.mark) for t in found.tasks]


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


def failures_of(shards: Shards, lost: Sequence[tuple[Task, TaskError]], refused: Sequence[Failure]) -> pa.Table:
    """Everything that could not be read."""
    unfinished = [Failure(f"{t.path} from document {t.shard.first}", e.error) for t, e in lost]
    found = [as_one(path, failures) for path, failures in shards.failures().items()]
    return FAILURES.concat([failure_table(refused, "open"), failure_table(unfinished, "scan"), *map(failure_table, found)])


def not_evaluated(shards: Shards, texts: Sequence[int] = ()) -> pa.Table:
    """What had no inputs somewhere, and why: detectors, and the batching of texts."""
    left = [(finished(task) or {}).get("not_evaluated", {}) for task in shards.tasks]
    why = sorted({(name, reason) for notes in left for name, reason in notes.items()})
    rows = [(f"detector {name}", reason) for name, reason in why] + ([("batching", IN_BYTES)] if texts else [])
    return NOT_EVALUATED.of({c: pa.array([r[i] for r in rows], pa.string()) for i, c in enumerate(("what", "why"))})


def tokenizer_checks(shards: Shards) -> pa.Table:
    """Whether the tokenizer fits each file of ids."""
    files: dict[Path, list[dict[str, Any]]] = {}
    for task in shards.tasks:
        files.setdefault(task.path, []).append((finished(task) or {}).get("fit", {}))
    rows = [row for path, parts in files.items() for row in merged(p for p in parts if p).checks(str(path))]
    return IDENTITY.of({c.name: pa.array([r[c.name] for r in rows], pa.string()) for c in IDENTITY.columns})


def described(tasks: Sequence[Task]) -> dict[str, Any]:
    """How the files were read, as `reopen` takes it."""
    options = asdict(tasks[0].options) if tasks else {}
    return {k: str(v.absolute()) if isinstance(v, Path) else v for k, v in options.items()}


def assumed(corpus: Corpus) -> list[str]:
    """What was taken for granted when the files were opened."""
    return [line for f in corpus.files if isinstance(f, FlatFile) for line in f.assumed]
