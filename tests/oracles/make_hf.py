"""Cases of torch, torchdata, Accelerate and the Hugging Face Trainer with random options, read through the libraries themselves.

python make_hf.py FOLDER --count 40 --seed 0 [--kinds Accelerate Trainer]
Made with torch 2.13.0, torchdata 0.11.0, accelerate 1.15.0, transformers 5.24.0;
`trainer_two_processes` ran under gloo. Elsewhere processes are taken one after the other, so
`dispatch_batches` needs `--kinds Dispatch`, which starts them.
"""

import argparse
import json
import random
import shutil
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VERSIONS = {"torch": "2.13.0", "torchdata": "0.11.0", "accelerate": "1.15.0", "transformers": "5.24.0"}


class Documents(Dataset):
    def __init__(self, n):
        self.n = n
        self.column_names = ["input_ids"]

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return int(i)


def write(folder, run, documents, rows):
    """Rows are (step, micro batch, rank, example)."""
    folder.mkdir(parents=True)
    rows = np.array(sorted(rows, key=lambda r: r[:3]), np.int64).reshape(-1, 4)
    steps, counts = np.unique(rows[:, 0], return_counts=True)
    width = max(len(d) for d in documents)
    tokens = np.full((len(rows), width), -1, np.int32)
    for i, document in enumerate(rows[:, 3]):
        tokens[i, : len(documents[document])] = documents[document]
    np.savez_compressed(
        folder / "expected.npz", steps=steps, row_ptr=np.r_[0, np.cumsum(counts)], sample_ids=rows[:, 3], rank=rows[:, 2].astype(np.int32),
        micro=rows[:, 1].astype(np.int32), tokens=tokens,
    )  # fmt: skip
    lines = [json.dumps({"id": f"d{i}", "input_ids": d}) for i, d in enumerate(documents)]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "run.json").write_text(json.dumps({"framework_version": VERSIONS, "sources": ["data.jsonl"], **run}, indent=1))


def as_list(batch):
    return batch.tolist() if isinstance(batch, torch.Tensor) else list(batch)


