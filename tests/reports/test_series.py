"""Curves for charts: the right records, thinned without losing extremes, a trend that the baseline supports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from forensics.reports.charts import quiet
from forensics.reports.series import Curve, chosen, ema, read_curve, thin, trend_band
from forensics.schemas import METRICS


def metrics(rows: list[tuple[str, int, int, int | None, float]]) -> pa.Table:
    name, launch, step, rank, value = zip(*rows, strict=True)
    columns: dict[str, Any] = {
        "run": ["r"] * len(rows),
        "metric": list(name),
        "launch": list(launch),
        "step": list(step),
        "rank": list(rank),
        "value": list(value),
    }
    return METRICS.of(columns)


def test_the_last_launch_counts_and_ranks_are_left_out() -> None:
    table = metrics([("a", 0, 1, None, 1.0), ("a", 0, 2, None, 2.0), ("a", 1, 2, None, 3.0), ("a", 0, 3, 0, 9.0), ("b", 0, 1, None, 7.0)])
    found = read_curve(table, "a")
    assert found is not None
    assert found.step.tolist() == [1, 2]
    assert found.value.tolist() == [1.0, 3.0]
    assert read_curve(table, "c") is None
    assert read_curve(table, "a", None, 5, 9) is None
    assert read_curve(table, "a", "other") is None


def test_a_metric_of_ranks_alone_is_their_mean() -> None:
    found = read_curve(metrics([("t", 0, 1, 0, 1.0), ("t", 0, 1, 1, 3.0)]), "t")
    assert found is not None
    assert found.value.tolist() == [2.0]


def test_names_are_found_in_every_chunk_without_decoding() -> None:
    one, two = (METRICS.of(metrics([(n, 0, 1, None, 1.0)])) for n in "ab")
    joined = pa.concat_tables([one, two, one])["metric"]
    assert chosen(joined, "a").tolist() == [True, False, True]
    assert chosen(joined, "z").tolist() == [False, False, False]


def test_thinning_keeps_extremes_gaps_and_asked_stretches() -> None:
    value = np.sin(np.arange(50_000) / 500)
    value[31_234], value[777] = 40.0, np.nan
    curve = Curve(np.arange(50_000), value, None, None)
    kept = thin(curve, 1000, [(20_000, 20_050)])
    assert len(kept) < 1200
    assert {0, 777, 31_234, 49_999, *range(20_000, 20_050)} <= set(kept.tolist())
    assert thin(curve.part(np.arange(10))).tolist() == list(range(10))


def test_the_mean_has_its_half_life_and_passes_over_what_is_no_number() -> None:
    step, value = np.arange(200), np.r_[np.zeros(100), np.ones(100)]
    found = ema(step, value, 10.0)
    assert abs(found[109] - 0.5) < 0.01
    value[150] = np.nan
    assert np.isfinite(ema(step, value, 10.0)).all()
    assert np.isnan(ema(step, np.full(200, np.nan))).all()


def test_the_band_holds_the_baseline_and_does_not_tilt_by_noise() -> None:
    rng = np.random.default_rng(0)
    step = np.arange(400)
    band = trend_band(Curve(step, 2 + rng.normal(0, 0.1, 400), None, None), 100, 300)
    assert band is not None
    low, high = band
    assert np.isnan(low[:100]).all()
    np.testing.assert_allclose(high - low, np.where(step >= 100, 0.4, np.nan), rtol=0.25)
    assert low[399] == low[100]
    falling = trend_band(Curve(step, 4 - 0.01 * step + rng.normal(0, 0.01, 400), None, None), 100, 300)
    assert falling is not None
    assert abs((falling[0][399] + falling[1][399]) / 2 - 0.01) < 0.05
    assert trend_band(Curve(step[:105], np.zeros(105), None, None), 100, 300) is None


def test_the_trend_is_learnt_before_the_onset() -> None:
    assert quiet({"baseline": (100, 200)}, {"onset": 150}) == (100, 150)
    assert quiet({"baseline": (100, 200)}, {"onset": 400}) == (100, 200)
    assert quiet({"baseline": (100, 200)}, {"onset": None}) == (100, 200)
    assert quiet({"window": (1, 2)}, {}) is None
