"""`forensics apply`: leave documents out by a patched copy of the run's index files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forensics.cli.common import AnswerFormat, AnswerFormatOption, LaunchOption, SetOption, answer, print_json, say


def command(
    case: Annotated[Path | None, typer.Argument(help="Case folder of a replay that names guilty documents.", show_default=False)] = None,
    surgical: Annotated[Path | None, typer.Option(help="New folder for the patched copy of the index files.", show_default=False)] = None,
    documents: Annotated[
        Path | None, typer.Option(help="Instead of a case's guilty documents: a list of documents, urls, crawls or sources, one a line.", show_default=False)
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Run description, with --documents.", show_default=False)] = None,
    after: Annotated[
        int | None, typer.Option(help="Step of the checkpoint to go on from. Default: the case's rollback step, else the last checkpoint.", show_default=False)
    ] = None,
    descriptions: Annotated[
        Path | None, typer.Option(help="Folder with Megatron's *-description.txt files, where its index files were not kept.", show_default=False)
    ] = None,
    launch: LaunchOption = None,
    settings: SetOption = None,
    form: AnswerFormatOption = AnswerFormat.table,
) -> None:
    """Swap guilty sequences for ones the run never reaches: no step, no learning-rate step, no clean sequence is lost."""
    from forensics.errors import UsageError
    from forensics.pipelines.apply import apply, from_case, from_list, sentences

    if (case is None) == (documents is None):
        raise UsageError("give either a case folder or --documents FILE")
    if surgical is None:
        raise UsageError("say where the patched copy goes: --surgical DIR", hint="to skip whole steps in the trainer's own terms: `forensics manifest`")
    if case is not None:
        wanted = from_case(case, settings or ())
    else:
        assert documents is not None
        wanted = from_list(documents, run, settings or ())
    if wanted.unknown:
        say(f"{len(wanted.unknown):,} entries name no document, the first is `{wanted.unknown[0]}`")
    say(f"{len(wanted.guilty):,} documents to leave out" + (f", {len(wanted.avoid):,} copies of them to keep out" if len(wanted.avoid) else ""))
    done = apply(wanted, surgical, after, launch, descriptions)
    if form is AnswerFormat.json:
        swaps = [{"file": s.index.file, "swapped": len(s.out), "spares": len(s.index.spare), "out": s.out.tolist(), "in": s.spare.tolist()} for s in done.swaps]
        print_json({
            "folder": str(done.written.folder), "steps": [done.target.steps.start, done.target.steps.stop], "launch": done.target.launch, "swaps": swaps,
            "changed": [list(c) for c in done.proven.changed], "steps_compared": done.proven.steps, "use": done.written.use,
        })  # fmt: skip
        return
    for line in sentences(done):
        answer(line)
