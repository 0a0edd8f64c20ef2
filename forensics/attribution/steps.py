"""What each step was made of, beside what was logged: the table `steps`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from forensics.attribution.evidence import Evidence
from forensics.attribution.loader_faults import repeated_tokens
from forensics.losses.difficulty import F64
from forensics.schemas import STEPS, Steps


def per_step(e: Evidence) -> Steps:
    """Composition, losses and marks of every step that was read."""
    line, n = e.line, len(e.line.steps)
    launch = np.zeros(n, dtype=np.int16)
    np.maximum.at(launch, line.at, line.launch.astype(np.int16))
    order = np.lexsort((line.doc, line.at))
    new_doc = np.ones(len(order), dtype=bool)
    new_doc[1:] = (np.diff(line.at[order]) != 0) | (np.diff(line.doc[order]) != 0)
    edges = np.searchsorted(line.at[order], np.arange(n + 1))
    lengths = e.features.length
    quantiles = np.zeros((3, n), dtype=np.int32)
    documents = np.zeros(n, dtype=np.int32)
    for i in range(n):
        part = order[edges[i] : edges[i + 1]]
        met = lengths[line.doc[part[new_doc[edges[i] : edges[i + 1]]]]]
        documents[i] = len(met)
        quantiles[:, i] = np.quantile(met, [0.5, 0.95, 1.0]) if len(met) else 0
    rows = np.bincount(e.rows.at, minlength=n)
    w = e.excess
    scored = expected = total = np.full(n, np.nan)
    if w is not None:
        ok = np.isfinite(w.loss) & np.isfinite(w.value)
        scored, expected = _mean(e, np.where(ok, w.loss, 0), ok), _mean(e, np.where(ok, w.expected, 0), ok)
        total = np.where(line.per_step(ok) > 0, line.per_step(np.where(ok, w.value * line.labels, 0)), np.nan)
    shift = e.drift if e.drift is not None else e.shift
    findings = _flagged(e)
    duplicate = np.zeros(len(line.keys), dtype=bool)
    for slab in e.slabs:
        if slab.group.kind in {"duplicate", "template"}:
            duplicate[slab.group.docs] = True
    table = {
        "launch": launch,
        "step": line.steps,
        "role": _roles(e),
        "trained": np.ones(n, dtype=bool),
        "sequences": rows.astype(np.int32),
        "documents": documents,
        "tokens": line.tokens.astype(np.int64),
        "length_p50": quantiles[0],
        "length_p95": quantiles[1],
        "length_max": quantiles[2],
        "repeated_tokens": repeated_tokens(line, e.rows).astype(np.int64),
        "train_loss": _null(e.log.get("train_loss").at(line.steps)),
        "grad_norm": _null(e.log.get("grad_norm").at(line.steps)),
        "learning_rate": _null(e.log.get("learning_rate").at(line.steps)),
        "scored_loss": _null(scored),
        "expected_loss": _null(expected),
        "difficulty": _null(_mean(e, e.difficulty, np.ones(len(line.at), dtype=bool))),
        "excess": _null(total),
        "shift": _null(shift.value if shift is not None else np.full(n, np.nan)),
        "odd_tokens": line.per_step(line.labels * e.odd.odd[line.doc]).astype(np.int64),
        "flagged_tokens": line.per_step(line.labels * findings[line.doc]).astype(np.int64),
        "duplicate_tokens": line.per_step(line.labels * duplicate[line.doc]).astype(np.int64),
    }
    return Steps(STEPS.of(pa.table(table)))


def _mean(e: Evidence, value: F64, ok: np.ndarray) -> F64:
    weight = e.line.per_step(e.line.labels * ok)
    return np.where(weight > 0, e.line.per_step(np.where(ok, value * e.line.labels, 0)) / np.maximum(weight, 1), np.nan)


def _null(x: F64) -> Any:
    return pa.array(x, mask=np.isnan(x))


def _roles(e: Evidence) -> list[str]:
    out = []
    for i, s in enumerate(e.line.steps.tolist()):
        if s in e.ranges.window:
            out.append("window")
        elif e.ordinary[i]:
            out.append("baseline")
        elif s < e.ranges.window.start:
            out.append("lookback")
        else:
            out.append("after")
    return out


def _flagged(e: Evidence) -> np.ndarray:
    marked = np.zeros(len(e.line.keys), dtype=bool)
    found = e.inputs.findings
    if found is not None and found.num_rows:
        bad = np.unique(found.column("doc_key").to_numpy()[np.asarray(found.column("garbage").to_numpy(zero_copy_only=False), dtype=bool)])
        marked = np.isin(e.line.keys, bad)
    return marked
