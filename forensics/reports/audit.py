"""The report of a corpus: what was flagged where, which documents, copies, lengths and batching; one page per file beside it.

A case of several files gets `report.html` for all together and `report-<number>-<name>.html` for each.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.case import Case
from forensics.reports.base import Page, card, escape, items, number, percent, static_table
from forensics.reports.charts import codes
from forensics.reports.documents import document_views, skeletons
from forensics.reports.parts import CHOICE, NUMBER, duplicates, lengths, made, packing, sources
from forensics.reports.plots import matrix
from forensics.reports.replay import VIEW
from forensics.reports.tables import MOST_ROWS, Tables, absent, columns_of, more_rows
from forensics.schemas import DOC_BITS, DOC_MASK

MOST_PAGES = 64


class OneFile(Tables):
    """The tables of a case as far as they are about one of its files."""

    def __init__(self, case: Case, corpus_id: int) -> None:
        super().__init__(case)
        self.corpus_id = corpus_id

    def get(self, name: str) -> pa.Table | None:
        """A table's rows about the file; summaries over all files are left out."""
        table = super().get(name)
        if table is None:
            return None
        if "corpus_id" in table.column_names:
            return table.filter(pc.equal(table["corpus_id"], pa.scalar(self.corpus_id, pa.int32())))
        if "doc_key" in table.column_names:
            return table.filter(pa.array(table["doc_key"].to_numpy() >> DOC_BITS == self.corpus_id))
        return None

    def columns(self, name: str, names: Any) -> pa.Table | None:
        """Some columns of the rows about the file."""
        table = self.get(name)
        return table.select(list(names)) if table is not None else None


def write_audit(case: Case, path: Path | None = None) -> Path:
    """`report.html` of an audit's case, and a page per file where there are several."""
    whole = Tables(case)
    files = whole.rows("corpora")
    out = path or case.path / "report.html"
    several = len(files) > 1
    for file in files[:MOST_PAGES] if several else []:
        tables = OneFile(case, file["corpus_id"])
        page = Page("forensics audit", file["name"])
        page.section("answer", "Answer", answer(tables, f'<p><a href="{escape(out.name)}">All files</a></p>'), titled=False)
        page.section("causes", "Causes", causes(tables))
        page.section("findings", "Documents", findings(page, tables))
        page.section("templates", "Templates", skeletons(tables))
        page.write(out.with_name(page_name(file)))
    page = Page("forensics audit", f"{len(files):,} files" if several else files[0]["name"] if files else "no file")
    page.section("answer", "Answer", answer(whole, _links(files) if several else ""), titled=False)
    page.section("causes", "Causes", causes(whole))
    page.section("findings", "Documents", findings(page, whole))
    page.section("sources", "Sources", sources(page, whole))
    page.section("duplicates", "Duplicates", duplicates(page, whole) + copies(whole))
    page.section("templates", "Templates", skeletons(whole))
    page.section("lengths", "Lengths and packing", lengths(whole) + packing(whole))
    page.section("open", "Not evaluated", open_(whole))
    page.section("made", "How this was made", made(whole))
    return page.write(out)


