import pytest

from forensics.errors import RunError, UsageError
from forensics.loaders.base import LOADERS, Span, blocks_of, pieces, ran_twice
from forensics.steps import StepRange

# 34 steps; back to 24, on to 42; back to 40, on to 54 and planned to 72
SPANS = (Span(0, 1, 35, 35), Span(1, 25, 43, 43), Span(2, 41, 55, 73))


def parts(start, stop, launch=None):
    return [(n, r.start, r.stop) for n, r in pieces(SPANS, StepRange(start, stop), launch)]


def test_a_step_run_twice_belongs_to_the_later_launch():
    assert parts(1, 60) == [(0, 1, 25), (1, 25, 41), (2, 41, 60)]
    assert parts(30, 31) == [(1, 30, 31)]
    assert parts(24, 26) == [(0, 24, 25), (1, 25, 26)]


def test_a_launch_may_be_asked_for_its_own_steps():
    assert parts(30, 35, 0) == [(0, 30, 35)]
    with pytest.raises(RunError, match="launch 0 ran steps 1 to 34"):
        parts(30, 36, 0)
    with pytest.raises(UsageError, match="3 launches"):
        parts(30, 31, 3)


def test_only_the_last_launch_has_steps_to_come():
    assert parts(54, 73) == [(2, 54, 73)]
    with pytest.raises(RunError, match="no launch ran step 73"):
        parts(54, 74)
    with pytest.raises(RunError, match="no launch ran step 0"):
        parts(0, 2)


def test_a_gap_between_launches_is_named():
    with pytest.raises(RunError, match="no launch ran step 11"):
        pieces((Span(0, 1, 11, 11), Span(1, 21, 31, 31)), StepRange(5, 25))


def test_steps_run_twice_are_listed_with_their_launches():
    assert [(r.start, r.stop, who) for r, who in ran_twice(SPANS, StepRange(20, 60))] == [(25, 35, (0, 1)), (41, 43, (1, 2))]
    assert ran_twice(SPANS, StepRange(1, 20)) == []


def test_blocks_keep_tables_in_bounds():
    assert [len(b) for b in blocks_of(StepRange(0, 10), 1 << 14)] == [4, 4, 2]
    assert [len(b) for b in blocks_of(StepRange(0, 3), 1 << 20)] == [1, 1, 1]


def test_a_loader_is_found_by_name_and_a_misspelt_one_gets_a_suggestion():
    assert LOADERS.get("megatron").name == "megatron"
    with pytest.raises(UsageError, match="did you mean `megatron`"):
        LOADERS.get("megatrom")
