"""Which rows attribution looks at, where a window holds more than it can take."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from forensics.pipelines.plan import Plan
from numpy.typing import NDArray

from forensics.schemas import Consumed, Documents


def looked_at(plan: Plan, consumed: Consumed) -> Consumed:
    """All rows, or a share of them chosen by what they hold.

    A row is in by a hash of its first document and place in it, whatever step it came in: a row that was read twice is
    looked at twice or not at all, so the rate of repeated rows stays what it is. Rows outside the steps that were read
    whole are a sample already and are thinned only as far as is needed to have as many of each step.
    """
    if plan.share >= 1:
        return consumed
    step = consumed["step"].to_numpy()
    new = np.ones(len(step), bool)
    new[1:] = (np.diff(step) != 0) | (np.diff(consumed["sequence"].to_numpy()) != 0) | (np.diff(consumed["launch"].to_numpy()) != 0)
    start, row = np.flatnonzero(new), np.cumsum(new) - 1
    luck = chance(consumed["doc_key"].to_numpy()[start], consumed["doc_start"].to_numpy()[start])[row]
    inside = (step >= plan.whole.start) & (step < plan.whole.stop)
    return Consumed(consumed.filter(pa.array(luck < np.where(inside, plan.share, min(1.0, plan.share * plan.every)))))


def chance(doc_key: NDArray[np.int64], doc_start: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in [0, 1) for each place in a document, the same in every run."""
    with np.errstate(over="ignore"):
        h = doc_key.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + doc_start.astype(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray((h >> np.uint64(11)) / float(1 << 53), np.float64)


def met(documents: Documents, keys: NDArray[np.int64]) -> Documents:
    """The documents of these keys."""
    return Documents(only(documents, keys))


def only(table: pa.Table, keys: NDArray[np.int64]) -> pa.Table:
    """Rows of a table that concern these documents."""
    keep = np.isin(table["doc_key"].to_numpy(), keys)
    return table if keep.all() else table.filter(pa.array(keep))
