"""Text of suspects for reports: around their evidence, length-limited, personal data masked, cut at the edges of spans.

Every piece is a row; a piece that lies inside a finding's span is evidence. Where losses per label are known, pieces are
single tokens, so that each can be coloured by its own loss.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forensics.schemas import EXCERPTS, Excerpts, Findings
from forensics.stage import stage
from forensics.stores.batch import DocumentBatch
from forensics.text import redactions, visible

CONTEXT, SPAN_TOKENS, SPANS, HEAD = 40, 300, 6, 400
HEAT_TOKENS = 400
EDGE = 24  # tokens before and after an excerpt that are read to know addresses that its edge cuts
BYTES = 4  # bytes shown for each token where a corpus is text


class Documents(Protocol):
    """Where documents can be had."""

    def documents(self, doc_keys: NDArray[np.int64]) -> DocumentBatch:
        """Whole documents in the order given."""
        ...


@stage(EXCERPTS, version=2)
def read_excerpts(doc_keys: NDArray[np.int64], store: Documents, findings: Findings, mask: bool = True, heat: NDArray[np.int64] | None = None) -> Excerpts:
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
        scale = BYTES if batch.is_text else 1
        cuts = [(k, k + 1) for k in range(min(length, HEAT_TOKENS))] if key in single else pieces(length, spans.get(key, ()), scale)
        for stretch in stretches(cuts):
            for (start, stop), (text, masked) in zip(stretch, texts(batch, i, stretch, mask, EDGE * scale), strict=True):
                for name, value in zip(columns, (key, start, stop, visible(text), masked), strict=True):
                    columns[name].append(value)
    return Excerpts(EXCERPTS.of(columns))


def stretches(cuts: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Pieces that follow each other without a gap, together."""
    out: list[list[tuple[int, int]]] = []
    for cut in cuts:
        if out and out[-1][-1][1] == cut[0]:
            out[-1].append(cut)
        else:
            out.append([cut])
    return out


def texts(batch: DocumentBatch, i: int, cuts: Sequence[tuple[int, int]], mask: bool, edge: int) -> list[tuple[str, bool]]:
    """Text of neighbouring pieces, and whether something in each was masked.

    Characters whose bytes lie in two pieces stand in the later one; what is masked is looked for across pieces and a little
    beyond the outer edges, and its mask stands in the piece where it begins.
    """
    tokens, vocabulary = batch.tokens_of(i), batch.vocabulary
    assert vocabulary is not None
    first, last = cuts[0][0], cuts[-1][1]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    parts: list[str] = []
    for start, stop in [(max(0, first - edge), first), *cuts, (last, last + edge)]:
        raw = vocabulary.decode(tokens[start:stop])
        if not parts and start:
            raw = raw.lstrip(bytes(range(0x80, 0xC0)))  # the rest of a character that began before
        parts.append(decoder.decode(raw))
    if not mask:
        return [(part, False) for part in parts[1:-1]]
    bounds = np.concatenate([[0], np.cumsum([len(p) for p in parts])]).tolist()
    shown: list[list[str]] = [[] for _ in parts]
    hit = [False] * len(parts)
    whole, at = "".join(parts), 0
    for start, stop, name in [*redactions(whole), (len(whole), len(whole), "")]:
        for k in range(len(parts)):
            a, b = max(at, bounds[k]), min(start, bounds[k + 1])
            if a < b:
                shown[k].append(whole[a:b])
            if name and bounds[k] < stop and start < bounds[k + 1]:
                hit[k] = True
        if name:
            k = int(np.searchsorted(bounds, start, side="right")) - 1
            shown[k if k else 1].append(name)
        at = stop
    return [("".join(shown[k]), hit[k]) for k in range(1, len(parts) - 1)]


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


def pieces(length: int, spans: Sequence[tuple[int, int]], scale: int = 1) -> list[tuple[int, int]]:
    """Token ranges to show: each of the first spans, cut to a length, with context before and after; else the head."""
    chosen = [(a, min(b, a + SPAN_TOKENS * scale, length)) for a, b in spans if a < length][:SPANS]
    if not chosen:
        return [(0, min(length, HEAD * scale))] if length else []
    room = CONTEXT * scale
    out: list[tuple[int, int]] = []
    at = 0
    for n, (a, b) in enumerate(chosen):
        following = chosen[n + 1][0] if n + 1 < len(chosen) else length
        before = max(at, a - room)
        if before < a:
            out.append((before, a))
        out.append((a, b))
        at = b
        after = min(b + room, following)
        if after > b and (n + 1 == len(chosen) or following - b > room):
            out.append((b, after))
            at = after
    return out
