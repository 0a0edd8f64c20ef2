"""Compiled loops against plain ones."""

from collections import Counter

import numpy as np
import pytest

from forensics.losses.difficulty import ADD, code_lengths, compact
from forensics.losses.kernels import shared_run_counts


def documents(seed: int, n: int = 12, ids: int = 9) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    rng = np.random.default_rng(seed)
    docs = [rng.integers(0, ids, rng.integers(0, 40)).tolist() for _ in range(n)]
    docs += [docs[3], docs[3][:10], docs[3][2:]]
    return np.array([t for d in docs for t in d], np.int64), np.cumsum([0, *(len(d) for d in docs)]), docs


@pytest.mark.parametrize("seed", range(4))
def test_a_chosen_document_is_coded_as_if_it_were_not_in_the_table(seed: int) -> None:
    tokens, offsets, docs = documents(seed)
    chosen = np.random.default_rng(seed).random(len(docs)) < 0.6
    alone, after = code_lengths(tokens, offsets, chosen)
    size = len(set(tokens.tolist())) + 1
    for k, doc in enumerate(docs):
        table = [d for j, d in enumerate(docs) if chosen[j] and j != k]
        single = Counter(t for d in table for t in d)
        pairs = Counter(p for d in table for p in zip(d, d[1:], strict=False))
        for i, b in enumerate(doc):
            p = (single[b] + ADD) / (sum(single.values()) + ADD * size)
            assert alone[offsets[k] + i] == pytest.approx(-np.log(p))
            if i:
                a = doc[i - 1]
                context = sum(n for (x, _), n in pairs.items() if x == a)
                types = sum(x == a for x, _ in pairs)
                q = (pairs[a, b] + types * p) / (context + types) if context else p
                assert after[offsets[k] + i] == pytest.approx(-np.log(q))


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_runs_are_counted_the_same_in_any_number_of_parts(parts: int) -> None:
    tokens, offsets, docs = documents(1, n=400, ids=3)
    holders = Counter(run for d in docs for run in {tuple(d[i : i + 6]) for i in range(len(d) - 5)})
    want = [sum(holders[tuple(d[i : i + 6])] > 2 for i in range(len(d) - 5)) for d in docs]
    got = shared_run_counts(tokens.astype(np.int32), offsets, 6, 2, parts)
    assert got.tolist() == want and sum(want) > 0


def test_ids_are_numbered_in_their_order() -> None:
    ids, n = compact(np.array([7, 2, 7, 90]))
    assert (ids.tolist(), n) == ([1, 0, 1, 2], 3)
    ids, n = compact(np.array([7, 1 << 31, 2], np.uint32))
    assert (ids.tolist(), n) == ([1, 2, 0], 3)
    assert compact(np.zeros(0, np.int64))[1] == 0
