"""From a step range to what was consumed, what is wrong with it, a verdict and a skip list.

    run + steps -> consumed -> documents -> findings, clusters -> losses -> attribution -> verdict, skips -> manifest

Every table lands in the case folder; a second run computes only what changed or is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from forensics.pipelines.passes import by_role, describe_documents, find_faults, read_steps, sign_documents, token_blocks

from forensics.attribution.attribute import Attribution, attribute
from forensics.attribution.baseline import Ranges, ranges
from forensics.attribution.inputs import Inputs, Rules
from forensics.case import Case
from forensics.clustering.cluster import ClusterSettings, cluster
from forensics.clustering.duplicates import with_duplicates
from forensics.config import build, merge, preset
from forensics.curves.annotations import read_annotations
from forensics.curves.events import find_events
from forensics.curves.read import read_logs
from forensics.detectors.thresholds import Thresholds, read_thresholds
from forensics.documents.buckets import buckets
from forensics.documents.build import build_documents, label_counts
from forensics.documents.dedup import dedup_summary
from forensics.documents.lengths import length_summary, source_summary
from forensics.documents.provenance import read_sidecar
from forensics.errors import ForensicsError, UsageError
from forensics.loaders.base import Loader, StepFacts, loader_of, path_of
from forensics.losses.recorded import read_losses
from forensics.manifests.base import EXPORTERS, Exporter, Manifest, Request, RoundTrip, round_trip
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
    NOT_EVALUATED,
    PROOF,
    SKIPS,
    STEPS,
    SUSPECTS,
    TOKEN_LOSSES,
    Annotations,
    Clusters,
    Consumed,
    Documents,
    Events,
    Excerpts,
    Findings,
    Identity,
    Launches,
    Losses,
    Metrics,
    Skips,
    Steps,
)  # fmt: skip
from forensics.steps import StepRange
from forensics.stores.base import TokenStore

BLOCK_ROWS = 1 << 15  # sequences per stored block of steps
MOST_EXCERPTS = 300  # documents whose text goes into the report
BLOCK_TOKENS = 1 << 23  # tokens per stored block of documents
MOST_TOKENS = 48 << 20  # tokens that attribution looks at; larger windows are sampled by row
Progress = Callable[[str, int, int], None]


class ReplayConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a replay can be told beside the run: `--config FILE`."""

    baseline: str | None = None
    thresholds: str = "default"
    jaccard: float = 0.8
    batch: int | None = None
    exporter: str | None = None
    redact: bool = True
    attribution: dict[str, Any] = {}


@dataclass(frozen=True)
class Plan:
    """What will be read, known before anything is.

    Attributes:
        run, loader: the run and who knows its order.
        window: steps asked about; launch: whose history they are seen from.
        ranges: steps by role; history: which launch each of them is read from.
        facts: per step of all roles.
        row_tokens: tokens per sequence; every: of rows outside the window only each so-many-th is read.
        notes: what the loader assumed.
    """

    run: RunSpec
    loader: Loader
    launches: Launches
    window: StepRange
    launch: int
    ranges: Ranges
    history: tuple[tuple[int, StepRange], ...]
    facts: StepFacts
    row_tokens: int
    every: int
    notes: tuple[str, ...]

    @property
    def sequences(self) -> int:
        """Rows of the window."""
        inside = (self.facts.step >= self.window.start) & (self.facts.step < self.window.stop)
        return int(self.facts.sequences[inside].sum())


@dataclass(frozen=True)
class Outcome:
    """What a replay found."""

    verdict: dict[str, Any]
    manifest: Manifest | None
    trip: RoundTrip | None
    refusal: str | None
    identity: str
    attribution: Attribution


def read_config(data: Mapping[str, Any], where: str = "--config") -> ReplayConfig:
    """Settings from plain data, unknown keys refused."""
    return build(ReplayConfig, data, where)


