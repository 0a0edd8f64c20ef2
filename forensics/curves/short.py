"""Logs with few records: a stretch quoted in a chronicle, the first minutes of a run.

Nothing can be fitted to six records, yet a loss that goes from 3.1 to 7.7 needs no statistics. A record is compared with the median of the
few quiet ones before it, on a noise that is typical of language models where the log cannot tell its own. Everything said here is of low confidence.
"""

from __future__ import annotations

import numpy as np

from forensics.curves.event import Context, Event
from forensics.curves.series import Floats, Ints
from forensics.curves.severity import mann_kendall
from forensics.robust import mad_scale


def short_events(ctx: Context, metric: str = "train_loss") -> list[Event] | str:
    """Spikes and shifts of a loss with too few records for a baseline."""
    s = ctx.curves.get(metric)
    s = None if s is None else s.finite()
    if s is None or len(s) < 2:
        return "fewer than two records of the loss"
    if len(s) >= ctx.settings.loss.short_log:
        return []
    cadence = max(1, int(np.median(np.diff(s.step))))
    events: list[Event] = []
    quiet = [float(s.value[0])]
    opened: int | None = None
    i = 1
    while i < len(s):
        level = float(np.median(quiet[-5:]))
        scale = _scale(np.array(quiet), level, ctx.settings.loss.typical_noise)
        hole = s.step[i] - s.step[i - 1] > 3 * cadence
        if opened is None:
            if s.value[i] > level + max(6 * scale, 0.05 * abs(level)):
                opened = i
            else:
                quiet.append(float(s.value[i]))
            i += 1
            continue
        climbing = s.value[i - 1] >= s.value[opened:i].max() and i - opened >= 2
        back = bool((s.value[i : i + 3] <= level + max(3 * scale, 0.03 * abs(level))).all())
        if (hole and climbing) or back:
            events.append(_event(metric, s.step, s.value, opened, i, level, scale, "diverging" if hole and climbing else "returned", cadence))
            opened = None
            quiet.append(float(s.value[i]))
        i += 1
    if opened is not None:
        level = float(np.median(quiet[-5:]))
        events.append(_open(metric, s.step, s.value, opened, level, _scale(np.array(quiet), level, ctx.settings.loss.typical_noise), cadence))
    return events


def _scale(quiet: Floats, level: float, typical: float) -> float:
    own = mad_scale(np.diff(quiet)) / np.sqrt(2) if len(quiet) >= 8 else 0.0
    return max(own, typical * abs(level), 1e-12)


def _event(metric: str, step: Ints, y: Floats, a: int, b: int, level: float, scale: float, severity: str, cadence: int) -> Event:
    peak = a + int(np.argmax(y[a:b]))
    height = float(y[peak] - level)
    share = height / max(abs(level), 1e-9)
    one = b - a == 1 and severity == "returned" and cadence == 1
    recovery = int(step[b] - step[a]) if severity == "returned" and b < len(step) else None
    return Event(
        metric,
        "outlier" if one else ("divergence" if severity == "diverging" else "spike"),
        "notice" if one or share < 0.1 else "alarm",
        int(step[a]),
        int(step[b - 1]) + 1,
        int(step[peak]),
        severity,
        height,
        height / scale,
        0.0 if severity == "returned" else None,
        recovery,
        confidence="low",
        evidence={"level_before": level, "ratio": float(y[peak] / level) if level else float("nan"), "scale": scale, "records": float(b - a)},
    )


def _open(metric: str, step: Ints, y: Floats, a: int, level: float, scale: float, cadence: int) -> Event:
    """An event that the log ends in."""
    peak = a + int(np.argmax(y[a:]))
    height, left = float(y[peak] - level), float(y[-1] - level)
    after = len(y) - 1 - peak
    if after == 0:
        severity = "diverging" if len(y) - a >= 3 and mann_kendall(y[a:])[1] < 0.05 else "unknown"
    elif step[-1] - step[peak] > max(100, 5 * cadence) and left > 0.02 * height:
        severity = "level_shift"
    else:
        severity = "slow"
    e = _event(metric, step, y, a, len(y), level, scale, severity, cadence)
    e.residual = left if after else None
    e.shape = {"level_shift": "level_shift", "diverging": "divergence"}.get(severity, "spike")
    e.level = "alarm" if height > 0.1 * abs(level) else "notice"
    e.evidence |= {"left_of_height": left / height if height else 0.0, "records_after_peak": float(after)}
    return e
