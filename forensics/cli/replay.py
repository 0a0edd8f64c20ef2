"""`forensics replay`: what some steps consumed, whether it did harm, and what to skip."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forensics.cli.common import (
    PULSE,
    AnswerFormat,
    AnswerFormatOption,
    CaseOption,
    ConfigOption,
    LaunchOption,
    Progress,
    RunArgument,
    SetOption,
    StepsOption,
    answer,
    compile_ahead,
    print_json,
    say,
)

if TYPE_CHECKING:
    from forensics.pipelines.replay import Outcome, Plan


class Dtype(StrEnum):
    """Types of weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Masks(StrEnum):
    """What a label may see."""

    document = "document"
    row = "row"


def command(
    context: typer.Context,
    run: RunArgument = None,
    steps: StepsOption = ...,  # type: ignore[assignment]
    output: CaseOption = None,
    launch: LaunchOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    experiment: Annotated[
        list[str] | None, typer.Option(metavar="NAME=LOG", help="Log of a rerun by its name in the plan: replay, removal or control.", show_default=False)
    ] = None,
    model: Annotated[Path | None, typer.Option(help="Score documents with this causal model: a folder or a .gguf file.", show_default=False)] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of the model's weights.")] = Dtype.float32,
    score_tokens: Annotated[int, typer.Option(help="Tokens to score at most.")] = 1 << 21,
    masks: Annotated[Masks, typer.Option(help="Score each document alone, or rows as a run without masks saw them.")] = Masks.document,
    scored_at: Annotated[int | None, typer.Option(help="The model is this run's checkpoint of this step.", show_default=False)] = None,
    fail_on: Annotated[str | None, typer.Option(help="Causes for which to exit with 3: `data,loader`.", show_default=False)] = None,
    form: AnswerFormatOption = AnswerFormat.table,
) -> None:
    """Reconstruct what the steps consumed, find what is wrong with it, and say what to do."""
    from forensics.case import case_for
    from forensics.config import read_yaml
    from forensics.pipelines.replay import plan_replay, read_config, replay
    from forensics.pipelines.scoring import Scoring
    from forensics.run import open_run
    from forensics.steps import parse_steps

    window, failing = parse_steps(steps), causes_of(fail_on or "")
    opened = open_run(run, settings or ())
    chosen = read_config(read_yaml(config) if config else {}, str(config))
    reruns = experiments_of(experiment or [])
    scoring = Scoring(model, dtype.value, score_tokens, masks.value, scored_at) if model else None
    compile_ahead(context, "replay")
    plan = plan_replay(opened, window, chosen, launch)
    folder = output or Path("case") / f"{opened.name}-{window.start}-{window.stop}"
    show_plan(plan)
    case = case_for("replay", folder, PULSE.at)
    case.info["set"] = list(settings or ())
    bars: dict[str, Progress] = {}
    outcome = replay(case, plan, chosen, lambda label, done, total: bars.setdefault(label, Progress(label, total))(done), reruns, scoring)
    if form is AnswerFormat.json:
        print_json(outcome.verdict)
    else:
        show_outcome(outcome, folder)
    if outcome.verdict["cause"] in failing:
        say(f"--fail-on: {outcome.verdict['cause']}")
        raise typer.Exit(3)


def causes_of(text: str) -> set[str]:
    """Causes named by `--fail-on`.

    Raises:
        UsageError: a word that is no cause.
    """
    from forensics.attribution.verdict import SAID as CAUSES
    from forensics.errors import UsageError, nearest

    words = {w.strip() for w in text.split(",") if w.strip()}
    for word in sorted(words - set(CAUSES)):
        raise UsageError(f"`--fail-on {word}` is no cause{nearest(word, CAUSES)}", hint=f"causes: {', '.join(CAUSES)}")
    return words


def experiments_of(texts: list[str]) -> dict[str, Path]:
    """Logs of reruns by the name of the experiment.

    Raises:
        UsageError: a name that no plan has, one given twice, or no such file.
    """
    from forensics.attribution.plan import NAMES
    from forensics.errors import UsageError, nearest

    found: dict[str, Path] = {}
    for text in texts:
        name, equal, path = text.partition("=")
        if not equal or not path or not Path(path).exists():
            raise UsageError(f"`--experiment {text}` names no file", hint="write --experiment replay=LOG")
        if name not in NAMES:
            raise UsageError(f"no experiment is called `{name}`{nearest(name, NAMES)}", hint=f"the plan knows {', '.join(NAMES)}")
        if name in found:
            raise UsageError(f"the experiment `{name}` is given twice", hint="give one log, a folder, or a file that holds both")
        found[name] = Path(path)
    return found


def show_plan(plan: Plan) -> None:
    """What will be read, before it is."""
    r, width = plan.ranges, plan.row_tokens
    size = f"{len(plan.window)} steps, {plan.sequences:,} sequences, {plan.sequences * width:,} tokens"
    say(f"run {plan.run.name} ({' '.join(filter(None, (plan.run.trainer, plan.run.version)))}), launch {plan.launch}: steps {plan.window} = {size}")
    roles = [f"{name} {steps}" for name, steps in (("baseline", r.baseline), ("look-back", r.lookback), ("after", r.after)) if steps is not None]
    total = int(plan.facts.sequences.sum())
    read = r.window if plan.every == 1 else plan.whole
    whole = int(plan.facts.sequences[(plan.facts.step >= read.start) & (plan.facts.step < read.stop)].sum())
    tokens = (whole + (total - whole) // plan.every) * width
    sampled = f" (every {plan.every}th sequence outside steps {plan.whole})" if plan.every > 1 else ""
    say(f"compared with {', '.join(roles)}{sampled}; {tokens:,} tokens in all" if roles else "nothing to compare with can be read")
    for note in plan.notes:
        say(f"note: {note}")


def show_outcome(outcome: Outcome, folder: Path) -> None:
    """The answer, its evidence, the action, the paths."""
    from forensics.reports.summary import verdict_lines

    say(outcome.identity)
    if outcome.verdict["proof"]["steps"]:
        say(outcome.verdict["proof"]["sentence"])
    if outcome.unchanged:
        say("nothing has changed since this case was written: its answer is read back")
    for line in verdict_lines(outcome.verdict):
        answer(line)
    manifest, trip = outcome.manifest, outcome.trip
    if outcome.refusal:
        answer(outcome.refusal)
    if manifest is not None:
        if manifest.flags:
            shown = manifest.flags if len(manifest.flags) < 300 else manifest.flags[:300] + " ..."
            answer(f"skip list: {shown}")
        for line in manifest.says[:1]:
            answer(f"  {line}")
        if trip is not None and trip.dropped:
            fall = f"{len(trip.dropped)} steps fall out with {trip.guilty_tokens:,} guilty and {trip.clean_tokens:,} other tokens"
            answer(f"  round trip: {fall}; {trip.guilty_left:,} guilty tokens stay in the steps read")
        answer(f"  in full: {folder / 'manifest'}")
    answer(f"case: {folder}   look in: forensics show {folder}")
