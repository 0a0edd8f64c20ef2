"""The smallest set that removes the harm: whole steps where most of their tokens are dirty, else documents.

Masking documents inside steps that are mostly dirty leaves near-empty batches with full-size updates and does the same
damage, so such steps are skipped whole. At lower shares skipping steps throws clean data away, so documents go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from forensics.attribution.decide import Decision
from forensics.attribution.evidence import Evidence
from forensics.attribution.slabs import Slab
from forensics.losses.difficulty import BOOL, F64, I64
from forensics.schemas import SKIPS, Skips

ODD_WEIGHT = 6.0  # ordinary tokens that one is ready to lose for one dirty token
INTERVAL_COST = 0.5  # full batches


@dataclass(frozen=True)
class Prescription:
    """What to leave out.

    Attributes:
        form: steps, documents or none.
        steps: half-open ranges.
        docs: rows of guilty documents.
        dirty, ordinary: tokens of both kinds that the recommended form removes.
        removed: excess [nats] that goes with them; error of it.
        covered: share of all dirty tokens.
        also, also_tokens: keys of guilty documents that were not looked at one by one, int64, and their label tokens.
        step_tokens: label tokens of each range of steps, where all rows were counted.
    """

    form: str
    steps: tuple[tuple[int, int], ...]
    docs: I64
    dirty: float
    ordinary: float
    removed: float
    error: float
    covered: float
    also: I64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    also_tokens: I64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    step_tokens: Mapping[tuple[int, int], int] = field(default_factory=dict)

    @property
    def documents(self) -> int:
        """How many documents are guilty."""
        return len(self.docs) + len(self.also)


def guilty_documents(e: Evidence, guilty: Sequence[Slab]) -> I64:
    """Rows of all guilty documents: those in the stretches, and those of the same group that straggle behind."""
    found: set[int] = set()
    step = e.line.steps[e.line.at]
    first = np.full(len(e.line.keys), np.iinfo(np.int64).max)
    np.minimum.at(first, e.line.doc, step)
    for slab in guilty:
        found |= set(slab.docs.tolist())
        rows = slab.group.docs
        late = (first[rows] >= slab.stretch.start) & (first[rows] < slab.stretch.stop + 2 * e.rules.gap)
        found |= set(rows[late].tolist())
    return np.array(sorted(found), dtype=np.int64)


def intervals(odd: F64, most: int, gap: int, cover: float) -> list[tuple[int, int]]:
    """At most `most` half-open index ranges that gain the most: dirty tokens weighed against ordinary ones and a price per range.

    Args:
        odd: share of dirty tokens per step.
        most: ranges.
        gap: ranges closer than this are merged.
        cover: share of the dirty tokens that must be covered; ranges grow by their cheapest steps until they do.
    """
    gain = ODD_WEIGHT * odd - (1 - odd)
    n = len(gain)
    outside = np.full((most + 1, n + 1), -np.inf)
    inside = np.full((most + 1, n + 1), -np.inf)
    outside[0, 0] = 0.0
    from_in = np.zeros((most + 1, n + 1), dtype=bool)
    opened = np.zeros((most + 1, n + 1), dtype=bool)
    for i in range(n):
        for k in range(most + 1):
            stay = inside[k, i] + gain[i]
            start = (max(outside[k - 1, i], inside[k - 1, i]) if k else -np.inf) + gain[i] - INTERVAL_COST
            inside[k, i + 1] = max(stay, start)
            opened[k, i + 1] = start > stay
            outside[k, i + 1] = max(outside[k, i], inside[k, i])
            from_in[k, i + 1] = inside[k, i] > outside[k, i]
    k = int(np.argmax(np.maximum(outside[:, n], inside[:, n])))
    taken = np.zeros(n, dtype=bool)
    i, now = n, bool(inside[k, n] > outside[k, n])
    while i > 0:
        if now:
            taken[i - 1] = True
            if opened[k, i]:
                k -= 1
                now = bool(inside[k, i - 1] > outside[k, i - 1])
        else:
            now = bool(from_in[k, i])
        i -= 1
    total = odd.sum()
    order = np.argsort(-odd, kind="stable")
    for j in order:
        if total <= 0 or odd[taken].sum() >= cover * total:
            break
        taken[j] = True
    return _merged(taken, gap)


def _merged(taken: BOOL, gap: int) -> list[tuple[int, int]]:
    hits = np.flatnonzero(taken)
    if not len(hits):
        return []
    cut = np.flatnonzero(np.diff(hits) > gap)
    begin = hits[np.concatenate([[0], cut + 1])]
    end = hits[np.concatenate([cut, [len(hits) - 1]])]
    return [(int(a), int(b) + 1) for a, b in zip(begin, end, strict=True)]


def prescribe(e: Evidence, d: Decision) -> Prescription:
    """What to skip; nothing unless documents are the cause."""
    none = Prescription("none", (), np.zeros(0, dtype=np.int64), 0.0, 0.0, 0.0, 0.0, 0.0)
    if d.primary is None or d.primary.cause != "data" or not d.guilty:
        return none
    docs = guilty_documents(e, d.guilty)
    marked = np.zeros(len(e.line.keys), dtype=bool)
    marked[docs] = True
    share = e.line.share(marked)
    start, stop = min(s.stretch.start for s in d.guilty), max(s.stretch.stop for s in d.guilty)
    a, b = e.line.index(start), e.line.index(stop + 2 * e.rules.gap)
    found = intervals(share[a:b], e.rules.skip_intervals, e.rules.merge_gap, e.rules.skip_cover)
    ranges = tuple((int(e.line.steps[a + i]), int(e.line.steps[a + j - 1]) + 1) for i, j in found)
    covered_steps = np.zeros(len(share), dtype=bool)
    for i, j in found:
        covered_steps[a + i : a + j] = True
    dirty = share * e.line.tokens
    inside = float(share[covered_steps].mean()) if covered_steps.any() else 0.0
    whole = inside > e.rules.skip_share
    removed, error = _removed(e, marked, covered_steps if whole else None)
    if whole:
        lost = float((e.line.tokens[covered_steps] - dirty[covered_steps]).sum())
        return Prescription(
            "steps", ranges, docs, float(dirty[covered_steps].sum()), lost, removed, error, float(dirty[covered_steps].sum() / max(dirty.sum(), 1))
        )
    return Prescription("documents", ranges, docs, float(dirty.sum()), 0.0, removed, error, 1.0)


def _removed(e: Evidence, docs: BOOL, steps: BOOL | None) -> tuple[float, float]:
    """Excess [nats] that the guilty segments carry themselves, and its standard error."""
    if e.excess is None:
        return float("nan"), float("nan")
    use = docs[e.line.doc] & np.isfinite(e.excess.value)
    if steps is not None:
        use &= steps[e.line.at]
    n = e.line.labels[use]
    scale = np.abs(e.excess.value[use] / np.where(np.abs(e.excess.z[use]) > 1e-9, e.excess.z[use], np.inf))
    return float((n * np.maximum(e.excess.value[use], 0)).sum()), float(np.sqrt(((n * scale) ** 2).sum()))


def skips_table(e: Evidence, d: Decision, p: Prescription) -> Skips:
    """The skip manifest: steps and documents; the guilty documents are listed whichever form is advised."""
    rows: list[tuple[int | None, str, int, int, bool, str, int, float | None]] = []
    if p.form == "none":
        return Skips(SKIPS.empty())
    marked = np.zeros(len(e.line.keys), dtype=bool)
    marked[p.docs] = True
    share = e.line.share(marked)
    for start, stop in p.steps:
        use = (e.line.steps >= start) & (e.line.steps < stop)
        launch = int(e.line.launch[np.isin(e.line.at, np.flatnonzero(use))].max(initial=0))
        reason = f"{100 * float(share[use].mean()):.0f} % of the tokens lie in guilty documents"
        rows.append((launch, "steps", start, stop, p.form == "steps", reason, p.step_tokens.get((start, stop), int(e.line.tokens[use].sum())), None))
    excess = e.line.of_docs(np.nan_to_num(e.excess.value * e.line.labels)) if e.excess is not None else None
    used = e.line.of_docs(e.line.labels)
    kind = {int(r): s.group.kind for s in d.guilty for r in s.group.docs}
    for r in p.docs:
        key = int(e.line.keys[r])
        rows.append(
            (None, "documents", key, key + 1, p.form == "documents", kind.get(int(r), "guilty"), int(used[r]), float(excess[r]) if excess is not None else None)
        )
    reason = "of the same group as " + ", ".join(sorted({s.group.kind for s in d.guilty}))
    rows += [
        (None, "documents", key, key + 1, p.form == "documents", reason, used, None) for key, used in zip(p.also.tolist(), p.also_tokens.tolist(), strict=True)
    ]
    names = ("launch", "kind", "start", "stop", "recommended", "reason", "tokens", "excess")
    columns = dict(zip(names, (list(c) for c in zip(*rows, strict=True)), strict=True))
    types = {"launch": pa.int16(), "excess": pa.float64()}
    return Skips(SKIPS.sorted(SKIPS.of(pa.table({k: pa.array(v, types.get(k)) for k, v in columns.items()}))))
