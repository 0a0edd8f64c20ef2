"""Which tokens are read where all would be too many, against a plain loop, and how well the rest is known from them."""

import numpy as np
import pytest

from forensics.attribution.runs import RUN, reliability, runs_of


def segments(rng, rows: int, width: int):
    """Rows of `width` + 1 tokens cut into segments."""
    row, start, length = [], [], []
    for k in range(rows):
        cuts = np.unique([0, width + 1, *rng.integers(0, width + 1, int(rng.integers(0, 6)))])
        row += [k] * (len(cuts) - 1)
        start += cuts[:-1].tolist()
        length += np.diff(cuts).tolist()
    return np.array(row), np.array(start), np.array(length)


@pytest.mark.parametrize("every", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("width", [64, 100, 1024])
def test_labels_are_read_in_runs_that_move_from_row_to_row(width, every) -> None:
    row, start, length = segments(np.random.default_rng(width + every), 30, width)
    runs = runs_of(row, start, length, every)
    want, got = set(), []
    for k in range(30):
        want |= {(k, label) for label in range(width) if every == 1 or (label // RUN + k) % every == 0}
    for s, a, b, opens in zip(runs.segment, runs.start, runs.stop, runs.opens):
        assert 0 <= a < b <= length[s]
        got += [(int(row[s]), int(start[s] + t) - 1) for t in range(a + opens, b)]
    assert len(got) == len(set(got)) and set(got) == want
    assert (np.diff(runs.segment) >= 0).all()


def test_both_halves_are_read_in_every_row() -> None:
    row, start, length = np.arange(6), np.zeros(6, np.int64), np.full(6, 1025)
    runs = runs_of(row, start, length, 4)
    assert [np.bincount(runs.half[runs.segment == k]).tolist() for k in range(6)] == [[8, 8]] * 6


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_reliability_is_the_share_of_variance_that_is_not_luck(share) -> None:
    rng = np.random.default_rng(0)
    steps, n = np.arange(2000), 2000
    true = rng.standard_normal(n)
    luck = np.sqrt(1 / share - 1)
    one, other = (true + luck * np.sqrt(2) * rng.standard_normal(n) for _ in range(2))
    free = np.ones(n, np.bool_)
    assert reliability(steps, (one + other) / 2, one, other, 10**6, free) == pytest.approx(share, abs=0.07)
    assert reliability(steps, true, one, other, 1, free) == 1
    assert reliability(steps, np.ones(n), np.ones(n), np.ones(n), 9, free) == 0.02
