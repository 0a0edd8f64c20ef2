"""What an event cost, what going back costs, and what a skip list changes beside the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.attribution.decide import Claim
from forensics.attribution.evidence import Evidence
from forensics.attribution.severity import Severity
from forensics.attribution.signals import Series
from forensics.curves.lines import expected_line

BEFORE = 400  # steps that the descent of the loss is read from


@dataclass(frozen=True)
class Cost:
    """Living with an event against going back before it.

    Attributes:
        behind, error: steps that the run is behind where it was going, at the end of the log; NaN where the descent is not known.
        again: steps to train once more from the checkpoint to the last logged one; None without a checkpoint.
        harm, harm_error: excess [nats] of ordinary documents since the onset; NaN where it was not measured.
    """

    behind: float
    error: float
    again: int | None
    harm: float
    harm_error: float

    @property
    def pays(self) -> bool | None:
        """Whether going back costs less than living with it; None where the answer lies within two standard errors."""
        if self.again is None or not np.isfinite(self.behind):
            return None
        if self.behind - 2 * self.error > self.again:
            return True
        return False if self.behind + 2 * self.error < self.again else None

    @property
    def words(self) -> str:
        """For the action; empty where nothing is known."""
        parts = []
        if np.isfinite(self.behind):
            about = f"{self.behind:.0f} +- {self.error:.0f}" if self.error < 1e4 else "an unknown number of"
            parts.append(f"it is {about} steps behind where it was going")
        if self.again is not None:
            parts.append(f"going back means {self.again:,} steps again")
        return "; ".join(parts)


def cost_of(e: Evidence, claim: Claim, severity: Severity, checkpoint: int | None) -> Cost:
    """The cost of the claim's event.

    Args:
        e: evidence.
        claim: the cause.
        severity: with what is left at the end, and its error.
        checkpoint: step of the checkpoint to go back to.
    """
    train = e.log.get("train_loss")
    fall = descent(train, claim.onset)
    known = fall > 0 and severity.name not in {"unknown", "none"} and np.isfinite(severity.error)
    behind, error = (max(severity.last, 0.0) / fall, severity.error / fall) if known else (float("nan"), float("nan"))
    last = int(train.steps[-1]) if len(train) else int(e.line.steps[-1])
    return Cost(behind, error, None if checkpoint is None else max(0, last - checkpoint), *harm(e, claim.onset))


def descent(loss: Series, before: int) -> float:
    """Nats that the loss falls per step just before a step, by a line in log(step); 0 where it does not fall for sure."""
    use = (loss.steps < before) & (loss.steps >= before - BEFORE)
    if use.sum() < 24:
        return 0.0
    line, error, _ = expected_line(loss.steps, loss.values, use, np.array([before - 50, before]))
    fall = float(line[0] - line[1]) / 50
    return fall if fall * 50 > 0.5 * float(error.max()) else 0.0


def harm(e: Evidence, onset: int) -> tuple[float, float]:
    """Excess of ordinary documents [nats] from the step after the onset on, over what they showed before, and its standard error."""
    series = e.drift if e.drift is not None else e.shift
    if series is None:
        return float("nan"), float("nan")
    steps = e.line.steps
    use = (steps > onset) & (steps >= series.since) & np.isfinite(series.value)
    before = e.ordinary & (steps >= series.since) & (steps < onset) & np.isfinite(series.value)
    if use.sum() < 4:
        return float("nan"), float("nan")
    level = float(np.median(series.value[before])) if series is e.shift and before.sum() >= 8 else 0.0
    tokens = (e.line.per_step(e.line.labels * ~e.odd.odd[e.line.doc]))[use]
    value = float(((series.value[use] - level) * tokens).sum())
    return value, float(np.sqrt(((series.error[use] * tokens) ** 2).sum()))


def lr_lag(e: Evidence, steps: int, stop: int) -> float | None:
    """How far the schedule is ahead of the updates after skipped steps that still count: its relative change over them, as logged.

    Args:
        e: evidence.
        steps: how many are skipped.
        stop: first step after them.
    """
    rate = e.log.get("learning_rate")
    due, now = rate.at(np.array([stop - steps, stop]))
    return float(now / due - 1) if np.isfinite(now) and np.isfinite(due) and due > 0 else None
