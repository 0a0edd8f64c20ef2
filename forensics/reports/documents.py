"""Documents as reports show them: excerpts with evidence marked, copies against their representative, skeletons."""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from forensics.reports.base import card, escape, number
from forensics.schemas import DOC_BITS, DOC_MASK

if TYPE_CHECKING:
    from forensics.reports.replay import Tables

GROUPS, MEMBERS, SHOWN = 12, 3, 1500


def document_views(tables: Tables, suspects: pa.Table) -> dict[str, Any]:
    """For every suspect with an excerpt: title, facts, and its text in pieces (text, kind, strength)."""
    excerpts = tables.get("excerpts")
    if excerpts is None or not excerpts.num_rows:
        return {}
    texts: dict[int, list[dict[str, Any]]] = {}
    for row in excerpts.to_pylist():
        texts.setdefault(row["doc_key"], []).append(row)
    keys = pa.array(sorted(texts), pa.int64())
    findings = _by_key(tables.get("findings"), keys)
    documents = {k: v[0] for k, v in _by_key(tables.get("documents"), keys).items()}
    heat = _heat(tables, keys)
    out = {}
    for key, rows in texts.items():
        spans = [(s["start"], s["stop"]) for f in findings.get(key, []) if f["primary"] for s in f["spans"] or []]
        doc = documents.get(key, {})
        known = [("source", doc.get("source")), ("name", doc.get("name")), ("crawl", doc.get("crawl")), ("tokens", doc.get("tokens")), ("steps", _steps(doc)),
                 ("consumed in the window", doc.get("used_window")), ("in the baseline", doc.get("used_baseline"))]  # fmt: skip
        known += [
            (
                f"{f['cause']}{' (primary)' if f['primary'] else ''}",
                f"{f['measure']} {number(f['value'])} (threshold {number(f['threshold'])})" + (f"; {f['detail']}" if f["detail"] else ""),
            )
            for f in findings.get(key, [])
        ]
        label = "personal data are masked" if any(r["redacted"] for r in rows) else None
        out[str(key)] = {
            "title": f"document {key & DOC_MASK:,} of corpus {key >> DOC_BITS}", "facts": [[k, v] for k, v in known if v is not None],
            "parts": [{"label": label, "pieces": _pieces(rows, spans, heat.get(key)), **({"values": [number(v) + " nats" for v in heat[key]]} if key in heat else {})}],
        }  # fmt: skip
    return out


def _steps(doc: dict[str, Any]) -> str | None:
    return None if doc.get("first_step") is None else f"{doc['first_step']:,} to {doc['last_step']:,}"


def _by_key(table: pa.Table | None, keys: pa.Array[Any]) -> dict[int, list[dict[str, Any]]]:
    out: dict[int, list[dict[str, Any]]] = {}
    if table is not None:
        for row in table.filter(pc.is_in(table["doc_key"], value_set=keys)).to_pylist():
            out.setdefault(row["doc_key"], []).append(row)
    return out


def _heat(tables: Tables, keys: pa.Array[Any]) -> dict[int, list[float]]:
    """Loss of each token from the document's beginning on, NaN where it was not read, for documents that have them."""
    table, consumed = tables.get("token_losses"), tables.get("consumed")
    if table is None or consumed is None:
        return {}
    place = {(r["step"], r["sequence"], r["seq_start"]): r["doc_start"] for r in consumed.filter(pc.is_in(consumed["doc_key"], value_set=keys)).to_pylist()}
    out: dict[int, list[float]] = {}
    for row in table.filter(pc.is_in(table["doc_key"], value_set=keys)).to_pylist():
        start = place.get((row["step"], row["sequence"], row["seq_start"]))
        if start is None:
            continue
        first = start + (1 if row["seq_start"] == 0 else 0)
        values = out.setdefault(row["doc_key"], [])
        values.extend([math.nan] * (first + len(row["values"]) - len(values)))
        values[first : first + len(row["values"])] = [float(v) for v in row["values"]]
    return out


