"""Faults of the data order itself: what was trained twice, never, on two ranks at once, or sorted.

Read from `consumed` and the launches alone; no loss is needed. A step that a restart ran again counts once: the
timeline holds the launch whose result was kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.attribution.inputs import Rules
from forensics.attribution.signals import turning_point
from forensics.attribution.timeline import Timeline, column
from forensics.losses.difficulty import BOOL, F64, I64
from forensics.schemas import Launches
from forensics.steps import StepRange


@dataclass(frozen=True)
class Fault:
    """One fault of the order: its steps (half-open), what it is, share of the rows concerned, and what was read."""

    kind: str
    start: int
    stop: int
    share: float
    text: str


@dataclass(frozen=True)
class Rows:
    """Rows of batches: step index, content and rank of each; `repeat`: content trained on earlier; `twice`: within the step."""

    at: I64
    content: I64
    sample: I64
    rank: I64
    labels: I64
    repeat: BOOL
    lag: I64
    twice: BOOL


def rows_of(line: Timeline) -> Rows:
    """One entry per row of a batch, identified by what it holds (documents, positions, pass over the data), not by sample numbers alone.

    The next pass over the data is no repetition: a row counts as met before only within the epoch that the loader names.
    """
    order = np.lexsort((line.seq_start, line.sequence, line.at))
    at, seq = line.at[order], line.sequence[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(at) != 0) | (np.diff(seq) != 0)
    edge = np.flatnonzero(new)
    mix = np.zeros(len(order), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in (line.keys[line.doc[order]], line.start[order], line.stop[order], line.seq_start[order], line.epoch[order]):
            mix = (mix ^ part.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            mix ^= mix >> np.uint64(32)
        content = np.add.reduceat(mix, edge).view(np.int64) if len(edge) else np.zeros(0, dtype=np.int64)
    step = at[edge]
    by = np.lexsort((step, content))
    same = np.zeros(len(edge), dtype=bool)
    lag = np.zeros(len(edge), dtype=np.int64)
    twice = np.zeros(len(edge), dtype=bool)
    if len(by) > 1:
        equal = content[by][1:] == content[by][:-1]
        gap = line.steps[step[by][1:]] - line.steps[step[by][:-1]]
        same[by[1:]] = equal & (gap > 0)
        lag[by[1:]] = np.where(equal, gap, 0)
        twice[by[1:]] = equal & (gap == 0)
        for _ in range(8):  # a row met twice in a step carries its lag to both copies
            carry = equal & (gap == 0) & same[by[:-1]]
            same[by[1:]] |= carry
            lag[by[1:]] = np.where(carry, lag[by[:-1]], lag[by[1:]])
    return Rows(step, content, line.sample[order][edge], line.rank[order][edge], np.add.reduceat(line.labels[order], edge), same, lag, twice)


def repeated_tokens(line: Timeline, rows: Rows) -> F64:
    """Tokens of rows trained on earlier, or twice in the step, per step [T]."""
    again = rows.repeat | rows.twice
    return np.asarray(np.bincount(rows.at, weights=rows.labels * again, minlength=len(line.steps)))


def loader_faults(line: Timeline, rows: Rows, launches: Launches, reach: StepRange, rules: Rules) -> list[Fault]:
    """All faults that begin within `reach`."""
    found = [*repeats(line, rows, launches, rules), *duplicated(line, rows, rules)]
    found += [f for f in sorted_order(line, launches, rules) if not any(f.start < x.stop and x.start < f.stop for x in found)]
    found += jumps(line, rows, launches)
    return sorted((f for f in found if f.start in reach or (f.start < reach.start < f.stop)), key=lambda f: (f.kind == "skipped_range", f.start))


def _stretches(flag: BOOL, gap: int = 3) -> list[tuple[int, int]]:
    """Half-open index ranges of True, gaps of up to `gap` closed."""
    hits = np.flatnonzero(flag)
    if not len(hits):
        return []
    cut = np.flatnonzero(np.diff(hits) > gap + 1)
    return [(int(a), int(b) + 1) for a, b in zip(hits[np.concatenate([[0], cut + 1])], hits[np.concatenate([cut, [len(hits) - 1]])], strict=True)]


def repeats(line: Timeline, rows: Rows, launches: Launches, rules: Rules) -> list[Fault]:
    """Steps whose rows had been trained on before."""
    count = np.bincount(rows.at, minlength=len(line.steps))
    share = np.bincount(rows.at, weights=rows.repeat, minlength=len(line.steps)) / np.maximum(count, 1)
    starts = set((column(launches, "first_step")).tolist())
    out = []
    usual = float(np.median(share[: max(8, len(share) // 4)]))
    for a, b in _stretches(share > max(0.2, usual + 0.2)):
        level = float(share[a:b].mean())
        if level < 0.25 or b - a < 2:
            continue
        lags = rows.lag[(rows.at >= a) & (rows.at < b) & rows.repeat]
        lag = int(np.median(lags))
        steady = float(np.mean(lags == lag))
        first, stop = int(line.steps[a]), int(line.steps[b - 1]) + 1
        restart = [s for s in starts if first - 1 <= s <= first + 1]
        kind = "stale_position" if restart or steady > 0.5 else "repeated_samples"
        where = f" after the restart at step {restart[0]}" if restart else ""
        out.append(
            Fault(kind, first, stop, level, f"{100 * level:.0f} % of the rows of steps {first} to {stop - 1} had been trained on {lag} steps earlier{where}")
        )
    return out


def duplicated(line: Timeline, rows: Rows, rules: Rules) -> list[Fault]:
    """Steps in which rows come twice: two ranks given the same data."""
    count = np.bincount(rows.at, minlength=len(line.steps))
    share = np.bincount(rows.at, weights=rows.twice, minlength=len(line.steps)) / np.maximum(count, 1)
    out = []
    for a, b in _stretches(share > 0.1):
        level = float(share[a:b].mean())
        if b - a < 2 or level < 0.1:
            continue
        pick = (rows.at >= a) & (rows.at < b) & rows.twice
        ranks = np.unique(rows.rank[pick & (rows.rank >= 0)])
        first, stop = int(line.steps[a]), int(line.steps[b - 1]) + 1
        who = f", on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}" if len(ranks) else ""
        out.append(
            Fault("duplicated_ranks", first, stop, level, f"{100 * level:.0f} % of the rows of steps {first} to {stop - 1} come twice in their step{who}")
        )
    return out


def sorted_order(line: Timeline, launches: Launches, rules: Rules) -> list[Fault]:
    """A stretch whose steps are each of few sources or documents although the stretch as a whole is mixed as usual.

    Compared with the steps before: the share of a step's tokens in its largest source, and neighbouring rows that
    continue one another.
    """
    if len(line.steps) < 40:
        return []
    share = np.stack([line.share(line.source == s) for s in range(len(line.names))])
    purity = (share**2).sum(axis=0)
    order = np.lexsort((line.seq_start, line.sequence, line.at))
    last = np.ones(len(order), dtype=bool)
    last[:-1] = (np.diff(line.at[order]) != 0) | (np.diff(line.sequence[order]) != 0)
    first = np.concatenate([[True], last[:-1]])
    tail, head = order[last], order[first]
    joins = (line.doc[tail[:-1]] == line.doc[head[1:]]) & (np.abs(line.stop[tail[:-1]] - line.start[head[1:]]) <= 1)
    rows = np.bincount(line.at[head], minlength=len(line.steps))
    adjacent = np.bincount(line.at[head[1:]], weights=joins, minlength=len(line.steps)) / np.maximum(rows, 1)
    out = []
    for name, x, least, words in (
        ("correlated_order", purity, 0.15, "each step holds few sources"),
        ("unshuffled_order", adjacent, 0.25, "rows follow one another in the data"),
    ):
        found = _level_up(x, least)
        if found is None:
            continue
        a, b, level, before = found
        whole = share[:, a:b].mean(axis=1)
        usual = share[:, :a].mean(axis=1)
        if name == "correlated_order" and (np.abs(whole - usual).max() > 0.2 or np.abs(np.diff(share[:, a:b], axis=1)).sum() == 0):
            continue
        first_step, stop = int(line.steps[a]), int(line.steps[b - 1]) + 1
        out.append(Fault(name, first_step, stop, level, f"steps {first_step} to {stop - 1}: {words} ({level:.2f} against {before:.2f} before)"))
    return out


def _level_up(x: F64, least: float, width: int = 8) -> tuple[int, int, float, float] | None:
    """First lasting rise of a series by at least `least` and 6 standard errors: start, stop, level, level before."""
    sums = np.concatenate([[0.0], np.cumsum(x)])
    mean = (sums[width:] - sums[:-width]) / width
    for i in range(24, len(mean)):
        before = x[max(0, i - 64) : i]
        base, sd = float(np.median(before)), float(before.std())
        if mean[i] - base > max(least, 6 * sd / np.sqrt(width)):
            half = (mean[i] + base) / 2
            a = turning_point(x - half, i, width)
            half = (float(x[a + 1 : a + 1 + width].mean()) + base) / 2
            a = turning_point(x - half, a, width)
            b = a + width
            while b < len(x) and float(x[b : b + 4].mean()) > half:
                b += 1
            return a, b, float(x[a:b].mean()), base
    return None


def jumps(line: Timeline, rows: Rows, launches: Launches) -> list[Fault]:
    """At a restart, sample numbers that leap past many never read: data skipped."""
    out: list[Fault] = []
    if (rows.sample < 0).any() or not len(rows.sample):
        return out
    low = np.full(len(line.steps), np.iinfo(np.int64).max)
    high = np.full(len(line.steps), -1, dtype=np.int64)
    np.minimum.at(low, rows.at, rows.sample)
    np.maximum.at(high, rows.at, rows.sample)
    width = float(np.median(np.bincount(rows.at)))
    for step in column(launches, "first_step").tolist():
        i = int(np.searchsorted(line.steps, step))
        if i < 16 or i + 8 > len(line.steps) or line.steps[i] != step:
            continue
        usual = np.diff(np.array([float(high[max(0, k - 16) : k].max()) for k in range(i - 8, i)])).mean()
        reach = float(high[max(0, i - 32) : i].max())
        gap = float(low[i : i + 16].min()) - reach
        if 0 <= usual <= 4 * width and gap > 8 * width:
            out.append(Fault("skipped_range", step, step + 1, 0.0, f"the restart at step {step} left out about {gap / width:.0f} steps of samples"))
    return out
