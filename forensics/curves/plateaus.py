"""Stretches where the loss stops falling, and where it falls faster because the learning rate does.

Flat means: over the stretch the trend before it predicts a drop that the curve clearly does not show. Wall time is no unit of learning and a slow
tail is no plateau: a converging loss slows down gradually, a plateau begins somewhere. What the learning rate explains is not called a fault.
"""

from __future__ import annotations

import numpy as np

from forensics.curves.event import Context, Event, Scan
from forensics.curves.spikes import flattening, lasting
from forensics.curves.trend import Bins, Floats, bins
from forensics.robust import mad_scale


def _stretches(ctx: Context, scan: Scan) -> tuple[Bins, int]:
    first = int(np.searchsorted(scan.step, ctx.judged_from))
    n = len(scan.y) - first
    width = max(10, n // 100)
    return bins(np.log(scan.step + 1.0), scan.y, width, ((scan.event == 0) | flattening(scan)) & (np.arange(len(scan.y)) >= first)), n


def plateau(ctx: Context, metric: str = "train_loss") -> list[Event] | str:
    """A break after which the loss is flat although the trend before it predicts a drop."""
    scan = ctx.scan(metric)
    if scan is None:
        return "too few records of the loss"
    b, n = _stretches(ctx, scan)
    if len(b) < 24:
        return f"{n} records after the start-up are too few for a trend before and a stretch after"
    if lasting(scan, 4.0)[b.start[0] :].any():
        return []  # across a shift the trend before says nothing about the stretch after
    best = max((c for i in range(8, len(b) - 8) if (c := _break(b, i, ctx)) is not None), default=None, key=lambda c: c[0])
    if best is None:
        return []
    _, i, j, predicted, observed, se = best
    if _converges(b, i):
        return []
    scale = scan.noise
    if predicted - observed < 2 * scale:
        return []
    start, stop = int(scan.step[b.start[i]]), int(scan.step[b.stop[j - 1] - 1]) + 1
    schedule = _schedule(ctx, start, stop)
    return [
        Event(
            metric,
            "plateau",
            "notice" if schedule else "alarm",
            start,
            stop,
            None,
            "none" if schedule else "unknown",
            predicted - observed,
            (predicted - observed) / scale,
            predicted - observed,
            evidence={"predicted_drop": predicted, "observed_drop": observed, "standard_error": se},
            subcause="plateau_schedule" if schedule else None,
        )
    ]


def _break(b: Bins, i: int, ctx: Context) -> tuple[float, int, int, float, float, float] | None:
    """Score of a break at stretch i: how far the flat side stays above the line before it, in standard errors.

    Both sides are taken close to the break (a factor 0.6 in step before, up to the end after), so that a gradual slowing shows on both.
    """
    before = np.flatnonzero((np.arange(len(b)) < i) & (b.x >= b.x[i] + np.log(0.6)))
    if len(before) < 6:
        before = np.arange(max(0, i - 6), i)
    sb = np.polyfit(b.x[before], b.y[before], 1)
    noise = max(mad_scale(np.diff(b.y)) / np.sqrt(2), float(np.median(b.se)), 1e-12)
    sxx = float(((b.x[before] - b.x[before].mean()) ** 2).sum())
    slope_se = noise / np.sqrt(max(sxx, 1e-12))
    j = len(b)
    after = np.arange(i, j)
    sa = np.polyfit(b.x[after], b.y[after], 1)
    span = float(b.x[after[-1]] - b.x[i])
    predicted, observed = -sb[0] * span, -sa[0] * span
    sxa = float(((b.x[after] - b.x[after].mean()) ** 2).sum())
    se = span * float(np.hypot(slope_se, noise / np.sqrt(max(sxa, 1e-12))))
    t = ctx.settings.trend
    long = (j - i) >= max(8, t.plateau_steps * len(b))
    flat = observed < t.plateau_share * predicted and abs(observed) < max(2.5 * noise * span / np.sqrt(max(sxa, 1e-12)), t.plateau_share * predicted)
    if sb[0] >= 0 or not long or not flat or predicted - observed < max(t.plateau_error, 5.0) * se:
        return None
    near = np.arange(i, min(j, i + max(6, len(before))))
    sn = np.polyfit(b.x[near], b.y[near], 1)[0]
    if sn < 0.35 * sb[0]:  # still falling right after the break: it slows down gradually
        return None
    fit = float(((b.y[before] - np.polyval(sb, b.x[before])) ** 2).sum() + ((b.y[after] - np.polyval(sa, b.x[after])) ** 2).sum())
    return -fit / noise**2, i, j, predicted, observed, se


def _converges(b: Bins, i: int) -> bool:
    """Whether one smooth law from well before the break to the end, exponential or power with a floor, does nearly as well as the break: a slow tail."""
    first = int(np.argmax(b.x >= b.x[i] + np.log(0.3)))
    x, y = b.x[first:], b.y[first:]
    noise = max(mad_scale(np.diff(b.y)) / np.sqrt(2), float(np.median(b.se)), 1e-12)
    s = np.exp(x)
    kinked = min(_misfit(np.minimum(x, at), y) for at in x[4:-4])
    laws = [*(np.exp(-(s - s[0]) / (np.exp(b.x[i]) * t)) for t in np.geomspace(0.35, 8.0, 24)), *((s / s[0]) ** -p for p in np.geomspace(0.1, 2.0, 16))]
    return bool(min(_misfit(law, y) for law in laws) - kinked < 9 * noise**2)


def _misfit(x: Floats, y: Floats) -> float:
    """Squares left by a straight line."""
    rest = y - np.polyval(np.polyfit(x, y, 1), x)
    return float(rest @ rest)


def _schedule(ctx: Context, start: int, stop: int) -> bool:
    """Whether the learning rate explains a flat stretch: under a tenth of its peak, or decayed to less than half over it."""
    lr = ctx.curves.get("learning_rate")
    if lr is None:
        return False
    lr = lr.finite()
    if not len(lr):
        return False
    peak = float(lr.value.max())
    over = lr.value[lr.at(start) : lr.at(stop) + 1]
    return bool(len(over) and peak > 0 and (np.median(over) < 0.1 * peak or over[-1] < 0.5 * over[0]))


def lr_descent(ctx: Context, metric: str = "train_loss") -> list[Event] | str:
    """The extra descent when the learning rate leaves a constant phase: explained by the schedule, not by the data."""
    scan, lr = ctx.scan(metric), ctx.curves.get("learning_rate")
    if scan is None:
        return "too few records of the loss"
    if lr is None:
        return "the learning rate was not logged"
    lr = lr.finite()
    found = decay_start(lr.step, lr.value)
    if found is None:
        return []
    begin = found
    before = (scan.step >= max(begin * 0.5, ctx.judged_from)) & (scan.step < begin) & (scan.event == 0)
    after = (scan.step >= begin) & (scan.event == 0)
    if before.sum() < 60 or after.sum() < 60:
        return []
    x = np.log(scan.step + 1.0)
    slope, cut = np.polyfit(x[before], scan.y[before], 1)
    gap = scan.y[after] - (slope * x[after] + cut)
    tail = gap[len(gap) // 2 :]
    noise = scan.noise
    height = float(np.median(tail))
    if height > -max(1.0 * noise, 6 * noise / np.sqrt(len(tail))):
        return []
    end = int(scan.step[-1]) + 1
    return [
        Event(
            metric,
            "level_shift",
            "notice",
            int(begin),
            end,
            int(scan.step[after][-1]),
            "none",
            height,
            abs(height) / noise,
            height,
            None,
            cause="composition",
            subcause="lr_schedule",
            confidence="high",
            evidence={"lr_before": float(lr.value[lr.at(begin - 1)]), "lr_after": float(lr.value[-1])},
        )
    ]


def decay_start(step: np.ndarray, value: np.ndarray) -> int | None:
    """First step at which a rate that was constant for at least a quarter of the run begins to fall to under 0.7 of it."""
    if len(value) < 20:
        return None
    peak = float(value.max())
    flat = value >= 0.999 * peak
    last = int(len(flat) - 1 - np.argmax(flat[::-1]))
    if peak <= 0 or last == len(value) - 1 or flat.sum() < 0.25 * len(value) or value[-1] > 0.7 * peak:
        return None
    return int(step[last + 1])