def plan_replay(run: RunSpec, window: StepRange, config: ReplayConfig, launch: int | None = None) -> Plan:
    """Work out which steps of which launches are read, and in which role.

    Raises:
        RunError: steps that no launch ran; UsageError: a window across launches that do not follow each other.
    """
    from forensics.steps import parse_steps

    loader = loader_of(run)
    facts = loader.trained(run, window, launch)
    own = int(facts.launch[0])
    launches = loader.launches(run)
    rules = read_rules(config)
    wide = StepRange(max(1, window.start - 4096), window.stop + rules.follow)
    history = path_of(launches, wide, own if launch is not None else int(facts.launch[-1]))
    given = parse_steps(config.baseline) if config.baseline else None
    if given is not None:
        history = path_of(launches, StepRange(min(given.start, wide.start), max(given.stop, wide.stop)), own)
    found = ranges(window, history[0][1].start, history[-1][1].stop, rules, optimizer=run.optimizer, baseline=given)
    reach = [r for r in (found.baseline, found.lookback, found.window, found.after) if r is not None]
    pieces = [(n, part) for n, steps in history for r in sorted(reach) if (part := r.overlap(steps)) is not None]
    every_fact = StepFacts.concat([loader.trained(run, part, n) for n, part in pieces])
    width = next((w for w in launches["row_width"].to_pylist() if w), None) or 1
    inside = (every_fact.step >= window.start) & (every_fact.step < window.stop)
    tokens = float(every_fact.sequences[inside].sum()) * width
    others = float(every_fact.sequences[~inside].sum()) * width
    allowed = max((rules.budget - 1) * tokens, MOST_TOKENS / 2)
    every = max(1, int(np.ceil(others / allowed)))
    notes = (*found.notes, *getattr(loader, "notes", lambda _: [])(run))
    return Plan(run, loader, launches, window, own, found, tuple(pieces), every_fact, int(width), every, notes)


def read_rules(config: ReplayConfig) -> Rules:
    """The preset of attribution with the configuration's overrides."""
    return build(Rules, merge(preset("attribution/default"), config.attribution), "attribution")


