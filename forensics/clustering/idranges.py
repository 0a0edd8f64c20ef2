"""Runs of neighbouring documents that are alike and unlike the rest, where nobody labelled them.

A data file is mostly written crawl file by crawl file, so documents that came together lie together. The sequence of document numbers of each corpus
is cut where some number per document changes its level: marks (a finding, an odd loss) and the logarithm of the length. Cuts are
found one after the other, each where it explains most, and kept while they explain more than chance would (a BIC penalty); the
ends of a run are exact up to the noise of the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from forensics.clustering.sources import constant
from forensics.schemas import CLUSTERS, DOC_BITS, DOC_MASK, Documents

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST = 16  # documents of a run: shorter ones are told from chance by no test worth having
PENALTY = 4.0  # times log(n) per number and cut; 1 is BIC for Gaussian noise, real lengths have heavier tails and neighbours that are alike


def id_ranges(documents: Documents, marks: Mapping[str, NDArray[Any]] | None = None, penalty: float = PENALTY) -> pa.Table:
    """Runs of document numbers as rows of `clusters`, kind `idrange`, labelled `corpus C: first-last`.

    Args:
        documents: their order in the file counts; what lies between two of them that were not met belongs to neither.
        marks: further numbers per document [n] whose level may change: findings (0 or 1), excess losses, shares.
        penalty: how much better than chance a cut must be.

    Returns:
        A row per document of every corpus that falls into more than one run.
    """
    keys = documents.column("doc_key").to_numpy()
    order = np.argsort(keys, kind="stable")
    levels = [np.log1p(documents.column("tokens").to_numpy()[order].astype(np.float64))]
    levels += [np.nan_to_num(np.asarray(m, np.float64)[order]) for m in (marks or {}).values()]
    values = np.stack(levels, axis=1)
    parts: list[Any] = []
    number = 0
    corpus = keys[order] >> DOC_BITS
    for c in np.unique(corpus).tolist():
        rows = np.flatnonzero(corpus == c)
        bounds = segments(values[rows], penalty)
        if len(bounds) < 3:
            continue
        own = keys[order][rows]
        names = [f"corpus {c}: documents {own[a] & DOC_MASK}-{own[b - 1] & DOC_MASK}" for a, b in zip(bounds[:-1], bounds[1:])]
        sizes = np.diff(bounds)
        run: Any = np.repeat(np.arange(len(sizes)), sizes)
        parts.append(CLUSTERS.of({
            "kind": constant("idrange", len(rows)), "cluster": number + run, "doc_key": own,
            "label": pa.array(names, pa.string()).take(pa.array(run, pa.int64())),
        }))  # fmt: skip
        number += len(sizes)
    return CLUSTERS.concat(parts)


def segments(values: NDArray[np.float64], penalty: float = PENALTY, least: int = LEAST) -> NDArray[np.int64]:
    """Bounds of runs of constant level, by binary segmentation.

    Args:
        values: numbers of each document, float64 [n, numbers].
        penalty: gain that a cut must bring, in units of log(n) per number.
        least: documents of a run.

    Returns:
        Ascending bounds from 0 to n, int64 [runs + 1].
    """
    n = len(values)
    scaled = values - values.mean(axis=0) if n else values
    spread = _noise(scaled)
    scaled = scaled[:, spread > 0] / spread[spread > 0]
    if n < 2 * least or not scaled.shape[1]:
        return np.unique(np.array([0, n], np.int64))
    sums = np.concatenate([np.zeros((1, scaled.shape[1])), np.cumsum(scaled, axis=0)])
    need = penalty * np.log(n) * scaled.shape[1]
    bounds, waiting = {0, n}, [(0, n)]
    while waiting:
        start, stop = waiting.pop()
        cut, gain = _best_cut(sums, start, stop, least)
        if gain > need:
            bounds.add(cut)
            waiting += [(start, cut), (cut, stop)]
    return np.array(sorted(bounds), np.int64)


def _noise(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviation of each number within runs: of neighbours' differences, so that levels do not count."""
    if len(values) < 2:
        return np.zeros(values.shape[1])
    return np.asarray(np.sqrt(np.mean(np.diff(values, axis=0) ** 2, axis=0) / 2))


def _best_cut(sums: NDArray[np.float64], start: int, stop: int, least: int) -> tuple[int, float]:
    """Where two levels instead of one explain most between `start` and `stop`, and how much: twice the gain in log-likelihood."""
    cuts = np.arange(start + least, stop - least + 1)
    if not len(cuts):
        return start, 0.0
    left, right = (cuts - start)[:, None], (stop - cuts)[:, None]
    a, b = sums[cuts] - sums[start], sums[stop] - sums[cuts]
    gain = (a**2 / left + b**2 / right).sum(axis=1) - ((sums[stop] - sums[start]) ** 2).sum() / (stop - start)
    best = int(np.argmax(gain))
    return int(cuts[best]), float(gain[best])
