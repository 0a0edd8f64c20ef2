"""What loaders outside Megatron owe: refusals by name, epochs that are permutations, resumes that go on where the run stood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from forensics.errors import ConfigError, ForensicsError, NotReplayable, RunError
from forensics.loaders.arguments import Arguments
from forensics.loaders.base import LOADERS, loader_of
from forensics.loaders.others import WITHOUT_ORDER
from forensics.loaders.planned import cut, places
from forensics.run import RunFile, RunSpec, resolve
from forensics.steps import StepRange

TOKENS = [[i, i + 1, 0] for i in range(1, 24)]


def described(folder: Path, trainer: str, launches: list[dict[str, Any]] | None = None, **args: Any) -> RunSpec:
    content: dict[str, Any] = {"trainer": trainer, "args": args} | ({"launches": launches} if launches else {})
    return resolve(msgspec.convert(content, RunFile), None, folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"input_ids": t}) + "\n" for t in TOKENS))
    return tmp_path


def samples(run: RunSpec, start: int, stop: int, launch: int | None = None) -> list[int]:
    table = pa.concat_tables(list(loader_of(run).consumed(run, StepRange(start, stop), launch)))
    return [sample for _, _, sample in dict.fromkeys(zip(*(table[n].to_pylist() for n in ("step", "sequence", "sample"))))]


PLAIN = {"loader": "DistributedSampler", "data": ["data.jsonl"], "batch_size": 2, "seed": 1}
ACCELERATE = {"loader": "Accelerate", "data": ["data.jsonl"], "batch_size": 2, "seed": 1}
TRAINER = {"data": ["data.jsonl"], "per_device_train_batch_size": 2, "seed": 1}


@pytest.mark.parametrize(
    ("trainer", "args", "named"),
    [
        ("pytorch", PLAIN | {"sampler": "mine"}, "sampler"),
        ("pytorch", PLAIN | {"loader": "MyLoader"}, "MyLoader"),
        ("pytorch", PLAIN | {"loader": "datasets.IterableDataset"}, "trainer: datasets"),
        ("pytorch", PLAIN | {"batch_size": 0}, "batch_size"),
        ("pytorch", PLAIN | {"shuffle": "perhaps"}, "shuffle"),
        ("pytorch", PLAIN | {"gradient_accumulation_steps": 5}, "partial_accumulation"),
        ("pytorch", {"loader": "DataLoader", "data": ["data.jsonl"], "batch_size": 2, "shuffle": True}, "generator"),
        ("pytorch", {"loader": "StatefulDataLoader", "data": ["data.jsonl"], "batch_size": 2, "shuffle": True}, "generator"),
        ("pytorch", ACCELERATE | {"use_seedable_sampler": False}, "use_seedable_sampler"),
        ("pytorch", ACCELERATE | {"split_batches": True, "world_size": 3}, "split_batches"),
        ("hf", TRAINER | {"group_by_length": True}, "group_by_length"),
        ("hf", TRAINER | {"auto_find_batch_size": True}, "auto_find_batch_size"),
        ("hf", TRAINER | {"accelerator_config": {"use_seedable_sampler": False}}, "use_seedable_sampler"),
        ("hf", TRAINER | {"accelerator_config": {"no_such": 1}}, "no_such"),
        ("hf", TRAINER | {"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(folder: Path, trainer: str, args: dict[str, Any], named: str) -> None:
    run = described(folder, trainer, **args)
    with pytest.raises((ConfigError, NotReplayable, RunError)) as caught:
        list(loader_of(run).consumed(run, StepRange(1, 2)))
    assert named in caught.value.text()


@pytest.mark.parametrize("name", sorted(WITHOUT_ORDER))
def test_trainers_without_order_say_what_to_record(folder: Path, name: str) -> None:
    run = described(folder, name)
    loader = LOADERS.get(name)
    for asked in (loader.launches, loader.corpora, loader.blends, loader.store):
        with pytest.raises(NotReplayable, match=name) as caught:
            asked(run)
        assert "trainer: recorded" in str(caught.value.hint)
    for call in (
        lambda: list(loader.consumed(run, StepRange(1, 2))),
        lambda: loader.trained(run, StepRange(1, 2)),
        lambda: list(loader.locate(run, np.array([0]))),
    ):
        with pytest.raises(NotReplayable):
            call()


@pytest.mark.parametrize(("trainer", "args"), [("pytorch", PLAIN | {"drop_last": False}), ("pytorch", ACCELERATE), ("hf", TRAINER)])
def test_an_epoch_holds_every_example_once(folder: Path, trainer: str, args: dict[str, Any]) -> None:
    run = described(folder, trainer, **args)
    first, second = samples(run, 1, 13), samples(run, 13, 25)
    assert sorted(first) == sorted(second) == list(range(len(TOKENS)))
    assert first != second


def test_a_resume_goes_on_where_the_run_stood(folder: Path) -> None:
    whole = described(folder, "pytorch", **PLAIN)
    broken = described(folder, "pytorch", [{"after_step": 0, "last_step": 7}, {"after_step": 5}], **PLAIN)
    assert samples(broken, 6, 30, 1) == samples(whole, 6, 30)
    assert samples(broken, 1, 8, 0) == samples(whole, 1, 8)
    with pytest.raises(ForensicsError):
        samples(broken, 1, 3, 1)


def test_accelerate_before_its_mending_needs_its_version(folder: Path) -> None:
    launches = [{"after_step": 0, "last_step": 14}, {"after_step": 14, "args": {"epoch": 1, "skip_first_batches": 2}}]
    with pytest.raises(NotReplayable, match="version"):
        samples(described(folder, "pytorch", launches, **ACCELERATE), 15, 17)
    new = samples(described(folder, "pytorch", launches, **ACCELERATE, accelerate_version="1.15.0"), 15, 25)
    old = samples(described(folder, "pytorch", launches, **ACCELERATE, accelerate_version="1.9.0"), 15, 25)
    whole = described(folder, "pytorch", **ACCELERATE)
    assert new == samples(whole, 15, 25)
    assert old == samples(whole, 3, 13)  # the order of epoch 0


def test_a_run_of_unknown_length_has_no_list_of_all_places(folder: Path) -> None:
    run = described(folder, "pytorch", **PLAIN)
    with pytest.raises(RunError, match="no known end"):
        list(loader_of(run).locate(run, np.array([0])))
    run = described(folder, "pytorch", **PLAIN, max_steps=30)
    found = pa.concat_tables(list(loader_of(run).locate(run, np.array([4]))))
    assert found["step"].to_pylist() == [s for s in range(1, 31) if 4 in samples(run, s, s + 1)]


def test_a_launch_beyond_its_end_is_named(folder: Path) -> None:
    run = described(folder, "pytorch", [{"after_step": 0, "last_step": 99}], **PLAIN, max_steps=30)
    with pytest.raises(RunError, match="step 99"):
        samples(run, 1, 2)


def test_ranges_are_cut_at_documents() -> None:
    owner, document, start, stop = cut(np.array([0, 3, 3, 7, 9]), np.array([1, 7, 2]), np.array([4, 9, 2]))
    assert list(zip(owner.tolist(), document.tolist(), start.tolist(), stop.tolist())) == [(0, 0, 1, 3), (0, 2, 0, 1), (1, 3, 0, 2)]
    assert places(np.array([0, 0, 1]), np.array([2, 1, 2])).tolist() == [0, 2, 0]
    assert places(np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []


def test_options_are_read_strictly() -> None:
    with pytest.raises(ConfigError, match="seeed"):
        Arguments("a loader", {"seeed": 1}, ("seed",), ())
    read = Arguments("a loader", {"seed": "x", "on": 2}, ("seed", "on"), ())
    with pytest.raises(ConfigError, match="seed"):
        read.integer("seed")
    with pytest.raises(ConfigError, match="on"):
        read.flag("on", False)
