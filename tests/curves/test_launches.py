from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from forensics.curves.launches import agree, launch_of_records, natural, reading_order, restarts


@pytest.mark.parametrize(
    ("steps", "starts"),
    [
        (range(10), []),
        ([*range(10), *range(5, 15)], [10]),  # rollback and on
        ([*range(100, 1001, 100), *range(801, 1501, 100)], [10]),  # the second launch logs at other steps
        ([*range(10), 5], [10]),  # the new launch has only begun
        ([1, 2, 4, 3, 5, 6], []),  # one record came late
        ([1, 2, 5, 3, 4, 6], []),  # two came late
        ([*range(10), 8, *range(10, 20)], []),  # a straggler that was logged before
        ([1, 1, 2, 2, 3, 3], []),  # everything twice
        ([*range(10), *range(5, 15), *range(3, 20)], [10, 20]),
        ([*range(10), *range(5, 8), *range(6, 20)], [10, 13]),  # the second launch died before it caught up
        ([], []),
        ([7], []),
    ],
)
def test_restarts(steps: list[int], starts: list[int]) -> None:
    assert restarts(np.array(list(steps), np.int64)) == starts


def test_a_log_without_any_order_is_one_launch() -> None:
    steps = list(range(40_000))
    random.Random(1).shuffle(steps)
    assert restarts(np.array(steps, np.int64)) == []


def test_other_metrics_of_the_new_launch_logged_before_its_first_loss_belong_to_it() -> None:
    steps = np.array([1, 2, 3, 4, 2, 2, 3, 4], np.int64)
    primary = np.array([0, 1, 2, 3, 5, 6, 7], np.int64)  # record 4 is a learning rate of step 2
    launches, n = launch_of_records(steps, primary, None)
    assert n == 2 and launches.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_evaluations_after_the_last_step_stay_in_their_launch() -> None:
    steps = np.array([1, 2, 3, 3, 2, 3], np.int64)
    launches, _ = launch_of_records(steps, np.array([0, 1, 2, 4, 5], np.int64), None)
    assert launches.tolist() == [0, 0, 0, 0, 1, 1]


def test_files_are_read_in_the_order_of_their_clocks_else_of_the_numbers_in_their_names() -> None:
    files = [Path("log-1.txt"), Path("log-10.txt"), Path("log-2.txt")]
    assert reading_order(files, [None, None, None]) == [0, 2, 1]
    assert reading_order(files, [3.0, 1.0, 2.0]) == [1, 2, 0]
    assert reading_order([files[1], files[0]], [None, None]) == [0, 1]  # not sorted: the user's own order
    assert natural("a10b") > natural("a9c")


def test_agreement_counts_shared_steps_and_equal_values() -> None:
    a, b = np.arange(5), np.arange(3, 8)
    x, y = np.array([1.0, 2, 3, 4, np.nan]), np.array([4.0001, np.nan, 9, 9, 9])
    assert agree(a, x, b, y) == (2, 1.0)
    assert agree(a, x, np.arange(10, 12), np.zeros(2)) == (0, 0.0)
