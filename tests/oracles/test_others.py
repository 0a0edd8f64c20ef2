"""What real trainers outside Megatron read, row by row and token by token.

Cases lie beside this file, a folder per trainer; `FORENSICS_ORACLES=<folder>` runs those of another one. `run.json` names
options as the library does; the functions here turn it into the run description a user would write. An option that is
not listed is handed on, so that the loader refuses it by name.
"""

import json
import os
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from forensics.loaders.base import LOADERS
from forensics.run import RunFile, resolve
from forensics.steps import StepRange

HERE = Path(__file__).parent
FOLDERS = [Path(p) for p in os.environ.get("FORENSICS_ORACLES", str(HERE)).split(os.pathsep) if p]
ABOUT = {
    "about", "note", "framework", "framework_version", "segments_reproduce_tokens", "sources", "dataset_len", "batches_per_epoch", "saved_states", "per_step",
    "fingerprint", "loader_len_microbatches", "cached_index_files", "steps_run", "samples_per_shard", "samples_per_stream", "seq_length_note", "state_files",
}  # fmt: skip


def rest(run, *used):
    """Keys of run.json that no mapping took: options under the library's own names."""
    return {k: v for k, v in run.items() if k not in ABOUT and k not in used}


def streaming(case, run):
    read = rest(run, "dataset_args", "drop_last", "phases", "seq_length", "states", "stream_weights", "token_column", "eos_token_id")
    weights = run.get("stream_weights") or [{}] * len(run["sources"])
    shared = {
        **run.get("dataset_args", {}), **read, "streams": [{"local": s, **w} for s, w in zip(run["sources"], weights)],
        "drop_last": run.get("drop_last", False), "column": run.get("token_column"), "eos_token_id": run.get("eos_token_id"),
    }  # fmt: skip
    launches = []
    for phase in run["phases"]:
        args = {
            "world_size": phase["world_size"],
            "ranks_per_node": phase["ranks_per_node"],
            "batch_size": phase["batch_size_per_rank"],
            "num_workers": phase.get("num_workers", 0),
            **phase.get("dataset_overrides", {}),
        }
        launches.append({"after_step": phase["first_step"] - 1, "last_step": phase["last_step"], "args": args})
    saved = sorted(int("".join(filter(str.isdigit, name))) for name in run.get("states", {}))
    return {"trainer": "streaming", "version": run.get("framework_version"), "args": shared, "launches": launches, "checkpoints": saved}


CORE_LOADER = ("shuffle", "shuffle_strategy", "sources_per_epoch", "ignore_fingerprint_mismatch", "global_batch_size")
CORE_TRAINER = ("steps_to_skip", "max_duration", "callbacks")


def olmo_core(case, run):
    stages = run.get("stages") or [{"first_step": 1}]
    seeds = run.get("data_loader_seed_config") or [run.get("data_loader_seed", run.get("seed"))]
    dataset = rest(
        run, *CORE_LOADER, *CORE_TRAINER, "dataset", "stages", "data_loader_seed_config", "data_loader_seed", "dp_world_size",
        "global_batch_size_tokens", "instance_filter",
        "resumed_from_step", "instance_sources", "data_loader",
    )  # fmt: skip
    block = {"type": run.get("dataset", "fsl"), "paths": run["sources"], "instance_filter_config": run.get("instance_filter"), **dataset}
    loader = {
        "seed": seeds[0],
        "global_batch_size": run.get("global_batch_size_tokens"),
        **run.get("data_loader", {}),
        **{k: run[k] for k in CORE_LOADER if k in run},
    }
    shared = {"dp_world_size": run.get("dp_world_size", 1), "trainer": {k: run[k] for k in CORE_TRAINER if k in run}}
    if "instance_sources" in run:
        loader["tokenizer"] = {k: run[k] for k in ("eos_token_id", "pad_token_id", "bos_token_id", "vocab_size") if k in run}
        shared["sources"] = run["instance_sources"]
    launches = []
    for i, stage in enumerate(stages):
        own = {k: v for k, v in (("sequence_length", stage.get("seq")),) if v is not None}
        args = {"data_loader": {**loader, "seed": seeds[min(i, len(seeds) - 1)], **({"global_batch_size": stage["gbs"]} if "gbs" in stage else {})}}
        if "instance_sources" not in run:
            args["dataset"] = {**block, **own}
        after = stage["first_step"] - 1
        launches.append({"after_step": after, "last_step": after + stage["steps"] if "steps" in stage else None, "args": args})
    if "resumed_from_step" in run:
        launches.append({**launches[-1], "after_step": run["resumed_from_step"], "last_step": None})
    for launch in launches:
        at = launch["after_step"]
        found = [f for f in (f"step{at}", f"save/step{at}") if at and (case / f).is_dir()]
        launch["args"] = {**launch["args"], **({"state": found[0]} if found else {})}
    return {"trainer": "olmo-core", "version": run.get("framework_version"), "args": shared, "launches": launches}


