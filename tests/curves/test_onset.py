"""The onset of departures that are no jump, with an interval that holds the truth as often as it says."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.curves.event import Scan
from forensics.curves.events import read_curves
from forensics.curves.onset import departure
from tests.curves.make import context, curves, loss


def leaving(seed: int, power: float, height: float = -8.0, length: int = 30, n: int = 1200, at: int = 800) -> np.ndarray:
    """A loss that leaves its trend at a record and is so many sd off after a while."""
    y = loss(n, seed=seed)
    y[at : at + length] += 0.015 * height * (np.arange(1, length + 1) / length) ** power
    return y


def scanned(y: np.ndarray) -> Scan:
    scan = context(train_loss=y).scan("train_loss")
    assert scan is not None
    return scan


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_the_interval_holds_the_onset_and_the_median_lies_nearer_than_the_drift_rule(power: float) -> None:
    held, late, before = [], [], []
    for seed in range(40):
        scan = scanned(leaving(seed, power))
        onset = next((int(row[0]) for row in scan.rows if 780 < row[0] < 840), None)
        found = None if onset is None else departure(scan, onset, 800 + int(np.argmin(scan.z[800:840])))
        if onset is not None and found is not None:
            held.append(found.low <= 800 <= found.high)
            late.append(abs(found.best - 800))
            before.append(abs(onset - 800))
    assert len(held) >= 35 and np.mean(held) >= 0.9
    assert np.mean(late) < (0.9 if power == 1 else 0.5) * np.mean(before)


def test_a_jump_has_no_gradual_onset() -> None:
    y = loss(1200)
    y[800:840] += 0.1
    scan = scanned(y)
    assert departure(scan, int(scan.rows[0][0]), 830) is None
    assert [e.start for e in read_curves(curves(train_loss=y)).events if e.shape in ("spike", "level_shift") and e.start > 700] == [801]


def test_too_few_records_before_it_are_too_few() -> None:
    scan = scanned(leaving(0, 1.0, n=400, at=320))
    assert departure(scan, scan.first + 1, scan.first + 40) is None


def test_the_event_starts_where_the_hinge_does_and_carries_its_interval() -> None:
    y = leaving(3, 1.0, -15.0, 60)
    (dip,) = [e for e in read_curves(curves(train_loss=y)).events if e.shape == "dip"]
    assert dip.evidence["onset_low"] <= 801 <= dip.evidence["onset_high"] and dip.evidence["onset_low"] <= dip.start
