"""The same through tokens: what is said of documents as text is said of them as ids in a .bin/.idx pair."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

sys.path.insert(0, str(Path(__file__).parent))
from documents import FRENCH, LICENCE, STORY, python_code, twenty
from test_mojibake import PROSE

from forensics.detectors.flagging import flag
from forensics.detectors.measuring import measure
from forensics.detectors.thresholds import read_thresholds
from forensics.stores.batch import DocumentBatch
from forensics.stores.records import ReadOptions
from forensics.stores.sniff import open_records
from forensics.stores.write import MegatronWriter


def contaminated() -> list[str]:
    """Sound texts, and each with each of the twenty documents inside or behind."""
    sound = [STORY * 6, LICENCE * 3, FRENCH * 8, python_code() * 2, *(p * 6 for p in PROSE.values())]
    return sound + [text[: len(text) // 2] + "\n" + bad[:4000] + "\n" + text[len(text) // 2 :] for text in sound for bad, _, _ in twenty().values()]


def primary(batch: DocumentBatch) -> list[str | None]:
    config = read_thresholds()
    rows = flag(measure(batch, config), config).to_pylist()
    first = {r["doc_key"]: r["cause"] for r in rows if r["primary"]}
    return [first.get(k) for k in batch.doc_key.tolist()]


def test_causes_are_the_same_through_tokens(tmp_path: Path) -> None:
    texts = contaminated()
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=4000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    frame = "Accept all cookies, privacy policy, log in, subscribe to the newsletter, share"  # words that every tokenizer of web pages holds whole
    tok.train_from_iterator([*texts[:12], Path(__file__).read_text(), frame, twenty()["lorem"][0]], trainer)
    tok.save(str(tmp_path / "tokenizer.json"))
    ids = [np.array(e.ids, np.uint16) for e in tok.encode_batch(texts)]
    with MegatronWriter(tmp_path / "corpus", np.dtype(np.uint16)) as writer:
        writer.add(np.concatenate(ids), np.array([len(i) for i in ids], np.int64))
    file = open_records(tmp_path / "corpus", ReadOptions(tokenizer=tmp_path / "tokenizer.json"))
    as_ids = [c for shard in file.shards(1 << 28) for part in file.parts(shard, 0, 1 << 20) for c in primary(part.batch)]
    as_text = primary(DocumentBatch.from_texts(texts))
    differ = {(a, b) for a, b in zip(as_text, as_ids) if a != b}
    assert np.mean([a == b for a, b in zip(as_text, as_ids)]) >= 0.98, differ
    assert len(set(as_text)) >= 7
