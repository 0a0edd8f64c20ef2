"""From a step range to what was consumed, what is wrong with it, a verdict and a skip list.

    run + steps -> consumed -> documents -> findings, clusters -> losses -> attribution -> verdict, skips -> manifest

Every table lands in the case folder; a second run computes only what changed or is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from forensics.pipelines.conclude import Outcome, checkpoints, conclude, store_answer
from forensics.pipelines.passes import (
    baseline_bigrams,
    by_role,
    describe_documents,
    find_faults,
    read_steps,
    sample_wording,
    sign_documents,
    tell_scripts,
    token_blocks,
    with_corpus_findings,
)
from forensics.pipelines.plan import Plan, ReplayConfig, plan_replay, read_config, read_rules
from forensics.pipelines.sampling import looked_at, met, only
from forensics.pipelines.scoring import Scoring, score_losses
from forensics.pipelines.seen import seen

from forensics.attribution.attribute import Attribution, attribute
from forensics.attribution.carry import Whole
from forensics.attribution.inputs import Inputs
from forensics.case import Case, Parts
from forensics.clustering.cluster import ClusterSettings, cluster
from forensics.curves.annotations import read_annotations
from forensics.curves.events import find_events
from forensics.curves.read import read_logs
from forensics.detectors.thresholds import Thresholds, read_thresholds
from forensics.documents.buckets import buckets
from forensics.documents.build import build_documents
from forensics.documents.dedup import dedup_summary, source_matrix
from forensics.documents.lengths import length_summary, source_summary
from forensics.documents.provenance import read_sidecar
from forensics.errors import StoreError
from forensics.files import digest, stamp
from forensics.losses.recorded import read_losses
from forensics.reports.excerpts import read_excerpts
from forensics.reports.replay import write_replay
from forensics.run import RunSpec
from forensics.schemas import (
    ANNOTATIONS,
    BLENDS,
    CORPORA,
    EVENTS,
    EXCERPTS,
    FAILURES,
    IDENTITY,
    LAUNCHES,
    LOSSES,
    METRICS,
    SEEN,
    TOKEN_LOSSES,
    Annotations,
    Clusters,
    Consumed,
    Documents,
    Events,
    Excerpts,
    Findings,
    Identity,
    Losses,
    Metrics,
    Seen,
)  # fmt: skip
from forensics.stage import fingerprint
from forensics.stores.base import TokenStore

__all__ = ["Outcome", "Plan", "ReplayConfig", "plan_replay", "read_config", "replay"]

BLOCK_ROWS = 1 << 15  # sequences per stored block of steps
BLOCK_TOKENS = 1 << 22  # tokens per stored block of documents
MOST_EXCERPTS = 300  # documents whose text goes into the report
Progress = Callable[[str, int, int], None]


def replay(
    case: Case,
    plan: Plan,
    config: ReplayConfig,
    progress: Progress = lambda *_: None,
    experiments: Mapping[str, Path] | None = None,
    scoring: Scoring | None = None,
) -> Outcome:
    """Everything, from the order to the verdict; tables and `verdict.json` land in the case.

    Args:
        case: folder to write.
        plan: from `plan_replay`.
        config: settings.
        progress: called with what is done, how much of it and out of how much.
        experiments: logs of reruns by name (replay, removal, control).
        scoring: a model to score documents with, where the user gave one.
    """
    run, loader = plan.run, plan.loader
    reruns = {name: read_logs([path]).metrics for name, path in (experiments or {}).items()}  # first: one that is no log leaves no case behind
    identity = check(case, plan)
    store = loader.store(run)
    consumed = read_consumed(case, plan, progress)
    documents = describe(case, plan, consumed, store, progress)
    flagged, clusters, scripts = judge(case, config, documents, store, progress)
    findings = case.run(with_corpus_findings, flagged, clusters, documents, scripts, store, config.jaccard, max(1, plan.row_tokens - 1))
    mark = answer_mark(plan, config, consumed, documents, flagged, clusters, experiments or {}, scoring)
    if case.info.get("answer") == mark and answered(case):
        return conclude(case, plan, config, consumed, identity, mark, unchanged=True)
    summarise(case, plan, config, documents, findings, clusters, store)
    metrics, events, annotations = read_curves(case, run)
    losses = join_losses(case, plan, consumed) if run.losses else None
    if scoring is not None:
        losses = score_losses(case, plan, scoring, consumed, documents, findings, losses, store, progress)
    sampled = looked_at(plan, consumed)
    keys = np.unique(sampled["doc_key"].to_numpy())
    inputs = Inputs(
        window=plan.window, consumed=sampled, documents=met(documents, keys), batch=store.documents(keys), metrics=metrics, launches=plan.launches,
        losses=losses, findings=Findings(only(findings, keys)), clusters=Clusters(only(clusters, keys)), annotations=annotations, blends=loader.blends(run),
        events=events, optimizer=run.optimizer, checkpoints=checkpoints(run), command=str(run.file or run.folder),
        experiments=reruns,
    )  # fmt: skip
    whole = Whole(consumed, findings, clusters, plan.whole, plan.every, plan.share)
    found = attribute(inputs, read_rules(config), replace(plan.ranges, notes=(*plan.ranges.notes, *looked(plan))), whole)
    store_answer(case, plan, found)
    case.put(EXCERPTS, excerpts_of(case, found, findings, store, config.redact))
    outcome = conclude(case, plan, config, consumed, identity, mark, unchanged=False)
    write_replay(case)
    return outcome


def looked(plan: Plan) -> tuple[str, ...]:
    """What was sampled, in words."""
    out = []
    if plan.every > 1:
        out.append(f"outside steps {plan.whole} every {plan.every}th row was read; counts there are scaled")
    if plan.share < 1:
        out.append(
            f"single documents were looked at in {100 * plan.share:.1f} % of the rows of steps {plan.whole}, chosen by their content;"
            " the rest is named by findings, copies, and groups that are guilty throughout"
        )
    return tuple(out)


def answered(case: Case) -> bool:
    """Whether the case holds an answer that reads, and its page."""
    try:
        return case.json("verdict.json") is not None and (case.path / "report.html").exists()
    except StoreError:
        return False


def answer_mark(
    plan: Plan,
    config: ReplayConfig,
    consumed: Consumed,
    documents: Documents,
    flagged: Findings,
    clusters: Clusters,
    experiments: Mapping[str, Path],
    scoring: Scoring | None,
) -> str:
    """Fingerprint of everything that the answer rests on, the code that gives it included; tables count by their own marks."""
    import forensics.pipelines

    import forensics.attribution
    import forensics.losses
    import forensics.reports

    run, reruns = plan.run, [experiments[k] for k in sorted(experiments)]
    files = [
        *run.metrics,
        *run.logs,
        *run.losses,
        *run.annotations,
        *run.documents,
        *reruns,
    ]
    inside = [f for path in files for f in (sorted(path.rglob("*")) if path.is_dir() else [path]) if f.is_file()]
    modules = (forensics.attribution, forensics.losses, forensics.pipelines, forensics.reports)
    code = [f for module in modules for f in sorted(Path(module.__path__[0]).glob("*.py"))]
    tables = [fingerprint(t) for t in (consumed, documents, flagged, clusters)]
    settings = [fingerprint(run), fingerprint(config), fingerprint(read_rules(config)), str(plan.ranges), plan.launch, sorted(experiments)]
    return digest(tables, settings, [stamp(f) for f in (*inside, *code)], None if scoring is None else fingerprint(scoring))


def join_losses(case: Case, plan: Plan, consumed: Consumed) -> Losses:
    """What the run recorded, per segment where it is that fine."""
    return Losses(case.put(LOSSES, read_losses(plan.run.losses, consumed, plan.loader.corpora(plan.run), plan.every > 1)))


def excerpts_of(case: Case, found: Attribution, findings: Findings, store: TokenStore, mask: bool) -> Excerpts:
    """Text of the first suspects and of members of their clusters."""
    rows = [r for r in found.suspects.select(["level", "key"]).to_pylist() if r["level"] == "document"][:MOST_EXCERPTS]
    keys = np.array(sorted({int(r["key"]) for r in rows}), np.int64)
    single = keys[:0]
    if case.has("token_losses"):
        single = np.intersect1d(keys, case.get(TOKEN_LOSSES)["doc_key"].drop_null().to_numpy())
    return read_excerpts(keys, store, findings, mask, single)


def check(case: Case, plan: Plan) -> str:
    """Store the run's history and the identity checks; the checks in one line. A contradiction stops."""
    run, loader = plan.run, plan.loader
    case.put(LAUNCHES, plan.launches)
    case.put(CORPORA, loader.corpora(run))
    case.put(BLENDS, loader.blends(run))
    identity = getattr(loader, "identity", None)
    if identity is None:
        return "identity: this loader has no checks beside the data files themselves"
    from forensics.loaders.megatron.identity import sentence

    return sentence(Identity(case.put(IDENTITY, identity(run))))


