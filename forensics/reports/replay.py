"""The report of a replay, from the tables of its case: the answer first, then what it rests on.

Reads tables only: a part whose table is not there says so, and a case of an older version still opens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from forensics.case import Case
from forensics.reports.base import Page, card, code, escape, facts, items, number, static_table
from forensics.reports.charts import composition, curves, per_step
from forensics.reports.documents import document_views, duplicate_groups, skeletons
from forensics.reports.plots import bars, legend, matrix
from forensics.schemas import ALL, TableType

TONE = {"diverging": "bad", "level_shift": "bad", "slow": "warn", "returned": "good", "none": "good"}
MOST_ROWS = 5000  # rows of a table that go into the page; all of them stay beside it


class Tables:
    """Tables of a case, None where one is absent."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._read: dict[str, pa.Table | None] = {}

    def get(self, name: str) -> pa.Table | None:
        """A table of the case, or None."""
        if name not in self._read:
            kind: TableType = ALL[name]
            self._read[name] = self.case.get(kind) if self.case.has(name) else None
        return self._read[name]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Its rows; empty where it is absent."""
        table = self.get(name)
        return table.to_pylist() if table is not None else []


def absent(name: str) -> str:
    """What stands where a table is missing."""
    return f'<p class="none">This case holds no table `{escape(name)}`: this part was not made, or the case is of another version.</p>'


def write_replay(case: Case, path: Path | None = None) -> Path:
    """`report.html` of a replay's case."""
    tables = Tables(case)
    verdict = case.json("verdict.json") or {}
    window = verdict.get("window") or [0, 0]
    page = Page("forensics replay", f"steps {window[0]:,} to {window[1] - 1:,}" + (f" of {Path(case.info['run']).parent.name}" if case.info.get("run") else ""))
    page.section("answer", "Answer", answer(case, verdict))
    page.section("curves", "Curves", curves(page, tables, verdict) or absent("metrics"))
    page.section("proof", "Proof of the replay", proof(tables, case, verdict))
    page.section("steps", "What the steps read", composition(tables) + per_step(page, tables))
    page.section("suspects", "Suspects", suspects(page, tables))
    page.section("duplicates", "Duplicates", duplicates(page, tables))
    page.section("templates", "Templates", skeletons(tables))
    page.section("sources", "Sources and lengths", sources(tables) + lengths(tables))
    page.section("packing", "Packing and buckets", packing(tables))
    page.section("open", "Not evaluated", items((f"{x['what']}: {x['why']}" for x in verdict.get("not_evaluated", [])), "Everything had its inputs."))
    page.section("made", "How this was made", made(case, tables))
    return page.write(path or case.path / "report.html")


def answer(case: Case, verdict: dict[str, Any]) -> str:
    """Verdict, action, evidence."""
    if not verdict:
        return absent("verdict.json")
    cause = verdict["cause"] + (f" ({verdict['subcause']})" if verdict.get("subcause") else "")
    badges = [
        f'<span class="badge {TONE.get(verdict["severity"], "")}">severity <b>{escape(verdict["severity"])}</b></span>',
        f'<span class="badge {"bad" if verdict["cause"] == "data" else ""}">cause <b>{escape(cause)}</b></span>',
        f'<span class="badge">confidence <b>{escape(verdict["confidence"])}</b></span>',
        f'<span class="badge">onset <b>{escape(number(verdict.get("onset")) or "not found")}</b></span>',
    ]
    against = "<h3>against</h3>" + items(verdict.get("evidence_against", []), "Nothing that was looked at speaks against it.")
    return (
        f'<h1>{escape(verdict["sentence"])}</h1><div class="badges">{"".join(badges)}</div>'
        + card("<h2>Do now</h2><p>" + escape(verdict["action"]) + "</p>" + prescription(case, verdict), "act")
        + '<div class="grid">'
        + card("<h3>for</h3>" + items(verdict.get("evidence_for", [])) + against)
        + card("<h3>control experiments</h3>" + plan(case))
        + "</div>"
    )


def prescription(case: Case, verdict: dict[str, Any]) -> str:
    """Rollback, skip list with its meaning, expected effect."""
    back, expected = verdict.get("rollback") or {}, verdict.get("expected") or {}
    rows: list[tuple[str, object]] = [
        (
            "roll back to",
            f"checkpoint of step {back['step']:,}" + (f" ({back['checkpoint']})" if back.get("checkpoint") else "") if back.get("step") is not None else None,
        ),
        ("guilty documents", (verdict.get("skip") or {}).get("documents")),
        ("steps to drop", ", ".join(f"{a:,} to {b - 1:,}" for a, b in (verdict.get("skip") or {}).get("steps") or []) or None),
        (
            "excess removed [nats]",
            f"{number(expected.get('excess_removed_nats'), 1)} ± {number(expected.get('error_nats'), 1)}"
            if expected.get("excess_removed_nats") is not None
            else None,
        ),
        ("ordinary tokens lost", expected.get("ordinary_tokens_lost")),
    ]
    out = facts(rows)
    for file in sorted((case.path / "manifest").glob("*")) if (case.path / "manifest").is_dir() else []:
        text = file.read_text(errors="replace")
        if file.name == "README.txt":
            says = [line[2:] for line in text.split("\n") if line.startswith("- ")]
            out += "<h3>what the list means</h3>" + items(says)
        else:
            out += f"<h3>{escape(file.name)}</h3>" + code(text.strip()[:4000])
    return out


