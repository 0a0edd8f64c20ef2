"""One skeleton in many documents: search-engine pages, product lists, generated records. As clusters, and as findings.

Documents are linked where they have a share of their skeletons in common with the same other documents, not merely with some: in a large corpus every
phrase of four words stands somewhere else too. Exact and near copies count once, so that families of copies are no template. A cluster holds the
documents that resemble its representative themselves, the one that holds most of what the others share; so chains of neighbours do not run together.

Its label shows the skeleton once with slots marked. Licences are kept apart: clusters of them are labelled and are no finding. Everything is found in two
passes over the stored samples, with a table of counters of fixed size between them: only runs that may stand in `LEAST` documents are held.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.clustering.components import groups, labels, singletons
from forensics.clustering.duplicates import joined
from forensics.clustering.links import SHARE, frequent, leader_likeness, leader_of, link, numbered, tally, thinned
from forensics.clustering.sources import constant
from forensics.clustering.verify import pieces
from forensics.schemas import CLUSTERS, DOC_BITS, DOC_MASK, FINDINGS, Clusters, Documents, Findings
from forensics.stage import stage
from forensics.stores.base import prepare
from forensics.text import SLOT, skeleton

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.clustering.verify import Reader

LEAST = 8  # documents, copies counted once, from which a skeleton is a template
RUNS = 6  # sampled runs that two documents must have in common, and a document must have at all
COUNTERS = 1 << 27
LABELLED = 200  # clusters, the largest first, whose skeleton is read from documents
SHOWN, BEGINNING, LONGEST = 6, 320, 400  # documents read for a label, tokens of each, characters of the label
LICENCE = re.compile(
    r"permission is hereby granted|redistribution and use in source|licen[sc]ed under the|general public licen[sc]e|public domain|creative commons"
    r"|as is.{0,40}without|without warranty of any kind|without any warranty|spdx|mozilla public|eclipse public",
    re.IGNORECASE,
)
OF_LICENCES = re.compile(
    r"(?i)\b(?:licen[sc]\w*|warrant\w*|copyright\w*|liab\w*|redistribut\w*|permi\w*|grant\w*|condition\w*|notice\w*|provided|terms?|software|implied|damages|holders?)\b"
)
WORD, WORDS = re.compile(r"[^\W\d_]{2,}|[぀-鿿가-힯]"), 5  # a skeleton has so many
VERSION = 2


def template_clusters(parts: Iterable[pa.Table], documents: Documents, near: pa.Table, reader: Reader | None = None) -> pa.Table:
    """Rows of `clusters`, kind `template`.

    Args:
        parts: samples of all documents, in the order of `doc_key`; gone through twice.
        documents: all documents, by `doc_key`.
        near: rows of kind `near`, by whose representative copies are represented.
        reader: where documents can be read for the labels; without it clusters are named by their representative.
    """
    keys = documents.column("doc_key").to_numpy()
    stands_for = np.arange(len(keys))
    stands_for[np.searchsorted(keys, near.column("doc_key").to_numpy())] = np.searchsorted(keys, near.column("representative").to_numpy())
    found = cluster_runs(*shared_runs(parts, keys, stands_for == np.arange(len(keys))))
    read = label_all([(leader, members) for leader, members, _ in found], keys, documents.column("tokens").to_numpy(), reader)
    found, names = [f for f, name in zip(found, read) if name], [name for name in read if name]
    owner = np.full(len(keys), -1)
    like = np.ones(len(keys), np.float32)
    leaders = np.array([leader for leader, _, _ in found], np.int64)
    for n, (_, members, likeness) in enumerate(found):
        owner[members], like[members] = n, likeness
    rows = np.flatnonzero(owner[stands_for] >= 0)
    number = owner[stands_for[rows]]
    order = np.lexsort((rows, number))
    rows, number = rows[order], number[order]
    return CLUSTERS.of({
        "kind": constant("template", len(rows)), "cluster": number, "label": pa.array(names, pa.string()).take(pa.array(number)), "doc_key": keys[rows],
        "representative": keys[leaders][number], "jaccard": like[stands_for[rows]],
    })  # fmt: skip


def shared_runs(
    parts: Iterable[pa.Table], keys: NDArray[np.int64], taken: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Runs that `LEAST` documents have.

    Args:
        parts: samples.
        keys: all documents, ascending.
        taken: whether a document takes part.

    Returns:
        Row int64 [runs], by row, and number of the run int64 [runs]; hashes of the numbers, ascending, uint64; runs that each document has in all int64 [n];
        and one of how many it keeps int64 [n].
    """
    total, lowest = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.uint64)
    counters = np.zeros(min(COUNTERS, 1 << max(10, (32 * len(keys)).bit_length())), np.uint8)
    for part in parts:
        tally(part.column("doc_key").to_numpy(), part.column("run").to_numpy(), keys, taken, total, lowest, counters)
    kept_rows, kept_runs = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    for part in parts:
        rows, runs = frequent(part.column("doc_key").to_numpy(), part.column("run").to_numpy(), keys, taken, counters, LEAST)
        kept_rows.append(rows)
        kept_runs.append(runs)
    rows = np.concatenate(kept_rows)
    distinct, codes = numbered(np.concatenate(kept_runs))
    for _ in range(2):  # the second time without the documents that have too few
        n = thinned(rows, codes, len(distinct), total, LEAST, RUNS)
        rows, codes = rows[:n], codes[:n]
    return rows, codes, distinct, total, np.where(lowest > 0, lowest & (~lowest + np.uint64(1)), np.uint64(1)).astype(np.int64)