def stepped(epochs, accumulation, partial, first_step=1):
    """Micro batches of epochs, each a list over ranks, as rows."""
    rows, step, micro = [], first_step, 0
    for epoch in epochs:
        if partial == "dropped":
            epoch = epoch[: len(epoch) // accumulation * accumulation]
        for ranks in epoch:
            for rank, batch in enumerate(ranks):
                rows += [(step, micro, rank, i) for i in batch]
            micro += 1
            if micro == accumulation:
                step, micro = step + 1, 0
        if micro and partial == "kept":
            step, micro = step + 1, 0
    return rows if partial != "carried" or not micro else [r for r in rows if r[0] != step]


def together(ranks):
    """Loaders of all ranks, read in step; a rank that has ended reads nothing."""
    each = [[as_list(b) for b in loader] for loader in ranks]
    return [[e[i] if i < len(e) else [] for e in each] for i in range(max(map(len, each)))]


def sampler(rng, n):
    ranks, epochs = rng.choice([1, 2, 3, 4]), 3
    run = {
        "framework": "pytorch", "loader": "DistributedSampler", "world_size": ranks, "batch_size": rng.randint(1, 5), "seed": rng.randint(0, 999),
        "shuffle": rng.random() < 0.7, "drop_last": rng.random() < 0.5, "sampler_drop_last": rng.random() < 0.5, "set_epoch_called": rng.random() < 0.7,
        "gradient_accumulation_steps": rng.choice([1, 2, 3]), "partial_accumulation": rng.choice(["dropped", "kept", "carried"]), "epochs": epochs,
    }  # fmt: skip
    out = []
    samplers = [DistributedSampler(Documents(n), ranks, r, shuffle=run["shuffle"], seed=run["seed"], drop_last=run["sampler_drop_last"]) for r in range(ranks)]
    for epoch in range(epochs):
        for s in samplers:
            if run["set_epoch_called"]:
                s.set_epoch(epoch)
        out.append(together([DataLoader(Documents(n), run["batch_size"], sampler=s, drop_last=run["drop_last"]) for s in samplers]))
    return run, stepped(out, run["gradient_accumulation_steps"], run["partial_accumulation"]), None


def plain(rng, n):
    run = {
        "framework": "pytorch", "loader": "DataLoader", "world_size": 1, "batch_size": rng.randint(1, 5), "drop_last": rng.random() < 0.5,
        "shuffle": rng.random() < 0.8, "generator_seed": rng.randint(0, 2**33), "gradient_accumulation_steps": rng.choice([1, 2]),
        "partial_accumulation": rng.choice(["dropped", "kept", "carried"]), "epochs": 3, "num_workers": rng.choice([0, 1, 2]),
    }  # fmt: skip
    run["persistent_workers"] = run["num_workers"] > 0 and rng.random() < 0.5
    generator = torch.Generator().manual_seed(run["generator_seed"])
    workers = {"num_workers": run["num_workers"], "persistent_workers": run["persistent_workers"]}
    loader = DataLoader(Documents(n), run["batch_size"], shuffle=run["shuffle"], drop_last=run["drop_last"], generator=generator, **workers)
    epochs = [[[as_list(b)] for b in loader] for _ in range(3)]
    return run, stepped(epochs, run["gradient_accumulation_steps"], run["partial_accumulation"]), None


def stateful(rng, n):
    from torchdata.stateful_dataloader import StatefulDataLoader

    run = {
        "framework": "pytorch", "loader": "StatefulDataLoader", "world_size": 1, "batch_size": rng.randint(1, 4), "drop_last": rng.random() < 0.5,
        "shuffle": True, "num_workers": rng.choice([0, 0, 1, 2]), "generator_seed": rng.randint(0, 9999),
    }  # fmt: skip
    run["persistent_workers"] = run["num_workers"] > 0 and rng.random() < 0.5

    def opened(seed):
        generator = torch.Generator().manual_seed(seed)
        return StatefulDataLoader(
            Documents(n), run["batch_size"], shuffle=True, drop_last=run["drop_last"], generator=generator, num_workers=run["num_workers"],
            persistent_workers=run["persistent_workers"],
        )  # fmt: skip

    loader, done, rows = opened(run["generator_seed"]), 0, []
    length = len(loader)
    stop = rng.randint(1, 2 * length - 1)
    stop += stop % length == 0
    while done < stop:
        for batch in loader:
            done += 1
            rows += [(done, 0, 0, i) for i in as_list(batch)]
            if done == stop:
                state = loader.state_dict()
                break
    again = opened(7)
    again.load_state_dict(state)
    for _ in range(3):
        for batch in again:
            done += 1
            rows += [(done, 0, 0, i) for i in as_list(batch)]
    run["resumed_after"], run["state"] = stop, "loader.pt"
    return run, rows, lambda folder: torch.save(state, folder / "loader.pt")


def accelerated(rng, n):
    from accelerate.data_loader import prepare_data_loader, skip_first_batches

    ranks = rng.choice([1, 2, 3])
    run = {
        "framework": "pytorch", "loader": "Accelerate", "world_size": ranks, "drop_last": rng.random() < 0.4, "shuffle": rng.random() < 0.8,
        "data_seed": rng.randint(0, 999), "split_batches": rng.random() < 0.4, "even_batches": rng.random() < 0.7, "accelerate_version": "1.15.0",
        "gradient_accumulation_steps": 1,
    }  # fmt: skip
    run["batch_size"] = rng.randint(1, 4) * (ranks if run["split_batches"] else 1)

    def opened():
        return [
            prepare_data_loader(
                DataLoader(Documents(n), run["batch_size"], shuffle=run["shuffle"], drop_last=run["drop_last"]), num_processes=ranks, process_index=r,
                split_batches=run["split_batches"], even_batches=run["even_batches"], use_seedable_sampler=True, put_on_device=False,
                data_seed=run["data_seed"],
            )
            for r in range(ranks)
        ]  # fmt: skip

    epochs, loaders = [], opened()
    for epoch in range(2):
        for loader in loaders:
            loader.set_epoch(epoch)
        epochs.append(together(loaders))
    rows = stepped(epochs, 1, "kept")
    length = len(epochs[0])
    skip = rng.randint(1, max(length - 1, 1))
    if length > 1:
        loaders = opened()
        for loader in loaders:
            loader.set_epoch(1)
        rest = together([skip_first_batches(loader, skip) for loader in loaders])
        loaders = opened()
        for loader in loaders:
            loader.set_epoch(2)
        rows += [(r[0] + 10**6, *r[1:]) for r in stepped([rest, together(loaders)], 1, "kept", length + skip + 1)]
        run["resumed"] = {"epoch": 1, "skip_first_batches": skip, "after": length + skip}
    return run, rows, None


def trained(rng, n):
    import transformers

    folder = Path("/tmp") / f"trainer_{rng.randint(0, 10**9)}"
    rows, now = [], {"step": 1, "micro": 0}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(1))

        def forward(self, ids=None, labels=None):
            rows.extend((now["step"], now["micro"], 0, int(i)) for i in ids)
            now["micro"] += 1
            return {"loss": (self.w * 0).sum()}

    class After(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            now.update(step=state.global_step + 1, micro=0)

    options = {
        "per_device_train_batch_size": rng.randint(1, 4), "gradient_accumulation_steps": rng.choice([1, 2, 3]), "num_train_epochs": rng.choice([2, 3]),
        "seed": rng.randint(0, 999), "dataloader_drop_last": rng.random() < 0.5, "save_steps": rng.randint(2, 9), "ignore_data_skip": rng.random() < 0.3,
        "train_sampling_strategy": rng.choice(["random", "random", "sequential"]),
    }  # fmt: skip
    if rng.random() < 0.5:
        options["data_seed"] = rng.randint(0, 99)

    def train(resume=None):
        plain = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "logging_strategy": "no", "remove_unused_columns": False}
        args = transformers.TrainingArguments(str(folder), **plain, **options)
        trainer = transformers.Trainer(
            Model(), args, train_dataset=Documents(n), data_collator=lambda b: {"ids": torch.tensor(b), "labels": torch.tensor(b)}, callbacks=[After()]
        )
        trainer.train(resume_from_checkpoint=resume)

    train()
    run = {"framework": "transformers", "training_args": options, "world_size": 1}
    last = max(r[0] for r in rows)
    at = options["save_steps"]
    if at < last:
        first, rows[:] = list(rows), []
        now.update(step=at + 1, micro=0)
        train(str(folder / f"checkpoint-{at}"))
        run["resumed_from"], run["stopped_after"] = f"checkpoint-{at}", last
        rows[:] = first + [(r[0] + 10**6, *r[1:]) for r in rows]
    shutil.rmtree(folder)
    return run, rows, None


