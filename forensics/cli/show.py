"""`forensics show`: what a case holds: its answer, any table, a step, a document with its text."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forensics.cli.common import Format, FormatOption, answer, print_json, print_rows, print_table, say

if TYPE_CHECKING:
    import pyarrow as pa

    from forensics.case import Case
    from forensics.stores.base import TokenStore
    from forensics.stores.batch import DocumentBatch

LIMIT = 50
TOKENS = 4000  # of a document that are printed


def command(
    case: Annotated[Path, typer.Argument(help="Case folder.")],
    table: Annotated[str | None, typer.Argument(help="Table to print; without it the summary.")] = None,
    step: Annotated[int | None, typer.Option(help="What one step consumed, with the beginning of each document.")] = None,
    doc: Annotated[str | None, typer.Option(help="One document: its key, or CORPUS:NUMBER with the corpus's number or name.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(metavar="CONDITION", help="Keep rows: `source=web`, `tokens>1000`, `cause!=log`, `label~crawl`. May be given again.")
    ] = None,
    form: FormatOption = Format.table,
    limit: Annotated[int, typer.Option(min=0, help="Rows to print, 0 for all.")] = LIMIT,
    redact: Annotated[bool, typer.Option("--redact/--no-redact", help="Mask e-mail addresses, phone numbers and keys, or show them as they are.")] = True,
) -> None:
    """Show a case: the answer, a table, a step, a document."""
    from forensics.case import open_case

    opened = open_case(case)
    if table is not None and (doc is not None or step is not None):
        from forensics.errors import UsageError

        raise UsageError("give a table, a step or a document, not several of them")
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
        if value in ("null", "none") and sign != "~":
            keep = pc.is_null(column) if sign in ("=", "==") else pc.is_valid(column)
        else:
            try:
                keep = (
                    pc.match_substring(column.cast(pa.string()), value)
                    if sign == "~"
                    else compare[sign](
                        column, pa.scalar(value).cast(column.type) if not pa.types.is_boolean(column.type) else pa.scalar(value.lower() in ("true", "1", "yes"))
                    )
                )
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise UsageError(f"`{value}` cannot be compared with the column `{name}` ({column.type})") from error
        table = table.filter(keep)
    return table


def show_summary(case: Case, form: Format) -> None:
    """The answer in words, what to do, small plots, and the tables that are there."""
    from forensics.reports.summary import summary_lines
    from forensics.reports.tables import Tables

    tables = Tables(case)
    counts = {name: rows_of(case, name) for name in case.tables()}
    if form is Format.json:
        known = {name: value for name in ("verdict", "verdicts", "plan") if (value := case.json(f"{name}.json")) is not None}
        print_json({**{"verdict": None}, **known, "tables": counts, "case": case.info})
        return
    if form is Format.csv:
        print_table(pa_table(counts), form)
        return
    for line in summary_lines(tables, plain=not (sys.stdout.encoding or "").lower().startswith("utf")):
        answer(line)
    answer()
    print_rows(["table", "rows"], sorted(counts.items()))
    for name, why in tables.broken.items():
        say(f"{name}: {why}")
    if (case.path / "report.html").exists():
        say(f"the whole report: {case.path / 'report.html'}")
    for line in ways_on(case, counts):
        say(line)


def ways_on(case: Case, counts: dict[str, int]) -> list[str]:
    """Commands that show more of a case: a table that says something, its first step, its first flagged document."""
    known = [n for n in ("findings", "events", "documents", *counts) if counts.get(n)]
    out = [f"one table: forensics show {case.path} {known[0]}"] if known else []
    if counts.get("consumed", 0) > 0:
        step = str(case.info.get("steps") or "").partition(":")[0]
        out.append(f"one step: forensics show {case.path} --step {step or 'STEP'}")
    if counts.get("documents", 0) > 0:
        flagged = filtered(case.read("findings"), ["garbage=true"])["doc_key"].to_pylist() if counts.get("findings", 0) > 0 else []
        out.append(f"one document: forensics show {case.path} --doc {flagged[0] if flagged else 'KEY'}")
    return out


def pa_table(counts: dict[str, int]) -> pa.Table:
    """Names and rows as a table."""
    import pyarrow as pa

    return pa.table({"table": list(counts), "rows": list(counts.values())})


def rows_of(case: Case, name: str) -> int:
    """Rows of a stored table, from its metadata; -1 where it does not read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = case.path / "tables" / name
    file = path.with_name(path.name + ".parquet")
    try:
        return sum(pq.read_metadata(f).num_rows for f in ([file] if file.exists() or not path.is_dir() else path.glob("part-*.parquet")))
    except (pa.ArrowInvalid, OSError):
        return -1


