"""Every option of the libraries' own constructors is read, known to be harmless, or refused by its name; any other name fails.

`options.json` lists the constructors' parameters as they were in the versions it names; the `real` test compares it with
the libraries where they are installed.
"""

import dataclasses
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from forensics.errors import ConfigError, ForensicsError
from forensics.loaders.olmo_core import config, loader
from forensics.loaders.olmo_core.config import Files, Tokenizer
from forensics.loaders.olmo_core.sources import Builder, _spec
from forensics.loaders.olmo_core.trainer import read_trainer
from forensics.loaders.pytorch_options import read_accelerator, read_options
from forensics.loaders.streaming.state import read_settings
from forensics.run import Launch

LISTED: dict[str, list[str]] = json.loads((Path(__file__).parent / "options.json").read_text())
BUILDER = Builder(Files(Path), Tokenizer(0, 0, None, 100))
DATA_SETS = {name: kind for kind, name in config.KINDS.items()}


def dataset(name: str) -> Callable[[Mapping[str, Any]], object]:
    kind = DATA_SETS[name]
    return lambda given: config.Arguments(name, given, (*config.SHARED, *config.OWN[kind]), config.HARMLESS)


def data_loader(composable: bool) -> Callable[[Mapping[str, Any]], object]:
    names = (*loader.LOADER, *(loader.COMPOSABLE if composable else ()))
    return lambda given: config.Arguments("data_loader", given, names, config.LOADER_HARMLESS)


def source(name: str) -> Callable[[Mapping[str, Any]], object]:
    read = BUILDER.instances if "Instance" in name else BUILDER.tokens
    return lambda given: read({"_CLASS_": f"olmo_core.data.composable.{name}", **given})


READERS: dict[str, Callable[[Mapping[str, Any]], object]] = {
    "StreamingDataset": lambda given: read_settings({"batch_size": 1, "local": "x", **given}),
    "Stream": lambda given: read_settings({"batch_size": 1, "streams": [{"local": "x", **given}]}),
    "TrainingArguments": lambda given: read_options("Trainer", given, Path()),
    "AcceleratorConfig": lambda given: read_accelerator(config.Arguments("Trainer", {"accelerator_config": given}, ["accelerator_config"])),
    "DataLoaderConfiguration": lambda given: read_options("Accelerate", given, Path()),
    "prepare_data_loader": lambda given: read_options("Accelerate", given, Path()),
    "DataLoader": lambda given: read_options("DataLoader", given, Path()),
    "DistributedSampler": lambda given: read_options("DistributedSampler", given, Path()),
    "StatefulDataLoader": lambda given: read_options("StatefulDataLoader", given, Path()),
    "TrainerConfig": lambda given: read_trainer(given, Launch(0, 0)),
    "InstanceFilterConfig": lambda given: config.read_filter({"repetition_max_count": 3, **given}),
    "VSLCurriculumConfig": config._curriculum,
    "TokenizerConfig": lambda given: config.read_tokenizer(config.Arguments("data set", {"tokenizer": given}, ["tokenizer"])),
    "NumpyDataLoaderConfig": data_loader(False),
    "ComposableDataLoaderConfig": data_loader(True),
    **{f"{name}Config": dataset(name) for name in DATA_SETS if f"{name}Config" in LISTED},
    **{name: source(name) for name in LISTED if "Source" in name and "Mixture" not in name and "Spec" not in name},
    **{name: _spec for name in LISTED if "Spec" in name},
}
WHOLE = {"NumpyDocumentSourceMixConfig", "RandomInstanceSourceConfig"}  # refused as such
ELSEWHERE = {"versions", "NumpyDatasetConfig", "SourceMixtureDatasetConfig", "SourceMixtureConfig"}  # the base class; read within a data set


def says_unknown(read: Callable[[Mapping[str, Any]], object], name: str) -> bool:
    try:
        read({name: None})
    except ConfigError as error:
        return "is no option of" in error.text()
    except ForensicsError:
        return False
    return False


