"""One event while the rules work on it, and what a rule may know: curves, settings, what people said about the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forensics.curves.series import Curves, Floats, Ints, Series
from forensics.curves.settings import Annotation, CurveSettings, Loss, Norm, Optimizer
from forensics.curves.trend import grid_of, scale_floor
from forensics.robust import mad_scale

CLOSED, ADOPTED, OPEN = 0, 1, 2  # how an event of the scan ended; here, so that only who scans loads the compiler


@dataclass
class Event:
    """A shape found on a curve; the columns of the `events` table, filled in by the rules one after the other."""

    metric: str
    shape: str
    level: str
    start: int
    stop: int | None = None
    peak: int | None = None
    severity: str | None = None
    height: float | None = None
    sigma: float | None = None
    residual: float | None = None
    recovery: int | None = None
    cost: float | None = None
    cause: str | None = None
    subcause: str | None = None
    action: str | None = None
    confidence: str | None = None
    evidence: dict[str, float] = field(default_factory=dict)
    incident: int = 0
    rule: str = ""
    tokens: int | None = None
    time: int | None = None

    @property
    def last(self) -> int:
        """Last step."""
        return self.start if self.stop is None else max(self.start, self.stop - 1)


@dataclass(frozen=True)
class Scan:
    """A scanned curve: the arrays of `scan.scan` beside the records they belong to.

    Attributes:
        step: int64 [n]. y: float64 [n], finite.
        z, expected, scale: float64 [n].
        event: int32 [n]: 0 outside, -1 one-step outlier, else the number of the row in `rows`, from 1.
        rows: float64 [m, 12], see scan.scan.
        first: index of the first judged record.
    """

    step: Ints
    y: Floats
    z: Floats
    expected: Floats
    scale: Floats
    event: NDArray[np.int32]
    rows: Floats
    first: int

    @cached_property
    def noise(self) -> float:
        """Step noise of the curve: from differences of neighbours, never finer than the grid that the values were rounded to."""
        return max(float(mad_scale(np.diff(self.y)) / np.sqrt(2)), 0.5 * grid_of(self.y), 1e-12)


class Context:
    """What every rule reads. Scans are made once per metric.

    Args:
        curves: of one run.
        settings: thresholds.
        optimizer: as the run description says; empty where it says nothing.
        annotations: what people know.
        checkpoints: steps that can be gone back to, sorted.
        refit: records between two fits of a baseline, at least.
    """

    def __init__(
        self,
        curves: Curves,
        settings: CurveSettings,
        *,
        optimizer: Optimizer | None = None,
        annotations: Sequence[Annotation] = (),
        checkpoints: Sequence[int] = (),
        refit: int = 5,
    ) -> None:
        self.refit = refit
        self.curves, self.settings = curves, settings
        self.optimizer = optimizer or Optimizer()
        self.annotations, self.checkpoints = tuple(annotations), tuple(sorted(checkpoints))
        self._scans: dict[str, Scan | None] = {}
        self.histories: dict[str, Floats] = {}

    @cached_property
    def loss(self) -> Series | None:
        """The training loss, finite records only."""
        s = self.curves.get("train_loss")
        return s.finite() if s is not None and np.isfinite(s.value).any() else None

    @cached_property
    def warmup(self) -> int | None:
        """Last step of the learning rate's warm-up: described, else where the logged rate stops rising from the start; None where unknown."""
        if self.optimizer.warmup is not None:
            return self.optimizer.warmup
        lr = self.curves.get("learning_rate")
        if lr is None:
            return None
        return warmup_of(lr.finite())

    @cached_property
    def judged_from(self) -> int:
        """First step on which loss rules judge: after the start-up of a run whose start was logged, at once otherwise."""
        s = self.loss
        if s is None or s.step[0] > 50 * s.cadence:
            return 0 if s is None else int(s.step[0])
        return max(self.settings.loss.skip_steps, 2 * min(self.warmup or 0, int(s.step[-1])))

    def scan(self, metric: str) -> Scan | None:
        """The scan of a metric, on its logarithm for norms and throughput; None where the curve is too short."""
        if metric not in self._scans:
            self._scans[metric] = self._scan(metric)
        return self._scans[metric]

    def _scan(self, metric: str) -> Scan | None:
        series = self.curves.get(metric)
        if series is None:
            return None
        s = series.finite()
        log = not metric.startswith(("train_loss", "eval_loss", "aux_loss"))
        if log:
            s = s.where(s.value > 0)
        if len(s) < self.settings.loss.short_log:
            return None
        rule: Loss | Norm = self.settings.norm if log else self.settings.loss
        first = int(np.searchsorted(s.step, self.settings.loss.skip_steps)) if s.step[0] <= 50 * s.cadence else 0
        first = min(first, max(60, len(s) // 4))  # a log that ends before is read all the same; what the start-up does is sorted out later
        if metric == "tokens_per_second":
            first = 0
        return scan_of(s.step, np.log(s.value) if log else s.value, rule, self.settings.loss, first, floor=0.002 if log else None, refit=self.refit)


def warmup_of(lr: Series) -> int | None:
    """Last step of a logged rate's first rise: 0 where it starts high, None where its start was not logged."""
    if len(lr) < 3 or lr.step[0] > 10 * lr.cadence:
        return None
    if lr.value[0] >= 0.5 * np.median(lr.value):
        return 0
    stalls = lr.value[1:] <= lr.value[:-1] * (1 + 1e-6)
    for i in np.flatnonzero(stalls & (lr.value[1:] > 0)):
        if stalls[i : i + 5].all():
            return int(lr.step[i])
    return int(lr.step[-1])


def scan_of(step: Ints, y: Floats, rule: Loss | Norm, loss: Loss, first: int, floor: float | None = None, refit: int = 5) -> Scan:
    """Scan finite records.

    Args:
        step: int64 [n], increasing.
        y: float64 [n].
        rule: window and thresholds.
        loss: where the settling length comes from.
        first: index of the first judged record.
        floor: smallest scale; None = from the values.
        refit: records between two fits, at least.
    """
    from forensics.curves.scan import scan

    n = len(y)
    window = int(min(rule.window, max(60, n // 8)))
    refit = max(refit, n // 20000)  # of a curve so long that a twentieth of a thousandth shows no change of slope
    least = scale_floor(y, loss.relative_floor) if floor is None else floor
    x = np.log(step.astype(np.float64) - min(0.0, float(step[0])) + 1.0)
    first = max(first, min(60, n // 4))
    z, expected, scale, event, rows = scan(
        x,
        np.require(y, np.float64, ["C", "W"]),  # to numba a locked array is another type, and the kernel takes ten seconds to compile
        window,
        float(np.log(2.0)),
        refit,
        first,
        rule.point,
        rule.slack,
        rule.limit,
        least,
        min(loss.settle, max(60, n // 8)),
    )
    return Scan(step, y, z, expected, scale, event, rows.copy(), first)