def find_doc(case: Case, text: str) -> int:
    """The doc_key meant by a key, or by CORPUS:NUMBER with the corpus's number, name or path.

    Raises:
        UsageError: when it is none of the case's documents.
    """
    from forensics.documents.provenance import corpus_numbers
    from forensics.errors import UsageError
    from forensics.schemas import CORPORA, DOCUMENTS, Corpora, doc_key

    found = re.fullmatch(r"(?:(.+):)?(\d{1,19})", text.strip())
    corpus = int(found[1]) if found and found[1] and re.fullmatch(r"\d{1,9}", found[1]) else None
    if found and found[1] and corpus is None and case.has("corpora"):
        corpus = corpus_numbers([found[1]], Corpora(case.get(CORPORA))).get(found[1])
    if not found or (found[1] and corpus is None):
        raise UsageError(f"`--doc {text}` is neither a document key nor CORPUS:NUMBER", hint=f"corpora by number and name: forensics show {case.path} corpora")
    key = doc_key(corpus, int(found[2])) if corpus is not None else int(found[2])
    if key not in set(case.get(DOCUMENTS)["doc_key"].to_pylist()):
        raise UsageError(f"the case holds no document {text}", hint=f"forensics show {case.path} documents")
    return key


def store_of(case: Case) -> TokenStore | None:
    """The token store of the case's run, where the run is still there."""
    if not isinstance(described := case.info.get("run"), str):
        return None
    from forensics.errors import ForensicsError
    from forensics.loaders.base import open_store
    from forensics.run import open_run

    try:
        return open_store(open_run(Path(described), case.info.get("set") or ()))
    except ForensicsError as error:
        say(f"text is not shown: {error.message}")
        return None


def batch_of(case: Case, key: int) -> DocumentBatch | None:
    """A document from the run's or the audit's own files, where these are still there and have not changed."""
    import tempfile

    import numpy as np

    from forensics.clustering.exact import content_hashes
    from forensics.errors import ForensicsError
    from forensics.schemas import DOCUMENTS

    found: DocumentBatch | None
    try:
        if case.info.get("command") == "audit":
            from forensics.stores.corpus import reopen

            with tempfile.TemporaryDirectory() as folder:
                found = reopen(case.info.get("files") or [], case.info.get("options") or {}, Path(folder)).one(key)
        else:
            store = store_of(case)
            found = store.documents(np.array([key], np.int64)) if store is not None else None
    except ForensicsError as error:
        say(f"text is not shown: {error.message}")
        return None
    if found is None:
        return None
    row = filtered(case.get(DOCUMENTS), [f"doc_key={key}"])
    known = row["content"].to_pylist()[0] if row.num_rows else None
    if known is not None and content_hashes(found).to_pylist() != [known]:
        say("text is not shown: its file holds another document there than when the case was made")
        return None
    return found


def show_document(case: Case, text: str, form: Format, redact: bool) -> None:
    """A document's row, findings, clusters, losses and text, coloured by loss where losses are per token."""
    from forensics.text import redact as mask

    key = find_doc(case, text)
    out: dict[str, Any] = {
        name: filtered(case.read(name), [f"doc_key={key}"]).to_pylist() for name in ("documents", "findings", "clusters", "losses") if case.has(name)
    }
    if redact:
        for row in [*out.get("documents", []), *out.get("findings", []), *out.get("clusters", [])]:
            row.update({name: mask(row[name])[0] for name in ("name", "detail", "label") if row.get(name)})
    out["measures"] = measures_of(case, key)
    pieces, scale, masked = text_of(case, key, redact)
    if pieces is not None:
        out["text"], out["redacted"] = "".join(t for t, _ in pieces), masked
    if form is not Format.table:
        print_json(out)
        return
    for name, rows in out.items():
        if isinstance(rows, list) and rows:
            answer(f"{name}:")
            shown_names = [c for c in rows[0] if c not in ("content", "spans") and any(r[c] is not None for r in rows)]
            print_rows(shown_names, [[r[c] for c in shown_names] for r in rows[:20]])
            if len(rows) > 20:
                say(f"({len(rows) - 20:,} more rows: forensics show {case.path} {name} --where doc_key={key})")
    if pieces is None:
        say("its text is not at hand: its files or their tokenizer are not, and the case holds no excerpt")
        return
    show_text(pieces, scale, masked)


