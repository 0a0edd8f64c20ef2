"""Text whose order is lost, seen on many documents together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forensics.attribution.order import disordered
from forensics.attribution.timeline import Timeline
from forensics.losses.features import Features
from forensics.steps import StepRange

STEPS, ROWS = 120, 4  # one document a row
REACH, SLAB = StepRange(40, 120), (70, 100)


def drawn(seed: int, less: float, share: float, second: float = 0.5) -> tuple[Timeline, Features, np.ndarray]:
    """A run whose two sources gain 1 and 2 nats by pairs, some documents of 30 steps `less` deviations less; and which these are.

    From the first of these steps on, `second` is the share of the second source.
    """
    rng = np.random.default_rng(seed)
    n = STEPS * ROWS
    step = np.repeat(np.arange(STEPS), ROWS)
    source = (rng.random(n) < np.where(step < SLAB[0], 0.5, second)).astype(np.int64)
    dirty = (step >= SLAB[0]) & (step < SLAB[1]) & (rng.random(n) < share)
    after = 5 - (1 + source + 0.3 * rng.normal(size=n)) + 0.3 * less * dirty
    zeros = np.zeros(n)
    numbers: dict[str, Any] = dict.fromkeys(Features.__dataclass_fields__, zeros)
    f = Features(**{**numbers, "length": zeros + 300, "alone": zeros + 5, "after": after})
    one = np.ones(n, dtype=np.int64)
    rest = dict.fromkeys(("launch", "sequence", "seq_start", "sample", "rank", "epoch", "start", "stop"), one)
    line = Timeline(
        np.arange(STEPS),
        step,
        doc=np.arange(n),
        labels=300 * one,
        keys=np.arange(n),
        source=source,
        names=("a", "b"),
        tokens=np.full(STEPS, 300.0 * ROWS),
        **rest,
    )
    return line, f, dirty


def found(line: Timeline, f: Features) -> np.ndarray:
    ordinary = np.arange(STEPS) < REACH.start
    return disordered(line, f, ordinary, ordinary[line.at], REACH, np.zeros(len(line.keys), dtype=bool))


@pytest.mark.parametrize("seed", range(4))
def test_many_dull_documents_of_a_stretch_are_seen_though_none_stands_out(seed: int) -> None:
    line, f, dirty = drawn(seed, 2.5, 0.4)
    got = found(line, f)
    assert (got & dirty).sum() >= 0.5 * dirty.sum()
    assert not found(*drawn(seed, 0.0, 0.4)[:2]).any()


@pytest.mark.parametrize("seed", range(4))
def test_a_change_of_the_mix_is_no_lost_order(seed: int) -> None:
    line, f, _ = drawn(seed, 0.0, 0.0, second=0.05)  # the source that gains much is hardly read from there on
    assert not found(line, f).any()


def test_few_documents_to_compare_with_decide_nothing() -> None:
    line, f, _ = drawn(0, 2.5, 0.4)
    assert not disordered(line, f, np.arange(STEPS) < 5, line.at < 5, StepRange(6, 60), np.zeros(len(line.keys), dtype=bool)).any()
