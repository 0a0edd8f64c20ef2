"""Which steps are compared with: other events left out, what stands in where there is no past."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from forensics.attribution.baseline import Ranges, alarms, ordinary_steps, other_events, ranges, without_events
from forensics.attribution.inputs import Rules
from forensics.schemas import EVENTS, Events
from forensics.steps import StepRange

RULES = Rules()


def events(*spans: tuple[str, str, int, int | None]) -> Events:
    n = len(spans)
    columns = {
        "event_id": list(range(n)), "incident": list(range(n)), "metric": [s[0] for s in spans], "shape": ["spike"] * n, "level": [s[1] for s in spans],
        "start": [s[2] for s in spans], "peak": [s[2] for s in spans], "stop": [s[3] for s in spans], "sigma": [9.0] * n, "confidence": ["low"] * n,
        "height": [1.0] * n, "evidence": [[]] * n, "run": ["r"] * n,
    }  # fmt: skip
    known = {c.name for c in EVENTS.columns}
    return Events(EVENTS.of({k: v for k, v in columns.items() if k in known}))


def test_alarms_on_the_loss_that_were_over_are_no_baseline() -> None:
    found = events(("train_loss", "alarm", 100, 110), ("train_loss", "notice", 150, 160), ("grad_norm", "alarm", 170, 180), ("train_loss", "alarm", 300, None))
    assert alarms(found) == [(100, 110), (300, None)] and alarms(None) == []
    place = found.schema.get_field_index("shape")
    nan = Events(found.set_column(place, found.schema.field(place), pa.array(["nonfinite"] * 3 + ["spike"]).cast(found.schema.field(place).type)))
    assert alarms(nan) == alarms(found) and alarms(nan, finite=True) == [(300, None)]
    assert other_events(found, 400) == ((98, 130),) and other_events(found, 105) == () == other_events(None, 400)


def test_what_is_left_out_is_said() -> None:
    steps = np.arange(1, 501)
    roles = ranges(StepRange(400, 440), 1, 500, RULES)
    others = ((198, 230),)
    plain, used = ordinary_steps(steps, roles, RULES), ordinary_steps(steps, roles, RULES, others)
    assert plain.sum() - used.sum() == 32 and not used[(steps >= 198) & (steps < 230)].any()
    (note,) = without_events(roles, steps, used, plain, others).notes
    assert "steps 198 to 229" in note and "left out" in note
    assert without_events(roles, steps, used, plain, ((1, 5),)).notes == ()
    short = Ranges(StepRange(60, 70), None, StepRange(40, 60), None)
    use = ordinary_steps(steps, short, RULES, ((30, 70),))
    assert use.sum() == 20 and "for want of others" in without_events(short, steps, use, use, ((30, 70),)).notes[0]


@pytest.mark.parametrize("length", [20, 200])
def test_without_a_past_the_later_half_of_what_follows_stands_in(length: int) -> None:
    steps = np.arange(1, 60 + length + 1)
    roles = ranges(StepRange(1, 60), 1, 60 + length, RULES)
    use = steps[ordinary_steps(steps, roles, RULES)]
    assert roles.baseline is None and "stand in" in roles.notes[-1]
    assert len(use) == max(12, length // 2) and use[-1] == 60 + length - 1