def measures_of(case: Case, key: int) -> list[dict[str, Any]]:
    """What detectors measured of a document, zeros left out; measured now where the case keeps no measures and its text is at hand."""
    import numpy as np

    names = [n for n in case.tables() if n.startswith("measures/")]
    found = {n.removeprefix("measures/"): filtered(case.read(n), [f"doc_key={key}"]) for n in names}
    if not names and (batch := batch_of(case, key)) is not None:
        from forensics.detectors.measuring import measure

        found = measure(batch).tables()
    return [
        {"detector": name, "measure": field.name, "value": value, "unit": (field.metadata or {}).get(b"unit", b"").decode()}
        for name, table in sorted(found.items())
        for field in table.schema
        if field.name != "doc_key"
        for value in table[field.name].to_pylist()
        if value is not None and value != 0 and np.isfinite(value)
    ]


def show_text(pieces: list[tuple[str, float | None]], scale: list[float] | None, masked: bool) -> None:
    """Text on stdout, coloured where stdout is a terminal and NO_COLOR is not set."""
    from forensics.reports.documents import heat
    from forensics.reports.terminal import heat_text

    if masked:
        say("personal data are masked; --no-redact shows e-mail addresses, phone numbers and keys as they are")
    colour = (sys.stdout.isatty() and not os.environ.get("NO_COLOR")) or bool(os.environ.get("FORCE_COLOR"))
    if scale is not None:
        say(f"loss per token: blue from {scale[0]:.2f}, orange up to {scale[1]:.2f} nats; «…» is high")
    answer(heat_text([(t, heat(v, scale) if v is not None and scale is not None else None) for t, v in pieces], colour), coloured=True)


def text_of(case: Case, key: int, redact: bool) -> tuple[list[tuple[str, float | None]] | None, list[float] | None, bool]:
    """Pieces of a document's text with the loss of each where it is known, the scale of these losses, whether anything was masked.

    The run's own data give the whole beginning; without them the case's excerpt is shown, which is masked if it was written so.
    """
    import math

    import pyarrow as pa

    from forensics.reports.documents import heat_scale, token_losses
    from forensics.reports.excerpts import EDGE, texts
    from forensics.reports.tables import Tables
    from forensics.text import visible

    tables = Tables(case)
    losses = token_losses(tables, pa.array([key], pa.int64())).get(key)
    scale = heat_scale(losses) if losses else None
    batch = batch_of(case, key)
    if batch is not None and batch.vocabulary is not None:
        length, unit = int(batch.lengths[0]), "bytes" if batch.is_text else "tokens"
        shown = min(length, TOKENS)
        cuts = [(i, i + 1) for i in range(shown)] if scale is not None else [(0, shown)]
        found = [] if not shown else texts(batch, 0, cuts, redact, EDGE)
        values = [losses[i] if losses and i < len(losses) and math.isfinite(losses[i]) else None for i in range(len(found))]
        rest = [(f"\n⟨… {length - shown:,} {unit} …⟩", None)] if length > shown else []
        return [*((visible(t), v) for (t, _), v in zip(found, values)), *rest], scale, any(m for _, m in found)
    rows = [r for r in tables.rows("excerpts") if r["doc_key"] == key]
    if not rows:
        return None, None, False
    return [(visible(r["text"]), None) for r in sorted(rows, key=lambda r: r["doc_start"])], None, any(r["redacted"] for r in rows)


def show_step(case: Case, step: int, form: Format, limit: int) -> None:
    """What one step consumed, one line per segment."""
    import numpy as np

    from forensics.errors import UsageError
    from forensics.text import one_line

    if not case.has("consumed"):
        raise UsageError(f"{case.path} is the case of no replay: it holds no steps", hint=f"forensics show {case.path}")
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
