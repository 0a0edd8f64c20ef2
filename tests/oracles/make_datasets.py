"""Cases of `datasets.IterableDataset` with random trees, read through the library, stopped, saved and resumed.

python make_datasets.py FOLDER --count 40 --seed 0
Made with datasets 5.2.0. Sources are generators, or Arrow tables of a `Dataset` read as a stream; ranks are iterated one after the other.
"""

import argparse
import json
import random
from pathlib import Path

import datasets
import numpy as np
from datasets.distributed import split_dataset_by_node

SOURCES = 3


def examples(name, documents, shards, n):
    for k in shards:
        for i in range(k, len(documents), n):
            yield {"number": i, "source": name, "input_ids": documents[i]}


def source(number, documents, shards, rule):
    if rule == "modulo":
        given = {"name": number, "documents": tuple(documents), "shards": list(range(shards)), "n": shards}
        return datasets.IterableDataset.from_generator(examples, gen_kwargs=given)
    rows = {"number": list(range(len(documents))), "source": [number] * len(documents), "input_ids": documents}
    return datasets.Dataset.from_dict(rows).to_iterable_dataset(num_shards=shards)


def operations(rng):
    """What is done to the sources that are put together."""
    interleave = {"stopping_strategy": rng.choice(["first_exhausted", "all_exhausted", "all_exhausted_without_replacement"])}
    if rng.random() < 0.75:
        weights = [rng.randint(1, 9) for _ in range(SOURCES)]
        interleave |= {"probabilities": [w / sum(weights) for w in weights], "seed": rng.randint(0, 999)}
    out = [{"interleave": interleave} if rng.random() < 0.85 else "concatenate"]
    extra = []
    if rng.random() < 0.6:
        shards = {"max_buffer_input_shards": rng.choice([1, 2, 3])} if rng.random() < 0.5 else {}
        extra.append({"shuffle": {"seed": rng.randint(0, 999), "buffer_size": 1, **shards}})
    if rng.random() < 0.3:
        extra.append({"skip": rng.randint(0, 9)})
    if rng.random() < 0.3:
        extra.append({"take": rng.randint(20, 90)})
    if rng.random() < 0.2:
        extra.append({"repeat": 2})
    rng.shuffle(extra)
    return out + extra


def built(run, documents):
    parts = [source(i, d, s["shards"], s["shard_rule"]) for i, (d, s) in enumerate(zip(documents, run["data"]))]
    for i, s in enumerate(run["data"]):
        for operation in s.get("pipeline", []):
            parts[i] = applied([parts[i]], operation)
    for operation in run["pipeline"]:
        parts = [applied(parts, operation)]
    return parts[0]


def applied(parts, operation):
    name, value = next(iter(operation.items())) if isinstance(operation, dict) else (operation, None)
    if name == "interleave":
        return datasets.interleave_datasets(parts, **value)
    if name == "concatenate":
        return datasets.concatenate_datasets(parts)
    return getattr(parts[0], name)(**value) if name == "shuffle" else getattr(parts[0], name)(value)


def read(ds, size, drop_last, stop=None):
    """Batches, and the state after `stop` of them."""
    out = []
    for batch in ds.iter(size, drop_last_batch=drop_last):
        out.append(list(zip(batch["source"], batch["number"])))
        if len(out) == stop:
            return out, ds.state_dict()
    return out, None


def lockstep(ranks):
    """Batches of ranks, step by step, as far as all have one."""
    return [[(r, x) for r, batches in enumerate(step) for x in batches] for step in zip(*ranks)]


