"""What a replay's plan says of steps that were read and never trained on."""

import numpy as np
from forensics.pipelines.plan import _dropped

from forensics.loaders.base import StepFacts


def facts(trained: list[bool]) -> StepFacts:
    n = len(trained)
    return StepFacts(np.zeros(n, np.int16), np.arange(10, 10 + n), np.full(n, 8), np.full(n, -1), np.array(trained))


def test_dropped_steps_of_the_window_are_named() -> None:
    assert _dropped(facts([True, True])) == []
    (some,) = _dropped(facts([True, False, False, True]))
    assert "steps 11 to 12 were read and dropped" in some and "cannot have changed the model" in some
    (whole,) = _dropped(facts([False, False]))
    assert whole.endswith("no step of the window was trained")
