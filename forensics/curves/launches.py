"""Where a log starts anew: restarts after a rollback, and which of several files continues which.

A restart is seen by steps that go back and are logged again. A record that merely arrives late (an asynchronous logger),
or the same step printed twice, is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from forensics.curves.sources.base import Floats, Ints

MAX_TURNS = 10_000


def restarts(steps: Ints) -> list[int]:
    """Positions at which a new launch begins, in a series of steps in the order they were logged.

    At a step back, the stretch up to the first step beyond all earlier ones is looked at: it is a restart when it logs
    again most of what had been logged there, or as densely at other steps; else its records came late.
    """
    turns = np.flatnonzero(np.diff(steps) < 0) + 1
    if len(turns) > MAX_TURNS:
        return []
    found: list[int] = []
    start, done = 0, 0
    for turn in turns.tolist():
        if turn < done:
            continue
        before = steps[start:turn]
        highest = int(before.max())
        beyond = np.flatnonzero(steps[turn:] > highest)
        stop = turn + int(beyond[0]) if len(beyond) else len(steps)
        stretch = np.unique(steps[turn:stop])
        if not len(stretch):
            continue
        upper = highest if stop < len(steps) else int(stretch[-1])
        seen = np.unique(before[(before >= stretch[0]) & (before <= upper)])
        repeated = int(np.isin(stretch, seen).sum())
        if (repeated and 2 * repeated > len(seen)) or (repeated >= 2 and len(stretch) > 3) or (not repeated and 2 <= len(stretch) <= len(seen)):
            found.append(turn)
            start = turn
        else:
            done = stop
    return found


def launch_of_records(steps: Ints, primary: Ints, ranks: Ints | None) -> tuple[Ints, int]:
    """Launch of every record of a file, from 0, and how many there are.

    Args:
        steps: [n] steps of all records.
        primary: rows of the metric that is logged most: it decides.
        ranks: [n] rank or -1.
    """
    if ranks is not None and len(primary):
        primary = primary[ranks[primary] == ranks[primary].min()]
    starts = []
    for i in restarts(steps[primary]):
        last, first = int(primary[i - 1]), int(primary[i])
        early = np.flatnonzero(steps[last + 1 : first + 1] < steps[last])  # other metrics of the new launch logged just before its first record
        starts.append(last + 1 + int(early[0]) if len(early) else first)
    launches = np.zeros(len(steps), np.int64)
    for start in starts:
        launches[start:] += 1
    return launches, len(starts) + 1


def reading_order(paths: Sequence[Path], first_times: Sequence[float | None]) -> list[int]:
    """In which order files belong: by clock where all have one; as given, but sorted names (a shell glob) by the numbers in them."""
    positions = list(range(len(paths)))
    if all(t is not None for t in first_times):
        return sorted(positions, key=lambda i: (first_times[i], i))
    names = [str(p) for p in paths]
    if names == sorted(names):
        return sorted(positions, key=lambda i: (natural(names[i]), i))
    return positions


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sort key that reads digits as numbers."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]


def agree(steps_a: Ints, values_a: Floats, steps_b: Ints, values_b: Floats, tolerance: float = 2e-3) -> tuple[int, float]:
    """Steps that both logged, and the share of them with equal values (to the rounding of prints)."""
    shared, a, b = np.intersect1d(steps_a, steps_b, return_indices=True)
    if not len(shared):
        return 0, 0.0
    x, y = values_a[a], values_b[b]
    equal = (np.abs(x - y) <= tolerance * np.maximum(np.abs(x), np.abs(y))) | (np.isnan(x) & np.isnan(y)) | (x == y)
    return len(shared), float(equal.mean())
