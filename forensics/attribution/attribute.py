"""From the tables of one question to its answer: the one function that a pipeline calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from forensics.attribution.answer import proof_table
from forensics.attribution.baseline import SETTLE, Ranges, alarms, ranges
from forensics.attribution.carry import Whole, carry
from forensics.attribution.decide import Decision, decide
from forensics.attribution.enrichment import Enriched, enrichment, groupings
from forensics.attribution.evidence import Evidence, gather
from forensics.attribution.experiments import Outcome, experimented
from forensics.attribution.inputs import Inputs, Rules
from forensics.attribution.plan import Experiment, experiments
from forensics.attribution.signals import Series
from forensics.attribution.skips import Prescription, prescribe, skips_table
from forensics.attribution.steps import per_step
from forensics.attribution.timeline import column
from forensics.attribution.verdict import rollback, verdict
from forensics.attribution.verify import Holding, compare
from forensics.schemas import SUSPECTS, Proof, Skips, Steps, Suspects
from forensics.steps import StepRange

MOST_DOCUMENTS = 2000  # rows of suspects
MOST_ODD = 0.15  # share of odd tokens from which a step tells nothing of the order: garbage is hard and soon learned


@dataclass(frozen=True)
class Attribution:
    """The answer and what it rests on.

    Attributes:
        verdict: every key of `verdict.json`.
        steps, suspects, skips, proof: tables.
        plan: control experiments to make.
        outcomes: those that were given.
        ranges: which steps played which role.
        evidence, decision, prescription: the values behind the words.
    """

    verdict: dict[str, Any]
    steps: Steps
    suspects: Suspects
    skips: Skips
    proof: Proof
    plan: tuple[Experiment, ...]
    outcomes: tuple[Outcome, ...]
    ranges: Ranges
    evidence: Evidence
    decision: Decision
    prescription: Prescription


def attribute(inputs: Inputs, rules: Rules | None = None, found: Ranges | None = None, whole: Whole | None = None) -> Attribution:
    """Was it the data, which documents, what to skip, where to resume.

    Args:
        inputs: the tables of the question.
        rules: thresholds; the defaults where None.
        found: roles of the steps, where the pipeline chose them; else from what was consumed.
        whole: everything that was read, where `inputs` are a sample of it.
    """
    rules = rules or Rules()
    if found is None:
        steps = column(inputs.consumed, "step")
        found = ranges(inputs.window, int(steps.min()), int(steps.max()) + 1, rules, optimizer=inputs.optimizer, shuffle_reach=inputs.shuffle_reach)
    e = gather(inputs, found, rules)
    d = decide(e)
    outcomes, d = experimented(e, d)
    p = prescribe(e, d, whole.share if whole is not None else 1.0)
    if whole is not None:
        p = carry(e, d, p, whole)
    proof = _proof(e, d)
    _, checkpoint = rollback(e, d.primary)
    cause = d.primary.cause if d.primary else "undetermined"
    plan = experiments(inputs.command, checkpoint, _span(e, d), cause, p.documents, found.baseline, inputs.optimizer)
    return Attribution(
        verdict(e, d, p, proof, outcomes),
        per_step(e),
        suspects(e, d, p),
        skips_table(e, d, p),
        proof_table("this description", proof.whole),
        tuple(plan),
        tuple(outcomes),
        found,
        e,
        d,
        p,
    )


def _span(e: Evidence, d: Decision) -> StepRange:
    if d.primary is None:
        return e.ranges.window
    stop = d.primary.stop if d.primary.stop is not None else max(e.ranges.window.stop, d.primary.start + 1)
    return StepRange(max(d.primary.start, 0), max(stop, d.primary.start + 1))


def _proof(e: Evidence, d: Decision) -> Holding:
    """Does the logged loss follow the steps that were read, those of events and of many odd documents left out?"""
    total = e.line.per_step(e.difficulty * e.line.labels) / np.maximum(e.line.tokens, 1)
    free = e.line.share(e.odd.odd) < MOST_ODD
    last = int(e.line.steps[-1]) + 1
    events = [(a, last if b is None else b) for a, b in alarms(e.inputs.events, finite=True)]
    if d.primary is not None:
        events.append((d.primary.start, d.primary.stop if d.primary.stop is not None else last))
    inside = np.zeros(len(free), dtype=bool)
    for start, stop in events:
        inside |= (e.line.steps >= start - 2) & (e.line.steps < stop + SETTLE)
    if (d.primary is not None and d.primary.cause in {"data", "composition", "loader"}) or (free & ~inside).sum() >= 40:
        free &= ~inside
    loss = e.log.get("train_loss")  # what is left out is no neighbour either: a slab would drag the running medians beside it
    known = Series(loss.steps, np.where(np.isin(loss.steps, e.line.steps[~free]), np.nan, loss.values))
    return compare(e.line.steps, np.where(free, total, np.nan), known, free)


def suspects(e: Evidence, d: Decision, p: Prescription) -> Suspects:
    """What explains the event, ranked: groups that are enriched and carry excess, then documents."""
    start, stop = (d.primary.start, d.primary.stop or d.primary.start + 64) if d.primary else (e.reach.start, e.reach.stop)
    suspect = (e.line.steps >= start) & (e.line.steps < stop)
    if not suspect.any():
        suspect = (e.line.steps >= e.reach.start) & (e.line.steps < e.reach.stop)
    value = e.excess.value if e.excess is not None else None
    tested = enrichment(e.line, groupings(e.line, e.inputs.documents, e.inputs.clusters), suspect, e.ordinary & ~suspect, value)
    batch = float(np.median(e.line.tokens))
    found = [g for g in tested if g.q <= 0.05 and g.z > 0 and (g.level == "source" or (g.window >= batch and (value is None or g.excess > 0)))]
    whole = float(np.nansum(np.abs(e.excess.value[suspect[e.line.at]]) * e.line.labels[suspect[e.line.at]])) if e.excess is not None else float("nan")
    rows = [_group_row(g, e, suspect, whole, d) for g in found[:200]]
    rows += _document_rows(e, suspect, whole, p)
    names = ("level", "key", "label", "tokens_window", "tokens_baseline", "log_odds", "excess", "share", "p_value", "q_value", "guilty", "reasons")
    if not rows:
        return Suspects(SUSPECTS.empty())
    columns: dict[str, Any] = dict(zip(names, (list(c) for c in zip(*rows, strict=True)), strict=True))
    types = {
        "key": pa.int64(),
        "log_odds": pa.float64(),
        "excess": pa.float64(),
        "share": pa.float64(),
        "p_value": pa.float64(),
        "q_value": pa.float64(),
        "guilty": pa.bool_(),
        "reasons": pa.list_(pa.string()),
    }
    table = {"rank": pa.array(np.arange(1, len(rows) + 1), pa.int32()), **{k: pa.array(v, types.get(k)) for k, v in columns.items()}}
    return Suspects(SUSPECTS.of(pa.table(table)))


def _finite(x: float) -> float | None:
    return float(x) if np.isfinite(x) else None


def _group_row(g: Enriched, e: Evidence, suspect: np.ndarray, whole: float, d: Decision) -> Sequence[Any]:
    total = g.excess * g.window if np.isfinite(g.excess) else float("nan")
    share = total / whole if whole and np.isfinite(whole) else float("nan")
    guilty_docs = {int(r) for s in d.guilty for r in s.docs}
    guilty = bool(guilty_docs) and len(guilty_docs & set(g.docs.tolist())) >= 0.5 * len(g.docs)
    return (
        g.level,
        g.key,
        g.label,
        round(g.window),
        round(g.baseline),
        g.log_odds,
        _finite(total),
        _finite(share),
        g.p,
        g.q,
        guilty,
        ["enriched", *(["excess"] if g.excess > 0 else [])],
    )


def _document_rows(e: Evidence, suspect: np.ndarray, whole: float, p: Prescription) -> list[Sequence[Any]]:
    used = e.line.of_docs(e.line.labels, suspect[e.line.at])
    base = e.line.of_docs(e.line.labels, e.ordinary[e.line.at])
    excess = e.line.of_docs(np.nan_to_num(e.excess.value * e.line.labels), suspect[e.line.at]) if e.excess is not None else np.full(len(used), np.nan)
    guilty = np.zeros(len(used), dtype=bool)
    guilty[p.docs] = True
    chosen = np.flatnonzero(guilty | (e.odd.odd & (used > 0)))
    order = sorted(chosen.tolist(), key=lambda r: (not guilty[r], -abs(excess[r]) if np.isfinite(excess[r]) else 0.0, -used[r], r))[:MOST_DOCUMENTS]
    kinds = {int(r): s.group.kind for s in (*e.slabs, *e.wanted) for r in s.group.docs}
    rows: list[Sequence[Any]] = []
    for r in order:
        label = f"document {int(e.line.keys[r]) & ((1 << 40) - 1)} of {e.line.names[int(e.line.source[r])]}"
        reasons = [kinds.get(r, "odd"), e.odd.feature[r]]
        rows.append(
            (
                "document",
                int(e.line.keys[r]),
                label,
                round(used[r]),
                round(base[r]),
                None,
                _finite(excess[r]),
                _finite(excess[r] / whole) if whole else None,
                float(e.odd.p[r]),
                None,
                bool(guilty[r]),
                reasons,
            )
        )
    return rows
