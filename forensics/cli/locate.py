"""`forensics locate`: where documents come up in a run, past and future."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forensics.cli.common import Format, FormatOption, RunArgument, SetOption, print_table, say

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from forensics.run import RunSpec


def command(
    run: RunArgument = None,
    documents: Annotated[
        Path | None, typer.Option(help="List, one a line: CORPUS:NUMBER, or a url, id, crawl, source or file of the sidecar.", show_default=False)
    ] = None,
    document: Annotated[
        list[str] | None, typer.Option("--document", "--source", metavar="NAME", help="The same on the command line; may be given again.", show_default=False)
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="CASE:KIND:NUMBER, the members of a cluster of a case.", show_default=False)] = None,
    settings: SetOption = None,
    form: FormatOption = Format.table,
    limit: Annotated[int, typer.Option(min=0, help="Rows to print, 0 for all.")] = 50,
) -> None:
    """List every step that reads some documents."""
    import numpy as np

    from forensics.errors import UsageError
    from forensics.pipelines.locate import documents_of, locate, read_words
    from forensics.reports.summary import counted
    from forensics.run import open_run

    opened = open_run(run, settings or ())
    words = [*(read_words(documents) if documents else []), *(document or [])]
    if not words and not cluster:
        raise UsageError("no document was named", hint="--documents FILE, --document CORPUS:NUMBER, --source NAME or --cluster CASE:KIND:NUMBER")
    keys = cluster_members(cluster, opened) if cluster else np.empty(0, np.int64)
    if words:
        wanted = documents_of(opened, words)
        keys = np.union1d(keys, wanted.doc_keys)
        if wanted.unknown:
            say(f"{len(wanted.unknown):,} entries name no document, the first is `{wanted.unknown[0]}`")
    found = locate(opened, keys)
    steps = np.unique(found["step"].to_numpy())
    span = f", {steps[0]} to {steps[-1]}" if len(steps) else ""
    say(f"{counted(len(keys), 'document')}: {counted(found.num_rows, 'segment')} in {counted(len(steps), 'step')}{span}")
    print_table(found.drop_columns(["epoch"]), form, limit=limit or None)


def cluster_members(text: str, run: RunSpec) -> NDArray[np.int64]:
    """Documents of a cluster of a case, `CASE:KIND:NUMBER`, by their keys in the run."""
    from forensics.case import open_case
    from forensics.cli.show import filtered
    from forensics.errors import UsageError
    from forensics.pipelines.locate import keys_in
    from forensics.schemas import CLUSTERS, CORPORA, Corpora

    folder, _, rest = text.rpartition(":")
    folder, _, kind = folder.rpartition(":")
    if not folder or not rest.isdigit():
        raise UsageError(f"`--cluster {text}` is not CASE:KIND:NUMBER")
    case = open_case(Path(folder))
    found: NDArray[np.int64] = filtered(case.get(CLUSTERS), [f"kind={kind}", f"cluster={rest}"])["doc_key"].to_numpy()
    if not len(found):
        raise UsageError(f"{folder} holds no {kind} cluster {rest}", hint=f"forensics show {folder} clusters")
    keys: NDArray[np.int64] = keys_in(run, found, Corpora(case.get(CORPORA)))
    return keys
