"""`find_events`: every rule over every curve of a run, joined to incidents with verdicts, as the table `events`.

A pure function of the metrics table and of what is known beside it (optimizer, annotations, checkpoints): equal inputs give equal
tables. A rule whose inputs were not logged answers with the reason, never with silence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from forensics.curves import (
    capacity,
    composition,
    divergence,
    gap,
    grad_norm,
    holes,
    memory,
    mix,
    norm_spikes_by,
    numerics,
    periods,
    plateaus,
    scores,
    shifts,
    short,
    spikes,
    throughput,
)
from forensics.curves.event import Context, Event
from forensics.curves.incidents import dedupe, group
from forensics.curves.panels import Panel, panels
from forensics.curves.series import UNKNOWN, Curves, Series, curves_of, runs_of
from forensics.curves.settings import Annotation, CurveSettings, Optimizer, settings
from forensics.curves.trend import PowerLaw, lag_one
from forensics.curves.verdicts import Verdict, judge, verdicts
from forensics.curves.whole import kind_of_problem, law_of, recurrent
from forensics.schemas import EVENTS, Events, Metrics
from forensics.stage import stage

Rule = Callable[[Context], "list[Event] | str"]

RULES: tuple[tuple[str, str, Rule], ...] = (
    ("spike", "7, 13", spikes.loss_events),
    ("short_log", "7", short.short_events),
    ("periodic", "25", periods.periodic),
    ("drift", "13", divergence.drift),
    ("divergence", "13", divergence.never_trains),
    ("small_shift", "7", shifts.small_shift),
    ("odd_rank", "17", shifts.odd_rank),
    ("nonfinite", "13, 24", divergence.nonfinite),
    ("plateau", "10, 11", plateaus.plateau),
    ("plateau_capacity", "12", capacity.plateau_capacity),
    ("lr_descent", "5", plateaus.lr_descent),
    ("composition_shift", "5", composition.composition_shift),
    ("domains", "6", composition.domains),
    ("regressed_domains", "6", mix.regressed_domains),
    ("noise_growth", "4", composition.noise_growth),
    ("norm_spike", "21", grad_norm.norm_spikes),
    ("norm_spikes_by", "21", norm_spikes_by.norm_spikes_by),
    ("norm_rise", "18, 19", grad_norm.norm_rise),
    ("norm_vanish", "20", grad_norm.norm_vanish),
    ("clip_fault", "15", grad_norm.clip_fault),
    ("update_norm", "17", grad_norm.update_norm),
    ("scale_collapse", "16", numerics.scale_collapse),
    ("lr_jump", "14", numerics.lr_jump),
    ("schedule_mismatch", "14", numerics.schedule_mismatch),
    ("warmup_short", "14", numerics.warmup_short),
    ("throughput_drop", "26", throughput.throughput_drop),
    ("throughput_sawtooth", "25", throughput.sawtooth),
    ("slow_rank", "26, 31", throughput.slow_rank),
    ("length_driven", "27", throughput.length_driven),
    ("memory_leak", "29", memory.leak),
    ("memory_near_limit", "28", memory.near_limit),
    ("memory_periodic", "30", memory.memory_periodic),
    ("val_gap", "22", gap.val_gap),
    ("aux_loss", "13", gap.aux_losses),
    ("router_collapse", "13", gap.router_collapse),
    ("batch_change", "1", holes.batch_change),
    ("gap", "", holes.gaps),
    ("stuck", "20", holes.stuck),
)


@dataclass(frozen=True)
class Answer:
    """What a rule said.

    Attributes:
        rule: its name. numbers: of the rules of the trade it stands for.
        found: events, None where it could not be evaluated.
        reason: why not.
    """

    rule: str
    numbers: str
    found: int | None
    reason: str | None


@dataclass(frozen=True)
class Reading:
    """All that is read from one run's curves.

    Attributes:
        run: its name.
        events: every event, in order.
        verdicts: one per incident.
        answers: one per rule.
        panels: the four panels with their gaps.
        spike_score: OLMo 2's, by metric; None where the curve is too short.
        expected_false: loss events that noise alone would give on a curve of this length.
        law: that the loss follows, or why none was fitted.
        summary: convergence, engineering, both or nothing.
        recurrent: a sentence where unexplained spikes recur.
        ctx: what the rules read.
        reading: how the records were read, where they are too many to be read at once.
    """

    run: str
    events: list[Event]
    verdicts: list[Verdict]
    answers: list[Answer]
    panels: list[Panel]
    spike_score: dict[str, float | None]
    expected_false: float | None
    law: PowerLaw | str
    summary: str
    recurrent: str | None
    ctx: Context
    reading: str | None = None

    @property
    def loss_events(self) -> int:
        """Spikes, dips, shifts and one-step outliers found on the loss."""
        return sum(e.metric == "train_loss" and e.shape in ("spike", "outlier", "dip", "level_shift", "divergence") for e in self.events)

    @property
    def not_evaluated(self) -> list[Answer]:
        """Rules without their inputs."""
        return [a for a in self.answers if a.found is None]


def read_curves(
    curves: Curves,
    numbers: CurveSettings | None = None,
    *,
    optimizer: Optimizer | None = None,
    annotations: Sequence[Annotation] = (),
    checkpoints: Sequence[int] = (),
    description: str = "forensics.yaml",
    skip: Collection[str] = (),
    refit: int = 5,
) -> Reading:
    """Run every rule over the curves of one run.

    Args:
        curves: of one run.
        numbers: thresholds; None = the shipped ones.
        optimizer, annotations, checkpoints: what is known beside the curves.
        description: how the run is called in the replay command.
        skip: rules that are not asked.
        refit: records between two fits of a baseline, at least.
    """
    ctx = Context(curves, numbers or settings(), optimizer=optimizer, annotations=_with_steps(annotations, curves), checkpoints=checkpoints, refit=refit)
    found: list[Event] = []
    answers = []
    for name, which, rule in RULES:
        answer = rule(ctx) if name not in skip else "not asked"
        found.extend(replace(e, rule=name) for e in (answer if isinstance(answer, list) else []))
        answers.append(Answer(name, which, None if isinstance(answer, str) else len(answer), answer if isinstance(answer, str) else None))
    incidents = group(dedupe(found))
    judge(ctx, incidents)
    score = {s.metric: scores.spike_score(s.value) for s in curves if s.metric in ("train_loss", "grad_norm")}
    events = [e for members in incidents for e in members]
    for e in events:
        e.tokens, e.time = _place(ctx, e)
    return Reading(
        curves.run,
        events,
        verdicts(ctx, incidents, description),
        answers,
        panels(curves),
        score,
        _expected(ctx),
        law_of(ctx),
        kind_of_problem(events),
        recurrent(ctx, events),
        ctx,
    )


def _with_steps(annotations: Sequence[Annotation], curves: Curves) -> list[Annotation]:
    """Annotations by time get the first step logged at or after it."""
    timed: Series | None = next((s for s in curves if s.time is not None and len(s)), None)
    out = []
    for a in annotations:
        if a.step is None and a.time is not None and timed is not None and timed.time is not None:
            i = int(np.searchsorted(timed.time, a.time))
            a = Annotation(a.kind, a.text, int(timed.step[min(i, len(timed) - 1)]), a.time)
        out.append(a)
    return out


def _expected(ctx: Context) -> float | None:
    scan = ctx.scan("train_loss")
    if scan is None:
        return None
    quiet = (scan.event <= 0) & (np.arange(len(scan.y)) >= scan.first)
    rule = ctx.settings.loss
    return scores.expected_false(scan.z, quiet, rule.slack, rule.limit, rule.point, lag_one(scan.z[scan.event == 0]))


def event_table(readings: Sequence[Reading]) -> Events:
    """Events of one or several runs as the table `events`, ids from 0 in the table's order."""
    rows: list[tuple[Reading, Event]] = sorted(
        ((r, e) for r in readings for e in r.events), key=lambda p: (p[1].start, p[0].run, p[1].incident, p[1].metric, p[1].shape)
    )
    numbers: dict[tuple[str, int], int] = {}
    cols: dict[str, list[object]] = {c.name: [] for c in EVENTS.columns}
    for i, (reading, e) in enumerate(rows):
        checkpoint = max((c for c in reading.ctx.checkpoints if c < e.start), default=None)
        values: dict[str, object] = {
            "event_id": i,
            "incident": numbers.setdefault((reading.run, e.incident), len(numbers)),
            "run": reading.run,
            "metric": e.metric,
            "shape": e.shape,
            "level": e.level,
            "start": e.start,
            "peak": e.peak,
            "stop": e.stop,
            "tokens": e.tokens,
            "time": e.time,
            "checkpoint": checkpoint,
            "severity": e.severity,
            "height": e.height,
            "sigma": e.sigma,
            "residual": e.residual,
            "recovery": e.recovery,
            "cost": e.cost,
            "cause": e.cause,
            "subcause": e.subcause,
            "action": e.action,
            "confidence": e.confidence,
            "evidence": sorted(e.evidence.items()),
        }
        for name, value in values.items():
            cols[name].append(value)
    arrays = {c.name: pa.array(cols[c.name], pa.string() if pa.types.is_dictionary(c.type) else c.type) for c in EVENTS.columns}
    return Events(EVENTS.of(arrays))


