"""Cases of old OLMo with random options: its own IterableDataset and one DataLoader per rank, resumed in the middle of an epoch.

python make_olmo.py FOLDER --count 20 --seed 0
Made with ai2-olmo 0.6.0. Epochs, counters and the resume follow `Trainer.fit` and `restore_from_checkpoint` of olmo/train.py.
"""

import argparse
import json
import random
from pathlib import Path

import numpy as np
import torch
from olmo.data.iterable_dataset import IterableDataset
from olmo.data.memmap_dataset import MemMapDataset
from torch.utils.data import DataLoader


def loaders(case, seed, epoch, start):
    """Loaders of all ranks; `work_dir` is None, so that every rank builds the order itself."""
    out = []
    for rank in range(case["ranks"]):
        data = IterableDataset(
            case["data"], case["each"] * case["ranks"], seed=seed, epoch=epoch, start_index=start, shuffle=True, drop_last=case["drop"],
            world_size=case["ranks"], rank=rank, fs_local_rank=rank,
        )  # fmt: skip
        out.append(DataLoader(data, batch_size=case["each"], drop_last=case["drop"], num_workers=case["workers"], collate_fn=list))
    return out


def run(case, seed, epoch, start, first, steps):
    """Rows (step, rank, id) of a leg, and where it stands after each step: (epoch, examples)."""
    rows, stands, step, seen = [], {}, first, start
    while step < first + steps:
        before = step
        for batches in zip(*loaders(case, seed, epoch, start)):
            rows += [(step, rank, item) for rank, batch in enumerate(batches) for item in batch]
            seen += len(batches[0]) * case["ranks"]
            stands[step] = (epoch, seen)
            step += 1
            if step == first + steps:
                break
        else:
            epoch, seen = epoch + 1, 0
            start = 0
            if step == before and not len(rows):
                raise ValueError("an epoch without a batch")
    return rows, stands


def make(root, number):
    rng = random.Random(number)
    folder = root / f"olmo_{number}"
    folder.mkdir(parents=True)
    length, sources, flat = rng.choice([4, 8]), [], []
    for i in range(rng.randint(1, 3)):
        tokens = np.array([rng.randint(1, 900) for _ in range(rng.randint(60, 400))], "<u2")
        tokens[rng.sample(range(len(tokens)), 9)] = 0
        tokens.tofile(folder / f"part-{i}.npy")
        sources.append(f"part-{i}.npy")
        flat += list(tokens[: len(tokens) // length * length].reshape(-1, length))
    case = {"ranks": rng.randint(1, 4), "each": rng.randint(1, 3), "drop": rng.random() < 0.5}
    case["workers"] = rng.choice([0, 2]) if case["drop"] or case["each"] < 3 else 0  # several workers split the rest of an epoch into steps of their own
    case["data"] = MemMapDataset(*[str(folder / s) for s in sources], chunk_size=length, memmap_dtype=np.uint16, include_instance_metadata=False)
    assert len(case["data"]) == len(flat)

    class Numbers:
        """Ids in place of tensors."""

        def __len__(self):
            return len(flat)

        def __getitem__(self, i):
            return int(i)

    case["data"], seed, batch = Numbers(), rng.randint(0, 9999), case["ranks"] * case["each"]
    IterableDataset._get_dataset_item = lambda self, i: int(i)
    first = rng.randint(2, 2 * len(flat) // batch + 2)
    rows, stands = run(case, seed, 0, 0, 1, first)
    at = rng.randint(1, first)
    epoch, seen = stands[at]
    forward = rng.choice([0, 0, 1, 2])
    room = len(flat) // batch * batch - batch
    plan = [{"steps": first}]
    late = []
    if seen + forward * batch <= room:
        more = rng.randint(2, 30)
        late, _ = run(case, seed, epoch, seen + forward * batch, at + 1, more)
        plan.append({"resume": at, "steps": more, **({"fast_forward_batches": forward} if forward else {})})
    both, steps, counts = [], [], []
    for part in filter(None, (rows, late)):
        part = sorted(part, key=lambda r: r[:2])
        own, times = np.unique([r[0] for r in part], return_counts=True)
        both, steps, counts = both + part, [*steps, *own.tolist()], [*counts, *times.tolist()]
    ids = np.array([r[2] for r in both], np.int64)
    np.savez_compressed(
        folder / "expected.npz", steps=np.array(steps), row_ptr=np.r_[0, np.cumsum(counts)], sample_ids=ids, rank=np.array([r[1] for r in both], np.int32),
        micro=np.zeros(len(ids), np.int32), tokens=np.array([flat[i] for i in ids], np.int32),
    )  # fmt: skip
    described = {
        "framework": "olmo-legacy", "framework_version": "0.6.0", "sources": sources, "dtype": "uint16", "sequence_length": length, "eos_token_id": 0,
        "data_seed": seed, "drop_last": case["drop"], "global_train_batch_size": batch, "world_size": case["ranks"], "plan": plan,
        "num_workers": case["workers"],
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(described, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for number in range(args.seed, args.seed + args.count):
        make(args.out, number)


if __name__ == "__main__":
    main()
