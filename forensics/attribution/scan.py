"""Are the odd documents concentrated in time? A scan over steps with circular shifts as its null.

Documents come in shards, so they must never be permuted one by one: that calls every shard boundary significant.
Shifting the whole series of ordinary steps keeps what order gives it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.losses.difficulty import F64, I64


@dataclass(frozen=True)
class Stretch:
    """Steps start..stop (half-open) that hold most of the odd tokens.

    Attributes:
        dose: odd tokens by the tokens of a step, over the stretch.
        share: mean share of odd tokens in the stretch.
        p: of the scan.
        shifts: different shifts that the null had.
    """

    start: int
    stop: int
    dose: float
    share: float
    p: float
    shifts: int


def best_stretch(a: F64, bar: float) -> tuple[int, int, float]:
    """Half-open index range with the largest sum of `a - bar`, and that sum (Kadane); (0, 0, 0) where none is positive."""
    best, best_range, total, begin = 0.0, (0, 0), 0.0, 0
    for i, x in enumerate((a - bar).tolist()):
        if total <= 0:
            total, begin = 0.0, i
        total += x
        if total > best + 1e-12:
            best, best_range = total, (begin, i + 1)
    return (*best_range, best)


def scan(steps: I64, share: F64, look: tuple[int, int], history: tuple[int, int], shifts: int) -> Stretch | None:
    """The stretch of `look` that holds the odd tokens, tested against `history`.

    Args:
        steps: int64 [T].
        share: share of odd tokens per step [T].
        look: index range that is searched; history: index range of ordinary steps.
        shifts: how many circular shifts at most.
    """
    here = share[look[0] : look[1]]
    past = share[history[0] : history[1]]
    if not len(here) or here.max(initial=0.0) <= 0:
        return None
    base = float(past.mean()) if len(past) else 0.0
    a, b, _ = best_stretch(here, base + 0.02)
    if b <= a:
        return None
    typical = float((here[a:b] ** 2).sum() / here[a:b].sum())  # the share in the step of an average odd token: scattered ones do not pull it down
    bar = max(base + 0.02, 0.25 * typical)
    a, b, found = best_stretch(here, bar)
    if b <= a:
        return None
    p, different = 1.0, 0
    if len(past) >= 8:
        rng = np.random.default_rng(len(past))
        offsets = np.arange(len(past)) if len(past) <= shifts else rng.choice(len(past), shifts, replace=False)
        different = len(offsets)
        length = min(len(here), len(past))
        rolled = [best_stretch(np.roll(past, int(k))[:length], bar)[2] for k in offsets]
        draws = np.array(rolled)
        p = (1 + shifts * float((draws >= found).mean())) / (shifts + 1)
    part = here[a:b]
    return Stretch(int(steps[look[0] + a]), int(steps[look[0] + b - 1]) + 1, float(part.sum()), float(part.mean()), p, different)
