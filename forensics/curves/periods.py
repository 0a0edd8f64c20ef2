"""Outliers that come back with a period."""

from __future__ import annotations

import numpy as np

from forensics.curves.event import Context, Event
from forensics.curves.spikes import excursions
from forensics.robust import mad_scale


def periodic(ctx: Context, metric: str = "train_loss") -> list[Event] | str:
    """Outliers that return with a period: a shard, epoch or evaluation boundary."""
    scan = ctx.scan(metric)
    if scan is None:
        return "too few records of the loss"
    rows = np.concatenate([np.flatnonzero(scan.event == -1), *(np.array([x.up]) for x in excursions(scan, 0) if x.hot_up)]).astype(np.int64)
    rows = rows[scan.z[rows] > 0]
    found = period_of(scan.step[rows], scan.z[rows], int(np.median(np.diff(scan.step))))
    if found is None:
        return []
    period, hits, coverage = found
    height = float(np.median([scan.y[i] - scan.expected[i] for i in rows[np.isin(scan.step[rows], hits)]]))
    return [
        Event(
            metric,
            "periodic",
            "alarm",
            int(hits[0]),
            int(hits[-1]) + 1,
            int(hits[np.argmax(hits)]),
            "returned",
            height,
            height / max(mad_scale((scan.y - scan.expected)[np.isfinite(scan.expected)]), 1e-12),
            0.0,
            1,
            evidence={"period": period, "hits": float(len(hits)), "coverage": coverage},
        )
    ]


def period_of(step: np.ndarray, z: np.ndarray, cadence: int) -> tuple[float, np.ndarray, float] | None:
    """The period of tall outliers: at least five, on seven in ten of the places where they are due, and few others as tall.

    Returns:
        period in steps, the steps that fit, share of due places that hold one; None where there is none.
    """
    if len(step) < 5:
        return None
    top = float(np.median(np.sort(z)[-max(5, len(z) // 3) :]))
    found = [p for limit in (0.4 * top, 0.8 * top, float(np.sort(z)[-min(len(z), 40)])) if (p := _period(np.unique(step[z >= limit]), cadence)) is not None]
    return max(found, key=lambda p: len(p[1]) * p[2], default=None)


def _period(tall: np.ndarray, cadence: int) -> tuple[float, np.ndarray, float] | None:
    """The same for outliers that are tall enough."""
    if len(tall) < 5:
        return None
    best: tuple[float, float, np.ndarray, float] | None = None
    tolerance = max(1, cadence)
    for guess in np.unique(np.diff(tall)):
        if guess < 5 * cadence:
            continue
        for origin in tall[:8]:
            k = np.round((tall - origin) / guess)
            near = np.abs(tall - origin - k * guess) <= np.minimum(tolerance * np.maximum(1, np.abs(k)), guess / 4)
            period = float(((tall - origin)[near] @ k[near]) / (k[near] @ k[near])) if k[near].any() else float(guess)
            fits = np.abs(tall - origin - np.round((tall - origin) / period) * period) <= tolerance
            due = (tall[fits][-1] - tall[fits][0]) / period + 1 if fits.sum() > 1 else np.inf
            places = len(np.unique(np.round((tall[fits] - origin) / period)))
            coverage, share = places / due, fits.sum() / len(tall)
            chance = len(tall) * (2 * tolerance + 1) / period
            if places >= 5 and coverage >= 0.7 and share >= 0.6 and places > 3 * chance and (best is None or places * coverage > best[0]):
                best = (places * coverage, period, tall[fits], coverage)
    return None if best is None else (best[1], best[2], best[3])
