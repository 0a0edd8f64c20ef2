"""Which documents belong together: exact copies, near copies, and what labels or the order in the file say.

Copies are found on signatures, joined on the documents themselves where these can be read, and named by their
representative: the longest member, then the lowest number. Every document of a cluster of two or more is one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from forensics.clustering.components import groups, labels, singletons, union_pairs
from forensics.clustering.exact import exact_groups, same_content
from forensics.clustering.minhash import estimate, values_of
from forensics.clustering.sources import by_label, constant
from forensics.schemas import CLUSTERS, Clusters, Documents, Signatures
from forensics.stage import stage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.clustering.bands import Bands
    from forensics.clustering.verify import Reader

SLACK = 0.08  # two standard errors of 128 values at 0.8: what the signature may understate


@dataclass(frozen=True)
class ClusterSettings:
    """How near is near.

    Attributes:
        jaccard: smallest similarity of two documents that are joined.
        recall: chance with which a pair at exactly that similarity must be looked at.
    """

    jaccard: float = 0.8
    recall: float = 0.98


@stage(CLUSTERS, version=1)
def cluster(signatures: Signatures, documents: Documents, settings: ClusterSettings = ClusterSettings(), reader: Reader | None = None) -> Clusters:
    """Exact and near duplicates, and groups by label.

    Args:
        signatures: one row per document, in the order of `documents`.
        documents: with content hashes.
        settings: how near is near.
        reader: where documents can be read again; without it near copies rest on signatures alone.

    Returns:
        Kinds `exact`, `near` (which holds the exact copies too), `source`, `crawl` and `host`.
    """
    keys = documents.column("doc_key").to_numpy()
    tokens = documents.column("tokens").to_numpy()
    parts = [exact_clusters(documents), near_clusters(signatures, documents, settings, reader)]
    assert len(tokens) == len(keys)
    parts.append(by_label(documents))
    return Clusters(CLUSTERS.sorted(CLUSTERS.concat(parts)))


def exact_clusters(documents: Documents) -> pa.Table:
    """Documents of equal content, as rows of `clusters`."""
    tokens = documents.column("tokens").to_numpy()
    rows, bounds = exact_groups(documents.column("content"), tokens)
    return cluster_rows("exact", rows, bounds, documents.column("doc_key").to_numpy(), tokens, np.ones(len(rows), np.float32))


def near_clusters(signatures: Signatures, documents: Documents, settings: ClusterSettings, reader: Reader | None = None) -> pa.Table:
    """Documents connected by pairs of at least the wanted similarity, as rows of `clusters`."""
    keys, tokens = documents.column("doc_key").to_numpy(), documents.column("tokens").to_numpy()
    assert np.array_equal(signatures.column("doc_key").to_numpy(), keys), "signatures and documents must be in the same order"
    values, shingles = values_of(signatures), signatures.column("shingles").to_numpy()
    label = near_labels(values, shingles, same_content(documents.column("content")), keys, tokens, settings, reader)
    rows, bounds = groups(label)
    best = representatives(rows, bounds, tokens)
    jaccard = similarity(values, keys, tokens, np.repeat(best, np.diff(bounds)), rows, reader)
    return cluster_rows("near", rows, bounds, keys, tokens, jaccard)


def near_labels(
    values: NDArray[np.uint32],
    shingles: NDArray[np.int32],
    same: NDArray[np.int64],
    keys: NDArray[np.int64],
    tokens: NDArray[np.int64],
    settings: ClusterSettings,
    reader: Reader | None,
) -> NDArray[np.int64]:
    """Smallest row of each document's component of near copies: int64 [n].

    Args:
        values: signatures uint32 [n, 128].
        shingles: int32 [n]; documents without any take no part.
        same: first row of the same content, int64 [n]; only those are compared.
        keys, tokens: of the documents, int64 [n].
        settings: how near is near.
        reader: for the exact similarity.
    """
    from forensics.clustering.bands import candidates, choose_bands

    bands = choose_bands(settings.jaccard, settings.recall)
    parent = singletons(len(values))
    filled = shingles > 0
    rows = np.arange(len(values), dtype=np.int64)
    union_pairs(parent, same[filled], rows[filled])
    members = rows[filled & (same == rows)]
    least = settings.jaccard - SLACK if reader is not None else settings.jaccard
    refused = np.empty(0, np.uint64)
    for band in range(bands.bands if len(members) > 1 else 0):
        a, b = candidates(values, members, bands, band, parent, least)
        pair = (a.astype(np.uint64) << np.uint64(32)) | b.astype(np.uint64)
        new = ~np.isin(pair, refused)
        a, b, pair = a[new], b[new], pair[new]
        if not len(a):
            continue
        near = similarity(values, keys, tokens, a, b, reader) >= settings.jaccard
        union_pairs(parent, a[near], b[near])
        refused = np.concatenate([refused, pair[~near]])
    return np.asarray(labels(parent), np.int64)


def similarity(
    values: NDArray[np.uint32], keys: NDArray[np.int64], tokens: NDArray[np.int64], a: NDArray[np.int64], b: NDArray[np.int64], reader: Reader | None
) -> NDArray[np.float32]:
    """Similarity of pairs of rows, exact where documents can be read: float32 [pairs]."""
    if reader is None:
        return np.concatenate([estimate(values, a[i : i + 65536], b[i : i + 65536]) for i in range(0, len(a), 65536)] or [np.empty(0, np.float32)])
    from forensics.clustering.verify import exact_jaccard

    same = np.all(values[a] == values[b], axis=1) & (a == b) if len(a) else np.empty(0, bool)
    out = np.ones(len(a), np.float32)
    out[~same] = exact_jaccard(reader, keys, tokens, a[~same], b[~same])
    return out


def representatives(rows: NDArray[np.int64], bounds: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Row of each group's longest member, the lowest number where several are longest: int64 [groups]."""
    if len(bounds) < 2:
        return np.empty(0, np.int64)
    group = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    order = np.lexsort((rows, -tokens[rows], group))
    return np.asarray(rows[order][bounds[:-1]], np.int64)


def cluster_rows(
    kind: str, rows: NDArray[np.int64], bounds: NDArray[np.int64], keys: NDArray[np.int64], tokens: NDArray[np.int64], jaccard: NDArray[np.float32]
) -> pa.Table:
    """Groups of rows as the table `clusters`, numbered from 0."""
    sizes = np.diff(bounds)
    best = keys[representatives(rows, bounds, tokens)]
    return CLUSTERS.of({
        "kind": constant(kind, len(rows)),
        "cluster": np.repeat(np.arange(len(sizes), dtype=np.int64), sizes),
        "doc_key": keys[rows],
        "representative": np.repeat(best, sizes),
        "jaccard": np.asarray(jaccard, np.float32),
    })  # fmt: skip


def bands_of(settings: ClusterSettings) -> Bands:
    """The bands these settings lead to, for reports."""
    from forensics.clustering.bands import choose_bands

    return choose_bands(settings.jaccard, settings.recall)
