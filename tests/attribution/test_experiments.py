"""Control experiments: the curves of real reruns, what each outcome makes of a verdict, and the plan itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forensics.attribution.decide import Claim, Decision
from forensics.attribution.experiments import Outcome, outcome, overruled, reading
from forensics.attribution.plan import HYPOTHESES, NAMES, TRANSIENT, experiments, predicted
from forensics.attribution.severity import Severity
from forensics.attribution.signals import Series, Signals
from forensics.steps import StepRange

RERUNS = Path(__file__).parent / "data" / "reruns.npz"


def curves(case: str, name: str) -> Signals:
    with np.load(RERUNS) as z:
        get = lambda n: z[f"{case}/{name}/{n}"]  # noqa: E731
        loss = Series(get("step").astype(np.int64), get("loss").astype(np.float64))
        return Signals({"train_loss": loss, "eval_loss": Series(get("val_step").astype(np.int64), get("val").astype(np.float64))}, {})


def judged(case: str, rerun: str) -> Outcome:
    with np.load(RERUNS) as z:
        onset, stop = z[case].tolist()
    same = {"replay": "replay", "run": "replay", "skip_steps": "removal", "mask_docs": "removal"}
    return outcome(same.get(rerun, "x"), curves(case, "run"), curves(case, rerun), onset, stop)


@pytest.mark.parametrize(
    ("case", "rerun", "back"),
    [
        ("o1", "skip_steps", False), ("o2", "skip_steps", False), ("o6", "skip_steps", False), ("o11", "skip_steps", False), ("o11", "clean_data", False),
        ("o2", "mask_docs", False), ("o9", "mask_docs", False), ("o8", "replay", False), ("o4", "replay", False), ("o10", "nominal", False),
        ("o4", "other_data", True), ("o4", "run", True), ("o6", "run", True), ("o11", "run", True),
    ],
)  # fmt: skip
def test_reruns_of_real_trainings_are_read_right(case: str, rerun: str, back: bool) -> None:
    found = judged(case, rerun)
    assert found.back is back
    assert abs(found.ratio - back) < 0.3 and 0 < found.error < 0.11


def test_masking_whole_batches_proves_nothing() -> None:
    found = judged("o1", "mask_docs")  # validation suffered as much as in the dirty run
    assert found.ratio > 0.7 and found.back is None and "masked" in found.why_not


def test_a_log_of_other_steps_and_a_run_without_an_event_do_not_tell() -> None:
    run = curves("o6", "run")
    early = Signals({"train_loss": run.get("train_loss").part(0, 900)}, {})
    found = outcome("replay", run, early, 1013, 1045)
    assert found.back is None and "shares 0 steps" in found.why_not and "1013 to 1044" in found.words
    rng = np.random.default_rng(0)
    flat = Signals({"train_loss": Series(np.arange(400), 3 + rng.normal(0, 0.05, 400))}, {})
    assert "does not stand out" in outcome("replay", flat, flat, 300, 340).why_not


def test_the_log_of_another_run_does_not_tell() -> None:
    run = curves("o6", "run")
    loss = run.get("train_loss")
    early, order = loss.steps < 1013, np.random.default_rng(3).permutation(len(loss.steps))
    found = outcome("replay", run, Signals({"train_loss": Series(loss.steps, loss.values[order])}, {}), 1013, 1045)
    assert found.back is None and "does not follow the run's" in found.why_not
    shaken = loss.values + np.where(early, np.random.default_rng(4).normal(0, 0.3 * loss.values[early].std(), len(early)), 0)
    assert outcome("replay", run, Signals({"train_loss": Series(loss.steps, shaken)}, {}), 1013, 1045).back is True
    found = outcome("lr", run, Signals({"train_loss": Series(loss.steps, np.full(len(loss.steps), 2.5))}, {}), 1013, 1045)
    assert found.back is None and "2.5 at all of its" in found.why_not


def curve(values: np.ndarray) -> Signals:
    return Signals({"train_loss": Series(np.arange(len(values)), values)}, {})


def test_an_event_of_half_the_height_does_not_tell() -> None:
    base = 3 + np.random.default_rng(5).normal(0, 0.05, 400)
    bump = np.where((np.arange(400) >= 300) & (np.arange(400) < 320), 1.0, 0.0)
    found = outcome("lr", curve(base + bump), curve(base + 0.5 * bump), 300, 320)
    assert found.back is None and found.ratio == pytest.approx(0.5, abs=0.05) and "came back at 0.49" in found.why_not


def told(**back: bool | None) -> dict[str, Outcome]:
    return {n: Outcome(n, b, float(b or 0), 0.05) for n, b in back.items()}


@pytest.mark.parametrize(
    ("outcomes", "cause"),
    [
        ({"replay": False}, "hardware"), ({"removal": False, "control": False}, "interaction"), ({"control": False}, "interaction"),
        ({"removal": False, "control": True}, "data"), ({"removal": True}, "numerics"), ({"removal": True, "control": True}, "numerics"),
        ({"fixed_subset": True}, "numerics"), ({"order": False}, "loader"), ({"order": False, "removal": False}, None), ({"replay": True}, None),
        ({"removal": False}, None), ({"removal": None, "control": True}, None), ({"lr": False}, None),
    ],
)  # fmt: skip
def test_what_experiments_show_by_themselves(outcomes: dict[str, bool | None], cause: str | None) -> None:
    found = reading(told(**outcomes))
    assert (found[0] if found else None) == cause


def decision(*claims: tuple[str, str, int]) -> Decision:
    made = [Claim(c, s, 300, 300, 320, n, (f"{c} was seen",)) for c, s, n in claims]
    return Decision(made[0], tuple(made[1:]), Severity("slow", "train_loss"), "medium")


def test_a_second_claim_takes_the_place_of_one_that_is_contradicted() -> None:
    d = decision(("data", "near", 2), ("numerics", "lr_jump", 3))
    got = overruled(d, told(removal=True))
    assert got.primary is not None and (got.primary.cause, got.primary.subcause, got.confidence) == ("numerics", "lr_jump", "high")
    assert got.guilty == () and [c.cause for c in got.secondary] == ["data"]
    alone = overruled(decision(("data", "near", 2)), told(removal=True))
    assert alone.primary is not None and (alone.primary.cause, alone.primary.subcause) == ("numerics", "by_experiment")
    order = overruled(decision(("data", "near", 2), ("loader", "stale_position", 3)), told(removal=True))
    assert order.primary is not None and order.primary.cause == "loader"


def test_a_fault_that_should_come_back_is_told_from_one_that_should_not() -> None:
    blip = decision(("numerics", "state_corruption", 1))
    got = overruled(blip, told(replay=True))
    assert got.primary is not None and got.primary.cause == "undetermined" and "replay" in got.primary.contra[0] and got.confidence == "low"
    assert overruled(decision(("numerics", "lr_jump", 3)), told(replay=True)).primary == decision(("numerics", "lr_jump", 3)).primary
    kept = overruled(decision(("numerics", "lr_jump", 3)), told(replay=False))
    assert kept.primary is not None and kept.primary.cause == "numerics" and "did not repeat the lr jump" in kept.primary.pro[0]
    order = overruled(decision(("loader", "stale_position", 3)), told(replay=False))
    assert order.primary is not None and order.primary.cause == "loader"
    symptom = overruled(decision(("numerics", "state_corruption", 1), ("numerics", "norm_level", 1)), told(replay=True))
    assert symptom.primary is not None and symptom.primary.cause == "undetermined"
    gone = overruled(blip, told(replay=False))
    assert gone.primary is not None and gone.primary.cause == "hardware"
    unsure = overruled(blip, told(removal=False))
    assert unsure.primary is not None and unsure.primary.cause == "undetermined" and unsure.secondary[0].cause == "numerics"
    assert overruled(replace(blip, primary=Claim("undetermined", "", 300, 300, 320, 0)), told(replay=True)).primary.cause == "undetermined"  # type: ignore[union-attr]


def test_the_plan_changes_one_thing_at_a_time() -> None:
    optimizer: dict[str, Any] = {"lr": 3e-4, "clip": 1.0}
    plan = experiments("RUN", 299, StepRange(300, 320), "numerics", 3, StepRange(100, 200), optimizer)
    by_name = {x.name: x for x in plan}
    assert [x.name for x in plan][:3] == ["replay", "lr", "clip"] and "order" not in by_name
    assert all(set(x.predicts) == set(HYPOTHESES) for x in plan)
    assert "300:320" in by_name["replay"].command and "320:340" in by_name["control"].command and "100:108" in by_name["fixed_subset"].command
    assert "0.00015" in by_name["lr"].change and "to 0.5" in by_name["clip"].change
    loader = experiments("replay/run.yaml", None, StepRange(300, 320), "loader", 0)
    assert [x.name for x in loader][:2] == ["replay", "order"] and {x.name for x in loader} == set(NAMES)
    assert all("last checkpoint" in x.change for x in loader)
    assert all(x.command.startswith("forensics dump replay/run.yaml ") for x in loader if "dump" in x.command)


def test_predictions_tell_hypotheses_apart() -> None:
    telling = [n for n in NAMES if {True, False} <= {predicted(n, h) for h in HYPOTHESES}]
    assert set(telling) == {"replay", "removal", "control", "order", "fixed_subset"}
    assert predicted("replay", "numerics", "lr_jump") is True and all(predicted("replay", "numerics", s) is False for s in TRANSIENT)
    assert predicted("removal", "undetermined") is None
