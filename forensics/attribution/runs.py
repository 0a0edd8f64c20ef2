"""Which tokens of a step are read for its difficulty, where all would be too many, and how well they stand for the rest.

What differs between steps is which documents they hold, so a few tokens of every row say more than whole rows of some:
one run of `RUN` tokens in every `every` runs, over all rows. On 256 x 1,024 tokens a step an eighth of the tokens read so carries
0.64 of the difficulty's variance, an eighth of the rows 0.06; a half 0.86 and 0.36 (on the case of `tests/bench/large_batch.py`).

Runs belong to two halves in turn. Half the difference of the halves has the variance that the luck of reading adds, less the
share that was read of the whole: what is left of the difficulty's variance is its reliability. On the same case it comes out as
0.62 and 0.89.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.attribution.proof import residuals
from forensics.losses.difficulty import BOOL, F64, I64

RUN = 16  # labels of one run
LEAST = 0.02  # least reliability: nothing is divided by nothing


@dataclass(frozen=True)
class Runs:
    """Runs of tokens, each in one segment.

    Attributes:
        segment: int64 [m], which segment it lies in, ascending.
        start, stop: int64 [m], tokens from the segment's start.
        half: int64 [m], 0 or 1.
        opens: bool [m], whether its first token is no label: context, or the first of the row.
    """

    segment: I64
    start: I64
    stop: I64
    half: I64
    opens: BOOL


def runs_of(sequence: I64, seq_start: I64, length: I64, every: int) -> Runs:
    """One run in every `every`, the places moved from row to row.

    Args:
        sequence: int64 [n], row in the step; seq_start, length: int64 [n], place in the row and tokens of each segment.
        every: 1 reads all: whole segments.
    """
    if every <= 1:
        n = len(length)
        return Runs(np.arange(n), np.zeros(n, np.int64), length, np.arange(n) % 2, seq_start == 0)
    first = np.maximum(seq_start, 1)  # the first token of a row is no label
    stop = seq_start + length
    begin, end = (first - 1) // RUN, np.maximum(-(-(stop - 1) // RUN), (first - 1) // RUN)  # runs that the segment touches
    phase = (-sequence) % every
    begin += (phase - begin) % every
    count = np.maximum(0, -(-(end - begin) // every))
    segment = np.repeat(np.arange(len(length)), count)
    nth = np.arange(len(segment)) - np.repeat(np.cumsum(count) - count, count)
    run = begin[segment] + nth * every
    a, b = np.maximum(run * RUN + 1, first[segment]), np.minimum(run * RUN + 1 + RUN, stop[segment])
    context = a > seq_start[segment]
    a = a - context - seq_start[segment]
    half = ((run - phase[segment]) // every + sequence[segment]) % 2
    return Runs(segment, a, b - seq_start[segment], half, context)


def reliability(steps: I64, whole: F64, one: F64, other: F64, every: int, free: BOOL) -> float:
    """Share of the variance of residual difficulty that is not the luck of which tokens were read.

    Args:
        steps: int64 [n], ascending.
        whole, one, other: float64 [n], difficulty by all runs and by each half.
        every: one run in so many was read.
        free: bool [n], steps that count.
    """
    if every <= 1:
        return 1.0
    x, a, b = (residuals(steps, np.where(free, v, np.nan)) for v in (whole, one, other))
    ok = np.isfinite(x) & np.isfinite(a) & np.isfinite(b)
    if ok.sum() < 8 or not x[ok].var() > 0:
        return LEAST
    luck = float(((a - b)[ok] / 2).var()) * (1 - 1 / every)
    return float(np.clip(1 - luck / float(x[ok].var()), LEAST, 1.0))