def _pieces(rows: list[dict[str, Any]], spans: list[tuple[int, int]], heat: list[float] | None) -> list[list[Any]]:
    out: list[list[Any]] = []
    at = 0
    for row in sorted(rows, key=lambda r: r["doc_start"]):
        if row["doc_start"] > at:
            out.append([f"\n⟨{row['doc_start'] - at:,} tokens left out⟩\n", "soft", 0])
        inside = any(a <= row["doc_start"] and row["doc_stop"] <= b for a, b in spans)
        if heat is not None and row["doc_stop"] - row["doc_start"] == 1 and row["doc_start"] < len(heat) and math.isfinite(heat[row["doc_start"]]):
            out.append([row["text"], "heat", (heat[row["doc_start"]] - 3.0) / 5.0])
        else:
            out.append([row["text"], "mark" if inside else "", 0])
        at = row["doc_stop"]
    return out


def duplicate_groups(tables: Tables) -> str:
    """The largest clusters whose members have excerpts: a member's difference against the representative."""
    clusters, excerpts = tables.get("clusters"), tables.get("excerpts")
    if clusters is None or excerpts is None or not excerpts.num_rows:
        return ""
    text: dict[int, str] = {}
    for row in excerpts.sort_by([("doc_key", "ascending"), ("doc_start", "ascending")]).to_pylist():
        text[row["doc_key"]] = text.get(row["doc_key"], "") + row["text"]
    near = clusters.filter(pc.equal(clusters["kind"].cast(pa.string()), pa.scalar("near")))
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in near.filter(pc.is_in(near["doc_key"], value_set=pa.array(list(text), pa.int64()))).to_pylist():
        groups.setdefault(row["cluster"], []).append(row)
    out = []
    for number_, rows in sorted(groups.items(), key=lambda x: -len(x[1]))[:GROUPS]:
        best = rows[0]["representative"]
        others = [r for r in rows if r["doc_key"] != best][:MEMBERS]
        if best in text and others:
            shown = "".join(
                f"<p class='soft small'>document {r['doc_key'] & DOC_MASK:,}, similarity {number(r['jaccard'], 2)}</p><div class='doc' tabindex=0 dir=auto>{difference(text[best], text[r['doc_key']])}</div>"
                for r in others
            )
            out.append(
                f"<details><summary>near cluster {number_}: {len(rows):,} suspected members against document {best & DOC_MASK:,}</summary>{shown}</details>"
            )
    return card("<h3>copies against their representative</h3>" + "".join(out)) if out else ""


def difference(old: str, new: str) -> str:
    """What differs, word by word, as HTML: removed struck through, added underlined."""
    a, b = (t[:SHOWN].split(" ") for t in (old, new))
    out = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag in ("delete", "replace"):
            out.append(f'<span class="del">{escape(" ".join(a[i:j]))}</span> ')
        if tag in ("insert", "replace"):
            out.append(f'<span class="ins">{escape(" ".join(b[k:m]))}</span> ')
        if tag == "equal":
            out.append(escape(" ".join(a[i:j])) + " ")
    return "".join(out)


def skeletons(tables: Tables) -> str:
    """Each template once, with its slots and how many documents follow it."""
    findings = tables.get("findings")
    if findings is None:
        return '<p class="none">This case holds no table `findings`.</p>'
    table = findings.filter(pc.equal(findings["cause"].cast(pa.string()), pa.scalar("template")))
    seen: dict[str, int] = {}
    for row in table.select(["detail"]).to_pylist():
        if row["detail"]:
            seen[row["detail"]] = seen.get(row["detail"], 0) + 1
    if not seen:
        return '<p class="none">No documents that follow one template were found.</p>'
    rows = sorted(seen.items(), key=lambda x: (-x[1], x[0]))[:30]
    return card("".join(f"<p class='soft small'>{n:,} documents</p><div class='doc' tabindex=0>{escape(text)}</div>" for text, n in rows))
