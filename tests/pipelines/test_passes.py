"""Rules on code lengths in a replay: measured under the pairs of ids that the baseline read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forensics.pipelines.passes import baseline_bigrams, find_faults

from forensics.detectors.thresholds import read_thresholds
from forensics.errors import ConfigError
from forensics.schemas import DOCUMENTS, Documents
from forensics.stores.batch import DocumentBatch

RULE = read_thresholds(over={"rules": {"bigrams": {"code_length": {"report": 4.0}}}})


class Store:
    """Documents in memory."""

    def __init__(self, documents: list[np.ndarray]) -> None:
        self.held = documents
        self.asked: list[int] = []
        self.fingerprint = "store"

    def documents(self, keys: np.ndarray) -> DocumentBatch:
        self.asked += keys.tolist()
        return DocumentBatch.of_documents([self.held[k] for k in keys.tolist()], doc_key=keys)


def run() -> tuple[Any, Documents]:
    """300 documents of the baseline in which each id has one of two followers; then 20 of the window, three of them shuffled."""
    rng = np.random.default_rng(0)
    steps = [(np.cumsum(rng.integers(3, 5, n)) % 500) for n in rng.integers(100, 200, 320)]
    for k in (305, 306, 311):
        steps[k] = rng.permutation(500)[:150]
    n = len(steps)
    window = np.arange(n) >= 300
    table = {
        "doc_key": np.arange(n), "corpus_id": np.zeros(n, np.int32), "doc": np.arange(n), "source": ["web"] * n, "tokens": [len(s) for s in steps],
        "used_window": window * 100, "used_baseline": ~window * 100,
    }  # fmt: skip
    return Store(steps), Documents(DOCUMENTS.of(table))


def test_shuffled_documents_cost_more_than_the_baseline_explains() -> None:
    store, documents = run()
    bigrams = baseline_bigrams(documents, store, RULE)
    assert bigrams is not None and max(store.asked) < 300
    found = find_faults(documents["doc_key"].to_numpy(), store, RULE, bigrams)
    assert [r["doc_key"] for r in found.to_pylist() if r["detector"] == "bigrams"] == [305, 306, 311]


def test_without_a_rule_nothing_is_counted() -> None:
    store, documents = run()
    assert baseline_bigrams(documents, store, read_thresholds()) is None and store.asked == []


def test_a_file_of_rules_is_named_as_a_preset_is(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("rules:\n  bigrams:\n    code_length: {report: 4.0}\n")
    assert read_thresholds(str(tmp_path / "mine.yaml")).fingerprint == RULE.fingerprint
    with pytest.raises(ConfigError):
        read_thresholds(str(tmp_path / "none.yaml"))
