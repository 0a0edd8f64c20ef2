"""Speed: drops that last, single slow steps with a period, ranks that lag, and steps whose time follows their length.

Read on the logarithm of tokens per second, or of one over the step time where only that was logged. None of this is a convergence problem; where it
comes within a few steps of one, length and restarts are looked at first.
"""

from __future__ import annotations

import numpy as np

from forensics.curves.event import Context, Event
from forensics.curves.periods import period_of
from forensics.curves.series import Series
from forensics.curves.trend import median_before
from forensics.robust import mad_scale

EXACT = 200_000  # records up to which a running median is taken at every record
NAMES = ("tokens_per_second", "tokens_per_second_per_device", "samples_per_second", "steps_per_second", "tflops", "tflops_per_device", "step_time")


def speed(ctx: Context) -> Series | str:
    """Speed per step: tokens per second where logged, else what stands for it, times turned into rates."""
    for name in NAMES:
        s = ctx.curves.get(name)
        if s is None:
            continue
        s = s.finite()
        s = s.where(s.value > 0)
        if len(s) >= 8:
            return Series(name, s.step, 1.0 / s.value if name == "step_time" else s.value, s.tokens, s.time)
    return "neither throughput nor step time was logged"


def throughput_drop(ctx: Context) -> list[Event] | str:
    """A level of the speed that is lower than before for at least fifteen records (rule 26)."""
    s = speed(ctx)
    if isinstance(s, str):
        return s
    if len(s) < 40:
        return f"{len(s)} records of the speed, at least 40 are needed"
    y = np.log(s.value)
    width = int(min(15, max(5, len(y) // 20)))
    smooth = running_median(y, width)
    base = _reference(smooth, width)
    gap = smooth - base
    noise = max(mad_scale(np.diff(y)) / np.sqrt(2), 0.002)
    low = gap < -max(6 * noise / np.sqrt(width), -np.log(ctx.settings.throughput.mild))
    edges = np.flatnonzero(np.diff(np.concatenate([[0], low.astype(np.int8), [0]])))
    found = []
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        if b - a < width or a < width:
            continue
        ratio = float(np.exp(np.median(gap[a:b])))
        if _two_levels(y, a, b, base[a], np.log(ratio)):
            continue
        long = s.step[b - 1] - s.step[a] >= 50
        open_ = b >= len(s) - width
        found.append(
            Event(
                s.metric,
                "throughput_drop",
                "alarm" if ratio < ctx.settings.throughput.low and long else "notice",
                int(s.step[a]),
                int(s.step[b - 1]) + 1,
                int(s.step[a + int(np.argmin(gap[a:b]))]),
                "unknown" if open_ else "returned",
                float(np.exp(base[a]) * (ratio - 1)),
                float(-np.log(ratio) / noise),
                None,
                None if open_ else int(s.step[b - 1] - s.step[a]) + 1,
                evidence={"ratio": ratio, "records": float(b - a)},
            )
        )
    return found


def running_median(y: np.ndarray, width: int) -> np.ndarray:
    """Median of the records around each; of the block each lies in on curves so long that nobody could tell."""
    if len(y) > EXACT:
        blocks = len(y) // width
        level = np.median(y[: blocks * width].reshape(blocks, width), axis=1)
        return np.asarray(np.concatenate([np.repeat(level, width), np.full(len(y) - blocks * width, level[-1])]), dtype=np.float64)
    half = width // 2
    padded = np.concatenate([np.full(half, y[0]), y, np.full(half, y[-1])])
    out = np.empty(len(y))
    for i in range(0, len(y), 100_000):
        view = np.lib.stride_tricks.sliding_window_view(padded[i : i + 100_000 + 2 * half], 2 * half + 1)
        out[i : i + len(view)] = np.median(view, axis=1)[: len(out) - i]
    return out


def _reference(smooth: np.ndarray, width: int) -> np.ndarray:
    """The usual level so far: median of up to a thousand smoothed records before, low ones left out of it once they are low.

    Done in blocks; a lasting drop becomes the usual level only when it has lasted for half of the history.
    """
    block = max(width, len(smooth) // 2000)
    whole = len(smooth) // block * block
    levels = np.median(smooth[:whole].reshape(-1, block), axis=1)
    levels = np.append(levels, np.median(smooth[whole:])) if whole < len(smooth) else levels
    before = median_before(levels, 400)
    before[0] = np.median(smooth[: 4 * width])
    return np.repeat(before, block)[: len(smooth)]


def _two_levels(y: np.ndarray, a: int, b: int, base: float, drop: float) -> bool:
    """Whether the curve switches between two speeds all along: such a stretch is no event."""
    near = np.abs(y - (base + drop)) < 0.35 * abs(drop)
    outside = np.concatenate([near[:a], near[b:]])
    return bool(len(outside) and outside.mean() > 0.1)


def sawtooth(ctx: Context) -> list[Event] | str:
    """Slow steps that return with a period, named after what runs with that period (rule 25)."""
    s = speed(ctx)
    if isinstance(s, str):
        return s
    if len(s) < 60:
        return f"{len(s)} records of the speed, at least 60 are needed"
    y = -np.log(s.value)
    excess = y - running_median(y, 31)
    z = excess / max(mad_scale(excess), 0.01)
    rows = np.flatnonzero(z > 6)
    if len(rows) > len(s) // 4:
        return []
    found = period_of(s.step[rows], z[rows], s.cadence)
    if found is None:
        return []
    period, hits, coverage = found
    cause = mark_of(ctx, hits)
    share = float(excess[np.isin(s.step, hits)].mean())
    return [
        Event(
            s.metric,
            "throughput_sawtooth",
            "notice",
            int(hits[0]),
            int(hits[-1]) + 1,
            int(hits[0]),
            "returned",
            share,
            float(np.median(z[np.isin(s.step, hits)])),
            None,
            1,
            subcause=f"sawtooth_{cause}",
            evidence={"period": period, "hits": float(len(hits)), "coverage": coverage},
        )
    ]


def mark_of(ctx: Context, hits: np.ndarray) -> str:
    """What happens at these steps: an evaluation, a save, waiting for data, or nothing that was logged."""
    marks = {"eval": [s for s in ctx.curves if s.metric.startswith(("eval_loss", "eval_time"))], "save": [s for s in ctx.curves if s.metric == "save_time"]}
    for name, series in marks.items():
        for s in series:
            if (
                len(s)
                and float(
                    np.mean(
                        np.min(np.abs(hits[:, None] - s.step[np.clip(np.searchsorted(s.step, hits)[:, None] + np.array([-1, 0]), 0, len(s) - 1)]), axis=1) <= 2
                    )
                )
                > 0.7
            ):
                return name
    if len(ctx.checkpoints) and float(np.mean([min(abs(int(h) - c) for c in ctx.checkpoints) <= 2 for h in hits])) > 0.7:
        return "save"
    data = ctx.curves.get("data_time")
    if data is not None and len(data):
        at = np.isin(data.step, hits)
        if at.any() and np.median(data.value[at]) > 2 * np.median(data.value[~at]):
            return "loader"
    return "unmarked"


def slow_rank(ctx: Context) -> list[Event] | str:
    """A rank whose step time stands above the others' in most windows of a hundred steps (rules 26, 31)."""
    by_rank = ctx.curves.ranks.get("step_time")
    if by_rank is None or len(by_rank) < 3:
        return "step times were not logged for three ranks"
    ranks = sorted(by_rank)
    steps = np.unique(np.concatenate([by_rank[r].step for r in ranks]))
    grid = np.full((len(ranks), len(steps)), np.nan)
    for i, r in enumerate(ranks):
        grid[i, np.searchsorted(steps, by_rank[r].step)] = by_rank[r].value
    with np.errstate(invalid="ignore"):
        ratio = grid / np.nanmedian(grid, axis=0)
    windows = [slice(i, i + 100) for i in range(0, len(steps), 100)]
    found = []
    for i, r in enumerate(ranks):
        level = np.array([np.nanmedian(ratio[i, w]) for w in windows if np.isfinite(ratio[i, w]).any()])
        slow = level > ctx.settings.throughput.rank
        if len(slow) and (slow.mean() >= ctx.settings.throughput.rank_share or (slow.sum() >= 3 and slow[-3:].all())):
            first = int(np.argmax(slow))
            found.append(
                Event(
                    "step_time",
                    "slow_rank",
                    "alarm",
                    int(steps[windows[first].start]),
                    int(steps[-1]) + 1,
                    None,
                    "unknown",
                    None,
                    None,
                    cause="hardware",
                    subcause=f"slow_rank({r})",
                    confidence="medium",
                    evidence={"rank": float(r), "ratio": float(np.median(level[slow])), "share_of_windows": float(slow.mean())},
                )
            )
    return found


def length_driven(ctx: Context) -> list[Event] | str:
    """Step times that follow the tokens or the longest sequence of the step (rule 27): R^2 above 0.5."""
    time = ctx.curves.get("step_time")
    if time is None:
        return "step times were not logged"
    drivers = [s for n in ("batch_tokens", "max_sequence_length", "sequence_length") if (s := ctx.curves.get(n)) is not None and np.nanstd(s.value) > 0]
    if not drivers:
        return "neither tokens per step nor lengths were logged, or they do not vary"
    step = time.finite().step
    for s in drivers:
        step = np.intersect1d(step, s.finite().step)
    if len(step) < 100:
        return f"{len(step)} steps have both a time and a length, at least 100 are needed"
    t = time.value[np.searchsorted(time.step, step)]
    t = np.minimum(t, 3 * np.median(t))
    cols = [np.ones(len(step))]
    for s in drivers:
        v = s.value[np.searchsorted(s.step, step)]
        cols += [v / v.mean(), (v / v.mean()) ** 2]
    design = np.stack(cols, axis=1)
    coef, *_ = np.linalg.lstsq(design, t, rcond=None)
    r2 = 1 - float(((t - design @ coef) ** 2).sum() / max(((t - t.mean()) ** 2).sum(), 1e-30))
    if r2 < 0.5:
        return []
    saving = float(1 - np.quantile(t, 0.5) / t.mean())
    return [
        Event(
            "step_time",
            "throughput_sawtooth",
            "notice",
            int(step[0]),
            int(step[-1]) + 1,
            None,
            "none",
            subcause="length_driven",
            confidence="medium",
            evidence={"r2": r2, "saving_if_even": saving},
        )
    ]
