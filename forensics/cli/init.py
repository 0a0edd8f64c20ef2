"""`forensics init`: a first forensics.yaml from checkpoints, logs and the launch script of a Megatron run, or the save folder of another trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forensics.cli.common import answer, say


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Checkpoint folders, logs, and the launch script, in any order; or the save folder of OLMo-core, OLMo or the HF Trainer.", show_default=False
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("forensics.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a first run description with the launches that checkpoints and logs show."""
    from forensics.errors import ForensicsError, UsageError
    from forensics.files import write_text
    from forensics.loaders.folders import describe_folder, trainer_in
    from forensics.loaders.megatron.init import draft
    from forensics.run import open_run

    if output.is_dir():
        output = output / "forensics.yaml"
    if output.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{output} is no name of a run description", hint="descriptions end in .yaml: `-o forensics.yaml`, or give a folder that is there")
    if output.exists() and not force:
        raise UsageError(f"{output} exists already", hint="give another file with `-o`, or `--force` to overwrite it")
    if len(paths) == 1 and paths[0].is_dir() and trainer_in(paths[0]):
        text, notes = describe_folder(paths[0], output.parent)
        write_text(output, text)
    else:
        found = draft(paths, output.parent)
        write_text(output, found.text)
        notes = list(found.notes)
        for number, one in enumerate(found.launches):
            last = f" to {one.last_step}" if one.last_step is not None else ""
            say(f"launch {number}: after step {one.after_step}{last}, from {one.origin or 'nothing'}" + (f" ({one.note})" if one.note else ""))
    for note in notes:
        say(f"note: {note}")
    try:
        run = open_run(output)
    except ForensicsError as error:
        say("the description is not complete yet:")
        say(error.text())
    else:
        for note in run.notes:
            say(f"note: {note}")
    answer(str(output))
