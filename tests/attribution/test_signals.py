"""Series, lines and departures."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from forensics.attribution.severity import judge, validation
from forensics.attribution.signals import Series, departures, robust_line, signals
from forensics.curves.lines import expected_line, fall
from forensics.robust import spread
from forensics.schemas import METRICS


def metrics(rows: list[tuple[int | None, str, int, int | None, float]]) -> pa.Table:
    launch, name, step, rank, value = zip(*rows, strict=True)
    return METRICS.of(
        pa.table(
            {
                "run": ["r"] * len(rows),
                "launch": pa.array(launch, pa.int16()),
                "metric": list(name),
                "step": list(step),
                "rank": pa.array(rank, pa.int32()),
                "value": list(value),
            }
        )
    )


def test_the_later_launch_counts_and_ranks_stay_apart() -> None:
    got = signals(
        metrics(
            [
                (0, "train_loss", 5, None, 1.0),
                (1, "train_loss", 5, None, 2.0),
                (0, "train_loss", 4, None, 3.0),
                (0, "step_time", 5, 1, 0.5),
                (0, "train_loss/a", 5, None, 7.0),
            ]
        )
    )
    assert got.get("train_loss").steps.tolist() == [4, 5] and got.get("train_loss").values.tolist() == [3.0, 2.0]
    assert got.ranks[("step_time", 1)].values.tolist() == [0.5]
    assert list(got.family("train_loss")) == ["a"]
    assert len(got.get("grad_norm")) == 0
    assert np.isnan(got.get("train_loss").at(np.array([3, 5]))).tolist() == [True, False]


def test_spread_does_not_vanish_on_rounded_values() -> None:
    assert spread(np.array([2.0] * 90 + [2.01] * 10)) > 0
    assert spread(np.array([1.0])) == 0.0


def test_a_line_is_not_moved_by_outliers() -> None:
    rng = np.random.default_rng(0)
    steps = np.arange(300)
    y = 4 - 0.002 * steps + rng.normal(0, 0.1, 300)
    y[::20] += 3
    level, slope, sd = robust_line(steps, y, np.ones(300, dtype=bool))
    assert slope == pytest.approx(-0.002, abs=3e-4) and level == pytest.approx(4, abs=0.06) and 0.07 < sd < 0.15


def test_departures_date_a_jump_and_leave_noise_alone() -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(0, 1, 4000)
    assert len(departures(np.arange(4000), z)) <= 1
    z[1000:1030] += 5
    z[2000:2040] -= 3
    found = [d for d in departures(np.arange(4000), z) if d.stop - d.start > 5]
    assert [(d.sign, abs(d.start - s) <= 1) for d, s in zip(found, (1000, 2000), strict=True)] == [(1, True), (-1, True)]


@pytest.mark.parametrize(("shape", "name"), [("none", "none"), ("back", "returned"), ("late", "slow"), ("stays", "level_shift"), ("grows", "diverging")])
def test_severity_follows_what_the_curve_does(shape: str, name: str) -> None:
    rng = np.random.default_rng(2)
    steps = np.arange(1, 601)
    y = 3 + 2 * steps**-0.3 + rng.normal(0, 0.02, 600)
    after = np.maximum(steps - 300, 0)
    y += {
        "none": 0 * after,
        "back": 0.8 * (after > 0) * np.exp(-after / 12),
        "late": 0.8 * (after > 0) * np.exp(-after / 60),
        "stays": 0.3 * (after > 0),
        "grows": 0.004 * after,
    }[shape]
    assert judge(steps, y, 301, "x", floor=0.03, slow_after=60).name == name


def test_severity_is_unknown_without_a_past() -> None:
    assert judge(np.arange(300, 400), np.ones(100), 301, "x", floor=0.03, slow_after=60).name == "unknown"


def test_few_held_out_losses_take_their_fall_from_the_training_loss() -> None:
    rng = np.random.default_rng(3)
    steps, onset = np.arange(1, 800), 600

    def curve(at: np.ndarray) -> np.ndarray:
        return 2.5 + 30.0 * at**-0.45

    train = Series(steps, curve(steps) + rng.normal(0, 0.3, len(steps)))
    known = fall(train.steps, train.values, onset)
    assert known is not None and fall(steps[:50], train.values[:50], 50) is None
    held_out = np.arange(520, 800, 10)
    far, errors = [], []
    for _ in range(40):
        values = curve(held_out) + rng.normal(0, 0.03, len(held_out))
        use = held_out < onset
        plain, with_fall = (expected_line(held_out, values, use, held_out[~use], k) for k in (None, known))
        far.append([abs(x[0][-1] - curve(held_out)[-1]) for x in (plain, with_fall)])
        errors.append([x[1][-1] for x in (plain, with_fall)])
    assert np.mean(far, axis=0)[1] < 0.7 * np.mean(far, axis=0)[0]
    assert np.mean(errors, axis=0)[1] < np.mean(errors, axis=0)[0] and np.mean(np.array(far)[:, 1] < 2 * np.array(errors)[:, 1]) > 0.9


def test_a_curve_that_rose_before_is_not_extrapolated_upwards() -> None:
    steps = np.arange(100, 200)
    expected, _, _ = expected_line(steps, 3 + 0.01 * (steps - 100), np.ones(100, dtype=bool), np.array([400]))
    assert expected[0] < 4.0


def test_validation_is_the_mean_of_complete_evaluations() -> None:
    got = validation(signals(metrics([(0, "eval_loss/a", 10, None, 1.0), (0, "eval_loss/b", 10, None, 3.0), (0, "eval_loss/a", 20, None, 1.0)])))
    assert got.steps.tolist() == [10] and got.values.tolist() == [2.0]
    assert validation(signals(metrics([(0, "eval_loss", 10, None, 1.0)]))).values.tolist() == [1.0]
