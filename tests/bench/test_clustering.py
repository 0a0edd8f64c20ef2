"""Signatures, bands and components against their peers, in CPU time of this process, on the same input with equal results.

Printed with `pytest tests/bench -s`; asserted are the ratios that the design asks for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from forensics.clustering.bands import Bands, candidates, collisions
from forensics.clustering.components import labels, singletons, union, union_pairs
from forensics.clustering.exact import content_hashes
from forensics.clustering.minhash import minhash
from forensics.clustering.verify import jaccard
from forensics.stores.batch import DocumentBatch

pytestmark = pytest.mark.bench


def cpu(function: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    """The least CPU seconds of a few runs, and the result."""
    best, result = float("inf"), None
    for _ in range(times):
        start = time.process_time()
        result = function()
        best = min(best, time.process_time() - start)
    return best, result


def documents(n: int, length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Documents in pairs: the second shares about two thirds of its tokens, in runs, with the first."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 100_000, (n, length)).astype(np.uint32)
    rows[1::2, : 2 * length // 3] = rows[0::2, : 2 * length // 3]
    return rows.reshape(-1), np.arange(0, n * length + 1, length).astype(np.int64)


@pytest.mark.parametrize(("length", "least"), [(150, 100), (800, 100), (4000, 100)])
def test_signatures_against_datasketch_bulk(length: int, least: float) -> None:
    """datasketch gets its shingles ready made, as bytes; ours include the hashing of the ids."""
    from datasketch import MinHash

    few = max(8, 40_000 // length) // 2 * 2
    ids, offsets = documents(few, length)
    shingles = [[ids[a + i : a + i + 5].tobytes() for i in range(length - 4)] for a in offsets[:-1]]
    theirs, found = cpu(lambda: list(MinHash.bulk(shingles, num_perm=128)), 1)
    many = few * 50
    big_ids, big_offsets = np.tile(ids, 50), np.arange(0, many * length + 1, length).astype(np.int64)
    minhash(ids, offsets)
    ours, (values, _) = cpu(lambda: minhash(big_ids, big_offsets))
    exact = [len(set(a) & set(b)) / len(set(a) | set(b)) for a, b in zip(shingles[0::2], shingles[1::2])]
    mine = [(values[i] == values[i + 1]).mean() for i in range(0, few, 2)]
    other = [a.jaccard(b) for a, b in zip(found[0::2], found[1::2])]
    assert abs(np.mean(mine) - np.mean(exact)) < 0.03 and abs(np.mean(other) - np.mean(exact)) < 0.05
    ratio = (many * length / ours) / (few * length / theirs)
    print(f"\nsignatures, {length} tokens: {many * length / ours / 1e6:.0f} Mtok/s, datasketch bulk {few * length / theirs / 1e6:.2f}: {ratio:.0f} x")
    assert ratio >= least


@pytest.mark.parametrize(("shingles", "pairs"), [(36, 4000), (600, 1500), (6_000, 400), (60_000, 150)])
def test_error_of_signatures_at_every_length(shingles: int, pairs: int) -> None:
    """Against the exact similarity, by the binomial ideal of 128 independent draws: root mean square error and bias."""
    rng = np.random.default_rng(shingles)
    rows = []
    for _ in range(pairs):
        j = rng.uniform(0.1, 0.95)
        shared = round(2 * shingles * j / (1 + j))
        base = rng.integers(0, 1 << 31, shared + 4)
        rows += [np.concatenate([base, rng.integers(0, 1 << 31, shingles - shared)]).astype(np.uint32) for _ in range(2)]
    ids, offsets = np.concatenate(rows), np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
    a, b = np.arange(0, 2 * pairs, 2), np.arange(1, 2 * pairs, 2)
    values, _ = minhash(ids, offsets)
    got, exact = (values[a] == values[b]).mean(1), jaccard(ids, offsets, a, b)
    error, bias = np.sqrt(np.mean((got - exact) ** 2)), np.mean(got - exact)
    ideal = np.sqrt(np.mean(exact * (1 - exact) / 128))
    print(f"\n{shingles:,} shingles, {pairs:,} pairs: error {error:.4f} = {error / ideal:.2f} x ideal, bias {bias:+.4f}")
    assert error <= 1.1 * ideal and abs(bias) <= 0.01


def test_signatures_against_rensa() -> None:
    """rensa's flat path on hashes of ours, the hashing included for both."""
    rensa = pytest.importorskip("rensa")
    from forensics.clustering.sketch import shingle_hashes

    length, n = 800, 2000
    ids, offsets = documents(n, length)

    def theirs() -> Any:
        lo, hi = np.empty(len(ids) - 4, np.uint32), np.empty(len(ids) - 4, np.uint32)
        shingle_hashes(ids, lo, hi)
        keys = (hi.astype(np.uint64) << np.uint64(32)) | lo
        flat = np.concatenate([keys.reshape(-1), np.zeros(4, np.uint64)]).reshape(n, length)[:, :-4]
        bounds = np.arange(0, n * (length - 4) + 1, length - 4).astype(np.uint64)
        return rensa.RMinHash.digest_matrix_from_flat_token_hashes(np.ascontiguousarray(flat).reshape(-1), bounds, 128, 42)

    minhash(ids, offsets)
    their_time, _ = cpu(theirs)
    our_time, _ = cpu(lambda: minhash(ids, offsets))
    print(f"\nsignatures: {n * length / our_time / 1e6:.0f} Mtok/s, rensa {n * length / their_time / 1e6:.0f}: {their_time / our_time:.2f} x")
    assert their_time / our_time >= 0.5


