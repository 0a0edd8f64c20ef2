"""Cases of MosaicML Streaming with random options, read by its own data set and loader in one process, resumed once.

python make_streaming.py FOLDER --count 20 --seed 0
Made with mosaicml-streaming 0.13.0.
"""

import argparse
import json
import logging
import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

ENCODINGS = ("ndarray", "ndarray:uint16", "ndarray:int32:8", "bytes")


def stream(rng, folder, encoding, compression):
    """Documents of a stream, each one a sample."""
    documents = []
    with MDSWriter(out=str(folder), columns={"tokens": encoding}, compression=compression, size_limit=rng.randint(150, 600)) as out:
        for _ in range(rng.randint(15, 60)):
            tokens = np.array([rng.randint(1, 900) for _ in range(8 if encoding.endswith(":8") else rng.randint(1, 9))])
            dtype = {"bytes": "int64", "ndarray": "uint16"}.get(encoding) or encoding.split(":")[1]
            documents.append(tokens.tolist())
            out.write({"tokens": tokens.astype(dtype).tobytes() if encoding == "bytes" else tokens.astype(dtype)})
    return documents


def make(root, seed):
    rng = random.Random(seed)
    folder = root / f"streaming_{seed}"
    folder.mkdir(parents=True)
    streams = rng.randint(1, 3)
    encoding, compression = rng.choice(ENCODINGS), rng.choice([None, "zstd:3", "gz", "bz2"])
    documents = [stream(rng, folder / f"stream{i}", encoding, compression) for i in range(streams)]
    mode = rng.choice(["none", "proportion", "repeat", "choose"])
    weights = [
        {"proportion": round(rng.random() + 0.1, 2)} if mode == "proportion" else {"repeat": rng.choice([0.5, 1.5, 2])} if mode == "repeat"
        else {"choose": rng.randint(10, 70)} if mode == "choose" else {} for _ in range(streams)
    ]  # fmt: skip
    options = {
        "shuffle": rng.random() < 0.85, "shuffle_algo": rng.choice(["naive", "py1s", "py1e", "py1br", "py2s"]), "shuffle_seed": rng.randint(0, 9999),
        "shuffle_block_size": rng.choice([4, 16, 64]), "batching_method": rng.choice(["random", "random", "per_stream", "stratified", "device_per_stream"]),
        "partition_algo": rng.choice(["orig", "relaxed"]), "sampling_method": rng.choice(["balanced", "fixed"]), "sampling_granularity": rng.choice([1, 3]),
        "num_canonical_nodes": rng.choice([None, 1, 2, 4]),
    }  # fmt: skip
    if mode == "proportion" and rng.random() < 0.5:
        options["epoch_size"] = rng.randint(30, 120)
    size, drop = rng.randint(1, 4), rng.random() < 0.5

    def opened():
        clean_stale_shared_memory()
        work = Path(tempfile.mkdtemp())  # a copy each time: the data set unpacks shards beside themselves
        shutil.copytree(folder, work, dirs_exist_ok=True)
        given = [Stream(local=str(work / f"stream{i}"), **w) for i, w in enumerate(weights)]
        data = StreamingDataset(streams=given, batch_size=size, **{k: v for k, v in options.items() if v is not None})
        ids = []
        real = data.__class__.__getitem__

        class Seen(data.__class__):
            def __getitem__(self, i):
                ids.append(int(i))
                return real(self, i)

        data.__class__ = Seen
        loader = StreamingDataLoader(data, batch_size=size, num_workers=0, drop_last=drop, collate_fn=lambda b: {"tokens": [s["tokens"] for s in b]})
        return data, loader, ids

    steps, rows = [], []

    def run(state, step, stop):
        """Steps up to `stop`, and the state there."""
        _, loader, ids = opened()
        if state:
            loader.load_state_dict(state)
        while step < stop:
            for batch in loader:
                step += 1
                count = len(batch["tokens"])
                rows.append(ids[:count])
                del ids[:count]
                steps.append(step)
                if step == stop:
                    return loader.state_dict()
            ids.clear()
        return None

    first = rng.randint(3, 40)
    state = run(None, 0, first)
    last = first + rng.randint(5, 40)
    run(state, first, last)
    flat = [d for s in documents for d in s]
    ids = np.array([i for r in rows for i in r], np.int64)
    tokens = np.full((len(ids), max(map(len, flat))), -1, np.int32)
    for i, sample in enumerate(ids):
        tokens[i, : len(flat[sample])] = flat[sample]
    zero = np.zeros(len(ids), np.int32)
    row_ptr = np.r_[0, np.cumsum([len(r) for r in rows])]
    np.savez_compressed(folder / "expected.npz", steps=np.array(steps), row_ptr=row_ptr, sample_ids=ids, rank=zero, micro=zero, tokens=tokens)
    phases = [{"world_size": 1, "ranks_per_node": 1, "batch_size_per_rank": size, "first_step": a, "last_step": b} for a, b in ((1, first), (first + 1, last))]
    described = {
        "framework": "mosaicml-streaming", "framework_version": "0.13.0", "sources": [f"stream{i}" for i in range(streams)], "stream_weights": weights,
        "dataset_args": {k: v for k, v in options.items() if v is not None}, "drop_last": drop, "token_column": "tokens", "phases": phases,
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(described, indent=1))


def main():
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    args = parser.parse_args()
    for seed in range(args.seed, args.seed + args.count):
        try:
            make(args.out, seed)
        except Exception as error:  # some random options are ones that the library refuses
            print(seed, type(error).__name__, str(error)[:150])
            shutil.rmtree(args.out / f"streaming_{seed}")


if __name__ == "__main__":
    main()
