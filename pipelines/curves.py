"""Training logs to events and verdicts, of one run or of two that are compared.

    logs -> metrics -> curves -> rules -> incidents -> verdicts
    two runs -> residuals -> which peaks are the batch's

The tables `metrics`, `events` and `failures` and the answers of every rule land in the case folder.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from forensics.case import Case, open_case
from forensics.curves.annotations import read_annotations
from forensics.curves.compare import Comparison, compare, explain
from forensics.curves.event import Event
from forensics.curves.events import Reading, event_table, read_runs
from forensics.curves.mix import regressed, source_shares, step_statistics
from forensics.curves.perplexity import Levels, levels
from forensics.curves.read import LogsRead, duplicated, read_logs
from forensics.curves.series import Series, curves_of, runs_of
from forensics.curves.settings import CurveSettings, annotations_of, optimizer_of
from forensics.curves.stretches import read_long
from forensics.curves.verdicts import verdicts
from forensics.errors import ForensicsError, UsageError
from forensics.reports.curves import write_curves
from forensics.run import RunSpec
from forensics.schemas import CONSUMED, DOCUMENTS, EVENTS, FAILURES, METRICS, STEPS, Consumed, Documents, Events, Failures, Metrics, Steps


@dataclass(frozen=True)
class Known:
    """What is known beside the logs.

    Attributes:
        optimizer: as the run description says it.
        annotations: files of what people know.
        checkpoints: steps that can be gone back to.
        description: what to call the run in a replay command.
        tokenizer: of the run, for comparing levels.
        mix: case of a replay that knows which sources each step read.
    """

    optimizer: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    annotations: tuple[Path, ...] = ()
    checkpoints: tuple[int, ...] = ()
    description: str = "RUN"
    tokenizer: Path | None = None
    mix: Path | None = None


@dataclass(frozen=True)
class CurvesResult:
    """The answer.

    Attributes:
        readings: of the runs asked about; others: of the runs compared with.
        comparisons: each pair, or why it cannot be compared.
        levels: of each pair, whether their losses compare.
        metrics: as stored; of runs that are larger than memory an overview.
        events, failures: as stored.
        formats: file -> name of its source.
        numbers: rows of the stored table `metrics`.
    """

    readings: list[Reading]
    others: list[Reading]
    comparisons: list[Comparison | str]
    levels: list[Levels]
    metrics: Metrics
    events: Events
    failures: Failures
    formats: dict[str, str]
    numbers: int


def known_of(run: RunSpec) -> Known:
    """What a run description adds to its logs."""
    return Known(run.optimizer, run.annotations, run.checkpoints, str(run.file or run.folder), run.tokenizer)


def curves(
    case: Case,
    paths: Sequence[Path],
    settings: CurveSettings,
    *,
    against: Sequence[Path] = (),
    known: Known | None = None,
    columns: Mapping[str, str] | None = None,
    source: str | None = None,
    only: str | None = None,
) -> CurvesResult:
    """Read logs, find events, compare where asked, and store everything in the case.

    Args:
        case: where tables go.
        paths: logs of the run.
        settings: thresholds.
        against: logs of a second run.
        known: optimizer, annotations, checkpoints.
        columns: name in the log -> canonical metric.
        source: format of the files, where it is not recognised.
        only: name of the run, where the logs hold several.
    """
    known = known or Known()
    settings = _measured(settings, known)
    first, second = _names(paths, against)
    about = {
        "optimizer": optimizer_of(known.optimizer),
        "annotations": annotations_of(read_annotations(known.annotations)) if known.annotations else (),
        "checkpoints": known.checkpoints,
        "description": known.description,
        "known": _mix(known.mix),
    }
    with _scratch(case) as scratch:
        logs = read_logs(paths, first, columns, format=source, only=only, scratch=scratch / "logs")
        readings = _readings(logs, settings, about)
        other = read_logs(against, second, columns, format=source, scratch=scratch / "against") if against else None
        others = _readings(other, settings, {}) if other else []
        comparisons: list[Comparison | str] = []
        measured = [levels(r.ctx.curves, o.ctx.curves, settings.ruler, settings.against) for r in readings for o in others]
        if others:
            readings, comparisons = _compared(readings, others, measured, known.description)
        return _stored(case, logs, other, readings, others, comparisons, measured)


@contextmanager
def _scratch(case: Case) -> Iterator[Path]:
    """A folder beside the tables for logs that are larger than memory; gone afterwards.

    Raises:
        ForensicsError: it cannot be made, or its disk is full.
    """
    folder = case.path / ".slabs"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    except OSError as error:
        if error.errno is not None and not str(error.filename).startswith(str(case.path)):
            raise
        hint = "free space, or give a folder on another disk with `-o`"
        what = f"the records of a log that is larger than memory ({error.strerror or error})"
        raise ForensicsError(f"{error.filename or folder} cannot hold {what}", hint=hint) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _readings(logs: LogsRead, settings: CurveSettings, about: Mapping[str, Any]) -> list[Reading]:
    """One reading per run, in order of their names."""
    names = runs_of(logs.metrics)
    if not logs.long:
        return read_runs(logs.metrics, settings, **about)
    short = {r.run: r for r in read_runs(logs.metrics, settings, **about, only=[n for n in names if n not in logs.long])}
    return [short[n] if n in short else read_long(logs.long[n], curves_of(logs.metrics, n), settings, **about) for n in names]


def _measured(settings: CurveSettings, known: Known) -> CurveSettings:
    """The settings with the tokenizer of the run description, where they name none."""
    if settings.ruler.tokenizer is not None or known.tokenizer is None:
        return settings
    return msgspec.structs.replace(settings, ruler=msgspec.structs.replace(settings.ruler, tokenizer=str(known.tokenizer)))


def _mix(folder: Path | None) -> dict[str, Series]:
    """What a replay's case knows of each step."""
    if folder is None:
        return {}
    case = open_case(folder)
    found = source_shares(Consumed(case.get(CONSUMED)), Documents(case.get(DOCUMENTS)))
    return {**found, **(step_statistics(Steps(case.get(STEPS))) if case.has("steps") else {})}


