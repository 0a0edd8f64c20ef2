"""Sources put together for `make_olmo_core.py`: random trees of the composable package, iterated by its own loader."""

from olmo_core.data import DataCollator
from olmo_core.data.composable import (
    ComposableDataLoader,
    ConcatAndChunkInstanceSource,
    MixingDocumentSource,
    MixingInstanceSource,
    MixingTokenSource,
    NumpyDocumentSource,
    PackingInstanceSource,
    SamplingDocumentSource,
    SamplingInstanceSource,
    SamplingTokenSource,
    ShuffleStrategy,
)
from olmo_core.data.composable.instance_source import ConcatenatedInstanceSourceConfig, SplitInstanceSourceConfig
from olmo_core.data.composable.token_source import ConcatenatedDocumentSourceConfig, SplitTokenSourceConfig


def plain(config, folder):
    """A configuration as the library saves it, with file names of the case and unset seeds spelt out."""

    def walk(value):
        if isinstance(value, dict):
            out = {k: walk(v) for k, v in value.items() if k != "tokenizer"}
            name = str(out.get("_CLASS_", ""))
            if name.rpartition(".")[2].startswith(("Mixing", "Sampling", "SplitInstance")) and "Spec" not in name:
                out.setdefault("seed", None)
            return out
        if isinstance(value, (list, tuple)):
            return [walk(v) for v in value]
        return value.removeprefix(f"{folder}/") if isinstance(value, str) else value

    return walk(config.as_config_dict())


def documents(rng, paths, tokenizer, dtype):
    chosen = rng.sample(paths, rng.randint(1, len(paths)))
    extra = {"source_permutation_seed": rng.randint(0, 9)} if rng.random() < 0.3 else {}
    return NumpyDocumentSource.Config(source_paths=chosen, tokenizer=tokenizer, dtype=dtype, source_group_size=rng.choice([1, 1, 2, -1]), **extra)


def document_source(rng, depth, *data):
    kind = rng.choice(["plain", "plain", "sample", "mix", "concat"]) if depth else "plain"
    if kind == "sample":
        how = {"factor": rng.choice([0.5, 1.7])}
        return SamplingDocumentSource.Config(
            sources=[document_source(rng, depth - 1, *data) for _ in range(rng.randint(1, 2))], seed=rng.choice([None, rng.randint(0, 99)]), **how
        )
    if kind == "mix":
        specs = [
            MixingDocumentSource.Spec.Config(source=document_source(rng, depth - 1, *data), ratio=r, max_repetition_factor=rng.choice([1.0, 2.0]))
            for r in (0.3, 0.7)
        ]
        return MixingDocumentSource.Config(source_specs=specs, seed=rng.randint(0, 99))
    if kind == "concat":
        return ConcatenatedDocumentSourceConfig(sources=[document_source(rng, depth - 1, *data) for _ in range(2)])
    return documents(rng, *data)


def token_source(rng, depth, *data):
    kind = rng.choice(["document", "document", "sample", "mix", "split"]) if depth else "document"
    if kind == "sample":
        return SamplingTokenSource.Config(
            sources=[token_source(rng, depth - 1, *data) for _ in range(rng.randint(1, 2))],
            factor=rng.choice([0.6, 1.4, 2.0]),
            seed=rng.choice([None, rng.randint(0, 99)]),
        )
    if kind == "mix":
        specs = [
            MixingTokenSource.Spec.Config(source=token_source(rng, depth - 1, *data), ratio=r, max_repetition_factor=rng.choice([1.0, 3.0])) for r in (1.0, 2.0)
        ]
        return MixingTokenSource.Config(source_specs=specs, seed=rng.randint(0, 99))
    if kind == "split":
        return SplitTokenSourceConfig(source=token_source(rng, depth - 1, *data), ratio=0.6, idx=rng.choice([0, 1]))
    return document_source(rng, depth, *data)


def instance_source(rng, depth, width, longest, *data):
    def again():
        return instance_source(rng, depth - 1, width, longest, *data)

    kind = rng.choice(["chunk", "chunk", "pack", "sample", "mix", "split", "concat"]) if depth else "chunk"
    if kind == "pack" and width == longest:
        return PackingInstanceSource.Config(
            sources=[document_source(rng, 1, *data) for _ in range(rng.randint(1, 2))],
            sequence_length=width,
            tokenizer=data[1],
            long_doc_strategy=rng.choice(["truncate", "fragment"]),
            source_group_size=rng.choice([1, 2]),
        )
    if kind == "sample":
        return SamplingInstanceSource.Config(
            sources=[again() for _ in range(rng.randint(1, 2))], factor=rng.choice([0.5, 1.3, 2.2]), seed=rng.choice([None, rng.randint(0, 99)])
        )
    if kind == "mix":
        specs = [MixingInstanceSource.Spec.Config(source=again(), ratio=r, max_repetition_factor=rng.choice([1.0, 2.0])) for r in (0.25, 0.75)]
        return MixingInstanceSource.Config(source_specs=specs, seed=rng.randint(0, 99))
    if kind == "split":
        return SplitInstanceSourceConfig(source=again(), ratio=0.5, idx=rng.choice([0, 1]), seed=rng.choice([None, 5]))
    if kind == "concat":
        return ConcatenatedInstanceSourceConfig(sources=[again(), again()])
    return ConcatAndChunkInstanceSource.Config(
        sources=[token_source(rng, 2, *data) for _ in range(rng.randint(1, 2))], sequence_length=width, max_sequence_length=longest
    )


def composable(rng, names, folder, tokenizer, dtype, work, ranks, seed, truth, read):
    width = rng.choice([8, 16])
    longest = width * rng.choice([1, 1, 2])
    paths = [str(folder / n) for n in names]
    count = rng.choice([1, 2, 2, 4])
    configs = [instance_source(rng, 2, width, longest, paths, tokenizer, dtype) for _ in range(count)]
    sources = [c.build(work) for c in configs]
    per_epoch = rng.choice([-1, -1, 1, 2])
    if per_epoch > 0 and count % per_epoch:
        per_epoch = -1
    strategy = rng.choice(["inter_source", "intra_source", "interleaved_source"])
    batch = width * ranks * rng.choice([1, 2])

    def each(size):
        return [
            ComposableDataLoader(
                *sources, collator=DataCollator(pad_token_id=tokenizer.pad_token_id), tokenizer=tokenizer, work_dir=work, global_batch_size=size,
                dp_world_size=ranks, dp_rank=r, fs_local_rank=0,
                seed=seed, shuffle_strategy=ShuffleStrategy(strategy), sources_per_epoch=per_epoch, num_threads=0, display_source_visualization=False,
            )
            for r in range(ranks)
        ]  # fmt: skip

    loaders = each(batch)
    total = loaders[0].total_batches
    if total < 1:
        raise ValueError("no batch")
    steps = min(total + rng.randint(1, total + 1), 40)
    first, epoch = read(truth, loaders, 0, max(steps // 2, 1), 1)
    state = loaders[0].state_dict()
    again = batch * rng.choice([1, 2])
    loaders = each(again)
    for one in loaders:
        one.load_state_dict(dict(state))
    read(truth, loaders, first, steps, epoch)
    return {
        "instance_sources": [plain(c, folder) for c in configs], "shuffle_strategy": strategy, "sources_per_epoch": per_epoch,
        "data_loader_seed": seed, "global_batch_size_tokens": batch,
        "stages": [{"first_step": 1, "steps": first, "gbs": batch}, {"first_step": first + 1, "steps": steps - first, "gbs": again}],
    }  # fmt: skip
