"""A whole run looked back on: its curves, then a replay of every incident that matters, and one summary.

logs -> curves -> incidents -> for each: what the steps read -> verdict -> skip list
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from forensics.pipelines.curves import CurvesResult, curves, known_of
from forensics.pipelines.replay import ReplayConfig, plan_replay, replay

from forensics.case import Case
from forensics.curves.settings import CurveSettings
from forensics.curves.verdicts import Verdict
from forensics.errors import ForensicsError, UsageError
from forensics.files import write_text
from forensics.run import RunSpec
from forensics.steps import StepRange

LONGEST = 256  # steps of an incident that are replayed; what follows is its consequence
Say = Callable[[str], None]


@dataclass(frozen=True)
class Incident:
    """One incident of the curves and what its replay said.

    Attributes:
        steps: replayed; null where nothing was.
        start, stop, shape, metric, severity, curve_cause, cost: as the curves have it.
        cause, confidence, sentence, action: of the replay, else of the curves.
        skip: what to give to the trainer, as far as there is something.
        case: folder of the replay.
        why_not: why it was not replayed.
    """

    start: int
    stop: int
    shape: str
    metric: str
    severity: str | None
    curve_cause: str | None
    cost: float | None
    cause: str | None
    confidence: str | None
    sentence: str
    action: str | None
    steps: str | None = None
    skip: str | None = None
    case: str | None = None
    why_not: str | None = None


@dataclass(frozen=True)
class Summary:
    """The answer: incidents in order of time, what was passed over, and the reading of the curves."""

    incidents: tuple[Incident, ...]
    passed_over: int
    curves: CurvesResult


def postmortem(
    folder: Path,
    logs: Sequence[Path],
    run: RunSpec,
    settings: CurveSettings,
    config: ReplayConfig,
    most: int = 5,
    say: Say = lambda line: None,
) -> Summary:
    """Read the logs, choose the incidents that matter, replay them, and write `postmortem.json` and `README.txt`.

    Args:
        folder: one case for the curves and one per incident land in it.
        logs: of the run; its own where none are given.
        run: the description.
        settings: thresholds of the curves.
        config: of the replays.
        most: incidents to replay.
        say: told what is being done.

    Raises:
        UsageError: no logs.
    """
    paths = tuple(logs) or run.metrics or run.logs
    if not paths:
        raise UsageError("a post-mortem needs the run's logs", hint="give them, or `metrics:` in the description")
    run = replace(run, metrics=paths)
    case = Case(folder / "curves")
    found = curves(case, paths, settings, known=known_of(run))
    case.close(command="curves", logs=[str(p) for p in paths], formats=found.formats)
    wanted = chosen([v for reading in found.readings for v in reading.verdicts], most)
    alarms = sum(v.level == "alarm" for reading in found.readings for v in reading.verdicts)
    say(f"{alarms} incidents raise an alarm, {len(wanted)} are replayed")
    done = Summary(tuple(_replayed(folder, run, v, config, say) for v in wanted), alarms - len(wanted), found)
    whole = Case(folder)
    whole.write_json("postmortem.json", {"incidents": [asdict(i) for i in done.incidents], "passed_over": done.passed_over})
    write_text(folder / "README.txt", "\n".join(lines(done)) + "\n")
    return done


def chosen(verdicts: Sequence[Verdict], most: int) -> list[Verdict]:
    """Alarms whose cause the data may hold, the costliest first taken, in order of time; overlapping ones once."""
    alarms = [v for v in verdicts if v.level == "alarm" and v.metric.startswith("train_loss")] or [v for v in verdicts if v.level == "alarm" and v.replay]
    ranked = sorted(alarms, key=lambda v: (-(v.cost or 0.0), v.start))
    out: list[Verdict] = []
    for v in ranked:
        if len(out) < most and not any(v.start < o.stop and o.start < v.stop for o in out):
            out.append(v)
    return sorted(out, key=lambda v: v.start)


def _replayed(folder: Path, run: RunSpec, v: Verdict, config: ReplayConfig, say: Say) -> Incident:
    stop = min(max(v.stop, v.start + 1), v.start + LONGEST)
    base = Incident(v.start, v.stop, v.shape, v.metric, v.severity, v.cause, v.cost, v.cause, v.confidence, v.sentence, v.action)
    window = StepRange(max(1, v.start), max(2, stop))
    where = folder / f"steps-{window.start}-{window.stop}"
    say(f"steps {window}: {v.shape}")
    try:
        outcome = replay(Case(where), plan_replay(run, window, config), config)
    except ForensicsError as error:
        return replace(base, why_not=error.message)
    verdict: dict[str, Any] = outcome.verdict
    skip = outcome.manifest.flags if outcome.manifest and outcome.manifest.flags else None
    return replace(
        base,
        severity=verdict["severity"] if verdict["severity"] != "unknown" else v.severity,
        cause=verdict["cause"] if verdict["cause"] != "undetermined" else v.cause,
        confidence=verdict["confidence"],
        sentence=verdict["sentence"],
        action=verdict["action"],
        steps=str(window),
        skip=skip,
        case=where.name,
    )


def recurring(incidents: Sequence[Incident]) -> list[str]:
    """Settings are the answer to spikes that come again only where no replay found dirty documents, a fault of the order or a changed mix."""
    looked = [i for i in incidents if i.case is not None]
    if len(looked) < 2 or len(looked) < len(incidents) or any(i.cause in {"data", "loader", "composition", "hardware"} for i in looked):
        return []
    return [f"{len(looked)} incidents, none of them the data, the order or the mix: lower the learning rate; then, apart from it, the gradient clip"]


def lines(done: Summary) -> list[str]:
    """The summary for people."""
    if not done.incidents and done.passed_over:
        return [f"none of {done.passed_over} alarms is of the kind that data cause, so none was replayed: `forensics show` on the case `curves` lists them"]
    if not done.incidents:
        return ["no incident raises an alarm; what some steps consumed: `forensics replay --steps START:STOP`"]
    out = []
    for n, i in enumerate(done.incidents, 1):
        cost = f", about {i.cost:.0f} steps lost" if i.cost else ""
        out.append(f"{n}. steps {i.start} to {i.stop - 1}: {i.shape} of {i.metric}, {i.severity or 'severity unknown'}{cost}")
        out.append(f"   cause: {i.cause or 'undetermined'} ({i.confidence or 'low'} confidence): {i.sentence}")
        if i.action:
            out.append(f"   do: {i.action}")
        if i.skip:
            out.append(f"   skip list: {i.skip if len(i.skip) < 200 else i.skip[:200] + ' ...'}")
        out.append(f"   case: {i.case}" if i.case else f"   not replayed: {i.why_not}")
    out += recurring(done.incidents)
    if done.passed_over:
        out.append(f"({done.passed_over} more alarms were not replayed; --most N replays more)")
    return out
