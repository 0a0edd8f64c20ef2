import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.errors import UsageError
from forensics.steps import StepRange, parse_steps, ranges_of


@pytest.mark.parametrize(("text", "start", "stop"), [("41200:41500", 41200, 41500), (" 5 ", 5, 6), ("1_000:2_000", 1000, 2000)])
def test_ranges_parse(text: str, start: int, stop: int) -> None:
    assert parse_steps(text) == StepRange(start, stop)


@pytest.mark.parametrize("text", ["", "a", "5:", "5:5", "7:3", "-3:4", "1:2:3", "1.5:2", "99999999999999999999999:1"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_steps(text)


@given(st.sets(st.integers(0, 60)))
def test_ranges_hold_exactly_the_steps(steps: set[int]) -> None:
    ranges = ranges_of(steps)
    assert [s for r in ranges for s in r] == sorted(steps)
    assert all(a.stop < b.start for a, b in zip(ranges, ranges[1:], strict=False))


@given(st.integers(0, 100), st.integers(1, 100), st.integers(1, 20))
def test_blocks_partition_a_range(start: int, length: int, size: int) -> None:
    whole = StepRange(start, start + length)
    assert [s for b in whole.blocks(size) for s in b] == list(whole)


def test_overlap() -> None:
    assert StepRange(1, 5).overlap(StepRange(4, 9)) == StepRange(4, 5)
    assert StepRange(1, 5).overlap(StepRange(5, 9)) is None
