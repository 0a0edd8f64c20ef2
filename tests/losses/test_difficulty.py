"""Code lengths against a plain loop, and what they must not depend on."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from forensics.losses.difficulty import code_lengths, per_document, per_segment, step_difficulty
from forensics.schemas import CONSUMED, Consumed


def flat(docs: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([t for d in docs for t in d], dtype=np.int64), np.concatenate([[0], np.cumsum([len(d) for d in docs])]).astype(np.int64)


def slow(docs: list[list[int]], chosen: list[bool]) -> list[float]:
    """Witten-Bell by dictionaries, the scored document left out of the table."""
    seen = sorted({t for d in docs for t in d})
    size = len(seen) + 1
    out = []
    for i, doc in enumerate(docs):
        table = [d for j, d in enumerate(docs) if chosen[j] and j != i]
        uni: dict[int, int] = {}
        bi: dict[tuple[int, int], int] = {}
        for d in table:
            for t in d:
                uni[t] = uni.get(t, 0) + 1
            for a, b in zip(d, d[1:], strict=False):
                bi[(a, b)] = bi.get((a, b), 0) + 1
        total = sum(uni.values())
        for k, t in enumerate(doc):
            p = (uni.get(t, 0) + 0.5) / (total + 0.5 * size)
            if k:
                followers = [c for (x, _), c in bi.items() if x == doc[k - 1]]
                if followers:
                    p = (bi.get((doc[k - 1], t), 0) + len(followers) * p) / (sum(followers) + len(followers))
            out.append(-np.log(p))
    return out


@pytest.mark.parametrize("seed", range(4))
def test_code_lengths_equal_a_plain_loop_that_leaves_each_document_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    docs = [rng.integers(0, 6, int(rng.integers(0, 12))).tolist() for _ in range(9)]
    chosen = [bool(x) for x in rng.random(9) < 0.6]
    tokens, offsets = flat(docs)
    _, after = code_lengths(tokens, offsets, np.array(chosen))
    np.testing.assert_allclose(after, slow(docs, chosen), rtol=1e-9)


def test_shuffled_text_costs_more_by_pairs_and_the_same_by_tokens() -> None:
    rng = np.random.default_rng(0)
    base = [np.cumsum(rng.integers(1, 3, 200)) % 40 for _ in range(30)]
    docs = [*base, rng.permutation(base[0])]
    tokens, offsets = flat([d.tolist() for d in docs])
    chosen = np.array([True] * 30 + [False])
    alone, after = (per_document(x, offsets) for x in code_lengths(tokens, offsets, chosen))
    assert after[-1] > after[:-1].max() + 0.5
    assert abs(alone[-1] - alone[0]) < 0.1


def test_large_ids_need_no_table_of_their_size() -> None:
    docs = [[2**31, 7, 2**31, 7], [7, 2**31 + 5]]
    tokens, offsets = flat(docs)
    _, after = code_lengths(tokens, offsets, np.array([True, True]))
    assert np.isfinite(after).all()


def test_a_segment_at_the_start_of_a_row_predicts_one_token_less() -> None:
    tokens, offsets = flat([[1, 2, 3, 4], [5, 6]])
    batch = SimpleNamespace(tokens=tokens, offsets=offsets, doc_key=np.array([10, 20]))
    values = np.array([1.0, 2, 4, 8, 16, 32])
    sums, labels = per_segment(values, batch, np.array([10, 10, 20, 99]), np.array([0, 1, 0, 0]), np.array([3, 4, 2, 5]), np.array([1, 0, 0, 0]))
    np.testing.assert_allclose(sums, [6.0, 14.0, 48.0, 0.0])
    assert labels.tolist() == [2, 3, 2, 0]


def test_step_difficulty_sums_rows() -> None:
    tokens, offsets = flat([[1, 2, 3, 4], [5, 6]])
    batch = SimpleNamespace(tokens=tokens, offsets=offsets, doc_key=np.array([0, 1]))
    consumed = Consumed(
        CONSUMED.of(
            pa.table(
                {
                    "launch": np.zeros(3, np.int16),
                    "step": [5, 5, 6],
                    "sequence": np.array([0, 0, 0], np.int32),
                    "seq_start": np.array([0, 4, 0], np.int32),
                    "doc_key": [0, 1, 1],
                    "doc_start": [0, 0, 0],
                    "doc_stop": [4, 2, 2],
                }
            )
        )
    )
    got = step_difficulty(consumed, batch, np.ones(6))
    assert got.column("predicted").to_pylist() == [5, 1]
    assert got.column("code_length").to_pylist() == [5.0, 1.0]
    assert step_difficulty(Consumed(CONSUMED.empty()), batch, np.ones(6)).num_rows == 0
