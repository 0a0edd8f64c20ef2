"""Two runs: equal order, other order, orders that part, peaks of both and of one."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.curves.compare import compare, explain
from forensics.curves.events import read_curves
from tests.curves.make import curves, steps

N = 3000
TREND = 1.7 + 6 * (steps(N) + 20.0) ** -0.35
R = np.random.default_rng(5)
BATCH = R.normal(0, 0.03, N)


def run(name: str, batch: np.ndarray, seed: int, offset: float = 0.0, **peaks: float) -> object:
    y = TREND + offset + batch + np.random.default_rng(seed).normal(0, 0.003, N)
    for at, height in peaks.items():
        y[int(at[1:])] += height
    return curves(name, train_loss=y)


def test_equal_order_correlates_although_the_level_differs() -> None:
    c = compare(run("a", BATCH, 1), run("b", BATCH, 2, offset=0.3))
    assert not isinstance(c, str)
    assert c.r > 0.97 and [s.agree for s in c.stretches] == [True] and c.gain > 4
    assert "same batches in the same order" in c.verdict


def test_another_order_does_not() -> None:
    c = compare(run("a", BATCH, 1), run("b", np.random.default_rng(9).normal(0, 0.03, N), 2))
    assert not isinstance(c, str) and abs(c.r) < 5 * c.error and "different batches" in c.verdict


def test_the_step_where_orders_part_is_found() -> None:
    other = np.concatenate([BATCH[:1800], np.random.default_rng(9).normal(0, 0.03, N - 1800)])
    c = compare(run("a", BATCH, 1), run("b", other, 2))
    assert not isinstance(c, str)
    assert [s.agree for s in c.stretches] == [True, False]
    assert c.stretches[0].stop == pytest.approx(1801, abs=10)


def test_a_numbering_off_by_one_is_seen() -> None:
    a, b = run("a", BATCH, 1), run("b", BATCH, 2)
    moved = curves("b", train_loss=(steps(N) - 1, b.get("train_loss").value))
    c = compare(a, moved)
    assert not isinstance(c, str) and c.lag == -1 and c.r > 0.97


def test_common_peaks_are_the_batch_and_own_ones_the_state() -> None:
    a, b = run("a", BATCH, 1, s1500=1.0, s2000=1.0), run("b", BATCH, 2, s1500=0.9)
    c = compare(a, b)
    assert not isinstance(c, str) and c.common == [1501] and c.only_a == [2001] and c.only_b == []
    reading = read_curves(a)
    explain(reading.events, c)
    by_start = {e.start: (e.cause, e.subcause) for e in reading.events if e.shape == "outlier"}
    assert by_start[1501] == ("interaction", "hard_batch") and by_start[2001] == ("undetermined", "own_state")


def test_runs_without_common_steps_or_loss_say_so() -> None:
    a = run("a", BATCH, 1)
    assert "common steps" in str(compare(a, curves("b", train_loss=(steps(100, 90000), np.ones(100)))))
    assert "no train_loss" in str(compare(a, curves("b", grad_norm=np.ones(100))))
