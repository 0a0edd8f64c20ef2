"""Text of suspects for reports: around their evidence, length-limited, personal data masked, cut at the edges of spans.

Every piece is a row; a piece that lies inside a finding's span is evidence. Where losses per label are known, pieces are
single tokens, so that each can be coloured by its own loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from forensics.schemas import EXCERPTS, Excerpts, Findings
from forensics.stage import stage
from forensics.stores.base import TokenStore
from forensics.text import redact, visible

CONTEXT, SPAN_TOKENS, SPANS, HEAD = 40, 300, 6, 400
HEAT_TOKENS = 400


@stage(EXCERPTS, version=1)
def read_excerpts(doc_keys: NDArray[np.int64], store: TokenStore, findings: Findings, mask: bool = True, heat: NDArray[np.int64] | None = None) -> Excerpts:
    """Pieces of some documents; none without a vocabulary.

    Args:
        doc_keys: int64 [n].
        store: where their tokens are.
        findings: their spans mark evidence.
        mask: whether e-mail addresses, phone numbers and keys are masked.
        heat: documents whose first tokens are wanted one by one.
    """
    columns: dict[str, list[object]] = {"doc_key": [], "doc_start": [], "doc_stop": [], "text": [], "redacted": []}
    spans = spans_of(findings, set(doc_keys.tolist()))
    single = set(heat.tolist()) if heat is not None else set()
    batch = store.documents(np.unique(doc_keys))
    if batch.vocabulary is None:
        return Excerpts(EXCERPTS.empty())
    for i, key in enumerate(batch.doc_key.tolist()):
        length = int(batch.lengths[i])
        cuts = [(k, k + 1) for k in range(min(length, HEAT_TOKENS))] if key in single else pieces(length, spans.get(key, ()))
        for start, stop in cuts:
            text = batch.text(i, start, stop)
            shown, masked = redact(text) if mask else (text, False)
            for name, value in zip(columns, (key, start, stop, visible(shown), masked), strict=True):
                columns[name].append(value)
    return Excerpts(EXCERPTS.of(columns))


def spans_of(findings: Findings, keys: set[int]) -> Mapping[int, list[tuple[int, int]]]:
    """Evidence of each document, from its primary finding first: document -> token ranges, merged, ascending."""
    out: dict[int, list[tuple[int, int]]] = {}
    rows = findings.select(["doc_key", "primary", "spans"]).to_pylist()
    for row in sorted(rows, key=lambda r: not r["primary"]):
        if row["doc_key"] in keys and row["spans"] and row["doc_key"] not in out:
            merged: list[tuple[int, int]] = []
            for span in sorted((int(s["start"]), int(s["stop"])) for s in row["spans"]):
                if merged and span[0] <= merged[-1][1]:
                    merged[-1] = (merged[-1][0], max(merged[-1][1], span[1]))
                else:
                    merged.append(span)
            out[row["doc_key"]] = merged
    return out


def pieces(length: int, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Token ranges to show: each of the first spans, cut to a length, with context before and after; else the head."""
    chosen = [(a, min(b, a + SPAN_TOKENS, length)) for a, b in spans if a < length][:SPANS]
    if not chosen:
        return [(0, min(length, HEAD))] if length else []
    out: list[tuple[int, int]] = []
    at = 0
    for n, (a, b) in enumerate(chosen):
        following = chosen[n + 1][0] if n + 1 < len(chosen) else length
        before = max(at, a - CONTEXT)
        if before < a:
            out.append((before, a))
        out.append((a, b))
        at = b
        after = min(b + CONTEXT, following)
        if after > b and (n + 1 == len(chosen) or following - b > CONTEXT):
            out.append((b, after))
            at = after
    return out
