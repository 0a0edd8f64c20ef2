"""Orders of ten million sequences against the library's own path on the same input: equal, how many times faster, memory.

A library runs in its own interpreter: name it by FORENSICS_PEER_MEGATRON_CORE, FORENSICS_PEER_OLMO_CORE or
FORENSICS_PEER_STREAMING (a python in whose environment the package is installed); by default this one is tried. Sizes
come down with FORENSICS_BENCH=small. Times are CPU seconds of one process without imports and compilation; memory is
the peak of resident memory above what was resident before, measured in a process of its own on both sides.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.bench
N = 10**5 if os.environ.get("FORENSICS_BENCH") == "small" else 10**7

HEAD = """
import json, sys, time
import numpy as np
n, out = int(sys.argv[1]), sys.argv[2]
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
def measured(work):
    open("/proc/self/clear_refs", "w").write("5")
    before = peak()
    begin = time.process_time()
    value = work()
    spent = time.process_time() - begin
    grown = peak() - before
    np.save(out, np.stack([np.asarray(v).reshape(-1) for v in value]) if isinstance(value, tuple) else np.asarray(value).reshape(-1))
    print(json.dumps({"seconds": spent, "mib": grown / 1024}))
weights = np.random.default_rng(0).random(20)
weights /= weights.sum()
shards = np.random.default_rng(1).integers(500, 3000, n // 1750 + 1)
shards = np.append(shards[: int(np.searchsorted(np.cumsum(shards), n))], 7)
"""

OURS = {
    "megatron": """
from forensics.loaders.megatron.blend import BlendOrder
BlendOrder(weights.tolist(), 100).pick(np.arange(100))
order, at = BlendOrder(weights.tolist(), n), np.arange(n)
measured(lambda: order.pick(at))
""",
    "olmo_core": """
from forensics.loaders.olmo_core.order import chunked_order
measured(lambda: chunked_order(n, 1, 17 + 1))
""",
    "olmo_core_chunks": """
from forensics.loaders.olmo_core.order import chunked_order
measured(lambda: chunked_order(n, 4, 17 + 1))
""",
    "streaming": """
from forensics.loaders.streaming.batching import Plan, epoch_batches
from forensics.loaders.streaming.partition import World
from forensics.loaders.streaming.weights import Resampling, StreamShards, apply_weights
streams = (StreamShards(shards),)
plan = Plan(streams, apply_weights(streams, None, 5), Resampling("balanced", 1, 5, True), World(2, 8, 1), 16, 2, None, "relaxed", "py1e", 1 << 18, "random")
measured(lambda: epoch_batches(plan, 3, 0))
""",
}
THEIRS = {
    "megatron": """
from megatron.core.datasets import helpers_cpp
a, b = np.zeros(n, np.int16), np.zeros(n, np.int64)
def work():
    helpers_cpp.build_blending_indices(a, b, weights, len(weights), n, False)
    return a, b
measured(work)
""",
    "olmo_core": """
from types import SimpleNamespace
from olmo_core.data.data_loader import NumpyFSLDataLoader
loader = SimpleNamespace(dataset=range(n), shuffle=True, seed=17, epoch=1, chunk_size=1)
measured(lambda: NumpyFSLDataLoader._build_global_indices(loader))
""",
    "streaming": """
from types import SimpleNamespace
from streaming import StreamingDataset
from streaming.base.batching.random import generate_work_random_batching
from streaming.base.world import World
data = SimpleNamespace(
    num_canonical_nodes=2, batch_size=16, partition_algo="relaxed", epoch_size=int(shards.sum()), initial_physical_nodes=None, shuffle=True,
    shuffle_block_size=1 << 18, shuffle_algo="py1e", shuffle_seed=5, sampling_method="balanced", sampling_granularity=1, num_streams=1, epoch_seed_change=True,
    streams=[SimpleNamespace(choose=int(shards.sum()))], shard_offset_per_stream=np.array([0]), sample_offset_per_shard=np.cumsum(shards) - shards,
    shards_per_stream=np.array([len(shards)]), samples_per_shard=shards, stream_per_shard=np.zeros(len(shards), np.int64),
)
data.resample_streams = lambda epoch, stream_id=None: StreamingDataset.resample_streams(data, epoch, stream_id)
world = SimpleNamespace(num_nodes=2, ranks_per_node=8, workers_per_rank=1)
measured(lambda: generate_work_random_batching(data, world, 3, 0))
""",
}
THEIRS["olmo_core_chunks"] = THEIRS["olmo_core"].replace("chunk_size=1", "chunk_size=4")
PEER = {"megatron": "MEGATRON_CORE", "olmo_core": "OLMO_CORE", "olmo_core_chunks": "OLMO_CORE", "streaming": "STREAMING"}


def run(python, code, out):
    return subprocess.run([python, "-c", HEAD + code, str(N), str(out)], capture_output=True, text=True)


@pytest.mark.parametrize("name", OURS)
def test_an_order_of_ten_million(name, tmp_path):
    theirs = run(os.environ.get(f"FORENSICS_PEER_{PEER[name]}", sys.executable), THEIRS[name], tmp_path / "theirs.npy")
    if "ModuleNotFoundError" in theirs.stderr:
        pytest.skip(f"name an interpreter that has the library: FORENSICS_PEER_{PEER[name]}")
    ours = run(sys.executable, OURS[name], tmp_path / "ours.npy")
    assert (theirs.returncode, ours.returncode) == (0, 0), theirs.stderr + ours.stderr
    a, b = np.load(tmp_path / "theirs.npy", mmap_mode="r"), np.load(tmp_path / "ours.npy", mmap_mode="r")
    if name == "streaming":  # (node, rank, worker, batch, place) there, (batch, rank, place) here
        a = a.reshape(2, 8, 1, -1, 16).transpose(3, 2, 0, 1, 4).reshape(-1)
    np.testing.assert_array_equal(a, b)
    own, peer = json.loads(ours.stdout.splitlines()[-1]), json.loads(theirs.stdout.splitlines()[-1])
    print(f"\n{name}: {N:,} equal; {own['seconds']:.2f} s, +{own['mib']:.0f} MiB; the library {peer['seconds']:.2f} s, +{peer['mib']:.0f} MiB;"
          f" {peer['seconds'] / own['seconds']:.2f} x")  # fmt: skip
    assert own["seconds"] < 2 * peer["seconds"] + 0.5
