"""`report.md`: the answer for an issue or a chat, from the same tables as the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from forensics.files import write_text
from forensics.reports.base import number, percent, shown
from forensics.reports.series import read_curve, thin
from forensics.reports.tables import Tables
from forensics.reports.terminal import sparkline

MOST = 10


def inert(text: object) -> str:
    """Text from strangers inside Markdown: one line, control characters visible, nothing that a renderer acts on."""
    flat = shown(str(text)).replace("\n", " ")
    return re.sub(r"([\\|<>\[\]*_#!~@])", r"\\\1", flat)


def table(head: list[str], rows: list[list[object]]) -> list[str]:
    """Lines of a Markdown table."""
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(inert(number(v)) for v in row) + " |" for row in rows), ""]


def markdown(tables: Tables) -> str:
    """The answer, what to do, evidence, curves, first suspects, what was not evaluated."""
    verdict: dict[str, Any] = tables.case.json("verdict.json") or {}
    if not verdict:
        return "# forensics replay\n\nThis case holds no verdict: the replay did not come to its end.\n"
    cause = verdict["cause"] + (f" ({verdict['subcause']})" if verdict.get("subcause") else "")
    out = [f"# Steps {verdict['window'][0]} to {verdict['window'][1] - 1}: {inert(cause)}", "", f"**{inert(verdict['sentence'])}**", ""]
    out += [
        f"severity {inert(verdict['severity'])}, cause {inert(cause)}, confidence {inert(verdict['confidence'])}",
        "",
        f"Do: {inert(verdict['action'])}",
        "",
    ]
    out += [f"- for: {inert(x)}" for x in verdict.get("evidence_for") or []] + [f"- against: {inert(x)}" for x in verdict.get("evidence_against") or []] + [""]
    out += _curve(tables, verdict) + _suspects(tables)
    open_ = verdict.get("not_evaluated") or []
    if open_:
        out += ["Not evaluated:", "", *(f"- {inert(x['what'])}: {inert(x['why'])}" for x in open_), ""]
    out.append(f"Made by forensics {tables.case.info.get('tool', '')}; the whole report is `report.html`, the skip list lies in `manifest/`.")
    return "\n".join(out) + "\n"


def _curve(tables: Tables, verdict: dict[str, Any]) -> list[str]:
    metrics = tables.get("metrics")
    if metrics is None or not metrics.num_rows:
        return []
    spans = tables.roles(verdict).values()
    curve = read_curve(metrics, "train_loss", None, min(a for a, _ in spans), max(b for _, b in spans)) if spans else read_curve(metrics, "train_loss")
    if curve is None:
        return []
    curve = curve.part(thin(curve))
    return ["```", f"train_loss, steps {curve.step[0]} to {curve.step[-1]}", sparkline(curve.value, 72), "```", ""]


def _suspects(tables: Tables) -> list[str]:
    found = tables.get("suspects")
    if found is None or not found.num_rows:
        return []
    rows = found.slice(0, MOST).to_pylist()
    head = ["#", "what", "reasons", "tokens", "excess [nats]", "of excess"]
    shown_rows: list[list[object]] = [
        [r["rank"], r["label"], ", ".join(r["reasons"] or []), r["tokens_window"], r["excess"], percent(r["share"])] for r in rows
    ]
    more = [f"{found.num_rows - MOST:,} more in `tables/suspects.parquet`.", ""] if found.num_rows > MOST else []
    return table(head, shown_rows) + more


def write_markdown(tables: Tables, path: Path) -> Path:
    """Write `report.md`."""
    write_text(path, markdown(tables))
    return path
