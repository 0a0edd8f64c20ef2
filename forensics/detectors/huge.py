"""Documents too large for tables of their whole text: looked at in pieces, and put together again.

The tables of a text take about a hundred bytes a token, so a document of a hundred million tokens would need ten gigabytes. It is cut at whole
characters into pieces of `PIECE` ids; shares are averaged by length, the longest of anything is that of any piece, evidence is moved to its place. What
reaches over a cut is measured in two parts, and shown as one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forensics.detectors.base import SPANS_KEPT, Columns, Detector, Evidence, Found
from forensics.stores.batch import DocumentBatch

PIECE = 1 << 21  # ids; no document of a usual corpus has more
LOOK = 1 << 10  # ids after a cut among which one that begins a character is searched
AT_THE_END = ("cut",)  # measures of how a document ends


def pieces(alone: DocumentBatch, size: int) -> list[tuple[int, DocumentBatch]]:
    """A batch of one document as batches of parts of it, with the id that each begins at."""
    length = len(alone.tokens)
    cuts = [0]
    while length - cuts[-1] > size + LOOK:
        cuts.append(_boundary(alone, cuts[-1] + size))
    bounds = [*cuts, length]
    return [
        (a, DocumentBatch(alone.tokens[a:b], np.array([0, b - a], np.int64), alone.doc_key, alone.vocabulary, alone.source)) for a, b in zip(bounds, bounds[1:])
    ]


def _boundary(alone: DocumentBatch, at: int) -> int:
    """The first id from here on that begins with ASCII, or this one where none is near."""
    assert alone.vocabulary is not None
    for i in range(at, at + LOOK):
        raw = alone.vocabulary.bytes_of(int(alone.tokens[i]))
        if raw and raw[0] < 0x80:
            return i
    return at


def join(detector: Detector, found: Sequence[Found], starts: Sequence[int], lengths: Sequence[int]) -> Found:
    """One document's numbers and evidence from those of its pieces.

    Args:
        detector: whose they are.
        found: one row per piece, in order.
        starts, lengths: where each piece begins, and its ids.
    """
    weight = np.asarray(lengths, np.float64) / max(1, sum(lengths))
    columns: Columns = {}
    for m in detector.measures:
        values = np.array([f.columns[m.name][0] for f in found], np.float64)
        value = values[-1] if m.name in AT_THE_END else (values * weight).sum() if m.unit == "1" else values.max()
        columns[m.name] = np.array([value], np.float32)
    evidence = [(start, f.evidence[0]) for start, f in zip(starts, found) if 0 in f.evidence]
    if not evidence:
        return Found(columns)
    spans: list[tuple[int, int]] = []
    for a, b in sorted((start + a, start + b) for start, e in evidence for a, b in e.spans):
        if spans and a <= spans[-1][1] and a in starts:
            spans[-1] = spans[-1][0], b
        else:
            spans.append((a, b))
    kept = sorted(sorted(spans, key=lambda s: s[0] - s[1])[:SPANS_KEPT])
    best = max((e for _, e in evidence), key=lambda e: sum(b - a for a, b in e.spans))
    return Found(columns, {0: Evidence(kept, best.detail)})
