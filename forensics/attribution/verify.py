"""Is this the order that the run read? The answer from the logged loss alone, with the test stated.

Difficulty of the reconstructed steps is correlated with the logged loss, both as residuals from a smooth curve, at lags
-6..6 (`proof.residuals`). With n points, n_eff of them independent by Bartlett's formula and z(r) = atanh(r) sqrt(n_eff - 3):

    proven        z >= 5 at lag 0, and atanh(r) lies 3 standard errors over every other lag
    off_by_k      the same at a lag k other than 0
    contradicted  no lag is clear, and r at lag 0 with two standard errors on top stays below 0.3 of what it could be; right
                  descriptions have shown 0.4 to 0.95
    inconclusive  anything else: too few points, an order that is right in part, difficulty that the loss does not follow

A description that gives some rows to a step nearby is right at lag 0 for the others. So the loss is also regressed on the
difficulty of the steps up to 2 away: where these slopes together exceed 0.6 of the one at lag 0, and 1.5 of their standard
errors, nothing is proven. Right descriptions have shown -0.4 to 0.55; of 2,160 orders shuffled within 4, 8 and 16 steps 36 were
proven without this test, and 4 with it, all of which hold a quarter or an eighth of the steps in their places.

Where a part of the tokens was read (`runs`), r cannot exceed the square root of the difficulty's reliability. Steps of events
are left out, and are no neighbours of the curve either: a slab would drag it.

Measured. Spike lab, 11 cases with 159 to 272 event-free steps: the right order proven in all (r 0.68 to 0.90), 66 offsets of 1 to
3 steps named with the right k, of 33 shuffled orders 31 contradicted and 2 inconclusive, of 33 that are shuffled within 16 steps
24 and 9; the quickstart's run proven (0.84). A tiny model trained on 256 x 1,024 tokens a step (`tests/bench/large_batch.py`):
proven from 40 steps after the warm-up (r 0.81) and from all 140 (0.71, 0.61 with an eighth of the tokens read); of 180 orders
shuffled whole or within 16 or 8 steps 154 contradicted, 26 inconclusive. `parts` and a rival order decide what is right in part.

A change in the middle is looked for in the products of the two residuals, whose mean is r where the description holds and
0 where it does not: the split with the largest difference counts when it is 5 standard errors (many splits are tried).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from forensics.attribution.proof import HALF, LAGS, residuals
from forensics.attribution.signals import Series
from forensics.losses.difficulty import BOOL, F64, I64

CLEAR, APART, ABSENT, LEAST = 5.0, 3.0, 0.3, 40
NEAR, STRAY, LUCK = 2, 0.6, 1.5
SPLIT, SIDE = 5.0, 40  # standard errors of a split, points that a side must have


@dataclass(frozen=True)
class Correlation:
    """One description against one log.

    Attributes:
        answer: proven, off_by_k, contradicted or inconclusive.
        lag: of the peak where it is clear, else 0; what the description gives to step t was read at step t + lag.
        r: lag -> correlation; NaN where too few points.
        error: standard error, 1 / sqrt(n_eff).
        points: pairs at lag 0; every: steps of one logged value.
        averaged: whether logged values were taken as means over these steps.
        first, last: steps of the pairs.
        reliability: share of the difficulty's variance that is not the luck of which tokens were read.
        strays: slope on steps nearby by the slope at lag 0, where that is too much; else 0.
    """

    answer: str
    lag: int
    r: Mapping[int, float]
    error: float
    points: int
    every: int
    averaged: bool
    first: int
    last: int
    reliability: float = 1.0
    strays: float = 0.0


@dataclass(frozen=True)
class Holding:
    """What the curve says of a description.

    Attributes:
        whole: over all steps.
        split: first step from which something else holds; None where nothing changes.
        before, after: the same test on both sides of it.
    """

    whole: Correlation
    split: int | None = None
    before: Correlation | None = None
    after: Correlation | None = None

    @property
    def answer(self) -> str:
        """Of the whole description: proven only where no part contradicts."""
        if self.split is None or self.before is None or self.after is None:
            return self.whole.answer
        sides = (self.before.answer, self.after.answer)
        return "contradicted" if "contradicted" in sides or "off_by_k" in sides else "inconclusive"


def interval(loss: Series) -> int:
    """Steps between logged values: the usual distance."""
    if len(loss) < 2:
        return 1
    return max(1, int(np.median(np.diff(loss.steps))))


def compare(steps: I64, difficulty: F64, loss: Series, free: BOOL | None = None, reliability: float = 1.0) -> Holding:
    """The whole test.

    Args:
        steps: int64 [n], ascending, reconstructed steps; gaps are allowed.
        difficulty: float64 [n], nats per token.
        loss: as logged.
        free: bool [n], steps without an event.
        reliability: of the difficulty, 1 where every token was read.
    """
    every = interval(loss)
    found = _pairs(steps, difficulty, loss, free, every, averaged=True)
    if every > 1:
        single = _pairs(steps, difficulty, loss, free, every, averaged=False)
        found = max((found, single), key=lambda p: np.nanmax(list(_correlations(p)[0].values()), initial=-1.0))
    whole = _nearby(_judge(found, reliability), found)
    at = _split(found)
    if at is None:
        return Holding(whole)
    early = found.steps < at
    before, after = _judge(found.only(early), reliability), _judge(found.only(~early), reliability)
    same = before.answer == after.answer and before.lag == after.lag
    return Holding(whole) if same else Holding(whole, at, before, after)


@dataclass(frozen=True)
class _Pairs:
    """Residuals of difficulty at some steps, and of the loss `lag` logged values later: y[lag + LAGS] [lags, n]."""

    steps: I64
    x: F64
    y: F64
    every: int
    averaged: bool

    def only(self, keep: BOOL) -> _Pairs:
        return replace(self, steps=self.steps[keep], x=self.x[keep], y=self.y[:, keep])


def _pairs(steps: I64, difficulty: F64, loss: Series, free: BOOL | None, every: int, *, averaged: bool) -> _Pairs:
    """Bring both to the steps of the log: a logged value is the mean over the `every` steps up to its own, or its own step's alone."""
    free = np.ones(len(steps), np.bool_) if free is None else free
    if every > 1:
        place = np.searchsorted(loss.steps, steps)  # the value that counts a step is the next one logged
        inside = place < len(loss.steps)
        label = np.where(inside, loss.steps[np.minimum(place, len(loss.steps) - 1)], -1)
        usable = inside & (label - steps < every) if averaged else inside & (label == steps)
        logged, at = np.unique(label[usable], return_inverse=True)
        count = np.bincount(at, minlength=len(logged))
        value = np.bincount(at, difficulty[usable], len(logged)) / np.maximum(count, 1)
        clean = np.bincount(at, ~free[usable], len(logged)) == 0
        full = count >= (every if averaged else 1)
        steps, difficulty, free = logged[full], value[full], clean[full]
    difficulty = np.where(free, difficulty, np.nan)
    values = np.where(np.isin(loss.steps, steps[~free]), np.nan, loss.values)
    order = np.arange(len(loss.steps))
    place = np.searchsorted(loss.steps, steps)
    here = np.minimum(place, max(len(loss.steps) - 1, 0))
    known = loss.steps[here] == steps if len(loss.steps) else np.zeros(len(steps), np.bool_)
    rank = np.where(known, here, -10 * LAGS)
    x = residuals(rank.astype(np.int64), difficulty) if every > 1 else residuals(steps, difficulty)
    ry = _some_residuals(order if every > 1 else loss.steps, values, rank[known] if every > 1 else steps)
    y = np.full((2 * LAGS + 1, len(steps)), np.nan)
    for lag in range(-LAGS, LAGS + 1):
        if every > 1:
            to = rank + lag
            fine = known & (to >= 0) & (to < len(ry))
            y[lag + LAGS, fine] = ry[to[fine]]
        else:
            y[lag + LAGS] = Series(loss.steps, ry).at(steps + lag)
    keep = free & known & np.isfinite(x)
    return _Pairs(steps[keep], x[keep], y[:, keep], every, averaged)


