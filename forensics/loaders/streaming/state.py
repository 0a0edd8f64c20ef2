"""Options and states of a run with MosaicML Streaming, and what follows from them: plans per epoch.

Names are those of `StreamingDataset` and `Stream` (streaming/base/{dataset,stream}.py, 0.13.0), of its DataLoader, and
of LLM-Foundry where it has its own. The state dict (`epoch`, `sample_in_epoch`, `num_canonical_nodes`, `shuffle_seed`,
`initial_physical_nodes`) holds neither batch size, method nor weights; these come from the options of each launch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forensics.errors import ConfigError, RunError
from forensics.files import read_text
from forensics.loaders.arguments import Arguments
from forensics.loaders.streaming.batching import METHODS, Plan
from forensics.loaders.streaming.partition import World
from forensics.loaders.streaming.shuffle import ALGORITHMS
from forensics.loaders.streaming.weights import Resampling, StreamShards, apply_weights

KNOWN = (
    "streams", "local", "remote", "split", "epoch_size", "sampling_method", "sampling_granularity", "partition_algo", "num_canonical_nodes", "batch_size",
    "global_train_batch_size", "device_train_microbatch_size", "shuffle", "shuffle_algo", "shuffle_seed", "shuffle_block_size", "batching_method",
    "replication", "drop_last", "num_workers", "world_size", "ranks_per_node", "max_duration", "max_seq_len", "eos_token_id",
    "column", "token_encoding_type", "state",
    "stream_name", "stream_config", "proportion", "repeat", "choose",
)  # fmt: skip
HARMLESS = (
    "download_retry", "download_timeout", "validate_hash", "keep_zip", "keep_raw", "predownload", "cache_limit", "allow_unsafe_types", "pin_memory",
    "prefetch_factor", "persistent_workers", "timeout", "tokenizer", "seed", "save_folder", "save_interval",
)  # fmt: skip
STREAM_KNOWN = ("local", "remote", "split", "proportion", "repeat", "choose")
STREAM_HARMLESS = ("download_retry", "download_timeout", "validate_hash", "keep_zip")
ABBREVIATIONS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


@dataclass(frozen=True)
class State:
    """Where a loader stands: `StreamingDataLoader.state_dict()`; the counts of nodes are None in a fresh run."""

    epoch: int = 0
    sample_in_epoch: int = 0
    num_canonical_nodes: int | None = None
    shuffle_seed: int | None = None
    initial_physical_nodes: int | None = None


def read_state(given: object, folder: Path) -> State:
    """A state from a description: the dict itself, or a JSON file of it; Composer's nesting is followed.

    Raises:
        ConfigError: no state, or one without its position.
    """
    found = given
    if isinstance(given, str):
        try:
            found = json.loads(read_text(folder / given))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{folder / given} is no JSON state of a streaming data set ({error})") from error
    for key in ("state", "dataset_state", "train"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or "epoch" not in found or "sample_in_epoch" not in found:
        raise ConfigError(
            f"`state` gives {given!r}, which holds no epoch and sample_in_epoch",
            hint="give the dict that StreamingDataLoader.state_dict() returned, or a JSON file of it",
        )
    read = Arguments("a streaming state", found, ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes"))
    return State(
        read.integer("epoch", least=0),
        read.integer("sample_in_epoch", least=0),
        read.optional("num_canonical_nodes", least=1),
        read.optional("shuffle_seed", least=0),
        read.optional("initial_physical_nodes", least=1),
    )


def count(value: object) -> int | None:
    """A number of samples, as a number or abbreviated (`64M`); 0 counts as not given."""
    if value is None or isinstance(value, (int, float)):
        return int(value) if value else None
    text = str(value).strip().lower()
    scale = ABBREVIATIONS.get(text[-1:], 1)
    try:
        return (int(float(text[:-1]) * scale) if scale > 1 else int(text)) or None
    except ValueError as error:
        raise ConfigError(f"`epoch_size` is {value!r}, a number or one of k, M, B, T after a number was expected") from error


@dataclass(frozen=True)
class Settings:
    """Options of one launch, checked.

    Attributes:
        folders: of the streams, as configured.
        weights: proportion, repeat and choose of each stream.
        world: physical processes after replication.
        microbatch: samples of a rank's batch per microbatch; None for the whole batch.
    """

    args: Arguments
    folders: tuple[str, ...]
    weights: tuple[dict[str, Any], ...]
    world: World
    batch_size: int
    drop_last: bool
    microbatch: int | None

    @property
    def seed(self) -> int:
        """`shuffle_seed` of the configuration."""
        return self.args.integer("shuffle_seed", 9176, least=0)


def read_settings(args: Mapping[str, Any]) -> Settings:
    """Check a launch's options.

    Raises:
        ConfigError, NotReplayable: options that are unknown, missing, contradictory or not modelled.
    """
    read = Arguments("streaming", args, KNOWN, HARMLESS)
    read.refuse("stream_name", "stream", "another stream class decides what a sample is")
    read.refuse("stream_config", {}, "another stream class decides what a sample is")
    streams = _streams(read)
    ranks = read.integer("world_size", 1, least=1)
    each = 1 if ranks == 1 else read.integer("ranks_per_node", least=1)
    if ranks % each:
        raise ConfigError(f"world_size {ranks} is no multiple of ranks_per_node {each}")
    world = _replicated(ranks, each, read.integer("replication", 1, least=1), max(read.integer("num_workers", 0, least=0), 1))
    return Settings(
        read,
        tuple(str(Path(s.text("local") if "local" in s else s.text("remote"), s.text("split", ""))) for s in streams),
        tuple({name: s.get(name) for name in ("proportion", "repeat", "choose")} for s in streams),
        world,
        _batch(read, ranks),
        read.flag("drop_last", False),
        read.optional("device_train_microbatch_size", least=1),
    )


def _streams(read: Arguments) -> list[Arguments]:
    given = read.get("streams")
    if given is None:
        if "local" not in read and "remote" not in read:
            raise ConfigError("streaming needs `streams`, or `local` or `remote`")
        return [Arguments("stream 0", {n: read.get(n) for n in STREAM_KNOWN if n in read}, STREAM_KNOWN)]
    items = list(given.values()) if isinstance(given, Mapping) else list(given)
    shared = {n: read.get(n) for n in ("local", "remote", "split") if n in read}
    out = []
    for i, item in enumerate(items):
        block = {"local": item} if isinstance(item, str) else dict(item)
        out.append(Arguments(f"stream {i}", {**({"split": shared["split"]} if "split" in shared else {}), **block}, STREAM_KNOWN, STREAM_HARMLESS))
    if not out:
        raise ConfigError("`streams` is empty")
    return out


def _batch(read: Arguments, ranks: int) -> int:
    if "global_train_batch_size" in read:
        total = read.integer("global_train_batch_size", least=1)
        if total % ranks:
            raise ConfigError(f"global_train_batch_size {total} is no multiple of world_size {ranks}")
        if "batch_size" in read and read.integer("batch_size") != total // ranks:
            raise ConfigError(f"batch_size {read.get('batch_size')} and global_train_batch_size {total} on {ranks} ranks contradict each other")
        return total // ranks
    return read.integer("batch_size", least=1)


def _replicated(ranks: int, each: int, replication: int, workers: int) -> World:
    if ranks % replication:
        raise ConfigError(f"world_size {ranks} is no multiple of replication {replication}")
    ranks //= replication
    nodes = ranks // each if replication == 1 or ranks % each == 0 else 1
    return World(nodes, ranks // nodes, workers)


def plan_of(settings: Settings, shards: Sequence[np.ndarray[Any, np.dtype[np.int64]]], state: State) -> Plan:
    """The plan of the epochs that a state governs.

    Args:
        settings: of the launch.
        shards: sizes of the shards of each stream.
        state: the state that is in force, a blank one in a fresh run.
    """
    read = settings.args
    streams = tuple(StreamShards(s, w["proportion"], w["repeat"], w["choose"]) for s, w in zip(shards, settings.weights))
    algo = read.choice("shuffle_algo", tuple(ALGORITHMS), "py1e")
    nodes = settings.world.nodes
    canonical = state.num_canonical_nodes or read.integer("num_canonical_nodes", 64 * nodes if algo in ("py1s", "py2s") else nodes, least=1)
    weights = apply_weights(streams, count(read.get("epoch_size")), settings.seed)
    if not weights.epoch_size:
        raise RunError("the weights leave no sample in an epoch")
    return Plan(
        streams,
        weights,
        Resampling(
            read.choice("sampling_method", ("balanced", "fixed"), "balanced"),
            read.integer("sampling_granularity", 1, least=1),
            settings.seed if state.shuffle_seed is None else state.shuffle_seed,
            read.flag("shuffle", False),
        ),
        settings.world,
        settings.batch_size,
        canonical,
        state.initial_physical_nodes,
        read.choice("partition_algo", ("orig", "relaxed"), "relaxed"),
        algo,
        read.optional("shuffle_block_size", least=1) or max(4_000_000 // canonical, 1 << 18),
        read.choice("batching_method", tuple(METHODS), "random"),
    )
