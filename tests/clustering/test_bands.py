"""Candidates: exactly what datasketch's LSH finds on the same bands, and the stated S-curve."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.clustering.bands import LEADERS, Bands, candidates, choose_bands, collisions
from forensics.clustering.components import find, groups, labels, merge, singletons, union, union_pairs


def planted(n: int, seed: int, families: int = 20, size: int = 6, agreement: float = 0.85) -> np.ndarray:
    """Random signatures of which some families agree in most places."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 1 << 32, (n, 128), dtype=np.uint32)
    for f in range(families):
        rows = slice(f * size, (f + 1) * size)
        keep = rng.random((size, 128)) < agreement
        values[rows] = np.where(keep, values[f * size], values[rows])
    return values


@pytest.mark.parametrize("bands", [Bands(16, 8), Bands(32, 4), Bands(18, 7), Bands(2, 64)])
def test_collisions_are_those_of_datasketch(bands: Bands) -> None:
    from datasketch import MinHash, MinHashLSH

    values = planted(400, 3)
    values[390:] = values[0]
    index = MinHashLSH(num_perm=128, params=(bands.bands, bands.rows))
    hashes = [MinHash(num_perm=128, hashvalues=v, scheme="affine32") for v in values]
    for i, h in enumerate(hashes):
        index.insert(i, h)
    theirs = singletons(len(values))
    for i, h in enumerate(hashes):
        for j in index.query(h):
            union(theirs, i, j)
    ours = singletons(len(values))
    collisions(values, np.arange(len(values)), bands, ours)
    assert labels(ours).tolist() == labels(theirs).tolist()
    assert len(set(labels(ours).tolist())) < len(values) - 9


def test_the_s_curve_is_what_happens() -> None:
    bands, rng = Bands(16, 8), np.random.default_rng(0)
    for similarity in (0.6, 0.75, 0.9):
        a = rng.integers(0, 1 << 32, (3000, 128), dtype=np.uint32)
        b = np.where(rng.random(a.shape) < similarity, a, rng.integers(0, 1 << 32, a.shape, dtype=np.uint32))
        met = np.zeros(3000, bool)
        for band in range(bands.bands):
            cut = slice(band * bands.rows, (band + 1) * bands.rows)
            met |= np.all(a[:, cut] == b[:, cut], axis=1)
        assert abs(met.mean() - bands.probability(similarity)) < 0.03


def test_chosen_bands_meet_the_recall_with_the_longest_rows() -> None:
    chosen = choose_bands(0.8, 0.98)
    assert chosen == Bands(18, 7)
    assert chosen.probability(0.8) >= 0.98 > Bands(16, 8).probability(0.8)
    assert choose_bands(0.001, 0.99) == Bands(128, 1)
    assert "18 bands of 7 rows" in chosen.curve()


def test_false_meetings_of_short_keys_join_nothing() -> None:
    """With 2^22 places for the document, only 42 bits of the key are left; equal bits must not be enough."""
    from forensics.clustering.bands import _join_equal

    values = np.arange(4 * 8, dtype=np.uint32).reshape(4, 8)
    values[3] = values[1]
    packed = np.array([(7 << 2) | i for i in range(4)], np.uint64)
    parent = singletons(4)
    _join_equal(packed, 2, values, np.arange(4), 0, 8, parent)
    assert labels(parent).tolist() == [0, 1, 2, 1]


def test_pairs_of_a_bucket_grow_with_its_size_not_its_square() -> None:
    values = np.tile(np.arange(128, dtype=np.uint32), (500, 1))
    a, b = next(candidates(values, np.arange(500), Bands(16, 8), singletons(500), 0.8))
    assert len(a) == 499
    assert set(b.tolist()) == set(range(1, 500)) or len(set(a.tolist()) | set(b.tolist())) == 500
    unlike = np.random.default_rng(0).integers(0, 1 << 32, (500, 128), dtype=np.uint32)
    unlike[:, :8] = 1
    a, _ = next(candidates(unlike, np.arange(500), Bands(16, 8), singletons(500), 0.8))
    assert len(a) == 0 and LEADERS == 8


def test_components_do_not_depend_on_the_order_of_pairs() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 200, (2, 120))
    expected = None
    for _ in range(5):
        order, flip = rng.permutation(120), rng.random(120) < 0.5
        parent = singletons(200)
        union_pairs(parent, np.where(flip, a, b)[order], np.where(flip, b, a)[order])
        got = labels(parent).tolist()
        assert expected is None or got == expected
        expected = got
    plain = list(range(200))
    for x, y in zip(a.tolist(), b.tolist()):
        low, high = sorted((plain[x], plain[y]))
        plain = [low if p == high else p for p in plain]
    assert expected == plain


def test_labels_solved_apart_merge_to_the_same() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.integers(0, 100, (2, 60))
    whole = singletons(100)
    union_pairs(whole, a, b)
    parts = []
    for part in range(3):
        parent = singletons(100)
        union_pairs(parent, a[part::3], b[part::3])
        parts.append(labels(parent))
    assert merge(parts).tolist() == labels(whole).tolist()
    assert find(whole, 99) == labels(whole)[99]


def test_groups_of_two_and_more() -> None:
    rows, bounds = groups(np.array([0, 1, 0, 3, 1, 1]))
    assert rows.tolist() == [0, 2, 1, 4, 5] and bounds.tolist() == [0, 2, 5]
    rows, bounds = groups(np.empty(0, np.int64))
    assert rows.tolist() == [] and bounds.tolist() == [0]
