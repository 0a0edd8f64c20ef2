import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.stores.gather import copy_runs, expand_runs, offsets_of


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 10)), max_size=20), st.sampled_from(["uint16", "int32", "int64"]))
def test_runs_are_copied_where_they_belong(runs, dtype):
    source = np.arange(100, dtype=dtype)
    starts, lengths = (np.array([r[i] for r in runs], np.int64) for i in (0, 1))
    places = offsets_of(lengths)
    target = np.full(int(places[-1]), -1, np.int64)
    copy_runs(source, starts, lengths, target, places[:-1])
    assert target.tolist() == [v for s, n in runs for v in range(s, s + n)]


def test_a_run_outside_of_either_array_is_refused():
    one = np.array([1])
    for starts, lengths, places in (([95], [6], [0]), ([0], [5], [1]), ([-1], [1], [0]), ([0], [-1], [0])):
        with pytest.raises(IndexError):
            copy_runs(np.arange(100), np.array(starts), np.array(lengths), np.zeros(5, int), np.array(places))
    copy_runs(np.arange(100), one[:0], one[:0], np.zeros(0, int), one[:0])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=20))
def test_runs_expand_to_their_members_and_owners(runs):
    values, owner = expand_runs(np.array([r[0] for r in runs], np.int64), np.array([r[1] for r in runs], np.int64))
    assert list(zip(values.tolist(), owner.tolist())) == [(f + i, k) for k, (f, n) in enumerate(runs) for i in range(n)]
