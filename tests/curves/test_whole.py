"""Whole runs: the law, recurring spikes, which kind of problem."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.curves.event import Event
from forensics.curves.events import read_curves
from forensics.curves.settings import Optimizer
from forensics.curves.severity import mann_kendall
from forensics.curves.whole import kind_of_problem, law_of, passes, recovery_kind, recurrent
from tests.curves.make import context, curves, loss, steps


def spike(start: int, level: str = "alarm", shape: str = "spike", metric: str = "train_loss") -> Event:
    return Event(metric, shape, level, start, start + 5, severity="returned", cause="undetermined", evidence={"t90": 30.0})


def test_law_of_a_constant_rate_is_fitted_and_predicts() -> None:
    n = 20000
    y = 1.7 + 8 * steps(n).astype(float) ** -0.35 + np.random.default_rng(0).normal(0, 0.005, n)
    law = law_of(context(train_loss=y, learning_rate=np.full(n, 1e-3)))
    assert not isinstance(law, str) and law.ok
    assert float(law.at(np.array([1e4]))[0]) == pytest.approx(1.7 + 8 * 1e4**-0.35, abs=0.01)


def test_law_is_refused_under_a_decaying_rate_and_on_short_spans() -> None:
    assert "learning rate changes" in str(law_of(context(train_loss=loss(3000), learning_rate=np.linspace(1e-3, 1e-4, 3000))))
    assert "decades" in str(law_of(context(train_loss=(steps(2000, 50000), loss(2000)))))
    assert "not logged" in str(law_of(context(grad_norm=np.ones(100))))


def test_recovery_is_named_against_the_optimizers_memories() -> None:
    ctx = context({}, {"optimizer": Optimizer(betas=(0.9, 0.95))}, train_loss=loss())
    e = spike(1000)
    assert recovery_kind(ctx, e, [e]) == "fast"
    e.evidence["t90"] = 80.0
    assert recovery_kind(ctx, e, [e]) == "relearning"
    assert recovery_kind(ctx, e, [e, spike(1002, "notice", "norm_spike", "grad_norm")]) == "second_moment"
    e.severity = "level_shift"
    assert recovery_kind(ctx, e, [e]) is None


def test_five_unexplained_spikes_recur_and_four_do_not() -> None:
    ctx = context(train_loss=loss())
    many = [spike(1000 * i) for i in range(1, 6)]
    assert "recurrent_unattributed" in str(recurrent(ctx, many))
    assert recurrent(ctx, many[:4]) is None
    assert recurrent(ctx, [spike(20_000 * i) for i in range(1, 9)]) is None


def test_kind_of_problem() -> None:
    slow = spike(1003, shape="throughput_drop", metric="tokens_per_second")
    assert kind_of_problem([]).startswith("nothing")
    assert kind_of_problem([spike(1, "notice")]).startswith("nothing")
    assert kind_of_problem([slow]).startswith("an engineering problem")
    assert kind_of_problem([spike(1000)]).startswith("a convergence problem")
    assert "begin together" in kind_of_problem([spike(1000), slow])


def test_passes_over_the_data_explain_a_plateau() -> None:
    y = loss(3000)
    y[1000:] = y[950:1000].mean() + np.random.default_rng(0).normal(0, 0.015, 2000)
    assert passes(context(train_loss=y)) is None
    reading = read_curves(curves(train_loss=y, epoch=np.linspace(0, 9, 3000)))
    v = next(v for v in reading.verdicts if v.shape == "plateau")
    assert (v.cause, v.subcause) == ("loader", "plateau_repetition")


def test_mann_kendall_of_a_rise_noise_and_ties() -> None:
    r = np.random.default_rng(0)
    assert mann_kendall(np.arange(50.0))[0] == 1.0 and mann_kendall(np.arange(50.0))[1] < 1e-10
    assert mann_kendall(r.normal(size=200))[1] > 0.01
    assert mann_kendall(np.ones(20))[1] == pytest.approx(0.5)
    assert mann_kendall(np.array([1.0, 2.0])) == (0.0, 1.0)
