"""The loss curve's proof on curves whose truth is known: right, shifted, shuffled, right in part, logged as means."""

import numpy as np
import pytest

from forensics.attribution.answer import curve_line
from forensics.attribution.signals import Series
from forensics.attribution.verify import Correlation, compare, rank


def curve(seed: int, n: int = 400, *, noise: float = 1.0, every: int = 1, averaged: bool = True, slow: float = 0.0):
    """Difficulty of n steps from 1000 on, and a falling loss that follows it; noise is relative to the difficulty's own spread."""
    rng = np.random.default_rng(seed)
    drift = np.cumsum(rng.normal(0, slow, n)) if slow else np.zeros(n)
    difficulty = 5 + 0.05 * rng.standard_normal(n) + drift
    steps = np.arange(1000, 1000 + n)
    loss = 2 + 3 * (steps - 900.0) ** -0.3 + (difficulty - 5) + 0.05 * noise * rng.standard_normal(n)
    if every > 1:
        kept = np.arange(every - 1, n, every)
        values = np.array([loss[k - every + 1 : k + 1].mean() if averaged else loss[k] for k in kept])
        return steps, difficulty, Series(steps[kept], values)
    return steps, difficulty, Series(steps, loss)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("options", [{}, {"noise": 1.5}, {"slow": 0.02}, {"n": 150, "noise": 0.7}], ids=str)
def test_the_right_order_is_proven(seed, options) -> None:
    found = compare(*curve(seed, **options))
    assert found.answer == "proven" and found.split is None and found.whole.lag == 0


@pytest.mark.parametrize("k", [-5, -3, -1, 1, 3, 5])
def test_a_shifted_order_names_the_shift(k) -> None:
    steps, difficulty, loss = curve(k + 20)
    found = compare(steps - k, difficulty, loss)
    assert (found.answer, found.whole.lag) == ("off_by_k", k)


def test_no_shuffled_order_is_ever_proven() -> None:
    answers = []
    for seed in range(60):
        steps, difficulty, loss = curve(seed, slow=0.02 if seed % 2 else 0.0)
        answers.append(compare(steps, np.random.default_rng(seed).permutation(difficulty), loss).answer)
    assert "proven" not in answers and "off_by_k" not in answers
    assert answers.count("contradicted") >= 50


@pytest.mark.parametrize("averaged", [True, False])
@pytest.mark.parametrize("every", [2, 5])
def test_means_and_single_values_over_several_steps_are_told_apart(every, averaged) -> None:
    found = compare(*curve(3, 300 * every, every=every, averaged=averaged, noise=0.7))
    assert found.answer == "proven"
    assert (found.whole.every, found.whole.averaged) == (every, averaged)


def test_losses_rounded_to_two_decimals_still_prove() -> None:
    steps, difficulty, loss = curve(8)
    assert compare(steps, difficulty, Series(loss.steps, np.round(loss.values, 2))).answer == "proven"


def test_the_step_from_which_the_order_no_longer_holds() -> None:
    steps, difficulty, loss = curve(4, 600)
    other = np.random.default_rng(0).permutation(difficulty)
    found = compare(steps, np.where(steps < 1350, difficulty, other), loss)
    assert found.split is not None and abs(found.split - 1350) <= 25
    assert found.before is not None and found.after is not None
    assert (found.before.answer, found.after.answer, found.answer) == ("proven", "contradicted", "contradicted")


def test_a_later_part_that_is_shifted_is_found() -> None:
    steps, difficulty, loss = curve(5, 600)
    moved = np.concatenate([difficulty[:300], difficulty[302:], difficulty[:2]])
    found = compare(steps, moved, loss)
    assert found.after is not None and (found.after.answer, found.after.lag) == ("off_by_k", 2)
    assert found.answer == "contradicted"


def test_few_steps_decide_nothing() -> None:
    steps, difficulty, loss = curve(6, 30)
    assert compare(steps, difficulty, loss).answer == "inconclusive"
    assert compare(steps, difficulty, Series(np.zeros(0, np.int64), np.zeros(0))).answer == "inconclusive"


def test_steps_of_an_event_are_left_out() -> None:
    steps, difficulty, loss = curve(7)
    values = loss.values.copy()
    values[100:180] += 3
    free = ~((steps >= 1098) & (steps < 1200))
    found = compare(steps, difficulty, Series(loss.steps, values), free)
    assert found.answer == "proven" and found.whole.points <= int(free.sum())


def test_missing_stretches_of_steps_are_allowed() -> None:
    steps, difficulty, loss = curve(9, 900)
    keep = (steps - 1000) % 200 < 96
    assert compare(steps[keep], difficulty[keep], loss).answer == "proven"


def test_candidates_by_r_and_whether_the_first_is_clear() -> None:
    def one(r: float, answer: str = "proven") -> Correlation:
        return Correlation(answer, 0, {0: r}, 0.05, 400, 1, True, 1, 400)

    assert rank({"a": one(0.1, "contradicted"), "b": one(0.7)}) == (["b", "a"], True)
    assert rank({"a": one(0.68), "b": one(0.7)}) == (["b", "a"], False)
    assert rank({"a": one(0.1, "inconclusive")}) == (["a"], False)


def test_losses_that_are_all_alike_are_said_to_be() -> None:
    steps, difficulty, loss = curve(0)
    found = compare(steps, difficulty, Series(loss.steps, np.full(len(loss.steps), 2.5)))
    assert found.answer == "inconclusive" and "nan" not in curve_line(found) and "all alike" in curve_line(found)
