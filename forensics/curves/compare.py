"""Two runs on one axis: do they read the same batches, where do their orders part, which peaks are the batch's and which the run's own.

Step-to-step noise of a loss is almost all batch content: after a running median is removed, runs with equal order correlate at 0.98 to 1.00 although
model, schedule or hardware differ, and at 0.00 with another order. So the correlation of residuals says whether two runs read the same data; a peak
that both show is the batch, one that only one shows is that run's state; and the difference of two such runs is a curve with up to twenty times less noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.curves.event import Event
from forensics.curves.series import Curves, Floats, Ints
from forensics.curves.throughput import running_median
from forensics.robust import mad_scale

AGREE = 0.5  # correlation of a window above which the orders are taken to be equal
WIDTH = 101  # records of the running median


@dataclass(frozen=True)
class Stretch:
    """Steps over which two runs do or do not read the same batches; half-open."""

    start: int
    stop: int
    agree: bool
    r: float


@dataclass(frozen=True)
class Comparison:
    """What two runs have in common.

    Attributes:
        a, b: names of the runs.
        steps: records at common steps.
        lag: steps by which b's numbering runs ahead of a's.
        r: correlation of the residuals over all common steps; error: its standard error.
        stretches: where orders agree and part.
        common: steps at which both peak: the batch.
        only_a, only_b: steps at which one peaks where the orders agree: that run's state.
        gain: noise of a by noise of a minus b, where the orders agree; 0 where they never do.
    """

    a: str
    b: str
    steps: int
    lag: int
    r: float
    error: float
    stretches: list[Stretch]
    common: list[int]
    only_a: list[int]
    only_b: list[int]
    gain: float

    @property
    def verdict(self) -> str:
        """One line."""
        agreed = [s for s in self.stretches if s.agree]
        parts = ", ".join(f"{s.start}-{s.stop - 1}" for s in agreed)
        if not agreed:
            return f"{self.a} and {self.b} read different batches (r = {self.r:.2f} over {self.steps} common steps)"
        if len(self.stretches) == 1:
            return f"{self.a} and {self.b} read the same batches in the same order (r = {self.r:.3f} over {self.steps} common steps)"
        return f"{self.a} and {self.b} read the same batches at steps {parts} and different ones elsewhere"


def compare(a: Curves, b: Curves, metric: str = "train_loss") -> Comparison | str:
    """Compare two runs by the residuals of a metric, or say why they cannot be compared."""
    one, two = a.get(metric), b.get(metric)
    if one is None or two is None:
        return f"{a.run if one is None else b.run} has no {metric}"
    one, two = one.finite(), two.finite()
    lag, n = 0, 0
    best: tuple[float, int, Ints, Floats, Floats] | None = None
    for lag in (0, 1, -1, 2, -2):
        step, i, j = np.intersect1d(one.step, two.step - lag, return_indices=True)
        n = max(n, len(step))
        if len(step) < 3 * WIDTH // 2:
            continue
        ra, rb = residual(one.value[i]), residual(two.value[j])
        r = correlation(ra, rb)
        windows = np.array([correlation(ra[k : k + 200], rb[k : k + 200]) for k in range(0, max(1, len(ra) - 199), 200)])
        score = max(r, float(np.quantile(windows, 0.9)))
        if best is None or score > best[0] + 0.2:
            best = (score, lag, step, ra, rb)
    if best is None:
        return f"{n} common steps, at least {3 * WIDTH // 2} are needed"
    _, lag, step, ra, rb = best
    stretches = _stretches(step, ra, rb)
    inside = np.zeros(len(step), dtype=bool)
    for s in stretches:
        inside |= (step >= s.start) & (step < s.stop) & s.agree
    za, zb = ra / max(mad_scale(ra), 1e-12), rb / max(mad_scale(rb), 1e-12)
    near_a, near_b = _near(za), _near(zb)
    common = step[(za > 6) & (near_b > 4) & inside]
    only_a, only_b = step[(za > 6) & (near_b < 3) & inside], step[(zb > 6) & (near_a < 3) & inside]
    return Comparison(
        a.run,
        b.run,
        len(step),
        lag,
        correlation(ra, rb),
        1 / float(np.sqrt(len(step))),
        stretches,
        common.tolist(),
        only_a.tolist(),
        only_b.tolist(),
        _gain(ra[inside], rb[inside]),
    )


def residual(value: Floats) -> Floats:
    """Values minus their running median of 101 records."""
    return np.asarray(value - running_median(value, WIDTH), dtype=np.float64)


def correlation(a: Floats, b: Floats) -> float:
    """Pearson correlation of residuals clipped at five robust sd; 0 where one does not vary."""
    ca, cb = (np.clip(v, -5 * (s := max(mad_scale(v), 1e-12)), 5 * s) for v in (a, b))
    ca, cb = ca - ca.mean(), cb - cb.mean()
    d = float(np.sqrt((ca @ ca) * (cb @ cb)))
    return float(ca @ cb) / d if d > 0 else 0.0


def _near(z: Floats) -> Floats:
    """Highest value within one record."""
    p = np.pad(z, 1, mode="edge")
    return np.asarray(np.maximum(np.maximum(p[:-2], p[1:-1]), p[2:]), dtype=np.float64)


def _gain(a: Floats, b: Floats) -> float:
    """By how much the noise shrinks when the other run's residual, scaled to fit, is subtracted."""
    if len(a) < 30:
        return 0.0
    beta = float((a @ b) / max(float(b @ b), 1e-30))
    return mad_scale(a) / max(mad_scale(a - beta * b), 1e-12)


