"""`forensics lookup`: is this page in there?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forensics.cli.common import Format, FormatOption, print_json, print_rows, say


def command(
    case: Annotated[Path, typer.Argument(help="Case folder of an audit or a replay.")],
    pages: Annotated[list[Path], typer.Argument(help="Text files, or JSON Lines with one text each.")],
    least: Annotated[float, typer.Option(help="Similarity of five-token shingles from which a document counts.")] = 0.5,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer of a corpus of ids; by default the one that the case names.", show_default=False)] = None,
    form: FormatOption = Format.table,
) -> None:
    """Look pages up among the documents of a case."""
    from forensics.case import open_case
    from forensics.errors import UsageError
    from forensics.pipelines.lookup import look_up

    if not 0 < least <= 1:
        raise UsageError(f"`--least {least}` is no similarity", hint="write a number above 0, at most 1")
    rows = look_up(open_case(case), pages, least, tokenizer)
    if form is Format.json:
        print_json(rows)
    elif form is Format.csv:
        import csv
        import sys

        writer = csv.DictWriter(sys.stdout, ["page", "doc_key", "jaccard", "source", "name"])
        writer.writeheader()
        writer.writerows(rows)
    elif rows:
        print_rows(list(rows[0]), [list(r.values()) for r in rows])
    found = len({row["doc_key"] for row in rows})
    none = f"no document resembles the pages at {least:g} or more; `--least` asks for less"
    say(f"{found:,} document{'s resemble' if found > 1 else ' resembles'} the pages" if rows else none)
