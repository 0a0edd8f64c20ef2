"""Which groups of documents are over-represented in the suspect steps, and whether they carry excess loss.

Log-odds with an informative Dirichlet prior; the variance is multiplied by the over-dispersion of per-step counts,
because documents come in shards and shards make every group look enriched somewhere. All levels are one family of tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from forensics.attribution.composition import overdispersion
from forensics.attribution.odd import benjamini_hochberg
from forensics.attribution.timeline import Timeline, column
from forensics.losses.difficulty import BOOL, F64, I64
from forensics.schemas import DOC_BITS, DOC_MASK, Clusters, Documents

PRIOR = 500.0
RANGE_BLOCKS = 64


@dataclass(frozen=True)
class Enriched:
    """One group: tokens in the suspect steps and in the baseline, log-odds, z, p, q, and its mean excess (NaN without losses)."""

    level: str
    key: int | None
    label: str
    docs: I64
    window: float
    baseline: float
    log_odds: float
    z: float
    p: float
    q: float
    excess: float


def groupings(line: Timeline, documents: Documents, clusters: Clusters | None) -> list[tuple[str, int | None, str, I64]]:
    """Groups to test: (level, key, label, document rows) by source, crawl, language, cluster, and contiguous id range."""
    out: list[tuple[str, int | None, str, I64]] = [("source", None, line.names[s], np.flatnonzero(line.source == s)) for s in range(len(line.names))]
    keys = column(documents, "doc_key")
    order = np.argsort(keys, kind="stable")
    for level in ("crawl", "language"):
        found = documents.column(level).cast(pa.string()).to_pylist()
        values = [found[i] for i in order.tolist()]
        for value in sorted({v for v in values if v is not None}):
            out.append((level, None, str(value), np.flatnonzero([v == value for v in values])))
    if clusters is not None and clusters.num_rows:
        kind = clusters.column("kind").cast(pa.string()).to_pylist()
        number, member = column(clusters, "cluster"), column(clusters, "doc_key")
        row = np.minimum(np.searchsorted(line.keys, member), len(line.keys) - 1)
        known = line.keys[row] == member
        ids: dict[tuple[str, int], list[int]] = {}
        for k, n, r, ok in zip(kind, number.tolist(), row.tolist(), known.tolist(), strict=True):
            if ok and k in {"near", "exact", "template"}:
                ids.setdefault((k, n), []).append(r)
        out += [("cluster", n, f"{k} {n}", np.array(rows, dtype=np.int64)) for (k, n), rows in sorted(ids.items()) if len(rows) >= 3]
    corpus, number = line.keys >> DOC_BITS, line.keys & DOC_MASK
    for c in np.unique(corpus):
        mine = np.flatnonzero(corpus == c)
        if len(mine) < 4 * RANGE_BLOCKS:
            continue
        for block in np.array_split(mine, RANGE_BLOCKS):
            out.append(("idrange", int(line.keys[block[0]]), f"documents {number[block[0]]} to {number[block[-1]]} of file {c}", block))
    return out


def enrichment(line: Timeline, groups: list[tuple[str, int | None, str, I64]], suspect: BOOL, ordinary: BOOL, excess: F64 | None) -> list[Enriched]:
    """Every group's log-odds in the suspect steps against the baseline, most significant first.

    Args:
        line: the axis.
        groups: from `groupings`.
        suspect, ordinary: steps [T].
        excess: per segment [m], NaN where unknown.
    """
    tokens = line.labels.astype(np.float64)
    y_all, n_all = float(line.tokens[suspect].sum()), float(line.tokens[ordinary].sum())
    if y_all <= 0 or n_all <= 0:
        return []
    rows: list[tuple[str, int | None, str, I64, float, float, float, float, float]] = []
    for level, key, label, docs in groups:
        marked = np.zeros(len(line.keys), dtype=bool)
        marked[docs] = True
        mine = marked[line.doc]
        per_step = line.per_step(tokens * mine)
        y, n = float(per_step[suspect].sum()), float(per_step[ordinary].sum())
        if y <= 0:
            continue
        prior = PRIOR * max(n / n_all, 1e-4)
        odds = math.log((y + prior) / max(y_all + PRIOR - y - prior, 1e-9)) - math.log((n + prior) / max(n_all + PRIOR - n - prior, 1e-9))
        phi = overdispersion(per_step[ordinary], line.tokens[ordinary])
        z = odds / math.sqrt(phi * (1 / (y + prior) + 1 / (n + prior)))
        mean = float("nan")
        if excess is not None:
            use = mine & suspect[line.at] & np.isfinite(excess)
            mean = float(np.average(excess[use], weights=tokens[use])) if use.any() and tokens[use].sum() > 0 else float("nan")
        rows.append((level, key, label, docs, y, n, odds, z, mean))
    p = np.array([0.5 * math.erfc(r[7] / math.sqrt(2)) for r in rows])
    q = benjamini_hochberg(p)
    out = [Enriched(*r[:8], float(a), float(b), r[8]) for r, a, b in zip(rows, p, q, strict=True)]
    return sorted(out, key=lambda g: (g.q, -g.z, g.label))
