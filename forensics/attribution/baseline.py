"""Which steps to read and which of them to compare with.

The cause may lie up to a look-back before the window, so ordinary steps are taken from before that; a dirty stretch may
run on after the window, so some steps after it are read as well. The pipeline asks for these ranges before it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from forensics.attribution.inputs import Rules
from forensics.losses.difficulty import BOOL, I64
from forensics.schemas import Events
from forensics.steps import StepRange

SETTLE = 20  # steps after an event that still show it


@dataclass(frozen=True)
class Ranges:
    """Steps by role; None where there are none. `notes`: what had to be compromised."""

    window: StepRange
    lookback: StepRange | None
    baseline: StepRange | None
    after: StepRange | None
    notes: tuple[str, ...] = ()

    @property
    def whole(self) -> StepRange:
        """From the first to the last step of any role."""
        parts = [r for r in (self.window, self.lookback, self.baseline, self.after) if r]
        return StepRange(min(r.start for r in parts), max(r.stop for r in parts))


def time_constants(optimizer: Mapping[str, Any]) -> tuple[int, int]:
    """tau_m and tau_v of the optimizer's averages [step]; 10 and 20 where not declared."""
    betas = optimizer.get("betas") or (0.9, 0.95)
    try:
        first, second = float(betas[0]), float(betas[1])
    except (TypeError, ValueError, IndexError):
        return 10, 20
    return max(1, round(1 / max(1 - first, 1e-6))), max(1, round(1 / max(1 - second, 1e-6)))


def lookback_of(optimizer: Mapping[str, Any], rules: Rules, shuffle_reach: int | None = None) -> int:
    """Steps before the window that may hold the cause."""
    _, tau_v = time_constants(optimizer)
    return min(max(rules.lookback, 2 * tau_v, shuffle_reach or 0), rules.lookback_most)


def ranges(
    window: StepRange,
    first: int,
    stop: int,
    rules: Rules,
    *,
    optimizer: Mapping[str, Any] | None = None,
    shuffle_reach: int | None = None,
    baseline: StepRange | None = None,
) -> Ranges:
    """Roles of steps around a window.

    Args:
        window: asked about.
        first, stop: steps that can be read, half-open.
        rules: thresholds.
        optimizer: for its time constants.
        shuffle_reach: steps over which the loader mixes samples.
        baseline: as the user gave it.
    """
    notes: list[str] = []
    back = lookback_of(optimizer or {}, rules, shuffle_reach)
    room = window.start - first
    if room < back + 24 and baseline is None:
        short = max(0, min(back, room // 2 if room >= 24 else room - rules.baseline_least))
        if short < back:
            notes.append(f"only {room} steps before the window can be read: the look-back is {short} steps instead of {back}")
        back = short
    lookback = StepRange(window.start - back, window.start) if back > 0 else None
    begin = window.start - back
    if baseline is None and begin - first >= 1:
        width = max(len(window), rules.baseline_steps)
        baseline = StepRange(max(first, begin - width), begin)
    after = StepRange(window.stop, min(stop, window.stop + rules.follow)) if window.stop < stop else None
    if baseline is None or len(baseline) < rules.baseline_least:
        notes.append(f"the baseline has {len(baseline) if baseline else 0} steps, {rules.baseline_least} are the least: steps after the window stand in")
    return Ranges(window, lookback, baseline, after, tuple(notes))


def other_events(events: Events | None, before: int) -> tuple[tuple[int, int], ...]:
    """Steps of alarms on the training loss that were over before a step, with some on both sides; they are no baseline."""
    return tuple((a - 2, b + SETTLE) for a, b in alarms(events) if b is not None and b <= before)


def alarms(events: Events | None, finite: bool = False) -> list[tuple[int, int | None]]:
    """Steps of alarms on the training loss; None where one runs on.

    Args:
        events: as curves find them.
        finite: without those of values that are no number, for comparisons from which these drop out anyway.
    """
    rows = [] if events is None else events.select(["metric", "level", "shape", "start", "stop"]).to_pylist()
    found = [r for r in rows if r["metric"] == "train_loss" and r["level"] == "alarm" and not (finite and r["shape"] == "nonfinite")]
    return [(r["start"], r["stop"]) for r in found]


def without_events(found: Ranges, steps: I64, use: BOOL, all_of: BOOL, events: Sequence[tuple[int, int]]) -> Ranges:
    """The ranges with a note where other events lie in the baseline.

    Args:
        found: the ranges.
        steps: [T]; use, all_of: the ordinary ones [T], with and without regard to the events.
        events: half-open.
    """
    notes = []
    for start, stop in events:
        mine = all_of & (steps >= start) & (steps < stop)
        if mine.any():
            fate = "are compared with all the same, for want of others" if use[mine].any() else "were left out"
            notes.append(f"steps {steps[mine][0]} to {steps[mine][-1]} of the baseline belong to another event and {fate}")
    return replace(found, notes=(*found.notes, *notes))


def ordinary_steps(steps: I64, found: Ranges, rules: Rules, events: Sequence[tuple[int, int]] = ()) -> BOOL:
    """Steps [T] to compare with: the baseline without other events.

    Where that is too short, the later half of what was read after the window, farthest from the event, stands in.
    """
    use = np.zeros(len(steps), dtype=bool)
    if found.baseline is not None:
        use |= (steps >= found.baseline.start) & (steps < found.baseline.stop)
    for start, stop in events:
        trimmed = use & ~((steps >= start) & (steps < stop))
        if trimmed.sum() >= rules.baseline_least:
            use = trimmed
    lack = rules.baseline_least - int(use.sum())
    if lack > 0 and found.after is not None:
        later = np.flatnonzero((steps >= found.after.start) & (steps < found.after.stop))
        later = later[-max(lack, rules.baseline_least, len(later) // 2) :]
        use[later] = True
    if use.sum() < rules.baseline_least:
        use |= steps < found.window.start
    return use
