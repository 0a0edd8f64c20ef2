"""Stretches whose text lost its order, seen on many documents together where no single one stands out.

Ordinary text costs less by pairs of tokens than by single ones. Words in any order, or text from a chain of letters, keep
part of that gain, so that each document alone passes for a dull ordinary one; a stretch in which many documents gain little
does not. The gain is compared within each source, so a change of the mix is none of it, and only known sources count.
"""

from __future__ import annotations

import numpy as np

from forensics.attribution.scan import best_stretch
from forensics.attribution.timeline import Timeline
from forensics.losses.difficulty import BOOL, F64
from forensics.losses.features import Features
from forensics.steps import StepRange

LOW = -2.0  # deviations from which a document gains little
LEAST = 8  # such documents in the stretch; five times as many ordinary ones to compare with
SHORT = 48  # tokens below which the gain is noise
SURE = 6.0  # standard errors by which they are more than chance: at most 3.4 in 30 stretches of small trainings without such text, 8 and more with
OWN = 8.0  # documents that the median of all counts as beside those of a source


def disordered(line: Timeline, f: Features, ordinary: BOOL, table: BOOL, reach: StepRange, taken: BOOL) -> BOOL:
    """Documents that gain little, bool [n], where one stretch of `reach` holds too many of them; else none.

    Args:
        line, f: axis and features [n].
        ordinary: steps [T]; table: their documents [n].
        reach: steps that are searched.
        taken: documents that stand out by themselves [n].
    """
    first = np.full(len(line.keys), len(line.steps))
    np.minimum.at(first, line.doc, line.at)
    look = slice(line.index(reach.start), line.index(reach.stop))
    none = np.zeros(len(line.keys), dtype=bool)
    base = table & ~taken
    for _ in range(2):  # the second time against all that was read before the stretch
        if base.sum() < 5 * LEAST:
            return none
        weak = (gains(line, f, base) <= LOW) & np.isin(line.source, np.unique(line.source[base])) & ~taken & (f.length >= SHORT)
        share = line.share(weak)
        usual = float(share[ordinary].mean()) if ordinary.any() else 0.0
        a, b, _ = best_stretch(share[look], max(2 * usual, 0.1))
        used, before = base, (first < look.start + a) & ~taken
        base = before if before.sum() > base.sum() else base
    met = none.copy()
    met[line.doc[(line.at >= look.start + a) & (line.at < look.start + b)]] = True
    met &= ~taken & np.isin(line.source, np.unique(line.source[used])) & (f.length >= SHORT)
    rate = float((weak & used).sum() + 1) / float(used.sum() + 2)
    found, chance = int((weak & met).sum()), rate * float(met.sum())
    return weak if found >= LEAST and found - chance > SURE * np.sqrt(chance * (1 - rate)) else none


def gains(line: Timeline, f: Features, base: BOOL) -> F64:
    """How far a document's gain by pairs lies from that of its source, in lower deviations of the documents of `base` [n]."""
    gain = f.alone - f.after
    middle = float(np.median(gain[base]))
    out = gain - middle
    for s in np.unique(line.source):
        own = gain[base & (line.source == s)]
        if len(own):
            out[line.source == s] = gain[line.source == s] - (len(own) * float(np.median(own)) + OWN * middle) / (len(own) + OWN)
    low, mid = np.quantile(out[base], [0.16, 0.5])
    return np.asarray((out - mid) / max(float(mid - low), 1e-3))
