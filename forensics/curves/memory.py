"""Device memory: leaks with a forecast, levels near the capacity, and peaks that return with evaluations or saves."""

from __future__ import annotations

import numpy as np

from forensics.curves.event import Context, Event
from forensics.curves.periods import period_of
from forensics.curves.severity import mann_kendall
from forensics.curves.throughput import mark_of, running_median
from forensics.robust import mad_scale


def leak(ctx: Context) -> list[Event] | str:
    """Allocated memory that keeps growing (rule 29), with the steps left until the capacity is reached."""
    s = ctx.curves.get("memory_allocated") or ctx.curves.get("memory_reserved") or ctx.curves.get("memory_peak")
    if s is None:
        return "device memory was not logged"
    s = s.finite()
    late = s.where(s.step >= s.step[0] + 0.05 * (s.step[-1] - s.step[0])) if len(s) else s
    if len(late) < 40 or late.step[-1] - late.step[0] < 200:
        return f"{len(late)} records of the memory, at least 40 over 200 steps are needed"
    y = np.array([np.median(c) for c in np.array_split(late.value, min(60, len(late) // 4))])
    tau, p = mann_kendall(y)
    growth = float((np.median(y[-3:]) - np.median(y[:3])) / max(np.median(y[:3]), 1.0))
    halves = (np.median(y[len(y) // 2 :]) - np.median(y[: len(y) // 2])) > 0
    steady = float((np.diff(y) > 0).mean())
    if p > 0.001 or tau < 0.6 or growth < ctx.settings.memory.growth or not halves or steady < 0.6:
        return []
    slope = _theil_sen(late.step.astype(float), late.value)
    evidence = {"growth": growth, "tau": tau, "bytes_per_step": slope}
    if ctx.settings.memory.capacity_bytes and slope > 0:
        evidence["steps_to_full"] = max(0.0, (ctx.settings.memory.capacity_bytes - float(late.value[-1])) / slope)
    return [
        Event(
            s.metric,
            "memory_leak",
            "alarm",
            int(late.step[0]),
            int(late.step[-1]) + 1,
            int(late.step[-1]),
            "unknown",
            float(y[-1] - y[0]),
            None,
            subcause="leak",
            confidence="medium",
            evidence=evidence,
        )
    ]


def _theil_sen(x: np.ndarray, y: np.ndarray) -> float:
    """Median slope over pairs half a curve apart."""
    h = len(x) // 2
    return float(np.median((y[h : 2 * h] - y[:h]) / (x[h : 2 * h] - x[:h])))


def near_limit(ctx: Context) -> list[Event] | str:
    """Peak memory above nine tenths of the capacity and flat (rule 28)."""
    s = ctx.curves.get("memory_peak") or ctx.curves.get("memory_reserved")
    share = ctx.curves.get("memory_share")
    if share is not None and len(share.finite()):
        s, capacity = share.finite(), 1.0 if share.finite().value.max() <= 1.5 else 100.0
    elif s is None:
        return "peak memory was not logged"
    elif not ctx.settings.memory.capacity_bytes:
        return "the capacity of the device is not known (`--set memory.capacity_bytes=...`)"
    else:
        s, capacity = s.finite(), float(ctx.settings.memory.capacity_bytes)
    high = s.value > ctx.settings.memory.near * capacity
    if high.sum() < max(3, 0.05 * len(s)):
        return []
    a, b = np.flatnonzero(high)[[0, -1]]
    return [
        Event(
            s.metric,
            "memory_near_limit",
            "alarm",
            int(s.step[a]),
            int(s.step[b]) + 1,
            int(s.step[int(np.argmax(s.value))]),
            "unknown",
            float(s.value.max() - ctx.settings.memory.near * capacity),
            None,
            subcause="near_oom",
            confidence="high",
            evidence={"share_of_capacity": float(s.value.max() / capacity), "share_of_records": float(high.mean())},
        )
    ]


def memory_periodic(ctx: Context) -> list[Event] | str:
    """Memory peaks that return with a period (rule 30)."""
    s = ctx.curves.get("memory_peak") or ctx.curves.get("memory_allocated")
    if s is None:
        return "device memory was not logged"
    s = s.finite()
    if len(s) < 100:
        return f"{len(s)} records of the memory, at least 100 are needed"
    excess = s.value - running_median(s.value, 31)
    z = excess / max(mad_scale(excess), 0.005 * float(np.median(s.value)), 1e-12)
    rows = np.flatnonzero(z > 6)
    if not len(rows) or len(rows) > len(s) // 4:
        return []
    found = period_of(s.step[rows], z[rows], s.cadence)
    if found is None:
        return []
    period, hits, coverage = found
    return [
        Event(
            s.metric,
            "memory_periodic",
            "notice",
            int(hits[0]),
            int(hits[-1]) + 1,
            int(hits[0]),
            "returned",
            float(np.median(excess[np.isin(s.step, hits)])),
            None,
            subcause=f"mem_spike_{mark_of(ctx, hits)}",
            confidence="medium",
            evidence={"period": period, "hits": float(len(hits)), "coverage": coverage},
        )
    ]
