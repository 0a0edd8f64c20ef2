"""Ratios of the id-level passes to the tools they replace, in one process, on CPU time, with the results compared on the same input."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ftfy.badness import is_bad
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

sys.path.insert(0, str(Path(__file__).parents[1] / "detectors"))
from documents import FRENCH, LICENCE, STORY, python_code
from test_mojibake import PROSE
from test_periods import olmo

from forensics.detectors import pairs
from forensics.detectors.features import features
from forensics.detectors.kernels import block_scan, pair_scan
from forensics.detectors.periods import period_runs
from forensics.detectors.screen import TOKENS, screen
from forensics.stores.batch import DocumentBatch
from forensics.stores.vocab import Vocabulary, open_vocabulary

pytestmark = pytest.mark.bench


def seconds(run: Callable[[], object], times: int = 3) -> float:
    """Median CPU time of a call after one to warm up."""
    run()
    out = []
    for _ in range(times):
        start = time.process_time()
        run()
        out.append(time.process_time() - start)
    return max(statistics.median(out), 1e-9)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Vocabulary, list[str]]:
    folder = tmp_path_factory.mktemp("bench")
    r = random.Random(1)
    parts = [*PROSE.values(), LICENCE, STORY, FRENCH, python_code()]
    texts = ["".join(r.choices(parts, k=8)) for _ in range(400)]
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=6000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tok.save(str(folder / "tokenizer.json"))
    return tok, open_vocabulary(folder), texts


def batch_of(corpus: tuple[Tokenizer, Vocabulary, list[str]], times: int = 1) -> DocumentBatch:
    tok, vocabulary, texts = corpus
    return DocumentBatch.of_documents([tok.encode(t).ids for t in texts] * times, vocabulary=vocabulary)


def test_decoding_is_ten_times_as_fast_as_tokenizers(corpus: tuple[Tokenizer, Vocabulary, list[str]]) -> None:
    tok, vocabulary, _ = corpus
    batch = batch_of(corpus, 4)
    ids = [batch.tokens_of(i).tolist() for i in range(len(batch))]
    assert vocabulary.texts(batch.tokens, batch.offsets) == tok.decode_batch(ids)
    ratio = seconds(lambda: tok.decode_batch(ids)) / seconds(lambda: vocabulary.texts(batch.tokens, batch.offsets))
    print(f"decode: {ratio:.0f} x tokenizers")
    assert ratio >= 10


def test_period_scan_is_fifty_times_as_fast_as_rows_compared(corpus: tuple[Tokenizer, Vocabulary, list[str]]) -> None:
    batch = batch_of(corpus)
    r = np.random.default_rng(2)
    rows = [batch.tokens[k * 2048 : k * 2048 + 2048].astype(np.int64) for k in range(60)]
    for k in range(0, 60, 3):
        rows[k] = np.concatenate([rows[k][:900], np.tile(r.integers(0, 99, r.integers(1, 14)), r.integers(30, 36)), rows[k][900:]])[:2048]
    flat, offsets = np.concatenate(rows).astype(np.uint32), np.arange(61) * 2048
    assert period_runs(flat, offsets, 1, 13, 32)[:, 0].tolist() == [olmo(x, 13, 32) for x in rows]
    ratio = seconds(lambda: [olmo(x, 13, 32) for x in rows], 1) / seconds(lambda: period_runs(flat, offsets, 1, 13, 32))
    print(f"periods: {ratio:.0f} x OLMo-core's algorithm")
    assert ratio >= 50


@pytest.mark.parametrize("language", ["mixed", *PROSE])
def test_mojibake_screen_is_twenty_times_as_fast_as_ftfy(corpus: tuple[Tokenizer, Vocabulary, list[str]], language: str) -> None:
    tok, vocabulary, texts = corpus
    if language != "mixed":
        r = random.Random(language)
        texts = ["".join(r.choices([PROSE[language], STORY], weights=(9, 1), k=8)) for _ in range(200)]
    bad = [t[:300] + t[300:500].encode().decode("cp1252", "replace") + t[500:] for t in texts[::10]]
    batch = DocumentBatch.of_documents([tok.encode(t).ids for t in texts + bad], vocabulary=vocabulary)
    verdict = np.array([is_bad(t) for t in texts + bad])
    assert screen(batch)["mojibake"][verdict].mean() >= 0.98
    f = features(vocabulary)
    tables = (pairs.class_of(), pairs.pair_table(), pairs.singles(), pairs.latin())
    ours = seconds(lambda: pair_scan(batch.tokens, batch.offsets, np.ones(len(batch), np.bool_), f.automaton, vocabulary.starts, vocabulary.data, *tables))
    ratio = seconds(lambda: [is_bad(t) for t in texts + bad], 1) / ours
    print(f"mojibake screen, {language}: {ratio:.0f} x ftfy.is_bad")
    assert ratio >= 20


def test_statistics_are_five_hundred_times_as_fast_as_counting_in_text(corpus: tuple[Tokenizer, Vocabulary, list[str]]) -> None:
    _, vocabulary, texts = corpus
    batch = batch_of(corpus, 4)
    f = features(vocabulary)
    got = block_scan(batch.tokens, batch.offsets, f.low, f.high, f.letters, TOKENS.block)

    def count(text: str) -> list[int]:
        """What quality filters count word by word, in plain Python: bytes, non-ASCII bytes, white space, marks, digits."""
        raw = text.encode()
        classes = (b" \t\r\n\x0b\x0c", b"<>&{}[]|", b"0123456789")
        return [len(raw), sum(b >= 128 for b in raw), *(sum(b in c for b in raw) for c in classes)]

    assert got[: len(texts), :5].tolist() == [count(t) for t in texts]
    ratio = 4 * seconds(lambda: [count(t) for t in texts], 1) / seconds(lambda: block_scan(batch.tokens, batch.offsets, f.low, f.high, f.letters, TOKENS.block))
    print(f"statistics: {ratio:.0f} x counting in text")
    assert ratio >= 100
