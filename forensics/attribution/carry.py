"""From the sample that was looked at to everything that was read: who else belongs to the guilty groups.

Attribution may look at a sample of rows. What it says about groups holds for all their documents, so the skip list has to
name those outside the sample as well. A document that the guilty steps read is guilty when

- a detector gives it as primary cause the very kind that was found guilty, or
- it is a copy or near copy of a guilty document, or
- it lies in a source, crawl, host, template or run of neighbours whose sampled documents in those steps are nearly all guilty.

Tokens are then counted over all rows. Where no sample was needed nothing is added and only the counts are made exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from forensics.attribution.decide import Decision
from forensics.attribution.evidence import Evidence
from forensics.attribution.skips import Prescription
from forensics.attribution.timeline import column
from forensics.losses.difficulty import BOOL, F64, I64
from forensics.schemas import Clusters, Consumed, Findings
from forensics.steps import StepRange

COPIES = ("exact", "near")
LABELS = ("source", "crawl", "host", "idrange", "template")  # pages of one template are not copies: one bad page says nothing of the others
NEARLY_ALL = 0.9  # of a group's sampled documents, from which the rest of it counts as guilty
LEAST = 8  # sampled documents of a group


@dataclass(frozen=True)
class Whole:
    """Everything that was read.

    Attributes:
        consumed: all segments that were read; findings, clusters: of all their documents.
        complete: steps of which every row was read; of the others only each `every`-th.
        share: of the rows of those steps, those that attribution looked at.
    """

    consumed: Consumed
    findings: Findings
    clusters: Clusters
    complete: StepRange
    every: int
    share: float


def carry(e: Evidence, d: Decision, p: Prescription, whole: Whole) -> Prescription:
    """The prescription with the guilty documents outside the sample, and with tokens counted over all rows."""
    if p.form == "none":
        return p
    step, key = column(whole.consumed, "step"), column(whole.consumed, "doc_key")
    labels = np.maximum(column(whole.consumed, "doc_stop") - column(whole.consumed, "doc_start") - (column(whole.consumed, "seq_start") == 0), 0)
    inside = (step >= whole.complete.start) & (step < whole.complete.stop)
    weight = labels * np.where(inside, 1.0, float(whole.every))
    known, chosen = e.line.keys[p.docs], e.line.keys[p.chosen]
    also = others(e, d, known, whole, step, key) if whole.share < 1 or whole.every > 1 else known[:0]
    used = _tokens_of(also, key, weight)
    fits = len(also)
    if p.budget and p.form == "documents":
        fits = int((np.cumsum(used) <= p.budget - weight[_in(key, chosen)].sum()).sum())
    guilty = _in(key, np.concatenate([known, also]))
    gone = _within(step, p.steps) if p.form == "steps" else _in(key, np.concatenate([chosen, also[:fits]]))
    dirty, ordinary = float(weight[guilty & gone].sum()), float(weight[~guilty & gone].sum())
    ratio = dirty / p.dirty if p.dirty > 0 else 1.0
    per_step = {(a, b): int(weight[(step >= a) & (step < b)].sum()) for a, b in p.steps}
    return replace(
        p, dirty=dirty, ordinary=ordinary, removed=p.removed * ratio, error=p.error * ratio, also=also, also_tokens=used, also_fits=fits,
        step_tokens=per_step, covered=dirty / max(float(weight[guilty].sum()), 1.0),
    )  # fmt: skip


def _within(step: I64, ranges: Iterable[tuple[int, int]]) -> BOOL:
    out = np.zeros(len(step), dtype=bool)
    for start, stop in ranges:
        out |= (step >= start) & (step < stop)
    return out


def _tokens_of(keys: I64, key: I64, weight: F64) -> I64:
    """Label tokens of each of these documents (keys ascending)."""
    if not len(keys):
        return keys
    at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    mine = keys[at] == key
    return np.bincount(at[mine], weight[mine], len(keys)).astype(np.int64)


def others(e: Evidence, d: Decision, known: I64, whole: Whole, step: I64, key: I64) -> I64:
    """Keys of guilty documents that attribution did not look at, ascending."""
    out: list[I64] = [known[:0]]
    for slab in d.guilty:
        late = slab.stretch.stop + 2 * e.rules.gap
        met = np.unique(key[(step >= slab.stretch.start) & (step < late)])
        fresh = met[~_in(met, e.line.keys)]
        own = np.intersect1d(met, e.line.keys[slab.group.docs])
        sampled = np.intersect1d(met, e.line.keys)
        out += [np.intersect1d(fresh, found) for found in (named(whole.findings, slab.group.kind), copies(whole.clusters, known))]
        out.append(np.intersect1d(fresh, fellows(whole.clusters, own, sampled)))
    return np.unique(np.concatenate(out))


def named(findings: Findings, kind: str) -> I64:
    """Documents whose primary finding is garbage of this kind."""
    use = _flags(findings, "garbage") & _flags(findings, "primary") & _is(findings, "cause", (kind,))
    return np.unique(column(findings, "doc_key")[use])


def copies(clusters: Clusters, known: I64) -> I64:
    """Members of the exact and near clusters that hold a guilty document."""
    found = _of_kinds(clusters, COPIES)
    return np.unique(found[1][np.isin(found[0], found[0][_in(found[1], known)])])


def fellows(clusters: Clusters, guilty: I64, sampled: I64) -> I64:
    """Members of groups of which nearly all sampled documents are guilty."""
    group, key = _of_kinds(clusters, LABELS)
    if not len(group):
        return key
    numbers, at = np.unique(group, return_inverse=True)
    looked = np.bincount(at, _in(key, sampled), len(numbers))
    bad = np.bincount(at, _in(key, guilty), len(numbers))
    return np.unique(key[((looked >= LEAST) & (bad >= NEARLY_ALL * looked))[at]])


def _of_kinds(clusters: Clusters, kinds: tuple[str, ...]) -> tuple[I64, I64]:
    """A number per cluster of these kinds, and the member, row by row."""
    number, key = column(clusters, "cluster"), column(clusters, "doc_key")
    parts = [(np.flatnonzero(_is(clusters, "kind", (kind,))), n) for n, kind in enumerate(kinds)]
    rows = np.concatenate([rows for rows, _ in parts])
    group = np.concatenate([number[rows] * len(kinds) + n for rows, n in parts])
    return group, key[rows]


def _in(values: I64, known: I64) -> BOOL:
    return np.isin(values, known)


def _is(table: pa.Table, name: str, words: tuple[str, ...]) -> BOOL:
    encoded: Any = table.column(name).combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks() if encoded.num_chunks else pa.array([], table.schema.field(name).type)
    known = np.array([str(w) in words for w in encoded.dictionary.to_pylist()], dtype=bool)
    codes = np.asarray(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
    return np.append(known, False)[codes] if len(codes) else np.zeros(0, dtype=bool)


def _flags(table: pa.Table, name: str) -> BOOL:
    return np.asarray(table.column(name).to_numpy(), dtype=bool)
