"""Peers that are not among the test's packages; `pip install datatrove spacy tldextract daft ai2-olmo-core`, then `pytest tests/bench/test_peers.py -s`.

CPU time of one process (daft's own threads count, so it gets no more than they use), on the same texts, with results compared.
"""

from __future__ import annotations

import inspect
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "detectors"))
from documents import LICENCE, STORY, python_code
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from forensics.clustering.minhash import minhash, units
from forensics.clustering.verify import jaccard
from forensics.detectors import kernels
from forensics.detectors.features import features
from forensics.detectors.periods import period_runs
from forensics.detectors.screen import TOKENS
from forensics.stores.batch import DocumentBatch
from forensics.stores.vocab import open_vocabulary

pytestmark = pytest.mark.bench


def cpu(function: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    """The least CPU seconds of a few runs, all threads together, and the result."""
    best, result = float("inf"), None
    for _ in range(times):
        start = time.process_time()
        result = function()
        best = min(best, time.process_time() - start)
    return max(best, 1e-9), result


def english(n: int, seed: int = 1) -> list[str]:
    r = random.Random(seed)
    parts = [part.encode("ascii", "ignore").decode() for part in (LICENCE, STORY, STORY.upper(), python_code())]
    return ["".join(r.choices(parts, k=6)) for _ in range(n)]


def block_scan(batch: DocumentBatch) -> Any:
    """The kernel with the arrays that it names in `Features`."""
    f = features(batch.vocabulary)  # type: ignore[arg-type]
    names = list(inspect.signature(kernels.block_scan.py_func).parameters)[2:-1]
    return kernels.block_scan(batch.tokens, batch.offsets, *(getattr(f, name) for name in names), TOKENS.block)


def test_statistics_against_the_quality_filter_of_datatrove(tmp_path: Path) -> None:
    """White space and digits as datatrove's document statistics have them; its Gopher quality filter is what is timed."""
    pytest.importorskip("datatrove")
    from datatrove.data import Document
    from datatrove.pipeline.filters import GopherQualityFilter
    from datatrove.pipeline.stats import DocStats

    texts = english(150)
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=4000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tok.save(str(tmp_path / "tokenizer.json"))
    batch = DocumentBatch.of_documents([tok.encode(t).ids for t in texts] * 40, vocabulary=open_vocabulary(tmp_path))
    block_scan(batch)
    ours, got = cpu(lambda: block_scan(batch))
    size = sum(map(len, texts))
    stats = [DocStats(str(tmp_path / "stats")).extract_stats(Document(text=t, id=str(i))) for i, t in enumerate(texts)]
    mine = got[: len(texts)]
    np.testing.assert_allclose(mine[:, 2] / mine[:, 0], [s["white_space_ratio"] for s in stats], atol=1e-6)
    np.testing.assert_allclose(mine[:, 4] / mine[:, 0], [s["digit_ratio"] for s in stats], atol=1e-6)
    peer = GopherQualityFilter()
    peer.filter(Document(text=texts[0], id="warm"))
    theirs, _ = cpu(lambda: [peer.filter(Document(text=t, id="x")) for t in texts], 1)
    ratio = (40 * size / ours) / (size / theirs)
    print(f"\nstatistics: {40 * size / ours / 1e6:.0f} MB/s, datatrove's Gopher quality {size / theirs / 1e6:.2f} MB/s: {ratio:.0f} x")
    assert ratio >= 500


def test_periods_against_olmo_core() -> None:
    """Its own finder with its own limits, on rows of four lengths: repeated units of 1 to 14 ids around 32 times, at the ends and inside."""
    pytest.importorskip("olmo_core")
    from olmo_core.data.numpy_dataset import InstanceFilterConfig
    from olmo_core.data.utils import find_periodic_sequences

    limits = InstanceFilterConfig()
    rng = np.random.default_rng(7)
    rows = [rng.integers(0, 300, 4096) for _ in range(60)]
    for length in (100, 500, 2048, 4096):
        for period in range(1, 15):
            for times in (3, 28, 30, 31, 32, 33, 40):
                for place in (0.0, 0.5, 1.0):
                    noise = rng.integers(0, (2, 9, 50_000)[int(2 * place)], length)
                    unit = rng.integers(0, (50_000, 2, 9)[int(2 * place)], period)
                    at = int(place * length)
                    row = np.concatenate([noise[:at], np.tile(unit, times), unit[: int(rng.integers(0, period))], noise[at:]])
                    rows.append(row)
    flat, offsets = np.concatenate(rows).astype(np.uint32), np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)

    def theirs() -> list[int]:
        most = [max((m.times for m in find_periodic_sequences(r, limits.repetition_max_period, limits.repetition_min_period)), default=0) for r in rows]
        return [m if m >= limits.repetition_max_count else 0 for m in most]

    def ours() -> Any:
        return period_runs(flat, offsets, limits.repetition_min_period, limits.repetition_max_period, limits.repetition_max_count)

    ours()
    their_time, expected = cpu(theirs, 1)
    our_time, got = cpu(ours)
    assert got[:, 0].tolist() == expected and 0.3 < np.mean(np.array(expected) > 0) < 0.9
    print(f"\nperiods: {len(flat) / our_time / 1e6:.0f} Mtok/s, OLMo-core {len(flat) / their_time / 1e6:.2f}: {their_time / our_time:.0f} x")
    assert their_time / our_time >= 50


@pytest.mark.parametrize("length", [150, 800, 4000])
def test_signatures_against_daft(length: int) -> None:
    """The same texts of words; ours cut into words and hashed as well. Five words a shingle, 128 values."""
    daft = pytest.importorskip("daft")
    from daft.functions import minhash as their_minhash

    rng = np.random.default_rng(0)
    n = 400_000 // length // 2 * 2
    words = [f"{w:x}" for w in range(16_000, 60_000)]
    rows = rng.integers(0, len(words), (n, length))
    rows[1::2, : 2 * length // 3] = rows[0::2, : 2 * length // 3]
    texts = [" ".join(words[w] for w in row) for row in rows.tolist()]
    frame = daft.from_pydict({"text": texts}).collect()

    def theirs() -> Any:
        return frame.select(their_minhash(daft.col("text"), num_hashes=128, ngram_size=5)).to_pydict()

    batch = DocumentBatch.from_texts(texts)
    minhash(*units(batch))
    their_time, found = cpu(theirs)
    our_time, (values, _) = cpu(lambda: minhash(*units(batch)))
    on_ids, _ = cpu(lambda: minhash(rows.reshape(-1).astype(np.uint32), np.arange(0, n * length + 1, length)))
    a, b = np.arange(0, n, 2), np.arange(1, n, 2)
    exact = jaccard(rows.reshape(-1).astype(np.uint32), np.arange(0, n * length + 1, length), a, b)
    other = np.array(next(iter(found.values())), np.uint32)
    mine = (values[a] == values[b]).mean(1)
    for estimates in (mine, (other[a] == other[b]).mean(1)):
        assert abs(estimates.mean() - exact.mean()) < 0.02 and np.sqrt(np.mean((estimates - exact) ** 2)) < 0.06
    tokens = n * length / 1e6
    print(f"\nsignatures, {length} words: text {tokens / our_time:.0f}, ids {tokens / on_ids:.0f}, daft {tokens / their_time:.1f} Mtok/s", end=": ")
    print(f"{their_time / our_time:.0f} x on the same text, {their_time / on_ids:.0f} x on ids")
    assert their_time / on_ids >= 5