def _compared(readings: list[Reading], others: list[Reading], measured: Sequence[Levels], description: str) -> tuple[list[Reading], list[Comparison | str]]:
    """Every run beside every other one; causes that a pair settles go into the events and verdicts."""
    out, comparisons = [], []
    pairs = iter(measured)
    for reading in readings:
        for other in others:
            apart = next(pairs)
            found = apart.sentence if apart.refused else compare(reading.ctx.curves, other.ctx.curves)
            comparisons.append(found)
            if isinstance(found, Comparison):
                explain(reading.events, found)
        by_incident: dict[int, list[Event]] = {}
        for e in reading.events:
            by_incident.setdefault(e.incident, []).append(e)
        out.append(dataclasses.replace(reading, verdicts=verdicts(reading.ctx, list(by_incident.values()), description)))
    return out, comparisons


def _stored(
    case: Case,
    logs: LogsRead,
    other: LogsRead | None,
    readings: list[Reading],
    others: list[Reading],
    comparisons: list[Comparison | str],
    measured: list[Levels],
) -> CurvesResult:
    parts = [logs.metrics, *([other.metrics] if other else []), *_regressed(readings)]
    metrics = Metrics(METRICS.concat(parts)) if len(parts) > 1 else logs.metrics
    failures = Failures(FAILURES.concat([logs.failures, other.failures])) if other else logs.failures
    events = event_table([*readings, *others])
    formats = {**logs.formats, **(other.formats if other else {})}
    if logs.long or (other and other.long):
        pieces = (read.pieces() for read in (logs, other) if read is not None)
        numbers = case.put_pieces(METRICS, itertools.chain(*pieces, _regressed(readings)))
        failures = Failures(FAILURES.concat([failures, *(_duplicates(read) for read in (logs, other) if read is not None)]))
    else:
        numbers = case.put(METRICS, metrics).num_rows
    case.put(EVENTS, events)
    case.put(FAILURES, failures)
    result = CurvesResult(readings, others, comparisons, measured, metrics, events, failures, formats, numbers)
    case.write_json("verdicts.json", summary(result))
    write_curves(case, known={"metrics": metrics})
    return result


def _duplicates(logs: LogsRead) -> Failures:
    """Steps logged more than once, of runs that are larger than memory."""
    found = [(run.files[0], *duplicated(run.duplicates)) for run in logs.long.values() if run.duplicates]
    columns = {"stage": ["read_metrics"] * len(found), "item": [f[0] for f in found], "error": [f[1] for f in found], "count": [f[3] for f in found]}
    return Failures(FAILURES.of(columns))


def _regressed(readings: list[Reading]) -> list[Metrics]:
    """Losses by source that were regressed from shares, as rows of the table `metrics`."""
    rows = [(r.run, name, s) for r in readings for name, s in regressed(r.ctx).items()]
    return [Metrics(METRICS.of({"run": [run] * len(s), "metric": [name] * len(s), "step": s.step, "value": s.value})) for run, name, s in rows]


def _names(paths: Sequence[Path], against: Sequence[Path]) -> tuple[str, str]:
    """Names of the two runs: of their files, or of the folders where the files are called alike."""
    if not against:
        return "run", "against"
    if {p.resolve() for p in paths} == {p.resolve() for p in against}:
        raise UsageError("a run was asked to be compared with itself", hint="give other logs after `--against`")
    a, b = _stem(paths[0]), _stem(against[0])
    if a == b:
        a, b = paths[0].resolve().parent.name or a, against[0].resolve().parent.name or b
    return (a, b) if a != b else (a, f"{b} (against)")


def _stem(path: Path) -> str:
    return path.name.split(".")[0] or path.name


def summary(result: CurvesResult) -> dict[str, Any]:
    """Everything but the numbers of the tables, as plain data."""
    return {
        "runs": [_reading(r) for r in result.readings],
        "against": [_reading(r) for r in result.others],
        "comparisons": [{"not_evaluated": c} if isinstance(c, str) else {**dataclasses.asdict(c), "verdict": c.verdict} for c in result.comparisons],
        "levels": [{**dataclasses.asdict(x), "sentence": x.sentence} for x in result.levels],
        "formats": result.formats,
    }


def _reading(r: Reading) -> dict[str, Any]:
    return {
        "run": r.run,
        "verdicts": [dataclasses.asdict(v) for v in r.verdicts],
        "rules": [dataclasses.asdict(a) for a in r.answers],
        "not_evaluated": [{"what": a.rule, "why": a.reason} for a in r.not_evaluated],
        "panels": [{"panel": p.name, "present": list(p.present), "missing": [{"what": w, "why": y} for w, y in p.missing]} for p in r.panels],
        "spike_score": r.spike_score,
        "summary": r.summary,
        "recurrent": r.recurrent,
        "reading": r.reading,
        "law": {"not_evaluated": r.law} if isinstance(r.law, str) else {**dataclasses.asdict(r.law), "ok": r.law.ok},
        "loss_events_found": r.loss_events,
        "loss_events_expected_from_noise": r.expected_false,
    }
