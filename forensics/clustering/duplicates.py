"""Copies as findings: every member of an exact or near cluster but its representative is a `duplicate`, reported and not garbage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.schemas import FINDINGS, Clusters, Findings
from forensics.stage import stage

VERSION = 1


@stage(FINDINGS, version=1)
def with_duplicates(findings: Findings, clusters: Clusters, jaccard: float) -> Findings:
    """The findings with one row more per copy, primary where the document has no other cause; in the order of the table.

    Args:
        findings: of the detectors.
        clusters: with kinds `exact` and `near`; a document that is in both is reported as exact.
        jaccard: the similarity from which documents count as near, stated as the threshold.
    """
    kind: Any = clusters.column("kind").cast(pa.string())
    copies: Any = clusters.filter(
        pc.and_(pc.is_in(kind, value_set=pa.array(["exact", "near"])), pc.not_equal(clusters.column("doc_key"), clusters.column("representative")))
    )
    keys = copies.column("doc_key").to_numpy()
    exact = np.asarray(pc.equal(copies.column("kind").cast(pa.string()), pa.scalar("exact")).to_numpy(zero_copy_only=False), bool)
    order = np.lexsort((~exact, keys))
    first = order[np.flatnonzero(np.diff(keys[order], prepend=-1))] if len(order) else order
    chosen = copies.take(pa.array(first))
    is_exact, n = exact[first], len(first)
    best = chosen.column("representative").to_numpy()
    rows = FINDINGS.of({
        "doc_key": keys[first], "detector": ["duplicate"] * n, "measure": np.where(is_exact, "exact", "jaccard").tolist(), "cause": ["duplicate"] * n,
        "primary": np.zeros(n, bool), "garbage": np.zeros(n, bool), "version": np.full(n, VERSION, np.int16), "value": chosen.column("jaccard"),
        "threshold": np.where(is_exact, np.float32(1), np.float32(jaccard)).astype(np.float32),
        "detail": [f"{'copy' if e else 'near copy'} of document {b}" for e, b in zip(is_exact.tolist(), best.tolist())],
    })  # fmt: skip
    return joined(findings, rows)


def joined(findings: Findings, rows: pa.Table) -> Findings:
    """Findings with further rows, which are primary where the document has no other cause; in the order of the table."""
    taken = findings.filter(findings.column("primary")).column("doc_key").to_numpy()
    at = rows.schema.get_field_index("primary")
    rows = rows.set_column(at, rows.schema.field(at), pa.array(~np.isin(rows.column("doc_key").to_numpy(), taken)))
    return Findings(FINDINGS.sorted(FINDINGS.concat([findings.replace_schema_metadata(FINDINGS.schema.metadata), FINDINGS.of(rows)])))
