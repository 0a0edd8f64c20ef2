"""A wrong tokenizer shows: ids beyond it, its upper end unused, text that is no UTF-8."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forensics.stores.batch import DocumentBatch
from forensics.stores.fit import ENOUGH, Fit, merged, plain
from forensics.stores.vocab import Vocabulary, open_vocabulary


@pytest.fixture
def vocabulary(tmp_path: Path) -> Vocabulary:
    """Bytes 0-255 by GPT-2's alphabet, and one id that ends a document."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in keep} | {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in keep)}
    content = {
        "version": "1.0", "added_tokens": [{"id": 256, "content": "<|end|>", "special": True}], "decoder": {"type": "ByteLevel"},
        "pre_tokenizer": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {letters[b]: b for b in range(256)}, "merges": []},
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    return open_vocabulary(tmp_path / "tokenizer.json")


def fit_of(documents: list[np.ndarray], vocabulary: Vocabulary | None) -> Fit:
    fit = Fit()
    fit.add(DocumentBatch.of_documents(documents, vocabulary=vocabulary))
    return fit


def answers(fit: Fit) -> dict[str, str]:
    return {row["check"].removeprefix("tokenizer: "): row["answer"] for row in fit.checks("f")}


def text(words: str) -> np.ndarray:
    return np.append(np.frombuffer(words.encode(), np.uint8), 256).astype(np.int64)


def test_the_right_one(vocabulary: Vocabulary) -> None:
    fit = fit_of([text("grün und schön, ") for _ in range(40)] + [np.empty(0, np.int64)], vocabulary)
    assert answers(fit) == {"ids within the tokenizer's vocabulary": "agrees", "decoded text is UTF-8": "agrees"}
    assert fit.largest == 256 and fit.beyond == 0


def test_ids_beyond(vocabulary: Vocabulary) -> None:
    fit = fit_of([np.array([5, 257, 400, 66])], vocabulary)
    assert fit.beyond == 2 and fit.largest == 66
    assert answers(fit)["ids within the tokenizer's vocabulary"] == "contradicts"


def test_the_upper_end_unused(vocabulary: Vocabulary) -> None:
    few = fit_of([np.full(1000, 90)], vocabulary)
    assert "vocabulary used to its end" not in answers(few)
    many = fit_of([np.full(ENOUGH, 90)], vocabulary)
    assert answers(many)["vocabulary used to its end"] == "contradicts"


def test_broken_text(vocabulary: Vocabulary) -> None:
    fit = fit_of([np.random.default_rng(i).integers(0, 256, 300) for i in range(5)], vocabulary)
    assert answers(fit)["decoded text is UTF-8"] == "contradicts"


def test_texts_and_ids_without_vocabulary_say_nothing() -> None:
    fit = fit_of([np.array([1, 2])], None)
    fit.add(DocumentBatch.from_texts(["a"]))
    assert fit == Fit() and fit.checks("f") == []


def test_counts_add_up_over_batches(vocabulary: Vocabulary) -> None:
    """However a file is cut: what is decoded goes by the numbers of its documents."""
    documents = [text("a b c"), np.array([300]), text("é")] + [text(f"{i} é") for i in range(1000)]
    batch = DocumentBatch.of_documents(documents, vocabulary=vocabulary)
    whole = Fit()
    whole.add(batch)
    assert 256 * 3 < whole.characters < 300 * 6
    for size in (1, 7, 500):
        parts = []
        for a in range(0, len(documents), size):
            part = DocumentBatch.of_documents(documents[a : a + size], vocabulary=vocabulary)
            fit = Fit()
            fit.add(replace(part, doc_key=batch.doc_key[a : a + size]))
            parts.append(plain(fit))
        assert merged(parts) == whole
