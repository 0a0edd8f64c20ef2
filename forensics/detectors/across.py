"""Templates across documents: many pages from one skeleton, other words in its slots. A pass of its own, by partition and merge.

    parts = [across_count(batch) for batch in ...]          # any split, any order
    shared = across_merge(parts)
    findings = across_flag(parts, shared)

Every document gives a sample of its skeleton: runs of four words (numbers are one word), those whose hash falls into one of `ONE_IN` residues, the same for all
documents. A piece that at least `DOCUMENTS` documents have is shared; a document most of whose pieces are shared with the same others, and that is no copy
of them, follows a template. Licences and
headers are shared pieces too, in documents that are something else besides: these stay below the share. Reported; garbage is for whoever knows the source to
say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forensics.detectors.rows import NUMBER, word_hashes
from forensics.schemas import FINDINGS, Findings
from forensics.stores.batch import DocumentBatch

ONE_IN, RUN = 4, 4
DOCUMENTS, SHARE, COPY, PIECES = 8, 0.4, 0.97, 6


@dataclass(frozen=True)
class Pieces:
    """A sample of skeletons: one row per document and distinct piece.

    Attributes:
        doc_key: int64 [rows], sorted.
        piece: uint64 [rows].
    """

    doc_key: NDArray[np.int64]
    piece: NDArray[np.uint64]


def _pieces(raw: NDArray[np.uint8]) -> NDArray[np.uint64]:
    whole = np.array([[k, min(k + 2048, len(raw))] for k in range(0, len(raw), 2048)], np.int64).reshape(-1, 2)
    hashes, counts, _ = word_hashes(raw, whole, 1024)
    words = np.concatenate([h[:n] for h, n in zip(hashes, counts)]) if len(whole) else np.zeros(0, np.uint32)
    if len(words) < RUN:
        return np.zeros(0, np.uint64)
    h = np.zeros(len(words) - RUN + 1, np.uint64)
    for k in range(RUN):
        h = (h ^ words[k : len(words) - RUN + 1 + k].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(31)
    numbers = sum((words[k : len(words) - RUN + 1 + k] == NUMBER).astype(np.int64) for k in range(RUN))
    return np.unique(h[(h % np.uint64(ONE_IN) == 0) & (numbers <= RUN // 2)])


def across_count(batch: DocumentBatch) -> Pieces:
    """The pieces of a partition; documents without a vocabulary give none."""
    keys, pieces = [], []
    for i in range(len(batch)) if batch.vocabulary is not None else ():
        found = _pieces(batch.raw(i))
        pieces.append(found)
        keys.append(np.full(len(found), batch.doc_key[i], np.int64))
    none = Pieces(np.zeros(0, np.int64), np.zeros(0, np.uint64))
    return Pieces(np.concatenate(keys), np.concatenate(pieces)) if keys else none


def across_merge(parts: Iterable[Pieces]) -> NDArray[np.uint64]:
    """Pieces that many documents share: uint64, sorted."""
    rows = [p.piece for p in parts]
    piece, count = np.unique(np.concatenate(rows) if rows else np.zeros(0, np.uint64), return_counts=True)
    return piece[count >= DOCUMENTS]


def across_flag(parts: Sequence[Pieces], shared: NDArray[np.uint64]) -> Findings:
    """Documents that follow a template shared with others."""
    rows = []
    for part in parts:
        keys, first, sizes = np.unique(part.doc_key, return_index=True, return_counts=True)
        known = np.isin(part.piece, shared)
        for key, start, size in zip(keys.tolist(), first.tolist(), sizes.tolist()):
            share = float(known[start : start + size].mean())
            if size < PIECES or not SHARE <= share < COPY:
                continue
            row = {"doc_key": key, "detector": "across", "measure": "shared", "cause": "template", "primary": False, "garbage": False, "version": 1}
            detail = f"{share:.0%} of its skeleton stands in at least {DOCUMENTS} documents"
            rows.append({**row, "value": share, "threshold": SHARE, "detail": detail, "spans": None})
    rows.sort(key=lambda r: int(str(r["doc_key"])))
    return Findings(FINDINGS.of({c.name: [r[c.name] for r in rows] for c in FINDINGS.columns}) if rows else FINDINGS.empty())
