"""`forensics verify`: does the description fit the run's own files and its logged loss?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forensics.cli.common import AnswerFormat, AnswerFormatOption, CaseOption, RunArgument, SetOption, answer, print_json, print_rows, say


def command(
    run: RunArgument = None,
    metrics: Annotated[
        list[Path] | None, typer.Option(metavar="LOG", help="Log with the training loss, where the description names none.", show_default=False)
    ] = None,
    candidates: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES", help="Try values of what is not known: version=0.8.0,0.16.1 or seed=1,2 (values with commas: `a;b`).", show_default=False
        ),
    ] = None,
    steps: Annotated[str | None, typer.Option(help="Only these steps, START:STOP. Default: all that were logged.", show_default=False)] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens to read, at most about this many. Default: 4 M, 33 M where these do not decide.", show_default=False)
    ] = None,
    output: CaseOption = None,
    settings: SetOption = None,
    form: AnswerFormatOption = AnswerFormat.table,
) -> None:
    """Prove the reconstructed order by the run's own files and its loss curve; exit 1 where they contradict it."""
    from forensics.attribution.verified import sentence, summary
    from forensics.case import case_for
    from forensics.errors import UsageError
    from forensics.pipelines.verify import verify
    from forensics.steps import parse_steps

    if tokens is not None and tokens < 1 << 14:
        raise UsageError(f"--tokens {tokens} is too few to compare anything", hint="at least 16384")
    case = case_for("verify", output) if output else None
    done = verify(run, settings or (), metrics or (), candidates or (), parse_steps(steps) if steps else None, tokens, case)
    if form is AnswerFormat.json:
        print_json(summary(done))
    else:
        for line in [*done.notes, *(sentence(done.checked) if done.checked else [])]:
            answer(line)
        if done.candidates:
            rows = []
            for c in done.candidates:
                w = c.holding.whole if c.holding else None
                note = f"reads the same rows as {done.same[c.name]}" if c.name in done.same else c.identity if c.agrees is False else c.reason
                rows.append([c.name, c.answer, None if w is None else w.r.get(0), None if w is None else w.error, note])
            print_rows(["candidate", "answer", "r", "error", ""], rows)
            answer(f"the curve chooses {done.chosen}" if done.chosen else "the curve does not choose between them")
        reason = done.checked.reason if done.checked else ""
        answer(f"answer: {done.answer.replace('_', ' ')}" + (f": {reason}" if reason else ""))
    if output:
        say(f"case: {output}")
    if done.answer == "contradicted":
        raise typer.Exit(1)
