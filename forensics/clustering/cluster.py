"""Which documents belong together: exact copies, near copies, and what labels or the order in the file say.

Copies are found on signatures, joined on the documents themselves where these can be read, and named by their
representative: the longest member, then the lowest number. Every document of a cluster of two or more is one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from forensics.clustering.bands import Bands, candidates, choose_bands
from forensics.clustering.components import groups, labels, singletons, union_pairs
from forensics.clustering.exact import exact_groups, same_content
from forensics.clustering.idranges import id_ranges
from forensics.clustering.minhash import estimate, values_of
from forensics.clustering.sources import by_label, constant
from forensics.clustering.templates import template_clusters
from forensics.schemas import CLUSTERS, Clusters, Documents, Signatures
from forensics.stage import stage
from forensics.stores.base import prepare

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.clustering.verify import Reader

AT_ONCE = 1 << 14  # documents of near copies compared together, where one component has no more
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


Similarity = Callable[["NDArray[np.int64]", "NDArray[np.int64]"], "NDArray[np.float32]"]


@stage(CLUSTERS, version=2)
def cluster(
    signatures: Signatures,
    documents: Documents,
    settings: ClusterSettings = ClusterSettings(),
    reader: Reader | None = None,
    findings: pa.Table | None = None,
    skeletons: Iterable[pa.Table] | None = None,
) -> Clusters:
    """Exact and near duplicates, and groups by label.

    Args:
        signatures: one row per document, in the order of `documents`.
        documents: with content hashes.
        settings: how near is near.
        reader: where documents can be read again; without it near copies rest on signatures alone.
        findings: what detectors flagged; with it, documents without a crawl label are cut into runs of neighbours alike.
        skeletons: samples of all documents, in their order; with it, templates are found.

    Returns:
        Kinds `exact`, `near` (which holds the exact copies too), `template`, `source`, `crawl`, `host` and `idrange`.
    """
    near = near_clusters(signatures, documents, settings, reader)
    parts = [exact_clusters(documents), near, by_label(documents)]
    if skeletons is not None:
        parts.append(template_clusters(skeletons, documents, near, reader))
    if findings is not None:
        unnamed = Documents(documents.filter(documents.column("crawl").is_null()))
        garbage = findings.filter(findings.column("garbage")).column("doc_key").to_numpy()
        parts.append(id_ranges(unnamed, {"garbage": np.isin(unnamed.column("doc_key").to_numpy(), garbage)}))
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
    near = Near(values_of(signatures), signatures.column("shingles").to_numpy(), same_content(documents.column("content")), settings)
    if reader is None:
        label = near.by_signature(settings.jaccard)[0]
        similarity: Similarity = near.estimate
    else:
        similarity = compared = Compared(keys, tokens, reader, near.same)
        label = near.by_content(keys, reader, compared)
    rows, bounds = groups(label)
    best = representatives(rows, bounds, tokens)
    return cluster_rows("near", rows, bounds, keys, tokens, similarity(np.repeat(best, np.diff(bounds)), rows))


@dataclass(frozen=True)
class Near:
    """The search for near copies.

    Attributes:
        values: signatures uint32 [n, 128].
        shingles: int32 [n]; documents without any take no part.
        same: first row of the same content, int64 [n]; only those rows are compared.
        settings: how near is near.
    """

    values: NDArray[np.uint32]
    shingles: NDArray[np.int32]
    same: NDArray[np.int64]
    settings: ClusterSettings

    def estimate(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float32]:
        """Similarity of pairs of rows from their signatures: float32 [pairs]."""
        blocks = [estimate(self.values, a[i : i + 65536], b[i : i + 65536]) for i in range(0, len(a), 65536)]
        return np.concatenate(blocks) if blocks else np.empty(0, np.float32)

    def start(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A union-find that holds the exact copies, and the rows that are to be compared."""
        parent, rows = singletons(len(self.values)), np.arange(len(self.values), dtype=np.int64)
        filled = self.shingles > 0
        union_pairs(parent, self.same[filled], rows[filled])
        return parent, rows[filled & (self.same == rows)]

    def by_signature(self, least: float) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Components of pairs whose signatures agree in a share `least`.

        Returns:
            Smallest row of each row's component int64 [n], and the pairs that joined them, int64 [pairs] each.
        """
        parent, members = self.start()
        pairs = []
        for a, b in candidates(self.values, members, bands_of(self.settings), parent, least):
            union_pairs(parent, a, b)
            pairs.append((a, b))
        none = np.empty(0, np.int64)
        left, right = (np.concatenate([none, *(p[i] for p in pairs)]) for i in (0, 1))
        return np.asarray(labels(parent), np.int64), left, right

    def by_content(self, keys: NDArray[np.int64], reader: Reader, compared: Compared) -> NDArray[np.int64]:
        """Components of pairs whose documents themselves are near enough: smallest row of each, int64 [n].

        Pairs come from signatures, a little below the wanted similarity. Where the documents refute a pair, its whole component is
        searched again with nothing taken for joined but what was read. Components are gone through some thousand documents at a time.
        """
        loose, a, b = self.by_signature(self.settings.jaccard - SLACK)
        rows, bounds = groups(loose)
        prepare(reader, keys[rows])
        parent, members = self.start()
        part = bounds[:-1] // AT_ONCE
        of_pair = part[np.searchsorted(rows[bounds[:-1]], loose[a])]
        order = np.argsort(of_pair, kind="stable")
        cuts = np.searchsorted(of_pair[order], np.unique(part))
        for mine, first in zip(np.split(rows, bounds[:-1][np.flatnonzero(np.diff(part)) + 1]), np.split(order, cuts[1:])):
            if len(first):
                self._join_near(np.sort(mine), loose, members, a[first], b[first], parent, compared)
        return np.asarray(labels(parent), np.int64)

    def _join_near(
        self,
        rows: NDArray[np.int64],
        loose: NDArray[np.int64],
        members: NDArray[np.int64],
        a: NDArray[np.int64],
        b: NDArray[np.int64],
        parent: NDArray[np.int64],
        compared: Compared,
    ) -> None:
        """Join what is near in some components, whose rows and pairs these are."""
        near = compared.within(rows)
        yes = near(a, b, self.settings.jaccard)
        union_pairs(parent, a[yes], b[yes])
        refused = np.sort(_packed(a[~yes], b[~yes]))
        doubtful = rows[np.isin(loose[rows], loose[a[~yes]])]
        doubtful = doubtful[np.isin(doubtful, members, assume_unique=True)]
        for a, b in candidates(self.values, doubtful, bands_of(self.settings), parent, self.settings.jaccard - SLACK):
            pairs = _packed(a, b)
            new = refused[np.minimum(np.searchsorted(refused, pairs), len(refused) - 1)] != pairs
            a, b = a[new], b[new]
            yes = near(a, b, self.settings.jaccard)
            union_pairs(parent, a[yes], b[yes])
            refused = np.sort(np.concatenate([refused, _packed(a[~yes], b[~yes])]))


def _packed(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.uint64]:
    return (a.astype(np.uint64) << np.uint64(32)) | b.astype(np.uint64)


class Compared:
    """Exact similarity of pairs of rows from the documents themselves; none is read twice for the same pair, equal contents not at all.

    Args:
        keys, tokens: of all rows, int64 [n].
        reader: where documents are.
        same: first row of the same content, int64 [n].
    """

    def __init__(self, keys: NDArray[np.int64], tokens: NDArray[np.int64], reader: Reader, same: NDArray[np.int64]) -> None:
        self.keys, self.tokens, self.reader, self.same = keys, tokens, reader, same
        self._known = [(np.empty(0, np.uint64), np.empty(0, np.float32))]  # pairs and values

    def within(self, rows: NDArray[np.int64]) -> Callable[[NDArray[np.int64], NDArray[np.int64], float], NDArray[np.bool_]]:
        """A test of pairs among some rows, by whether they are similar by so much; none may be asked for twice. Most that are not are told by bitmaps."""
        from forensics.clustering.bitmaps import Bitmaps
        from forensics.clustering.verify import exact_jaccard

        bitmaps = Bitmaps(self.reader, self.keys, self.tokens, rows)

        def near(a: NDArray[np.int64], b: NDArray[np.int64], least: float) -> NDArray[np.bool_]:
            out = bitmaps.may_be(a, b, least)
            x, y = a[out], b[out]
            values = exact_jaccard(self.reader, self.keys, self.tokens, x, y)
            self._known.append((_packed(np.minimum(x, y), np.maximum(x, y)), values))
            out[out] = values >= least
            return out

        return near

    def __call__(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float32]:
        """Similarity of pairs: float32 [pairs]."""
        from forensics.clustering.verify import exact_jaccard

        x, y = self.same[a], self.same[b]
        pairs, first, inverse = np.unique(_packed(np.minimum(x, y), np.maximum(x, y)), return_index=True, return_inverse=True)
        known, values = (np.concatenate([part[i] for part in self._known]) for i in (0, 1))
        order = np.argsort(known)
        known, values = known[order], values[order]
        at = np.searchsorted(known, pairs)
        found = np.append(known, np.iinfo(np.uint64).max)[at] == pairs  # no pair: rows are far fewer
        out = np.ones(len(pairs), np.float32)
        out[found] = values[at[found]]
        ask = np.flatnonzero(~found & (x[first] != y[first]))
        out[ask] = exact_jaccard(self.reader, self.keys, self.tokens, x[first[ask]], y[first[ask]])
        self._known = [(np.concatenate([known, pairs[ask]]), np.concatenate([values, out[ask]]))]
        return np.asarray(out[inverse], np.float32)


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
    """The bands these settings lead to, with their S-curve for reports."""
    return choose_bands(settings.jaccard, settings.recall)