def planted(n: int, seed: int = 0) -> np.ndarray:
    """Signatures, 15 % of them in clusters of ten that agree in nine places of ten."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 1 << 32, (n, 128), dtype=np.uint32)
    members = n * 15 // 100 // 10 * 10
    leaders = values[np.arange(members) // 10 * 10]
    values[:members] = np.where(rng.random((members, 128)) < 0.9, leaders, values[:members])
    return values


def test_bands_and_components_against_datasketch_lsh() -> None:
    from datasketch import MinHash, MinHashLSH

    bands, few, many = Bands(16, 8), 4000, int(os.environ.get("FORENSICS_BENCH_DOCUMENTS", "200000"))
    small, big = planted(few), planted(many, 1)
    wrapped = [MinHash(num_perm=128, hashvalues=v, scheme="affine32") for v in small]

    def theirs() -> np.ndarray:
        index, parent = MinHashLSH(num_perm=128, params=(16, 8)), singletons(few)
        for i, m in enumerate(wrapped):
            index.insert(i, m)
        for i, m in enumerate(wrapped):
            for j in index.query(m):
                union(parent, i, j)
        return labels(parent)

    def ours(values: np.ndarray) -> np.ndarray:
        parent = singletons(len(values))
        collisions(values, np.arange(len(values)), bands, parent)
        return labels(parent)

    ours(small)
    their_time, expected = cpu(theirs, 1)
    assert np.array_equal(ours(small), expected)
    our_time, _ = cpu(lambda: ours(big))
    ratio = (many / our_time) / (few / their_time)
    print(f"\nbands and components: {many / our_time:,.0f} documents/s, datasketch {few / their_time:,.0f}: {ratio:.0f} x")
    assert ratio >= 30


def test_union_find_against_scipy() -> None:
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 1_000_000, (2, 500_000))

    def ours() -> np.ndarray:
        parent = singletons(1_000_000)
        union_pairs(parent, a, b)
        return labels(parent)

    ours()
    our_time, mine = cpu(ours)
    their_time, (count, _) = cpu(lambda: connected_components(coo_matrix((np.ones(len(a), np.int8), (a, b)), shape=(1_000_000, 1_000_000)), directed=False))
    assert len(np.unique(mine)) == count
    print(f"\nunion-find: {their_time / our_time:.1f} x scipy")
    assert their_time / our_time >= 1


def test_exact_similarity_against_sets_of_python() -> None:
    ids, offsets = documents(200, 800)
    a, b = np.arange(0, 200, 2), np.arange(1, 200, 2)

    def plain() -> list[float]:
        rows = ids.reshape(200, 800).tolist()
        sets = [{tuple(r[i : i + 5]) for i in range(796)} for r in rows]
        return [len(sets[i] & sets[j]) / len(sets[i] | sets[j]) for i, j in zip(a, b)]

    jaccard(ids, offsets, a, b)
    their_time, expected = cpu(plain, 1)
    our_time, got = cpu(lambda: jaccard(ids, offsets, a, b))
    np.testing.assert_allclose(got, expected, atol=1e-6)
    print(f"\nexact similarity: {len(ids) / our_time / 1e6:.0f} Mtok/s, {their_time / our_time:.0f} x sets of tuples")
    assert their_time / our_time >= 20


def test_content_hashes_against_md5() -> None:
    import hashlib

    ids, offsets = documents(5000, 800)
    batch = DocumentBatch.of_tokens(ids, offsets)
    their_time, plain = cpu(lambda: [hashlib.md5(ids[x:y].tobytes()).digest() for x, y in zip(offsets[:-1], offsets[1:])])
    our_time, got = cpu(lambda: content_hashes(batch))
    assert len(set(got.to_pylist())) == len(set(plain))
    print(f"\ncontent hashes: {len(ids) / our_time / 1e6:.0f} Mtok/s, {their_time / our_time:.1f} x md5")
    assert their_time / our_time >= 3


def test_candidates_of_one_huge_bucket() -> None:
    """50,000 documents in one bucket: time grows with its size, not with its square."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1 << 32, (100_000, 128), dtype=np.uint32)
    values[:, :7] = 5
    next(candidates(values[:100], np.arange(100), Bands(18, 7), singletons(100), 0.8))
    half, _ = cpu(lambda: next(candidates(values, np.arange(50_000), Bands(18, 7), singletons(100_000), 0.8)))
    whole, _ = cpu(lambda: next(candidates(values, np.arange(100_000), Bands(18, 7), singletons(100_000), 0.8)))
    print(f"\none bucket of 100,000: {whole:.2f} s, {whole / half:.1f} x half of it")
    assert whole / half < 3
