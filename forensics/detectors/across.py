"""Templates across documents: many pages from one skeleton, other words in its slots. A pass of its own, by partition and merge.

    parts = [across_count(batch) for batch in ...]          # any split, any order; `piece_table` and `pieces_of` store them
    findings = across_findings(parts)                       # across_merge, then across_flag

Every document gives a sample of its skeleton: runs of four words (numbers are one word), those whose hash falls into one of `ONE_IN` residues, the same for all
documents. A piece that at least `DOCUMENTS` documents have is shared; a document most of whose pieces are shared with the same others, and that is no copy
of them, follows a template. Licences and
headers are shared pieces too, in documents that are something else besides: these stay below the share. Reported; garbage is for whoever knows the source to
say.
"""

# mypy: disable-error-code="assignment, call-overload, index, operator, return-value"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.detectors.rows import NUMBER, word_hashes
from forensics.schemas import FINDINGS, Findings
from forensics.stores.batch import DocumentBatch

ONE_IN, RUN, RUN_OF_IDS = 4, 4, 6
MOST = 64  # pieces that a document keeps, about
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


def _sparse(units: int) -> int:
    """One of how many pieces a document of so many units keeps: powers of two, so that long documents keep a part of what short ones would."""
    return ONE_IN << max(0, (units // (ONE_IN * MOST)).bit_length())


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
    return np.unique(h[(h % np.uint64(_sparse(len(words))) == 0) & (numbers <= RUN // 2)])


@numba.njit(cache=True, nogil=True)
def skeleton_scan(ids: NDArray[Any], flags: NDArray[np.uint16], sparse: int, out: NDArray[np.uint64]) -> int:
    """Hashes of runs of `RUN_OF_IDS` ids with letters, digits in a row one unit, that fall into one of `sparse` residues; returns how many."""
    last = len(flags) - 1
    window = np.zeros(RUN_OF_IDS, np.uint64)
    n, found, before, numbers = 0, 0, 0, 0
    for i in range(len(ids)):
        k = min(np.int64(ids[i]), last)
        f = np.int64(flags[k])
        digit = f >> 6 & 1
        if f & 0x80 or (digit and before):
            continue
        before = digit
        slot = n % RUN_OF_IDS
        numbers += digit - np.int64(n >= RUN_OF_IDS and window[slot] == 1)
        window[slot] = np.uint64(1) if digit else np.uint64(k + 2)
        n += 1
        if n < RUN_OF_IDS or 2 * numbers > RUN_OF_IDS:
            continue
        h = np.uint64(0)
        for j in range(RUN_OF_IDS):
            h = (h + window[(n + j) % RUN_OF_IDS]) * np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(31)
        if h % np.uint64(sparse) == 0 and found < len(out):
            out[found] = h
            found += 1
    return found


def across_count(batch: DocumentBatch) -> Pieces:
    """The pieces of a partition, of ids where it has them and of words in text; documents without a vocabulary give none."""
    from forensics.detectors.features import features

    keys, pieces = [], []
    flags = features(batch.vocabulary).flags if batch.vocabulary is not None and not batch.is_text else None
    for i in range(len(batch)) if batch.vocabulary is not None else ():
        if flags is None:
            found = _pieces(batch.raw(i))
        else:
            ids = batch.tokens_of(i)
            out = np.empty(len(ids), np.uint64)
            found = np.unique(out[: skeleton_scan(ids, flags, _sparse(len(ids)), out)])
        pieces.append(found)
        keys.append(np.full(len(found), batch.doc_key[i], np.int64))
    none = Pieces(np.zeros(0, np.int64), np.zeros(0, np.uint64))
    return Pieces(np.concatenate(keys), np.concatenate(pieces)) if keys else none


def piece_table(batch: DocumentBatch) -> pa.Table:
    """`across_count` as a table, to be stored with a shard."""
    part = across_count(batch)
    return pa.table({"doc_key": pa.array(part.doc_key), "piece": pa.array(part.piece)})


def pieces_of(table: pa.Table) -> Pieces:
    """What `piece_table` stored."""
    return Pieces(table["doc_key"].to_numpy(), table["piece"].to_numpy())


def across_findings(parts: Sequence[Pieces]) -> Findings:
    """Templates across all documents of the parts."""
    return across_flag(parts, across_merge(parts))


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