def plan(case: Case) -> str:
    """Reruns that would decide it, with predicted outcomes."""
    found = case.json("plan.json") or []
    if not found:
        return '<p class="none">No rerun is needed, or none was planned.</p>'
    out = []
    for x in found:
        predicted = x.get("predicts") or x.get("predictions") or x.get("outcomes") or {}
        said = "".join(f"<li>{escape(k)}: {escape(v)}</li>" for k, v in (predicted.items() if isinstance(predicted, dict) else enumerate(predicted)))
        command = x.get("command") or x.get("commands") or ""
        lines = command if isinstance(command, str) else "\n".join(map(str, command))
        out.append(
            f"<details><summary>{escape(x.get('name', 'experiment'))}</summary><p>{escape(x.get('what', x.get('why', '')))}</p>{code(lines) if lines else ''}<ul class=tight>{said}</ul></details>"
        )
    return "".join(out)


def proof(tables: Tables, case: Case, verdict: dict[str, Any]) -> str:
    """Does the logged loss follow the reconstructed steps, and do the files agree."""
    out = f"<p>{escape(case.info.get('identity', ''))}</p>"
    rows = [r for r in tables.rows("proof") if r["r"] is not None]
    if rows:
        said = (verdict.get("proof") or {}).get("answer", rows[0]["answer"])
        out += (
            f"<p>The logged loss and the difficulty of the reconstructed steps: <b>{escape(said)}</b> over {number(rows[0]['steps'])} steps. "
            "Correlation by lag; a right description peaks at lag 0 (band: two standard errors).</p>"
            + bars({f"{r['lag']:+d}": r["r"] for r in rows}, "correlation by lag", 2 * (rows[0]["standard_error"] or 0.0))
        )
    identity = tables.rows("identity")
    if identity:
        shown = [[r["check"].replace("_", " "), r["subject"], r["expected"], r["found"], r["answer"].replace("_", " ")] for r in identity]
        out += (
            f"<details><summary>{len(identity)} identity checks</summary>{static_table(['check', 'subject', 'expected', 'found', 'answer'], shown)}</details>"
        )
    return card(out)


