"""`forensics sidecar`: where each document of a tokenised corpus came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forensics.cli.common import AnswerFormat, AnswerFormatOption, answer, print_json, say

SHOWN = 10


def command(
    raw: Annotated[list[Path], typer.Argument(help="Raw JSON Lines files (.gz, .zst), in the order in which they were tokenised.")],
    corpus: Annotated[Path, typer.Option("--corpus", help="The .idx made from them, or its prefix.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Sidecar to write.")] = Path("documents.parquet"),
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer folder or file: compares texts instead of lengths.", show_default=False)] = None,
    text: Annotated[str | None, typer.Option(help="Key that holds the text; usual names otherwise.", show_default=False)] = None,
    name: Annotated[str | None, typer.Option(help="Key with the record's id.", show_default=False)] = None,
    dtype: Annotated[str | None, typer.Option(help="Type of the ids in a raw token array.", show_default=False)] = None,
    eos: Annotated[int | None, typer.Option(help="Id that ends a document in a raw token array.", show_default=False)] = None,
    form: AnswerFormatOption = AnswerFormat.table,
) -> None:
    """Align raw records with the documents made from them."""
    from forensics.errors import UsageError
    from forensics.pipelines.sidecar import make_sidecar
    from forensics.stores.records import ReadOptions

    if missing := [p for p in raw if not p.is_file()]:
        raise UsageError(f"{missing[0]} does not exist")
    out = make_sidecar(raw, corpus, output, ReadOptions(text, name, dtype, eos, tokenizer), lambda n: say(f"{n:,} documents matched"))
    found = out.alignment
    if form is not AnswerFormat.table:
        place = None if out.stopped_at is None else dict(zip(("file", "line", "document"), out.stopped_at))
        print_json({
            "matched": found.pairs, "exact": out.exact, "gaps": [vars(g) for g in found.gaps], "records_left": found.records_left,
            "documents_left": found.documents_left, "stopped_at": place, "unreadable": sum(f.count for f in out.failures),
        })  # fmt: skip
    else:
        how = "by order and length alone: give `--tokenizer` to compare texts" if out.exact is None else f"{out.exact:,} of them equal to the last byte"
        answer(f"{found.pairs:,} documents matched, {how}")
        for gap in found.gaps[:SHOWN]:
            answer(f"gap: {gap.records:,} records from record {gap.record:,} and {gap.documents:,} documents from document {gap.document:,} have no partner")
        if len(found.gaps) > SHOWN:
            answer(f"(and {len(found.gaps) - SHOWN:,} more gaps)")
        for failure in out.failures[:SHOWN]:
            answer(f"no record: {failure.item}: {failure.error}")
        if out.stopped_at:
            answer(f"stops matching at {out.stopped_at[0]}:{out.stopped_at[1]} and document {out.stopped_at[2]:,}")
        elif found.records_left or found.documents_left:
            side, n = ("records", found.records_left) if found.records_left else ("documents", found.documents_left)
            answer(f"{n:,} {side} or more follow the last pair without a partner")
    say(f"sidecar: {output}   in `forensics.yaml`: documents: {output}")
    if out.stopped_at:
        raise typer.Exit(1)
