from forensics.loaders.base import path_of
from forensics.schemas import LAUNCHES, Launches
from forensics.steps import StepRange


def spans(*ranges: tuple[int, int]) -> Launches:
    n = len(ranges)
    first, stop = zip(*ranges)
    return Launches(LAUNCHES.of({"launch": list(range(n)), "first_step": first, "stop_step": stop, "trainer": ["x"] * n, "origin": ["x"] * n}))


def said(found: list[tuple[int, StepRange]]) -> list[tuple[int, str]]:
    return [(n, str(r)) for n, r in found]


def test_a_rolled_back_launch_is_no_part_of_the_history_of_the_next() -> None:
    history = spans((1, 35), (25, 43), (41, 55))
    assert said(path_of(history, StepRange(1, 60), 2)) == [(0, "1:25"), (1, "25:41"), (2, "41:55")]
    assert said(path_of(history, StepRange(1, 60), 1)) == [(0, "1:25"), (1, "25:43")]
    assert said(path_of(history, StepRange(10, 60), 0)) == [(0, "10:35")]


def test_a_launch_that_went_on_exactly_where_another_ended_follows_it() -> None:
    history = spans((1, 11), (11, 21), (21, 31))
    assert said(path_of(history, StepRange(5, 25), 0)) == [(0, "5:11"), (1, "11:21"), (2, "21:25")]


def test_what_nobody_ran_is_left_out() -> None:
    assert said(path_of(spans((10, 20)), StepRange(1, 500), 0)) == [(0, "10:20")]
    assert said(path_of(spans((10, 20), (30, 40)), StepRange(1, 50), 1)) == [(1, "30:40")]
