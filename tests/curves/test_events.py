"""`find_events` and verdicts: incidents, severity, cause, cost, the table."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from forensics.curves.events import event_table, find_events, read_curves
from forensics.curves.settings import Annotation, Optimizer
from forensics.schemas import EVENTS
from tests.curves.make import curves, loss, norm, steps, table

BLOOM_STEPS = np.array([31214, 31215, 31216, 31217, 31218, 31219, 31220, 31221, 31222, 31250])
BLOOM_LOSS = np.array([2.1988, 2.2205, 2.5953, 2.2421, 2.3452, 5.0981, 3.4921, 3.2131, 2.8049, 2.2157])
BLOOM_NORM = np.array([0.242, 0.95, 2.4, 16.0, 145.0, 960.4, 120.0, 60.0, 20.0, 0.267])


def spiked(n: int = 2000) -> np.ndarray:
    y = loss(n)
    y[1200:1208] += 0.6 * np.exp(-np.arange(8) / 2.5)
    return y


def shifted(n: int = 3000, by: float = 0.02) -> np.ndarray:
    y = loss(n)
    y[1500:1540] += 0.06
    y[1540:] += by
    return y


def test_healthy_curves_raise_no_alarm() -> None:
    for seed in range(6):
        reading = read_curves(curves(train_loss=loss(3000, seed=seed), grad_norm=norm(3000, seed), tokens_per_second=np.full(3000, 1e6)))
        assert not [e for e in reading.events if e.level == "alarm"]
        assert reading.expected_false is not None and reading.expected_false < 1.0


def test_heavy_tails_give_outliers_as_notices_and_as_many_as_expected() -> None:
    n = 20000
    y = 1.7 + 6 * (steps(n) + 20.0) ** -0.35 + np.random.default_rng(0).standard_t(4, n) * 0.014
    reading = read_curves(curves(train_loss=y))
    assert not [e for e in reading.events if e.level == "alarm"]
    assert reading.expected_false is not None
    assert 0.3 * reading.loss_events < reading.expected_false < 3 * reading.loss_events


def test_rounded_losses_of_a_late_run_do_not_explode() -> None:
    y = 2.1 + np.random.default_rng(0).normal(0, 0.002, 3000)
    y = (y.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(float)
    reading = read_curves(curves(train_loss=(steps(3000, 90000), y)))
    assert not [e for e in reading.events if e.level == "alarm"]


def test_spike_and_norm_are_one_incident_that_returned() -> None:
    g = norm()
    g[1200] *= 60
    reading = read_curves(curves(train_loss=spiked(), grad_norm=g))
    (v,) = [v for v in reading.verdicts if v.level == "alarm"]
    assert (v.start, v.shape, v.severity, v.cause) == (1201, "spike", "returned", "undetermined")
    assert v.moved == ("grad_norm",) and v.cost == 0.0
    assert v.action is not None and v.action.startswith("do nothing")
    assert v.replay == f"forensics replay forensics.yaml --steps 1201:{v.stop}"


def test_small_level_shift_is_found_and_costs_steps() -> None:
    reading = read_curves(curves(train_loss=shifted()), checkpoints=[1000, 1400])
    (v,) = [v for v in reading.verdicts if v.level == "alarm"]
    assert abs(v.start - 1501) <= 5 and (v.shape, v.severity) == ("level_shift", "level_shift")
    lead = next(e for e in reading.events if e.shape == "level_shift")
    assert lead.residual == pytest.approx(0.02, abs=0.006)
    descent = 6 * 0.35 * 1520.0**-1.35
    assert v.cost == pytest.approx(0.02 / descent, rel=0.4)
    assert v.checkpoint == 1400 and v.rollback_pays is (v.cost > v.stop - 1400)


def test_validation_decides_the_severity() -> None:
    at = steps(60, 50, 50)
    flat = 2.0 + 5 * at**-0.35
    kept = np.where(at >= 1500, flat + 0.05, flat)
    for held_out, want in ((kept, "level_shift"), (flat + np.where((at >= 1500) & (at < 1600), 0.2, 0.0), "returned")):
        y = loss(3000)
        y[1500:1520] += 0.6
        reading = read_curves(curves(train_loss=y, eval_loss=(at, held_out + np.random.default_rng(0).normal(0, 0.002, len(at)))))
        (v,) = [v for v in reading.verdicts if v.metric == "train_loss" and v.level == "alarm"]
        assert v.severity == want


def test_bloom_returned_and_says_so_with_low_confidence() -> None:
    reading = read_curves(curves(train_loss=(BLOOM_STEPS, BLOOM_LOSS), grad_norm=(BLOOM_STEPS, BLOOM_NORM)))
    v = next(v for v in reading.verdicts if v.level == "alarm")
    assert (v.start, v.shape, v.severity, v.confidence) == (31216, "spike", "returned", "low")
    assert any(e.shape == "gap" and e.start == 31223 and e.stop == 31250 for e in reading.events)


def test_malignant_104b_did_not_return() -> None:
    s = np.array([6900, 6910, 6920, 6930, 6940, 7000, 7010, 7220])
    y = np.array([6.3658, 6.5984, 7.3145, 9.1219, 10.2387, 6.4447, 11.4203, 7.1551])
    reading = read_curves(curves(train_loss=(s, y)))
    found = [(v.start, v.severity) for v in reading.verdicts if v.level == "alarm"]
    assert found == [(6920, "diverging"), (7010, "level_shift")]


def test_scale_collapse_ahead_explains_the_spike() -> None:
    scale = np.full(2000, 65536.0)
    scale[1170:] = 65536.0 / 2.0 ** np.minimum(6, 1 + np.arange(830) // 5)
    reading = read_curves(curves(train_loss=spiked(), loss_scale=scale))
    v = next(v for v in reading.verdicts if v.metric == "train_loss")
    assert (v.cause, v.subcause, v.confidence, v.replay) == ("numerics", "fp16_scale_collapse", "high", None)


def test_an_annotation_explains_an_event() -> None:
    reading = read_curves(curves(train_loss=spiked()), annotations=[Annotation("mix", "code up to 30 %", 1200)])
    v = next(v for v in reading.verdicts if v.level == "alarm")
    assert (v.cause, v.subcause, v.replay) == ("composition", "declared_mix", None)


def test_needles_of_the_norm_alone_are_notices() -> None:
    g = norm()
    g[1500] *= 100
    reading = read_curves(curves(train_loss=loss(2000), grad_norm=g))
    assert ("norm_spike", 1501) in [(e.shape, e.start) for e in reading.events]
    assert {e.level for e in reading.events} == {"notice"}


def test_norm_spike_with_a_slow_step_points_to_length() -> None:
    g, speed = norm(), 1e6 * np.exp(np.random.default_rng(0).normal(0, 0.01, 2000))
    g[1500:1530] *= 40
    speed[1500:1530] *= 0.5
    reading = read_curves(curves(grad_norm=g, tokens_per_second=speed))
    assert next(e for e in reading.events if e.shape == "norm_spike" and e.start == 1501).subcause == "length"


def test_every_rule_answers_and_missing_inputs_carry_a_reason() -> None:
    reading = read_curves(curves(train_loss=loss(2000)))
    assert all((a.found is None) == bool(a.reason) for a in reading.answers)
    assert {"slow_rank", "val_gap", "scale_collapse", "norm_spike"} <= {a.rule for a in reading.not_evaluated}


def test_panels_name_gaps_with_reasons() -> None:
    reading = read_curves(curves(train_loss=loss(2000), grad_norm=norm()))
    by_name = {p.name: p for p in reading.panels}
    assert list(by_name) == ["quality", "stability", "performance", "resources"]
    assert by_name["quality"].present == ("train loss",) and "loader queue" in [w for w, _ in by_name["resources"].missing]
    assert all(why for p in reading.panels for _, why in p.missing)


def test_table_has_the_promised_columns_and_does_not_depend_on_row_order() -> None:
    t = table(steps(2000), train_loss=spiked(), grad_norm=norm())
    one = find_events(t, optimizer=Optimizer(betas=(0.9, 0.95)), checkpoints=(1000,))
    two = find_events(t.take(np.random.default_rng(0).permutation(t.num_rows)), optimizer=Optimizer(betas=(0.9, 0.95)), checkpoints=(1000,))
    assert one.schema.names == [c.name for c in EVENTS.columns] and one.equals(two)
    row = next(r for r in one.to_pylist() if r["level"] == "alarm")
    assert row["checkpoint"] == 1000 and row["stop"] > row["start"] and dict(row["evidence"])["hot_records"] >= 4


@pytest.mark.parametrize("value", [np.array([]), np.array([2.0]), np.full(500, np.nan), np.full(500, 2.0), np.array([1.0, np.inf, 2.0])])
def test_degenerate_curves_are_read_without_an_error(value: np.ndarray) -> None:
    reading = read_curves(curves(train_loss=value, grad_norm=value))
    assert event_table([reading]).num_rows == len(reading.events)


def test_runs_in_one_table_are_read_apart() -> None:
    from forensics.schemas import METRICS, Metrics

    both = Metrics(METRICS.concat([table(steps(2000), run="a", train_loss=spiked()), table(steps(2000), run="b", train_loss=loss(2000))]))
    assert {r["run"] for r in find_events(both).to_pylist() if r["level"] == "alarm"} == {"a"}


def test_naming_rules_and_shapes_does_not_load_the_compiler() -> None:
    code = "import sys, forensics.curves.events; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