def made(rng):
    arrow = rng.random() < 0.5
    rule = "contiguous" if arrow else "modulo"
    documents = [[[rng.randint(1, 199) for _ in range(rng.randint(1, 5))] for _ in range(rng.randint(9, 40))] for _ in range(SOURCES)]
    data = [{"paths": f"src{i}.jsonl", "shards": rng.randint(1, 5), "shard_rule": rule} for i in range(SOURCES)]
    if rng.random() < 0.2:
        data[rng.randrange(SOURCES)]["pipeline"] = [{rng.choice(["skip", "take"]): rng.randint(3, 8)}]
    ranks = rng.choice([1, 1, 1, 2, 3])
    run = {"framework": "datasets", "framework_version": {"datasets": datasets.__version__}, "loader": "datasets.IterableDataset",
           "sources": [d["paths"] for d in data], "data": data, "pipeline": operations(rng), "batch_size": rng.randint(1, 5),
           "drop_last": rng.random() < 0.3, "epoch": rng.choice([0, 0, 1, 2, 7]), "epochs": rng.choice([1, 2]), "world_size": ranks}  # fmt: skip
    strategy = rng.choice(["auto", "examples"]) if ranks > 1 else None
    each = [built(run, documents) for _ in range(ranks)]
    if strategy:
        each = [split_dataset_by_node(ds, r, ranks, strategy) for r, ds in enumerate(each)]
        run["pipeline"].append({"split_dataset_by_node": {"strategy": strategy}})
    steps = []
    for epoch in range(run["epoch"], run["epoch"] + run["epochs"]):
        for ds in each:
            ds.set_epoch(epoch)
        steps += lockstep([read(ds, run["batch_size"], run["drop_last"])[0] for ds in each])
        if epoch == run["epoch"]:
            first = len(steps)
    if first < 3:
        return None
    stop = rng.randint(1, first - 1)
    states = []
    for ds in each:
        ds.set_epoch(run["epoch"])
        states.append(json.loads(json.dumps(read(ds, run["batch_size"], run["drop_last"], stop)[1])))
    again = []
    for epoch in range(run["epoch"], run["epoch"] + run["epochs"]):
        ranks_read = []
        for r, ds in enumerate(each):
            ds.set_epoch(epoch)
            ds.load_state_dict(states[r])
            ranks_read.append(read(ds, run["batch_size"], run["drop_last"])[0])
        again += lockstep(ranks_read)
    run |= {"resumed_from_step": stop, "stopped_after": len(steps), "state_files": [f"state_rank{r}.json" for r in range(ranks)]}
    run["exact"] = again == steps[stop:]
    return run, documents, steps, again, stop, states


def write(folder, run, documents, steps, again, stop, states):
    folder.mkdir(parents=True)
    del run["exact"]
    rows = [(i + 1, *x) for i, s in enumerate(steps) for x in s] + [(stop + 1 + i, *x) for i, s in enumerate(again) for x in s]
    numbers = [*range(1, len(steps) + 1), *range(stop + 1, stop + 1 + len(again))]
    counts = [len(s) for s in [*steps, *again]]
    first = np.cumsum([0, *map(len, documents)])
    width = max(len(d) for part in documents for d in part)
    tokens = np.full((len(rows), width), -1, np.int32)
    for i, (_, _, (s, d)) in enumerate(rows):
        tokens[i, : len(documents[s][d])] = documents[s][d]
    key = np.array([x for _, _, x in rows], np.int64).reshape(-1, 2)
    np.savez_compressed(
        folder / "expected.npz", steps=np.array(numbers), row_ptr=np.r_[0, np.cumsum(counts)], sample_ids=first[key[:, 0]] + key[:, 1],
        rank=np.array([r for _, r, _ in rows], np.int32), micro=np.zeros(len(rows), np.int32), tokens=tokens, seg_ptr=np.arange(len(rows) + 1),
        seg_source=key[:, 0].astype(np.int32), seg_doc=key[:, 1], seg_start=np.zeros(len(rows), np.int64), seg_end=(tokens >= 0).sum(1),
    )  # fmt: skip
    for i, part in enumerate(documents):
        (folder / f"src{i}.jsonl").write_text("".join(json.dumps({"input_ids": d}) + "\n" for d in part))
    for name, state in zip(run["state_files"], states):
        (folder / name).write_text(json.dumps(state))
    (folder / "run.json").write_text(json.dumps(run, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    args = parser.parse_args()
    datasets.disable_progress_bars()
    for seed in range(args.seed, args.seed + args.count):
        try:
            case = made(random.Random(seed))
        except (ValueError, IndexError) as error:
            print(seed, "refused by the library:", str(error)[:100])
            continue
        if case:
            print(seed, "resume exact" if case[0]["exact"] else "resume differs", case[0]["world_size"], json.dumps(case[0]["pipeline"])[:150])
            write(args.out / f"iterable_{seed}", *case)


if __name__ == "__main__":
    main()
