"""What removing copies would save, cluster by cluster, and which sources copy from which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.documents.lengths import source_codes
from forensics.schemas import DEDUP, SEEN, Consumed, Dedup, Documents, Seen
from forensics.stage import stage
from forensics.steps import StepRange

if TYPE_CHECKING:
    from numpy.typing import NDArray

KINDS = ("exact", "near")
PERIODS = ("window", "so_far", "run")


class Lengths(Protocol):
    """Whatever knows how long documents are."""

    def document_lengths(self, doc_keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of each document named."""
        ...


@stage(DEDUP, version=2)
def dedup_summary(documents: Documents, clusters: pa.Table, seen: Seen | None = None) -> Dedup:
    """One row per exact or near cluster: members, representative, tokens, sources, where and how often they were met.

    Args:
        documents: all members, and more.
        clusters: as `clustering.cluster` gives them; the representative is its longest member, then the lowest number.
        seen: how often members were consumed; absent in an audit, null where a cluster's members were not counted.
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
    if seen is not None:
        place = pc.index_in(clusters.column("doc_key"), value_set=seen.column("doc_key"))
        columns |= {f"times_{name}": seen.column(name).take(place) for name in PERIODS}
        wanted += [(f"times_{name}", "sum") for name in PERIODS]
    found = pa.table(columns).group_by(["kind", "cluster"]).aggregate(wanted)
    result: dict[str, Any] = {
        "kind": found.column("kind"), "cluster": found.column("cluster"), "members": found.column("one_sum"),
        "representative": found.column("representative_min"), "tokens": found.column("tokens_sum"), "tokens_saved": found.column("saved_sum"),
        "sources": [[names[c] for c in sorted(group or [])] for group in found.column("source_distinct").to_pylist()],
    }  # fmt: skip
    counted = {"times_window": "times_window_sum", "times_so_far": "times_so_far_sum", "times_seen": "times_run_sum"}
    for name, origin in {"window_documents": "window_sum", "baseline_documents": "baseline_sum", **counted}.items():
        if origin in found.column_names:
            result[name] = found.column(origin)
    return Dedup(DEDUP.sorted(DEDUP.of(result)))


@stage(SEEN, version=1)
def count_seen(parts: Iterable[Consumed], store: Lengths, window: StepRange, path: Sequence[tuple[int, StepRange]]) -> Seen:
    """How often each document was consumed, by its tokens read.

    Args:
        parts: every segment of the documents, e.g. what a loader's `locate` yields.
        store: knows the lengths.
        window: steps under suspicion.
        path: which launch ran which steps; what others read was rolled back and is not counted.
    """
    keys: list[Any] = [np.zeros(0, np.int64)]
    read: list[Any] = [np.zeros((0, len(PERIODS)), np.int64)]
    for part in parts:
        launch, step = part.column("launch").to_numpy(), part.column("step").to_numpy()
        on_path = np.zeros(len(step), bool)
        for number, steps in path:
            on_path |= (launch == number) & (step >= steps.start) & (step < steps.stop)
        before = on_path & (step < window.stop)
        tokens = part.column("doc_stop").to_numpy() - part.column("doc_start").to_numpy()
        found, at = np.unique(part.column("doc_key").to_numpy(), return_inverse=True)
        keys.append(found)
        read.append(np.stack([np.bincount(at, tokens * mask, len(found)) for mask in (before & (step >= window.start), before, on_path)], 1).astype(np.int64))
    found, at = np.unique(np.concatenate(keys), return_inverse=True)
    total = np.zeros((len(found), len(PERIODS)), np.int64)
    np.add.at(total, at, np.concatenate(read))
    times = -(-total // np.maximum(1, store.document_lengths(found))[:, None])
    return Seen(SEEN.of({"doc_key": found, **{name: times[:, i] for i, name in enumerate(PERIODS)}}))


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