@pytest.mark.parametrize("owner", [name for name in LISTED if name not in ELSEWHERE | WHOLE])
def test_every_option_of_a_constructor_is_known(owner: str) -> None:
    assert [name for name in LISTED[owner] if says_unknown(READERS[owner], name)] == []


@pytest.mark.parametrize("owner", [name for name in LISTED if name not in ELSEWHERE])
def test_a_name_that_is_no_option_fails_by_name(owner: str) -> None:
    with pytest.raises(ForensicsError) as caught:
        READERS[owner]({"shufle_order": 3})
    assert ("shufle_order" if owner not in WHOLE else owner.removesuffix("Config")) in caught.value.text()


@pytest.mark.parametrize(
    ("owner", "option", "value"),
    [
        ("StreamingDataset", "stream_name", "mine"),
        ("StreamingDataset", "stream_config", {"x": 1}),
        ("TrainingArguments", "train_sampling_strategy", "group_by_length"),
        ("TrainingArguments", "train_sampling_strategy", "batch_rebalance"),
        ("TrainingArguments", "auto_find_batch_size", True),
        ("TrainingArguments", "parallelism_config", {"tp_size": 2}),
        ("TrainingArguments", "deepspeed", {"tensor_parallel": {"autotp_size": 2}}),
        ("AcceleratorConfig", "use_configured_state", True),
        ("prepare_data_loader", "slice_fn_for_dispatch", "f"),
        ("prepare_data_loader", "torch_device_mesh", "m"),
        ("DataLoaderConfiguration", "use_stateful_dataloader", True),
        ("DataLoader", "sampler", "mine"),
        ("DataLoader", "batch_sampler", "mine"),
        ("StatefulDataLoader", "generator", "g"),
    ],
)
def test_what_would_change_the_order_unmodelled_is_refused(owner: str, option: str, value: object) -> None:
    with pytest.raises(ForensicsError, match=next(iter(value)) if option == "deepspeed" else option):
        READERS[owner]({option: value})


def test_batches_out_of_order_are_refused_only_where_workers_race() -> None:
    assert read_options("DataLoader", {"num_workers": 1, "in_order": False}, Path())
    for owner, given in (("DataLoader", {"num_workers": 2, "in_order": False}), ("Trainer", {"dataloader_num_workers": 2, "dataloader_in_order": False})):
        with pytest.raises(ForensicsError, match="in_order"):
            read_options(owner, given, Path())


HOMES = {
    "streaming": ("StreamingDataset", "Stream"), "transformers": ("TrainingArguments",), "transformers.trainer_pt_utils": ("AcceleratorConfig",),
    "accelerate.utils": ("DataLoaderConfiguration",), "accelerate.data_loader": ("prepare_data_loader",),
    "torch.utils.data": ("DataLoader", "DistributedSampler"), "torchdata.stateful_dataloader": ("StatefulDataLoader",),
    "olmo_core.train.config": ("TrainerConfig",), "olmo_core.data": tuple(n for n in LISTED if n.startswith(("NumpyDa", "NumpyF", "NumpyP", "NumpyV"))),
    "olmo_core.data.composable": tuple(n for n in LISTED if n.endswith("SourceConfig") and "Split" not in n and "Concatenated" not in n),
}  # fmt: skip
GIVEN = {"self", "dataset", "dataloader", "num_processes", "process_index", "num_replicas", "rank"}


@pytest.mark.real
@pytest.mark.parametrize("module", HOMES)
def test_the_list_is_that_of_the_installed_library(module: str) -> None:
    found = pytest.importorskip(module)
    for name in HOMES[module]:
        made = getattr(found, name, None) or getattr(importlib.import_module("olmo_core.data.numpy_dataset"), name)
        names = [f.name for f in dataclasses.fields(made)] if dataclasses.is_dataclass(made) else list(inspect.signature(made).parameters)
        assert {n for n in names if not n.startswith("_")} - GIVEN <= set(LISTED[name]), name
