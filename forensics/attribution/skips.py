"""The smallest set that removes the harm: whole steps where most of their tokens are dirty, else documents.

Masking documents inside steps that are mostly dirty leaves near-empty batches with full-size updates and does the same
damage, so such steps are skipped whole. At lower shares skipping steps throws clean data away, so documents go. Under a
budget of tokens (`skip_budget`) what removes most per token is taken first; the rest stays listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from forensics.attribution.closing import Closure, closures
from forensics.attribution.decide import Decision
from forensics.attribution.evidence import Evidence
from forensics.attribution.intervals import affordable, covering
from forensics.attribution.slabs import Slab
from forensics.losses.difficulty import BOOL, F64, I64
from forensics.schemas import SKIPS, Skips

LEAST_WORTH = 1e-3  # nats per token that a guilty document is held to cost where no loss shows it, so that budgets can be spent


@dataclass(frozen=True)
class Prescription:
    """What to leave out.

    Attributes:
        form: steps, documents or none.
        steps: half-open ranges.
        docs: rows of guilty documents; chosen: those of them that are to be left out (all, unless a budget is too small).
        dirty, ordinary: label tokens of both kinds that the recommended form removes.
        removed: excess [nats] that goes with them; error of it.
        covered: share of all dirty tokens.
        closures: groups of which much is guilty and whose other documents were not taken.
        also, also_tokens: keys of guilty documents that were not looked at one by one, int64, and their label tokens; also_fits: how many
            of them, from the first on, are to be left out.
        step_tokens: label tokens of each range of steps, where all rows were counted.
        budget: label tokens that were allowed, 0 where any number was.
    """

    form: str
    steps: tuple[tuple[int, int], ...]
    docs: I64
    dirty: float
    ordinary: float
    removed: float
    error: float
    covered: float
    chosen: I64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    closures: tuple[Closure, ...] = ()
    also: I64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    also_tokens: I64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    also_fits: int = 0
    step_tokens: Mapping[tuple[int, int], int] = field(default_factory=dict)
    budget: int = 0

    @property
    def documents(self) -> int:
        """How many documents are guilty."""
        return len(self.docs) + len(self.also)


NOTHING = Prescription("none", (), np.zeros(0, dtype=np.int64), 0.0, 0.0, 0.0, 0.0, 0.0)


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


def prescribe(e: Evidence, d: Decision, sampled: float = 1.0) -> Prescription:
    """What to skip; nothing unless documents are the cause.

    Args:
        e, d: evidence and decision.
        sampled: share of the rows that `e` holds, by which a budget is scaled.
    """
    if d.primary is None or d.primary.cause != "data" or not d.guilty:
        return NOTHING
    docs = guilty_documents(e, d.guilty)
    found = closures(e, docs)
    if e.rules.close:
        docs = np.unique(np.concatenate([docs, *(c.rest for c in found)]))
        found = ()
    marked = _marked(e, docs)
    share = e.line.share(marked)
    start, stop = min(s.stretch.start for s in d.guilty), max(s.stretch.stop for s in d.guilty)
    a, b = e.line.index(start), e.line.index(stop + 2 * e.rules.gap)
    ranges = covering(share[a:b], e.rules.skip_intervals, e.rules.merge_gap, e.rules.skip_cover)
    whole = bool(ranges) and float(np.concatenate([share[a + i : a + j] for i, j in ranges]).mean()) > e.rules.skip_share
    budget = e.rules.skip_budget * sampled
    per_token = worth(e, d, docs)
    if whole and 0 < budget < sum(float(e.line.tokens[a + i : a + j].sum()) for i, j in ranges):
        ranges = affordable(e.line.per_step(e.line.labels * per_token[e.line.doc])[a:b], e.line.tokens[a:b], e.rules.skip_intervals, budget)
    chosen = docs if whole or not budget else _within(docs, e.line.of_docs(e.line.labels)[docs], per_token[docs], budget)
    steps = tuple((int(e.line.steps[a + i]), int(e.line.steps[a + j - 1]) + 1) for i, j in ranges)
    base = replace(NOTHING, form="steps" if whole else "documents", steps=steps, docs=docs, chosen=chosen, closures=found, budget=e.rules.skip_budget)
    return _counted(e, base, share)


def worth(e: Evidence, d: Decision, docs: I64) -> F64:
    """Nats that leaving out one label token of each document removes [n]: its own excess, and its part in the harm to others; 0 for the innocent.

    The harm of a stretch (how far ordinary documents or validation rose) is shared over the tokens of its odd documents.
    """
    out = np.zeros(len(e.line.keys))
    out[docs] = LEAST_WORTH
    if e.excess is not None:
        own = e.line.of_docs(np.maximum(np.nan_to_num(e.excess.value), 0) * e.line.labels) / np.maximum(e.line.of_docs(e.line.labels), 1)
        out[docs] += own[docs]
    for slab in d.guilty:
        mine = np.intersect1d(slab.docs, docs)
        out[mine] += max(slab.harm, 0.0) if slab.harm_z >= 2 else 0.0
    return out


def _within(docs: I64, tokens: F64, per_token: F64, budget: float) -> I64:
    """The documents worth most per token that fit a budget, one after the other."""
    left, kept = budget, []
    for i in np.argsort(-per_token, kind="stable").tolist():
        if tokens[i] <= left:
            kept.append(int(docs[i]))
            left -= float(tokens[i])
    return np.array(sorted(kept), dtype=np.int64)


def _counted(e: Evidence, p: Prescription, share: F64) -> Prescription:
    """With the tokens that go, and the excess that goes with them."""
    dirty = share * e.line.tokens
    if p.form == "steps":
        skipped = np.zeros(len(share), dtype=bool)
        for start, stop in p.steps:
            skipped |= (e.line.steps >= start) & (e.line.steps < stop)
        removed, error = _removed(e, _marked(e, p.docs), skipped)
        gone, lost = float(dirty[skipped].sum()), float((e.line.tokens - dirty)[skipped].sum())
    else:
        removed, error = _removed(e, _marked(e, p.chosen), None)
        gone, lost = float(e.line.of_docs(e.line.labels)[p.chosen].sum()), 0.0
    return replace(p, dirty=gone, ordinary=lost, removed=removed, error=error, covered=gone / max(float(dirty.sum()), 1.0))


def _marked(e: Evidence, docs: I64) -> BOOL:
    out = np.zeros(len(e.line.keys), dtype=bool)
    out[docs] = True
    return out


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
    share = e.line.share(_marked(e, p.docs))
    for start, stop in p.steps:
        use = (e.line.steps >= start) & (e.line.steps < stop)
        launch = int(e.line.launch[np.isin(e.line.at, np.flatnonzero(use))].max(initial=0))
        reason = f"{100 * float(share[use].mean()):.0f} % of the tokens lie in guilty documents"
        rows.append((launch, "steps", start, stop, p.form == "steps", reason, p.step_tokens.get((start, stop), int(e.line.tokens[use].sum())), None))
    excess = e.line.of_docs(np.nan_to_num(e.excess.value * e.line.labels)) if e.excess is not None else None
    used = e.line.of_docs(e.line.labels)
    kind = {int(r): s.group.kind for s in d.guilty for r in s.group.docs}
    chosen = set(p.chosen.tolist()) if p.form == "documents" else set()
    for r in p.docs.tolist():
        key = int(e.line.keys[r])
        rows.append((None, "documents", key, key + 1, r in chosen, kind.get(r, "same group"), int(used[r]), float(excess[r]) if excess is not None else None))
    reason = "of the same group as " + ", ".join(sorted({s.group.kind for s in d.guilty}))
    for n, (key, tokens) in enumerate(zip(p.also.tolist(), p.also_tokens.tolist(), strict=True)):
        rows.append((None, "documents", key, key + 1, p.form == "documents" and n < p.also_fits, reason, tokens, None))
    names = ("launch", "kind", "start", "stop", "recommended", "reason", "tokens", "excess")
    columns = dict(zip(names, (list(c) for c in zip(*rows, strict=True)), strict=True))
    types = {"launch": pa.int16(), "excess": pa.float64()}
    return Skips(SKIPS.sorted(SKIPS.of(pa.table({k: pa.array(v, types.get(k)) for k, v in columns.items()}))))
