"""Smoothing, scales, the power law."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.curves.scan import CLIP
from forensics.curves.trend import bins, ema, grid_of, inflation, lag_one, line, power_law, scale_floor
from forensics.robust import mad_scale


def slow_ema(step: np.ndarray, value: np.ndarray, half_life: float) -> np.ndarray:
    """The definition, record by record."""
    out, total, weight, last = [], 0.0, 0.0, step[0] - 1
    for s, v in zip(step, value, strict=True):
        keep = 2.0 ** (-(s - last) / half_life)
        if np.isfinite(v):
            total, weight, last = keep * total + (1 - keep) * v, keep * weight + (1 - keep), s
        out.append(total / weight if weight else np.nan)
    return np.array(out)


def test_ema_is_its_definition() -> None:
    step = np.array([1, 2, 3, 10, 11, 30])
    value = np.array([1.0, 2.0, np.nan, 4.0, 8.0, 0.5])
    np.testing.assert_allclose(ema(step, value, 10.0), slow_ema(step, value, 10.0), rtol=1e-12)


def test_ema_of_a_constant_is_the_constant_from_the_first_record() -> None:
    np.testing.assert_allclose(ema(np.arange(50), np.full(50, 3.0), 100.0), 3.0)


def test_rounded_values_do_not_give_a_scale_of_zero() -> None:
    v = (np.random.default_rng(0).normal(2.1, 0.002, 500).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(float)
    assert mad_scale(v) == 0.0
    assert grid_of(v) == pytest.approx(2.0**-6)
    assert scale_floor(v, 0.001) >= 0.5 * 2.0**-6


def test_continuous_values_have_no_grid() -> None:
    assert grid_of(np.random.default_rng(0).normal(size=500)) == 0.0


def test_line_ignores_outliers() -> None:
    x = np.linspace(0, 1, 200)
    y = 2 - 3 * x + np.random.default_rng(0).normal(0, 0.01, 200)
    y[::20] += 50
    a, b = line(x, y)
    assert a == pytest.approx(2, abs=0.05) and b == pytest.approx(-3, abs=0.1)


def test_lag_one_of_an_autoregression_is_its_coefficient() -> None:
    r, e = np.random.default_rng(0), np.zeros(20000)
    for i in range(1, len(e)):
        e[i] = 0.3 * e[i - 1] + r.normal()
    assert lag_one(e) == pytest.approx(0.3, abs=0.03)
    assert inflation(0.3) == pytest.approx(np.sqrt(1.3 / 0.7))


def test_power_law_finds_its_own_parameters() -> None:
    d = np.arange(100, 100_000, 10).astype(float)
    y = 1.7 + 8 * d**-0.35 + np.random.default_rng(0).normal(0, 0.005, len(d))
    law = power_law(d, y)
    assert not isinstance(law, str) and law.ok
    np.testing.assert_allclose(law.at(np.array([1e3, 1e5])), 1.7 + 8 * np.array([1e3, 1e5]) ** -0.35, atol=0.01)


def test_power_law_refuses_less_than_a_decade_and_too_few_records() -> None:
    assert "decades" in str(power_law(np.linspace(1000, 3000, 500), np.ones(500)))
    assert "too few" in str(power_law(np.arange(1.0, 20.0), np.ones(19)))


def test_bins_leave_flagged_records_out() -> None:
    y = np.zeros(100)
    y[10:13] = 100.0
    use = np.ones(100, dtype=bool)
    use[10:13] = False
    b = bins(np.arange(100.0), y, 10, use)
    assert len(b) == 10 and float(b.y.max()) == 0.0


def test_two_isolated_records_cannot_fill_the_drift_rule() -> None:
    assert 2 * (CLIP - 1.0) < 8.0
