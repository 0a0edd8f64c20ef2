"""The end of a replay: the answer stored, the skip list in the trainer's terms, and its proof by a round trip."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from forensics.pipelines.plan import Plan, ReplayConfig
from forensics.pipelines.remaining import remaining

from forensics.attribution.attribute import Attribution
from forensics.case import Case
from forensics.documents.build import label_counts
from forensics.errors import ForensicsError, UsageError
from forensics.files import write_text
from forensics.loaders.base import StepFacts
from forensics.losses.labels import recorded_labels
from forensics.manifests.base import EXPORTERS, Exporter, Manifest, Request, RoundTrip, exporter_for, round_trip
from forensics.run import RunSpec
from forensics.schemas import METRICS, NOT_EVALUATED, PROOF, SKIPS, STEPS, SUSPECTS, TOKEN_LOSSES, Consumed, Skips, Steps
from forensics.steps import StepRange


@dataclass(frozen=True)
class Outcome:
    """What a replay found; `unchanged` where nothing it rests on has changed since the case was written."""

    verdict: dict[str, Any]
    manifest: Manifest | None
    trip: RoundTrip | None
    refusal: str | None
    identity: str
    unchanged: bool = False


def store_answer(case: Case, plan: Plan, found: Attribution) -> None:
    """The tables and the verdict of an attribution."""
    case.put(STEPS, with_facts(found.steps, plan.facts))
    case.put(SUSPECTS, found.suspects)
    case.put(SKIPS, found.skips)
    case.put(PROOF, found.proof)
    if plan.run.losses and "scored" not in case.info:
        keys = found.suspects.filter(pc.field("level") == "document")["key"].to_numpy()
        case.put(TOKEN_LOSSES, recorded_labels(plan.run.losses, found.evidence.inputs.consumed, keys))
    case.put(
        NOT_EVALUATED,
        NOT_EVALUATED.of({"what": [x["what"] for x in found.verdict["not_evaluated"]], "why": [x["why"] for x in found.verdict["not_evaluated"]]}),
    )
    case.write_json("verdict.json", found.verdict)
    case.write_json("plan.json", [msgspec.to_builtins(x) for x in found.plan])


def add_remaining(case: Case, plan: Plan, config: ReplayConfig) -> None:
    """Say in the stored verdict where the guilty documents come up again, to the end of the run."""
    verdict = case.json("verdict.json")
    loss = case.get(METRICS).filter(pc.field("metric") == "train_loss")["step"] if case.has("metrics") else None
    exporter = exporter_for(plan.run.trainer, config.exporter)
    rest = remaining(plan, Skips(case.get(SKIPS)), pc.max(loss).as_py() if loss is not None else None, exporter)
    action = verdict["action"] if rest is None else f"{verdict['action']}; {rest.words(exporter)}"
    case.write_json("verdict.json", {**verdict, "action": action, "remaining": None if rest is None else rest.plain()})


def conclude(case: Case, plan: Plan, config: ReplayConfig, consumed: Consumed, identity: str, mark: str, unchanged: bool) -> Outcome:
    """Write the manifest of the stored answer, prove it by a round trip, and say how the case was made."""
    if not unchanged:
        add_remaining(case, plan, config)
    manifest, trip, refusal = manifest_of(case, plan, config, Skips(case.get(SKIPS)), consumed)
    case.close(
        command="replay", run=str(plan.run.file or plan.run.folder), steps=str(plan.window), launch=plan.launch,
        ranges={k: str(v) for k, v in vars(plan.ranges).items() if isinstance(v, StepRange)},
        checkpoints=[k for k, _ in checkpoints(plan.run)],
        config=msgspec.to_builtins(config), assumed=list(plan.notes), identity=identity, rows_every=plan.every,
        rows_whole=str(plan.whole), rows_looked_at=round(plan.share, 6), arguments=plan.run.rows(), answer=mark,
    )  # fmt: skip
    return Outcome(case.json("verdict.json"), manifest, trip, refusal, identity, unchanged)


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
    exporter: Exporter = EXPORTERS.get(exporter_for(plan.run.trainer, config.exporter))
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
        write_text(case.path / "manifest" / name, text)
    write_says(case, manifest, refusal)
    return manifest, round_trip(manifest, exporter, request, consumed), refusal


def request_of(plan: Plan, skips: Skips, consumed: Consumed) -> Request:
    """What the table `skips` advises, with the tokens it costs."""
    rows = skips.to_pylist()
    steps = sorted({s for r in rows if r["kind"] == "steps" and r["recommended"] for s in range(r["start"], r["stop"])})
    named = [r for r in rows if r["kind"] == "documents"]
    advised = [r for r in named if r["recommended"]] or named  # a budget may leave some out
    documents = sorted({k for r in advised for k in range(r["start"], r["stop"])})
    step = consumed["step"].to_numpy()
    dropped = np.isin(step, np.array(steps, np.int64))
    labels = label_counts(consumed) * np.where((step >= plan.whole.start) & (step < plan.whole.stop), 1, plan.every)
    guilty = np.isin(consumed["doc_key"].to_numpy(), np.array(documents, np.int64))
    launch = replace(plan.run.launch(plan.launch), version=plan.run.launch(plan.launch).version or plan.run.version)
    lost, ordinary = int(labels[dropped].sum()), int(labels[dropped & ~guilty].sum())
    return Request(plan.run, launch, tuple(steps), tuple(documents), lost, ordinary, tuple(k for k, _ in checkpoints(plan.run)))


def write_says(case: Case, manifest: Manifest, refusal: str | None) -> None:
    """`manifest/README.txt`: the list in words."""
    lines = [f"skip list for {manifest.trainer} {manifest.version or ''}".rstrip(), ""]
    lines += [refusal, ""] if refusal else []
    lines += [manifest.flags, ""] if manifest.flags else []
    write_text(case.path / "manifest" / "README.txt", "\n".join([*lines, *(f"- {s}" for s in manifest.says)]) + "\n")


def checkpoints(run: RunSpec) -> tuple[tuple[int, str | None], ...]:
    """Steps with a checkpoint, and where it lies if it is at hand."""
    found = ((step, run.checkpoint_at(step)) for step in run.checkpoints)
    return tuple((step, str(path) if path else None) for step, path in found)
