"""Does every part of a description hold? Parts are what one launch read of one corpus, and rows at the edge of a batch.

A description that is right for some corpora and wrong for others, or whose rows slip into the next step now and then, still
correlates with the loss. So the logged residual y is regressed on the difficulty of every part at once,

    y_t = sum_g b_g x_tg + sum_g s_g share_tg + e+ first_(t+1) + e- last_(t-1)

with x_tg the excess code length of part g over its own mean, per label of the step. Where the description holds, the b_g
are alike and both e are 0. Where a part of the tokens was read (`runs`), b_g falls short by the reliability of x_g, and is
divided by it. A part fails when b_g with three standard errors on top stays below 0.4 of the common slope,
though a slope like the others' would stand five standard errors over 0; it is open when it should stand four over 0
and does not stand 1.5; rows slip when an e is five standard errors over 0. On the spike lab, by source, and on quickstart
runs the slopes of right descriptions lay between 0.4 and 1.8 of the common one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forensics.attribution.proof import residuals
from forensics.attribution.runs import reliability
from forensics.attribution.signals import Series
from forensics.losses.difficulty import BOOL, F64, I64, code_lengths

LOW, POWER, SHOULD, SEEN, SLIP = 0.4, 5.0, 4.0, 1.5, 5.0
LEAST_SHARE, MOST_PARTS = 0.03, 24
LEAST, LEAST_STEPS = 80, 40  # event-free steps: in all, and that a part is read in


@dataclass(frozen=True)
class Scored:
    """Segments with their code lengths.

    Attributes:
        step: int64 [m]; row: int64 [m], sequence in the step; part: int64 [m], index into `names`.
        nats, labels: float64 [m], sums over the segment's labels.
        names: of the parts.
        whole: whether every row of the steps is here, if only by some of its tokens.
        half: int64 [m], 0 or 1, two halves of what was read; every: one token in so many was.
    """

    step: I64
    row: I64
    part: I64
    nats: F64
    labels: F64
    names: tuple[str, ...]
    whole: bool = True
    half: I64 | None = None
    every: int = 1

    def per_step(self) -> tuple[I64, F64]:
        """Steps, ascending, and nats per label."""
        steps, at = np.unique(self.step, return_inverse=True)
        return steps, _mean(at, self.nats, self.labels, len(steps))

    def reliability(self, free: BOOL) -> float:
        """Of the difficulty of the steps, those that are free."""
        if self.half is None:
            return 1.0
        steps, at = np.unique(self.step, return_inverse=True)
        one, other = (_mean(at, self.nats * mine, self.labels * mine, len(steps)) for mine in (self.half == 0, self.half == 1))
        return reliability(steps, _mean(at, self.nats, self.labels, len(steps)), one, other, self.every, free)


@dataclass(frozen=True)
class Slope:
    """How the loss follows one part.

    Attributes:
        ratio: its slope by the common one; error: of that.
        power: standard errors that a slope like the others' would stand over 0.
    """

    name: str
    ratio: float
    error: float
    power: float

    @property
    def fails(self) -> bool:
        """Whether the loss follows the others but not this part."""
        return self.power >= POWER and self.ratio + 3 * self.error < LOW

    @property
    def holds(self) -> bool:
        """Whether the loss follows this part by itself."""
        return self.ratio - SEEN * self.error > 0

    @property
    def open(self) -> bool:
        """Whether it should be seen to hold, and is not."""
        return self.power >= SHOULD and not self.holds and not self.fails


@dataclass(frozen=True)
class Parts:
    """The answer per part, and z of rows that belong to the step before or after."""

    slopes: tuple[Slope, ...] = ()
    slip_before: float = 0.0
    slip_after: float = 0.0
    why_not: str = ""

    @property
    def failed(self) -> tuple[str, ...]:
        """Parts that are not read as described."""
        return tuple(s.name for s in self.slopes if s.fails)

    @property
    def open(self) -> tuple[str, ...]:
        """Parts that may or may not be read as described, though enough steps hold them."""
        return tuple(s.name for s in self.slopes if s.open)

    @property
    def slips(self) -> bool:
        """Whether rows lie in neighbouring steps."""
        return max(self.slip_before, self.slip_after) >= SLIP


def _mean(at: I64, nats: F64, labels: F64, steps: int) -> F64:
    return np.asarray(np.bincount(at, nats, steps) / np.maximum(np.bincount(at, labels, steps), 1))


def score(
    tokens: I64, offsets: I64, step: I64, row: I64, part: I64, names: Sequence[str], opens: BOOL, whole: bool = True, half: I64 | None = None, every: int = 1
) -> Scored:
    """Code lengths of segments under the pair table of them all, each scored without its own counts.

    Args:
        tokens: flat ids.
        offsets: int64 [m + 1].
        step, row, part: int64 [m].
        names: of the parts.
        opens: bool [m], whether the first token of a segment is no label: it opens its row, or is there as context.
        whole, half, every: as in `Scored`.
    """
    _, after = code_lengths(np.asarray(tokens, np.int64), offsets, np.ones(len(offsets) - 1, np.bool_))
    total = np.concatenate([[0.0], np.cumsum(after)])
    first = np.minimum(offsets[:-1] + opens, offsets[1:])
    nats = total[offsets[1:]] - total[first]
    return Scored(step, row, part, nats, (offsets[1:] - first).astype(np.float64), tuple(names), whole, half, every)


def examine(scored: Scored, loss: Series, free: BOOL | None = None) -> Parts:
    """The regression.

    Args:
        scored: segments of the reconstructed steps.
        loss: as logged, every step.
        free: per step of `scored.per_step()`, whether it has no event.
    """
    steps, at = np.unique(scored.step, return_inverse=True)
    labels = np.maximum(np.bincount(at, scored.labels, len(steps)), 1)
    free = np.ones(len(steps), np.bool_) if free is None else free
    known = np.where(np.isin(loss.steps, steps[~free]), np.nan, loss.values)
    y = Series(loss.steps, residuals(loss.steps, known)).at(steps)
    ok = np.isfinite(y) & free
    if int(ok.sum()) < LEAST:
        return Parts(why_not=f"{int(ok.sum())} logged steps, {LEAST} are needed")
    share = np.stack([np.bincount(at[scored.part == g], scored.labels[scored.part == g], len(steps)) / labels for g in range(len(scored.names))], axis=1)
    active = (share[ok] > 0).sum(0)
    mean = share[ok].sum(0) / np.maximum(active, 1)
    kept = [g for g in np.argsort(-share[ok].mean(0)).tolist() if active[g] >= LEAST_STEPS and mean[g] >= LEAST_SHARE][:MOST_PARTS]
    if not kept:
        return Parts(why_not=f"no part is read in {LEAST_STEPS} event-free steps")
    columns, trust = zip(*(_column(scored, steps, at, scored.part == g, ok) for g in kept))
    rest = ~np.isin(scored.part, kept)
    other = [_column(scored, steps, at, rest, ok)[0]] if rest.any() else []
    edges = _edges(scored, steps, at, ok) if scored.whole else []
    nuisance = [share[:, g] - share[:, g].mean() for g in kept[1:]]
    return _fit(y, ok, [*columns, *other], np.array(trust), edges, nuisance, [scored.names[g] for g in kept])


def _column(scored: Scored, steps: I64, at: I64, mine: BOOL, ok: BOOL) -> tuple[F64, float]:
    """Residual excess of a part over its own mean per label [steps], 0 where it is not read or the step does not count; its reliability."""
    inside = ok & (np.bincount(at[mine], scored.labels[mine], len(steps)) > 0)
    counted = mine & inside[at]
    mean = scored.nats[counted].sum() / max(scored.labels[counted].sum(), 1.0)

    def excess(some: BOOL) -> F64:
        labels = np.bincount(at[some], scored.labels[some], len(steps))
        total = np.bincount(at[some & mine], (scored.nats - mean * scored.labels)[some & mine], len(steps))
        return np.where(inside, total / np.maximum(labels, 1), np.nan)

    whole, trust = excess(np.ones(len(at), np.bool_)), 1.0
    if scored.half is not None:
        trust = reliability(steps, whole, excess(scored.half == 0), excess(scored.half == 1), scored.every, inside)
    return np.nan_to_num(residuals(steps, whole)), trust


def _edges(scored: Scored, steps: I64, at: I64, ok: BOOL) -> list[F64]:
    """Excess of the first row of the next step and of the last row of the step before [steps]; 0 where that step is not here or does not count."""
    last = np.zeros(len(steps), np.int64)
    np.maximum.at(last, at, scored.row)
    rows = ((scored.row == 0, 1), (scored.row == last[at], -1))
    return [np.nan_to_num(Series(steps, _column(scored, steps, at, mine, ok)[0]).at(steps + shift)) for mine, shift in rows]


def _fit(y: F64, ok: BOOL, design: Sequence[F64], trust: F64, edges: Sequence[F64], nuisance: Sequence[F64], names: Sequence[str]) -> Parts:
    """Least squares; slopes by their reliability, then relative to the mean slope of the parts, weighted by their precision."""
    x = np.nan_to_num(np.stack([*design, *edges, *nuisance, np.ones(len(y))], axis=1))[ok]
    target, parts = y[ok], len(trust)
    free = len(target) - x.shape[1]
    if free < LEAST // 2:
        return Parts(why_not=f"{len(target)} logged steps for {parts} parts")
    b, *_ = np.linalg.lstsq(x, target, rcond=None)
    left = target - x @ b
    inverse = np.linalg.pinv(x.T @ x)
    error = np.sqrt(np.maximum(np.diag(inverse) * float(left @ left) / free, 1e-300))
    own, own_error = b[:parts] / trust, error[:parts] / trust
    slope = _common(own, own_error)
    if not slope > 0:
        return Parts(why_not="the loss does not follow the difficulty at all")
    found = tuple(Slope(n, float(v / slope), float(e / slope), float(slope / e)) for n, v, e in zip(names, own, own_error))
    first = len(design)
    z = [float(b[first + k] / error[first + k]) for k in range(len(edges))]
    return Parts(found, z[1] if z else 0.0, z[0] if z else 0.0)


def _common(b: F64, error: F64) -> float:
    """The slope that most parts share: the median weighted by precision, so that a part that fails does not drag it."""
    weight = 1 / error**2
    known = np.isfinite(b) & np.isfinite(weight)
    if not known.any():
        return math.nan
    order = np.argsort(b[known])
    total = np.cumsum(weight[known][order])
    upper = float(b[known][order][np.searchsorted(total, 0.5 * total[-1])])
    clear = known & (b - 2 * error > 0)  # parts that the loss follows at all
    return float(np.average(b[clear], weights=weight[clear])) if clear.any() else upper
