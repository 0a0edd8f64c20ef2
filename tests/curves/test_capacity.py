"""The size law: fitted to own runs, from published constants, and the word on a plateau."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.curves.capacity import fit, plateau_capacity, published
from forensics.curves.events import read_curves
from forensics.curves.settings import Annotation, SmallRun, settings
from forensics.curves.whole import passes, tokens_at
from tests.curves.make import context, curves, loss, steps

N = 3000
R = np.random.default_rng(3)
TRUE = published(settings().model)
RUNS = [{"parameters": n, "tokens": d, "loss": TRUE.at(n, d) + float(R.normal(0, 0.004))} for n in (1e7, 4e7, 1.6e8) for d in (1e9, 4e9, 1.6e10, 6.4e10)]
FLAT = loss(N)
FLAT[1000:] = FLAT[950:1000].mean() + R.normal(0, 0.015, N - 1000)
BATCH = np.full(N, 4e8)  # 1.2e12 tokens at the end


def test_own_runs_give_the_law_back() -> None:
    law = fit([SmallRun(**r) for r in RUNS])
    assert not isinstance(law, str) and law.sd is not None
    assert law.sd < 0.01
    for n, d in ((8e7, 3e10), (3e8, 1e11)):
        assert abs(law.at(n, d) - TRUE.at(n, d)) < 3 * law.error(n, d) and law.error(n, d) < 0.1


@pytest.mark.parametrize("runs", [RUNS[:5], [r for r in RUNS if r["parameters"] == 1e7] * 3])
def test_too_few_or_too_like_runs_are_refused(runs: list[dict[str, float]]) -> None:
    assert "are needed" in str(fit([SmallRun(**r) for r in runs]))


def test_losses_that_do_not_fall_are_refused() -> None:
    assert "do not fall" in str(fit([SmallRun(r["parameters"], r["tokens"], 2.0 + 1e-12 * r["parameters"]) for r in RUNS]))


def level(at: float) -> np.ndarray:
    """The flat curve, its plateau moved to a level."""
    return FLAT - float(np.median(FLAT[1000:])) + at


@pytest.mark.parametrize(("over", "found"), [(0.0, True), (0.2, False)])
def test_a_plateau_is_capacity_only_where_own_runs_predict_its_level(over: float, found: bool) -> None:
    expected = TRUE.at(1e7, 1.2e12)
    ctx = context({"model": {"parameters": 1e7, "runs": RUNS}}, train_loss=level(expected + over), batch_tokens=BATCH)
    events = plateau_capacity(ctx)
    assert not isinstance(events, str) and bool(events) is found
    if found:
        assert events[0].confidence == "medium" and abs(events[0].evidence["expected_loss"] - expected) < 0.1


def test_the_plateau_of_the_reading_takes_the_word_and_its_action() -> None:
    numbers = settings({"model": {"parameters": 1e7}})
    (e,) = [e for e in read_curves(curves(train_loss=FLAT, batch_tokens=BATCH), numbers).events if e.shape == "plateau"]
    assert (e.subcause, e.confidence, e.level) == ("plateau_capacity", "low", "notice")
    assert e.evidence["capacity_ratio"] > 4 and "predicted_drop" in e.evidence and "larger model" in str(e.action)


def test_tokens_are_summed_over_a_ramp_of_the_batch() -> None:
    ctx = context(train_loss=(steps(10), loss(10)), batch_size=(steps(10), np.repeat([2.0, 4.0], 5)), sequence_length=(steps(10), np.full(10, 100.0)))
    assert tokens_at(ctx, 10) == 3000.0 and tokens_at(ctx, 5) == 1000.0
    assert tokens_at(context(train_loss=loss(10)), 10) is None


def test_passes_over_a_source_are_found_from_its_share_and_size() -> None:
    over = {"corpus": {"tokens": 1e12, "sources": {"code": 1e10}}}
    ctx = context(over, train_loss=loss(N), batch_tokens=BATCH, source_share__code=np.full(N, 0.1), source_share__web=np.full(N, 0.9))
    times, source = passes(ctx) or (0.0, None)
    assert source == "code" and times == pytest.approx(12.0)
    assert passes(context(train_loss=loss(N), batch_tokens=BATCH)) is None


def test_repetition_comes_before_capacity() -> None:
    numbers = settings({"model": {"parameters": 1e7}, "corpus": {"tokens": 2e11}})
    (e,) = [
        e for e in read_curves(curves(train_loss=FLAT, batch_tokens=BATCH), numbers, annotations=[Annotation("other", "x", 5)]).events if e.shape == "plateau"
    ]
    assert (e.cause, e.subcause) == ("loader", "plateau_repetition") and e.evidence["passes"] == pytest.approx(6.0)
