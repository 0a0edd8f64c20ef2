"""Curves that look like an event and are none, and events that hide in such curves."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.curves.event import Event
from forensics.curves.events import read_curves
from forensics.curves.severity import jump_of, usual_jump
from tests.curves.make import curves, loss, steps


def found(y: np.ndarray, every: int = 1, **more: np.ndarray) -> list[Event]:
    return [e for e in read_curves(curves(step=steps(len(y), every, every), train_loss=y, **more)).events if e.metric == "train_loss"]


def alarms(y: np.ndarray, every: int = 1, **more: np.ndarray) -> list[tuple[str, int]]:
    return [(e.shape, e.start) for e in found(y, every, **more) if e.level == "alarm"]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def saturating(n: int = 3000) -> np.ndarray:
    """A fall that is exponential at first: steep, then soon over."""
    s = np.arange(1, n + 1)
    return 2.2 + 8.6 * np.exp(-s / 120.0) + 3.0 * (s + 60.0) ** -0.3 + rng(3).normal(0, 0.02, n)


def test_a_fall_that_slows_down_is_no_event_and_hides_none() -> None:
    y = saturating()
    assert alarms(y) == []
    y[1500:1506] += 0.5
    assert alarms(y) == [("spike", 1501)]


def test_a_plateau_on_a_quiet_curve_is_a_plateau_and_no_level_shift() -> None:
    s = np.arange(10, 15001, 10)
    y = 1.75 + 9 * (s + 150.0) ** -0.42
    y[500:] = y[500]
    assert [shape for shape, _ in alarms(y + rng().normal(0, 0.002, len(y)), 10)] == ["plateau"]


def test_convergence_is_no_plateau() -> None:
    s = np.arange(4000) / 4000
    assert alarms(0.9 + 0.6 * np.exp(-s / 0.15) + rng().normal(0, 0.03, 4000)) == []


@pytest.mark.parametrize("length", [150, 350, 700])
def test_a_long_dip_is_one_dip_and_its_end_no_shift(length: int) -> None:
    y = loss(4000)
    y[1500 : 1500 + length] -= 0.6
    got = found(y)
    assert [(e.shape, e.level, e.severity == "level_shift") for e in got if e.level == "alarm"] == [("dip", "alarm", False)]
    assert abs(got[0].start - 1501) <= 2 and abs((got[0].stop or 0) - 1501 - length) <= 25


def test_the_descent_of_a_decaying_rate_is_no_dip() -> None:
    n = 600
    y, lr = loss(n), np.full(n, 3e-4)
    fall = np.clip((np.arange(n) - 480) / 120, 0, 1)
    assert alarms(y - 0.3 * fall**0.8, learning_rate=lr * (1 - fall)) == []


def decaying(n: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """A loss that falls with a rate that goes to zero over its last fifth, and the rate."""
    part = np.clip((np.arange(n) / n - 0.8) / 0.2, 0, 1)
    return loss(n) - 0.3 * part**0.8, 3e-4 * (1 - part)


@pytest.mark.parametrize("at", [2600, 2980])
def test_a_spike_while_the_rate_decays_is_seen(at: int) -> None:
    y, lr = decaying()
    assert alarms(y, learning_rate=lr) == []
    y[at : at + 8] += 0.5 * np.exp(-np.arange(8) / 4)
    assert [(shape, abs(start - at - 1) <= 1) for shape, start in alarms(y, learning_rate=lr)] == [("spike", True)]


def test_an_abrupt_fall_is_none_of_the_schedule() -> None:
    y, lr = decaying()
    y[2900:] -= 0.3
    assert [e.start for e in found(y, learning_rate=lr) if (e.height or 0.0) < 0 and e.start > 2500 and e.shape in ("dip", "level_shift")] == [2901]


def test_a_step_of_the_rate_makes_a_step_of_the_loss_and_no_dip() -> None:
    y, lr = loss(3000), np.where(np.arange(3000) < 2000, 3e-4, 3e-5)
    y[2000:] -= 0.2 * (1 - np.exp(-np.arange(1000) / 4))
    assert alarms(y, learning_rate=lr) == []


def test_noise_that_wanders_slowly_raises_no_spike() -> None:
    r, n = rng(11), 4000
    slow = np.zeros(n)
    for i in range(1, n):
        slow[i] = 0.98 * slow[i - 1] + 0.2 * r.normal()
    y = 1.7 + 6 * (steps(n) + 20.0) ** -0.35 + 0.02 * (0.6 * slow + 0.8 * r.normal(0, 1, n))
    assert not [a for a in alarms(y) if a[0] == "spike"]
    y[2500:2506] += 0.5
    assert ("spike", 2501) in alarms(y)


def test_a_shift_on_a_flat_curve_does_not_diverge() -> None:
    y = 2.3 + rng().normal(0, 0.01, 1500)
    y[700:] += 0.03
    got = [e for e in found(y) if e.level == "alarm"]
    assert [(e.shape, e.severity) for e in got] == [("level_shift", "level_shift")]


def test_rounded_losses_do_not_explode() -> None:
    for y in (2.31 + rng().normal(0, 0.02, 1500), loss(1500)):
        coarse = (y.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(float)
        got = found(coarse)
        assert not [e for e in got if e.level == "alarm"] and all((e.sigma or 0) < 100 for e in got)


def test_outliers_with_a_period_are_seen_among_those_of_a_heavy_tail() -> None:
    y = loss(10_000, 0.0) + rng().standard_t(3, 10_000) * 0.011
    y[713::714] += 0.4
    (e,) = [e for e in found(y) if e.shape == "periodic"]
    assert abs(e.evidence["period"] - 714) < 1 and np.isfinite(e.sigma or np.nan)


def test_a_curve_that_wanders_jumps_as_usual() -> None:
    r, n = rng(5), 4000
    slow = np.zeros(n)
    for i in range(1, n):
        slow[i] = 0.98 * slow[i - 1] + 0.2 * r.normal()
    quiet, before, after = np.ones(n, dtype=bool), np.arange(1400, 2000), np.arange(2000, 2600)
    still = r.normal(0, 0.02, n)
    usual = [usual_jump(steps(n), 2.0 + v, before, after, quiet) or 0.0 for v in (still, still + 0.02 * slow)]
    assert usual[1] > 2 * usual[0] and usual[0] < 3 * jump_of(steps(n), 2.0 + still, before, after)[1]