def read_curves(case: Case, run: RunSpec) -> tuple[Metrics, Events | None, Annotations | None]:
    """The run's logged numbers, the events on them, and what people noted."""
    annotations = Annotations(case.put(ANNOTATIONS, read_annotations(run.annotations))) if run.annotations else None
    paths = run.metrics or run.logs
    if not paths:
        return Metrics(METRICS.empty()), None, annotations
    read = read_logs(paths)
    case.put(FAILURES, read.failures)
    return Metrics(case.put(METRICS, read.metrics)), Events(case.put(EVENTS, find_events(read.metrics))), annotations


def read_consumed(case: Case, plan: Plan, progress: Progress) -> Consumed:
    """What all roles read, block by block; rows outside `plan.whole` may be a sample."""
    parts = []
    for launch, steps in plan.history:
        inside = plan.whole.overlap(steps) == steps
        rows = int(plan.facts.sequences[(plan.facts.step >= steps.start) & (plan.facts.step < steps.stop)].max(initial=1))
        for block in steps.blocks(max(1, BLOCK_ROWS // rows)):
            parts.append((f"{launch:03d}-{block.start:012d}", (plan.run, block, launch, 1 if inside else plan.every)))
    table: Consumed = case.run_parts(read_steps, parts, lambda n: progress("order", n, len(parts)))
    return table


def describe(case: Case, plan: Plan, consumed: Consumed, store: TokenStore, progress: Progress) -> Documents:
    """The documents met, with source, content hash and length as text."""
    roles = {"window": plan.ranges.window, "lookback": plan.ranges.lookback, "baseline": plan.ranges.baseline, "after": plan.ranges.after}
    known = {name: r for name, r in roles.items() if r is not None}
    sidecar = read_sidecar(plan.run.documents) if plan.run.documents else None
    plain = build_documents(by_role(consumed, known), store, sidecar)
    parts = [(f"{n:06d}", (Documents(plain.slice(a, b - a)), store)) for n, (a, b) in enumerate(token_blocks(plain, BLOCK_TOKENS))]
    table: Documents = case.run_parts(describe_documents, parts, lambda n: progress("documents", n, len(parts)))
    return table


def judge(case: Case, config: ReplayConfig, documents: Documents, store: TokenStore, progress: Progress) -> tuple[Findings, Clusters, Parts]:
    """What detectors flag, which documents are copies or templates of each other, and the script of each."""
    thresholds: Thresholds = read_thresholds(config.thresholds)
    keys = documents["doc_key"].to_numpy()
    blocks = [(f"{n:06d}", keys[a:b]) for n, (a, b) in enumerate(token_blocks(documents, BLOCK_TOKENS))]
    bigrams = baseline_bigrams(documents, store, thresholds)
    findings = case.run_parts(find_faults, [(n, (k, store, thresholds, bigrams)) for n, k in blocks], lambda n: progress("detectors", n, len(blocks)))
    signatures = case.run_parts(sign_documents, [(n, (k, store)) for n, k in blocks], lambda n: progress("signatures", n, len(blocks)))
    wording = case.keep_parts(sample_wording, [(n, (k, store)) for n, k in blocks], lambda n: progress("wording", n, len(blocks)))
    scripts = case.keep_parts(tell_scripts, [(n, (k, store)) for n, k in blocks])
    return findings, case.run(cluster, signatures, documents, ClusterSettings(config.jaccard), store, findings, wording), scripts


def summarise(case: Case, plan: Plan, config: ReplayConfig, documents: Documents, findings: Findings, clusters: Clusters, store: TokenStore) -> None:
    """Lengths, sources, packing and duplicates as tables."""
    case.run(length_summary, documents)
    case.run(source_summary, documents, findings, clusters)
    counted, why_not = seen(plan, documents, clusters, store)
    case.info["copies_not_counted"] = why_not or None
    case.run(dedup_summary, documents, clusters, None if counted is None else Seen(case.put(SEEN, counted)))
    case.put_plain("source_matrix", source_matrix(documents, clusters))
    case.run(buckets, documents, max(1, plan.row_tokens - 1), config.batch or 1)
