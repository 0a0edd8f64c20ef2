"""Severity by the held-out loss: what is left, how long it took, and what such a line cannot tell."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.curves.event import Context
from forensics.curves.events import read_curves
from forensics.curves.gap import HeldOut, val_shift
from forensics.curves.series import Curves, Series
from forensics.curves.settings import settings

STEP = np.arange(1, 1201)
EVALUATED = STEP[9::10]


def curves(harm: np.ndarray, at: np.ndarray = EVALUATED, wander: float = 0.0, noise: float = 0.1) -> Curves:
    """A training loss with a spike of 5 nats at steps 900 to 904, and a held-out one with `harm` [1200] on top."""
    rng = np.random.default_rng(1)
    trend = 6.0 - 0.4 * np.log(STEP)
    train = trend + rng.normal(0, noise, len(STEP))
    train[899:904] += 5.0
    held_out = trend + harm + wander * np.sin(STEP / 60.0) + rng.normal(0, 0.01, len(STEP))
    return Curves("run", {"train_loss": Series("train_loss", STEP, train), "eval_loss": Series("eval_loss", at, held_out[at - 1])})


def decaying(height: float, tau: float, rest: float = 0.0) -> np.ndarray:
    return np.where(STEP >= 900, rest + height * np.exp(-(STEP - 900.0) / tau), 0.0)


@pytest.mark.parametrize(
    ("height", "tau", "rest", "word"), [(2.0, 10, 0, "returned"), (1.0, 50, 0, "slow"), (1.0, 15, 0.15, "slow"), (1.0, 15, 0.6, "level_shift")]
)
def test_the_held_out_loss_has_the_first_word(height: float, tau: float, rest: float, word: str) -> None:
    spike = next(e for e in read_curves(curves(decaying(height, tau, rest))).events if e.metric == "train_loss" and e.shape in ("spike", "level_shift"))
    assert (spike.start, spike.severity) == (900, word)


def test_few_evaluations_still_tell_how_long_it_lasted_at_least() -> None:
    found = val_shift(Context(curves(decaying(1.0, 52.0), EVALUATED[4::5]), settings()), 900)
    assert found is not None and found.out() == 100 and found.severity(60) == "slow"


def test_a_line_that_usually_strays_does_not_tell_a_small_rest() -> None:
    still, astray = (val_shift(Context(curves(decaying(2.0, 10.0), wander=w), settings()), 900) for w in (0.0, 0.1))
    assert still is not None and astray is not None
    assert astray.usual[-1] > 3 * still.usual[-1] and still.told(60) and not astray.told(60)


def test_what_begins_later_is_not_its_own() -> None:
    harm = decaying(2.0, 10.0) + np.where(STEP >= 1000, 3.0, 0.0)
    ctx = Context(curves(harm), settings())
    alone, both = val_shift(ctx, 900, 1000), val_shift(ctx, 900)
    assert alone is not None and both is not None
    assert alone.severity(60) == "returned" and both.severity(60) == "level_shift"
    assert val_shift(ctx, 900, 920) is None and val_shift(ctx, 30) is None


def test_what_the_evaluations_cannot_resolve_has_no_word() -> None:
    flat, step = np.zeros(8), np.arange(8) * 10
    assert HeldOut(step, flat + 0.01, flat + 0.01, flat, 0.01).severity(60) is None
    assert HeldOut(step, np.array([0.1, *[0.03] * 7]), flat + 0.03, flat, 0.01).severity(60) is None


def test_one_event_where_a_dip_follows_a_peak() -> None:
    """Dirt that is learnt within steps: up, far below the trend, and up again when clean data come back."""
    rng = np.random.default_rng(2)
    train = 2.0 + 12.0 * STEP**-0.3 + rng.normal(0, 0.15, len(STEP))
    train[899:908] += [6.0, 5.0, 2.5, 1.8, 1.4, 0.7, 0.3, 0.2, -0.4]
    train[908:932] -= 1.3
    train[932:945] += np.linspace(0.9, 0.1, 13)
    events = [
        e for e in read_curves(Curves("run", {"train_loss": Series("train_loss", STEP, train)})).events if e.metric == "train_loss" and e.level == "alarm"
    ]
    assert {e.incident for e in events} == {events[0].incident} and {e.start for e in events} == {900}
    assert {e.shape for e in events} == {"spike", "dip"} and {e.severity for e in events} == {"returned"}
