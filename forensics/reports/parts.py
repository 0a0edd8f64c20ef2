"""Sections that a replay and an audit share: duplicates, sources, lengths, packing, how it was made."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from forensics.reports.base import Page, card, code, facts, items, percent, static_table
from forensics.reports.documents import causes_by_source, clusters_by_source, copies_by_source, duplicate_groups
from forensics.reports.plots import grouped
from forensics.reports.tables import MOST_ROWS, Tables, absent, columns_of, more_rows

NUMBER: dict[str, Any] = {"number": True}
CHOICE: dict[str, Any] = {"choose": True}
ROLE_NAMES = {"lookback": "look-back"}


def duplicates(page: Page, tables: Tables) -> str:
    """Duplicate clusters, the largest shown with a difference against the representative."""
    table = tables.get("dedup")
    if table is None:
        return absent(tables, "dedup")
    if not table.num_rows:
        return card('<p class="none">No two of the documents read are copies of each other.</p>')
    saved, total = int(np.sum(table["tokens_saved"].to_numpy())), int(np.sum(table["tokens"].to_numpy()))
    table = table.sort_by([("tokens_saved", "descending"), ("cluster", "ascending")])
    columns = columns_of(table.slice(0, MOST_ROWS), [
        ("kind", "kind", CHOICE), ("cluster", "cluster", NUMBER), ("members", "members", NUMBER), ("tokens", tables.unit, NUMBER), ("tokens_saved", "saved by keeping one", NUMBER),
        ("sources", "sources", CHOICE), ("window_documents", "in window", NUMBER), ("baseline_documents", "in baseline", NUMBER),
        ("times_window", "read in window", {"number": True, "title": "how often its members were read in the window"}), ("times_so_far", "so far", {"number": True, "title": "from the run's start to the end of the window"}),
        ("times_seen", "in the run", {"number": True, "title": "in the whole run as far as its order is known, steps to come included"}),
        ("representative", "representative", {"format": "key", "title": "its document key"}),
    ])  # fmt: skip
    head = f"<p>{table.num_rows:,} clusters hold {total:,} {tables.unit}; keeping one document of each would save {saved:,}.</p>"
    return card(head + page.table("dedup", "duplicate clusters", columns, sort="tokens_saved", rows=12) + more_rows(table, "dedup")) + copies_by_source(tables) + duplicate_groups(tables)


def sources(page: Page, tables: Tables) -> str:
    """Per source and role, then causes and clusters by source."""
    table = tables.get("sources")
    if table is None:
        return absent(tables, "sources")
    unit = tables.unit
    share = (table["flagged_tokens"].to_numpy() / np.maximum(1, table["tokens"].to_numpy())).tolist()
    columns = columns_of(table.slice(0, MOST_ROWS), [
        ("source", "source", CHOICE), ("role", "role", CHOICE), ("documents", "documents", NUMBER), ("tokens", unit, NUMBER), *([("bytes", "bytes", NUMBER)] if unit != "bytes" else []),
        ("flagged_documents", "flagged", {"number": True, "title": "documents with a garbage finding"}), ("duplicate_tokens", f"duplicate {unit}", NUMBER),
        ("length_p05", "p05", {"number": True, "title": f"5th percentile of the lengths [{unit}]"}), ("length_p50", "median", NUMBER), ("length_p95", "p95", NUMBER), ("length_max", "longest", NUMBER),
    ])  # fmt: skip
    roles = next(c for c in columns if c["name"] == "role")
    roles["values"] = [ROLE_NAMES.get(r, r) for r in roles["values"]]
    if len(set(roles["values"])) == 1:
        roles["hidden"] = True
    columns.insert(
        1 + [c["name"] for c in columns].index("flagged_documents"),
        {
            "name": "share",
            "label": f"of {unit}",
            "values": share[:MOST_ROWS],
            "number": True,
            "format": "percent",
            "title": f"share of the source's {unit} in flagged documents",
        },
    )
    return (
        card(page.table("sources", "sources", columns, sort="tokens", rows=30) + more_rows(table, "sources"))
        + causes_by_source(tables)
        + clusters_by_source(tables)
    )


def lengths(tables: Tables) -> str:
    """Share of documents per length bin, by role."""
    rows = tables.rows("lengths")
    if not rows:
        return absent(tables, "lengths")
    roles = [r for r in ("window", "lookback", "baseline", "corpus") if any(x["role"] == r for x in rows)]
    starts = sorted({x["start"] for x in rows})
    count = {(r, s): 0 for r in roles for s in starts}
    for x in rows:
        if x["role"] in roles:
            count[x["role"], x["start"]] += x["documents"]
    total = {r: sum(count[r, s] for s in starts) or 1 for r in roles}
    shares = {ROLE_NAMES.get(r, r): [count[r, s] / total[r] for s in starts] for r in roles}
    return card(
        f"<h3>document lengths: share of documents from each length [{tables.unit}] up to the next</h3>"
        + grouped([_short(s) for s in starts], shares, "share of documents by length")
    )


def _short(value: int) -> str:
    """A bin's bound, powers of 1024 by letter."""
    return f"{value >> 20}M" if value >= 1 << 20 and value % (1 << 20) == 0 else f"{value >> 10}k" if value >= 1 << 13 and value % 1024 == 0 else f"{value:,}"


