"""Expected losses: recovered effects, shrinkage, and what cannot be expected."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.losses.expected import expected_loss


def made(seed: int = 0, n: int = 4000) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    source = rng.integers(0, 3, n)
    predicted = rng.integers(8, 300, n).astype(float)
    position = np.where(rng.random(n) < 0.3, 0, 50)
    difficulty = rng.normal(5, 0.5, n)
    level = np.array([4.0, 4.5, 5.0])[source] + 0.2 * (position == 0) + 0.6 * (difficulty - 5)
    loss = level + rng.normal(0, 0.2, n) * np.sqrt(1 + 60 / predicted)
    return loss, predicted, source, position, difficulty, level


def test_source_position_and_difficulty_are_recovered() -> None:
    loss, predicted, source, position, difficulty, level = made()
    got = expected_loss(loss, predicted, source, position, difficulty, np.ones(len(loss), dtype=bool))
    assert np.abs(got.mean - level).mean() < 0.06
    assert got.slope == pytest.approx(0.6, abs=0.05)
    z = (loss - got.mean) / got.sd
    assert 0.8 < z.std() < 1.25


def test_a_source_without_ordinary_segments_takes_the_mean_of_all() -> None:
    loss, predicted, source, position, difficulty, _ = made()
    use = source != 2
    got = expected_loss(loss, predicted, source, position, np.full_like(difficulty, 5.0), use)
    assert got.mean[source == 2].mean() == pytest.approx(np.average(loss[use], weights=predicted[use]), abs=0.15)


def test_too_few_segments_give_no_expectation() -> None:
    loss, predicted, source, position, difficulty, _ = made(n=20)
    use = np.arange(20) < 5
    assert np.isnan(expected_loss(loss, predicted, source, position, difficulty, use).mean).all()


def test_unknown_and_empty_segments_do_not_count() -> None:
    loss, predicted, source, position, difficulty, _ = made()
    worse = loss.copy()
    worse[:100] = np.nan
    predicted[100:110] = 0
    got = expected_loss(worse, predicted, source, position, difficulty, np.ones(len(loss), dtype=bool))
    assert np.isfinite(got.mean).all()
