"""Shares of sources from a replay's tables, and losses by source regressed on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forensics.curves.mix import by_source, regressed, regressed_domains, source_shares, step_statistics, with_mix
from forensics.schemas import CONSUMED, DOCUMENTS, STEPS, Consumed, Documents, Steps
from tests.curves.make import context, curves, loss, steps

N = 2000
LEVELS = {"web": 2.6, "code": 1.4, "wiki": 2.2}
R = np.random.default_rng(11)
SHARES = R.dirichlet([60, 25, 15], N)


def mixed(change: dict[str, np.ndarray] | None = None) -> dict[str, Any]:
    """A loss that is the share-weighted mean of three sources', which fall together, and the shares."""
    y = R.normal(0, 0.008, N)
    for i, (name, level) in enumerate(LEVELS.items()):
        y += SHARES[:, i] * (level + 3 * (steps(N) + 20.0) ** -0.35 + (change or {}).get(name, 0.0))
    return {"train_loss": y, **{f"source_share__{n}": SHARES[:, i] for i, n in enumerate(LEVELS)}}


def consumed(rows: list[tuple[int, int, int, int]]) -> Consumed:
    launch, step, doc, tokens = (np.array(c) for c in zip(*rows, strict=True))
    zero = np.zeros(len(rows), np.int64)
    return Consumed(
        CONSUMED.of({
            "launch": launch.astype(np.int16), "step": step, "sequence": np.arange(len(rows), dtype=np.int32), "seq_start": zero.astype(np.int32),
            "doc_key": doc, "doc_start": zero + 5, "doc_stop": tokens + 5,
        })
    )  # fmt: skip


def test_shares_follow_the_last_launch_and_know_what_they_do_not_know() -> None:
    documents = Documents(DOCUMENTS.of({"doc_key": [3, 1, 2], "corpus_id": [0, 0, 0], "doc": [3, 1, 2], "source": ["code", "web", "web"], "tokens": [9, 9, 9]}))
    got = source_shares(consumed([(0, 7, 1, 100), (1, 7, 3, 30), (1, 7, 2, 10), (0, 8, 1, 50), (0, 8, 99, 50)]), documents)
    assert {n: (s.step.tolist(), s.value.tolist()) for n, s in got.items()} == {
        "source_share/code": ([7, 8], [0.75, 0.0]),
        "source_share/web": ([7, 8], [0.25, 0.5]),
        "source_share/unknown": ([7, 8], [0.0, 0.5]),
    }


def test_statistics_of_the_steps_are_those_of_the_last_launch() -> None:
    table = Steps(
        STEPS.of({
            "launch": np.array([0, 1, 0], np.int16), "step": [7, 7, 8],
            "role": ["window"] * 3, "trained": [True] * 3, "sequences": np.array([4, 4, 4], np.int32),
            "documents": np.array([4, 4, 4], np.int32), "tokens": [100, 200, 100], "odd_tokens": [1, 50, None], "length_max": np.array([9, 8, 7], np.int32),
        })
    )  # fmt: skip
    got = step_statistics(table)
    assert (got["odd_share"].step.tolist(), got["odd_share"].value.tolist()) == ([7], [0.25])
    assert got["document_length"].value.tolist() == [8.0, 7.0]


def test_levels_of_the_sources_come_back_from_their_shares() -> None:
    got = by_source(context(**mixed()))
    assert not isinstance(got, str) and got.names == ["code", "web", "wiki"]
    last = 3 * (float(np.mean([got.start[-1], got.stop[-1]])) + 20.0) ** -0.35
    for i, name in enumerate(got.names):
        assert got.level[-1, i] == pytest.approx(LEVELS[name] + last, abs=4 * got.error[-1, i])
    assert np.nanmedian(got.error) < 0.05
    assert set(regressed(context(**mixed()))) == {f"regressed_loss/{n}" for n in LEVELS}


def test_a_source_that_moves_is_named_and_the_others_are_not() -> None:
    jump = np.zeros(N)
    jump[1200:1400] = 0.5
    events = regressed_domains(context(**mixed({"code": jump})))
    assert not isinstance(events, str)
    assert {(e.metric, e.shape, e.subcause) for e in events} == {("regressed_loss/code", "spike", "domain_event")}
    assert abs(events[0].start - 1200) < 60 and events[0].height == pytest.approx(0.5, abs=0.15)


def test_a_rare_source_is_left_out() -> None:
    given = mixed()
    given |= {"source_share__web": SHARES[:, 0] - 1e-4, "source_share__rare": np.full(N, 1e-4)}
    got = by_source(context(**given))
    assert not isinstance(got, str) and np.isnan(got.level[:, got.names.index("rare")]).all()


def test_logged_losses_by_source_are_not_regressed() -> None:
    assert regressed(context(**mixed(), train_loss__web=loss(N))) == {}


def test_what_was_logged_stays() -> None:
    logged = curves(train_loss=loss(5), odd_share=np.zeros(5))
    both = with_mix(
        logged,
        {"odd_share": curves(odd_share=np.ones(5)).global_["odd_share"], "document_length": curves(document_length=np.ones(5)).global_["document_length"]},
    )
    assert both.global_["odd_share"].value.sum() == 0 and "document_length" in both.global_