def cluster_runs(
    rows: NDArray[np.int64], codes: NDArray[np.int64], distinct: NDArray[np.uint64], total: NDArray[np.int64], rate: NDArray[np.int64]
) -> list[tuple[int, NDArray[np.int64], NDArray[np.float32]]]:
    """Representative, members and their likeness to it, for each template; in the order of their first members. Arguments as `shared_runs` returns them."""
    if not len(rows):
        return []
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    docs, bounds = rows[starts], np.append(starts, len(rows))
    zeros = (distinct & (~distinct + np.uint64(1))).astype(np.float64)  # exact: powers of two
    sample = codes, bounds, np.where(zeros > 0, zeros, 2.0**62).astype(np.int64), total[docs], rate[docs]
    parent, count = singletons(len(docs)), np.zeros(len(distinct), np.int64)
    link(*sample, parent, RUNS)
    members, ends = groups(np.asarray(labels(parent), np.int64))
    out = []
    for a, b in zip(ends[:-1].tolist(), ends[1:].tolist()):
        out += [(int(docs[leader]), docs[m], like) for leader, m, like in _stars(members[a:b], sample, count)]
    return sorted(out, key=lambda found: int(found[1][0]))


Sample = tuple["NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64]"]


def _stars(left: NDArray[np.int64], sample: Sample, count: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float32]]]:
    """A component cut into documents that resemble one representative each: the one with most of the runs that half of the rest have; `count` is for it."""
    misses = 0
    while len(left) >= LEAST and misses < LEAST:
        leader = leader_of(sample[0], sample[1], left, count)
        like = leader_likeness(*sample, leader, left, RUNS)
        like[left == leader] = 1
        near = like >= SHARE
        if near.sum() >= LEAST:
            yield leader, left[near], like[near].astype(np.float32)
        else:
            misses += 1
        left = left[~near]


def label_all(found: list[tuple[int, NDArray[np.int64]]], keys: NDArray[np.int64], tokens: NDArray[np.int64], reader: Reader | None) -> list[str]:
    """A label per cluster: the skeleton of the largest ones, the place of the representative for the others; empty where the skeleton has no words."""
    names = [f"document {keys[leader] & DOC_MASK} of corpus {keys[leader] >> DOC_BITS}" for leader, _ in found]
    if reader is None or not found:
        return names
    largest = sorted(range(len(found)), key=lambda i: (-len(found[i][1]), i))[:LABELLED]
    shown = {i: _some(*found[i]) for i in largest}
    rows = np.unique(np.concatenate(list(shown.values())))
    prepare(reader, keys[rows])
    texts: dict[int, str] = {}
    for part in pieces(rows, tokens[rows]):
        batch = reader.documents(keys[part])
        texts |= {row: batch.text(i, 0, BEGINNING * (5 if batch.is_text else 1)) for i, row in enumerate(part.tolist())}
    for i, chosen in shown.items():
        names[i] = label([texts[row] for row in chosen.tolist()])
    return names


def _some(leader: int, members: NDArray[np.int64]) -> NDArray[np.int64]:
    """The representative and some others, evenly from the first to the last."""
    others = members[members != leader]
    return np.concatenate([[leader], others[np.unique(np.linspace(0, len(others) - 1, SHOWN - 1).astype(np.int64))]])


def label(texts: list[str]) -> str:
    """What the beginnings of some documents have in common, slots marked; `licence:` before it where it is one; empty for signs and broken letters alone."""
    whole = skeleton(texts)
    if len(WORD.findall(whole)) < WORDS:
        return ""
    short = whole if len(whole) <= LONGEST else whole[: LONGEST - 1] + "…"
    return f"licence: {short}" if is_licence(whole) else short


def is_licence(text: str) -> bool:
    """Whether a skeleton is the text of a licence rather than of a page that names one."""
    words = len(re.findall(r"\w+", text))
    return bool(LICENCE.search(text.replace(SLOT, " "))) and len(OF_LICENCES.findall(text)) >= max(4, 0.08 * words)


@stage(FINDINGS, version=VERSION)
def with_templates(findings: Findings, clusters: Clusters) -> Findings:
    """The findings with one row more per document that follows a template, reported and not garbage; licences are none."""
    kind: Any = clusters.column("kind").cast(pa.string())
    chosen: Any = clusters.filter(pc.equal(kind, pa.scalar("template")))
    names = chosen.column("label").cast(pa.string()).to_pylist()
    chosen = chosen.filter(pa.array([not str(name).startswith("licence: ") for name in names], pa.bool_()))
    n = chosen.num_rows
    rows = FINDINGS.of({
        "doc_key": chosen.column("doc_key"), "detector": ["across"] * n, "measure": ["shared"] * n, "cause": ["template"] * n,
        "primary": np.zeros(n, bool), "garbage": np.zeros(n, bool), "version": np.full(n, VERSION, np.int16), "value": chosen.column("jaccard"),
        "threshold": np.full(n, SHARE, np.float32), "detail": chosen.column("label").cast(pa.string()),
    })  # fmt: skip
    return joined(findings, rows)
