"""Changes of what is read rather than of how it is learnt: level and noise that move together, single sources that move, noise that grows.

Where shards or sources of different difficulty follow one another, the mean of the loss steps and its scatter changes at the same place, in every run with that
order. A change of scatter alone is not enough: batch size and learning rate change it too.
"""

from __future__ import annotations

import numpy as np

from forensics.curves.event import Context, Event, Scan, scan_of
from forensics.curves.series import Floats
from forensics.curves.severity import jump_of
from forensics.robust import MAD_TO_SD, mad_scale

WIDTH = 50  # records in a stretch of the scatter
SIDE = 8  # stretches compared on either side


def composition_shift(ctx: Context, metric: str = "train_loss") -> list[Event] | str:
    """An abrupt change of the loss's scatter together with its level."""
    scan = ctx.scan(metric)
    if scan is None:
        return "too few records of the loss"
    first = int(np.searchsorted(scan.step, ctx.judged_from))
    keep = np.flatnonzero((scan.event == 0) & (np.arange(len(scan.y)) >= first))
    width = max(WIDTH, len(keep) // 2000)
    n = len(keep) // width
    if n < 2 * SIDE + 2:
        return f"{len(keep)} quiet records after the start-up, {width * (2 * SIDE + 2)} are needed"
    y, s = scan.y[keep], scan.step[keep]
    log = np.log(np.maximum(scatters(y, width), 1e-12))
    found: list[Event] = []
    noise = max(mad_scale(np.diff(log)) / np.sqrt(2), 0.05)
    best = _breaks(log, noise)
    for i in best:
        cut = _place(y, i, width)
        before, after = np.arange(max(0, cut - SIDE * width), cut), np.arange(cut, min(len(y), cut + SIDE * width))
        jump, se = jump_of(s, y, before, after)
        ratio = float(np.exp(np.median(log[i : i + SIDE]) - np.median(log[i - SIDE : i])))
        if abs(jump) < 4 * se or abs(jump) < 0.2 * float(np.exp(log[i])):
            continue
        scale = float(np.exp(np.median(log[i - SIDE : i])))
        found.append(
            Event(
                metric,
                "composition_shift",
                "notice",
                int(s[max(0, cut - 5)]),
                int(s[min(len(s) - 1, cut + 50)]) + 1,
                int(s[cut]),
                "level_shift",
                jump,
                abs(jump) / max(scale, 1e-12),
                jump,
                None,
                evidence={"scatter_ratio": ratio, "scatter_before": scale, "scatter_after": scale * ratio, "standard_error": se},
            )
        )
    return found


def scatters(y: Floats, width: int) -> Floats:
    """Robust sd about its own line of every whole stretch of `width` records."""
    n = len(y) // width
    part = y[: n * width].reshape(n, width)
    x = np.arange(width) - (width - 1) / 2
    part = part - part.mean(axis=1, keepdims=True) - np.outer(part @ x / (x @ x), x)
    return np.asarray(MAD_TO_SD * np.median(np.abs(part - np.median(part, axis=1, keepdims=True)), axis=1), dtype=np.float64)


def _breaks(log: Floats, noise: float) -> list[int]:
    """Stretches where the scatter changes by half or more, all at once and for good, strongest first and apart from each other."""
    at = np.arange(SIDE, len(log) - SIDE + 1)
    wide, few = (np.median(np.lib.stride_tricks.sliding_window_view(log, w), axis=1) for w in (SIDE, 3))
    long, near = wide[at] - wide[at - SIDE], few[at] - few[at - 3]
    sure = (np.abs(long) > max(np.log(1.5), 6 * noise / np.sqrt(SIDE / 2))) & (near * np.sign(long) > 0.7 * np.abs(long))
    taken: list[int] = []
    for _, i in sorted(zip(np.abs(long[sure]).tolist(), at[sure].tolist(), strict=True), reverse=True):
        if all(abs(i - j) > SIDE for j in taken):
            taken.append(i)
    return sorted(taken)


def _place(y: Floats, i: int, width: int) -> int:
    """The record at which level and scatter change: the best split of a Gaussian likelihood within two stretches."""
    a, b = max(0, (i - 4) * width), min(len(y), (i + 4) * width)
    lo, hi = max(a + 60, (i - 2) * width), min(b - 60, (i + 2) * width)
    seg = y[a:b] - np.median(y[a:b])
    one, two = np.cumsum(seg), np.cumsum(seg * seg)
    c = np.arange(lo, max(hi, lo + 1)) - a
    left, right = np.maximum(two[c - 1] / c - (one[c - 1] / c) ** 2, 1e-18), len(seg) - c
    rest = np.maximum((two[-1] - two[c - 1]) / right - ((one[-1] - one[c - 1]) / right) ** 2, 1e-18)
    return int(a + c[int(np.argmin(c * np.log(left) + right * np.log(rest)))])


def domains(ctx: Context) -> list[Event] | str:
    """Sources whose own loss moves while the others stay (rule 6), or all at once."""
    sources = {name: s.finite() for name, s in ctx.curves.starting("train_loss/").items()}
    sources = {name: s for name, s in sources.items() if len(s) >= ctx.settings.loss.short_log}
    if len(sources) < 2:
        return "losses by source were not logged for two sources"
    from forensics.curves.spikes import excursions

    moved: list[tuple[str, Event]] = []
    for name, s in sources.items():
        first = int(np.searchsorted(s.step, ctx.judged_from)) if s.step[0] <= 50 * s.cadence else 0
        scan: Scan = scan_of(s.step, s.value, ctx.settings.loss, ctx.settings.loss, first, refit=ctx.refit)
        for x in excursions(scan, ctx.settings.loss.merge_steps):
            if max(x.hot_up, x.hot_down) < 3:
                continue
            up = scan.z[x.up] >= -scan.z[x.down]
            peak = x.up if up else x.down
            moved.append(
                (
                    name,
                    Event(
                        f"train_loss/{name}",
                        "spike" if up else "dip",
                        "notice",
                        int(scan.step[x.onset]),
                        int(scan.step[x.stop - 1]) + 1,
                        int(scan.step[peak]),
                        None,
                        float(scan.y[peak] - scan.expected[peak]),
                        abs(float(scan.z[peak])),
                        evidence={"hot_records": float(max(x.hot_up, x.hot_down))},
                    ),
                )
            )
    for name, e in moved:
        others = {n for n, o in moved if n != name and o.start <= e.last + 20 and o.last >= e.start - 20}
        share = (len(others) + 1) / len(sources)
        e.evidence["sources_that_move"] = share
        e.subcause = "domain_event" if share <= 1 / 3 or len(others) == 0 else ("global_event" if share > 0.5 else None)
    return [e for _, e in moved]


def noise_growth(ctx: Context, metric: str = "train_loss") -> list[Event] | str:
    """A scatter that grows along the run where it should narrow with the loss (rule 4)."""
    scan = ctx.scan(metric)
    if scan is None:
        return "too few records of the loss"
    keep = np.flatnonzero((scan.event == 0) & (scan.step >= ctx.judged_from))
    if len(keep) < 800:
        return f"{len(keep)} quiet records after the start-up, 800 are needed"
    parts = np.array_split(keep, 8)
    s = np.array([float(np.median(scatters(scan.y[p], 100))) for p in parts])
    ratio = float(np.median(s[-2:]) / max(np.min(s[:-2]), 1e-12))
    low = int(np.argmin(s[:-2]))
    monotone = bool((np.diff(s[low:]) > -0.25 * s[low]).all())
    if ratio < ctx.settings.trend.noise_ratio or not monotone:
        return []
    start, stop = int(scan.step[parts[low][-1]]), int(scan.step[-1]) + 1
    return [
        Event(
            metric,
            "noise_growth",
            "notice",
            start,
            stop,
            None,
            "unknown",
            float(s[-1] - s[low]),
            ratio,
            evidence={"scatter_ratio": ratio, "scatter_low": float(s[low]), "scatter_end": float(s[-1])},
        )
    ]
