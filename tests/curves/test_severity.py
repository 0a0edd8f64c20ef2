"""Intervals of what an event leaves: they hold the truth as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.curves.severity import jump_interval, jump_of


def noisy(kind: str, n: int, r: np.random.Generator) -> np.ndarray:
    e = r.standard_t(4, n) / np.sqrt(2) if kind == "t4" else r.normal(0, 1, n)
    if kind == "ar":
        for i in range(1, n):
            e[i] = 0.3 * e[i - 1] + np.sqrt(1 - 0.09) * e[i]
    return 0.015 * e


@pytest.mark.parametrize("kind", ["normal", "t4", "ar"])
def test_a_shift_lies_in_its_interval(kind: str) -> None:
    held, step = 0, np.arange(1000, 1500)
    for seed in range(60):
        y = 1.7 + 6 * (step + 20.0) ** -0.35 + noisy(kind, len(step), np.random.default_rng(seed))
        y[300:] += 0.02
        _, low, high = jump_interval(step, y, np.arange(300), np.arange(300, 500))
        held += low < 0.02 < high
        assert high - low < 0.03
    assert held >= 53


def test_short_sides_fall_back_on_the_standard_error() -> None:
    step = np.arange(100, 150)
    y = np.random.default_rng(0).normal(2, 0.01, 50)
    jump, low, high = jump_interval(step, y, np.arange(30), np.arange(30, 50))
    same, error = jump_of(step, y, np.arange(30), np.arange(30, 50))
    assert jump == same and high - low == pytest.approx(3.92 * error)
