"""Orders with a known fault, and ordinary ones."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from forensics.attribution.inputs import Rules
from forensics.attribution.loader_faults import loader_faults, repeated_tokens, rows_of
from forensics.attribution.timeline import timeline
from forensics.errors import RunError
from forensics.schemas import CONSUMED, DOCUMENTS, LAUNCHES
from forensics.steps import StepRange

B, T, RANKS = 8, 160, 4
LABELS = ("a", "b", "c", "d")


def judge(order: np.ndarray, starts: tuple[int, ...] = (0,), epoch: np.ndarray | None = None) -> list[tuple[str, int, int]]:
    """Faults of an order of samples [T, B]; sample s is document s, of source s % 4."""
    step, row = np.divmod(np.arange(order.size), B)
    launch = np.searchsorted(np.array(starts), step, "right") - 1
    docs = np.unique(order)
    consumed = CONSUMED.of(
        pa.table(
            {
                "launch": launch.astype(np.int16),
                "step": step + 1,
                "sequence": row.astype(np.int32),
                "seq_start": np.zeros(order.size, np.int32),
                "sample": order.reshape(-1),
                "epoch": pa.array([None] * order.size if epoch is None else epoch[step], pa.int32()),
                "doc_key": order.reshape(-1),
                "doc_start": np.zeros(order.size, np.int64),
                "doc_stop": np.full(order.size, 17),
            }
        )
    )
    documents = DOCUMENTS.of(
        pa.table(
            {
                "doc_key": docs,
                "corpus_id": np.zeros(len(docs), np.int32),
                "doc": docs,
                "source": [LABELS[d % 4] for d in docs],
                "tokens": np.full(len(docs), 17),
            }
        )
    )
    n = len(starts)
    launches = LAUNCHES.of(
        pa.table(
            {
                "launch": np.arange(n, dtype=np.int16),
                "first_step": np.array(starts) + 1,
                "stop_step": np.array([*starts[1:], T]) + 1,
                "trainer": ["x"] * n,
                "origin": ["x"] * n,
                "data_parallel_size": np.full(n, RANKS, np.int32),
            }
        )
    )
    line = timeline(consumed, documents, launches)
    rows = rows_of(line)
    assert repeated_tokens(line, rows).sum() == 16 * (rows.repeat | rows.twice).sum()
    return [(f.kind, f.start, f.stop) for f in loader_faults(line, rows, launches, StepRange(60, 140), Rules())]


def nominal(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([lo + rng.permutation(16 * B) for lo in range(0, T * B, 16 * B)]).reshape(T, B)


@pytest.mark.parametrize("seed", range(5))
def test_a_shuffled_order_with_a_restart_has_no_fault(seed: int) -> None:
    assert judge(nominal(seed), (0, 90)) == []


@pytest.mark.parametrize("n", [6, 26])
def test_a_stale_position_repeats_the_steps_before(n: int) -> None:
    o = nominal()
    got = judge(np.concatenate([o[:100], o[100 - n : 100], o[100:]])[:T], (0, 100))
    assert got == [("stale_position", 101, 101 + n)]


@pytest.mark.parametrize(("epoch", "faults"), [([0] * 80 + [1] * 80, 0), ([0] * 160, 1), (None, 1)])
def test_the_next_pass_over_the_data_is_no_repetition(epoch: list[int] | None, faults: int) -> None:
    order = nominal()[:80]
    again = np.random.default_rng(3).permutation(order.reshape(-1)).reshape(80, B)
    assert len(judge(np.concatenate([order, again]), epoch=None if epoch is None else np.array(epoch))) == faults


def test_two_ranks_with_the_same_rows() -> None:
    o = nominal()
    o[100:120, 2:4] = o[100:120, :2]
    assert judge(o) == [("duplicated_ranks", 101, 121)]


def test_a_sorted_stretch_is_told_from_a_change_of_the_mix() -> None:
    o = nominal()
    part = o[80:144].reshape(-1)
    sorted_part = o.copy()
    sorted_part[80:144] = part[np.argsort(part % 4, kind="stable")].reshape(-1, B)
    kinds = judge(sorted_part)
    assert [k for k, _, _ in kinds] == ["correlated_order"] and abs(kinds[0][1] - 81) <= 3
    rng = np.random.default_rng(1)
    mixed = o.copy()
    one = np.setdiff1d(np.arange(T * B, 2 * T * B), [])[::4]
    mixed[80:144] = rng.choice(one, (64, B), replace=False) if len(one) >= 64 * B else np.resize(one, (64, B))
    assert "correlated_order" not in [k for k, _, _ in judge(mixed)]


def test_samples_left_out_at_a_restart() -> None:
    o = nominal()
    got = judge(np.concatenate([o[:96], o[96:] + 64 * B])[:T], (0, 96))
    assert [k for k, _, _ in got] == ["skipped_range"] and got[0][1] == 97


def test_nothing_consumed_is_an_error() -> None:
    with pytest.raises(RunError, match="consumed anything"):
        timeline(CONSUMED.empty(), DOCUMENTS.empty(), LAUNCHES.empty())
