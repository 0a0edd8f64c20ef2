"""Spike score, run lengths, rules of other tools."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.curves.scores import expected_false, kill_loss_spike, noise_of, run_length, six_sigma, spike_score, tail_share


def slow_score(v: np.ndarray, window: int, sigmas: float) -> float:
    """The definition: share of values at least so many sd above the mean of the window before."""
    hits = [v[i] >= v[i - window : i].mean() + sigmas * v[i - window : i].std() for i in range(window, len(v))]
    return float(np.mean(hits))


def test_spike_score_is_its_definition() -> None:
    v = np.random.default_rng(0).normal(2.0, 0.02, 3000)
    v[[1500, 1501, 2400]] += 1.0
    assert spike_score(v) == pytest.approx(slow_score(v, 1000, 7.0))
    assert spike_score(v, 100, 3.0) == pytest.approx(slow_score(v, 100, 3.0))


def test_spike_score_needs_more_than_its_window() -> None:
    assert spike_score(np.ones(1000)) is None


def test_run_length_matches_the_published_values() -> None:
    assert run_length(0.5, 5.0) == pytest.approx(938, rel=0.01)
    assert run_length(0.5, 8.0) == pytest.approx(19100, rel=0.02)


def test_tail_share_follows_the_tail() -> None:
    v = np.random.default_rng(0).standard_t(4, 50000)
    assert tail_share(v, 7.0) == pytest.approx(float((np.abs(np.random.default_rng(1).standard_t(4, 2_000_000)) > 7).mean() / 2), rel=0.6)
    assert tail_share(np.random.default_rng(0).normal(size=50000), 6.0) < 1e-5


def test_expected_false_of_normal_noise_is_small_and_of_heavy_tails_is_not() -> None:
    r = np.random.default_rng(0)
    quiet = np.ones(20000, dtype=bool)
    assert expected_false(r.normal(size=20000), quiet, 1.0, 8.0, 6.0, 0.0) < 0.2
    assert expected_false(r.standard_t(4, 20000) / 0.74 / 1.4826, quiet, 1.0, 8.0, 6.0, 0.0) > 10


def test_peers_see_what_they_are_documented_to_see() -> None:
    v = np.random.default_rng(0).normal(2.0, 0.02, 3000)
    assert kill_loss_spike(v) is None and len(six_sigma(v)) == 0
    v[2000:] *= 2.5
    assert six_sigma(v)[0] == 2000
    assert kill_loss_spike(v) == pytest.approx(2005, abs=3)


def test_noise_of_says_scale_and_tail() -> None:
    assert noise_of(np.random.default_rng(0).normal(2, 0.02, 5000))["scale"] == pytest.approx(0.02, rel=0.05)
    assert noise_of(np.random.default_rng(0).standard_t(3, 5000))["kurtosis"] > 1
