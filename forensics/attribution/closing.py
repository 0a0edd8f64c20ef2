"""The rest of a group of which much is guilty: copies of one another, a crawl, a run of neighbours in a file.

Dirt comes in batches, so what was found of one is seldom all of it. The rest is offered, not taken: nothing was measured
on it. With `close: true` it is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.attribution.enrichment import groupings
from forensics.attribution.evidence import Evidence
from forensics.losses.difficulty import I64
from forensics.schemas import DOC_BITS, DOC_MASK

LEAST = 4  # guilty documents of a group
NEIGHBOURS = 8  # documents between two guilty ones of a file that still are one run


@dataclass(frozen=True)
class Closure:
    """A group and its documents that were not found guilty.

    Attributes:
        level: cluster, crawl or idrange; label: its name.
        guilty: how many of its documents are guilty.
        rest: rows of the others that were read, without those that a narrower group offers.
        tokens: label tokens of these.
    """

    level: str
    label: str
    guilty: int
    rest: I64
    tokens: int


def closures(e: Evidence, docs: I64) -> tuple[Closure, ...]:
    """Groups of whose documents at least `close_share` are guilty, and not all; each document is offered once, by the narrowest group.

    Args:
        e: evidence.
        docs: rows of the guilty documents.
    """
    guilty = np.zeros(len(e.line.keys), dtype=bool)
    guilty[docs] = True
    groups = [(level, label, rows) for level, _, label, rows in groupings(e.line, e.inputs.documents, e.inputs.clusters) if level in {"cluster", "crawl"}]
    groups += [("idrange", label, rows) for label, rows in runs(e, docs)]
    taken, out = guilty.copy(), []
    used = e.line.of_docs(e.line.labels)
    for level, label, rows in sorted(groups, key=lambda g: len(g[2])):
        bad = int(guilty[rows].sum())
        rest = rows[~taken[rows]]
        if bad >= LEAST and len(rest) and bad >= e.rules.close_share * len(rows):
            out.append(Closure(level, label if level != "crawl" else f"crawl {label}", bad, rest, int(used[rest].sum())))
            taken[rest] = True
    return tuple(out)


def runs(e: Evidence, docs: I64) -> list[tuple[str, I64]]:
    """Runs of documents of one file from a guilty one to another, no more than `NEIGHBOURS` documents that were read between two."""
    out = []
    corpus, number = e.line.keys >> DOC_BITS, e.line.keys & DOC_MASK
    for cut in np.split(docs, np.flatnonzero((np.diff(docs) > NEIGHBOURS + 1) | (np.diff(corpus[docs]) != 0)) + 1):
        if len(cut) >= LEAST:
            a, b = int(cut[0]), int(cut[-1])
            out.append((f"documents {number[a]} to {number[b]} of file {corpus[a]}", np.arange(a, b + 1)))
    return out
