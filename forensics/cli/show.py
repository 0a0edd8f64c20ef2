"""`forensics show`: what a case holds: its answer, any table, a step, a document with its text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forensics.cli.common import Format, FormatOption, answer, print_json, print_rows, print_table, say

if TYPE_CHECKING:
    import pyarrow as pa

    from forensics.case import Case
    from forensics.stores.base import TokenStore

LIMIT = 50


def command(
    case: Annotated[Path, typer.Argument(help="Case folder.")],
    table: Annotated[str | None, typer.Argument(help="Table to print; without it the summary.")] = None,
    step: Annotated[int | None, typer.Option(help="What one step consumed, with the beginning of each document.")] = None,
    doc: Annotated[str | None, typer.Option(help="One document: its key, or CORPUS:NUMBER.")] = None,
    where: Annotated[list[str] | None, typer.Option(help="Keep rows: `source=web`, `tokens>1000`, `cause!=log`, `label~crawl`. May be given again.")] = None,
    form: FormatOption = Format.table,
    limit: Annotated[int, typer.Option(help="Rows to print, 0 for all.")] = LIMIT,
    redact: Annotated[bool, typer.Option("--redact/--no-redact", help="Mask e-mail addresses, phone numbers and keys in shown text.")] = True,
) -> None:
    """Show a case: the answer, a table, a step, a document."""
    from forensics.case import open_case

    opened = open_case(case)
    if doc is not None:
        show_document(opened, doc, form, redact)
    elif step is not None:
        show_step(opened, step, form, limit)
    elif table is not None:
        print_table(filtered(opened.read(table), where or []), form, limit=limit or None)
    else:
        show_summary(opened, form)


def filtered(table: pa.Table, conditions: list[str]) -> pa.Table:
    """Rows that meet every condition.

    Raises:
        UsageError: a condition that does not parse or names no column.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from forensics.errors import UsageError, nearest

    compare = {"=": pc.equal, "==": pc.equal, "!=": pc.not_equal, ">": pc.greater, ">=": pc.greater_equal, "<": pc.less, "<=": pc.less_equal}
    for condition in conditions:
        found = re.fullmatch(r"\s*(\w+)\s*(==|!=|>=|<=|=|>|<|~)\s*(.*?)\s*", condition)
        if not found:
            raise UsageError(f"`--where {condition}` does not parse", hint="write COLUMN=VALUE, or !=, >, >=, <, <=, ~ (contains)")
        name, sign, value = found.groups()
        if name not in table.column_names:
            raise UsageError(f"the table has no column `{name}`{nearest(name, table.column_names)}", hint=f"columns: {', '.join(table.column_names)}")
        column = table[name]
        if pa.types.is_dictionary(column.type):
            column = column.cast(pa.string())
        if sign == "~":
            keep = pc.match_substring(column.cast(pa.string()), value)
        elif value in ("null", "none"):
            keep = pc.is_null(column) if sign in ("=", "==") else pc.is_valid(column)
        else:
            try:
                keep = compare[sign](
                    column, pa.scalar(value).cast(column.type) if not pa.types.is_boolean(column.type) else pa.scalar(value.lower() in ("true", "1", "yes"))
                )
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise UsageError(f"`{value}` cannot be compared with the column `{name}` ({column.type})") from error
        table = table.filter(keep)
    return table


def show_summary(case: Case, form: Format) -> None:
    """The verdict in words, what to do, and the tables that are there."""
    verdict = case.json("verdict.json")
    counts = {name: case.read(name).num_rows for name in case.tables()}
    if form is Format.json:
        print_json({"verdict": verdict, "tables": counts, "case": case.info})
        return
    if verdict:
        for line in verdict_lines(verdict):
            answer(line)
        answer()
    print_rows(["table", "rows"], sorted(counts.items()))
    say(f"one table: forensics show {case.path} documents")