def _stretches(step: Ints, a: Floats, b: Floats) -> list[Stretch]:
    """Windows of the sliding correlation, joined where neighbours agree; the boundary is placed where the two sides fit best."""
    width = int(min(400, max(50, len(step) // 40)))
    tall = (np.abs(a) > 6 * max(mad_scale(a), 1e-12)) | (np.abs(b) > 6 * max(mad_scale(b), 1e-12))
    a, b = np.where(tall, 0.0, a), np.where(tall, 0.0, b)  # a peak of one run does not mean another batch
    edges = list(range(0, len(step) - width // 2, width)) or [0]
    marks = [correlation(a[i : i + width], b[i : i + width]) > AGREE for i in edges]
    cuts = [0]
    for k in range(1, len(edges)):
        if marks[k] != marks[k - 1]:
            cuts.append(_boundary(a, b, edges[k], width, marks[k]))
    cuts.append(len(step))
    out = []
    for i, (lo, hi) in enumerate(zip(cuts, cuts[1:], strict=False)):
        if hi > lo:
            out.append(Stretch(int(step[lo]), int(step[hi - 1]) + 1, marks[0] if i % 2 == 0 else not marks[0], correlation(a[lo:hi], b[lo:hi])))
    return out


def _boundary(a: Floats, b: Floats, at: int, width: int, agree_after: bool) -> int:
    """Record near `at` from which on the runs agree (or part): least squared difference on the agreeing side, the usual one on the other."""
    lo, hi = max(0, at - width), min(len(a), at + width)
    za, zb = a[lo:hi] / max(mad_scale(a[lo:hi]), 1e-12), b[lo:hi] / max(mad_scale(b[lo:hi]), 1e-12)
    d = np.minimum((za - zb) ** 2, 9.0) - 1.0  # independent: 2 on average; equal: near 0
    c = np.concatenate([[0.0], np.cumsum(d)])
    score = (c - (c[-1] - c)) if agree_after else ((c[-1] - c) - c)
    return lo + int(np.argmax(score))


def explain(events: list[Event], found: Comparison) -> None:
    """Give events of the first run the cause that the second run settles: a peak that both show is the batch, one of its own is not the batch alone."""
    common, own = np.array(found.common, dtype=np.int64), np.array(found.only_a, dtype=np.int64)
    for e in events:
        if not e.metric.startswith("train_loss") or e.cause not in (None, "undetermined") or e.shape not in ("spike", "outlier", "dip"):
            continue
        at = e.peak if e.peak is not None else e.start
        if len(common) and int(np.abs(common - at).min()) <= 1:
            e.cause, e.subcause, e.confidence = "interaction", "hard_batch", "high"
            e.action = "do nothing: another run with this order peaks at the same step, it is the batch and it is learnt"
        elif len(own) and int(np.abs(own - at).min()) <= 1:
            e.subcause, e.confidence = "own_state", "medium"
            e.action = f"look at this run's state: {found.b} read the same batch without a peak"
