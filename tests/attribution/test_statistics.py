"""Scan, enrichment, proof, skip intervals, false discovery control: against plain versions and on nulls."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from forensics.attribution.answer import plain, proof_table
from forensics.attribution.composition import overdispersion
from forensics.attribution.intervals import affordable, best, covering, ranges_of
from forensics.attribution.odd import benjamini_hochberg
from forensics.attribution.proof import HALF, NARROW, residuals
from forensics.attribution.scan import best_stretch, scan
from forensics.attribution.signals import Series
from forensics.attribution.verify import compare


@pytest.mark.parametrize("seed", range(5))
def test_the_best_stretch_is_the_largest_sum(seed: int) -> None:
    a = np.random.default_rng(seed).random(14)
    want = max((a[i:j] - 0.5).sum() for i, j in itertools.combinations(range(15), 2))
    i, j, got = best_stretch(a, 0.5)
    assert got == pytest.approx(want) and (a[i:j] - 0.5).sum() == pytest.approx(want)
    assert best_stretch(np.zeros(5), 0.1) == (0, 0, 0.0)


def test_a_slab_is_found_and_ordinary_shards_are_not() -> None:
    rng = np.random.default_rng(0)
    steps = np.arange(200)
    shards = np.repeat(rng.random(50) < 0.2, 4) * 0.3
    quiet = scan(steps, shards, (120, 200), (0, 120), 2000)
    assert quiet is not None and quiet.p > 0.05
    dirty = shards.copy()
    dirty[140:170] = 0.8
    found = scan(steps, dirty, (120, 200), (0, 120), 2000)
    assert found is not None and found.p < 0.01 and abs(found.start - 140) <= 4 and abs(found.stop - 170) <= 4
    assert scan(steps, np.zeros(200), (120, 200), (0, 120), 2000) is None


def test_q_values_are_monotone_and_control_nulls() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(500)
    q = benjamini_hochberg(p)
    assert (np.diff(q[np.argsort(p)]) >= 0).all() and (q >= p).all()
    assert sum((benjamini_hochberg(rng.random(200)) <= 0.05).any() for _ in range(100)) <= 12


def test_shards_scatter_more_than_independent_draws() -> None:
    rng = np.random.default_rng(0)
    totals = np.full(400, 100.0)
    assert overdispersion(rng.binomial(100, 0.2, 400).astype(float), totals) == pytest.approx(1, abs=0.25)
    assert overdispersion(100.0 * (rng.random(400) < 0.2), totals) > 20


@pytest.mark.parametrize(("lag", "answer"), [(0, "proven"), (3, "off_by_k"), (-2, "off_by_k")])
def test_the_curve_proves_the_order_or_says_how_far_it_is_off(lag: int, answer: str) -> None:
    rng = np.random.default_rng(1)
    steps = np.arange(1000, 1300)
    difficulty = rng.normal(5, 0.1, 300)
    loss = 4 - 0.001 * np.arange(300) + 0.7 * (np.roll(difficulty, lag) - 5) + rng.normal(0, 0.08, 300)
    got = compare(steps, difficulty, Series(steps, loss)).whole
    assert (got.answer, got.lag) == (answer, lag)


def test_another_order_is_contradicted_and_few_steps_say_nothing() -> None:
    rng = np.random.default_rng(2)
    steps = np.arange(600)
    assert compare(steps, rng.normal(5, 0.1, 600), Series(steps, rng.normal(4, 0.1, 600))).answer == "contradicted"
    assert compare(steps[:20], rng.normal(5, 0.1, 20), Series(steps[:20], rng.normal(4, 0.1, 20))).answer == "inconclusive"


def test_means_over_steps_are_proven_from_means_of_difficulty() -> None:
    rng = np.random.default_rng(3)
    steps = np.arange(1, 1201)
    difficulty = rng.normal(5, 0.1, 1200)
    loss = 4 + 0.7 * (difficulty - 5) + rng.normal(0, 0.08, 1200)
    block = steps // 4
    logged = np.array([loss[block == b].mean() for b in np.unique(block)])
    last = np.array([steps[block == b].max() for b in np.unique(block)])
    assert compare(steps, difficulty, Series(last, logged)).answer == "proven"


def test_the_proof_is_a_table_and_a_line() -> None:
    rng = np.random.default_rng(4)
    steps, difficulty = np.arange(160), rng.normal(5, 0.1, 160)
    holding = compare(steps, difficulty, Series(steps + 2, difficulty), np.arange(160) >= 20)
    table = proof_table("x", holding.whole)
    assert table["lag"].to_pylist() == list(range(-6, 7)) and set(table["answer"].to_pylist()) == {"off_by_k"}
    said = plain(holding)
    assert (said["answer"], said["lag"]) == ("off_by_k", 2) and "step t+2" in said["sentence"] and said["steps"] == holding.whole.points
    nothing = plain(compare(steps, difficulty, Series(steps[:0], difficulty[:0])))
    assert nothing["answer"] == "inconclusive" and nothing["r"] is None and nothing["steps"] == 0


@pytest.mark.parametrize("seed", range(4))
def test_residuals_are_those_of_the_plain_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = np.sort(rng.choice(3000, 900, replace=False))
    values = rng.standard_t(2, 900)
    values[rng.random(900) < 0.1] = np.nan
    values[5] = np.inf
    left = {}
    for half in (HALF, NARROW):
        left[half] = np.full(900, np.nan)
        for i in range(900):
            near = (np.abs(steps - steps[i]) <= half) & np.isfinite(values)
            if not np.isfinite(values[i]) or near.sum() < 8:
                continue
            place, value = (steps[near] - steps[i]) / half, values[near]
            weight = np.ones(len(value))
            for _ in range(3):
                fit = np.polyfit(place, value, 2, w=np.sqrt(weight))
                off = np.abs(value - np.polyval(fit, place))
                weight = 1 / np.maximum(1, off / np.maximum(1.5 * 1.4826 * np.sort(off)[(len(off) - 1) // 2], 1e-12))
            left[half][i] = values[i] - fit[2]
    want = left[HALF].copy()
    for i in range(900):
        near = np.abs(steps - steps[i]) <= HALF
        spread = {half: np.sort(off := np.abs(x[near][np.isfinite(x[near])]))[(len(off) - 1) // 2] if np.isfinite(x[near]).any() else np.nan
                  for half, x in left.items()}  # fmt: skip
        if np.isfinite(left[NARROW][i]) and spread[HALF] > 2 * spread[NARROW]:
            want[i] = left[NARROW][i]
    scale = 4 * 1.4826 * np.nanmedian(np.abs(want))
    np.testing.assert_allclose(residuals(steps, values), np.clip(want, -scale, scale), rtol=1e-5, atol=1e-5)
    assert len(residuals(steps[:0], values[:0])) == 0


def test_skip_intervals_take_the_dirty_and_leave_the_clean() -> None:
    odd = np.concatenate([np.zeros(10), np.full(20, 0.9), np.zeros(6), np.full(8, 0.7), np.zeros(10)])
    assert covering(odd, 5, 4, 0.95) == [(10, 30), (36, 44)]
    assert covering(np.zeros(20), 5, 4, 0.95) == []
    assert covering(odd, 1, 4, 0.5) == [(10, 44)] or covering(odd, 1, 4, 0.5) == [(10, 30)]


@pytest.mark.parametrize("seed", range(6))
def test_skip_intervals_cover_what_they_promise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    odd = np.where(rng.random(60) < 0.5, rng.random(60), 0.0)
    found = covering(odd, 5, 4, 0.95)
    inside = sum(odd[a:b].sum() for a, b in found)
    assert inside >= 0.95 * odd.sum() - 1e-9
    assert all(b + 4 <= c for (_, b), (c, _) in zip(found, found[1:], strict=False))


@pytest.mark.parametrize("seed", range(8))
def test_ranges_gain_as_much_as_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gain, n = rng.normal(0, 1, 9), 9
    pieces = [(a, b) for a in range(n) for b in range(a + 1, n + 1)]
    want = 0.0
    for chosen in itertools.chain(itertools.combinations(pieces, 1), itertools.combinations(pieces, 2)):
        if all(b <= c for (_, b), (c, _) in zip(chosen, chosen[1:], strict=False)):
            want = max(want, sum(gain[a:b].sum() - 0.3 for a, b in chosen))
    taken = best(gain, 2, 0.3)
    assert gain[taken].sum() - 0.3 * len(ranges_of(taken, 0)) == pytest.approx(want)


@pytest.mark.parametrize("budget", [0.0, 450.0, 1000.0, 1e9])
@pytest.mark.parametrize("seed", range(4))
def test_a_budget_buys_nearly_as_much_as_the_exact_knapsack(seed: int, budget: float) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(80, 120, 14).astype(float)
    harm = np.where(rng.random(14) < 0.6, rng.random(14) * tokens, 0.0)
    got = [t for a, b in affordable(harm, tokens, 14, budget) for t in range(a, b)]
    assert tokens[got].sum() <= budget
    want = max(harm[list(c)].sum() for r in range(15) for c in itertools.combinations(range(14), r) if tokens[list(c)].sum() <= budget)
    assert harm[got].sum() >= want - harm.max()
    if budget > tokens.sum():
        assert harm[got].sum() == pytest.approx(harm.sum())