def verdict_lines(verdict: dict[str, Any]) -> list[str]:
    """The answer, its evidence and the action, as printed after a replay."""
    out = [
        verdict["sentence"],
        f"severity {verdict['severity']}, cause {verdict['cause']}"
        + (f" ({verdict['subcause']})" if verdict.get("subcause") else "")
        + f", confidence {verdict['confidence']}",
    ]
    out += [f"  for: {line}" for line in verdict["evidence_for"][:3]]
    out += [f"  against: {line}" for line in verdict["evidence_against"][:2]]
    return [*out, f"do: {verdict['action']}"]


def find_doc(case: Case, text: str) -> int:
    """The doc_key meant by a key, or by CORPUS:NUMBER.

    Raises:
        UsageError: when it is none of the case's documents.
    """
    from forensics.errors import UsageError
    from forensics.schemas import DOCUMENTS, doc_key

    found = re.fullmatch(r"(?:(\d{1,9}):)?(\d{1,19})", text.strip())
    if not found:
        raise UsageError(f"`--doc {text}` is neither a document key nor CORPUS:NUMBER")
    key = doc_key(int(found[1]), int(found[2])) if found[1] else int(found[2])
    if key not in set(case.get(DOCUMENTS)["doc_key"].to_pylist()):
        raise UsageError(f"the case holds no document {text}", hint=f"forensics show {case.path} documents")
    return key


def store_of(case: Case) -> TokenStore | None:
    """The token store of the case's run, where the run is still there."""
    if not (described := case.info.get("run")):
        return None
    from forensics.errors import ForensicsError
    from forensics.loaders.base import open_store
    from forensics.run import open_run

    try:
        return open_store(open_run(Path(described), case.info.get("set") or ()))
    except ForensicsError as error:
        say(f"text is not shown: {error.message}")
        return None


def show_document(case: Case, text: str, form: Format, redact: bool) -> None:
    """A document's row, findings, clusters, losses and text."""
    import numpy as np

    from forensics.text import excerpt, visible
    from forensics.text import redact as mask

    key = find_doc(case, text)
    out: dict[str, Any] = {
        name: filtered(case.read(name), [f"doc_key={key}"]).to_pylist() for name in ("documents", "findings", "clusters", "losses") if case.has(name)
    }
    store = store_of(case)
    if store is not None:
        batch = store.documents(np.array([key], np.int64))
        if batch.vocabulary is not None:
            shown = batch.text(0)
            shown, masked = mask(shown) if redact else (shown, False)
            out["text"], out["redacted"] = visible(excerpt(shown, 8000)), masked
        else:
            out["tokens"] = batch.tokens_of(0)[:200].tolist()
    if form is Format.json:
        print_json(out)
        return
    for name, rows in out.items():
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            answer(f"{name}:")
            shown_names = [c for c in rows[0] if c not in ("content", "spans") and any(r[c] is not None for r in rows)]
            print_rows(shown_names, [[r[c] for c in shown_names] for r in rows[:20]])
    answer(out.get("text") or f"tokens: {out.get('tokens', 'the run is not at hand')}")


def show_step(case: Case, step: int, form: Format, limit: int) -> None:
    """What one step consumed, one line per segment."""
    import numpy as np

    from forensics.errors import UsageError
    from forensics.text import one_line

    table = filtered(case.read("consumed"), [f"step={step}"])
    if not table.num_rows:
        raise UsageError(f"the case did not read step {step}", hint=f"forensics show {case.path} steps")
    store = store_of(case)
    rows = table.slice(0, limit or table.num_rows).to_pylist()
    if store is not None:
        flat, offsets = store.gather(table.slice(0, len(rows)))
        vocabulary = store.documents(np.array([], np.int64)).vocabulary
        for n, row in enumerate(rows):
            part = flat[offsets[n] : min(offsets[n + 1], offsets[n] + 64)]
            row["text"] = one_line(vocabulary.decode(part).decode("utf-8", "replace"), 60) if vocabulary is not None else " ".join(map(str, part[:12].tolist()))
    if form is Format.json:
        print_json(rows)
        return
    names = [c for c in rows[0] if any(r[c] is not None for r in rows)]
    print_rows(names, [[r[c] for c in names] for r in rows])
    if len(rows) < table.num_rows:
        say(f"({table.num_rows - len(rows):,} more segments)")