def _some_residuals(steps: I64, values: F64, wanted: I64) -> F64:
    """Residuals at steps up to `LAGS` from wanted ones, NaN elsewhere: a log may be a thousand times longer than what is compared."""
    edges = np.searchsorted(wanted, [steps - HALF - LAGS, steps + HALF + LAGS + 1])
    near = edges[1] > edges[0]
    out = np.full(len(values), np.nan)
    out[near] = residuals(steps[near], values[near])
    return out


def _correlations(p: _Pairs) -> tuple[dict[int, float], int]:
    out: dict[int, float] = {}
    for lag in range(-LAGS, LAGS + 1):
        y = p.y[lag + LAGS]
        both = np.isfinite(y)
        few = int(both.sum()) < 8 or p.x[both].std() == 0 or y[both].std() == 0
        out[lag] = float("nan") if few else float(np.corrcoef(p.x[both], y[both])[0, 1])
    return out, int(np.isfinite(p.y[LAGS]).sum())


def effective(p: _Pairs) -> float:
    """Independent pairs at lag 0: n / (1 + 2 sum of products of both autocorrelations)."""
    y = p.y[LAGS]
    ok = np.isfinite(y)
    n = int(ok.sum())
    if n < 8:
        return float(n)
    steps = p.steps[ok] // p.every
    x, y = p.x[ok] - p.x[ok].mean(), y[ok] - y[ok].mean()
    total = 0.0
    for k in range(1, 11):
        j = np.minimum(np.searchsorted(steps, steps + k), n - 1)
        near = steps[j] == steps + k
        if near.sum() < 8:
            continue
        a = float((x[near] * x[j[near]]).mean() / x.var()) if x.var() > 0 else 0.0
        b = float((y[near] * y[j[near]]).mean() / y.var()) if y.var() > 0 else 0.0
        total += a * b
    return float(n / max(1.0, 1 + 2 * total))


