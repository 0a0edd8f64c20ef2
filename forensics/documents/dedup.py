"""What removing copies would save, cluster by cluster, and which sources copy from which."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.documents.lengths import source_codes
from forensics.schemas import DEDUP, Consumed, Dedup, Documents
from forensics.stage import stage

if TYPE_CHECKING:
    from numpy.typing import NDArray

KINDS = ("exact", "near")


class Lengths(Protocol):
    """Whatever knows how long documents are."""

    def document_lengths(self, doc_keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of each document named."""
        ...


@stage(DEDUP, version=1)
def dedup_summary(documents: Documents, clusters: pa.Table, times_seen: pa.Table | None = None) -> Dedup:
    """One row per exact or near cluster: members, representative, tokens, sources, where and how often they were met.

    Args:
        documents: all members, and more.
        clusters: as `clustering.cluster` gives them; the representative is its longest member, then the lowest number.
        times_seen: columns `doc_key` and `times`: how often each document was consumed in all that was read; absent in an audit.
    """
    clusters = clusters.filter(pc.is_in(clusters.column("kind").cast(pa.string()), value_set=pa.array(KINDS)))
    keys = documents.column("doc_key").to_numpy()
    at = np.searchsorted(keys, clusters.column("doc_key").to_numpy())
    codes, names = source_codes(documents)
    tokens = documents.column("tokens").to_numpy()[at]
    best = clusters.column("representative").to_numpy()
    columns: dict[str, Any] = {
        "kind": clusters.column("kind").cast(pa.string()), "cluster": clusters.column("cluster"), "representative": best, "one": np.ones(len(at), np.int64),
        "tokens": tokens, "saved": np.where(best == keys[at], 0, tokens) if len(at) else tokens, "source": codes[at],
    }  # fmt: skip
    wanted: list[Any] = [("one", "sum"), ("tokens", "sum"), ("saved", "sum"), ("representative", "min"), ("source", "distinct")]
    for role in ("window", "baseline"):
        if documents.column(f"used_{role}").null_count < len(documents):
            used: Any = pc.coalesce(documents.column(f"used_{role}"), pa.scalar(0, pa.int64()))
            columns[role] = np.asarray(used.to_numpy()[at] > 0, np.int64)
            wanted.append((role, "sum"))
    if times_seen is not None:
        known: Any = times_seen.column("times").take(pc.index_in(clusters.column("doc_key"), value_set=times_seen.column("doc_key")))
        columns["times"] = known.fill_null(0)
        wanted.append(("times", "sum"))
    found = pa.table(columns).group_by(["kind", "cluster"]).aggregate(wanted)
    result: dict[str, Any] = {
        "kind": found.column("kind"), "cluster": found.column("cluster"), "members": found.column("one_sum"),
        "representative": found.column("representative_min"), "tokens": found.column("tokens_sum"), "tokens_saved": found.column("saved_sum"),
        "sources": [[names[c] for c in sorted(group or [])] for group in found.column("source_distinct").to_pylist()],
    }  # fmt: skip
    for name, origin in (("window_documents", "window_sum"), ("baseline_documents", "baseline_sum"), ("times_seen", "times_sum")):
        if origin in found.column_names:
            result[name] = found.column(origin)
    return Dedup(DEDUP.sorted(DEDUP.of(result)))


def times_seen(parts: Iterable[Consumed], store: Lengths) -> pa.Table:
    """How often each document was consumed, for `dedup_summary`: its tokens read, by its length, rounded up.

    Args:
        parts: everything that was read, e.g. what a loader's `locate` yields for the members of clusters.
        store: knows the lengths.

    Returns:
        Columns `doc_key`, ascending, and `times`.
    """
    read: dict[int, int] = {}
    for part in parts:
        columns: dict[str, Any] = {"doc_key": part.column("doc_key"), "tokens": pc.subtract(part.column("doc_stop"), part.column("doc_start"))}
        sums = pa.table(columns).group_by("doc_key").aggregate([("tokens", "sum")])
        for row in sums.to_pylist():
            read[row["doc_key"]] = read.get(row["doc_key"], 0) + row["tokens_sum"]
    keys = np.array(sorted(read), np.int64)
    total = np.array([read[k] for k in keys.tolist()], np.int64)
    length = np.maximum(1, store.document_lengths(keys))
    return pa.table({"doc_key": pa.array(keys), "times": pa.array(-(-total // length))})


def source_matrix(documents: Documents, clusters: pa.Table, kind: str = "near") -> pa.Table:
    """Who copies whom: for every two sources (or one twice), documents of the first that have a copy in the second.

    Returns:
        Columns `source`, `other`, `documents`, `tokens`, in the order of the names; a document counts once per other source.
    """
    chosen: Any = clusters.filter(pc.is_in(clusters.column("kind").cast(pa.string()), value_set=pa.array([kind])))
    at = np.searchsorted(documents.column("doc_key").to_numpy(), chosen.column("doc_key").to_numpy())
    codes, names = source_codes(documents)
    size = max(1, len(names))
    cell, inverse, count = np.unique(chosen.column("cluster").to_numpy() * size + codes[at], return_inverse=True, return_counts=True)
    held = np.zeros(len(cell), np.int64)
    np.add.at(held, inverse, documents.column("tokens").to_numpy()[at])
    rows: dict[tuple[int, int], list[int]] = {}
    for start, stop in _runs(cell // size):
        for a in range(start, stop):
            for b in range(start, stop):
                if a != b or count[a] > 1:
                    entry = rows.setdefault((int(cell[a] % size), int(cell[b] % size)), [0, 0])
                    entry[0] += int(count[a])
                    entry[1] += int(held[a])
    pairs = sorted(rows)
    return pa.table({
        "source": pa.array([names[a] for a, _ in pairs], pa.string()), "other": pa.array([names[b] for _, b in pairs], pa.string()),
        "documents": pa.array([rows[p][0] for p in pairs], pa.int64()), "tokens": pa.array([rows[p][1] for p in pairs], pa.int64()),
    })  # fmt: skip


def _runs(values: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Half-open ranges of equal neighbours."""
    if not len(values):
        return []
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1, [len(values)]])
    return [(int(a), int(b)) for a, b in zip(bounds[:-1], bounds[1:])]
