"""Losses that go the wrong way: a sustained rise, a run that never trains, values that are no number.

A moving baseline follows a slow rise and never alarms on it, so this file looks at the whole curve in stretches: the largest climb from a low to a
later level, against how much neighbouring stretches of this very curve usually differ. The `nan` of a trainer's counter counts as well as a logged NaN.
"""

from __future__ import annotations

import numpy as np

from forensics.curves.event import Context, Event
from forensics.curves.severity import mann_kendall
from forensics.curves.trend import Bins, bins
from forensics.robust import mad_scale


def drift(ctx: Context, metric: str = "train_loss") -> list[Event] | str:
    """A sustained rise of the loss that no single step shows."""
    scan = ctx.scan(metric)
    if scan is None:
        return "too few records of the loss"
    first = int(np.searchsorted(scan.step, ctx.judged_from))
    n = len(scan.y) - first
    if n < 100:
        return f"{max(n, 0)} records after the start-up, at least 100 are needed"
    b = bins(scan.step.astype(float), scan.y, max(10, n // 120), (scan.event == 0) & (np.arange(len(scan.y)) >= first))
    found = climb(b, ctx.settings.trend.drift_error, 0.004)
    if found is None:
        return []
    low, top, height, sigma = found
    start, stop = int(scan.step[b.start[low]]), int(scan.step[min(b.stop[top], len(scan.y)) - 1]) + 1
    if _lr_rises(ctx, start, stop):
        return []
    last = float(np.median(b.y[-3:]))
    back = last - float(b.y[low : low + 3].min()) < 0.3 * height
    lasting = top >= len(b) - 4 or not back
    scale = scan.noise
    return [
        Event(
            metric,
            "drift",
            "alarm",
            start,
            int(scan.step[-1]) + 1 if lasting else stop,
            int(scan.step[b.start[top]]),
            "diverging" if lasting else "returned",
            height,
            height / max(scale, 1e-12),
            height if lasting else 0.0,
            None if lasting else stop - start,
            evidence={"rise": height, "standard_errors": sigma, "slope_per_step": height / max(1, stop - start)},
        )
    ]


def climb(b: Bins, limit: float, share: float) -> tuple[int, int, float, float] | None:
    """The largest climb between stretches: from the lowest level to a later one.

    Args:
        b: stretches in order.
        limit: standard errors it must exceed, measured between neighbouring stretches of this curve.
        share: of the level it must exceed as well.

    Returns:
        first and last stretch, height, standard errors; None where nothing climbs.
    """
    if len(b) < 12:
        return None
    y = np.convolve(np.pad(b.y, 1, mode="edge"), np.ones(3) / 3, mode="valid")
    best = np.minimum.accumulate(y)
    rise = y - best
    top = int(np.argmax(rise))
    low = int(np.argmin(y[: top + 1]))
    height = float(rise[top])
    noise = max(mad_scale(np.diff(y[::3], 2)) / np.sqrt(6), float(np.median(b.se)) / np.sqrt(3), 1e-12)
    inside = b.y[low : top + 1]
    if len(inside) >= 6:  # a curve that wanders by itself scatters about its own climb as widely
        noise = max(noise, mad_scale(inside - np.polyval(np.polyfit(np.arange(len(inside)), inside, 2), np.arange(len(inside)))))
    if height < limit * noise or height < share * abs(float(np.median(b.y))) or len(inside) < 6:
        return None
    tau, p = mann_kendall(inside)
    if p > 1e-3 or tau < 0.5 or float(np.diff(inside).max()) > 0.6 * height:
        return None
    return low, top, height, height / noise


def _lr_rises(ctx: Context, start: int, stop: int) -> bool:
    lr = ctx.curves.get("learning_rate")
    if lr is None:
        return False
    a, b = lr.value[lr.at(start)], lr.value[lr.at(stop)]
    return bool(np.isfinite(a) and np.isfinite(b) and b > 1.5 * a > 0)


def never_trains(ctx: Context, metric: str = "train_loss") -> list[Event] | str:
    """A loss that ends above where it began, or above where it stood after a tenth of the run, and climbs."""
    s = ctx.loss
    if s is None or len(s) < 8:
        return "fewer than 8 records of the loss"
    if s.step[0] > 50 * s.cadence:
        return "the log does not begin at the start of the run"
    y = np.array([np.median(s.value[max(0, i - 2) : i + 3]) for i in np.linspace(0, len(s) - 1, min(len(s), 400)).astype(int)])
    at = np.linspace(0, len(s) - 1, len(y)).astype(int)
    early, last, low = float(y[max(1, len(y) // 10)]), float(np.median(y[-max(3, len(y) // 20) :])), int(np.argmin(y))
    worse = last > float(y[0])
    if not ((worse or last > early) and last > 1.1 * y[low] and low < 0.8 * len(y)):
        return []
    if mann_kendall(y[low:])[1] > 0.01:
        return []
    scale = max(mad_scale(np.diff(s.value)) / np.sqrt(2), ctx.settings.loss.typical_noise * abs(float(y[low])))
    start = int(s.step[int(np.argmax(s.value > s.value[0] + 6 * scale))] if worse else s.step[at[low]])
    height = last - float(y[low])
    return [
        Event(
            metric,
            "divergence",
            "alarm",
            start,
            int(s.step[-1]) + 1,
            int(s.step[int(np.argmax(s.value))]),
            "diverging",
            height,
            height / scale,
            height,
            None,
            evidence={"loss_at_a_tenth": early, "loss_at_end": last, "lowest": float(y[low])},
        )
    ]


def nonfinite(ctx: Context) -> list[Event] | str:
    """Losses and norms that are NaN or infinite, and steps that the trainer itself counted as such."""
    series = [s for s in ctx.curves if s.metric.split("/")[0] in ("train_loss", "grad_norm", "eval_loss", "aux_loss")]
    counter = ctx.curves.get("nan_steps")
    if not series and counter is None:
        return "neither loss nor gradient norm nor a counter of NaN steps was logged"
    found = []
    for s in series:
        bad = np.flatnonzero(~np.isfinite(s.value))
        for run in np.split(bad, np.flatnonzero(np.diff(bad) > 1) + 1) if len(bad) else []:
            found.append(_nonfinite(s.metric, s.step, run, len(s)))
    if counter is not None:
        bad = np.flatnonzero(np.nan_to_num(counter.value) > 0)
        for run in np.split(bad, np.flatnonzero(np.diff(bad) > 1) + 1) if len(bad) else []:
            start = int(counter.step[run[0]]) - counter.cadence + 1
            if not any(e.start <= counter.step[run[-1]] and (e.stop or e.start) > start for e in found):
                found.append(
                    Event(
                        "train_loss",
                        "nonfinite",
                        "alarm",
                        start,
                        int(counter.step[run[-1]]) + 1,
                        None,
                        "unknown",
                        evidence={"nan_steps": float(counter.value[run].sum())},
                    )
                )
    return found


def _nonfinite(metric: str, step: np.ndarray, run: np.ndarray, n: int) -> Event:
    to_end = run[-1] == n - 1
    return Event(
        metric,
        "nonfinite",
        "alarm" if metric.startswith("train_loss") else "notice",
        int(step[run[0]]),
        int(step[run[-1]]) + 1,
        int(step[run[0]]),
        "diverging" if to_end and len(run) > 1 else ("unknown" if to_end else "returned"),
        recovery=None if to_end else len(run),
        evidence={"records": float(len(run))},
    )
