"""`forensics postmortem`: a whole run looked back on, from its logs to the documents behind every incident."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from forensics.cli.common import AnswerFormat, AnswerFormatOption, CaseOption, ConfigOption, SetOption, answer, compile_ahead, print_json, say


def command(
    context: typer.Context,
    logs: Annotated[list[Path] | None, typer.Argument(help="Logs of the run; those of the description by default.", show_default=False)] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Run description. Default: the nearest upwards.", show_default=False)] = None,
    output: CaseOption = None,
    most: Annotated[int, typer.Option(help="Incidents to replay, the costliest first.")] = 5,
    config: ConfigOption = None,
    settings: SetOption = None,
    form: AnswerFormatOption = AnswerFormat.table,
) -> None:
    """Find the incidents on the curves, replay each that matters, and sum up."""
    from forensics.config import read_yaml
    from forensics.curves.settings import settings as curve_settings
    from forensics.errors import UsageError
    from forensics.pipelines.postmortem import lines, postmortem
    from forensics.pipelines.replay import read_config
    from forensics.run import open_run

    if most < 1:
        raise UsageError(f"--most {most} replays nothing", hint="`forensics curves` reads the logs alone")
    opened = open_run(run, settings or ())
    folder = output or Path("postmortem") / opened.name
    chosen = read_config(read_yaml(config) if config else {}, str(config))
    compile_ahead(context, "replay")
    done = postmortem(folder, logs or (), opened, curve_settings({}, []), chosen, most, say)
    if form is AnswerFormat.json:
        print_json({"incidents": [asdict(i) for i in done.incidents], "passed_over": done.passed_over})
    else:
        for line in lines(done):
            answer(line)
    say(f"cases: {folder}")
