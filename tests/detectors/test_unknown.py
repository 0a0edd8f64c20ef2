"""A SentencePiece vocabulary without bytes to fall back on: what decodes, what every detector makes of it, and what is said of characters that it lacks."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from forensics.detectors.base import DETECTORS
from forensics.detectors.flagging import flag
from forensics.detectors.measuring import measure
from forensics.detectors.thresholds import read_thresholds
from forensics.stores.batch import DocumentBatch
from forensics.stores.bigrams import bigrams_of
from forensics.stores.fit import Fit
from forensics.stores.vocab import Vocabulary, open_vocabulary

sys.path.insert(0, str(Path(__file__).parent))
from documents import FRENCH, LICENCE, STORY

CONFIG = read_thresholds()


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> tuple[sentencepiece.SentencePieceProcessor, Vocabulary]:
    """Trained on English alone: no accents, no ideographs, no backslash."""
    path = tmp_path_factory.mktemp("pieces") / "tokenizer.model"
    model = io.BytesIO()
    options = {"model_type": "bpe", "byte_fallback": False, "hard_vocab_limit": False, "minloglevel": 2, "vocab_size": 300}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter((STORY + LICENCE).split("\n") * 3), model_writer=model, **options)
    path.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_file=str(path)), open_vocabulary(path)


def batch_of(pieces: tuple[sentencepiece.SentencePieceProcessor, Vocabulary], texts: list[str]) -> DocumentBatch:
    sp, vocabulary = pieces
    return DocumentBatch.of_documents([np.array(sp.encode(t), np.int64) for t in texts], vocabulary=vocabulary)


def test_the_share_of_unknown_ids_is_reported(pieces: tuple[sentencepiece.SentencePieceProcessor, Vocabulary]) -> None:
    sp, _ = pieces
    texts = [STORY, FRENCH * 3, "列車は二十分遅れた。" * 20, "", STORY * 9 + "日"]
    batch = batch_of(pieces, texts)
    share = measure(batch, CONFIG, only=["unknown"]).columns["unknown"]["share"]
    np.testing.assert_allclose(share, [np.mean(np.array(sp.encode(t)) == sp.unk_id()) if t else 0.0 for t in texts], rtol=1e-6)
    assert share[0] == 0 and share[1] > 0.1 and share[2] == 0.5 and 0 < share[4] < 0.01
    found = flag(measure(batch, CONFIG), CONFIG).to_pylist()
    rows = {r["doc_key"]: r for r in found if r["detector"] == "unknown"}
    assert set(rows) == {1, 2} and not any(r["garbage"] for r in rows.values())
    assert rows[2]["cause"] == "language" and rows[2]["detail"] == "50.0% of its ids stand for characters that the tokenizer lacks"


def test_detectors_read_what_is_left_of_the_text(pieces: tuple[sentencepiece.SentencePieceProcessor, Vocabulary]) -> None:
    sp, vocabulary = pieces
    texts = [STORY, LICENCE, "the " * 900, FRENCH * 3, "(" * 3000, "\\" * 3000]
    batch = batch_of(pieces, texts)
    batch = replace(batch, bigrams=bigrams_of([batch_of(pieces, [STORY * 20, LICENCE * 20])]))
    found = measure(batch, CONFIG)
    assert set(found.columns) == set(DETECTORS.names()) and not found.not_evaluated
    garbage = {r["doc_key"]: r["cause"] for r in flag(found, CONFIG).to_pylist() if r["garbage"]}
    assert garbage == {2: "repetition", 4: "repetition"}
    assert [vocabulary.text(batch.tokens_of(i)) for i in range(len(texts))] == [sp.decode(sp.encode(t)) for t in texts]
    assert "\u2047" in vocabulary.text(batch.tokens_of(3)) and "\u2047" not in batch.text(3) and batch.text(3).strip().startswith("Le caf")


@pytest.mark.parametrize(("text", "answer"), [(STORY, "agrees"), (FRENCH * 3, "contradicts")])
def test_a_tokenizer_made_for_another_language_is_told(pieces: tuple[sentencepiece.SentencePieceProcessor, Vocabulary], text: str, answer: str) -> None:
    fit = Fit()
    fit.add(batch_of(pieces, [text] * 3))
    (row,) = [r for r in fit.checks("c") if r["check"] == "tokenizer: it has all characters"]
    assert row["answer"] == answer
    again = Fit()
    again.merge({**vars(Fit())})
    again.merge({**vars(fit)})
    assert again == fit
