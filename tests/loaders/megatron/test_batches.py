import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.errors import ConfigError, RunError
from forensics.loaders.megatron.batches import BatchSchedule, parse_schedule


def walk(schedule, consumed, n):
    out = [consumed]
    for _ in range(n):
        consumed += schedule.running(consumed)
        out.append(consumed)
    return out


def test_a_ramp_divides_in_floating_point():
    """Exactly at the end of a ramp of 7 increments the quotient is 6.999...: one increment fewer than with whole numbers."""
    schedule = BatchSchedule(20, (6, 2, 58))
    assert [schedule.full(c) for c in (0, 8, 9, 58, 59)] == [6, 6, 8, 18, 20]


def test_a_ramp_ends_after_its_last_sample_not_at_it():
    schedule = BatchSchedule(16, (4, 4, 96))
    assert schedule.full(96) == 16
    assert schedule.full(95) == 12
    assert BatchSchedule(24, (4, 4, 100)).full(100) == 24


@pytest.mark.parametrize("ramp", [(4, 5, 90), (20, 4, 90), (16, 4, 90)])
def test_a_ramp_that_does_not_reach_the_batch_is_refused(ramp):
    with pytest.raises(RunError, match="does not reach"):
        BatchSchedule(16, ramp)


def test_the_last_step_of_a_schedule_overshoots_its_budget():
    """After the threshold 4 samples are left of the budget and a batch is 16: the step is run all the same."""
    assert BatchSchedule(8, steps=((0, 8), (16, 16))).count(20) == 3


schedules = st.one_of(
    st.builds(lambda b: BatchSchedule(b), st.integers(1, 50)),
    st.builds(
        lambda s, i, k, r, u: BatchSchedule(s + i * k, (s, i, r), unit=u),
        st.integers(4, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 300), st.integers(1, 4),
    ),
    st.builds(
        lambda first, more: BatchSchedule(first, steps=((0, first), *sorted(dict(more).items()))),
        st.integers(1, 20), st.lists(st.tuples(st.integers(1, 400), st.integers(1, 40)), max_size=4),
    ),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(schedules, st.integers(0, 200), st.integers(0, 60))
def test_positions_are_those_of_a_walk_step_by_step(schedule, consumed, n):
    assert schedule.positions(consumed, n).tolist() == walk(schedule, consumed, n)


@settings(max_examples=150, deadline=None)
@given(schedules, st.integers(0, 900))
def test_steps_of_a_budget_are_counted_as_the_trainer_does(schedule, samples):
    consumed = count = 0
    if schedule.steps:
        while consumed < samples:
            consumed, count = consumed + schedule.full(consumed), count + 1
    elif schedule.ramp:
        while consumed <= schedule.ramp[2] and consumed <= samples:
            consumed, count = consumed + schedule.full(consumed), count + 1
        if samples > consumed:
            count += (samples - consumed) // schedule.batch
    else:
        count = samples // schedule.batch
    assert schedule.count(samples) == count


def test_a_batch_is_rounded_down_to_the_ranks_but_counted_in_full():
    schedule = BatchSchedule(14, (4, 2, 50), unit=4)
    assert [schedule.running(c) for c in (0, 10, 60)] == [4, 4, 12]
    assert schedule.count(260) == BatchSchedule(14, (4, 2, 50)).count(260)
    with pytest.raises(RunError, match="no full micro batch"):
        BatchSchedule(3, unit=4).positions(0, 1)


def test_a_step_schedule_is_read_as_typed():
    assert parse_schedule("0.0000128B:12, 0:0.004K 6.43k:8,0.02M:0.000016M", 64) == ((0, 4), (100, 8), (200, 12), (312, 16))
    assert parse_schedule("0:8 6460:9", 64) == ((0, 8), (100, 9))


@pytest.mark.parametrize("text", ["500:8", "0:8 10:9", "0:0", "0:8 1000:x", "0-8", "0:8 1e400:9", ""])
def test_a_step_schedule_that_the_trainer_refuses_is_refused(text):
    with pytest.raises(ConfigError):
        parse_schedule(text, 64)


def test_a_long_constant_run_costs_nothing():
    positions = BatchSchedule(1024).positions(2048, 1_000_000)
    assert positions[-1] == 2048 + 1024 * 1_000_000
    assert np.all(np.diff(positions) == 1024)
