"""One skeleton in many documents: found and shown once, apart from copies, licences and common phrases; the same for any split."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forensics.clustering.cluster import ClusterSettings, near_clusters
from forensics.clustering.exact import content_hashes
from forensics.clustering.links import likeness
from forensics.clustering.minhash import sign
from forensics.clustering.skeletons import HELD, MOST, ONE_IN, one_in, sampled_runs, skeletons
from forensics.clustering.templates import SLOT, is_licence, shared_runs, template_clusters, with_templates
from forensics.schemas import CLUSTERS, DOCUMENTS, FINDINGS, SKELETONS, Clusters, Documents, Findings
from forensics.stores.batch import DocumentBatch
from forensics.stores.vocab import Vocabulary

RATES = (
    "The page provides the exchange rate of {n} {a} to {b}, sale and conversion rate. Moreover, we added the list of the most popular "
    "conversions for visualization and the history table with exchange rate diagram for {n} {a} to {b} from {n} days. "
    "How much {a} are in one {b}? Try our simple calculator below, it shows today's rate. "
)
HOTELS = (
    "Looking for a cheap room in {a}? Compare {n} offers for {a} and {b} on our site and save up to {n} percent on your next booking, free of charge. "
    "Guests who stayed in {b} rated the breakfast {n} of ten and praised the friendly staff near the station of {a}. "
)
LICENCE = (
    "Copyright {n} {a} {b}. Permission is hereby granted, free of charge, to any person obtaining a copy of this software, to deal in the Software without "
    "restriction, subject to the following conditions: the above copyright notice of {a} and this permission notice of {b} shall be included in all copies. "
    "The software is provided as is, without warranty of any kind, express or implied, and {a} {b} shall not be liable for any claim or damages of {n}. "
)
NAMES = ["dirham", "yen", "krone", "peso", "rupee", "dinar", "franc", "zloty", "real", "rand"]
WORDS = ["river", "mill", "swan", "bridge", "miller", "week", "rain", "train", "signal", "window", "green", "coat", "paper", "clock", "sheds", "fox"]


def filled(skeleton: str, n: int, seed: int) -> list[str]:
    r = random.Random(seed)
    return [skeleton.format(n=r.randrange(10**6), a=" ".join(r.sample(NAMES, 2)), b=" ".join(r.sample(NAMES, 2))) for _ in range(n)]


def prose(n: int, seed: int) -> list[str]:
    r = random.Random(seed)
    return [" ".join(r.choices(WORDS, k=r.randrange(60, 200))) for _ in range(n)]


class Kept:
    """A batch as a reader."""

    fingerprint = "kept"

    def __init__(self, batch: DocumentBatch) -> None:
        self.batch = batch

    def documents(self, keys: np.ndarray) -> DocumentBatch:
        rows = np.searchsorted(self.batch.doc_key, keys).tolist()
        return DocumentBatch.of_documents([self.batch.tokens_of(i) for i in rows], keys, self.batch.vocabulary)


def table_of(batch: DocumentBatch) -> Documents:
    n = len(batch)
    return Documents(
        DOCUMENTS.of({
            "doc_key": batch.doc_key,
            "corpus_id": np.zeros(n, np.int32),
            "doc": batch.doc_key,
            "source": ["web"] * n,
            "tokens": batch.lengths,
            "content": content_hashes(batch),
        })
    )


def clustered(batch: DocumentBatch, parts: list[Any] | None = None) -> pa.Table:
    documents = table_of(batch)
    return template_clusters(parts or [skeletons(batch)], documents, near_clusters(sign(batch), documents, settings=SETTINGS), Kept(batch))



SETTINGS = ClusterSettings()


def members(table: pa.Table) -> list[tuple[str, list[int]]]:
    out: dict[int, tuple[str, list[int]]] = {}
    for row in table.to_pylist():
        out.setdefault(row["cluster"], (row["label"], []))[1].append(row["doc_key"])
    return list(out.values())


def test_two_templates_among_prose_each_once_with_its_slots() -> None:
    batch = DocumentBatch.from_texts(filled(RATES, 20, 1) + prose(30, 2) + filled(HOTELS, 12, 3))
    found = clustered(batch)
    assert [m for _, m in members(found)] == [list(range(20)), list(range(50, 62))]
    (rates, _), (hotels, _) = members(found)
    assert f"The page provides the exchange rate of {SLOT} to {SLOT}, sale and conversion rate." in rates and not any(n in rates for n in NAMES)
    assert f"Looking for a cheap room in {SLOT}? Compare {SLOT} offers for {SLOT}" in hotels
    assert found.schema.equals(CLUSTERS.schema)
    best = set(found.column("representative").to_pylist())
    assert len(best) == 2 and all(r["jaccard"] == 1.0 for r in found.to_pylist() if r["doc_key"] in best)
    assert min(found.column("jaccard").to_pylist()) >= 0.4


@pytest.mark.parametrize("cuts", [(0, 7, 8, 62), (0, 1, 60, 62)])
def test_any_split_gives_the_same(cuts: tuple[int, ...]) -> None:
    batch = DocumentBatch.from_texts(filled(RATES, 20, 1) + prose(30, 2) + filled(HOTELS, 12, 3))
    parts = [skeletons(batch.part(a, b)) for a, b in zip(cuts, cuts[1:])]
    assert clustered(batch, parts).equals(clustered(batch))


def test_copies_count_once_and_belong_where_their_original_does() -> None:
    one = filled(RATES, 1, 5)[0]
    assert clustered(DocumentBatch.from_texts([one] * 30)).num_rows == 0
    near = DocumentBatch.from_texts([one + f" And {i} more words here." for i in range(30)])
    assert clustered(near).num_rows == 0
    batch = DocumentBatch.from_texts(filled(RATES, 12, 1) + prose(9, 2) + filled(RATES, 1, 1))
    assert [m for _, m in members(clustered(batch))] == [[*range(12), 21]]


def test_phrases_that_everybody_uses_are_no_template() -> None:
    """Every document is made of phrases that dozens of others have, but no two of the same ones."""
    r = random.Random(8)
    phrases = [" ".join(r.choices(WORDS, k=9)) for _ in range(300)]
    batch = DocumentBatch.from_texts([". ".join(r.sample(phrases, 12)) for _ in range(400)])
    rows, _, _, total, _ = shared_runs([skeletons(batch)], batch.doc_key, np.ones(400, bool))
    assert np.mean(np.bincount(rows, minlength=400) / total) > 0.4
    assert clustered(batch).num_rows == 0


def test_a_frame_around_other_text_is_no_template() -> None:
    frame = filled(RATES, 1, 5)[0]
    assert clustered(DocumentBatch.from_texts([frame + text * 3 for text in prose(40, 9)])).num_rows == 0


def test_signs_and_broken_letters_alone_are_no_skeleton() -> None:
    r = random.Random(3)
    lines = [" ".join(r.choices(["Ð", "Ñ", "Â", "Ã"], k=20)) for _ in range(8)]
    batch = DocumentBatch.from_texts([" ".join(f"{line} {' '.join(r.choices(WORDS, k=7))}" for line in lines) for _ in range(20)])
    rows, _, _, _, _ = shared_runs([skeletons(batch)], batch.doc_key, np.ones(20, bool))
    assert len(set(rows.tolist())) > 0 and clustered(batch).num_rows == 0


def test_licences_are_a_cluster_and_no_finding() -> None:
    batch = DocumentBatch.from_texts(filled(LICENCE, 10, 4) + filled(RATES, 10, 5))
    found = clustered(batch)
    names = [name for name, _ in members(found)]
    assert names[0].startswith("licence: ") and not names[1].startswith("licence: ")
    flagged = with_templates(Findings(FINDINGS.empty()), Clusters(found))
    assert flagged.column("doc_key").to_pylist() == list(range(10, 20))
    assert set(flagged.column("detail").to_pylist()) == {names[1]} and not any(flagged.column("garbage").to_pylist())
    assert all(flagged.column("primary").to_pylist())
    assert not is_licence("All rooms are licensed under the tourism act and free of charge for guests who book early in the season")


def test_ids_and_text_agree() -> None:
    """The same pages as ids of a vocabulary of words."""
    texts = filled(RATES, 14, 1) + prose(30, 2)
    pieces = sorted({p for t in texts for p in _pieces(t)})
    lengths = [len(p.encode()) for p in pieces]
    starts, none = np.concatenate([[0], np.cumsum(lengths)]), np.zeros(len(pieces), bool)
    vocabulary = Vocabulary(np.frombuffer("".join(pieces).encode(), np.uint8), starts, none, none, "lossy", False, "pieces", "bpe")
    at = {p: i for i, p in enumerate(pieces)}
    ids = [np.array([at[p] for p in _pieces(t)], np.uint32) for t in texts]
    offsets = np.concatenate([[0], np.cumsum([len(i) for i in ids])])
    batch = DocumentBatch.of_tokens(np.concatenate(ids), offsets, None, vocabulary)
    ((name, found),) = members(clustered(batch))
    assert found == list(range(14)) and "The page provides the exchange rate of" in name
    beyond = DocumentBatch.of_tokens(np.concatenate(ids) + 10_000, offsets, None, vocabulary)
    assert skeletons(beyond).num_rows == 0
    assert skeletons(DocumentBatch.of_tokens(np.concatenate(ids), offsets)).num_rows == 0


def _pieces(text: str) -> list[str]:
    return re.findall(r" ?\w+|\W", text)


def plain(words: list[int], width: int = 4) -> set[tuple[int, ...]]:
    """Runs of words, numbers in a row once, none of mostly numbers."""
    units = [w for i, w in enumerate(words) if not (w == 1 and i and words[i - 1] == 1)]
    runs = {tuple(units[i : i + width]) for i in range(len(units) - width + 1)}
    return {r for r in runs if 2 * sum(u == 1 for u in r) <= width}


@pytest.mark.parametrize("seed", range(4))
def test_the_sample_is_a_fair_one_of_the_runs(seed: int) -> None:
    r = np.random.default_rng(seed)
    docs = [r.integers(1, 9, n) for n in (0, 3, 4, 40, 200)]
    flat, offsets = np.concatenate(docs).astype(np.uint32), np.concatenate([[0], np.cumsum([len(d) for d in docs])])
    owner, runs = sampled_runs(flat, offsets, np.zeros(0, np.uint32), 4)
    known: dict[tuple[int, ...], bool] = {}
    for d, words in enumerate(docs):
        mine = runs[owner == d]
        assert np.all(np.diff(mine.astype(object)) > 0) and np.all(mine % ONE_IN == 0)
        wanted = plain(words.tolist())
        assert len(mine) <= len(wanted)
        for run in wanted:  # one run is kept in all documents of one rate or in none
            hashes = sampled_runs(np.array(run, np.uint32), np.array([0, 4]), np.zeros(0, np.uint32), 4)[1]
            assert known.setdefault(run, len(hashes) > 0) == (len(hashes) > 0)
            if len(words) < ONE_IN * MOST:
                assert (len(hashes) > 0) == bool(np.isin(hashes, mine).any())
    share = np.mean(list(known.values()))
    assert 0.1 < share < 0.4


def test_long_documents_keep_a_part_of_what_short_ones_would() -> None:
    r = np.random.default_rng(0)
    words = r.integers(2, 1 << 31, 20_000).astype(np.uint32)
    long = _sample(words)
    assert len(long) <= HELD and abs(len(long) - 20_000 / one_in(20_000)) < 60
    short = _sample(words[:200])
    coarse = short[short % np.uint64(one_in(20_000)) == 0]
    assert len(short) > 20 and np.isin(coarse, long).all()
    codes = np.arange(len(long))
    power = (long & (~long + np.uint64(1))).astype(np.int64)
    total, rate = np.array([len(long), len(long)]), np.array([one_in(20_000)] * 2)
    both = np.concatenate([codes, codes]), np.array([0, len(long), 2 * len(long)])
    assert likeness(*both, power, total, rate, 0, 1, 6) == 1.0


def _sample(words: np.ndarray) -> np.ndarray:
    return sampled_runs(words, np.array([0, len(words)]), np.zeros(0, np.uint32), 4)[1]


def test_nothing_comes_of_nothing() -> None:
    empty = DocumentBatch.from_texts([])
    assert skeletons(empty).schema.equals(SKELETONS.schema) and clustered(empty).num_rows == 0
    assert clustered(DocumentBatch.from_texts(["", "a", "\n"])).num_rows == 0
    assert with_templates(Findings(FINDINGS.empty()), Clusters(CLUSTERS.empty())).num_rows == 0
