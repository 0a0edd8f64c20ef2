"""`forensics manifest`: a skip list in a trainer's terms, from a case or from the user's own list of documents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forensics.cli.common import AnswerFormat, AnswerFormatOption, SetOption, answer, print_json, say

if TYPE_CHECKING:
    from forensics.manifests.base import Manifest
    from forensics.run import RunSpec


def command(
    case: Annotated[Path | None, typer.Argument(help="Case folder of a replay.", show_default=False)] = None,
    trainer: Annotated[str | None, typer.Option("--for", help="Whose terms: megatron, plain, ...", show_default=False)] = None,
    documents: Annotated[
        Path | None, typer.Option(help="Instead of a case's guilty documents: a list of documents, urls, crawls or sources, one a line.", show_default=False)
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Run description, with --documents.", show_default=False)] = None,
    after: Annotated[
        int | None, typer.Option(help="Leave out what comes after this step. Default: the case's rollback step, else the last checkpoint.", show_default=False)
    ] = None,
    launch: Annotated[int | None, typer.Option(help="Launch whose order holds; the last one by default.", show_default=False)] = None,
    version: Annotated[
        str | None, typer.Option(help="Version, or date of the checkout, of the trainer that will read the list; the run's by default.", show_default=False)
    ] = None,
    settings: SetOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the files.", show_default=False)] = None,
    form: AnswerFormatOption = AnswerFormat.table,
) -> None:
    """Find the future steps that hold documents and write the list that leaves them out."""
    import numpy as np

    from forensics.case import open_case
    from forensics.errors import UsageError
    from forensics.manifests.base import exporter_for
    from forensics.pipelines.locate import documents_of, leave_out, read_words
    from forensics.run import open_run
    from forensics.schemas import SKIPS

    if (case is None) == (documents is None):
        raise UsageError("give either a case folder or --documents FILE")
    if case is not None:
        opened_case = open_case(case)
        described, before = opened_case.described()
        opened = open_run(described, [*before, *(settings or ())])
        skips = opened_case.get(SKIPS).to_pylist()
        keys = np.array(sorted({k for r in skips if r["kind"] == "documents" for k in range(r["start"], r["stop"])}), np.int64)
        verdict = opened_case.json("verdict.json") or {}
        start = after if after is not None else (verdict.get("rollback") or {}).get("step")
        if not len(keys):
            raise UsageError(f"{case} names no guilty documents", hint="give your own list with --documents FILE")
    else:
        assert documents is not None
        opened = open_run(run, settings or ())
        wanted = documents_of(opened, read_words(documents))
        keys, start = wanted.doc_keys, after
        if wanted.unknown:
            say(f"{len(wanted.unknown):,} entries name no document, the first is `{wanted.unknown[0]}`")
    at = last_known(opened) if start is None else start
    name = exporter_for(opened.trainer, trainer)
    future = leave_out(opened, keys, name, at, launch, version)
    say(f"{len(keys):,} documents; after step {at} they come up in {len(future.request.steps):,} steps, before it in {future.steps_before:,}")
    if output is not None:
        write_files(future.manifest, output)
    if form is AnswerFormat.json:
        m = future.manifest
        print_json({"trainer": m.trainer, "version": m.version, "flags": m.flags, "says": m.says, "dropped": m.dropped, "files": dict(m.files)})
        return
    answer(future.manifest.flags or next(iter(future.manifest.files.values()), ""))
    for line in future.manifest.says:
        say(f"- {line}")
    trip = future.trip
    say(f"- round trip: the text drops {len(trip.dropped)} steps with {trip.guilty_tokens:,} tokens of these documents; {trip.guilty_left:,} are left")


def last_known(run: RunSpec) -> int:
    """The last checkpoint's step, else where the last launch began."""
    return max([*run.checkpoints, run.launches[-1].after_step])


def write_files(manifest: Manifest, folder: Path) -> None:
    """The manifest's files and its words.

    Raises:
        UsageError: the folder's README.txt is another's.
    """
    from forensics.errors import UsageError
    from forensics.files import read_text, write_text

    about = folder / "README.txt"
    if about.exists() and not read_text(about).startswith("skip list"):
        raise UsageError(f"{about} was not written by this tool", hint="give a folder of its own with `-o`")
    for name, text in manifest.files.items():
        write_text(folder / name, text)
    write_text(about, "\n".join(["skip list", "", manifest.flags, "", *(f"- {s}" for s in manifest.says)]) + "\n")
