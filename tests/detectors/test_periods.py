"""Runs of short periods as OLMo-core finds them, and stretches of any period, against plain definitions."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.detectors.periods import longest_period_run, period_runs, periodic_runs
from forensics.detectors.repetition import stretches


def olmo(x: np.ndarray, high: int, times: int) -> int:
    """OLMo-core's answer re-derived: rows of `period` columns that equal the row before, lengthened by equal ends of their neighbours; its largest count."""
    best = 0
    for period in range(1, min(high, len(x) // 3) + 1):
        padded = np.append(x, np.full(period - len(x) % period, -1))
        rows = padded.reshape(-1, period)
        equal = rows == np.roll(rows, 1, axis=0)
        whole = equal.all(axis=1)
        r = 0
        while r < len(whole):
            if not whole[r]:
                r += 1
                continue
            first = r
            while whole[r]:
                r += 1
            before = 0
            while before < period and first and equal[first - 1][period - 1 - before]:
                before += 1
            after = 0
            while after < period and equal[r][after]:
                after += 1
            count = (r * period + after - ((first - 1) * period - before)) // period
            best = max(best, count if count >= times else 0)
    return best


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_runs_agree_with_olmo_around_the_limit(data: st.DataObject) -> None:
    draw = data.draw
    noise = draw(st.lists(st.integers(0, draw(st.sampled_from([1, 3, 1000]))), max_size=200))
    unit = draw(st.lists(st.integers(0, 9), min_size=1, max_size=15))
    repeats, cut, at = draw(st.integers(29, 35)), draw(st.integers(0, 14)), draw(st.integers(0, len(noise)))
    x = np.array(noise[:at] + unit * repeats + unit[: cut % len(unit)] + noise[at:], np.int64)
    times, period, start, stop = longest_period_run(x.astype(np.uint32), 1, min(13, len(x) // 3), 32)
    assert times == olmo(x, 13, 32)
    if times:
        assert np.array_equal(x[start + period : stop], x[start : stop - period]) and (stop - start) // period == times


def test_runs_do_not_cross_documents() -> None:
    x = np.full(60, 7, np.uint32)
    assert period_runs(x, np.array([0, 30, 60, 60]), 1, 13, 32)[:, 0].tolist() == [0, 0, 0]
    assert period_runs(x, np.array([0, 60, 60]), 1, 13, 32)[:, 0].tolist() == [60, 0]


def plain(x: bytes, period: int) -> int:
    """Longest stretch of this period."""
    best = run = 0
    for j in range(period, len(x)):
        run = run + 1 if x[j] == x[j - period] else 0
        best = max(best, run + period if run else 0)
    return best


@given(st.binary(min_size=1, max_size=40), st.integers(5, 12), st.binary(max_size=60), st.binary(max_size=60))
@settings(max_examples=150, deadline=None)
def test_stretches_of_any_period_are_found(unit: bytes, copies: int, before: bytes, after: bytes) -> None:
    x = before + unit * copies + after
    found = stretches(np.frombuffer(x, np.uint8), 8, 60, 5)
    for start, stop, period in found.tolist():
        assert x[start + period : stop] == x[start : stop - period] and stop - start >= max(60, 5 * period)
    if len(unit) * copies >= 60:
        assert any(stop - start >= len(unit) * copies for start, stop, _ in found.tolist())


def test_a_full_table_of_results_is_no_fault() -> None:
    x = np.frombuffer(b"".join(bytes([c]) * 80 for c in b"abcdefgh"), np.uint8)
    out = np.empty((3, 3), np.int64)
    assert periodic_runs(x, 8, 60, 5, np.full(1 << 10, -1, np.int64), 0, out) == 3
