"""Rules of the decision, each on measured evidence with one part replaced, and its negative twin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from incidents import judged

from forensics.attribution.composition import Change
from forensics.attribution.decide import decide
from forensics.attribution.evidence import Evidence
from forensics.attribution.numerics import Sign, gradient_norm
from forensics.attribution.odd import Group
from forensics.attribution.scan import Stretch
from forensics.attribution.signals import Series
from forensics.attribution.slabs import Slab

STATE = Sign("numerics", "optimizer_state", 766, None, 767, 1, "gradient over root second moment at 4 of its usual level")


@pytest.fixture(scope="module")
def quiet() -> Evidence:
    """Evidence on a run in which nothing happened."""
    _, got = judged("nothing", 3)
    e: Evidence = got.evidence
    return replace(e, departures={}, signs=(), changes=(), declared=(), slabs=(), wanted=(), faults=())


def test_nothing_is_nothing(quiet: Evidence) -> None:
    assert decide(quiet).primary is None


def test_a_lasting_change_of_the_optimizers_state_is_said_without_an_event(quiet: Evidence) -> None:
    found = decide(replace(quiet, signs=(STATE,)))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.subcause, found.confidence) == ("numerics", "optimizer_state", "low")


@pytest.mark.parametrize("times", [4, 52])
def test_gradients_many_times_their_size_are_said_without_an_event(quiet: Evidence, times: int) -> None:
    norm = quiet.log.get("grad_norm")
    at = quiet.ranges.window.start + 4
    values = np.where(norm.steps == at, times * np.median(norm.values), norm.values)
    found = decide(replace(quiet, signs=tuple(gradient_norm(Series(norm.steps, values), quiet.reach, quiet.rules))))
    if times < 10:
        assert found.primary is None
    else:
        assert found.primary is not None and found.severity.name == "none"
        assert (found.primary.cause, found.primary.subcause, found.primary.start, found.confidence) == ("numerics", "gradient_fault", at, "low")


def test_new_documents_explain_a_changed_state(quiet: Evidence) -> None:
    docs = quiet.line.doc[:4]
    slab = Slab(Group("unusual", "", docs, ()), docs, Stretch(766, 790, 2.0, 0.1, 0.001, 40))
    found = decide(replace(quiet, signs=(STATE,), wanted=(slab,)))
    assert found.primary is None or found.primary.cause != "numerics"


def test_sources_that_move_together_are_one_change_of_the_mix(quiet: Evidence) -> None:
    moved = tuple(Change(name, 766, 830, a, b, 5.5, False) for name, a, b in (("djdoc", 0.2, 0.43), ("pydoc", 0.25, 0.45), ("pycode", 0.55, 0.12)))
    found = decide(replace(quiet, changes=moved))
    assert found.primary is not None and found.primary.cause == "composition"
    assert decide(replace(quiet, changes=moved[:1])).primary is None  # a quarter of the tokens must change hands


def test_a_hint_needs_steps_to_compare_with(quiet: Evidence) -> None:
    alone = replace(quiet, ranges=replace(quiet.ranges, baseline=None))
    assert decide(replace(alone, signs=(STATE,))).primary is None
    clear = decide(replace(alone, signs=(replace(STATE, subcause="lr_jump", strength=3),)))
    assert clear.primary is not None and clear.confidence == "low"


def test_harmless_documents_that_ended_before_a_window_without_event_are_bystanders(quiet: Evidence) -> None:
    docs, start = quiet.line.doc[:4], quiet.ranges.window.start

    def found(a: int, b: int) -> str | None:
        slab = Slab(Group("repetition", "", docs, ()), docs, Stretch(a, b, 8.0, 0.4, 0.001, 40))
        primary = decide(replace(quiet, slabs=(slab,))).primary
        return primary.cause if primary else None

    assert found(start - 20, start) is None
    assert found(start - 10, start + 10) == "data"


@pytest.mark.parametrize(("stop", "noise", "name"), [(830, 0.08, "slow"), (800, 0.08, "returned"), (830, 0.01, "returned")])
def test_a_run_has_not_come_back_while_dirt_flows_and_the_loss_is_too_noisy_to_show_it(quiet: Evidence, stop: int, noise: float, name: str) -> None:
    assert int(quiet.line.steps[-1]) < 830
    docs, steps = quiet.line.doc[:4], np.arange(400, int(quiet.line.steps[-1]), 10)
    start = quiet.ranges.window.start + 4
    bump = np.where((steps >= start) & (steps < start + 30), 0.3, 0.0)
    held_out = Series(steps, 4.0 + noise * np.where(np.arange(len(steps)) % 2, 1, -1) + bump)
    log = replace(quiet.log, series={**{k: v for k, v in quiet.log.series.items() if not k.startswith("eval_loss")}, "eval_loss": held_out})
    slab = Slab(Group("repetition", "", docs, ()), docs, Stretch(start, stop, 12.0, 0.3, 0.001, 40), 9.0, 0.2)
    found = decide(replace(quiet, slabs=(slab,), log=log))
    assert found.primary is not None and (found.primary.cause, found.severity.name) == ("data", name)
    assert any("still read" in x for x in found.primary.contra) == (name == "slow")
