"""`forensics curves`: what training logs say by themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from forensics.cli.common import CaseOption, ConfigOption, Format, FormatOption, RuleOption, answer, compile_ahead, print_json, print_rows, print_table, say

if TYPE_CHECKING:
    from forensics.curves.events import Reading
    from forensics.curves.verdicts import Verdict
    from forensics.pipelines.curves import CurvesResult

SHOWN = 24


class CommandClass(TyperCommand):
    """Lets `--against` take several files, up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the option's name before every file that follows it."""
        out: list[str] = []
        taking = fresh = False
        for word in args:
            if word.startswith("-") and len(word) > 1:
                taking = fresh = word == "--against"
                out.append(word)
            elif taking and not fresh:
                out += ["--against", word]
            else:
                out.append(word)
                fresh = False
        return super().parse_args(ctx, out)


def command(
    context: typer.Context,
    logs: Annotated[list[Path], typer.Argument(help="Logs of one run, any trainer's: files or folders.")],
    case: CaseOption = None,
    against: Annotated[list[Path] | None, typer.Option(help="Logs of a second run to compare with; several may follow.", show_default=False)] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Run description: optimizer, annotations, checkpoints.", show_default=False)] = None,
    annotations: Annotated[list[Path] | None, typer.Option(help="What people know: a file with step or time, kind, text.", show_default=False)] = None,
    mix: Annotated[
        Path | None, typer.Option("--case", help="Case of a replay: its shares of sources in each step give losses by source.", show_default=False)
    ] = None,
    column: Annotated[list[str] | None, typer.Option(help="What a column holds: --column 'train/ce=train_loss'.", show_default=False)] = None,
    source: Annotated[str | None, typer.Option(help="Format of the files, where it is not recognised.", show_default=False)] = None,
    only: Annotated[str | None, typer.Option(help="One run of several in the logs, by its name.", show_default=False)] = None,
    fail_on: Annotated[str | None, typer.Option(help="Exit 3 where such a shape or severity is found: level_shift,diverging.", show_default=False)] = None,
    config: ConfigOption = None,
    settings: RuleOption = None,
    form: FormatOption = Format.table,
) -> None:
    """Find events on training curves and say what they mean."""
    from forensics.case import case_for
    from forensics.config import overrides, read_yaml
    from forensics.curves.settings import settings as curve_settings
    from forensics.pipelines.curves import curves, summary

    wanted = _wanted(fail_on)
    numbers = curve_settings(overrides(settings or []), [read_yaml(config)] if config else [])
    out = case or Path("curves-case")
    written = case_for("curves", out)
    say(f"{len(logs)} log{'s' if len(logs) != 1 else ''}" + (f" against {len(against)}" if against else ""))
    compile_ahead(context, "curves")
    result = curves(written, logs, numbers, against=against or (), known=_known(run, annotations, mix), columns=_columns(column), source=source, only=only)
    _say_read(result)
    if form is Format.json:
        print_json({**summary(result), "events": [{**row, "evidence": dict(row["evidence"] or [])} for row in result.events.to_pylist()]})
    elif form is Format.csv:
        print_table(result.events, form, [c for c in result.events.column_names if c != "evidence"])
    else:
        for reading in result.readings:
            show(reading)
        show_comparisons(result)
    written.close(command="curves", logs=[str(p) for p in logs], against=[str(p) for p in against or []], formats=result.formats)
    say(f"case: {out}")
    if hits := _hits(result, wanted):
        say(f"--fail-on: {', '.join(hits)}")
        raise typer.Exit(3)


def _known(run: Path | None, annotations: list[Path] | None, mix: Path | None) -> Any:
    """What a run description and annotation files add."""
    import dataclasses

    from forensics.pipelines.curves import Known, known_of
    from forensics.run import open_run

    known = known_of(open_run(run)) if run is not None else Known()
    return dataclasses.replace(known, annotations=(*known.annotations, *(annotations or ())), mix=mix)


def _columns(given: list[str] | None) -> dict[str, str]:
    from forensics.errors import UsageError

    out = {}
    for text in given or []:
        name, equal, metric = text.rpartition("=")
        if not equal:
            raise UsageError(f"`--column {text}` has no `=`", hint="write --column 'name in the log=train_loss'")
        out[name] = metric
    return out


def _wanted(text: str | None) -> set[str]:
    """Shapes and severities named by `--fail-on`."""
    from forensics.curves.incidents import RANK
    from forensics.errors import UsageError, nearest

    severities = ("returned", "slow", "level_shift", "diverging", "unknown")
    words = {w.strip() for w in (text or "").split(",") if w.strip()}
    for word in sorted(words):
        if word not in RANK and word not in severities:
            hint = f"shapes: {', '.join(sorted(RANK))}; severities: {', '.join(severities)}"
            raise UsageError(f"`--fail-on {word}` is no shape or severity{nearest(word, [*RANK, *severities])}", hint=hint)
    return words


def _hits(result: CurvesResult, wanted: set[str]) -> list[str]:
    """What of it was found: shapes at any level, severities of alarms."""
    found: set[str] = set()
    for reading in result.readings:
        for e in reading.events:
            found |= {e.shape} & wanted
            if e.level == "alarm" and e.severity:
                found |= {e.severity} & wanted
    return sorted(found)