def packing(tables: Tables) -> str:
    """Waste of ways to batch these lengths."""
    rows = tables.rows("buckets")
    if not rows:
        none = '<p class="none">No document of token ids: what batching costs is told of tokenised files.</p>'
        return absent(tables, "buckets") if tables.get("buckets") is None else none
    by: dict[str, list[dict[str, Any]]] = {}
    for r in rows:
        by.setdefault(r["scheme"], []).append(r)
    shown = []
    for scheme, parts in sorted(by.items(), key=lambda x: (x[0].startswith("buckets"), len(x[1]), x[0])):
        padding, tokens, cut = (sum(p[c] for p in parts) for c in ("padding_tokens", "tokens", "truncated_tokens"))
        advice = "recommended" if any(p["recommended"] for p in parts) else ""
        shown.append([scheme.replace("_", " "), len(parts), tokens, padding, percent(padding / max(1, padding + tokens)), cut, advice])
    head = ["scheme", "buckets", "tokens", "padding tokens", "waste", "truncated tokens", "advice"]
    best = next((parts for parts in by.values() if any(p["recommended"] for p in parts) and len(parts) > 1), None)
    bounds = ""
    if best:
        listed = [[p["start"], p["stop"], p["documents"], p["batch"], percent(p["waste"])] for p in best]
        bounds = "<h3>bounds of the recommended buckets</h3>" + static_table(["from [token]", "below", "documents", "sequences a batch", "waste"], listed)
    return card(static_table(head, shown) + bounds)


def failures(tables: Tables) -> str:
    """What could not be read; empty when everything could."""
    rows = tables.rows("failures")
    broken = [["report", name, why, 1] for name, why in tables.broken.items()]
    if not rows and not broken:
        return ""
    shown = [*broken, *([f["stage"], f["item"], f["error"], f["count"]] for f in rows[:100])]
    return "<h3>could not be read</h3>" + static_table(["stage", "item", "error", "count"], shown)


def made(tables: Tables) -> str:
    """Versions, configuration, assumptions, history."""
    info = tables.case.info
    ranges = "; ".join(f"{ROLE_NAMES.get(k, k)} {v}" for k, v in (info.get("ranges") or {}).items())
    every = info.get("rows_every")
    rows: list[tuple[str, object]] = [
        ("forensics", info.get("tool")), ("written", info.get("written")), ("command", info.get("command")), ("run", info.get("run")), ("steps asked about", info.get("steps")),
        ("launch", str(info["launch"]) if "launch" in info else None), ("steps read", ranges), ("overrides", ", ".join(info.get("set") or [])),
        ("rows read outside the window", None if every in (None, 1) else f"one of {every}"), ("CPU seconds", str(round(sum((info.get("seconds") or {}).values()), 1)) if info.get("seconds") else None),
    ]  # fmt: skip
    out = facts(rows) + "<h3>assumed</h3>" + items(info.get("assumed") or [], "Nothing had to be assumed.")
    launches = tables.rows("launches")
    if launches:
        head = ["launch", "first step", "last step", "consumed", "version", "row width", "arguments from"]
        shown = [[str(r["launch"]), r["first_step"], r["stop_step"] - 1, r["consumed"], r["version"], r["row_width"], r["origin"]] for r in launches]
        out += "<h3>launches</h3>" + static_table(head, shown)
    arguments = info.get("arguments") or []
    if arguments:
        listed = [[str(a.get("launch")), a.get("argument"), _said(a.get("value")), a.get("origin")] for a in arguments]
        out += f"<details><summary>{len(listed)} arguments and where each came from</summary>{static_table(['launch', 'argument', 'value', 'from'], listed)}</details>"
    settings = info.get("config") or info.get("settings")
    if settings:
        out += f"<details><summary>configuration</summary>{code(json.dumps(settings, indent=1, ensure_ascii=False, default=str))}</details>"
    return card(
        out
        + failures(tables)
        + '<p class="soft small">All tables lie beside this file in <code>tables/</code> as Parquet; <code>forensics show</code> prints them.</p>'
    )


def _said(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str) if not isinstance(value, str) else value
    return text if len(text) <= 400 else text[:399] + "…"
