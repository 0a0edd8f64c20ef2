"""Megatron Bridge's configuration and state, in Megatron-LM's own argument names.

Bridge writes `run_config.yaml` (dataclasses with `_target_` keys) and `train_state.pt` (a dictionary of 0-d tensors) into
every checkpoint. The YAML may carry tags of Python objects: they are read as plain values, nothing is constructed.
Field names as in Bridge's `training/config.py` of August 2026 and megatron-core's `GPTDatasetConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forensics.errors import StoreError
from forensics.files import read_text
from forensics.unpickle import load, plain

CONFIG, STATE = "run_config.yaml", "train_state.pt"
_OTHER_NAMES = {"random_seed": "seed", "sequence_length": "seq_length", "path_to_cache": "data_cache_path", "mock": "mock_data"}
_FIELDS = {section: names.split() for section, names in {
    "dataset": """random_seed sequence_length seq_length split path_to_cache dataloader_type data_sharding full_validation mid_level_dataset_surplus data_path
        add_extra_token_to_sequence drop_last_partial_validation_sequence eod_mask_loss reset_position_ids reset_attention_mask mock""",
    "train": """global_batch_size micro_batch_size train_iters train_samples rampup_batch_size decrease_batch_size_if_needed iterations_to_skip eval_interval
        eval_iters skip_train phase_transition_iterations step_batch_size_schedule""",
    "validation": "eval_interval eval_iters full_validation eval_global_batch_size start_eval_at_iter skip_train",
    "model": "tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size vocab_size hybrid_context_parallel",
}.items()}  # fmt: skip


def read_config(path: Path) -> dict[str, Any]:
    """Arguments from a `run_config.yaml`; what it leaves empty is left out.

    Raises:
        StoreError: no mapping, or no YAML.
    """
    found = _inert_yaml(path)
    out: dict[str, Any] = {}
    for section, fields in _FIELDS.items():
        given = found.get(section)
        if isinstance(given, Mapping):
            out.update({_OTHER_NAMES.get(name, name): given[name] for name in fields if _simple(given.get(name))})
    data = found.get("dataset")
    if isinstance(data, Mapping):
        out.update(_blends(data))
        if str(data.get("_target_", "")).endswith("GPTFIMDatasetConfig"):
            out["fim_data"] = True
    return out


def _blends(data: Mapping[str, Any]) -> dict[str, list[str]]:
    """`blend: [prefixes, weights]` and `blend_per_split` as lists of the command line's form."""
    if data.get("blend_per_split"):
        lists = zip(("train_data_path", "valid_data_path", "test_data_path"), data["blend_per_split"])
        return {name: words for name, pair in lists if (words := _words(pair))}
    words = _words(data.get("blend"))
    return {"data_path": words} if words else {}


def _words(pair: Any) -> list[str]:
    if not isinstance(pair, (list, tuple)) or not pair or not isinstance(pair[0], (list, tuple)):
        return []
    weights = pair[1] if len(pair) > 1 else None
    if not _simple(pair[0]) or (weights and not _simple(weights)):
        return []
    if not weights:
        return [str(p) for p in pair[0]]
    return [str(x) for weight, prefix in zip(weights, pair[0]) for x in (weight, prefix)]


def _simple(value: Any) -> bool:
    """A number, a text, or a flat list of these: nothing whose text could outgrow the file through aliases."""
    if isinstance(value, (list, tuple)):
        return all(isinstance(x, (str, int, float)) for x in value)
    return isinstance(value, (str, int, float))


def _inert_yaml(path: Path) -> dict[str, Any]:
    import yaml

    class Inert(yaml.SafeLoader):
        """Plain YAML; a tag of any object gives the value below it."""

    def value(loader: Any, _tag: str, node: Any) -> Any:
        if isinstance(node, yaml.MappingNode):
            return loader.construct_mapping(node, deep=True)
        return loader.construct_sequence(node, deep=True) if isinstance(node, yaml.SequenceNode) else loader.construct_scalar(node)

    Inert.add_multi_constructor("", value)
    try:
        found = yaml.load(read_text(path, 1 << 24), Loader=Inert)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise StoreError(f"{path} is not valid YAML: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(found, dict):
        raise StoreError(f"{path} holds no mapping")
    return found


def read_state(path: Path) -> dict[str, int]:
    """Counters of a `train_state.pt`: step, consumed_train_samples, skipped_train_samples, consumed_valid_samples.

    Raises:
        StoreError: no such file, or not of this form.
    """
    found = plain(load(path))
    if not isinstance(found, dict) or not isinstance(found.get("step"), int):
        raise StoreError(f"{path} holds no `step`, so it is no state of Megatron Bridge")
    return {k: v for k, v in found.items() if isinstance(v, int) and not isinstance(v, bool)}
