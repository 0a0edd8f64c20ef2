"""A first run description from the save folder of OLMo-core, old OLMo or the Hugging Face Trainer.

These trainers keep their whole configuration beside each checkpoint: OLMo-core `step<N>/config.json`, old OLMo `config.yaml` and
`step<N>`, the Trainer `checkpoint-<N>/training_args.bin` and `trainer_state.json`. A launch begins where the configuration differs from
that of the checkpoint before it; which checkpoint it went on from is not in them, the nearest is written and said to be checked.
Pickles go through the restricted unpickler. Blocks that say nothing of the data (model, optimizer) are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from forensics.config import parse_yaml
from forensics.errors import ConfigError, RunError, StoreError, UsageError
from forensics.files import read_text
from forensics.inert import Made
from forensics.loaders.olmo import TOP as OLMO
from forensics.loaders.olmo_core.state import state_file
from forensics.loaders.olmo_core.trainer import BYSTANDERS, TRAINER
from forensics.loaders.pytorch_options import OWN
from forensics.unpickle import load, plain

CORE = ("dataset", "data_loader", "trainer", "sources", "rank_microbatch_size")
STEP = re.compile(r"(?:step|checkpoint-)(\d+)(?:-unsharded)?")
UNSET: tuple[Any, ...] = (None, "", [], {})


@dataclass(frozen=True)
class Kept:
    """One checkpoint: its step, the options that were in force, and the ranks where they are known."""

    step: int
    folder: Path
    args: dict[str, Any]
    ranks: int | None


def trainer_in(folder: Path) -> str | None:
    """Whose save folder it is; None where it is none of them."""
    steps = _steps(folder)
    if any((p / "trainer_state.json").is_file() for p in steps):
        return "hf"
    if any((p / "config.json").is_file() for p in steps):
        return "olmo-core"
    if (folder / "config.yaml").is_file() or any((p / "config.yaml").is_file() for p in steps):
        return "olmo"
    return None


def describe_folder(folder: Path, target: Path) -> tuple[str, list[str]]:
    """The description, for a file in `target`, and what a user should know about it.

    Raises:
        UsageError: no checkpoint with a configuration; StoreError: one that cannot be read, or holds what no YAML file can.
    """
    try:
        text, notes = _describe(folder, target)
        parse_yaml(text, str(folder))
    except (ConfigError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise StoreError(f"a configuration in {folder} cannot be written as YAML ({error})", hint="the file is damaged or was edited by hand") from error
    return text, notes


def _describe(folder: Path, target: Path) -> tuple[str, list[str]]:
    trainer = trainer_in(folder)
    reader = {"hf": _trainer, "olmo-core": _core, "olmo": _olmo}[trainer or ""]
    kept = [found for path in _steps(folder) if (found := reader(folder, path)) is not None and found.args]
    if not kept:
        raise UsageError(f"no checkpoint in {folder} holds its configuration")
    place = str(folder.resolve().relative_to(target.resolve())) if folder.resolve().is_relative_to(target.resolve()) else str(folder.resolve())
    inside = "" if place == "." else f"{place}/"
    shared = {k: v for k, v in kept[-1].args.items() if all(x.args.get(k) == v for x in kept)}
    out = [f"run: {folder.resolve().name}", f"trainer: {trainer}", f"# version: ''   # of {_PACKAGE[str(trainer)]}, where the run was made"]
    ranks = next((x.ranks for x in reversed(kept) if x.ranks), None)
    body = yaml.safe_dump(shared, sort_keys=False, width=150, default_flow_style=False).splitlines() if shared else []
    out += ["args:", *(f"  {line}" for line in body), *_asked(str(trainer), ranks, shared)]
    notes = [f"options are those that {place} keeps; `forensics verify` compares the order with the logged loss"]
    out.append("launches:")
    for number, (first, before) in enumerate(_launches(kept)):
        own: dict[str, Any] = {k: v for k, v in first.args.items() if k not in shared}
        if before is not None:
            notes.append(f"launch {number} has other options than the checkpoint of step {before.step}: taken to go on from there; correct `after_step` if not")
            if trainer != "hf":
                own["state"] = f"{inside}{before.folder.name}"
        given = {"after_step": before.step if before else 0, **({"args": own} if own else {})}
        out.append("  - " + yaml.safe_dump(given, default_flow_style=True, sort_keys=False, width=1 << 20).strip())
    out.append(f"checkpoint: {place}   # the rollback points")
    if trainer == "hf":
        last = [p for p in _steps(folder) if (p / "trainer_state.json").is_file()][-1]
        out.append(f"metrics: [{inside}{last.name}/trainer_state.json]")
    else:
        out.append("# metrics: [metrics.jsonl]   # the logged loss")
    return "\n".join([*out, "# tokenizer: tokenizer.json"]) + "\n", notes


_PACKAGE = {"hf": "transformers", "olmo-core": "ai2-olmo-core", "olmo": "ai2-olmo"}


def _asked(trainer: str, ranks: int | None, args: Mapping[str, Any]) -> list[str]:
    """Keys that no checkpoint tells for sure."""
    if trainer == "hf":
        known = [f"  world_size: {ranks}"] if ranks else ["  # world_size:   # processes; each keeps an rng_state file in a checkpoint"]
        return [*known, "  # data: data.jsonl   # rows in the order of the data set: JSON lines, Arrow or Parquet", "  # column: input_ids"]
    name = "dp_world_size" if trainer == "olmo-core" else "world_size"
    return [f"  {name}: {ranks}   # of the checkpoint; less where ranks share a model"] if ranks and name not in args else []


def _launches(kept: list[Kept]) -> list[tuple[Kept, Kept | None]]:
    """The first checkpoint of each launch, and the one it is taken to go on from."""
    return [(k, kept[n - 1] if n else None) for n, k in enumerate(kept) if n == 0 or k.args != kept[n - 1].args]


def _steps(folder: Path) -> list[Path]:
    found = [(int(m[1]), p) for p in sorted(folder.iterdir()) if p.is_dir() and (m := STEP.fullmatch(p.name))]
    return [p for _, p in sorted(found)]


def _number(path: Path) -> int:
    found = STEP.fullmatch(path.name)
    assert found is not None
    return int(found[1])


def _core(_folder: Path, path: Path) -> Kept | None:
    file = path / "config.json"
    if not file.is_file():
        return None
    given = {k: v for k, v in _mapping(file, json.loads).items() if k in CORE and v not in UNSET}
    if isinstance(block := given.get("trainer"), Mapping):
        block = {k: block[k] for k in TRAINER if block.get(k) not in UNSET}
        found = block.get("callbacks")
        callbacks = {k: v for k, v in found.items() if k not in BYSTANDERS} if isinstance(found, Mapping) else {}
        given["trainer"] = {**{k: v for k, v in block.items() if k != "callbacks"}, **({"callbacks": callbacks} if callbacks else {})}
    return Kept(_number(path), path, {k: _bare(v) for k, v in given.items()}, _world(path))


def _olmo(folder: Path, path: Path) -> Kept | None:
    file = next((f for f in (path / "config.yaml", folder / "config.yaml") if f.is_file()), None)
    if file is None:
        return None
    given = _mapping(file, yaml.safe_load)
    args = {k: given[k] for k in OLMO if k not in ("model", "state", "data_indices") and given.get(k) not in UNSET}
    model = given.get("model")
    if isinstance(model, Mapping):
        args["model"] = {k: model[k] for k in ("max_sequence_length", "eos_token_id", "pad_token_id", "vocab_size") if model.get(k) is not None}
    return Kept(_number(path), path, args, _world(path))


def _trainer(_folder: Path, path: Path) -> Kept | None:
    file = path / "training_args.bin"
    found = load(file) if file.is_file() else {}
    if isinstance(found, Made) and not found.state:
        raise StoreError(f"{file} holds no arguments but a call of {found.what}", hint="the file was made to do harm or is foreign; nothing of it was executed")
    given = plain(found)
    if not isinstance(given, Mapping):
        raise StoreError(f"{file} holds no arguments")
    args = {k: given[k] for k in (*OWN["Trainer"], "gradient_accumulation_steps", "max_steps") if given.get(k) not in (*UNSET, False)}
    if not isinstance(limit := args.get("max_steps"), int) or limit <= 0:
        args.pop("max_steps", None)
    args = {k: v for k, v in args.items() if isinstance(v, (int, float, str)) or k == "accelerator_config"}
    config = args.get("accelerator_config")
    if isinstance(config, Mapping):
        args["accelerator_config"] = {k: v for k, v in config.items() if v not in UNSET}
    states = [p.name for p in path.glob("rng_state*.pth")]
    ranks = max((int(m[1]) + 1 for s in states if (m := re.fullmatch(r"rng_state_(\d+)\.pth", s))), default=1 if states else None)
    return Kept(_number(path), path, args, ranks)


def _world(path: Path) -> int | None:
    """Ranks of the trainer state of a checkpoint, where it can be found and read."""
    try:
        found = plain(load(state_file(path)))
    except (StoreError, RunError, OSError):
        return None
    size = found.get("world_size") if isinstance(found, Mapping) else None
    return size if isinstance(size, int) else None


def _mapping(file: Path, parse: Any) -> Mapping[str, Any]:
    try:
        given = parse(read_text(file))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise StoreError(f"{file} cannot be read ({error})") from error
    if not isinstance(given, Mapping):
        raise StoreError(f"{file} holds no configuration")
    return given


def _bare(value: Any) -> Any:
    """A block without what is unset, and without the class of a duration or a range of steps, which its keys tell."""
    if isinstance(value, Mapping):
        return {k: _bare(v) for k, v in value.items() if v is not None and not (k == "_CLASS_" and {"start", "value"} & value.keys())}
    return [_bare(v) for v in value] if isinstance(value, list) else value
