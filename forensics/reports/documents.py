"""Documents as reports show them: excerpts with evidence marked, copies against their representative, skeletons."""

from __future__ import annotations

import difflib
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.reports.base import card, escape, number
from forensics.reports.charts import codes
from forensics.reports.plots import matrix
from forensics.reports.series import chosen
from forensics.reports.tables import Tables, absent
from forensics.schemas import DOC_BITS, DOC_MASK
from forensics.text import SLOT, excerpt

GROUPS, MEMBERS, SHOWN, TEMPLATES, SOURCES = 12, 3, 1500, 20, 25
PIECE = 6000  # characters of one piece: tokens can be long, documents may be one line


def document_views(tables: Tables) -> dict[str, Any]:
    """For every document with an excerpt: title, facts, and its text in pieces (text, kind, and for heat strength, nats, evidence)."""
    excerpts = tables.get("excerpts")
    if excerpts is None or not excerpts.num_rows:
        return {}
    texts: dict[int, list[dict[str, Any]]] = {}
    for row in excerpts.to_pylist():
        texts.setdefault(row["doc_key"], []).append(row)
    keys = pa.array(sorted(texts), pa.int64())
    findings = _by_key(tables.get("findings"), keys)
    documents = {k: v[0] for k, v in _by_key(tables.get("documents"), keys).items()}
    losses = token_losses(tables, keys)
    return {str(key): _view(tables, key, rows, documents.get(key, {}), findings.get(key, []), losses.get(key)) for key, rows in texts.items()}


def _view(
    tables: Tables, key: int, rows: list[dict[str, Any]], doc: dict[str, Any], findings: list[dict[str, Any]], losses: list[float] | None
) -> dict[str, Any]:
    spans = [(s["start"], s["stop"]) for f in findings if f["primary"] for s in f["spans"] or []]
    known = [
        ("source", doc.get("source")), ("name", tables.masked(doc.get("name"))), ("crawl", doc.get("crawl")), ("language", doc.get("language")), ("tokens", doc.get("tokens") if tables.unit != "bytes" else None),
        ("bytes", doc.get("bytes")), ("met in steps", _steps(doc)), ("tokens read in the window", doc.get("used_window")), ("in the baseline", doc.get("used_baseline")),
    ]  # fmt: skip
    known += [
        (f"{f['cause']}{' (primary)' if f['primary'] else ''}", _found(f, tables.masked(f["detail"]))) for f in sorted(findings, key=lambda f: not f["primary"])
    ]
    scale = heat_scale(losses) if losses is not None else None
    part: dict[str, Any] = {"pieces": _pieces(rows, spans, losses, scale, tables.unit)}
    said = ["evidence is marked" if spans else "", "personal data are masked" if any(r["redacted"] for r in rows) else ""]
    if any(said):
        part["label"] = "; ".join(s for s in said if s)
    if scale is not None:
        part["range"] = scale
    return {"title": f"document {key & DOC_MASK:,} of corpus {key >> DOC_BITS}", "facts": [[k, v] for k, v in known if v is not None], "parts": [part]}


def _found(f: dict[str, Any], detail: str | None) -> str:
    value, threshold = number(f["value"]), number(f["threshold"])
    return f"{f['measure']} {value} (threshold {threshold})" + (f"; {detail}" if detail else "")


def _steps(doc: dict[str, Any]) -> str | None:
    return None if doc.get("first_step") is None else f"{doc['first_step']:,} to {doc['last_step']:,}"


def _by_key(table: pa.Table | None, keys: pa.Array[Any]) -> dict[int, list[dict[str, Any]]]:
    out: dict[int, list[dict[str, Any]]] = {}
    if table is not None:
        for row in table.filter(pc.is_in(table["doc_key"], value_set=keys)).to_pylist():
            out.setdefault(row["doc_key"], []).append(row)
    return out


def token_losses(tables: Tables, keys: pa.Array[Any]) -> dict[int, list[float]]:
    """Loss of each token from the document's beginning on, NaN where it was not read, for documents that have them.

    The first token of a row is no label, so the losses of its first segment begin one token later.
    """
    table = tables.get("token_losses")
    consumed = tables.columns("consumed", ("step", "sequence", "seq_start", "doc_key", "doc_start"))
    if table is None or consumed is None:
        return {}
    read = consumed.filter(pc.is_in(consumed["doc_key"], value_set=keys)).to_pylist()
    place = {(r["step"], r["sequence"], r["seq_start"]): r["doc_start"] for r in read}
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


