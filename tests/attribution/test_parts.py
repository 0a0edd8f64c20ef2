"""Parts of a description against a loss that follows all of them, all but one, or rows of the neighbouring step."""

import numpy as np
import pytest

from forensics.attribution.parts import Scored, examine, score
from forensics.attribution.signals import Series

ROWS, PARTS = 8, 4


def run(seed: int, steps: int = 400):
    """Rows of `steps` steps with a difficulty each, their parts, and the loss of the true rows."""
    rng = np.random.default_rng(seed)
    nats = rng.normal(5, 0.3, (steps, ROWS))
    part = np.stack([rng.permutation(np.arange(ROWS) % PARTS) for _ in range(steps)])
    noise = 0.05 * rng.standard_normal(steps)
    loss = Series(np.arange(1, steps + 1), 3 + nats.mean(1) - 5 + noise + 2 * np.arange(10, steps + 10.0) ** -0.3)
    return rng, nats, part, loss


def scored(nats, part) -> Scored:
    step, row = np.mgrid[1 : len(nats) + 1, :ROWS]
    return Scored(step.ravel(), row.ravel(), part.ravel(), 100 * nats.ravel(), np.full(nats.size, 100.0), tuple("abcd"))


@pytest.mark.parametrize("seed", range(8))
def test_all_parts_of_the_right_description_hold(seed) -> None:
    _, nats, part, loss = run(seed)
    found = examine(scored(nats, part), loss)
    assert not found.failed and not found.slips and all(s.holds for s in found.slopes)
    assert {s.name for s in found.slopes} == set("abcd")


@pytest.mark.parametrize("wrong", range(PARTS))
def test_the_one_part_that_is_read_otherwise_is_named(wrong) -> None:
    rng, nats, part, loss = run(wrong)
    other = np.where(part == wrong, rng.normal(5, 0.3, nats.shape), nats)
    assert examine(scored(other, part), loss).failed == ("abcd"[wrong],)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_rows_that_lie_in_the_next_step_are_noticed(share) -> None:
    rng, nats, part, loss = run(7, 900)
    told = nats.copy()
    moved = np.flatnonzero(rng.random(len(nats) - 1) < share)
    told[moved, -1], told[moved + 1, 0] = nats[moved + 1, 0], nats[moved, -1]
    found = examine(scored(told, part), loss)
    assert found.slips


def test_a_part_that_is_read_in_event_steps_only_is_left_out() -> None:
    _, nats, part, loss = run(5)
    late = np.where(np.arange(400)[:, None] < 300, part, part + PARTS)
    step, row = np.mgrid[1:401, :ROWS]
    told = Scored(step.ravel(), row.ravel(), late.ravel(), 100 * nats.ravel(), np.full(nats.size, 100.0), tuple("abcdefgh"))
    found = examine(told, loss, np.arange(400) < 310)
    assert {s.name for s in found.slopes} == set("abcd") and not found.failed and not found.open
    assert {s.name for s in examine(told, loss).slopes} == set("abcdefgh")


def test_parts_too_small_to_decide_neither_hold_nor_fail() -> None:
    rng, nats, part, loss = run(3, 120)
    wrong = np.where(part == 1, rng.normal(5, 0.3, nats.shape), nats)
    free = np.arange(120) < 85
    found = examine(scored(wrong, part), Series(loss.steps, loss.values + 0.15 * rng.standard_normal(120)), free)
    assert not found.failed
    assert examine(scored(nats, part), loss, np.arange(120) < 40).why_not


def test_difficulty_of_a_step_against_a_plain_count() -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 7, 60)
    offsets, step, opens = np.array([0, 20, 30, 50, 60]), np.array([5, 5, 6, 6]), np.array([True, False, True, False])
    scored = score(tokens, offsets, step, np.array([0, 0, 0, 0]), np.zeros(4, np.int64), ["all"], opens)
    steps, value = scored.per_step()
    segments = [tokens[a:b] for a, b in zip(offsets, offsets[1:])]
    size = len(np.unique(tokens)) + 1
    total = {5: [0.0, 0], 6: [0.0, 0]}
    for n, own in enumerate(segments):
        others = [s for m, s in enumerate(segments) if m != n]
        single = np.concatenate(others)
        pairs = [(a, b) for s in others for a, b in zip(s, s[1:])]
        for place, token in enumerate(own):
            p = ((single == token).sum() + 0.5) / (len(single) + 0.5 * size)
            if place:
                before = [b for a, b in pairs if a == own[place - 1]]
                kinds = len(set(before))
                p = (before.count(token) + kinds * p) / (len(before) + kinds) if before else p
            if not (opens[n] and place == 0):
                total[int(step[n])][0] -= np.log(p)
                total[int(step[n])][1] += 1
    assert steps.tolist() == [5, 6]
    np.testing.assert_allclose(value, [total[5][0] / total[5][1], total[6][0] / total[6][1]])