def olmo(case, run):
    data = {"paths": run["sources"], "memmap_dtype": run.get("dtype", "uint16"), "seed": run.get("data_seed"), "drop_last": run.get("drop_last", False),
            "num_workers": run.get("num_workers")}  # fmt: skip
    model = ("eos_token_id", "sequence_length", "vocab_size", "pad_token_id")
    own = rest(run, "plan", "dtype", "data_seed", "drop_last", "num_workers", "instance_filter", *model)
    shared = {
        "data": {**{k: v for k, v in data.items() if v is not None}, **({"instance_filter": run["instance_filter"]} if "instance_filter" in run else {})},
        "model": {"max_sequence_length": run["sequence_length"], "eos_token_id": run.get("eos_token_id")}, **own,
    }  # fmt: skip
    launches, at = [], 0
    for leg in run["plan"]:
        at = leg.get("resume", at)
        args = {k: v for k, v in leg.items() if k not in ("steps", "save", "resume", "note")}
        if at and (case / f"step{at}").is_dir():
            args["state"] = f"step{at}"
        launches.append({"after_step": at, "last_step": at + leg["steps"], "args": args})
        at += leg["steps"]
    return {"trainer": "olmo", "version": run.get("framework_version"), "args": shared, "launches": launches}


RENAMED = {"sampler_seed": "seed", "dataloader_drop_last": "drop_last", "per_device_batch_size": "batch_size"}


def pytorch(case, run):
    args = {RENAMED.get(k, k): v for k, v in rest(run, "resumed", "resumed_after", "state").items()}
    launches = [{"after_step": 0, "args": {}}]
    if "resumed" in run:
        again = run["resumed"]
        launches += [{"after_step": again["after"], "args": {k: v for k, v in again.items() if k != "after"}}]
        launches[0]["last_step"] = int(np.load(case / "expected.npz")["steps"].max())
    if "resumed_after" in run:
        launches[0]["last_step"] = run["resumed_after"]
        launches += [{"after_step": run["resumed_after"], "args": {"state": run["state"]}}]
    args.setdefault("loader", {"torchdata": "StatefulDataLoader", "accelerate": "Accelerate"}.get(run["framework"]))
    return {"trainer": "pytorch", "args": {**args, "data": run["sources"]}, **({"launches": launches} if len(launches) > 1 else {})}


def transformers(case, run):
    shared = {"loader": "Trainer", "data": run["sources"], "world_size": run.get("world_size", 1), **rest(run, "loader", "world_size", *TRAINER_KEYS)}
    launches = [{"after_step": 0, "args": run["training_args"]}]
    if "resumed_from" in run:
        at = int(run["resumed_from"].rpartition("-")[2])
        launches[0]["last_step"] = run.get("stopped_after", at)
        launches.append({"after_step": at, "args": run.get("resume_training_args", run["training_args"])})
    return {"trainer": "hf", "args": shared, "launches": launches}


TRAINER_KEYS = ("training_args", "resume_training_args", "resumed_from", "final_checkpoint", "stopped_after")
OPERATIONS = ("batch_size", "shards_per_source", "shard_rule", "note", "resumed_from_step", "state_files", "sample_id_rule", "stopped_after", "data")


def datasets(case, run):
    """Up to the state from the start of the epoch, from there on from the state."""
    rule = run.get("shard_rule", "files")
    shared = {k: v for k, v in rest(run, *OPERATIONS).items() if v is not None} | {
        "data": run.get("data", run["sources"]), "batch_size": run["batch_size"], "shards_per_source": run.get("shards_per_source"),
        "shard_rule": "modulo" if " mod " in rule else rule,
    }  # fmt: skip
    launches = [{"after_step": 0, "args": {}}]
    if at := run.get("resumed_from_step"):
        launches[0]["last_step"] = run.get("stopped_after", at)
        launches.append({"after_step": at, "args": {"state": run["state_files"]}})
    return {"trainer": "datasets", "version": run["framework_version"]["datasets"], "args": shared, "launches": launches}


