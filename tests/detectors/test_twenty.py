"""Twenty documents that quality filters judge alike and that are not: one cause each, as text and through tokens."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

sys.path.insert(0, str(Path(__file__).parent))
from documents import FRENCH, LICENCE, STORY, python_code, twenty

from forensics.detectors.flagging import flag
from forensics.detectors.measuring import measure
from forensics.detectors.thresholds import read_thresholds
from forensics.stores.batch import DocumentBatch
from forensics.stores.vocab import Vocabulary, open_vocabulary

CASES = twenty()
CONFIG = read_thresholds()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Vocabulary]:
    folder = tmp_path_factory.mktemp("tokenizer")
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator([LICENCE, STORY, FRENCH, python_code(), json.dumps(list(CASES)), Path(__file__).read_text()], trainer)
    tok.save(str(folder / "tokenizer.json"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORENSICS_CACHE", str(folder / "cache"))
        return tok, open_vocabulary(folder)


def answers(batch: DocumentBatch) -> dict[str, tuple[str | None, bool]]:
    rows = flag(measure(batch, CONFIG), CONFIG).to_pylist()
    out: dict[str, tuple[str | None, bool]] = {}
    for i, name in enumerate(CASES):
        mine = [r for r in rows if r["doc_key"] == i]
        assert sum(r["primary"] for r in mine) <= 1
        out[name] = next((r["cause"] for r in mine if r["primary"]), None), any(r["garbage"] for r in mine)
    return out


@pytest.fixture(scope="module")
def as_text() -> dict[str, tuple[str | None, bool]]:
    return answers(DocumentBatch.from_texts([text for text, _, _ in CASES.values()]))


@pytest.mark.parametrize("name", CASES)
def test_each_document_has_its_cause(name: str, as_text: dict[str, tuple[str | None, bool]]) -> None:
    _, causes, garbage = CASES[name]
    assert as_text[name][0] in causes
    assert garbage is None or as_text[name][1] == garbage


def test_tokens_give_the_same_answers(as_text: dict[str, tuple[str | None, bool]], tokenizer: tuple[Tokenizer, Vocabulary]) -> None:
    tok, vocabulary = tokenizer
    ids = [tok.encode(text).ids for text, _, _ in CASES.values()]
    assert answers(DocumentBatch.of_documents(ids, vocabulary=vocabulary)) == as_text


def test_spans_of_tokens_hold_the_evidence(tokenizer: tuple[Tokenizer, Vocabulary]) -> None:
    tok, vocabulary = tokenizer
    text = STORY + "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore et dolore magna aliqua " * 4 + LICENCE
    batch = DocumentBatch.of_documents([tok.encode(text).ids], vocabulary=vocabulary)
    found = measure(batch, CONFIG, only=["placeholder"]).evidence["placeholder"][0]
    (start, stop), *_ = found.spans
    shown = batch.text(0, start, stop).strip()
    assert shown.startswith("lorem") and "swan" not in shown and "Permission" not in shown
