"""Which segments to score where not all can be: suspects, controls like them, and a row sample of the baseline.

Scoring costs as much as training, so a budget of tokens decides. Three kinds of segments are chosen, each by a rule that
does not look at any loss:

- *suspects*: segments of documents that detectors flag or that copy one another, in the steps under suspicion;
- *controls*: for every suspect an unsuspicious segment of the same source and bin of length (of any source, where its own
  was not read before), from steps before;
- *baseline*: whole rows of all steps, by a hash of what they hold: with them every statistic over a step's ordinary
  documents keeps its expectation. They are chosen first and get half of the budget.

How likely each kind was to be in is returned, to be kept beside the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
BOOL = NDArray[np.bool_]
ROWS_SHARE = 0.5  # of the budget, for whole rows
BINS = 32  # doubling bins of length
SUSPECTS_SHARE = 0.6  # of the rest, for suspects; controls take what is left


@dataclass(frozen=True)
class Chosen:
    """Segments to score.

    Attributes:
        rows: indices into the segments, ascending; kind: for each 0 a row of the sample, 1 a suspect, 2 a control.
        tokens: of all of them.
        inclusion: by kind, the probability with which such a segment was chosen.
    """

    rows: I64
    kind: NDArray[np.int8]
    tokens: int
    inclusion: dict[str, float]


def choose(size: I64, luck: NDArray[np.float64], suspect: BOOL, stratum: I64, control: BOOL, budget: int) -> Chosen:
    """Segments within a budget.

    Args:
        size: [m], tokens of each segment.
        luck: [m], numbers in [0, 1), equal for the segments of one row.
        suspect: [m], segments to be looked at first.
        stratum: [m], source and bin of length.
        control: [m], segments that can stand against a suspect.
        budget: tokens.
    """
    total = int(size.sum())
    if total <= budget:
        return Chosen(np.arange(len(size)), np.where(suspect, 1, 0).astype(np.int8), total, {"rows": 1.0, "suspects": 1.0, "controls": 1.0})
    kind = np.full(len(size), -1, np.int8)
    share = min(1.0, ROWS_SHARE * budget / max(total, 1))
    kind[luck < share] = 0
    left = budget - int(size[kind == 0].sum())
    found, suspects = _within(np.flatnonzero(suspect & (kind < 0)), size, luck, int(SUSPECTS_SHARE * left))
    kind[found] = 1
    wanted = np.bincount(stratum[suspect & (kind >= 0)], minlength=int(stratum.max(initial=0)) + 1)
    free = np.flatnonzero(control & ~suspect & (kind < 0))
    matched = _matched(free, stratum, luck, wanted)
    lack = wanted - np.bincount(stratum[matched], minlength=len(wanted))
    other = np.setdiff1d(free, matched)
    matched = np.union1d(matched, _matched(other, stratum % BINS, luck, np.bincount(np.arange(len(lack)) % BINS, lack).astype(np.int64)))
    found, _ = _within(matched, size, luck, budget - int(size[kind >= 0].sum()))
    kind[found] = 2
    rows = np.flatnonzero(kind >= 0)
    possible = len(found) / max(len(free), 1)
    return Chosen(rows, kind[rows], int(size[rows].sum()), {"rows": share, "suspects": suspects + (1 - suspects) * share, "controls": max(share, possible)})


def _matched(free: I64, stratum: I64, luck: NDArray[np.float64], wanted: I64) -> I64:
    """The luckiest of each stratum, as many as are wanted of it."""
    order = free[np.lexsort((luck[free], stratum[free]))]
    place = np.arange(len(order)) - np.searchsorted(stratum[order], stratum[order], side="left")
    return np.sort(order[place < np.append(wanted, np.zeros(BINS, np.int64))[stratum[order]]])


def _within(rows: I64, size: I64, luck: NDArray[np.float64], budget: int) -> tuple[I64, float]:
    """The luckiest of some rows that fit a budget, ascending, and their share."""
    order = rows[np.argsort(luck[rows], kind="stable")]
    kept = order[: int(np.searchsorted(np.cumsum(size[order]), budget, side="right"))]
    return np.sort(kept), len(kept) / len(rows) if len(rows) else 1.0


def strata(source: I64, length: I64) -> I64:
    """A number for each source and doubling bin of length."""
    return np.asarray(source * BINS + np.minimum(np.log2(np.maximum(length, 1)).astype(np.int64), BINS - 1), np.int64)


def blocks(size: I64, rows: I64, tokens: int) -> list[I64]:
    """Rows in order, cut into blocks of at most so many tokens, one row at least."""
    if not len(rows):
        return []
    ends = np.cumsum(size[rows])
    cuts, start = [], 0
    while start < len(rows):
        done = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + tokens, side="right")))
        cuts.append(rows[start:stop])
        start = stop
    return cuts


def described(chosen: Chosen, size: I64) -> dict[str, Any]:
    """What was chosen, for the case: segments, tokens and inclusion by kind."""
    out: dict[str, Any] = {}
    for number, name in enumerate(("rows", "suspects", "controls")):
        mine = chosen.kind == number
        out[name] = {"segments": int(mine.sum()), "tokens": int(size[chosen.rows[mine]].sum()), "inclusion": round(chosen.inclusion[name], 6)}
    return out
