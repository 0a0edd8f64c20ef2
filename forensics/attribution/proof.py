"""Does the logged loss follow the reconstructed steps?

The noise of a training loss is the difficulty of its batches. So residuals of difficulty and of the logged loss,
taken from running medians, must correlate at lag 0 when the reconstruction is right; a peak at another lag says by how
many steps it is off, and none at all, with enough steps, that it is wrong. A fault of the state does not touch the
correlation; steps of an event are left out because its own shape would correlate with anything slow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from forensics.attribution.signals import SD, Series
from forensics.attribution.timeline import column
from forensics.losses.difficulty import BOOL, F64, I64
from forensics.schemas import PROOF, Difficulty, Proof
from forensics.stage import stage

HALF = 31  # steps on each side of the running median
LAGS = 6
CLIP = 4.0
LEAST = 40  # steps without which the answer is inconclusive


@dataclass(frozen=True)
class Answer:
    """One subject's correlations by lag and what they say."""

    answer: str
    lag: int
    r: dict[int, float]
    error: float
    steps: int


def residuals(steps: I64, values: F64) -> F64:
    """Values minus their running median over `HALF` steps on each side, clipped at four robust standard deviations."""
    out = np.full(len(values), np.nan)
    begin, end = np.searchsorted(steps, steps - HALF), np.searchsorted(steps, steps + HALF + 1)
    known = np.isfinite(values)
    for i in np.flatnonzero(known):
        near = values[begin[i] : end[i]]
        near = near[known[begin[i] : end[i]]]
        if len(near) >= 8:
            out[i] = values[i] - np.median(near)
    ok = np.isfinite(out)
    if ok.any():
        scale = SD * float(np.median(np.abs(out[ok])))
        if scale > 0:
            out = np.clip(out, -CLIP * scale, CLIP * scale)
    return out


def correlate(steps: I64, difficulty: F64, loss: Series, free: BOOL | None = None, every: int = 1) -> Answer:
    """Correlation of residuals at lags -6..6, and the answer.

    Args:
        steps: reconstructed steps, ascending.
        difficulty: mean code length of each [nats/token].
        loss: as logged.
        free: steps without an event.
        every: the log holds means over that many steps: difficulty is averaged likewise.
    """
    if every > 1:
        block = steps // every
        keep = np.array([int(b) for b in np.unique(block) if (block == b).sum() == every])
        difficulty = np.array([difficulty[block == b].mean() for b in keep]) if len(keep) else np.zeros(0)
        free = np.array([bool(free[block == b].all()) for b in keep]) if free is not None and len(keep) else None
        steps = keep
        loss = Series(loss.steps // every, loss.values)
    if len(steps):
        loss = loss.part(int(steps[0]) - HALF - LAGS, int(steps[-1]) + HALF + LAGS + 1)
    x = residuals(steps, difficulty)
    y = residuals(loss.steps, loss.values)
    ok = np.isfinite(x) & (free if free is not None else True)
    found: dict[int, float] = {}
    used = 0
    for lag in range(-LAGS, LAGS + 1):
        other = Series(loss.steps, y).at(steps + lag)
        both = ok & np.isfinite(other)
        n = int(both.sum())
        used = n if lag == 0 else used
        if n < 8 or x[both].std() == 0 or other[both].std() == 0:
            found[lag] = float("nan")
            continue
        found[lag] = float(np.corrcoef(x[both], other[both])[0, 1])
    error = 1 / math.sqrt(used) if used else float("nan")
    return Answer(*_answer(found, error, used), found, error, used)


def _answer(r: Mapping[int, float], error: float, used: int) -> tuple[str, int]:
    known = {k: v for k, v in r.items() if math.isfinite(v)}
    if used < LEAST or not known:
        return "inconclusive", 0
    best = max(known, key=lambda k: known[k])
    rest = max((v for k, v in known.items() if k != best), default=0.0)
    clear = known[best] > 4 * error and known[best] > rest + 2 * error
    if clear:
        return ("proven", 0) if best == 0 else ("off_by_k", best)
    if known.get(0, 1.0) < 3 * error and 3 * error < 0.25:
        return "contradicted", 0
    return "inconclusive", 0


@stage(PROOF, version=1)
def prove(
    difficulty: Difficulty,
    loss_steps: Sequence[int],
    loss_values: Sequence[float],
    event: tuple[int, int] | None = None,
    subject: str = "this description",
    every: int = 1,
) -> Proof:
    """The answer for one reconstruction as a table, one row per lag.

    Args:
        difficulty: code length per sequence of the reconstructed steps.
        loss_steps, loss_values: the logged training loss.
        event: steps to leave out, half-open.
        subject: which description or candidate this is.
        every: the log holds means over that many steps.
    """
    step = column(difficulty, "step")
    steps, at = np.unique(step, return_inverse=True)
    total = np.bincount(at, difficulty.column("code_length").to_numpy())
    count = np.bincount(at, column(difficulty, "predicted"))
    free = None if event is None else ~((steps >= event[0]) & (steps < event[1]))
    got = correlate(steps, total / np.maximum(count, 1), Series(np.asarray(loss_steps, dtype=np.int64), np.asarray(loss_values, dtype=np.float64)), free, every)
    lags = sorted(got.r)
    return Proof(
        PROOF.of(
            pa.table(
                {
                    "subject": [subject] * len(lags),
                    "lag": pa.array(lags, pa.int32()),
                    "r": pa.array([None if math.isnan(got.r[k]) else got.r[k] for k in lags], pa.float64()),
                    "standard_error": pa.array([None if math.isnan(got.error) else got.error] * len(lags), pa.float64()),
                    "steps": pa.array([got.steps] * len(lags), pa.int32()),
                    "answer": [got.answer] * len(lags),
                }
            )
        )
    )
