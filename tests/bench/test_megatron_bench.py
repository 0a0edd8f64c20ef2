"""Ratios of the Megatron loader: locating through a large cached index, blend order, gather against memcpy, memory.

Run with `pytest tests/bench -s`; figures are CPU seconds of this process. Sizes come down with `FORENSICS_BENCH=small`.
"""

import json
import os
import struct
import time
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from forensics.loaders.base import loader_of
from forensics.loaders.megatron.blend import BlendOrder
from forensics.loaders.megatron.loader import MegatronLoader
from forensics.loaders.rows import rows_of
from forensics.run import RunFile, resolve
from forensics.steps import StepRange

pytestmark = pytest.mark.bench
SMALL = os.environ.get("FORENSICS_BENCH") == "small"


def timed(work):
    begin = time.process_time()
    value = work()
    return value, time.process_time() - begin


def private_bytes():
    """Memory of this process that is no mapped file."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


def write_index(prefix, lengths):
    """An index over tokens that nobody reads: the `.bin` is a hole of the right size."""
    n = len(lengths)
    offsets = np.zeros(n, np.int64)
    np.cumsum(lengths[:-1].astype(np.int64) * 2, out=offsets[1:])
    prefix.parent.mkdir(parents=True, exist_ok=True)
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, n + 1)
    prefix.with_name(prefix.name + ".idx").write_bytes(head + lengths.tobytes() + offsets.tobytes() + np.arange(n + 1, dtype=np.int64).tobytes())
    with prefix.with_name(prefix.name + ".bin").open("wb") as file:
        file.truncate(int(lengths.sum(dtype=np.int64)) * 2)


def described(folder, args, **keys):
    return resolve(msgspec.convert({"trainer": "megatron", "version": "0.16.1", "args": args, **keys}, RunFile), None, folder)


def base(**args):
    return {
        "split": "100,0,0",
        "seq_length": 4096,
        "seed": 1234,
        "global_batch_size": 256,
        "micro_batch_size": 4,
        "data_parallel_size": 32,
        "eval_iters": 0,
    } | args


def warm_up(folder):
    """Compile, so that no figure holds it."""
    write_index(folder / "warm", np.full(50, 9000, np.int32))
    run = described(folder, base(data_path=["0.5", "warm", "0.5", "warm"], train_iters=1, global_batch_size=64, micro_batch_size=1, data_parallel_size=1))
    table = pa.concat_tables(loader_of(run).consumed(run, StepRange(1, 2)))
    list(rows_of(table, loader_of(run).store(run), 4097))
    loader_of(run).store(run).gather(table)


def test_locating_steps_through_a_large_cached_index(tmp_path):
    """300 steps x 256 rows of a run of 1e8 samples: under a second, whatever the index's size."""
    warm_up(tmp_path)
    samples = 10**6 if SMALL else 10**8
    sequences, length = 1000, 4096
    per = samples * length // sequences + 1  # few long sequences keep the files small; the index is as long as ever
    tokens = np.full(sequences, min(per, 2**31 - 1), np.int32)
    write_index(tmp_path / "big", tokens)
    total = int(tokens.sum(dtype=np.int64))
    samples = (total - 1) // length
    run = described(tmp_path, base(data_path=["big"], train_iters=None, train_samples=samples - samples % 256), cache="cache")
    folder = tmp_path / "cache"
    folder.mkdir()
    content = {
        "dataset_path": "big",
        "num_samples": samples - samples % 256,
        "index_split": "train",
        "random_seed": 1234,
        "sequence_length": length,
        "split": "100,0,0",
    }
    (folder / "0-GPTDataset-train-description.txt").write_text(json.dumps(content))
    np.save(folder / "0-GPTDataset-train-document_index.npy", np.arange(sequences, dtype=np.int32))
    index = np.lib.format.open_memmap(folder / "0-GPTDataset-train-sample_index.npy", "w+", np.int32, (samples + 1, 2))
    shuffle = np.lib.format.open_memmap(folder / "0-GPTDataset-train-shuffle_index.npy", "w+", np.uint32, (samples,))
    starts = np.concatenate([[0], np.cumsum(tokens.astype(np.int64))])
    for first in range(0, samples + 1, 1 << 22):
        flat = np.arange(first, min(samples + 1, first + (1 << 22))) * length
        entry = np.minimum(np.searchsorted(starts, flat, side="right") - 1, sequences - 1)
        index[first : first + len(flat)] = np.stack([entry, flat - starts[entry]], axis=1)
        numbers = np.arange(first, min(samples, first + (1 << 22)))
        shuffle[first : first + len(numbers)] = numbers * 7919 % samples
    index.flush(), shuffle.flush()
    del index, shuffle
    loader = MegatronLoader()
    step = samples // 256 // 2
    table, seconds = timed(lambda: pa.concat_tables(loader.consumed(run, StepRange(step, step + 300))))
    assert loader.blends(run)["origin"].to_pylist() == ["cached_index"]
    assert len(np.unique(table["step"].to_numpy())) == 300
    print(f"\nlocating 300 steps x 256 rows of {samples:.2g} samples, cached: {seconds:.2f} s")
    assert seconds < 1.0


