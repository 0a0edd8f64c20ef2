"""Runs that are too long to be read at once: every stretch by itself at full resolution, and the whole as an overview of every k-th step.

A stretch tells what happens at a moment: its events are exact to the step. The overview tells what takes longer than a stretch can show: trends, plateaus,
slow climbs, the law of the loss. Where both see one event, its place comes from the stretch, and how it ended from whichever saw the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from forensics.curves.event import Event
from forensics.curves.events import Answer, Reading, read_curves
from forensics.curves.incidents import dedupe, group
from forensics.curves.mix import with_mix
from forensics.curves.series import Curves, Series, curves_of
from forensics.curves.settings import Annotation, CurveSettings, Optimizer
from forensics.curves.slabs import OVERLAP, LongRun
from forensics.curves.verdicts import verdicts
from forensics.curves.whole import kind_of_problem, recurrent

SLOW = {
    "drift",
    "divergence",
    "plateau",
    "plateau_capacity",
    "lr_descent",
    "regressed_domains",
    "noise_growth",
    "schedule_mismatch",
    "warmup_short",
    "slow_rank",
    "length_driven",
    "memory_leak",
    "memory_near_limit",
    "val_gap",
    "short_log",
}
"""Rules about the whole run: the overview answers them, a stretch is not asked."""
LASTING = {"periodic", "throughput_sawtooth", "memory_periodic", "clip_fault", "stuck"}
"""Shapes that every stretch finds anew while they last."""
BRIEF = {"outlier", "gap", "batch_change", "lr_jump", "nonfinite", "norm_spike", "scale_collapse", *LASTING} - {"clip_fault"}
"""Shapes that a log of every k-th step shows by chance or not at all: a stretch is asked alone."""
REFIT = 50
"""Records between two fits of a baseline in a stretch: its slope does not change faster."""


def read_long(
    run: LongRun,
    overview: Curves,
    numbers: CurveSettings,
    *,
    optimizer: Optimizer | None = None,
    annotations: Sequence[Annotation] = (),
    checkpoints: Sequence[int] = (),
    description: str = "forensics.yaml",
    known: Mapping[str, Series] | None = None,
) -> Reading:
    """Run every rule over a run that is on disk; arguments as for `events.read_curves`.

    Args:
        run: its records.
        overview: its curves at every k-th step.
    """

    def read(curves: Curves, skip: Iterable[str] = ()) -> Reading:
        return read_curves(
            with_mix(curves, known or {}),
            numbers,
            optimizer=optimizer,
            annotations=annotations,
            checkpoints=checkpoints,
            description=description,
            skip=set(skip),
            refit=REFIT if skip else 5 if run.every == 1 else REFIT // 2,
        )

    whole = read(overview)
    if run.every == 1:
        return whole
    exact: list[Event] = []
    evaluated: set[str] = set()
    expected, scores, n = 0.0, Counter[str](), 0
    used: set[int] = set()
    for metrics, lo, hi in run.stretches():
        part = read(curves_of(metrics, run.name), SLOW)
        last = max(int(s.step[-1]) for s in part.ctx.curves if len(s))
        exact += [_placed(e, whole.events, last, run, used) for e in part.events if lo <= e.start < hi]
        evaluated |= {a.rule for a in part.answers if a.found is not None}
        expected += (part.expected_false or 0.0) * (hi - lo) / max(1, last + 1 - lo)
        scores.update({name: score for name, score in part.spike_score.items() if score is not None})
        n += 1
    events = _joined(exact) + [w for w in whole.events if id(w) not in used and _counts(w, exact, run)]
    incidents = group(dedupe(events))
    events = [e for members in incidents for e in members]
    return replace(
        whole,
        events=events,
        verdicts=verdicts(whole.ctx, incidents, description),
        answers=_answers(whole.answers, evaluated, events),
        spike_score={name: scores[name] / n if name in scores else score for name, score in whole.spike_score.items()},
        expected_false=None if whole.expected_false is None else expected,
        summary=kind_of_problem(events),
        recurrent=recurrent(whole.ctx, events),
        reading=f"{run.records:,} records: each was read, in {n} stretches; what takes longer than a stretch is read on every {run.every}th of them",
    )


def _placed(e: Event, whole: Sequence[Event], last: int, run: LongRun, used: set[int]) -> Event:
    """An event of a stretch; where the stretch ended before it did, with the end that the overview saw.

    Args:
        e: the event.
        whole: those of the overview.
        last: step that the stretch saw last.
        run: for its rhythm.
        used: of the overview's, those that are told by a stretch.
    """
    twins = [w for w in whole if w.metric == e.metric and abs(w.start - e.start) <= 4 * run.every * run.cadence and _alike(w, e)]
    used |= {id(w) for w in twins}
    end = next((w for w in twins if w.shape not in BRIEF), None)
    if end is None or last - e.last > 20 * run.cadence:
        return e
    names = ("shape", "level", "severity", "residual", "recovery", "cost", "cause", "subcause", "action", "confidence", "stop")
    return replace(e, **{name: getattr(end, name) for name in names}, evidence={**e.evidence, **end.evidence})


def _counts(w: Event, exact: Sequence[Event], run: LongRun) -> bool:
    """Whether an event of the overview that no stretch tells is one: its rule looks at the whole, or it lasts longer than a stretch looks."""
    if w.rule in SLOW:
        return True
    if w.shape in BRIEF or w.last - w.start <= OVERLAP * run.cadence:
        return False
    return not any(e.metric == w.metric and _alike(e, w) and e.start <= w.last and e.last >= w.start for e in exact)


def _alike(a: Event, b: Event) -> bool:
    """Whether two events are of one shape or go the same way."""
    return a.shape == b.shape or (a.height or 0.0) * (b.height or 0.0) > 0


def _joined(events: Sequence[Event]) -> list[Event]:
    """One event of what goes on from stretch to stretch."""
    out: list[Event] = []
    before: dict[tuple[str, str, str | None], Event] = {}
    for e in sorted(events, key=lambda e: e.start):
        key = (e.metric, e.shape, e.subcause)
        old, period = before.get(key), e.evidence.get("period", 0.0)
        if e.shape in LASTING and old is not None and e.start <= old.last + 2 * period + 1 and abs(period - old.evidence.get("period", 0.0)) <= 0.02 * period:
            old.stop = max(old.stop or 0, e.stop or 0)
            old.evidence |= {k: old.evidence.get(k, 0.0) + e.evidence[k] for k in ("hits", "records") if k in e.evidence}
            continue
        out.append(e)
        before[key] = e
    return out


def _answers(answers: Sequence[Answer], evaluated: set[str], events: Sequence[Event]) -> list[Answer]:
    """What each rule said of the whole run."""
    found = Counter(e.rule for e in events)
    return [replace(a, found=found[a.rule], reason=None) if a.found is not None or a.rule in evaluated else a for a in answers]
