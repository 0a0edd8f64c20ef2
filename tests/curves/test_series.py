"""Curves cut out of the long table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from forensics.curves.series import curves_of, runs_of
from forensics.schemas import METRICS
from tests.curves.make import table


def test_the_later_launch_wins_and_the_overwritten_part_is_kept() -> None:
    step = np.array([1, 2, 3, 4, 3, 4, 5])
    s = curves_of(table(step, np.array([0, 0, 0, 0, 1, 1, 1]), train_loss=np.array([9.0, 8, 7, 6, 70, 60, 50]))).get("train_loss")
    assert s is not None and s.overwritten is not None
    np.testing.assert_array_equal(s.step, [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(s.value, [9, 8, 70, 60, 50])
    np.testing.assert_array_equal(s.overwritten[1], [7, 6])


def test_rows_in_any_order_and_batch_split_give_the_same_curves() -> None:
    step = np.arange(1, 200)
    whole = METRICS.concat([table(step, train_loss=step * 1.0, grad_norm=step * 2.0)])
    mixed = whole.take(pa.array(np.random.default_rng(0).permutation(whole.num_rows)))
    pieces = pa.concat_tables([mixed.slice(i, 37) for i in range(0, mixed.num_rows, 37)])
    for got in (curves_of(mixed), curves_of(pieces)):
        for name in ("train_loss", "grad_norm"):
            want, have = curves_of(whole).get(name), got.get(name)
            assert want is not None and have is not None
            np.testing.assert_array_equal(have.step, want.step)
            np.testing.assert_array_equal(have.value, want.value)


def test_ranks_are_kept_apart_and_the_slowest_stands_for_the_job() -> None:
    t = METRICS.of({"run": ["r"] * 4, "metric": ["step_time"] * 4, "step": [1, 1, 2, 2], "rank": [0, 1, 0, 1], "value": [1.0, 3.0, 2.0, 1.0]})
    c = curves_of(t)
    s = c.get("step_time")
    assert s is not None
    np.testing.assert_array_equal(s.value, [3.0, 2.0])
    assert sorted(c.ranks["step_time"]) == [0, 1]


def test_runs_in_one_table_are_told_apart() -> None:
    both = METRICS.concat([table(np.arange(3), run="b", train_loss=np.ones(3)), table(np.arange(2), run="a", train_loss=np.zeros(2))])
    assert runs_of(both) == ["a", "b"]
    one, two = curves_of(both, "a").get("train_loss"), curves_of(both, "b").get("train_loss")
    assert one is not None and two is not None and (len(one), len(two)) == (2, 3)


def test_a_nan_stays_a_nan() -> None:
    s = curves_of(table(np.arange(3), train_loss=np.array([1.0, np.nan, 2.0]))).get("train_loss")
    assert s is not None and np.isnan(s.value[1]) and len(s.finite()) == 2
