"""Documents that are long or short for their source: a pass of its own, since one document alone has no usual length.

    counts = length_merge([length_count(batch) for batch in ...])      # partitions, in any order
    findings = length_flag(batch, counts, seq_length)

Lengths are counted in bins of a quarter octave per source, so that partitions add up and the result does not depend on how documents are split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.schemas import FINDINGS, Documents, Findings
from forensics.stores.batch import DocumentBatch
from forensics.stores.vocab import byte_vocabulary

BINS = 160
FAR = 1e-4  # share of a source's documents that are as long or longer
LEAST = 1000  # documents of a source from which its usual lengths are known
ROWS = 8  # a document that fills so many sequences in a row is named whatever its source

Counts = dict[str, NDArray[np.int64]]


def _bin(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.minimum((4 * np.log2(np.maximum(lengths, 1))).astype(np.int64), BINS - 1)


def length_count(batch: DocumentBatch) -> Counts:
    """Documents per source and bin of length."""
    sources = np.array(batch.source if batch.source is not None else [""] * len(batch))
    return {str(s): np.bincount(_bin(batch.lengths[sources == s]), minlength=BINS) for s in np.unique(sources)}


def length_merge(parts: Iterable[Mapping[str, NDArray[np.int64]]]) -> Counts:
    """The sum of partitions."""
    out: Counts = {}
    for part in parts:
        for source, counts in part.items():
            out[source] = out.get(source, np.zeros(BINS, np.int64)) + counts
    return out


def length_flag(batch: DocumentBatch, counts: Mapping[str, NDArray[np.int64]], seq_length: int | None = None) -> Findings:
    """Documents longer than nearly all of their source, or longer than several training sequences, which text says nothing of before it is tokenised."""
    rows, unit = [], "bytes" if batch.is_text else "tokens"
    for i, length in enumerate(batch.lengths.tolist()):
        source = batch.source[i] if batch.source is not None else ""
        known = counts.get(source, np.zeros(BINS, np.int64))
        total = int(known.sum())
        above = int(known[_bin(np.array([length]))[0] :].sum())
        far = total >= LEAST and above <= FAR * total and length > 1
        fills = length / seq_length if seq_length and not batch.is_text else 0.0
        if not far and fills < ROWS:
            continue
        usual = f"{length:,} {unit}; {above} of {total:,} documents of this source are as long"
        if fills >= ROWS:
            value, threshold, name, detail = fills, float(ROWS), "sequences", f"{length:,} tokens fill {fills:.0f} sequences in a row"
        else:
            value, threshold, name, detail = above / total, FAR, "as_long", usual
        row = {"doc_key": int(batch.doc_key[i]), "detector": "length", "measure": name, "cause": "length", "primary": False, "garbage": False, "version": 1}
        rows.append({**row, "value": value, "threshold": threshold, "detail": detail, "spans": None})
    return Findings(FINDINGS.of({c.name: [r[c.name] for r in rows] for c in FINDINGS.columns}) if rows else FINDINGS.empty())


def length_findings(documents: Documents, seq_length: int | None = None, texts: Sequence[int] = ()) -> Findings:
    """`length_flag` over a whole table of documents; `texts` are the data files whose documents are text."""
    of_text = np.isin(documents["corpus_id"].to_numpy(), list(texts))
    if of_text.any() and not of_text.all():
        parts = (Documents(documents.filter(pa.array(mine))) for mine in (of_text, ~of_text))
        return Findings(FINDINGS.sorted(FINDINGS.concat([length_findings(part, seq_length, texts) for part in parts])))
    source = [s or "" for s in documents["source"].cast(pa.string()).to_pylist()]
    keys, lengths = documents["doc_key"].to_numpy(), documents["tokens"].to_numpy()
    labels = np.array(source)
    counts = {str(s): np.bincount(_bin(lengths[labels == s]), minlength=BINS) for s in np.unique(labels)}
    longest = {s: _longest_usual(c) for s, c in counts.items()}
    far = np.array([n >= longest[s] for s, n in zip(source, lengths.tolist())], np.bool_)
    if seq_length:
        far |= lengths >= ROWS * seq_length
    chosen = np.flatnonzero(far)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[chosen])])
    batch = DocumentBatch(np.zeros(0, np.uint8), offsets, keys[chosen], byte_vocabulary() if of_text.any() else None, [source[i] for i in chosen.tolist()])
    return length_flag(batch, counts, seq_length)


def _longest_usual(counts: NDArray[np.int64]) -> float:
    """Tokens from which a document may be among the longest of a source."""
    total = int(counts.sum())
    above = np.cumsum(counts[::-1])[::-1]
    rare = np.flatnonzero(above <= FAR * total)
    return float(2 ** ((int(rare[0]) - 1) / 4)) if total >= LEAST and len(rare) else float("inf")