def heat_scale(losses: list[float]) -> list[float] | None:
    """Losses at which the two colours of a heat map are full: a document's 5th and 95th percentile, at least one nat apart."""
    known = sorted(v for v in losses if math.isfinite(v))
    if not known:
        return None
    low, high = known[len(known) // 20], known[min(len(known) - 1, len(known) * 19 // 20)]
    spare = max(0.0, 1.0 - (high - low)) / 2
    return [low - spare, high + spare]


def heat(value: float, scale: list[float]) -> float:
    """Strength of the colour of a loss, from -1 (low) to 1 (high)."""
    low, high = scale
    return max(-1.0, min(1.0, (2 * value - low - high) / (high - low)))


def _pieces(rows: list[dict[str, Any]], spans: list[tuple[int, int]], losses: list[float] | None, scale: list[float] | None, unit: str) -> list[list[Any]]:
    out: list[list[Any]] = []
    at = 0
    for row in sorted(rows, key=lambda r: r["doc_start"]):
        if row["doc_start"] > at:
            out.append([f"\n⟨{row['doc_start'] - at:,} {unit} left out⟩\n", "soft"])
        at, text = row["doc_stop"], excerpt(row["text"], PIECE)
        inside = any(a <= row["doc_start"] and row["doc_stop"] <= b for a, b in spans)
        loss = losses[row["doc_start"]] if losses is not None and at - row["doc_start"] == 1 and row["doc_start"] < len(losses) else math.nan
        if scale is not None and math.isfinite(loss):
            out.append([text, "heat", heat(loss, scale), loss, *([1] if inside else [])])
        else:
            out.append([text, "mark" if inside else ""])
    return out


def duplicate_groups(tables: Tables) -> str:
    """The largest clusters whose members have excerpts: a member's difference against the representative."""
    clusters, excerpts = tables.get("clusters"), tables.get("excerpts")
    if clusters is None or excerpts is None or not excerpts.num_rows:
        return ""
    text: dict[int, str] = {}
    for row in excerpts.sort_by([("doc_key", "ascending"), ("doc_start", "ascending")]).to_pylist():
        text[row["doc_key"]] = text.get(row["doc_key"], "") + row["text"]
    near = clusters.filter(pa.array(chosen(clusters["kind"], "near") | chosen(clusters["kind"], "exact")))
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in near.filter(pc.is_in(near["doc_key"], value_set=pa.array(list(text), pa.int64()))).to_pylist():
        groups.setdefault((row["kind"], row["cluster"]), []).append(row)
    out = [_group(f"{kind} cluster {n}", rows, text) for (kind, n), rows in sorted(groups.items(), key=lambda x: (-len(x[1]), x[0]))[:GROUPS]]
    return card("<h3>copies against their representative</h3>" + "".join(out)) if any(out) else ""


def _group(name: str, rows: list[dict[str, Any]], text: dict[int, str]) -> str:
    best = rows[0]["representative"] if rows[0]["representative"] in text else rows[0]["doc_key"]
    others = [r for r in rows if r["doc_key"] != best][:MEMBERS]
    shown = [
        f'<p class="soft small">document {r["doc_key"] & DOC_MASK:,} of corpus {r["doc_key"] >> DOC_BITS}'
        + (f", similarity {number(r['jaccard'], 2)}" if r["jaccard"] is not None else "")
        + f'</p><div class="doc" tabindex="0" dir="auto" role="region" aria-label="difference">{difference(text[best], text[r["doc_key"]])}</div>'
        for r in others
    ]
    head = f"{name}: {len(rows):,} suspected members, against document {best & DOC_MASK:,} of corpus {best >> DOC_BITS}"
    return f"<details><summary>{escape(head)}</summary>{''.join(shown)}</details>" if shown else ""


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
        return absent(tables, "findings")
    details: Any = findings.filter(pa.array(chosen(findings["cause"], "template")))["detail"].drop_null()
    if not len(details):
        return card('<p class="none">No documents that follow one template were found.</p>')
    counts: list[dict[str, Any]] = details.value_counts().to_pylist()
    rows = sorted(((str(c["values"]), int(c["counts"])) for c in counts), key=lambda x: (-x[1], x[0]))
    out = []
    for text, n in rows[:TEMPLATES]:
        body = f'<span class="slot">{SLOT}</span>'.join(escape(part) for part in excerpt(tables.masked(text) or "", SHOWN).split(SLOT))
        out.append(
            f'<p class="soft small">{n:,} document{"s" if n > 1 else ""}</p><div class="doc" tabindex="0" role="region" aria-label="template">{body}</div>'
        )
    more = f'<p class="soft small">{len(rows) - TEMPLATES:,} more in <code>tables/findings</code>.</p>' if len(rows) > TEMPLATES else ""
    return card(f'<p class="soft small">Text that stays, and {SLOT} where documents differ.</p>' + "".join(out) + more)


def causes_by_source(tables: Tables) -> str:
    """Documents with each primary cause, by source."""
    findings, documents = tables.get("findings"), tables.columns("documents", ("doc_key", "source"))
    if findings is None or documents is None or not findings.num_rows or not documents.num_rows:
        return ""
    found = findings.filter(findings["primary"])
    names, source = codes(documents["source"])
    causes, cause = codes(found["cause"])
    if not causes:
        return ""
    at = source[np.minimum(np.searchsorted(documents["doc_key"].to_numpy(), found["doc_key"].to_numpy()), documents.num_rows - 1)]
    values = np.bincount(at * len(causes) + cause, minlength=len(names) * len(causes)).reshape(len(names), len(causes)).astype(float)
    kept = np.argsort(-values.sum(axis=1), kind="stable")[:SOURCES]
    kept = kept[values[kept].sum(axis=1) > 0]
    return card("<h3>documents by source and primary cause</h3>" + matrix([names[k] for k in kept], causes, values[kept], "documents by source and cause"))


def clusters_by_source(tables: Tables) -> str:
    """Documents of each source in the largest clusters of copies and templates."""
    clusters, documents = tables.columns("clusters", ("kind", "cluster", "doc_key")), tables.columns("documents", ("doc_key", "source"))
    if clusters is None or documents is None or not documents.num_rows:
        return ""
    clusters = clusters.filter(pa.array(np.any([chosen(clusters["kind"], k) for k in ("exact", "near", "template")], axis=0)))
    if not clusters.num_rows:
        return ""
    kinds, kind = codes(clusters["kind"])
    names, source = codes(documents["source"])
    groups, group, size = np.unique(kind + len(kinds) * clusters["cluster"].to_numpy(), return_inverse=True, return_counts=True)
    top = np.argsort(-size, kind="stable")[:GROUPS]
    rank = np.full(len(groups), -1)
    rank[top] = np.arange(len(top))
    mine = rank[group] >= 0
    at = source[np.minimum(np.searchsorted(documents["doc_key"].to_numpy(), clusters["doc_key"].to_numpy()), documents.num_rows - 1)]
    values = np.bincount(at[mine] * len(top) + rank[group][mine], minlength=len(names) * len(top)).reshape(len(names), len(top)).astype(float)
    kept = np.argsort(-values.sum(axis=1), kind="stable")[:SOURCES]
    kept = kept[values[kept].sum(axis=1) > 0]
    labels = [f"{kinds[g % len(kinds)]} {g // len(kinds)}" for g in groups[top].tolist()]
    head = f"<h3>documents by source and cluster, the {len(top)} largest clusters</h3>"
    return card(head + matrix([names[k] for k in kept], labels, values[kept], "documents by source and cluster"))


def copies_by_source(tables: Tables) -> str:
    """Tokens, or bytes, of each source that have a copy in another one, or within their own."""
    found = tables.get("source_matrix")
    if found is None or not found.num_rows:
        return ""
    rows = found.to_pylist()
    names = sorted({r["source"] for r in rows} | {r["other"] for r in rows})
    weight = {name: sum(r["tokens"] for r in rows if r["source"] == name) for name in names}
    kept = sorted(names, key=lambda n: (-weight[n], n))[:SOURCES]
    values = np.zeros((len(kept), len(kept)))
    for r in rows:
        if r["source"] in kept and r["other"] in kept:
            values[kept.index(r["source"]), kept.index(r["other"])] = r["tokens"]
    return card(f"<h3>who copies whom: {tables.unit} of a source (row) with a near copy in another (column)</h3>" + matrix(kept, kept, values, "copies between sources"))