def _say_read(result: CurvesResult) -> None:
    for path, name in result.formats.items():
        say(f"  {path}: {name}")
    for row in result.failures.to_pylist()[:5]:
        say(f"  {row['item']}: {row['error']} ({row['count']} times)")
    say(f"{result.numbers:,} numbers")


def show(reading: Reading) -> None:
    """One run on the terminal: the loss, the incidents, what to do, what is missing."""
    from forensics.reports.terminal import plot

    plain = not (sys.stdout.encoding or "").lower().startswith("utf")
    loss = reading.ctx.curves.get("train_loss")
    if loss is not None and len(loss):
        alarms = [v.start for v in reading.verdicts if v.level == "alarm"]
        answer(f"{reading.run}: train_loss, {len(loss):,} records, steps {loss.step[0]}-{loss.step[-1]}")
        for line in plot(loss.step.astype(float), loss.value, marks=alarms, plain=plain, clip=0.02 if len(loss) > 200 else 0.0):
            answer(line)
    alarms_first = sorted(reading.verdicts, key=lambda v: (v.level != "alarm", v.start))
    if alarms_first:
        answer()
        rows = [_row(reading, v, plain) for v in alarms_first[:SHOWN]]
        print_rows(["level", "steps", "shape", "metric", "around it", "severity", "cause", "sure", "height", "sd", "cost"], rows)
        if len(alarms_first) > SHOWN:
            answer(f"({len(alarms_first) - SHOWN} more notices, all of them in tables/events.parquet)")
    else:
        answer("no events")
    for v in (v for v in alarms_first if v.level == "alarm"):
        answer()
        answer(v.sentence)
        answer(f"  do: {v.action}")
        if v.checkpoint is not None:
            answer(f"  checkpoint before it: {v.checkpoint}")
        if v.replay:
            answer(f"  was it the data? {v.replay}")
    answer()
    _show_numbers(reading)


def _row(reading: Reading, v: Verdict, plain: bool) -> list[Any]:
    from forensics.reports.terminal import sparkline

    series = reading.ctx.curves.get(v.metric)
    picture = ""
    if series is not None:
        i, j = series.at(v.start), series.at(v.stop)
        margin = max(20, (j - i) // 2)
        picture = sparkline(series.value[max(0, i - margin) : j + margin + 1], 16, plain)
    lead = next((e for e in reading.events if e.incident == v.incident and e.start == v.start and e.shape == v.shape), None)
    steps = f"{v.start}" if v.stop - v.start <= 1 else f"{v.start}-{v.stop - 1}"
    cause = v.cause if not v.subcause else f"{v.cause}: {v.subcause}"
    height, sd = (None, None) if lead is None else (lead.height, None if lead.sigma is None else round(lead.sigma, 1))
    return [v.level, steps, v.shape, v.metric, picture, v.severity, cause, v.confidence, height, sd, None if v.cost is None else round(v.cost)]


def _show_numbers(reading: Reading) -> None:
    answer(f"in short: {reading.summary}")
    if reading.reading:
        answer(reading.reading)
    if reading.recurrent:
        answer(reading.recurrent)
    if not isinstance(reading.law, str) and reading.law.ok:
        answer(f"the loss follows {reading.law.floor:.3g} + {reading.law.factor:.3g} D^-{reading.law.exponent:.3f} (R2 {reading.law.r2:.4f})")
    if reading.expected_false is not None:
        answer(f"loss events found: {reading.loss_events}; noise alone would give about {reading.expected_false:.1f} on a curve of this length")
    for metric, score in reading.spike_score.items():
        if score is not None:
            answer(f"spike score of {metric} (7 sd over the last 1000): {100 * score:.3f} %")
    for p in reading.panels:
        missing = "; ".join(f"no {what}: {why}" for what, why in p.missing)
        answer(f"{p.name}: {', '.join(p.present) or 'nothing logged'}" + (f". {missing}" if missing else ""))
    reasons: dict[str, list[str]] = {}
    for a in reading.not_evaluated:
        reasons.setdefault(a.reason or "", []).append(a.rule)
    answer("not evaluated: " + ("; ".join(f"{', '.join(rules)} ({reason})" for reason, rules in reasons.items()) or "nothing"))


def show_comparisons(result: CurvesResult) -> None:
    """What two runs have in common."""
    for c in result.comparisons:
        answer()
        if isinstance(c, str):
            answer(f"not compared: {c}")
            continue
        answer(c.verdict)
        for s in c.stretches if len(c.stretches) > 1 else []:
            answer(f"  steps {s.start}-{s.stop - 1}: {'same batches' if s.agree else 'different batches'} (r = {s.r:.3f})")
        if c.common:
            answer(f"  peaks of both, the batch's: {', '.join(map(str, c.common[:20]))}" + (f" and {len(c.common) - 20} more" if len(c.common) > 20 else ""))
        for name, own in ((c.a, c.only_a), (c.b, c.only_b)):
            if own:
                answer(f"  peaks of {name} alone, its state's: {', '.join(map(str, own[:20]))}" + (f" and {len(own) - 20} more" if len(own) > 20 else ""))
        if c.gain > 1:
            answer(f"  noise shrinks {c.gain:.1f} times when one is subtracted from the other")
    for x in result.levels:
        if not x.refused:
            answer(x.sentence)
