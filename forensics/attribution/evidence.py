"""Everything that is measured before anything is decided.

One function, `gather`, runs the tests in the order in which they need each other and returns their results as values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from forensics.attribution.baseline import Ranges, ordinary_steps, time_constants
from forensics.attribution.composition import Change, changes, declared_mixes, explained, with_declarations
from forensics.attribution.excess import Excess, Shift, checkpoint_drift, common_shift, excess_of, trend_slope
from forensics.attribution.inputs import Inputs, Rules
from forensics.attribution.loader_faults import Fault, Rows, loader_faults, rows_of
from forensics.attribution.numerics import Sign, ranks, signs
from forensics.attribution.odd import GARBAGE, Group, Oddness, groups, oddness, robust_z
from forensics.attribution.scan import Stretch, best_stretch, scan
from forensics.attribution.severity import Severity, expected_line, judge, validation
from forensics.attribution.signals import Departure, Signals, departures, signals, spread
from forensics.attribution.timeline import SegmentLoss, Timeline, segment_losses, timeline
from forensics.errors import RunError
from forensics.losses.difficulty import BOOL, F64, I64, per_segment
from forensics.losses.recorded import follows, unit_of
from forensics.losses.features import Features, coded, describe
from forensics.steps import StepRange


@dataclass(frozen=True)
class Slab:
    """A group of odd documents and the stretch of steps that holds it.

    Attributes:
        group: the documents' kind and label.
        docs: rows of the group's documents that lie in the stretch.
        stretch: steps, dose, share, p.
        harm: rise of ordinary documents or of validation after its start, in standard errors and nats.
        shows: loss of its first segments minus that of ordinary ones before [nats/token]; NaN without losses.
        learned: loss of its last segments minus that of its first; far below 0 where they were memorised.
    """

    group: Group
    docs: I64
    stretch: Stretch
    harm_z: float = 0.0
    harm: float = 0.0
    shows: float = float("nan")
    learned: float = float("nan")


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
    guilty_kinds: BOOL
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
    ordinary = ordinary_steps(line.steps, found, rules)
    batch = _aligned(inputs, line)
    decoder = getattr(batch, "vocabulary", None)
    if decoder is None:
        missing.append(("byte classes of documents", "the run names no tokenizer"))
    features, odd, table, per_token, ordinary = _documents(inputs, line, ordinary, decoder, rules)
    code, labels = per_segment(per_token, batch, line.keys[line.doc], line.start, line.stop, (line.seq_start == 0).astype(np.int64))
    difficulty = code / np.maximum(labels, 1)
    losses = segment_losses(line, inputs.losses)
    losses, unfit = fitting(line, losses, difficulty, log)
    missing += unfit
    costly = hard_documents(line, losses, difficulty, ordinary, table & ~odd.odd)
    found_groups = groups(inputs.batch, features, table, odd.odd, line.source, line.names, costly & ~odd.odd)
    slabs, wanted = _slabs(line, found_groups, ordinary, reach, rules)
    marked = np.zeros(len(line.keys), dtype=bool)
    for slab in (*slabs, *wanted):
        marked[slab.group.docs] = True
    plain = ~(marked | odd.odd)[line.doc]
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
    mixes = with_declarations(changes(line, ordinary, reach, rules), declared_mixes(inputs.annotations, inputs.blends, inputs.launches))
    away = curves_away(log, shift, drift, line.steps, reach)
    change_steps = (line.steps >= min((c.start for c in mixes), default=reach.stop)) & (line.steps < max((c.stop for c in mixes), default=reach.stop))
    mix = explained(line, excess.loss if excess is not None else np.full(len(line.at), np.nan), ordinary, change_steps) if mixes else 0.0
    partial = Evidence(
        inputs, rules, found, line, log, ordinary, reach, features, difficulty, odd, marked, tuple(slabs), tuple(wanted), losses, excess, shift, drift, rows,
        tuple(faults), tuple(log_signs), tuple(mixes), away, mix, Severity("unknown", ""), {}, (*missing, *log_missing),
    )  # fmt: skip
    return replace(partial, slabs=tuple(with_harm(partial, s) for s in slabs), wanted=tuple(with_harm(partial, s) for s in wanted))


def _aligned(inputs: Inputs, line: Timeline) -> object:
    batch = inputs.batch
    if len(batch.doc_key) == len(line.keys) and (np.asarray(batch.doc_key) == line.keys).all():
        return batch
    raise ValueError("the batch must hold the documents of `documents`, keys ascending")


def _documents(inputs: Inputs, line: Timeline, ordinary: BOOL, decoder: object, rules: Rules) -> tuple[Features, Oddness, BOOL, F64, BOOL]:
    """Features, oddness, the ordinary documents they were judged by, and the ordinary steps without any that turned out dirty.

    First the baseline is looked at with quartiles, which a quarter of dirty documents cannot move: where the documents
    far outside lie together in time they leave the baseline. Last, ordinary documents right before the first odd
    stretch join the tables, because small baselines make poor ones.
    """
    batch = inputs.batch

    plain = describe(batch, decoder)

    def described(table: BOOL) -> tuple[Features, F64]:
        return coded(plain, batch, table)

    table = _in_steps(line, ordinary)
    features, per_token = described(table)
    far = robust_z(features, table) > 4.5
    for _ in range(2):
        trimmed, excluded = _clean(line, far, ordinary, rules)
        if not excluded.any():
            break
        ordinary, table = trimmed, _in_steps(line, trimmed) & ~(far & _in_steps(line, excluded))
        features, per_token = described(table)
        far = robust_z(features, table) > 4.5
    odd = oddness(features, table, fdr=rules.odd_fdr, z_least=rules.odd_z, z_sure=rules.odd_z_sure)
    first = np.full(len(line.keys), np.iinfo(np.int64).max)
    np.minimum.at(first, line.doc, line.at)
    wider = (first < _first_odd(line, line.share(odd.odd), ordinary)) & ~odd.odd
    if wider.sum() > 1.1 * table.sum() and table.sum() < 2000:
        table = wider
        features, per_token = described(table)
        odd = oddness(features, table, fdr=rules.odd_fdr, z_least=rules.odd_z, z_sure=rules.odd_z_sure)
    return features, odd, table, per_token, ordinary


def fitting(line: Timeline, losses: dict[str, SegmentLoss], difficulty: F64, log: Signals) -> tuple[dict[str, SegmentLoss], list[tuple[str, str]]]:
    """The losses without those that belong to other steps or rows, and what is to be said about them.

    Raises:
        RunError: recorded losses in bits or as perplexities.
    """
    kept: dict[str, SegmentLoss] = {}
    said: list[tuple[str, str]] = []
    for name, record in losses.items():
        ok = np.isfinite(record.mean) & (record.predicted > 0)
        if name == "recorded" and ok.any():
            weight = line.per_step(np.where(ok, record.predicted, 0))
            mean = line.per_step(np.where(ok, record.mean, 0) * record.predicted) / np.maximum(weight, 1)
            unit = unit_of(np.where(weight > 0, mean, np.nan), log.get("train_loss").at(line.steps))
            if unit in {"bits", "perplexity"}:
                raise RunError(f"the recorded losses look like {unit}: against the logged training loss they are {'1 / ln 2 times as large' if unit == 'bits' else 'its exponential'}", hint="write them in nats per token, or as sums of nats")
            if unit == "other":
                said.append(("recorded losses", "their means do not agree with the logged training loss"))
            covered = float(weight.sum() / max(line.tokens.sum(), 1))
            if covered < 0.9:
                said.append(("documents without a recorded loss", f"the records cover {100 * covered:.0f} % of the tokens"))
        if record.not_finite:
            said.append(("losses that are not finite", f"{record.not_finite} records of `{name}` are NaN or infinite and were left out"))
        r, n = follows(record.mean, difficulty, line.at)
        if n >= 200 and r < 0.05:
            said.append((f"losses `{name}`", f"they do not follow the documents they are said to belong to (r = {r:.2f} over {n} parts): other steps or another order of rows; they were left out"))
            continue
        kept[name] = record
    return kept, said


def hard_documents(line: Timeline, losses: dict[str, SegmentLoss], difficulty: F64, ordinary: BOOL, table: BOOL) -> BOOL:
    """Documents that cost far more than their source, length and pairs explain, whatever the state of the model.

    Under a checkpoint from before, where one was scored; else as trained, less the median of their own step, which takes
    out a shift of all documents.
    """
    none = np.zeros(len(line.keys), dtype=bool)
    usable = ordinary[line.at] & table[line.doc]
    excess = excess_of(line, losses, difficulty, usable, 0.0)
    if excess is None:
        return none
    value, z = excess.value, excess.z
    scored = [n for n in losses if n.startswith("checkpoint:") and n.split(":", 1)[1].isdigit()]
    if scored:
        name = min(scored, key=lambda n: int(n.split(":", 1)[1]))
        fixed = losses[name].mean - excess.expected
        later = (line.steps[line.at] > int(name.split(":", 1)[1])) & np.isfinite(fixed)
        value = np.where(later, fixed, np.nan)
    else:
        middle = np.array([float(np.median(x)) if len(x := value[(line.at == t) & np.isfinite(value)]) >= 4 else 0.0 for t in range(len(line.steps))])
        value = value - np.maximum(middle, 0.0)[line.at]
    scale = np.abs(excess.value / np.where(np.abs(z) > 1e-9, z, np.inf))
    ok = np.isfinite(value) & (scale > 0) & (line.labels >= 8)
    w = np.where(ok, line.labels, 0.0)
    total = line.of_docs(w)
    mean = line.of_docs(np.where(ok, value, 0.0) * w) / np.maximum(total, 1)
    sd = line.of_docs(np.where(ok, scale, 0.0) * w) / np.maximum(total, 1)
    return (total > 0) & (mean > 0.6) & (mean > 2.5 * np.maximum(sd, 0.1))


def _in_steps(line: Timeline, steps: BOOL) -> BOOL:
    out = np.zeros(len(line.keys), dtype=bool)
    out[line.doc[steps[line.at]]] = True
    return out


def _clean(line: Timeline, far: BOOL, ordinary: BOOL, rules: Rules) -> tuple[BOOL, BOOL]:
    """The baseline without the stretch in which documents far outside lie together, and the steps that left it."""
    share = line.share(far)
    bar = float(np.median(share)) + rules.share_least
    a, b, found = best_stretch(share, bar)
    excluded = np.zeros(len(ordinary), dtype=bool)
    if found < rules.dose_least:
        return ordinary, excluded
    excluded[a:b] = ordinary[a:b]
    trimmed = ordinary & ~excluded
    if trimmed.sum() < rules.baseline_least:
        return ordinary, np.zeros(len(ordinary), dtype=bool)
    return trimmed, excluded


def _first_odd(line: Timeline, share: F64, ordinary: BOOL) -> int:
    """Index of the first step from which odd documents are more than scattered."""
    base = float(share[ordinary].mean()) if ordinary.any() else 0.0
    total = 0.0
    begin = 0
    start = int(np.flatnonzero(ordinary)[0]) if ordinary.any() else 0
    for i in range(start, len(share)):
        if total <= 0:
            begin = i
        total = max(0.0, total + share[i] - base - 0.08)
        if total > 0.5:
            return max(begin - 2, start + 4)
    return len(share)


def _slabs(line: Timeline, found: list[Group], ordinary: BOOL, reach: StepRange, rules: Rules) -> tuple[list[Slab], list[Slab]]:
    garbage: list[Slab] = []
    wanted: list[Slab] = []
    look = (line.index(reach.start), line.index(reach.stop))
    history = np.flatnonzero(ordinary)
    past = (int(history[0]), int(history[-1]) + 1) if len(history) else (0, 0)
    if past[1] > look[0]:
        past = (past[0], max(past[0], min(past[1], look[0])))
    for group in found:
        marked = np.zeros(len(line.keys), dtype=bool)
        marked[group.docs] = True
        share = line.share(marked)
        stretch = scan(line.steps, share, look, past, rules.shifts)
        if stretch is None:
            continue
        stretch = followed(line, share, stretch, rules)
        inside = (line.steps[line.at] >= stretch.start) & (line.steps[line.at] < stretch.stop)
        docs = np.unique(line.doc[inside & marked[line.doc]])
        if stretch.dose < rules.dose_least or stretch.share < rules.share_least or stretch.p > rules.scan_p or len(docs) < 3:
            continue
        (garbage if group.kind in GARBAGE else wanted).append(Slab(group, docs, stretch))
    return garbage, wanted


def followed(line: Timeline, share: F64, s: Stretch, rules: Rules) -> Stretch:
    """The stretch, followed both ways past the steps asked about, over at most `gap` ordinary steps."""
    a, b = line.index(s.start), line.index(s.stop)
    bar = max(0.02, 0.1 * s.share)
    while True:
        later = np.flatnonzero(share[b : b + rules.gap + 1] >= bar)
        if not len(later):
            break
        b += int(later[-1]) + 1
    level = 0.25 * float(share[a:b].mean())
    while a > 0:
        part = share[max(0, a - rules.gap) : a]
        near = np.flatnonzero(part >= max(bar, level))
        if not len(near):
            break
        k = a - len(part) + int(near[0])
        if share[k:a].mean() < level:
            k = a - len(part) + int(near[-1])
            if share[k:a].mean() < level:
                break
        a = k
    part = share[a:b]
    return Stretch(int(line.steps[a]), int(line.steps[b - 1]) + 1, float(part.sum()), float(part.mean()), s.p, s.shifts)


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
    for series in (drift, shift):
        if series is None:
            continue
        quiet = np.isfinite(series.value) & (series.value == series.value)
        level = 0.0
        if series is shift:
            base = (steps_of < reach.start) & quiet
            level = float(np.median(series.value[base])) if base.sum() >= 8 else 0.0
        here = (steps_of >= max(reach.start, series.since)) & (steps_of < reach.stop + 16)
        z = (series.value - level) / (series.error + (0.015 if series is drift else 0.02))
        found = departures(steps_of[here], z[here])
        out["drift" if series is drift else "shift"] = [d for d in found if d.start in reach]
    return out


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
            expected, error, sd = expected_line(val.steps, val.values, (val.steps < s.start) & (val.steps >= s.start - 400), val.steps[here])
            z = (val.values[here] - expected) / np.sqrt(error**2 + sd**2 + 1e-6)
            if len(z) and float(z.max()) > best_z:
                k = int(z.argmax())
                best_z, best = float(z[k]), float((val.values[here] - expected)[k])
    shows, learned = own_loss(e, slab)
    return replace(slab, harm_z=best_z, harm=best, shows=shows, learned=learned)


def own_loss(e: Evidence, slab: Slab) -> tuple[float, float]:
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


def step_z(x: F64, quiet: BOOL) -> F64:
    """Values by their scatter on quiet steps."""
    base = x[quiet & np.isfinite(x)]
    return (x - (np.median(base) if len(base) else 0.0)) / max(spread(base), 1e-6)
