"""Make cases with the real OLMo-core: random token files, data sets of every kind, its own data loaders.

Needs the package `ai2-olmo-core` (3.0.0 was used) in an environment of its own; `python make_olmo_core.py OUT --seed N --count K`
writes K cases, each a folder with run.json, token files and expected.npz. The few that lie beside this script came from it.
"""

import argparse
import json
import logging
import random
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
from olmo_core.data import (
    DataCollator,
    NumpyDatasetDType,
    NumpyFSLDatasetConfig,
    NumpyInterleavedFSLDatasetConfig,
    NumpyPackedFSLDatasetConfig,
    NumpyPaddedFSLDatasetConfig,
    NumpyVSLDatasetConfig,
    TokenizerConfig,
)
from olmo_core.data.data_loader import NumpyDataLoaderBase
from olmo_core.data.source_mixture import SourceMixtureConfig, SourceMixtureDatasetConfig, SourceMixtureList

logging.disable(logging.CRITICAL)
EOS, PAD, BOS, VOCAB = 0, 1, 2, 500


def write_files(rng, folder, dtype, begin, count):
    names = []
    for i in range(count):
        docs = []
        for _ in range(rng.randint(1, 40)):
            body = [rng.randint(3, VOCAB - 1) for _ in range(rng.choice([0, 1, 2, 5, rng.randint(1, 20), rng.randint(1, 90)]))]
            docs += ([BOS] if begin else []) + body + [EOS]
        docs += [rng.randint(3, VOCAB - 1) for _ in range(rng.choice([0, 0, 3]))]
        if len(docs) < 70:
            docs += [rng.randint(3, VOCAB - 1) for _ in range(70)] + [EOS]
        name = f"part-{i}.npy"
        np.array(docs, dtype).tofile(folder / name)
        names.append(name)
    return names


def dataset_options(rng, kind, names, folder):
    """Options of the data set under the library's names, and the length of its longest instances."""
    width = rng.choice([8, 16, 32])
    if kind == "fsl":
        target = rng.choice([None, width, width * 2])
        return {"sequence_length": width, **({"max_target_sequence_length": target} if target else {})}, width
    if kind == "padded":
        return {"sequence_length": width}, width
    if kind == "packed":
        return {"sequence_length": width, "long_doc_strategy": rng.choice(["truncate", "fragment"]), "source_group_size": rng.choice([1, 2, 3])}, width
    if kind == "interleaved":
        exempt = [rng.choice(names)] if rng.random() < 0.5 and len(names) > 1 else None
        return {
            "sequence_length": width,
            "docs_per_instance": rng.choice([1, 2, 4]),
            "chunks_per_doc": rng.choice([1, 2, 4]),
            "seed": rng.randint(0, 99),
            **({"interleaving_exempt_paths": exempt} if exempt else {}),
        }, width
    if kind == "vsl":
        curriculum = rng.choice(
            [
                {"name": "natural"},
                {"name": "grow_p2", "num_cycles": rng.choice([1, 2]), "balanced": rng.random() < 0.5},
                {"name": "grow_linear", "num_cycles": rng.choice([1, 2]), "balanced": False},
            ]
        )
        return {"min_sequence_length": 4, "max_sequence_length": 16, "vsl_curriculum": curriculum}, 16
    raise AssertionError(kind)


def build(kind, options, paths, tokenizer, dtype, work, extra):
    shared = dict(tokenizer=tokenizer, paths=paths, dtype=dtype, work_dir=str(work), **extra)
    options = dict(options)
    if kind == "fsl":
        return NumpyFSLDatasetConfig(**shared, **options).build()
    if kind == "padded":
        return NumpyPaddedFSLDatasetConfig(**shared, **options).build()
    if kind == "packed":
        return NumpyPackedFSLDatasetConfig(**shared, **options).build()
    if kind == "interleaved":
        return NumpyInterleavedFSLDatasetConfig(**shared, **options).build()
    if kind == "vsl":
        from olmo_core.data.numpy_dataset import VSLCurriculumConfig

        curriculum = VSLCurriculumConfig(**options.pop("vsl_curriculum"))
        return NumpyVSLDatasetConfig(**shared, **options, vsl_curriculum=curriculum).build()
    raise AssertionError(kind)


