"""The verdict in words and as the object that `verdict.json` holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from forensics.attribution.answer import plain
from forensics.attribution.baseline import time_constants
from forensics.attribution.cost import Cost, cost_of, lr_lag
from forensics.attribution.decide import WORDS, Claim, Decision, still_read
from forensics.attribution.evidence import Evidence
from forensics.attribution.experiments import Outcome, contradicted, not_made
from forensics.attribution.skips import Prescription
from forensics.attribution.verify import Holding
from forensics.config import preset
from forensics.errors import ConfigError

SAID = {
    "data": "the data",
    "numerics": "numerics, not the data",
    "loader": "the loader, not the data",
    "composition": "a change of the mix, not bad data",
    "hardware": "hardware, not the data",
    "interaction": "this batch with this state, not bad data",
    "undetermined": "not determined",
}


def rollback(e: Evidence, claim: Claim | None) -> tuple[str | None, int | None]:
    """Path and step of the last checkpoint that holds nothing of the cause: at most its first step minus one."""
    if claim is None:
        return None, None
    before = [c for c in e.inputs.checkpoints if c[0] <= claim.start - 1]
    if not before:
        return None, None
    step, path = max(before, key=lambda c: c[0])
    return path, step


def verdict(e: Evidence, d: Decision, p: Prescription, proof: Holding, outcomes: Sequence[Outcome] = ()) -> dict[str, Any]:
    """All keys of `verdict.json`; None where unknown, ranges half-open, launches from 0."""
    claim = d.primary
    cause = claim.cause if claim else "undetermined"
    path, step = rollback(e, claim)
    launch = int(e.line.launch[e.line.at == min(e.line.index(e.ranges.window.start), len(e.line.steps) - 1)].max(initial=0))
    documents = p.documents
    cost = cost_of(e, claim, d.severity, step) if claim else None
    skip_steps = [list(r) for r in p.steps] if p.form == "steps" else []
    return {
        "window": [e.ranges.window.start, e.ranges.window.stop],
        "launch": launch,
        "severity": d.severity.name,
        "cause": cause,
        "subcause": (claim.subcause or None) if claim else None,
        "confidence": d.confidence,
        "measured": measured(cause, d.confidence),
        "onset": claim.onset if claim else None,
        "sentence": sentence(e, d, p),
        "evidence_for": [*(o.words for o in outcomes if o.back is not None and not contradicted(claim, o)), *(claim.pro if claim else ()), *_curve(e, d)],
        "evidence_against": _against(e, d),
        "not_evaluated": [*not_evaluated(e, d, proof), *not_made(e, d, outcomes)],
        "action": action(e, d, p, step, cost),
        "rollback": {"checkpoint": path, "step": step if _harmful(d) else None},
        "skip": {"steps": skip_steps, "documents": documents, "tokens": round(p.dirty + p.ordinary)},
        "secondary": [{"cause": c.cause, "subcause": c.subcause, "onset": c.onset} for c in d.secondary],
        "expected": None if p.form == "none" or cost is None else expected(e, p, cost),
        "cost": None
        if cost is None
        else {"steps_behind": _number(cost.behind), "error_steps": _number(cost.error), "steps_again": cost.again, "going_back_pays": cost.pays},
        "rest_of_groups": [{"level": c.level, "label": c.label, "guilty": c.guilty, "others": len(c.rest), "tokens": c.tokens} for c in p.closures],
        "proof": plain(proof),
        "notes": [*e.ranges.notes, *d.notes],
    }


def measured(cause: str, confidence: str) -> list[dict[str, Any]]:
    """How often this answer was right with this confidence: on small real trainings and on generated incidents, as far as it was ever given there."""
    out = []
    for name, on in (("trainings", "small real trainings"), ("measured", "generated incidents")):
        try:
            rates = preset(f"attribution/{name}").get(cause, {}).get(confidence)
        except ConfigError:  # a table that is not shipped
            rates = None
        if rates is not None:
            out.append({"on": on, "right": rates[0], "of": rates[1]})
    return out


def expected(e: Evidence, p: Prescription, cost: Cost) -> dict[str, Any]:
    """What leaving it out does: excess of the documents themselves and of the others since, each with its standard error; what is lost with it."""
    steps = sum(b - a for a, b in p.steps) if p.form == "steps" else 0
    lag = lr_lag(e, steps, p.steps[-1][1]) if steps else 0.0
    return {
        "excess_removed_nats": _number(p.removed),
        "error_nats": _number(p.error),
        "harm_to_others_nats": _number(cost.harm),
        "harm_error_nats": _number(cost.harm_error),
        "ordinary_tokens_lost": round(p.ordinary),
        "dirty_tokens_covered": round(p.covered, 4),
        "budget_tokens": p.budget or None,
        "updates_lost": steps,
        "learning_rate_ahead": None if lag is None else _number(lag),
    }


def _number(x: float) -> float | None:
    return round(x, 4) if math.isfinite(x) else None


def _harmful(d: Decision) -> bool:
    return d.severity.name not in {"none", "returned"} or (d.primary is not None and d.primary.cause in {"data", "loader"})


def sentence(e: Evidence, d: Decision, p: Prescription) -> str:
    """One sentence: what happened, why, how sure."""
    c = d.primary
    w = e.ranges.window
    if c is None or c.cause == "undetermined":
        return (
            f"Steps {w.start} to {w.stop - 1}: no event and no fault was found."
            if d.severity.name == "none"
            else f"Steps {w.start} to {w.stop - 1}: an event without a cause that the logs or the data show."
        )
    after = {
        "none": "without a lasting effect",
        "returned": "and the run came back",
        "slow": "and the run came back slowly",
        "level_shift": "and the run stayed worse",
        "diverging": "and the run diverges",
        "unknown": "with unknown lasting effect",
    }[d.severity.name]
    if c.cause == "data" and d.guilty:
        marked = np.zeros(len(e.line.keys), dtype=bool)
        marked[p.docs] = True
        inside = (e.line.steps >= c.start) & (e.line.steps < (c.stop or c.start + 1))
        share = float(e.line.share(marked)[inside].mean()) if inside.any() else 0.0
        kinds = ", ".join(sorted({WORDS[s.group.kind] for s in d.guilty}))
        what = f"{p.documents} documents ({kinds}; {100 * share:.0f} % of the tokens of steps {c.start} to {(c.stop or c.start + 1) - 1})"
        outside = " The dirty stretch reaches past the steps asked about." if c.start < w.start or (c.stop or 0) > w.stop else ""
        return f"It was the data ({d.confidence} confidence): {what}, {after}.{outside}"
    return f"It was {SAID[c.cause]} ({d.confidence} confidence): {c.subcause.replace('_', ' ')} from step {c.start}, {after}."


def _curve(e: Evidence, d: Decision) -> list[str]:
    s = d.severity
    if s.name in {"unknown", "none"} or s.peak_step is None:
        return []
    tail = f"; at the end {s.last:+.3f} +- {s.error:.3f}" if math.isfinite(s.error) else ""
    return [f"{s.measure}: {s.peak:+.2f} nats per token over its line before at step {s.peak_step}{tail}"]


def _against(e: Evidence, d: Decision) -> list[str]:
    out = list(d.primary.contra) if d.primary else []
    for c in d.secondary[:4]:
        if d.primary is None or c.cause != d.primary.cause:
            out += [f"also seen ({c.cause}): {text}" for text in c.pro[:1]]
    for s in d.bystanders:
        where = f"steps {s.stretch.start} to {s.stretch.stop - 1}"
        out.append(f"{len(s.docs)} documents of {WORDS[s.group.kind]} in {where} had no effect of their own that could be measured")
    return out


def not_evaluated(e: Evidence, d: Decision, proof: Holding) -> list[dict[str, str]]:
    """What could not be looked at, and why."""
    out = [{"what": what, "why": why} for what, why in e.missing]
    start = d.primary.start if d.primary is not None else e.ranges.window.stop
    if e.drift is not None and e.drift.since > start:
        late = f"the only scored checkpoint is of step {e.drift.since - 1}, which had seen the steps from {start} on"
        out.append({"what": "drift of ordinary documents from the start of the event on", "why": late})
    if proof.answer == "inconclusive":
        points = f"{proof.whole.points} points of a logged loss are too few or too much alike"
        out.append({"what": "proof of the data order from the curve", "why": points})
    if not e.log.family("eval_loss") and not len(e.log.get("eval_loss")):
        out.append({"what": "severity on validation", "why": "no held-out loss was logged"})
    return out


def action(e: Evidence, d: Decision, p: Prescription, checkpoint: int | None, cost: Cost | None = None) -> str:
    """What to do."""
    c = d.primary
    back = f"go back to the checkpoint of step {checkpoint}" if checkpoint is not None else "go back to the last checkpoint before the cause"
    if c is None or c.cause == "undetermined":
        return "do nothing: there is no event to mend" if d.severity.name == "none" else "make the control experiments of the plan, the replay first"
    price = f" ({cost.words})" if cost is not None and cost.words else ""
    if c.cause == "data":
        return _data_action(e, d, p, back, price, cost)
    if d.severity.name in {"none", "returned"} and c.cause in {"interaction", "composition", "hardware", "numerics"}:
        return {"composition": "do nothing: the mix changed and the run follows it", "interaction": "do nothing: the run came back by itself"}.get(
            c.cause, "no rollback: the run came back; find and mend the fault before it recurs"
        )
    if c.cause == "loader":
        first = f"steps {c.start} to {c.stop - 1}" if c.stop else f"the steps from {c.start}"
        return f"mend the loader's position or sharding; {back} and train {first} on the data that were due{price}"
    if c.cause == "composition":
        return "no skip: the documents are wanted; ramp the mix over more steps if the step in the loss matters"
    if c.cause == "interaction":
        return f"{back} and read other data there only if it recurs; no document needs to be removed"
    fault = "the fault that the experiments show" if c.subcause == "by_experiment" else c.subcause.replace("_", " ")
    return f"mend {fault}; {back} and run the same data again{price}"


def _data_action(e: Evidence, d: Decision, p: Prescription, back: str, price: str, cost: Cost | None) -> str:
    c = d.primary
    assert c is not None
    if p.form == "none":
        return f"{back} and keep out what the removal left out{price}"
    tau = time_constants(e.inputs.optimizer)[1]
    left_out = len(p.chosen) + p.also_fits if p.form == "documents" else p.documents
    form = f"skip steps {', '.join(f'{a} to {b - 1}' for a, b in p.steps)} whole" if p.form == "steps" else f"leave out the {left_out} guilty documents"
    if p.budget and p.covered < 0.995:
        form += f" (within {p.budget:,} tokens: {100 * p.covered:.0f} % of the dirty ones)"
    running = still_read(e, c)
    pays = cost.pays if cost is not None else None
    if not running and (d.severity.name in {"none", "returned"} or (d.severity.name == "slow" and pays is False)):
        came = "the run came back: live with it" if d.severity.name != "slow" else "the run comes back, and going back costs more: live with it"
        return f"{came}; or, to be rid of the {d.severity.peak:.2f} nats at the worst point, {back} and {form}{price}"
    if running:
        worth = back if pays else f"{back} if the loss of {d.severity.peak:.2f} nats per token is worth the steps since"
        worth += price
        return f"{form} from here on at once; {worth}; watch validation for {3 * tau} steps"
    return f"{back}, then {form}{price}; watch validation for {3 * tau} steps after"
