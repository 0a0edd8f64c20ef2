"""Groups of odd documents in the stretch of steps that holds them, followed past the steps asked about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.attribution.inputs import Rules
from forensics.attribution.odd import GARBAGE, Group
from forensics.attribution.scan import Stretch, scan
from forensics.attribution.timeline import Timeline
from forensics.losses.difficulty import BOOL, F64, I64
from forensics.steps import StepRange


@dataclass(frozen=True)
class Slab:
    """A group of odd documents and the stretch of steps that holds it.

    Attributes:
        group: the documents' kind and label.
        docs: rows of the group's documents that lie in the stretch.
        stretch: steps, dose, share, p.
        harm: rise of ordinary documents or of validation after its start, in standard errors and nats.
        shows: loss of its first segments minus that of ordinary ones before [nats/token]; NaN without losses.
        learned: loss of its last segments minus that of its first; far below 0 where they were memorised.
    """

    group: Group
    docs: I64
    stretch: Stretch
    harm_z: float = 0.0
    harm: float = 0.0
    shows: float = float("nan")
    learned: float = float("nan")


def find_slabs(line: Timeline, found: list[Group], ordinary: BOOL, reach: StepRange, rules: Rules) -> tuple[list[Slab], list[Slab]]:
    """Slabs of unwanted kinds and of wanted ones that begin or run in `reach`, concentrated beyond what order alone does."""
    garbage: list[Slab] = []
    wanted: list[Slab] = []
    look = (line.index(reach.start), line.index(reach.stop))
    history = np.flatnonzero(ordinary)
    past = (int(history[0]), int(history[-1]) + 1) if len(history) else (0, 0)
    if past[1] > look[0]:
        past = (past[0], max(past[0], min(past[1], look[0])))
    for group in found:
        marked = np.zeros(len(line.keys), dtype=bool)
        marked[group.docs] = True
        share = line.share(marked)
        stretch = scan(line.steps, share, look, past, rules.shifts)
        if stretch is None:
            continue
        stretch = followed(line, share, stretch, rules)
        inside = (line.steps[line.at] >= stretch.start) & (line.steps[line.at] < stretch.stop)
        docs = np.unique(line.doc[inside & marked[line.doc]])
        if stretch.dose < rules.dose_least or stretch.share < rules.share_least or stretch.p > rules.scan_p or len(docs) < 3:
            continue
        (garbage if group.kind in GARBAGE else wanted).append(Slab(group, docs, stretch))
    return garbage, wanted


def followed(line: Timeline, share: F64, s: Stretch, rules: Rules) -> Stretch:
    """The stretch, followed both ways past the steps asked about, over at most `gap` ordinary steps."""
    a, b = line.index(s.start), line.index(s.stop)
    bar, level = max(0.02, 0.1 * s.share), 0.25 * float(share[a:b].mean())
    while (k := _next(share[b : b + rules.gap + 1], bar, level)) > 0:
        b += k
    while (k := _next(share[max(0, a - rules.gap - 1) : a][::-1], bar, level)) > 0:
        a -= k
    part = share[a:b]
    return Stretch(int(line.steps[a]), int(line.steps[b - 1]) + 1, float(part.sum()), float(part.mean()), s.p, s.shifts)


def _next(part: F64, bar: float, level: float) -> int:
    """How many steps further the stretch reaches: the farthest step over `bar` up to which the mean share holds `level`."""
    for k in np.flatnonzero(part >= bar)[::-1].tolist():
        if float(part[: k + 1].mean()) >= level:
            return int(k) + 1
    return 0


def holding(line: Timeline, slabs: list[Slab]) -> BOOL:
    """Documents of the slabs' groups, bool [n]."""
    out = np.zeros(len(line.keys), dtype=bool)
    for slab in slabs:
        out[slab.group.docs] = True
    return out