def mixture(rng, names, folder, tokenizer, dtype, work):
    width = rng.choice([8, 16])
    ratio = rng.choice([0.3, 0.5, 0.72])
    groups = [names[: len(names) // 2 or 1], names[len(names) // 2 or 1 :] or names]
    total = sum((folder / n).stat().st_size // np.dtype(dtype).itemsize for n in names)
    options = {
        "source_list": {"sources": [
            {"source_name": "a", "target_ratio": ratio, "paths": groups[0], "max_repetition_ratio": 4.0},
            {"source_name": "b", "target_ratio": 1 - ratio, "paths": groups[1], "max_repetition_ratio": 4.0, "max_source_fraction": 0.9},
        ]},
        "requested_tokens": int(total * rng.choice([0.3, 0.6, 1.1])), "global_batch_size": width * 4, "seed": 3,
    }  # fmt: skip
    config = SourceMixtureDatasetConfig(
        source_list=SourceMixtureList([SourceMixtureConfig(**s | {"paths": [str(folder / p) for p in s["paths"]]}) for s in options["source_list"]["sources"]]),
        requested_tokens=options["requested_tokens"], global_batch_size=options["global_batch_size"], seed=3, render_tables=False, quiet=True,
    )  # fmt: skip
    data = NumpyFSLDatasetConfig(tokenizer=tokenizer, dtype=dtype, work_dir=str(work), source_mixture_config=config, sequence_length=width).build()
    return data, {"sequence_length": width, "source_mixture_config": options}, width


def loaders(data, seed, batch, ranks, work, shuffle=True):
    return [
        NumpyDataLoaderBase.wrap_numpy_dataset(
            data,
            global_batch_size=batch,
            collator=DataCollator(pad_token_id=PAD),
            work_dir=work,
            seed=seed,
            dp_world_size=ranks,
            dp_rank=r,
            fs_local_rank=0,
            num_threads=0,
            num_workers=0,
            shuffle=shuffle,
        )
        for r in range(ranks)
    ]


class Truth:
    """Rows in the order they were read."""

    def __init__(self):
        self.steps, self.rows = [], []

    def step(self, number, batches):
        self.steps.append((number, sum(len(b["index"]) for b in batches)))
        for rank, batch in enumerate(batches):
            for index, ids in zip(batch["index"].tolist(), batch["input_ids"].tolist()):
                self.rows.append((index, rank, ids))

    def save(self, path):
        width = max(len(ids) for *_, ids in self.rows)
        np.savez_compressed(
            path, steps=np.array([n for n, _ in self.steps]), row_ptr=np.cumsum([0, *(k for _, k in self.steps)]),
            sample_ids=np.array([i for i, *_ in self.rows]),
            rank=np.array([r for _, r, _ in self.rows], np.int32), micro=np.zeros(len(self.rows), np.int32),
            tokens=np.array([ids + [-1] * (width - len(ids)) for *_, ids in self.rows], np.int32),
        )  # fmt: skip


def read(truth, each, step, stop, epoch):
    """Iterate all ranks' loaders over epochs until step `stop`, as the trainer does."""
    while step < stop:
        for one in each:
            one.reshuffle(epoch)
        streams = [iter(one) for one in each]
        for batches in zip(*streams):
            step += 1
            truth.step(step, batches)
            if step == stop:
                return step, epoch
        for one in each:
            one.reset()
        epoch += 1
    return step, epoch


def make(out, seed):
    rng = random.Random(seed)
    kind = rng.choice(["fsl", "fsl", "padded", "packed", "interleaved", "vsl", "mixture", "composable"])
    folder = out / f"{kind}_{seed}"
    folder.mkdir(parents=True)
    dtype = rng.choice(["uint16", "uint32"])
    begin = kind in ("packed", "interleaved", "composable") and rng.random() < 0.5
    names = write_files(rng, folder, dtype, begin, rng.randint(1, 4))
    paths = [str(folder / n) for n in names]
    tokenizer = TokenizerConfig(vocab_size=VOCAB, eos_token_id=EOS, pad_token_id=PAD, bos_token_id=BOS if begin else None)
    ranks = rng.choice([1, 2])
    work = Path(tempfile.mkdtemp())
    run = {
        "framework": "olmo-core",
        "framework_version": version("ai2-olmo-core"),
        "sources": names,
        "dtype": dtype,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "vocab_size": VOCAB,
        "dp_world_size": ranks,
    }
    if begin:
        run["bos_token_id"] = BOS
    loader_seed = rng.randint(0, 10_000)
    truth = Truth()
    if kind == "composable":
        from make_olmo_composable import composable

        run.update(composable(rng, names, folder, tokenizer, NumpyDatasetDType(dtype), work, ranks, loader_seed, truth, read))
    else:
        extra = {}
        if kind == "fsl" and rng.random() < 0.4:
            extra["source_permutation_seed"] = rng.randint(0, 50)
        if kind == "mixture":
            data, options, width = mixture(rng, names, folder, tokenizer, NumpyDatasetDType(dtype), work)
        else:
            options, width = dataset_options(rng, kind, names, folder)
            real = {k: ([str(folder / p) for p in v] if k == "interleaving_exempt_paths" else v) for k, v in options.items()}
            data = build(kind, real, paths, tokenizer, NumpyDatasetDType(dtype), work, extra)
        data.prepare()
        batch = width * ranks * rng.choice([1, 2, 3])
        shuffle = rng.random() < 0.9
        each = loaders(data, loader_seed, batch, ranks, work, shuffle)
        per_epoch = each[0].total_batches
        if per_epoch < 1:
            raise ValueError("no batch")
        steps = min(per_epoch + rng.randint(1, per_epoch + 1), 40)
        run.update(dataset=type(data).__name__, **options, **extra, global_batch_size_tokens=batch, data_loader_seed=loader_seed, shuffle=shuffle)
        stop = steps // 2
        first, epoch = read(truth, each, 0, stop, 1)
        state = each[0].state_dict()
        again = batch * rng.choice([1, 1, 2]) if kind != "vsl" else batch
        each = loaders(data, loader_seed + rng.choice([0, 5]), again, ranks, work, shuffle)
        for one in each:
            one.load_state_dict(dict(state))
        read(truth, each, first, steps, epoch)
        run["stages"] = [{"first_step": 1, "steps": first, "gbs": batch}, {"first_step": first + 1, "steps": steps - first, "gbs": again}]
        if again != batch and each[0].total_batches < 1:
            raise ValueError("no batch")
    truth.save(folder / "expected.npz")
    (folder / "run.json").write_text(json.dumps(run, indent=1, default=str))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    args = parser.parse_args()
    for seed in range(args.seed, args.seed + args.count):
        try:
            make(args.out, seed)
        except Exception as error:  # some random options are ones that the library refuses
            print(seed, type(error).__name__, str(error)[:100])
            for folder in args.out.glob(f"*_{seed}"):
                import shutil

                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