def test_blend_order_against_the_plain_form():
    """1e7 samples of 20 corpora; the library's helper does one pass over the corpora per sample, as ours does."""
    n, plain_n = (10**5, 10**4) if SMALL else (10**7, 10**5)
    weights = np.random.default_rng(0).random(20)
    order = BlendOrder(weights.tolist(), n)
    BlendOrder(weights.tolist(), 10).counts()
    _, seconds = timed(order.counts)

    def plain():
        counts = [0] * 20
        w = order.weights.tolist()
        for i in range(plain_n):
            scale, best, error = max(i, 1), 0, w[0] * max(i, 1) - counts[0]
            for c in range(1, 20):
                if w[c] * scale - counts[c] > error:
                    best, error = c, w[c] * scale - counts[c]
            counts[best] += 1
        return counts

    counts, plain_seconds = timed(plain)
    assert BlendOrder(weights.tolist(), plain_n).counts().tolist() == counts
    ratio = (plain_seconds / plain_n) / (seconds / n)
    print(f"\nblend of 20: {n / seconds / 1e6:.1f} M samples/s, {ratio:.0f} x the plain form")
    assert ratio > 10


def test_a_window_of_a_blend_of_twenty(tmp_path):
    """300 steps x 256 x 4096 tokens: rebuilt order, tokens of every row, against memcpy of the same bytes."""
    warm_up(tmp_path)
    rng = np.random.default_rng(0)
    items = []
    for c in range(20):
        write_index(tmp_path / f"c{c}", np.minimum(np.exp(rng.normal(6.3, 1.2, 4000 if SMALL else 40000)).astype(np.int32) + 1, 60000))
        items += [f"{rng.uniform(0.2, 5):.3f}", f"c{c}"]
    run = described(tmp_path, base(data_path=items, train_iters=1000))
    loader = MegatronLoader()
    steps = StepRange(500, 510 if SMALL else 800)
    tables, located = timed(lambda: list(loader.consumed(run, steps)))
    store = loader.store(run)

    def read():
        tokens = 0
        for table in tables:
            for block in rows_of(table, store, 4097):
                tokens += block.tokens.size
        return tokens

    tokens, seconds = timed(read)
    _, seconds = timed(read)  # the map is warm now, as memcpy's source is
    source = np.zeros(1 << 22, np.int32)
    _, copied = timed(lambda: [source.copy() for _ in range(tokens // (1 << 22))])
    own = private_bytes()
    print(f"\n{len(steps)} steps, {sum(t.num_rows for t in tables):,} segments: located {located:.2f} s; {tokens / 1e6:.0f} M tokens read in {seconds:.2f} s")
    print(f"{tokens / seconds / 1e6:.0f} M tokens/s, {copied / seconds:.2f} x memcpy of the same bytes; {own / 2**20:.0f} MiB held beside mapped files")
    assert own < 1.5 * 2**30
    assert located < 5
    assert copied / seconds > 0.1