def _process(rank, ranks, port, jobs, out):
    import os

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    from accelerate import Accelerator, DataLoaderConfiguration

    found = []
    accelerator = None
    for run, n in jobs:
        config = DataLoaderConfiguration(
            dispatch_batches=True, split_batches=run["split_batches"], even_batches=run["even_batches"], use_seedable_sampler=True, data_seed=run["data_seed"]
        )
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        loader = DataLoader(Documents(n), run["batch_size"], shuffle=run["shuffle"], drop_last=run["drop_last"])
        loader = accelerator.prepare_data_loader(loader)
        epochs = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            epochs.append([as_list(b) for b in loader])
        found.append(epochs)
    Path(out, f"{rank}.json").write_text(json.dumps(found))


def dispatched(out, seed, count):
    """Cases of `dispatch_batches`: all of one number of processes in one start."""
    rng = random.Random(seed)
    for ranks in (2, 3):
        jobs = []
        for _ in range(count):
            run = {
                "framework": "pytorch", "loader": "Accelerate", "world_size": ranks, "drop_last": rng.random() < 0.4, "shuffle": rng.random() < 0.8,
                "data_seed": rng.randint(0, 999), "split_batches": rng.random() < 0.4, "even_batches": rng.random() < 0.7, "dispatch_batches": True,
            }  # fmt: skip
            run["batch_size"] = rng.randint(1, 4) * (ranks if run["split_batches"] else 1)
            jobs.append((run, rng.randint(8, 60)))
        scratch = Path(out) / "scratch"
        scratch.mkdir(parents=True)
        torch.multiprocessing.spawn(_process, (ranks, rng.randint(20000, 50000), jobs, str(scratch)), nprocs=ranks)
        each = [json.loads((scratch / f"{r}.json").read_text()) for r in range(ranks)]
        shutil.rmtree(scratch)
        for j, (run, n) in enumerate(jobs):
            epochs = [[[each[r][j][e][m] for r in range(ranks)] for m in range(len(each[0][j][e]))] for e in range(2)]
            write(Path(out) / f"dispatch_{ranks}_{seed}_{j}", run, _documents(rng, n), stepped(epochs, 1, "kept"))


def _documents(rng, n):
    return [[rng.randint(1, 199) for _ in range(rng.randint(1, 5))] for _ in range(n)]


KINDS = {"DistributedSampler": sampler, "DataLoader": plain, "StatefulDataLoader": stateful, "Accelerate": accelerated, "Trainer": trained}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", default=[*KINDS])
    args = parser.parse_args()
    if args.kinds == ["Dispatch"]:
        dispatched(args.out, args.seed, args.count)
        return
    for seed in range(args.seed, args.seed + args.count):
        rng = random.Random(seed)
        kind = args.kinds[seed % len(args.kinds)]
        n = rng.randint(8, 60)
        run, rows, save = KINDS[kind](rng, n)
        folder = args.out / f"{kind.lower()}_{seed}"
        if not rows:
            continue
        # a second launch is written behind the first one: its steps fall back
        late = [r for r in rows if r[0] > 10**6]
        if late:
            write_two(folder, run, _documents(rng, n), [r for r in rows if r[0] < 10**6], [(r[0] - 10**6, *r[1:]) for r in late])
        else:
            write(folder, run, _documents(rng, n), rows)
        if save:
            save(folder)


def write_two(folder, run, documents, first, second):
    """A run and the run resumed from its middle, one after the other."""
    write(folder, run, documents, first)
    one = dict(np.load(folder / "expected.npz"))
    shutil.rmtree(folder)
    write(folder, run, documents, second)
    two = dict(np.load(folder / "expected.npz"))
    two["row_ptr"] = two["row_ptr"][1:] + one["row_ptr"][-1]
    np.savez_compressed(folder / "expected.npz", **{k: np.concatenate([one[k], two[k]]) for k in one})


if __name__ == "__main__":
    main()
