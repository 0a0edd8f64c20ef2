"""Gradient norms: needles, slow rises, vanishing, and clipping that does nothing or everything.

Norms are judged on their logarithm. A norm-only event is a notice: heavy-tailed norms trip a six-sigma rule every thousand steps in healthy runs. A
norm that is zero throughout, or repeats to the last digit while steps are skipped, is a broken or stale metric and says nothing.
"""

from __future__ import annotations

import numpy as np

from forensics.curves.event import Context, Event
from forensics.curves.series import Series
from forensics.curves.severity import mann_kendall
from forensics.curves.spikes import excursions, tail_level
from forensics.curves.trend import ema, median_before


def usable(ctx: Context) -> Series | str:
    """The norm, or why it cannot be read."""
    s = ctx.curves.get("grad_norm")
    if s is None:
        return "the gradient norm was not logged"
    s = s.finite()
    if not len(s):
        return "the gradient norm was never a number"
    if bool((s.value == 0).all()):
        return "the gradient norm is 0 throughout: a broken metric"
    return s


def norm_spikes(ctx: Context) -> list[Event] | str:
    """Needles of the norm, up only."""
    s = usable(ctx)
    if isinstance(s, str):
        return s
    scan = ctx.scan("grad_norm")
    if scan is None:
        return _few(ctx, s)
    tail = max(ctx.settings.norm.point, 1.3 * tail_level(scan))
    found = []
    for x in excursions(scan, 0):
        if scan.z[x.up] >= tail:
            found.append(_needle(scan.step, scan.z, scan.y, scan.expected, x.onset, x.stop, x.up))
    for i in np.flatnonzero((scan.event == -1) & (scan.z >= tail)):
        found.append(_needle(scan.step, scan.z, scan.y, scan.expected, int(i), int(i) + 1, int(i)))
    return sorted(found, key=lambda e: e.start)


def _needle(step: np.ndarray, z: np.ndarray, y: np.ndarray, expected: np.ndarray, a: int, b: int, peak: int) -> Event:
    height = float(np.exp(y[peak]) - np.exp(expected[peak]))
    return Event(
        "grad_norm",
        "norm_spike",
        "notice",
        int(step[a]),
        int(step[b - 1]) + 1,
        int(step[peak]),
        "returned" if b < len(step) else "unknown",
        height,
        float(z[peak]),
        None,
        int(step[b - 1] - step[a]) + 1,
        evidence={"ratio": float(np.exp(y[peak] - expected[peak])), "value": float(np.exp(y[peak]))},
    )


def _few(ctx: Context, s: Series) -> list[Event]:
    """Needles in a short log: five times the median of the records before."""
    found: list[Event] = []
    for i in range(1, len(s)):
        before = float(np.median(s.value[max(0, i - 5) : i]))
        if before > 0 and s.value[i] > 5 * before and not (found and found[-1].stop == s.step[i - 1] + 1):
            found.append(
                Event(
                    "grad_norm",
                    "norm_spike",
                    "notice",
                    int(s.step[i]),
                    int(s.step[i]) + 1,
                    int(s.step[i]),
                    "unknown",
                    float(s.value[i] - before),
                    float(np.log(s.value[i] / before) / 0.3),
                    confidence="low",
                    evidence={"ratio": float(s.value[i] / before), "value": float(s.value[i])},
                )
            )
        elif found and found[-1].stop == s.step[i - 1] + 1 and s.value[i] > 5 * found[-1].evidence["value"] / found[-1].evidence["ratio"]:
            found[-1].stop = int(s.step[i]) + 1
            if s.value[i] > found[-1].evidence["value"]:
                base = found[-1].evidence["value"] / found[-1].evidence["ratio"]
                found[-1].peak, found[-1].evidence["value"], found[-1].evidence["ratio"] = int(s.step[i]), float(s.value[i]), float(s.value[i] / base)
    return found


def norm_rise(ctx: Context) -> list[Event] | str:
    """A norm whose short average stands at three times its long median (rule 18), or that climbs steadily while the loss is flat (rule 19)."""
    s = usable(ctx)
    if isinstance(s, str):
        return s
    if len(s) < 100:
        return f"{len(s)} records of the gradient norm, at least 100 are needed"
    rule = ctx.settings.norm
    first = int(np.searchsorted(s.step, ctx.judged_from)) if s.step[0] <= 50 * s.cadence else 0
    fast = ema(s.step, s.value, 20.0 * s.cadence)
    slow = _history(ctx, s)
    high = (fast > rule.high * slow) & (np.arange(len(s)) >= max(first, 50))
    found = _stretches(s, high, fast, slow, 20)
    for e in found:
        e.level = "alarm" if (e.stop or e.start) - e.start >= 50 * s.cadence else "notice"
    if found:
        return found
    return _gradual(ctx, s, first)


def _history(ctx: Context, s: Series) -> np.ndarray:
    """The long median of the norm, taken anew every fifty records (more rarely on very long curves), made once for the rules that ask for it."""
    if s.metric not in ctx.histories:
        ctx.histories[s.metric] = median_before(s.value, 1000, max(50, len(s) // 4000))
    return ctx.histories[s.metric]


def _stretches(s: Series, mark: np.ndarray, fast: np.ndarray, slow: np.ndarray, least: int) -> list[Event]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mark.astype(np.int8), [0]])))
    found = []
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        if b - a < least:
            continue
        peak = a + int(np.argmax(fast[a:b] / slow[a:b]))
        ratio = float(fast[peak] / slow[a])
        found.append(
            Event(
                "grad_norm",
                "norm_rise",
                "notice",
                int(s.step[a]),
                int(s.step[b - 1]) + 1,
                int(s.step[peak]),
                "unknown",
                float(fast[peak] - slow[a]),
                float(np.log(ratio) / 0.3),
                subcause="gradnorm_high",
                evidence={"ratio": ratio},
            )
        )
    return found


