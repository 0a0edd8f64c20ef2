"""Tables of id -> bytes decode as the tokenizer's own library does, whatever its format, and survive the cache."""

from __future__ import annotations

import base64
import io
import json
import random
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tiktoken
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from forensics.errors import StoreError
from forensics.stores.vocab import Vocabulary, byte_vocabulary, ids_of, open_vocabulary, parse_vocabulary

TEXTS = [
    "The quick brown fox jumps over the lazy dog, twice. " * 3,
    "Le café était fermé depuis l'été.\n\nÀ la fenêtre, un vieux monsieur rêvait.",
    "Поезд опоздал на двадцать минут, и никто не удивился. 列车晚点了二十分钟。電車は二十分遅れた。",
    "def f(x: int) -> str:\n\treturn f'{x:>8}'  # tab\r\n",
    "emoji 🙂🏳️‍🌈 and a lone combining ́ mark",
]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORENSICS_CACHE", str(tmp_path / "cache"))


def byte_level(path: Path) -> Tokenizer:
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator(TEXTS, trainer)
    tok.save(str(path))
    return tok


def piece_model(path: Path, fallback: bool) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    size = 400 if fallback else 160
    options = {"model_type": "bpe", "byte_fallback": fallback, "hard_vocab_limit": False, "minloglevel": 2, "character_coverage": 0.98}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS * 3), model_writer=model, vocab_size=size, **options)
    path.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def random_runs(size: int) -> list[list[int]]:
    r = random.Random(3)
    return [[r.randrange(size) for _ in range(r.randint(0, 40))] for _ in range(150)]


def test_byte_level_decodes_as_tokenizers(tmp_path: Path) -> None:
    tok = byte_level(tmp_path / "tokenizer.json")
    v = open_vocabulary(tmp_path)
    assert v.size == tok.get_vocab_size() and v.kind == "bpe"
    for ids in [tok.encode(t).ids for t in TEXTS] + random_runs(v.size):
        assert v.text(np.array(ids, np.int64)) == tok.decode(ids, skip_special_tokens=False)


def test_metaspace_with_byte_fallback_decodes_as_tokenizers(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{b:02X}>": 3 + b for b in range(256)}}
    for piece in ("▁", "▁the", "e", "t", "h", "é", "▁caf", "列", "\n"):
        vocab[piece] = len(vocab)
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tok.save(str(tmp_path / "tokenizer.json"))
    v = open_vocabulary(tmp_path)
    assert v.unknown == -1
    for ids in random_runs(v.size):
        assert v.text(np.array(ids)) == tok.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("fallback", [True, False])
def test_sentencepiece_models_decode_as_sentencepiece(tmp_path: Path, fallback: bool) -> None:
    sp = piece_model(tmp_path / "tokenizer.model", fallback)
    v = open_vocabulary(tmp_path)
    assert v.size == sp.vocab_size()
    for ids in [sp.encode(t) for t in TEXTS] + random_runs(v.size):
        assert v.text(np.array(ids, np.int64)) == sp.decode(ids)
    assert v.unknown == (-1 if fallback else sp.unk_id())
    assert open_vocabulary(tmp_path).unknown == v.unknown  # from the cache


def test_tiktoken_ranks_decode_as_tiktoken(tmp_path: Path) -> None:
    ranks = {bytes([b]): b for b in range(256)}
    for n, piece in enumerate((b"th", b"the", b" caf\xc3", b"\xa9\xd0", b"    ", b"\xe5\x88"), 256):
        ranks[piece] = n
    (tmp_path / "tiny.tiktoken").write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % n for t, n in ranks.items()))
    encoding = tiktoken.Encoding("tiny", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={})
    v = open_vocabulary(tmp_path)
    for ids in [encoding.encode(t) for t in TEXTS] + random_runs(len(ranks)):
        assert v.text(np.array(ids, np.int64)) == encoding.decode(ids)


def test_tekken_and_bare_vocab_files() -> None:
    rows = [{"rank": n, "token_bytes": base64.b64encode(t).decode()} for n, t in enumerate((b"a", b"\xc3", b"\xa9"))]
    tekken = {"config": {"default_num_special_tokens": 2, "default_vocab_size": 5}, "vocab": rows}
    v = parse_vocabulary(json.dumps(tekken).encode(), "tekken.json")
    assert v.text(np.array([2, 3, 4]), special=False) == "aé" and v.special.tolist() == [True, True, False, False, False]
    bare = parse_vocabulary(json.dumps({"Ġthe": 0, "<|endoftext|>": 1, "Ã©": 2, "model": 3, "config": 4}).encode(), "vocab.json")  # GPT-2 has tokens so called
    assert bare.decode(np.array([0, 2, 1, 3]), special=False) == b" the\xc3\xa9model"


@pytest.mark.parametrize("content", ['{"version": "1.0"}', "{}", '{"model_max_length": 1024, "tokenizer_class": "GPT2Tokenizer"}'])
def test_json_without_a_vocabulary_is_said_to_have_none(content: str) -> None:
    with pytest.raises(StoreError, match="holds no vocabulary: its keys are"):
        parse_vocabulary(content.encode(), "tokenizer_config.json")


def test_ids_beyond_the_vocabulary_give_nothing_and_are_counted(tmp_path: Path) -> None:
    tok = byte_level(tmp_path / "tokenizer.json")
    v = open_vocabulary(tmp_path)
    ids = np.array([*tok.encode("fox").ids, 10**9, -1, 2**40], np.int64)
    assert v.text(ids) == "fox" and v.beyond(ids) == 3


def test_ids_of_keeps_what_fits() -> None:
    for kind in (np.uint8, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
        assert ids_of(np.array([0, 7, 200], kind)).tolist() == [0, 7, 200]
    with pytest.raises(StoreError, match="integers"):
        ids_of(np.array([0.5]))


def test_the_cache_gives_the_same_vocabulary_and_a_torn_one_is_made_again(tmp_path: Path) -> None:
    byte_level(tmp_path / "tokenizer.json")
    first = open_vocabulary(tmp_path)
    stored = next((tmp_path / "cache").glob("vocabulary-*.npz"))
    second = open_vocabulary(tmp_path)
    stored.write_bytes(b"torn")
    third = open_vocabulary(tmp_path)
    for v in (second, third):
        assert v.hash == first.hash and np.array_equal(v.data, first.data) and np.array_equal(v.starts, first.starts) and v.rule == first.rule


def test_bytes_are_a_vocabulary() -> None:
    v = byte_vocabulary()
    raw = "naïve 列车".encode()
    assert v.text(np.frombuffer(raw, np.uint8)) == "naïve 列车" and v.size == 256 and isinstance(v, Vocabulary)


WORDPIECE = b'{"model": {"type": "WordPiece", "vocab": {"a": 0}}}'


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"not a tokenizer", b"\x0a\xff\xff", WORDPIECE, b'{"model": 3}'])
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(StoreError):
        open_vocabulary(tmp_path)
    with pytest.raises(StoreError):
        open_vocabulary(tmp_path / "absent")
