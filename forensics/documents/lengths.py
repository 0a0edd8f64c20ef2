"""Lengths of documents: histograms and summaries per source and role.

A role is where documents were met: window, look-back or baseline of a replay; an audit knows one role, `corpus`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.schemas import LENGTHS, SOURCES, Documents, Lengths, Sources
from forensics.stage import stage

if TYPE_CHECKING:
    from numpy.typing import NDArray


QUANTILES = (0.05, 0.5, 0.95)
ROLES = {"window": "used_window", "lookback": "used_lookback", "baseline": "used_baseline"}


def roles_of(documents: Documents) -> dict[str, NDArray[np.bool_]]:
    """Rows that belong to each role; `corpus`, all of them, where nothing was consumed (an audit)."""
    out = {}
    for role, name in ROLES.items():
        used = documents.column(name)
        if used.null_count < len(used):
            met: Any = pc.coalesce(used, pa.scalar(0, pa.int64()))
            out[role] = np.asarray(met.to_numpy() > 0)
    return out or {"corpus": np.ones(len(documents), bool)}


def bin_bounds(longest: int) -> NDArray[np.int64]:
    """Bounds of a histogram that doubles: 0, 1, 2, 4, ... beyond the longest document."""
    return np.array([0, 1, *(1 << i for i in range(1, max(1, int(longest).bit_length()) + 1))], np.int64)


@stage(LENGTHS, version=1)
def length_summary(documents: Documents) -> Lengths:
    """Documents and tokens per source, role and length bin; bins double, empty documents have one of their own."""
    tokens = documents.column("tokens").to_numpy()
    codes, names = source_codes(documents)
    bounds = bin_bounds(int(tokens.max(initial=0)))
    place = np.searchsorted(bounds, tokens, side="right") - 1
    rows: list[dict[str, Any]] = []
    for role, mask in roles_of(documents).items():
        cell = codes[mask] * len(bounds) + place[mask]
        count = np.bincount(cell, minlength=len(names) * len(bounds))
        total = _sums(cell, tokens[mask], len(names) * len(bounds))
        for at in np.flatnonzero(count):
            source, b = divmod(int(at), len(bounds))
            rows.append(
                {
                    "source": names[source],
                    "role": role,
                    "start": int(bounds[b]),
                    "stop": int(bounds[b + 1]),
                    "documents": int(count[at]),
                    "tokens": int(total[at]),
                }
            )
    return Lengths(LENGTHS.sorted(LENGTHS.of(_columns(rows, [c.name for c in LENGTHS.columns]))))


def source_codes(documents: Documents) -> tuple[NDArray[np.int64], list[str]]:
    """A number per document for its source, and the sources in order."""
    encoded: Any = documents.column("source").cast(pa.string()).combine_chunks()
    encoded = (encoded if isinstance(encoded, pa.Array) else pa.concat_arrays(encoded.chunks)).dictionary_encode()
    words = encoded.dictionary.to_pylist()
    order = sorted(range(len(words)), key=lambda i: words[i])
    rank = np.empty(len(words), np.int64)
    rank[order] = np.arange(len(words))
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    return (rank[codes] if len(words) else np.zeros(len(documents), np.int64)), [words[i] for i in order]


def _sums(cell: NDArray[np.int64], values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    out = np.zeros(size, np.int64)
    np.add.at(out, cell, values)
    return out


def _columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[Any]]:
    return {name: [r.get(name) for r in rows] for name in names}


@stage(SOURCES, version=1)
def source_summary(documents: Documents, findings: pa.Table | None = None, clusters: pa.Table | None = None) -> Sources:
    """Per source and role: size, flagged and duplicate tokens, quantiles of the length.

    Args:
        documents: all documents.
        findings: those marked garbage count as flagged.
        clusters: members of exact and near clusters other than the representative count as duplicate.
    """
    tokens, keys = documents.column("tokens").to_numpy(), documents.column("doc_key").to_numpy()
    size = documents.column("bytes")
    codes, names = source_codes(documents)
    flagged = np.isin(keys, findings.filter(findings.column("garbage")).column("doc_key").to_numpy()) if findings is not None else np.zeros(len(keys), bool)
    duplicate = np.isin(keys, duplicate_keys(clusters)) if clusters is not None else np.zeros(len(keys), bool)
    rows = []
    for role, mask in roles_of(documents).items():
        for code, name in enumerate(names):
            here = mask & (codes == code)
            if not here.any():
                continue
            length = np.sort(tokens[here])
            known = size.filter(pa.array(here))
            quantile = {f"length_p{round(100 * q):02d}": int(length[min(len(length) - 1, int(q * len(length)))]) for q in QUANTILES}
            rows.append({
                "source": name, "role": role, "documents": len(length), "tokens": int(length.sum()),
                "bytes": None if known.null_count else int(pc.sum(known).as_py() or 0),
                "flagged_documents": int(flagged[here].sum()), "flagged_tokens": int(tokens[here & flagged].sum()),
                "duplicate_tokens": int(tokens[here & duplicate].sum()), "length_max": int(length[-1]), **quantile,
            })  # fmt: skip
    return Sources(SOURCES.sorted(SOURCES.of(_columns(rows, [c.name for c in SOURCES.columns]))))


def duplicate_keys(clusters: pa.Table) -> NDArray[np.int64]:
    """Documents that an exact or near cluster holds beside its representative."""
    kind = clusters.column("kind").cast(pa.string())
    copies: Any = clusters.filter(pc.is_in(kind, value_set=pa.array(["exact", "near"])))
    keys, best = copies.column("doc_key").to_numpy(), copies.column("representative").to_numpy()
    return np.unique(keys[keys != best])