def _gradual(ctx: Context, s: Series, first: int) -> list[Event]:
    """Mann-Kendall tau above 0.3 and a ratio above 1.5 over 200 records, loss flat."""
    width = 200
    best: tuple[float, int, float, float] | None = None
    log = np.log(np.maximum(s.value, 1e-30))
    at = np.arange(first, len(s) - width + 1, max(50, len(s) // 4000))
    low, high = (np.median(log[at[:, None] + np.arange(40) + shift], axis=1) for shift in (0, width - 40))
    ratios = np.exp(high - low)
    for a, ratio in zip(at[ratios >= ctx.settings.norm.rise].tolist(), ratios[ratios >= ctx.settings.norm.rise].tolist(), strict=True):
        tau, p = mann_kendall(log[a : a + width])
        if tau > 0.3 and p < 1e-4 and (best is None or ratio > best[0]):
            best = (ratio, a, tau, p)
    if best is None:
        return []
    ratio, a, tau, _ = best
    return [
        Event(
            "grad_norm",
            "norm_rise",
            "notice",
            int(s.step[a]),
            int(s.step[a + width - 1]) + 1,
            int(s.step[a + width - 1]),
            "unknown",
            float(np.median(s.value[a + width - 40 : a + width]) - np.median(s.value[a : a + 40])),
            float(np.log(ratio) / 0.3),
            subcause="gradual_rise",
            evidence={"ratio": ratio, "tau": tau},
        )
    ]


def norm_vanish(ctx: Context) -> list[Event] | str:
    """A norm under a tenth of its history for at least a hundred steps, or exactly zero on many of them (rule 20)."""
    s = usable(ctx)
    if isinstance(s, str):
        return s
    if len(s) < 60:
        return f"{len(s)} records of the gradient norm, at least 60 are needed"
    least = max(3, 100 // s.cadence)
    slow = _history(ctx, s)
    low = np.isfinite(slow) & (s.value < ctx.settings.norm.vanish * slow)
    low = _closed(low, 5)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], low.astype(np.int8), [0]])))
    found = []
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        if b - a >= least:
            zero = float((s.value[a:b] == 0).mean())
            ratio = float(np.median(s.value[a:b]) / slow[a])
            found.append(
                Event(
                    "grad_norm",
                    "norm_vanish",
                    "alarm" if zero > 0.5 else "notice",
                    int(s.step[a]),
                    int(s.step[b - 1]) + 1,
                    int(s.step[a]),
                    "unknown",
                    float(np.median(s.value[a:b]) - slow[a]),
                    float(-np.log(max(ratio, 1e-9)) / 0.3),
                    evidence={"ratio": ratio, "zero_share": zero},
                )
            )
    return found


def _closed(mark: np.ndarray, hole: int) -> np.ndarray:
    """Fill holes of a few records."""
    out = mark.copy()
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mark.astype(np.int8), [0]])))
    for stop, start in zip(edges[1:-1:2], edges[2::2], strict=True):
        if start - stop <= hole:
            out[stop:start] = True
    return out


def clip_fault(ctx: Context) -> list[Event] | str:
    """Clipping that is set and does nothing, or that cuts most steps to under a tenth (rule 15)."""
    s, clip = usable(ctx), ctx.curves.get("clip_ratio")
    if isinstance(s, str):
        return s
    limit = ctx.optimizer.clip
    if clip is None:
        return "the clip ratio was not logged"
    clip = clip.finite()
    if len(clip) < 50:
        return f"{len(clip)} records of the clip ratio, at least 50 are needed"
    if np.array_equal(s.step, clip.step):
        step, norm, ratio = s.step, s.value, clip.value
    else:
        step, i, j = np.intersect1d(s.step, clip.step, assume_unique=True, return_indices=True)
        norm, ratio = s.value[i], clip.value[j]
    found = []
    crushed = float((ratio < 0.1).mean()) if len(ratio) else 0.0
    if crushed > 0.5:
        found.append(_clip("clip_crushing", step, {"share_under_a_tenth": crushed}))
    if limit:
        over = norm > limit * 1.01
        if over.sum() >= 10 and bool((ratio[over] >= 1.0).all()):
            found.append(_clip("clip_inactive", step, {"steps_over_the_limit": float(over.sum()), "clip": limit}))
    return found


def _clip(subcause: str, step: np.ndarray, evidence: dict[str, float]) -> Event:
    return Event(
        "clip_ratio",
        "clip_fault",
        "alarm",
        int(step[0]),
        int(step[-1]) + 1,
        None,
        "unknown",
        cause="numerics",
        subcause=subcause,
        confidence="high",
        evidence=evidence,
    )


def update_norm(ctx: Context) -> list[Event] | str:
    """Sudden size of the update or of gradient over root second moment: moves before the norm and the loss do."""
    names = [s.metric for s in ctx.curves if s.metric.split("/")[0] in ("update_norm", "update_rms")]
    if not names:
        return "neither update norm nor update RMS was logged"
    found = []
    for name in names:
        scan = ctx.scan(name)
        if scan is None:
            continue
        tail = max(8.0, 1.5 * tail_level(scan))  # the statistic flickers between 1.3 and 8 in clean training at beta2 = 0.95
        for x in excursions(scan, 0):
            if scan.z[x.up] >= tail and x.hot_up >= 3:
                e = _needle(scan.step, scan.z, scan.y, scan.expected, x.onset, x.stop, x.up)
                e.metric, e.shape = name, "update_norm"
                found.append(e)
    return found
