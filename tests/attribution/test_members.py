"""Who belongs to a group that is proven."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forensics.attribution.members import LEAST, alike, of_label
from forensics.losses.features import Features

ORDINARY, BESIDE, DIRTY = 400, 120, 60


def drawn(seed: int, shift: float = 2.0, features: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features, and which documents are ordinary ones of before, which of the stretch, and which of these are dirty."""
    rng = np.random.default_rng(seed)
    n = ORDINARY + BESIDE + DIRTY
    ordinary, dirty = np.arange(n) < ORDINARY, np.arange(n) >= ORDINARY + BESIDE
    x = rng.normal(size=(n, features))
    x[dirty] += shift
    return x, ordinary, ~ordinary, dirty


@pytest.mark.parametrize("seed", range(5))
def test_documents_too_near_to_stand_out_alone_are_named_and_chance_ones_are_not(seed: int) -> None:
    x, ordinary, among, dirty = drawn(seed)
    members = among & (x.max(axis=1) > 3.5)
    wrong = np.flatnonzero(among & ~dirty)[:6]  # odd in another way
    x[wrong] = 0
    x[wrong, 0] = -5
    members[wrong] = True
    assert (members & dirty).sum() < 0.7 * DIRTY
    found = alike(x, ordinary, members, among, 0.05)
    assert found is not None
    assert (found & dirty).sum() >= 0.95 * DIRTY
    assert (found & ~dirty).sum() <= 0.1 * found.sum()
    assert not found[wrong].any()


@pytest.mark.parametrize("seed", range(5))
def test_no_one_joins_a_group_that_stands_apart_where_all_others_are_ordinary(seed: int) -> None:
    x, ordinary, among, dirty = drawn(seed, shift=4.0)
    found = alike(x, ordinary, dirty, among, 0.05)
    assert found is not None
    assert found[dirty].mean() >= 0.95
    assert (found & ~dirty).sum() <= 6


def test_members_without_anything_in_common_are_no_group() -> None:
    x, ordinary, among, _ = drawn(0, shift=0.0)
    members = among & (np.abs(x).max(axis=1) > 2.5)
    assert members.sum() >= LEAST
    assert alike(x, ordinary, members, among, 0.05) is None


def test_too_few_members_give_no_direction() -> None:
    x, ordinary, among, dirty = drawn(0)
    few = dirty & (np.cumsum(dirty) < LEAST)
    assert alike(x, ordinary, few, among, 0.05) is None


def test_the_rest_of_a_new_label_needs_less_than_others() -> None:
    rng = np.random.default_rng(0)
    n = ORDINARY + BESIDE + DIRTY
    ordinary, mine = np.arange(n) < ORDINARY, np.arange(n) >= ORDINARY + BESIDE
    numbers: dict[str, Any] = dict.fromkeys(Features.__dataclass_fields__, np.zeros(n))
    shared = np.where(mine, np.where(np.arange(n) % 2, 0.95, 0.6), np.minimum(rng.exponential(0.08, n), 0.5))
    f = Features(**{**numbers, "length": np.full(n, 300.0), "shared": shared, "distinct": rng.normal(0.4, 0.05, n)})
    members = mine & (shared > 0.9)
    assert (of_label(f, ordinary, members, mine, 0.05) == mine).all()
    fine = Features(**{**numbers, "length": np.full(n, 300.0), "shared": np.where(members, 0.95, np.minimum(shared, 0.1)), "distinct": f.distinct})
    assert (of_label(fine, ordinary, members, mine, 0.05) == members).all()
