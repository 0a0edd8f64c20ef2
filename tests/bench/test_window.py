"""The passes over one window of tokens: CPU seconds of one core, and memory beside the mapped file.

Real ids are not at hand here, so documents are drawn from a small set of skewed sentences, tiled and edited. The size is
`FORENSICS_BENCH_TOKENS` (default 20 M; 250 M is the size that the design names), budgets scale with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from forensics.stores.write import MegatronWriter

pytestmark = pytest.mark.bench
TOKENS = int(float(os.environ.get("FORENSICS_BENCH_TOKENS", "2e7")))
PASSES = """
import resource, sys, time
from pathlib import Path
import numpy as np
from forensics.clustering.cluster import ClusterSettings, cluster
from forensics.clustering.exact import content_hashes
from forensics.clustering.minhash import sign
from forensics.documents.buckets import buckets
from forensics.documents.lengths import length_summary, source_summary
from forensics.pipelines.shards import describe
from forensics.schemas import DOCUMENTS, SIGNATURES
from forensics.stores.corpus import Corpus
from forensics.stores.records import ReadOptions
from forensics.stores.sniff import open_records

def passes(path):
    file = open_records(path, ReadOptions())
    documents, signatures = [], []
    for shard in file.shards(1 << 28):
        for part in file.parts(shard, 0, 1 << 24):
            signatures.append(sign(part.batch))
            documents.append(describe(part, "s"))
    documents, signatures = DOCUMENTS.concat(documents), SIGNATURES.concat(signatures)
    clusters = cluster(signatures, documents, ClusterSettings(), Corpus([file], path.parent))
    length_summary(documents), source_summary(documents, None, clusters), buckets(documents)
    return documents.num_rows

def private():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * 1024

passes(Path(sys.argv[2]))
start = time.process_time()
n = passes(Path(sys.argv[1]))
print(time.process_time() - start, n, private())
"""


def window(prefix: Path, tokens: int, length: float, seed: int = 0) -> Path:
    """Documents around a mean length, half of them edited copies of earlier ones."""
    rng = np.random.default_rng(seed)
    base = (rng.zipf(1.3, 1 << 20) % 50_000).astype(np.uint16)
    with MegatronWriter(prefix, np.dtype(np.uint16)) as writer:
        written = 0
        while written < tokens:
            flat = np.roll(base, int(rng.integers(1 << 20)))
            rate = rng.random() ** 3 * 0.3
            edited = rng.random(len(flat)) < rate
            flat[edited] = rng.integers(0, 50_000, int(edited.sum()))
            cuts = np.cumsum(np.maximum(1, rng.lognormal(np.log(length) - 0.5, 1.0, int(3 * len(flat) / length))).astype(np.int64))
            lengths = np.diff(np.concatenate([[0], cuts[cuts < len(flat)], [len(flat)]]))
            writer.add(flat, lengths[lengths > 0])
            written += len(flat)
    return prefix


def measured(folder: Path, prefix: Path) -> tuple[float, int, int]:
    """CPU seconds, documents and private bytes of a fresh process; compiled and warm."""
    small = window(folder / "warm", 1 << 20, 600)
    done = subprocess.run([sys.executable, "-c", PASSES, str(prefix), str(small)], capture_output=True, text=True, check=True)
    seconds, n, memory = done.stdout.split()
    return float(seconds), int(n), int(memory)


def test_a_window_in_time_and_memory(tmp_path: Path) -> None:
    seconds, n, memory = measured(tmp_path, window(tmp_path / "w", TOKENS, 800))
    print(f"\n{TOKENS / 1e6:.0f} M tokens, {n:,} documents: {seconds:.2f} s of CPU, {memory / 2**20:.0f} MiB beside the map")
    assert seconds <= max(1.5, 10 * TOKENS / 250e6)
    assert memory <= 1.5 * 2**30 + 512 * n


def test_memory_does_not_grow_with_the_length_of_documents(tmp_path: Path) -> None:
    _, n, memory = measured(tmp_path, window(tmp_path / "a", TOKENS // 2, 1000))
    _, m, twice = measured(tmp_path, window(tmp_path / "b", TOKENS, 2000))
    print(f"\n{n:,} documents: {memory / 2**20:.0f} MiB; {m:,} of twice the length: {twice / 2**20:.0f} MiB")
    assert abs(n - m) < 0.1 * n
    assert twice <= 1.1 * memory + (32 << 20)
