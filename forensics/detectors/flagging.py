"""Measures against thresholds: the findings table, and one primary cause per document.

Precedence (configurable): repetition, placeholder, encoded, binary, mojibake, markup, template, then the rest. One exception, argued here: a
page of mark-up or packed code that stands several times in a document is a repetition of something that is garbage by itself. Where the repeated unit is
longer than
`UNIT` characters and nearly all of it is claimed by `encoded` or `markup`, that cause is named: removing the copies would not mend the document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forensics.detectors.base import DETECTORS, Evidence, Measures
from forensics.detectors.thresholds import Rule, Thresholds
from forensics.schemas import FINDINGS, Findings

UNIT = 150
CAUSE = {"periods": "repetition", "unknown": "language"}  # detectors whose findings go by another name
ALONE = {"periods": "repetition"}  # ... and decide only where that detector could not run
BY_UNIT = ("encoded", "markup")


def flag(measures: Measures, config: Thresholds) -> Findings:
    """Findings of a batch: what reaches its threshold, one row per document and detector.

    The measure named is the one that makes it garbage, or else the one that is farthest over its threshold.
    """
    rows: list[dict[str, Any]] = []
    per_document: dict[int, list[dict[str, Any]]] = {}
    for name in sorted(measures.columns):
        rules = config.rules.get(name, {})
        for i in _candidates(measures, name, rules).tolist():
            decides = ALONE.get(name, name) == name or ALONE[name] in measures.not_evaluated
            row = _row(measures, name, rules, i, decides and CAUSE.get(name, name) in config.garbage)
            if row is not None:
                per_document.setdefault(i, []).append(row)
    for i, found in sorted(per_document.items(), key=lambda item: int(measures.doc_key[item[0]])):
        _choose(found, config.precedence, {n: e[i] for n, e in measures.evidence.items() if i in e}, measures, i)
        rows += found
    columns = {c.name: [r[c.name] for r in rows] for c in FINDINGS.columns}
    return Findings(FINDINGS.of(columns) if rows else FINDINGS.empty())


def _candidates(measures: Measures, name: str, rules: dict[str, Rule]) -> np.ndarray[Any, np.dtype[np.intp]]:
    columns = measures.columns[name]
    hit = np.zeros(len(measures.doc_key), np.bool_)
    for measure, rule in rules.items():
        over = columns[measure] >= np.float32(rule.report)
        for other, least in rule.floor.items():
            over &= columns[other] >= np.float32(least)
        hit |= over
    return np.flatnonzero(hit)


def _row(measures: Measures, name: str, rules: dict[str, Rule], i: int, may_be_garbage: bool) -> dict[str, Any] | None:
    columns = measures.columns[name]
    best: tuple[bool, float, str, float] | None = None
    for measure, rule in rules.items():
        value = float(columns[measure][i])
        if value < np.float32(rule.report) or any(columns[o][i] < np.float32(v) for o, v in rule.floor.items()):
            continue
        garbage = may_be_garbage and rule.garbage is not None and value >= float(np.float32(rule.garbage))
        garbage = garbage and all(columns[o][i] >= np.float32(v) for o, v in rule.garbage_floor.items())
        over = value / rule.report if rule.report > 0 else 1.0
        if best is None or (garbage, over) > best[:2]:
            best = (garbage, over, measure, rule.garbage if garbage and rule.garbage is not None else rule.report)
    if best is None:
        return None
    evidence = measures.evidence.get(name, {}).get(i)
    return {
        "doc_key": int(measures.doc_key[i]), "detector": name, "measure": best[2], "cause": CAUSE.get(name, name), "primary": False, "garbage": best[0],
        "version": DETECTORS.get(name).version, "value": float(columns[best[2]][i]), "threshold": best[3],
        "detail": evidence.detail if evidence else None,
        "spans": [{"start": a, "stop": b} for a, b in evidence.spans] if evidence else None,
    }  # fmt: skip


def _choose(found: list[dict[str, Any]], precedence: Sequence[str], evidence: dict[str, Evidence], measures: Measures, i: int) -> None:
    """Mark the primary finding of one document."""
    place = {cause: k for k, cause in enumerate(precedence)}
    found.sort(key=lambda r: (not r["garbage"], r["detector"] in ALONE, place.get(r["cause"], len(place)), r["cause"]))
    first = found[0]
    if first["detector"] == "repetition" and measures.columns["repetition"]["unit"][i] >= UNIT:
        for other in found[1:]:
            if other["garbage"] and other["cause"] in BY_UNIT and _covered(evidence["repetition"].spans, evidence[other["cause"]].spans) >= 0.8:
                first = other
                break
    first["primary"] = first["garbage"] or first["detector"] not in ALONE
    found.sort(key=lambda r: (r["detector"], r["measure"]))


def _covered(inner: Sequence[tuple[int, int]], outer: Sequence[tuple[int, int]]) -> float:
    """Share of the first ranges that the second ones cover."""
    total = sum(b - a for a, b in inner)
    return sum(max(0, min(b, d) - max(a, c)) for a, b in inner for c, d in outer) / total if total else 0.0