def _judge(p: _Pairs, reliability: float) -> Correlation:
    r, points = _correlations(p)
    n = effective(p)
    error = 1 / math.sqrt(n) if n else float("nan")
    first, last = (int(p.steps[0]), int(p.steps[-1])) if len(p.steps) else (0, 0)
    answer, lag = _answer(r, n, points, ABSENT * math.sqrt(reliability))
    return Correlation(answer, lag, r, error, points, p.every, p.averaged, first, last, reliability)


def _nearby(found: Correlation, p: _Pairs) -> Correlation:
    """Not proven where the loss follows steps nearby as well."""
    strays = _strays(p) if found.answer == "proven" else 0.0
    return replace(found, answer="inconclusive", strays=strays) if strays else found


def _strays(p: _Pairs) -> float:
    """Slopes of the loss on the difficulty of the steps up to `NEAR` away, by the slope on the step's own; 0 where they are few or may be luck."""
    steps, ok = p.steps // p.every, np.isfinite(p.y[LAGS])
    columns = [np.ones(len(steps)), p.x]
    for k in (k for k in range(-NEAR, NEAR + 1) if k):
        j = np.minimum(np.searchsorted(steps, steps + k), len(steps) - 1)
        columns.append(np.where(steps[j] == steps + k, p.x[j], 0.0))
    x, y = np.stack(columns, axis=1)[ok], p.y[LAGS][ok]
    b, *_ = np.linalg.lstsq(x, y, rcond=None)
    left = y - x @ b
    error = math.sqrt(float(np.linalg.pinv(x.T @ x)[2:, 2:].sum()) * float(left @ left) / max(1, len(y) - x.shape[1]))
    near = float(b[2:].sum())
    return near / max(float(b[1]), 1e-300) if near > max(STRAY * b[1], LUCK * error) else 0.0