def replay(case: Case, plan: Plan, config: ReplayConfig, progress: Progress = lambda *_: None, experiments: Mapping[str, Path] | None = None) -> Outcome:
    """Everything, from the order to the verdict; tables and `verdict.json` land in the case.

    Args:
        case: folder to write.
        plan: from `plan_replay`.
        config: settings.
        progress: called with what is done, how much of it and out of how much.
        experiments: logs of reruns by name (replay, removal, control).
    """
    run, loader = plan.run, plan.loader
    identity = check(case, plan)
    store = loader.store(run)
    metrics, events, annotations = read_curves(case, run)
    consumed = read_consumed(case, plan, progress)
    documents = describe(case, plan, consumed, store, progress)
    findings, clusters = judge(case, config, documents, store, progress)
    losses = join_losses(case, plan, consumed) if run.losses else None
    summarise(case, plan, config, documents, findings, clusters)
    sampled = sample(plan, consumed, documents)
    batch = store.documents(np.unique(sampled["doc_key"].to_numpy()))
    reruns = {name: read_logs([path]).metrics for name, path in (experiments or {}).items()}
    inputs = Inputs(
        window=plan.window, consumed=sampled, documents=met(documents, sampled), batch=batch, metrics=metrics, launches=plan.launches, losses=losses,
        findings=findings, clusters=clusters, annotations=annotations, blends=loader.blends(run), events=events, optimizer=run.optimizer,
        checkpoints=checkpoints(run), experiments=reruns, command=f"forensics replay {run.file or run.folder}",
    )  # fmt: skip
    found = attribute(inputs, read_rules(config), plan.ranges)
    outcome = conclude(case, plan, config, found, consumed, identity)
    case.put(EXCERPTS, excerpts_of(case, found, findings, store, config.redact))
    write_replay(case)
    return outcome


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
    """What all roles read, block by block; rows outside the window may be a sample."""
    parts = []
    for launch, steps in plan.history:
        inside = plan.window.overlap(steps) == steps
        rows = int(plan.facts.sequences[(plan.facts.step >= steps.start) & (plan.facts.step < steps.stop)].max(initial=1))
        for block in steps.blocks(max(1, BLOCK_ROWS // rows)):
            parts.append((f"{launch:03d}-{block.start:012d}", (plan.run, block, launch, 1 if inside else plan.every)))
    table: Consumed = case.run_parts(read_steps, parts, lambda n: progress("order", n, len(parts)))
    return table


def describe(case: Case, plan: Plan, consumed: Consumed, store: TokenStore, progress: Progress) -> Documents:
    """The documents met, with source, content hash and length as text."""
    roles = {"window": plan.ranges.window, "lookback": plan.ranges.lookback, "baseline": plan.ranges.baseline}
    known = {name: r for name, r in roles.items() if r is not None}
    sidecar = read_sidecar(plan.run.documents) if plan.run.documents else None
    tables: dict[str, Consumed] = by_role(consumed, known)
    if plan.ranges.after is not None:
        tables["after"] = by_role(consumed, {"after": plan.ranges.after})["after"]
    plain = build_documents(tables, store, sidecar)
    blocks = token_blocks(plain, BLOCK_TOKENS)
    parts = [(f"{n:06d}", (plain, store, a, b)) for n, (a, b) in enumerate(blocks)]
    table: Documents = case.run_parts(describe_documents, parts, lambda n: progress("documents", n, len(parts)))
    return table


def judge(case: Case, config: ReplayConfig, documents: Documents, store: TokenStore, progress: Progress) -> tuple[Findings, Clusters]:
    """What detectors flag, and which documents are copies or templates of each other."""
    thresholds: Thresholds = read_thresholds(config.thresholds)
    keys = documents["doc_key"].to_numpy()
    blocks = [(f"{n:06d}", keys[a:b]) for n, (a, b) in enumerate(token_blocks(documents, BLOCK_TOKENS))]
    findings = case.run_parts(find_faults, [(n, (k, store, thresholds)) for n, k in blocks], lambda n: progress("detectors", n, len(blocks)))
    signatures = case.run_parts(sign_documents, [(n, (k, store)) for n, k in blocks], lambda n: progress("signatures", n, len(blocks)))
    clusters = case.run(cluster, signatures, documents, ClusterSettings(config.jaccard), store, findings)
    return with_duplicates(findings, clusters, config.jaccard), clusters


def summarise(case: Case, plan: Plan, config: ReplayConfig, documents: Documents, findings: Findings, clusters: Clusters) -> None:
    """Lengths, sources, packing and duplicates as tables."""
    case.run(length_summary, documents)
    case.run(source_summary, documents, findings, clusters)
    case.run(dedup_summary, documents, clusters)
    case.run(buckets, documents, max(1, plan.row_tokens - 1), config.batch or 1)


def sample(plan: Plan, consumed: Consumed, documents: Documents) -> Consumed:
    """The rows that attribution looks at: all, or every k-th where their documents hold too many tokens."""
    tokens = int(documents["tokens"].to_numpy().sum())
    k = int(np.ceil(tokens / MOST_TOKENS))
    if k <= 1:
        return consumed
    place = consumed["sequence"].to_numpy().astype(np.int64) // plan.every + consumed["step"].to_numpy()
    return Consumed(consumed.filter(pa.array(place % k == 0)))


def met(documents: Documents, consumed: Consumed) -> Documents:
    """The documents that the rows hold."""
    keep = np.isin(documents["doc_key"].to_numpy(), consumed["doc_key"].to_numpy())
    return documents if keep.all() else Documents(documents.filter(pa.array(keep)))


def checkpoints(run: RunSpec) -> tuple[tuple[int, str | None], ...]:
    """Steps with a checkpoint, and where it lies if it is at hand."""

    def path(step: int) -> str | None:
        if run.checkpoint is None:
            return None
        found = [p for p in (run.checkpoint / f"iter_{step:07d}", run.checkpoint / f"step{step}", run.checkpoint / f"global_step{step}") if p.exists()]
        return str(found[0]) if found else None

    return tuple((step, path(step)) for step in run.checkpoints)


def conclude(case: Case, plan: Plan, config: ReplayConfig, found: Attribution, consumed: Consumed, identity: str) -> Outcome:
    """Store the answer, write the manifest and prove it by a round trip."""
    case.put(STEPS, with_facts(found.steps, plan.facts))
    case.put(SUSPECTS, found.suspects)
    skips = Skips(case.put(SKIPS, found.skips))
    case.put(PROOF, found.proof)
    case.put(
        NOT_EVALUATED,
        NOT_EVALUATED.of({"what": [x["what"] for x in found.verdict["not_evaluated"]], "why": [x["why"] for x in found.verdict["not_evaluated"]]}),
    )
    case.write_json("verdict.json", found.verdict)
    case.write_json("plan.json", [msgspec.to_builtins(x) for x in found.plan])
    manifest, trip, refusal = manifest_of(case, plan, config, skips, consumed)
    case.close(
        command="replay", run=str(plan.run.file or plan.run.folder), steps=str(plan.window), launch=plan.launch,
        ranges={k: str(v) for k, v in vars(plan.ranges).items() if isinstance(v, StepRange)},
        checkpoints=[k for k, _ in checkpoints(plan.run)],
        config=msgspec.to_builtins(config), assumed=list(plan.notes), identity=identity, rows_every=plan.every,
        arguments=plan.run.rows(),
    )  # fmt: skip
    return Outcome(found.verdict, manifest, trip, refusal, identity, found)


def with_facts(steps: Steps, facts: StepFacts) -> Steps:
    """The table with what the trainer did with each step and its counter after it."""
    at = {(n, s): i for i, (n, s) in enumerate(zip(facts.launch.tolist(), facts.step.tolist()))}
    where = np.array([at[pair] for pair in zip(steps["launch"].to_numpy().tolist(), steps["step"].to_numpy().tolist())], np.int64)
    columns: dict[str, Any] = {name: steps[name] for name in steps.column_names}
    after = facts.consumed_after[where]
    return Steps(
        STEPS.of(
            {
                **columns,
                "trained": facts.trained[where],
                "consumed_after": pa.array(after, mask=after < 0),
                "sequences": facts.sequences[where].astype(np.int32),
            }
        )
    )


def manifest_of(case: Case, plan: Plan, config: ReplayConfig, skips: Skips, consumed: Consumed) -> tuple[Manifest | None, RoundTrip | None, str | None]:
    """The skip list in the trainer's terms, where there is something to skip and the trainer can."""
    request = request_of(plan, skips, consumed)
    if not request.steps and not request.documents:
        return None, None, None
    known = EXPORTERS.names()
    exporter: Exporter = EXPORTERS.get(config.exporter or (plan.run.trainer if plan.run.trainer in known else "plain"))
    refusal = None
    try:
        manifest = exporter.export(request)
    except UsageError:
        raise
    except ForensicsError as error:
        refusal = error.text()
        exporter = EXPORTERS.get("plain")
        manifest = exporter.export(request)
    for name, text in manifest.files.items():
        from forensics.files import write_text

        write_text(case.path / "manifest" / name, text)
    write_says(case, manifest, refusal)
    return manifest, round_trip(manifest, exporter, request, consumed), refusal


def request_of(plan: Plan, skips: Skips, consumed: Consumed) -> Request:
    """What the table `skips` advises, with the tokens it costs."""
    rows = skips.to_pylist()
    steps = sorted({s for r in rows if r["kind"] == "steps" and r["recommended"] for s in range(r["start"], r["stop"])})
    documents = sorted({k for r in rows if r["kind"] == "documents" for k in range(r["start"], r["stop"])})
    step = consumed["step"].to_numpy()
    dropped = np.isin(step, np.array(steps, np.int64))
    labels = label_counts(consumed) * np.where((step >= plan.window.start) & (step < plan.window.stop), 1, plan.every)
    guilty = np.isin(consumed["doc_key"].to_numpy(), np.array(documents, np.int64))
    launch = replace(plan.run.launch(plan.launch), version=plan.run.launch(plan.launch).version or plan.run.version)
    lost, ordinary = int(labels[dropped].sum()), int(labels[dropped & ~guilty].sum())
    return Request(plan.run, launch, tuple(steps), tuple(documents), lost, ordinary, tuple(k for k, _ in checkpoints(plan.run)))


def write_says(case: Case, manifest: Manifest, refusal: str | None) -> None:
    """`manifest/README.txt`: the list in words."""
    from forensics.files import write_text

    lines = [f"skip list for {manifest.trainer} {manifest.version or ''}".rstrip(), ""]
    lines += [refusal, ""] if refusal else []
    lines += [manifest.flags, ""] if manifest.flags else []
    write_text(case.path / "manifest" / "README.txt", "\n".join([*lines, *(f"- {s}" for s in manifest.says)]) + "\n")
