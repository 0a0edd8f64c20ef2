"""Everything that is measured before anything is decided.

One function, `gather`, runs the tests in the order in which they need each other and returns their results as values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from forensics.attribution.baseline import Ranges, ordinary_steps, other_events, time_constants, without_events
from forensics.attribution.composition import Change, changes, declared_mixes, explained, with_declarations
from forensics.attribution.excess import Excess, Shift, checkpoint_drift, common_shift, excess_of, trend_slope
from forensics.attribution.inputs import Inputs, Rules
from forensics.attribution.loader_faults import Fault, Rows, loader_faults, rows_of
from forensics.attribution.members import refined
from forensics.attribution.numerics import Sign, ranks, signs
from forensics.attribution.odd import Oddness, groups
from forensics.attribution.order import disordered
from forensics.attribution.screening import fitting, flagged, own_loss, screen
from forensics.attribution.severity import Severity, judge, validation
from forensics.attribution.signals import Departure, Signals, departures, signals
from forensics.attribution.slabs import Slab, find_slabs, holding
from forensics.attribution.timeline import SegmentLoss, Timeline, segment_losses, timeline
from forensics.curves.lines import expected_line
from forensics.losses.difficulty import BOOL, F64, I64, Batch, per_segment
from forensics.losses.features import Decoder, Features
from forensics.steps import StepRange


@dataclass(frozen=True)
class Evidence:
    """Results of all tests; arrays follow `line`."""

    inputs: Inputs
    rules: Rules
    ranges: Ranges
    line: Timeline
    log: Signals
    ordinary: BOOL
    reach: StepRange
    features: Features
    difficulty: F64
    odd: Oddness
    slabs: tuple[Slab, ...]
    wanted: tuple[Slab, ...]
    losses: dict[str, SegmentLoss]
    excess: Excess | None
    shift: Shift | None
    drift: Shift | None
    rows: Rows
    faults: tuple[Fault, ...]
    signs: tuple[Sign, ...]
    changes: tuple[Change, ...]
    declared: tuple[tuple[int, str], ...]
    departures: dict[str, list[Departure]]
    mix_explains: float
    severity: Severity
    severities: dict[str, Severity] = field(default_factory=dict)
    missing: tuple[tuple[str, str], ...] = ()


def gather(inputs: Inputs, found: Ranges, rules: Rules) -> Evidence:
    """Run every test that has its inputs."""
    line = timeline(inputs.consumed, inputs.documents, inputs.launches)
    log = signals(inputs.metrics)
    missing: list[tuple[str, str]] = []
    reach = StepRange(found.lookback.start if found.lookback else found.window.start, found.window.stop)
    others = other_events(inputs.events, reach.start)
    ordinary = ordinary_steps(line.steps, found, rules, others)
    found = without_events(found, line.steps, ordinary, ordinary_steps(line.steps, found, rules), others)
    batch = _aligned(inputs, line)
    decoder = cast("Decoder | None", getattr(batch, "vocabulary", None))
    if decoder is None:
        missing.append(("byte classes of documents", "the run names no tokenizer"))
    features, odd, table, per_token, ordinary = screen(inputs, line, ordinary, decoder, rules)
    code, labels = per_segment(per_token, batch, line.keys[line.doc], line.start, line.stop, (line.seq_start == 0).astype(np.int64))
    difficulty = code / np.maximum(labels, 1)
    losses = segment_losses(line, inputs.losses)
    losses, unfit = fitting(line, losses, np.where(ordinary[line.at], difficulty, np.nan), log)
    missing += unfit
    marks = flagged(line, inputs.findings, table)
    strange = odd.odd.copy()
    strange[list(marks)] = True
    own = own_loss(line, losses, difficulty, ordinary, table & ~strange)
    costly = (own.hard | disordered(line, features, ordinary, table, reach, strange)) & ~strange
    found_groups = groups(inputs.batch, features, table & ~strange, strange, line.source, line.names, costly, marks)
    slabs, wanted = find_slabs(line, found_groups, ordinary, reach, rules)
    slabs = [refined(line, features, own.mean, table, s, holding(line, [x for x in slabs if x is not s]), rules) for s in slabs]
    marked = holding(line, [*slabs, *wanted])
    plain = ~(marked | strange)[line.doc]
    train = log.get("train_loss")
    trend = trend_slope(train.steps, train.values, reach.start)
    usable = ordinary[line.at] & plain
    excess = excess_of(line, losses, difficulty, usable, trend)
    if excess is None:
        missing.append(("excess loss of documents", "no losses per document were recorded or scored"))
    shift = common_shift(line, excess.value, line.labels.astype(np.float64), plain, "shift", int(line.steps[0]), ordinary) if excess is not None else None
    first_odd = min((s.stretch.start for s in (*slabs, *wanted)), default=reach.stop)
    drift = checkpoint_drift(line, losses, plain, line.steps < min(first_odd, reach.stop))
    if drift is None:
        missing.append(("split of the excess into difficulty and drift", "no checkpoint from before the event was scored"))
    rows = rows_of(line)
    faults = loader_faults(line, rows, inputs.launches, reach, rules)
    log_signs, log_missing = signs(log, inputs.optimizer, reach, rules)
    log_signs += ranks(line, excess, plain, reach)
    declared = declared_mixes(inputs.annotations, inputs.blends, inputs.launches)
    mixes = with_declarations(changes(line, ordinary, reach, rules), declared)
    away = curves_away(log, shift, drift, line.steps, reach)
    change_steps = (line.steps >= min((c.start for c in mixes), default=reach.stop)) & (line.steps < max((c.stop for c in mixes), default=reach.stop))
    mix = explained(line, excess.loss if excess is not None else np.full(len(line.at), np.nan), ordinary, change_steps) if mixes else 0.0
    partial = Evidence(
        inputs,
        rules,
        found,
        line,
        log,
        ordinary,
        reach,
        features,
        difficulty,
        odd,
        tuple(slabs),
        tuple(wanted),
        losses,
        excess,
        shift,
        drift,
        rows,
        tuple(faults),
        tuple(log_signs),
        tuple(mixes),
        tuple(declared),
        away,
        mix,
        Severity("unknown", ""),
        {},
        (*missing, *log_missing),
    )
    return replace(partial, slabs=tuple(with_harm(partial, s) for s in slabs), wanted=tuple(with_harm(partial, s) for s in wanted))


def _aligned(inputs: Inputs, line: Timeline) -> Batch:
    batch = inputs.batch
    if len(batch.doc_key) == len(line.keys) and (np.asarray(batch.doc_key) == line.keys).all():
        return batch
    raise ValueError("the batch must hold the documents of `documents`, keys ascending")


def curves_away(log: Signals, shift: Shift | None, drift: Shift | None, steps_of: I64, reach: StepRange) -> dict[str, list[Departure]]:
    """Departures of the curves from where they were going, that begin within reach."""
    out: dict[str, list[Departure]] = {}
    for name in ("train_loss", "grad_norm"):
        series = log.get(name)
        ok = np.isfinite(series.values) & (series.values > 0)
        steps, x = series.steps[ok], series.values[ok]
        if name == "grad_norm":
            x = np.log(x)
        before = (steps < reach.start) & (steps >= reach.start - 400)
        here = (steps >= reach.start) & (steps < reach.stop + 16)
        if before.sum() < 24 or not here.any():
            continue
        expected, error, sd = expected_line(steps, x, before, steps[here])
        scale = max(sd, _grain(x[before]), 1e-6)
        out[name] = [d for d in departures(steps[here], (x[here] - expected) / np.sqrt(scale**2 + error**2)) if d.start in reach]
    for kind, moved, least in (("drift", drift, 0.015), ("shift", shift, 0.02)):
        if moved is None:
            continue
        base = (steps_of < reach.start) & np.isfinite(moved.value)
        level = float(np.median(moved.value[base])) if kind == "shift" and base.sum() >= 8 else 0.0
        here = (steps_of >= max(reach.start, moved.since)) & (steps_of < reach.stop + 16)
        z = (moved.value - level) / (moved.error + least)
        out[kind] = [d for d in departures(steps_of[here], z[here]) if d.start in reach]
    val = validation(log)
    before = (val.steps < reach.start) & (val.steps >= reach.start - 400)
    here = (val.steps >= reach.start) & (val.steps < reach.stop + 40)
    if before.sum() >= 4 and here.sum() >= 2:
        expected, error, sd = expected_line(val.steps, val.values, before, val.steps[here])
        z = (val.values[here] - expected) / np.sqrt(error**2 + sd**2 + 0.01**2)
        out["eval_loss"] = _raised(val.steps[here], z, reach)
    return out


def _raised(steps: I64, z: F64, reach: StepRange) -> list[Departure]:
    """Held-out losses above their line on two evaluations in a row; the event lies after the last one that was not."""
    for i in range(len(z) - 1):
        if z[i] > 3.5 and z[i + 1] > 3.5:
            start = int(steps[i - 1]) + 1 if i else int(steps[i])
            return [Departure(start, int(steps[-1]) + 1, float(z[i:].max()), 1, float(z[i:].mean()))] if start in reach else []
    return []


def _grain(x: F64) -> float:
    """Half of the last digit that was printed: losses rounded to few values must not give infinite z."""
    gaps = np.diff(np.unique(x))
    gaps = gaps[gaps > 1e-9]
    return float(gaps.min()) / 2 if len(gaps) else 0.0


def with_harm(e: Evidence, slab: Slab, until: int | None = None) -> Slab:
    """What happened to ordinary documents and to validation from the slab's start on, and whether its own loss stands out.

    Args:
        e: evidence.
        slab: odd documents in their stretch.
        until: look no further than this step.
    """
    s = slab.stretch
    tail = time_constants(e.inputs.optimizer)[1]
    end = s.stop + 2 * tail if until is None else min(until, s.stop + 2 * tail)
    best_z, best = 0.0, 0.0
    for series in (e.drift, e.shift):
        if series is None:
            continue
        steps = e.line.steps
        use = (steps >= max(s.start + 2, series.since)) & (steps < min(end, s.stop + tail // 2)) & np.isfinite(series.value)
        before = e.ordinary & np.isfinite(series.value) & (steps >= series.since) if series is e.shift else np.zeros(len(steps), dtype=bool)
        if use.sum() < 4:
            continue
        level = float(np.median(series.value[before])) if before.sum() >= 8 else 0.0
        x = series.value[use] - level
        half = len(x) // 2
        for part, err in ((x, series.error[use]), (x[half:], series.error[use][half:])):
            mean = float(np.average(part, weights=1 / err**2))
            error = float(1 / np.sqrt((1 / err**2).sum())) + (0.02 if series is e.drift else 0.04)
            if mean / error > best_z:
                best_z, best = mean / error, mean
        if series is e.drift:
            break
    val = validation(e.log)
    if len(val):
        seen = judge(val.steps, val.values, s.start, "eval_loss", floor=0.02, slow_after=3 * tail)
        here = (val.steps >= s.start) & (val.steps < end)
        if seen.name not in {"unknown"} and here.any():
            expected, line_error, sd = expected_line(val.steps, val.values, (val.steps < s.start) & (val.steps >= s.start - 400), val.steps[here])
            z = (val.values[here] - expected) / np.sqrt(line_error**2 + sd**2 + 1e-6)
            if len(z) and float(z.max()) > best_z:
                k = int(z.argmax())
                best_z, best = float(z[k]), float((val.values[here] - expected)[k])
    shows, learned = first_and_last(e, slab)
    return replace(slab, harm_z=best_z, harm=best, shows=shows, learned=learned)


def first_and_last(e: Evidence, slab: Slab) -> tuple[float, float]:
    """Loss of a slab's first segments over that of ordinary ones before, and how far its last ones lie below its first."""
    shows = learned = float("nan")
    if e.excess is None:
        return shows, learned
    s = slab.stretch
    marked = np.zeros(len(e.line.keys), dtype=bool)
    marked[slab.docs] = True
    step, loss, weight = e.line.steps[e.line.at], e.excess.loss, np.maximum(e.line.labels, 1)
    mine = marked[e.line.doc] & np.isfinite(loss) & (step >= s.start) & (step < s.stop)
    base = e.ordinary[e.line.at] & np.isfinite(loss)
    early = mine & (step < s.start + 8)
    late = mine & (step >= s.start + max(8, 2 * (s.stop - s.start) // 3))
    if early.any() and base.any():
        first = float(np.average(loss[early], weights=weight[early]))
        shows = first - float(np.average(loss[base], weights=weight[base]))
        if late.any():
            learned = float(np.average(loss[late], weights=weight[late])) - first
    return shows, learned
