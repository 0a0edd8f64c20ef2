"""Which documents of a dirty stretch belong to its group, once the group is proven.

By itself a document must be far from all ordinary ones to count as odd. Once a group is proven to fill a stretch the
question is another: which of the documents that the stretch read are like the group? All features and the document's own
loss together give one direction, Fisher's discriminant between the group and ordinary documents, and each document is
tested along it against ordinary ones at a false discovery rate. So those too short or too near to stand out alone are
named, and odd ones of another kind, which came into the group because nothing told them apart, are not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.attribution.inputs import Rules
from forensics.attribution.odd import TAILS, benjamini_hochberg, tail, values
from forensics.attribution.slabs import Slab, followed, holding
from forensics.attribution.timeline import Timeline
from forensics.losses.difficulty import BOOL, F64
from forensics.losses.features import Features

LEAST = 8  # members that a direction is fitted on, and ordinary documents by four
FAR = 6.0  # deviations from which one feature counts no more
RIDGE = 0.3  # of a feature's own variance: few members fit no fine detail
SPREAD = 3.0  # lower deviations of the members along the direction, beyond which a document is not like them
ALIKE = 0.5  # of the members must lie along the direction, else the group has none


def refined(line: Timeline, f: Features, loss: F64, ordinary: BOOL, slab: Slab, taken: BOOL, rules: Rules) -> Slab:
    """The slab with the documents that belong to it, and followed as far as they reach.

    Args:
        line, f: axis and features [n].
        loss: mean loss of each document over the expected one [n], NaN where unknown.
        ordinary: documents of ordinary steps [n].
        slab: as found from odd documents.
        taken: documents of other slabs [n].
        rules: thresholds.
    """
    step = line.steps[line.at]
    met = np.zeros(len(line.keys), dtype=bool)
    met[line.doc[(step >= slab.stretch.start) & (step < slab.stretch.stop)]] = True
    own = holding(line, [slab])
    settled = np.zeros(len(line.keys), dtype=bool)
    settled[slab.group.settled] = True
    among = met & ~taken
    if slab.group.new_label:  # what came under a label of its own has no members elsewhere
        among &= np.isin(line.source, line.source[slab.group.docs])
    belong = alike(matrix(f, loss, ordinary, met & ~own), ordinary & ~own, own & met, among, rules.odd_fdr)
    if slab.group.new_label:
        fellows = of_label(f, ordinary, own & met, among, rules.odd_fdr)
        belong = fellows if belong is None else belong | fellows
    if belong is None:
        return slab
    docs = np.flatnonzero((own & (settled | ~met)) | belong)
    marked = np.zeros(len(line.keys), dtype=bool)
    marked[docs] = True
    stretch = followed(line, line.share(marked), slab.stretch, rules)
    inside = (step >= stretch.start) & (step < stretch.stop)
    return replace(slab, group=replace(slab.group, docs=docs), docs=np.unique(line.doc[inside & marked[line.doc]]), stretch=stretch)


def of_label(f: Features, ordinary: BOOL, members: BOOL, among: BOOL, fdr: float) -> BOOL:
    """Documents of a label that ordinary steps lack, odd by the feature that most members are farthest out by: one feature and one label, so less will do.

    Args:
        f: features [n].
        ordinary: documents of ordinary steps [n].
        members: of the group [n]; among: all documents of its label in the stretch [n].
        fdr: false discovery rate.
    """
    out = np.zeros(len(f.length), dtype=bool)
    tested = [
        tail(TAILS[name] * x, (TAILS[name] * x)[ordinary & np.isfinite(x)]) for name, x in values(f).items() if (ordinary & np.isfinite(x)).sum() >= LEAST
    ]
    if members.sum() < LEAST or not tested:
        return out
    _, p = max(tested, key=lambda found: float(np.median(np.nan_to_num(found[0][members]))))
    out[among] = benjamini_hochberg(np.nan_to_num(p[among], nan=1.0)) <= fdr
    return out


def matrix(f: Features, loss: F64, ordinary: BOOL, beside: BOOL) -> F64:
    """Features in deviations of ordinary documents [n, k], the far ones drawn in, unknown ones 0.

    Args:
        f: features [n].
        loss: as in `refined`.
        ordinary: documents of ordinary steps [n].
        beside: other documents of the stretch [n]; what their loss has moved by is taken out.
    """
    known = np.isfinite(loss)
    shift = float(np.median(loss[beside & known])) if (beside & known).sum() >= LEAST else 0.0
    columns = [TAILS[name] * x for name, x in values(f).items()]
    columns.append(np.where(ordinary, loss, loss - shift))
    out = []
    for x in columns:
        base = x[ordinary & np.isfinite(x)]
        if len(base) < LEAST:
            continue
        low, mid, high = np.quantile(base, [0.16, 0.5, 0.84])
        out.append(np.clip(np.nan_to_num((x - mid) / max((high - low) / 2, 0.02), nan=0.0), -FAR, FAR))
    return np.stack(out, axis=1)


def alike(x: F64, ordinary: BOOL, members: BOOL, among: BOOL, fdr: float) -> BOOL | None:
    """Who is like the members [n]; None where they are too few or have nothing in common.

    Args:
        x: features [n, k].
        ordinary, members: which are which [n].
        among: documents that may belong [n].
        fdr: false discovery rate.
    """
    if members.sum() < LEAST or ordinary.sum() < 4 * LEAST:
        return None
    found = members
    for _ in range(3):
        middle = np.median(x[ordinary], axis=0), np.median(x[found], axis=0)
        inner = (np.cov(x[ordinary].T) + np.cov(x[found].T)) / 2
        way = np.linalg.solve(inner + RIDGE * np.eye(x.shape[1]), middle[1] - middle[0])
        score = x @ way
        _, p = tail(score, score[ordinary])
        q = np.ones(len(x))
        q[among] = benjamini_hochberg(p[among])
        low, mid = np.quantile(score[found], [0.16, 0.5])
        belong: BOOL = (q <= fdr) & (score >= max((middle[0] + middle[1]) @ way / 2, mid - SPREAD * (mid - low)))
        if (belong & members).sum() < max(LEAST, ALIKE * members.sum()):
            return None
        found = belong
    return belong