def _answer(r: Mapping[int, float], n: float, points: int, absent: float) -> tuple[str, int]:
    known = {k: math.atanh(min(max(v, -0.999999), 0.999999)) for k, v in r.items() if math.isfinite(v)}
    if points < LEAST or n < LEAST / 2 or len(known) < LAGS:
        return "inconclusive", 0
    scale = math.sqrt(n - 3)
    best = max(known, key=lambda k: (known[k], -abs(k)))
    rest = max(v for k, v in known.items() if k != best)
    if known[best] * scale >= CLEAR and (known[best] - rest) * scale >= APART:
        return ("proven", 0) if best == 0 else ("off_by_k", best)
    if 0 in known and known[best] * scale < CLEAR and r[0] + 2 / math.sqrt(n) < absent:
        return "contradicted", 0
    return "inconclusive", 0


def _split(p: _Pairs) -> int | None:
    """First step of the later side of the best split, where the products at lag 0 differ clearly between the sides."""
    y = p.y[LAGS]
    ok = np.isfinite(y)
    n = int(ok.sum())
    if n < 2 * SIDE or p.x[ok].std() == 0 or y[ok].std() == 0:
        return None
    product = (p.x[ok] / p.x[ok].std()) * (y[ok] / y[ok].std())
    total, square = np.cumsum(product), np.cumsum(product**2)
    k = np.arange(SIDE, n - SIDE + 1)
    a, b = total[k - 1] / k, (total[-1] - total[k - 1]) / (n - k)
    va = np.maximum(square[k - 1] / k - a**2, 1e-12) / k
    vb = np.maximum((square[-1] - square[k - 1]) / (n - k) - b**2, 1e-12) / (n - k)
    z = np.abs(a - b) / np.sqrt(va + vb)
    low, high = np.minimum(a, b), np.maximum(a, b)
    z = np.where(low < 0.5 * high, z, 0.0)
    best = int(np.argmax(z))
    return int(p.steps[ok][k[best]]) if z[best] >= SPLIT else None


def duel(steps: I64, one: F64, other: F64, loss: Series, free: BOOL | None = None) -> float:
    """Which of two descriptions the loss follows where they differ: z, positive for the first.

    The residual loss is regressed on half the sum and half the difference of both difficulties; the right one's slope stands in the difference.

    Args:
        steps: int64 [n], ascending, that both have.
        one, other: float64 [n], nats per token.
        loss: as logged; free: bool [n], steps without an event.
    """
    a, b = (_pairs(steps, x, loss, free, interval(loss), averaged=True) for x in (one, other))
    both = np.intersect1d(a.steps, b.steps)
    xa, xb = a.x[np.isin(a.steps, both)], b.x[np.isin(b.steps, both)]
    y = a.y[LAGS][np.isin(a.steps, both)]
    ok = np.isfinite(y)
    if int(ok.sum()) < LEAST or not np.any(xa[ok] != xb[ok]):
        return 0.0
    x = np.stack([(xa + xb)[ok] / 2, (xa - xb)[ok] / 2, np.ones(int(ok.sum()))], axis=1)
    fit, *_ = np.linalg.lstsq(x, y[ok], rcond=None)
    left = y[ok] - x @ fit
    error = math.sqrt(float(np.linalg.pinv(x.T @ x)[1, 1]) * float(left @ left) / max(1, len(left) - 3))
    return float(fit[1] / error) if error > 0 else 0.0


def rank(found: Mapping[str, Correlation], against: Callable[[str, str], float] | None = None) -> tuple[list[str], bool]:
    """Candidates by r at lag 0, and whether the first is clear: proven, and ahead of each other one by three standard errors.

    Args:
        found: candidates that read different data, by name.
        against: z of two of them where they differ (`duel`); without it their r are compared.
    """
    value = {name: c.r.get(0, float("nan")) for name, c in found.items()}
    order = sorted(found, key=lambda name: (-value[name] if math.isfinite(value[name]) else 2.0, name))
    if not order or found[order[0]].answer != "proven":
        return order, False
    first = found[order[0]]
    for name in order[1:]:
        if not math.isfinite(value[name]):
            continue
        apart = (math.atanh(min(first.r[0], 0.999999)) - math.atanh(min(value[name], 0.999999))) / first.error
        if max(apart, against(order[0], name) if against else 0.0) < APART:
            return order, False
    return order, True
