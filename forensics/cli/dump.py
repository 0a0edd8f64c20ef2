"""`forensics dump`: the very batches of some steps, to run them again."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from forensics.cli.common import AnswerFormat, AnswerFormatOption, LaunchOption, Progress, RunArgument, SetOption, StepsOption, print_json, print_rows, say


class SplitName(StrEnum):
    """Which data set of the run."""

    train = "train"
    valid = "valid"
    test = "test"


def command(
    run: RunArgument = None,
    steps: StepsOption = ...,  # type: ignore[assignment]
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.", show_default=False)] = ...,  # type: ignore[assignment]
    launch: LaunchOption = None,
    split: Annotated[SplitName, typer.Option("--split", help="Training steps, or batches of an evaluation split, numbered from 1.")] = SplitName.train,
    text: Annotated[bool, typer.Option("--text/--no-text", help="Write the decoded text too.")] = True,
    settings: SetOption = None,
    form: AnswerFormatOption = AnswerFormat.table,
) -> None:
    """Write the batches of some steps: sequences.npz, .bin/.idx, .jsonl, consumed.parquet."""
    from forensics.errors import RunError
    from forensics.pipelines.dump import plan_dump, write_dump
    from forensics.pipelines.verify import identities
    from forensics.run import open_run
    from forensics.steps import parse_steps

    described = open_run(run, settings or ())
    chosen = parse_steps(steps)
    dump = plan_dump(described, chosen, launch, split.value)
    what = "steps" if split is SplitName.train else f"{split.value} batches"
    size = (
        f", {dump.sequences:,} sequences of {dump.view.width:,} tokens, {dump.sequences * dump.view.width * 4 / 1e6:,.1f} MB"
        if dump.sequences is not None
        else ""
    )
    say(f"{len(chosen):,} {what}, first {chosen.start}, last {chosen.last}{size}")
    for part, who in getattr(dump.loader, "ran_twice", lambda *_: [])(described, chosen) if split is SplitName.train else []:
        taken = launch if launch is not None else who[-1]
        say(f"steps {part.start} to {part.last} were run by launches {', '.join(map(str, who))}; taken from launch {taken} (--launch chooses)")
    identity, agrees = identities(dump.loader, described)
    if agrees is False:
        raise RunError(f"these are not the batches of the run ({identity})", hint="`forensics verify` shows every check")
    say(identity)
    counts = write_dump(dump, output, text=text, progress=Progress("sequences", dump.sequences or 1))
    for note in dump.notes():
        say(f"note: {note}")
    if form is AnswerFormat.json:
        print_json({**counts, "folder": str(output)})
    else:
        print_rows(["sequences", "segments", "tokens"], [[counts["sequences"], counts["segments"], counts["tokens"]]])
    say(str(output))
