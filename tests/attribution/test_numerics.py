"""Every sign of a fault: where it is, where it is not, and without its inputs."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.attribution.inputs import Rules
from forensics.attribution.numerics import Sign, schedule, signs
from forensics.attribution.signals import Series, Signals
from forensics.steps import StepRange

STEPS = np.arange(1, 701)
REACH = StepRange(560, 640)
OPTIMIZER = {"name": "adamw", "lr": 0.003, "betas": [0.9, 0.95], "clip": 1.0, "warmup": 100, "decay_steps": 5000, "schedule": "cosine to 10%"}


def cosine(t: np.ndarray) -> np.ndarray:
    return 0.003 * np.where(t < 100, t / 100, 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * np.clip((t - 100) / 4900, 0, 1))))


def run(**series: np.ndarray) -> tuple[list[Sign], list[tuple[str, str]]]:
    named = {k.replace("__", "/"): Series(STEPS, v) for k, v in series.items()}
    return signs(Signals(named, {}), OPTIMIZER, REACH, Rules())


def quiet() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    norm = np.exp(rng.normal(0, 0.1, 700))
    return {
        "learning_rate": np.round(cosine(STEPS), 8),
        "grad_norm": norm,
        "clip_ratio": np.minimum(1, 1 / norm),
        "loss_scale": np.full(700, 65536.0),
        "train_loss": rng.normal(4, 0.1, 700),
        "update_rms__embedding": np.exp(rng.normal(0.8, 0.6, 700) + (rng.random(700) < 0.05) * rng.exponential(1.5, 700)),
        "skipped_steps": np.zeros(700),
    }


def test_a_quiet_run_has_no_signs() -> None:
    assert run(**quiet()) == ([], [])


@pytest.mark.parametrize(
    ("what", "subcause", "start"),
    [
        ("jump", "lr_jump", 600),
        ("reset", "schedule_reset", 600),
        ("rewarm", "schedule_reset", 600),
        ("clip", "clip_inactive", 600),
        ("crush", "clip_changed", 600),
        ("scale", "fp16_scale_collapse", 600),
        ("zero", "vanishing_gradients", 600),
        ("state", "optimizer_state", 600),
        ("one", "gradient_fault", 600),
        ("nan", "not_finite", 600),
        ("skip", "skipped_updates", 600),
    ],
)
def test_a_fault_is_found_where_it_begins(what: str, subcause: str, start: int) -> None:
    s = quiet()
    on = STEPS >= 600
    if what == "jump":
        s["learning_rate"] = np.where((STEPS >= 600) & (STEPS < 612), 8, 1) * s["learning_rate"]
    elif what == "reset":
        s["learning_rate"] = np.where(on, cosine(np.maximum(STEPS - 450, 1)), s["learning_rate"])
    elif what == "rewarm":
        s["learning_rate"] = np.where(on, 0.003 * np.minimum((STEPS - 599) / 200, 1), s["learning_rate"])
    elif what == "clip":
        s["clip_ratio"] = np.where(on, 1.0, s["clip_ratio"])
    elif what == "crush":
        s["clip_ratio"] = np.where(on, np.minimum(1, 0.3 / s["grad_norm"]), s["clip_ratio"])
    elif what == "scale":
        s["loss_scale"] = np.where(on, 65536.0 * 0.5 ** np.minimum(np.maximum(STEPS - 599, 0), 16), 65536.0)
    elif what == "zero":
        s["grad_norm"] = np.where((STEPS >= 600) & (STEPS % 3 == 0), 0.0, s["grad_norm"])
    elif what == "state":
        s["update_rms__embedding"] = s["update_rms__embedding"] * np.where(on, 0.15, 1)
    elif what == "one":
        s["update_rms__embedding"] = s["update_rms__embedding"] * np.where(STEPS == 600, 1e6, np.where(on, 0.05, 1))
    elif what == "nan":
        s["train_loss"] = np.where((STEPS >= 600) & (STEPS < 603), np.nan, s["train_loss"])
    elif what == "skip":
        s["skipped_steps"] = np.where(on & (STEPS < 610), 1.0, 0.0)
    found, _ = run(**s)
    mine = [x for x in found if x.subcause == subcause]
    assert mine, [x.subcause for x in found]
    assert -2 <= mine[0].start - start <= (8 if what == "clip" else 2)  # a gradient must pass the bound to show it


def test_faults_outside_the_steps_in_question_are_left_alone() -> None:
    s = quiet()
    s["learning_rate"] = np.where((STEPS >= 300) & (STEPS < 312), 8, 1) * s["learning_rate"]
    s["train_loss"] = np.where(STEPS == 200, np.nan, s["train_loss"])
    assert run(**s)[0] == []


def test_warm_up_and_its_end_are_no_jump() -> None:
    found, _ = signs(Signals({"learning_rate": Series(STEPS, cosine(STEPS))}, {}), {}, StepRange(60, 140), Rules())
    assert [x for x in found if "lr" in x.subcause or "schedule" in x.subcause] == []


def test_what_was_not_logged_is_said() -> None:
    found, missing = signs(Signals({}, {}), OPTIMIZER, REACH, Rules())
    assert found == []
    assert {w for w, _ in missing} == {"learning rate against its schedule", "fp16 loss scale", "optimizer state", "gradient norm"}


@pytest.mark.parametrize("text", ["cosine to 10%", "linear to 0", "constant", "inverse sqrt"])
def test_declared_schedules_are_recognised(text: str) -> None:
    t = STEPS - 1
    shape = {
        "cosine to 10%": 0.1 + 0.45 * (1 + np.cos(np.pi * np.clip((t - 100) / 900, 0, 1))),
        "linear to 0": 1 - np.clip((t - 100) / 900, 0, 1),
        "constant": np.ones(700),
        "inverse sqrt": np.sqrt(100 / np.maximum(t, 100)),
    }[text]
    rate = 0.01 * np.where(t < 100, t / 100, shape)
    got = schedule({"lr": 0.01, "warmup": 100, "decay_steps": 1000, "schedule": text}, STEPS, rate)
    assert got is not None
    np.testing.assert_allclose(got[1:], rate[1:], rtol=0.03)


def test_a_schedule_that_does_not_fit_is_not_used() -> None:
    assert schedule(OPTIMIZER, STEPS, np.full(700, 0.5)) is None
    assert schedule({}, STEPS, np.ones(700)) is None