def samples(case, run, want):
    """The ids of examples as the loader counts them: through all files in their order."""
    if "sample_id_rule" not in run:
        return want["sample_ids"]
    stride = int(re.match(r"(\d+)\*source \+ document number", run["sample_id_rule"])[1])
    lengths = [len((case / s).read_text().splitlines()) for s in run["sources"]]
    first = np.cumsum([0, *lengths])
    return first[want["sample_ids"] // stride] + want["sample_ids"] % stride


DESCRIBE = {
    "pytorch": pytorch, "torch": pytorch, "torchdata": pytorch, "accelerate": pytorch,
    "datasets": datasets, "transformers": transformers, "mosaicml-streaming": streaming, "olmo-core": olmo_core, "olmo-legacy": olmo,
}  # fmt: skip


def recorded():
    """Every case of the folders, whoever reads it: a case folder, a trainer's folder of cases, or a folder of those."""
    found = {p.parent for f in FOLDERS for depth in ("", "*/", "*/*/") for p in f.glob(depth + "run.json") if (p.parent / "expected.npz").exists()}
    return sorted(found)


def cases():
    return [c for c in recorded() if json.loads((c / "run.json").read_text()).get("framework") in DESCRIBE]


def opened(case):
    run = json.loads((case / "run.json").read_text())
    described = {k: v for k, v in DESCRIBE[run["framework"]](case, run).items() if v is not None}
    return resolve(msgspec.convert(described, RunFile), None, case), LOADERS.get(described["trainer"])


def replayed(spec, loader, steps):
    """Rows, tokens and tables in the order the run executed its steps: a fall in the numbers begins the next launch."""
    edges = [0, *(np.flatnonzero(np.diff(steps) != 1) + 1).tolist(), len(steps)]
    falls = bool((np.diff(steps) <= 0).any())
    rows, tokens, tables = [], [], []
    launch = 0 if falls else None
    for a, b in zip(edges, edges[1:]):
        if falls and a and steps[a] <= steps[a - 1]:
            launch += 1
        part = StepRange(int(steps[a]), int(steps[b - 1]) + 1)
        for r, t in loader.sequences(spec, part, launch):
            rows.append(r)
            tokens.append(t)
        tables += list(loader.consumed(spec, part, launch))
    return rows, tokens, tables


@pytest.mark.parametrize("case", cases(), ids=lambda c: f"{c.parent.name}-{c.name}")
def test_the_reconstructed_rows_are_those_that_were_read(case):
    want = np.load(case / "expected.npz")
    spec, loader = opened(case)
    rows, tokens, tables = replayed(spec, loader, want["steps"])

    def column(name):
        return np.concatenate([getattr(r, name) for r in rows])

    np.testing.assert_array_equal(column("step"), np.repeat(want["steps"], np.diff(want["row_ptr"])))
    np.testing.assert_array_equal(column("sample"), samples(case, json.loads((case / "run.json").read_text()), want))
    np.testing.assert_array_equal(column("rank"), want["rank"])
    np.testing.assert_array_equal(column("microbatch"), want["micro"])
    width = max(want["tokens"].shape[1], *(t.shape[1] for t in tokens))
    ours = np.concatenate([np.pad(t, ((0, 0), (0, width - t.shape[1])), constant_values=-1) for t in tokens])
    np.testing.assert_array_equal(ours, np.pad(want["tokens"], ((0, 0), (0, width - want["tokens"].shape[1])), constant_values=-1))
    if "seg_ptr" in want:
        doc = np.concatenate([t.column("doc_key").to_numpy() for t in tables])
        parts = [doc >> 40, doc & (1 << 40) - 1, *(np.concatenate([t.column(n).to_numpy() for t in tables]) for n in ("doc_start", "doc_stop"))]
        for mine, theirs in zip(parts, ("seg_source", "seg_doc", "seg_start", "seg_end")):
            keep = want["seg_end"] > want["seg_start"]
            np.testing.assert_array_equal(mine, want[theirs][keep], err_msg=theirs)
    if "instance_mask" in want:
        masks = [loader.masked(spec, StepRange(int(s), int(s) + 1), i) for s, i in zip(want["steps"], ran_in(spec, want["steps"]))]
        np.testing.assert_array_equal(~np.concatenate(masks), want["instance_mask"].astype(bool))


def ran_in(spec, steps):
    """The launch of each step: the next one where the numbers fall."""
    return np.r_[0, np.cumsum(np.diff(steps) <= 0)].tolist()


def test_cases_lie_here():
    assert recorded()