def _place(ctx: Context, e: Event) -> tuple[int | None, int | None]:
    """Tokens and time at the start of an event, from its own curve or any that has them."""
    tokens = time = None
    for s in [x for x in (ctx.curves.get(e.metric), ctx.curves.get("train_loss"), *ctx.curves) if x is not None and len(x)]:
        i = s.at(e.start)
        if tokens is None and s.tokens is not None and s.tokens[i] != UNKNOWN:
            tokens = int(s.tokens[i])
        if time is None and s.time is not None and s.time[i] != UNKNOWN:
            time = int(s.time[i])
        if tokens is not None and time is not None:
            break
    return tokens, time


def read_runs(
    metrics: Metrics,
    numbers: CurveSettings | None = None,
    *,
    optimizer: Optimizer | None = None,
    annotations: Sequence[Annotation] = (),
    checkpoints: Sequence[int] = (),
    description: str = "forensics.yaml",
    known: Mapping[str, Series] | None = None,
    only: Sequence[str] | None = None,
) -> list[Reading]:
    """One reading per run in the table, in order of their names.

    `known`: what a replay knows of each step beside what was logged; `only`: names of the runs that are wanted.
    """
    return [
        read_curves(
            mix.with_mix(curves_of(metrics, run), known or {}),
            numbers,
            optimizer=optimizer,
            annotations=annotations,
            checkpoints=checkpoints,
            description=description,
        )
        for run in (runs_of(metrics) if only is None else only)
    ]


@stage(EVENTS, version=1)
def find_events(
    metrics: Metrics,
    numbers: CurveSettings | None = None,
    optimizer: Optimizer | None = None,
    annotations: Sequence[Annotation] = (),
    checkpoints: Sequence[int] = (),
) -> Events:
    """The events of every run in a metrics table.

    Args:
        metrics: every logged number.
        numbers: thresholds; None = the shipped ones.
        optimizer: time constants, schedule and clip as described.
        annotations: what people know; they explain events.
        checkpoints: steps that can be gone back to.
    """
    return event_table(read_runs(metrics, numbers, optimizer=optimizer, annotations=annotations, checkpoints=checkpoints))