def page_name(file: dict[str, Any]) -> str:
    """The file of one corpus's page: its number and name, letters and digits only."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", str(file["name"])).strip("-")[:60]
    return f"report-{file['corpus_id']:04d}-{plain}.html"


def _links(files: list[dict[str, Any]]) -> str:
    rows = "".join(
        f'<tr><td class="wrap"><a href="{escape(page_name(f))}">{escape(f["path"])}</a></td><td>{escape(f["format"])}</td><td class="n">{number(f["documents"])}</td><td class="n">{number(f["tokens"])}</td></tr>'
        for f in files[:MOST_PAGES]
    )
    more = f'<p class="soft small">{len(files) - MOST_PAGES:,} more files in <code>tables/corpora.parquet</code>.</p>' if len(files) > MOST_PAGES else ""
    head = '<tr><th scope="col">file</th><th scope="col">format</th><th scope="col" class="n">documents</th><th scope="col" class="n">tokens or bytes</th></tr>'
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>{more}'


def answer(tables: Tables, links: str) -> str:
    """How much of the corpus is garbage, by which causes, and what copies cost."""
    found, documents = tables.get("findings"), tables.columns("documents", ("doc_key", "tokens"))
    if found is None or documents is None:
        return absent(tables, "findings" if found is None else "documents")
    total, tokens = documents.num_rows, int(np.sum(documents["tokens"].to_numpy()))
    keys, size = documents["doc_key"].to_numpy(), documents["tokens"].to_numpy()
    bad = np.isin(keys, found.filter(found["garbage"])["doc_key"].to_numpy())
    share = float(size[bad].sum()) / max(1, tokens)
    dedup = tables.get("dedup")
    saved = int(np.sum(dedup["tokens_saved"].to_numpy())) if dedup is not None and dedup.num_rows else 0
    lead = f"{int(bad.sum()):,} of {total:,} documents are garbage: {percent(share)} of {tokens:,} {tables.unit}" if total else "No document was read"
    badges = [
        f'<span class="badge {"bad" if share > 0.05 else "warn" if share > 0.005 else "good"}">garbage <b>{percent(share)}</b></span>',
        f'<span class="badge">copies <b>{percent(saved / max(1, tokens))}</b></span>' if dedup is not None else "",
        f'<span class="badge">flagged, not garbage <b>{len(np.setdiff1d(found["doc_key"].to_numpy(), keys[bad])):,}</b></span>',
    ]
    return f'<h1>{escape(lead)}</h1><div class="badges">{"".join(badges)}</div>' + (card(links) if links else "")


def causes(tables: Tables) -> str:
    """Documents, and tokens or bytes, by primary cause and verdict, as the terminal has them."""
    found, documents = tables.get("findings"), tables.columns("documents", ("doc_key", "tokens"))
    if found is None or documents is None:
        return absent(tables, "findings")
    found = found.filter(found["primary"])
    if not found.num_rows:
        return card('<p class="none">No detector flagged any document.</p>')
    names, cause = codes(found["cause"])
    kind = 2 * cause + np.asarray(found["garbage"])
    at = np.minimum(np.searchsorted(documents["doc_key"].to_numpy(), found["doc_key"].to_numpy()), documents.num_rows - 1)
    size = documents["tokens"].to_numpy()
    held, count = np.bincount(kind, weights=size[at]), np.bincount(kind)
    order = sorted(np.flatnonzero(count).tolist(), key=lambda k: (1 - k % 2, -count[k], k))
    rows = [[names[k // 2], "garbage" if k % 2 else "reported", int(count[k]), int(held[k]), percent(held[k] / max(1, size.sum()))] for k in order]
    return card(static_table(["cause", "verdict", "documents", tables.unit, f"of all {tables.unit}"], rows))


def findings(page: Page, tables: Tables) -> str:
    """Flagged documents by their primary finding, garbage first, and the text of some."""
    found, documents = tables.get("findings"), tables.columns("documents", ("doc_key", "tokens", "source", "name"))
    page.data("documents", document_views(tables))
    if found is None or documents is None:
        return absent(tables, "findings")
    found = found.filter(found["primary"])
    if not found.num_rows:
        return ""
    order = np.lexsort((found["doc_key"].to_numpy(), ~np.asarray(found["garbage"])))
    rows = found.take(order).slice(0, MOST_ROWS)
    at = np.minimum(np.searchsorted(documents["doc_key"].to_numpy(), rows["doc_key"].to_numpy()), documents.num_rows - 1)
    mine = documents.take(at)
    columns = columns_of(rows, [("cause", "cause", CHOICE), ("garbage", "verdict", CHOICE)])
    columns[1]["values"] = ["garbage" if v else "reported" for v in columns[1]["values"]]
    columns += columns_of(mine, [("source", "source", CHOICE), ("name", "name", {}), ("tokens", "length", NUMBER)])
    columns += columns_of(
        rows,
        [
            ("measure", "measure", CHOICE),
            ("value", "value", {"number": True, "format": "free"}),
            ("detail", "what was found", {}),
            ("doc_key", "key", {"hidden": True, "format": "key"}),
        ],
    )
    for c in columns:
        if c["name"] in ("name", "detail"):
            masked = [tables.masked(v) for v in c["values"]]
            c["values"] = [v if v is None or len(v) < 160 else v[:159] + "…" for v in masked]
    columns.insert(
        3,
        {
            "name": "doc",
            "label": "document",
            "values": [f"{k >> DOC_BITS}:{k & DOC_MASK}" for k in rows["doc_key"].to_numpy().tolist()],
            "title": "corpus:number",
        },
    )
    return card(page.table("findings", "flagged documents", columns, opens="doc_key", rows=12) + more_rows(found, "findings")) + card(VIEW)


def copies(tables: Tables) -> str:
    """Which sources copy which."""
    if tables.case.has("source_matrix"):
        rows = tables.case.read("source_matrix").to_pylist()
        held = dict.fromkeys(sorted({r["source"] for r in rows} | {r["other"] for r in rows}), 0)
        for r in rows:
            held[r["source"]] += r["documents"]
        names = sorted(held, key=lambda n: -held[n])[:25]
        if names:
            at = {n: k for k, n in enumerate(names)}
            values = np.zeros((len(names), len(names)))
            for r in rows:
                if r["source"] in at and r["other"] in at:
                    values[at[r["source"]], at[r["other"]]] = r["documents"]
            return card(
                "<h3>documents of each source that have a near copy in another (or in itself)</h3>" + matrix(names, names, values, "copies between sources")
            )
    return ""


def open_(tables: Tables) -> str:
    """Detectors without inputs, and whether the tokenizer fits."""
    left = items((f"{r['what']}: {r['why']}" for r in tables.rows("not_evaluated")), "Everything had its inputs.")
    checks = tables.rows("identity")
    if checks:
        left += "<h3>does the tokenizer fit</h3>" + static_table(
            ["check", "file", "expected", "found", "answer"], [[r[c] for c in ("check", "subject", "expected", "found", "answer")] for r in checks]
        )
    return card(left)
