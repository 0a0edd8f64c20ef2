"""The compiled scan: onset, closing, adoption."""

from __future__ import annotations

import numpy as np

from forensics.curves.scan import ADOPTED, CLOSED, OPEN
from tests.curves.make import context, loss


def rows(y: np.ndarray) -> np.ndarray:
    scan = context(train_loss=y).scan("train_loss")
    assert scan is not None
    return scan.rows


def test_clean_noise_opens_no_event() -> None:
    assert len(rows(loss(5000))) == 0


def test_onset_is_the_first_shifted_record() -> None:
    y = loss()
    y[1200:1240] += 0.3
    (row,) = rows(y)
    assert int(row[0]) == 1200 and int(row[3]) == CLOSED and 1238 <= int(row[2]) <= 1275


def test_small_shift_is_found_by_its_drift() -> None:
    y = loss()
    y[1200:1260] += 0.045  # three sd: no record alone
    (row, *_) = rows(y)
    assert abs(int(row[0]) - 1200) <= 4


def test_event_does_not_teach_the_baseline() -> None:
    y = loss()
    y[1200:1300] += 1.0
    y[1340:1350] += 1.0
    onsets = [int(r[0]) for r in rows(y)]
    assert onsets == [1200, 1340]


def test_level_that_stays_is_adopted_and_the_scan_goes_on() -> None:
    y = loss(3000)
    y[1200:] += 0.2
    y[2500:2510] += 1.0
    found = rows(y)
    assert int(found[0][3]) == ADOPTED and int(found[-1][0]) == 2500


def test_event_at_the_end_stays_open() -> None:
    y = loss()
    y[1980:] += 1.0
    assert int(rows(y)[-1][3]) == OPEN


def test_one_step_outlier_is_no_event() -> None:
    y = loss()
    y[1500] += 1.0
    scan = context(train_loss=y).scan("train_loss")
    assert scan is not None and len(scan.rows) == 0 and list(np.flatnonzero(scan.event == -1)) == [1500]


def test_short_curve_is_not_scanned() -> None:
    assert context(train_loss=loss(50)).scan("train_loss") is None