def columns_of(table: pa.Table, wanted: Sequence[tuple[str, str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Columns for a page's table: (name, heading, options)."""
    out = []
    for name, label, options in wanted:
        values = table[name]
        values = values.cast(pa.string()) if pa.types.is_dictionary(values.type) else values
        out.append({"name": name, "label": label, "values": values.to_pylist(), **options})
    return out


def suspects(page: Page, tables: Tables) -> str:
    """The ranked explanation and the documents behind it."""
    table = tables.get("suspects")
    if table is None:
        return absent("suspects")
    page.data("documents", document_views(tables, table.slice(0, MOST_ROWS)))
    n = {"number": True}
    columns = columns_of(table.slice(0, MOST_ROWS), [
        ("rank", "#", n), ("level", "level", {"choose": True}), ("label", "what", {}), ("reasons", "reasons", {"choose": True}), ("excess", "excess [nats]", n),
        ("share", "share", n), ("log_odds", "log-odds", n), ("q_value", "q", n), ("tokens_window", "tokens", n), ("tokens_baseline", "in baseline", n),
        ("guilty", "named", {}), ("key", "key", {"hidden": True}),
    ])  # fmt: skip
    columns[10]["values"] = ["yes" if v else "no" for v in columns[10]["values"]]
    more = f'<p class="soft small">{table.num_rows - MOST_ROWS:,} more rows in tables/suspects.parquet.</p>' if table.num_rows > MOST_ROWS else ""
    view = card('<div id="document"><p class="none">Choose a row (Enter or click) to read the document.</p></div>')
    return card(page.table("suspects", "suspects", columns, opens="key") + more) + view


def duplicates(page: Page, tables: Tables) -> str:
    """Duplicate clusters, the largest shown with a difference against the representative."""
    table = tables.get("dedup")
    if table is None:
        return absent("dedup")
    if not table.num_rows:
        return '<p class="none">No two of the documents read are copies of each other.</p>'
    saved, total = int(np.sum(table["tokens_saved"].to_numpy())), int(np.sum(table["tokens"].to_numpy()))
    n = {"number": True}
    columns = columns_of(table.slice(0, MOST_ROWS), [
        ("kind", "kind", {"choose": True}), ("cluster", "cluster", n), ("members", "members", n), ("tokens", "tokens", n), ("tokens_saved", "saved by keeping one", n),
        ("sources", "sources", {"choose": True}), ("window_documents", "in window", n), ("baseline_documents", "in baseline", n), ("representative", "key", {"hidden": True}),
    ])  # fmt: skip
    head = f"<p>{table.num_rows:,} clusters hold {total:,} tokens; keeping one document of each would save {saved:,}.</p>"
    return card(head + page.table("dedup", "duplicate clusters", columns, sort=4)) + duplicate_groups(tables)


def sources(tables: Tables) -> str:
    """Per source and role, and causes by source."""
    rows = tables.rows("sources")
    if not rows:
        return absent("sources")
    head = ["source", "role", "documents", "tokens", "flagged documents", "flagged tokens", "duplicate tokens", "p05", "p50", "p95", "longest"]
    names = [
        "source",
        "role",
        "documents",
        "tokens",
        "flagged_documents",
        "flagged_tokens",
        "duplicate_tokens",
        "length_p05",
        "length_p50",
        "length_p95",
        "length_max",
    ]
    return card(static_table(head, [[r[c] for c in names] for r in rows])) + causes_by_source(tables)


def causes_by_source(tables: Tables) -> str:
    """Documents with each primary cause, by source."""
    findings, documents = tables.get("findings"), tables.get("documents")
    if findings is None or documents is None or not findings.num_rows:
        return ""
    source = dict(zip(documents["doc_key"].to_pylist(), documents["source"].cast(pa.string()).to_pylist(), strict=True))
    count: dict[tuple[str, str], int] = {}
    for row in findings.select(["doc_key", "cause", "primary"]).to_pylist():
        if row["primary"]:
            pair = (str(source.get(row["doc_key"])), str(row["cause"]))
            count[pair] = count.get(pair, 0) + 1
    names, causes = sorted({a for a, _ in count}), sorted({b for _, b in count})
    if not names:
        return ""
    values = np.array([[count.get((a, b), 0) for b in causes] for a in names], float)
    return card("<h3>documents by source and primary cause</h3>" + matrix(names, causes, values, "documents by source and cause"))


def lengths(tables: Tables) -> str:
    """Share of documents per length bin, window against baseline."""
    rows = tables.rows("lengths")
    if not rows:
        return absent("lengths")
    roles = [r for r in ("window", "lookback", "baseline", "corpus") if any(x["role"] == r for x in rows)]
    bins = sorted({(x["start"], x["stop"]) for x in rows})
    total = {r: sum(x["documents"] for x in rows if x["role"] == r) or 1 for r in roles}
    values = np.array([[sum(x["documents"] for x in rows if x["role"] == r and x["start"] == a) / total[r] for a, _ in bins] for r in roles])
    out = "".join(
        f"<h3>{escape(r)}</h3>" + bars({f"{a:,}": float(v) for (a, _), v in zip(bins, values[i], strict=True)}, f"share of documents by length, {r}", height=96)
        for i, r in enumerate(roles)
    )
    return card('<h3>document lengths [token], share of documents from each bound up to the next</h3><div class="grid">' + out + "</div>")


def packing(tables: Tables) -> str:
    """Waste of ways to batch these lengths."""
    rows = tables.rows("buckets")
    if not rows:
        return absent("buckets")
    by: dict[str, list[dict[str, Any]]] = {}
    for r in rows:
        by.setdefault(r["scheme"], []).append(r)
    shown = []
    for scheme, parts in by.items():
        padding, tokens, cut = (sum(p[c] for p in parts) for c in ("padding_tokens", "tokens", "truncated_tokens"))
        advice = "recommended" if any(p["recommended"] for p in parts) else ""
        shown.append([scheme.replace("_", " "), len(parts), tokens, padding, padding / max(1, padding + tokens), cut, advice])
    head = ["scheme", "buckets", "tokens", "padding tokens", "waste", "truncated tokens", ""]
    best = next((parts for parts in by.values() if any(p["recommended"] for p in parts) and len(parts) > 1), None)
    bounds = (
        static_table(
            ["from [token]", "below", "documents", "sequences a batch", "waste"],
            [[p["start"], p["stop"], p["documents"], p["batch"], p["waste"]] for p in best],
        )
        if best
        else ""
    )
    return card(static_table(head, shown) + (f"<h3>bounds of the recommended buckets</h3>{bounds}" if bounds else ""))


def made(case: Case, tables: Tables) -> str:
    """Versions, configuration, assumptions, history."""
    info = case.info
    rows: list[tuple[str, object]] = [(k, str(info[k])) for k in ("tool", "written", "command", "steps", "launch", "ranges", "rows_every") if k in info]
    out = facts(rows) + "<h3>assumed</h3>" + items(info.get("assumed", []), "Nothing had to be assumed.")
    launches = tables.rows("launches")
    if launches:
        head = ["launch", "first step", "last step", "consumed", "version", "row width", "arguments from"]
        shown = [[r["launch"], r["first_step"], r["stop_step"] - 1, r["consumed"], r["version"], r["row_width"], r["origin"]] for r in launches]
        out += "<h3>launches</h3>" + static_table(head, shown)
    failures = tables.rows("failures")
    if failures:
        out += "<h3>could not be read</h3>" + static_table(
            ["stage", "item", "error", "count"], [[f["stage"], f["item"], f["error"], f["count"]] for f in failures[:50]]
        )
    return card(out + f'<p class="soft small">All tables lie beside this file in <code>tables/</code>. {legend([])}</p>')
