"""GPT-NeoX, OLMo, OLMo-core and Streaming on the cases that ship: options refused by name, resumes, places of documents."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from forensics.errors import ConfigError, ForensicsError, NotReplayable, RunError
from forensics.loaders.base import loader_of
from forensics.run import RunFile, RunSpec, resolve
from forensics.steps import StepRange

ORACLES = Path(__file__).parents[1] / "oracles"
CASES = {
    "neox": "neox/split_multiepoch", "olmo": "olmo/fast_forward_ws4", "olmo-core": "olmo-core/fsl_filter_dp4_epoch_cross",
    "streaming": "streaming/proportion_py1e_ws1", "composable": "olmo-core/composable_12",
}  # fmt: skip


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ORACLES / f"{name}.py")
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def content(name: str) -> tuple[Path, dict[str, Any]]:
    case = ORACLES / CASES[name]
    run = json.loads((case / "run.json").read_text())
    if name == "neox":
        return case, dict(module("trainer_gpt_neox").describe(run, case))
    return case, {k: v for k, v in module("test_others").DESCRIBE[run["framework"]](case, run).items() if v is not None}


def changed(name: str, change: Callable[[dict[str, Any]], None]) -> RunSpec:
    case, given = content(name)
    copy = json.loads(json.dumps(given))
    change(copy)
    return resolve(msgspec.convert(copy, RunFile), None, case)


def rows(run: RunSpec, start: int, stop: int, launch: int | None = None) -> pa.Table:
    return pa.concat_tables(list(loader_of(run).consumed(run, StepRange(start, stop), launch))).drop_columns(["launch"])


def put(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set an option in the shared arguments, and in every launch that has its block."""

    def change(given: dict[str, Any]) -> None:
        blocks = [given.setdefault("args", {}), *(x.setdefault("args", {}) for x in given.get("launches", []))]
        for i, block in enumerate(blocks):
            if len(keys) > 1 and keys[0] not in block and not (i == 0 and all(keys[0] not in b for b in blocks)):
                continue
            for key in keys[:-1]:
                block = block.setdefault(key, {})
            block[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        ("neox", put("dataset_impl", value="pairwise"), "dataset_impl"),
        ("neox", put("data_impl", value="cached"), "data_impl"),
        ("neox", put("pack_impl", value="unpacked"), "train_label_data_paths"),
        ("neox", put("shuffle_documents", value=True), "shuffle_documents"),
        ("neox", put("train_batch_size", value=7), "train_batch_size"),
        ("olmo", put("data", "custom_dataset", value={"name": "x"}), "custom_dataset"),
        ("olmo", put("data", "mix", value=1), "mix"),
        ("olmo", put("world_size", value=3), "world_size"),
        ("olmo-core", put("dataset", "mix", value="OLMoE-mix-0824"), "mix"),
        ("olmo-core", put("dataset", "type", value="NumpyOtherDataset"), "NumpyOtherDataset"),
        ("olmo-core", put("dataset", "chunk", value=2), "chunk"),
        ("olmo-core", put("data_loader", "order", value=2), "order"),
        ("olmo-core", put("data_loader", "global_batch_size", value=24), "global_batch_size"),
        ("composable", put("data_loader", "shuffle_strategy", value="outer"), "shuffle_strategy"),
        ("composable", put("sources", value=[{"_CLASS_": "a.b.OtherInstanceSourceConfig"}]), "OtherInstanceSource"),
        ("streaming", put("shuffle_algo", value="py3"), "shuffle_algo"),
        ("streaming", put("batching_method", value="mine"), "batching_method"),
        ("streaming", put("partition_algo", value="tight"), "partition_algo"),
        ("streaming", put("sampling_method", value="odd"), "sampling_method"),
        ("streaming", put("reorder", value=True), "reorder"),
    ],
)
def test_an_option_that_is_not_modelled_is_refused_by_name(name: str, change: Callable[[dict[str, Any]], None], named: str) -> None:
    with pytest.raises((ConfigError, NotReplayable, RunError)) as caught:
        rows(changed(name, change), 1, 3, 0)
    assert named in caught.value.text()


def test_a_saved_state_of_streaming_says_what_its_chain_says() -> None:
    chained = changed("streaming", lambda given: None)

    def with_state(given: dict[str, Any]) -> None:
        given["launches"] = [{**given["launches"][1], "after_step": 37, "args": {**given["launches"][1]["args"], "state": "state_step37.json"}}]

    assert rows(changed("streaming", with_state), 38, 68).equals(rows(chained, 38, 68, 1))

    def foreign(given: dict[str, Any]) -> None:
        given["launches"][1]["args"]["state"] = {"epoch": 0}

    with pytest.raises(ForensicsError):
        rows(changed("streaming", foreign), 38, 40, 1)


def test_recorded_indices_of_olmo_say_what_is_computed() -> None:
    run = changed("olmo", lambda given: None)
    recorded = changed("olmo", put("data_indices", value="data-indices"))
    assert rows(recorded, 1, 9, 0).equals(rows(run, 1, 9, 0))
    assert rows(recorded, 9, 21, 1).equals(rows(run, 9, 21, 1))


@pytest.mark.parametrize("name", ["olmo", "olmo-core", "composable", "streaming", "neox"])
def test_documents_are_found_where_a_scan_finds_them(name: str) -> None:
    run = changed(name, lambda given: None)
    loader = loader_of(run)
    launches = loader.launches(run).to_pylist()
    last = launches[-1]
    stop = min(last["first_step"] + 6, last["stop_step"])
    whole = rows(run, last["first_step"], stop, last["launch"])
    keys = np.unique(whole["doc_key"].to_numpy())[:5]
    found = []
    try:
        for table in loader.locate(run, keys):
            found.append(table)
    except RunError as error:
        assert "no known end" in error.message
        return
    table = pa.concat_tables(found)
    inside = (table["launch"].to_numpy() == last["launch"]) & (table["step"].to_numpy() < stop)
    mine = table.filter(pa.array(inside)).drop_columns(["launch"]).sort_by([("step", "ascending"), ("sequence", "ascending"), ("seq_start", "ascending")])
    assert mine.equals(whole.filter(pa.array(np.isin(whole["doc_key"].to_numpy(), keys))))


@pytest.mark.parametrize("name", ["olmo-core", "streaming", "olmo"])
def test_an_epoch_repeats_no_sample(name: str) -> None:
    run = changed(name, lambda given: None)
    table = rows(run, 1, 10, 0)
    first = table.filter(pa.array(table["epoch"].to_numpy(zero_copy_only=False) == table["epoch"][0].as_py()))
    samples = list(dict.fromkeys(zip(*(first[n].to_pylist() for n in ("step", "sequence", "sample")))))
    assert len({s for _, _, s in samples}) == len(samples)


def test_workers_that_split_the_rest_of_an_epoch_are_refused_at_its_end_only() -> None:
    """169 instances on 4 ranks, padded to 43 each: without `drop_last` a batch of 4 leaves 3 of them, which two workers split into two steps."""

    def several(given: dict[str, Any]) -> None:
        given["launches"] = [{"after_step": 0}]
        given["args"] = {**given["args"], "global_train_batch_size": 16, "data": {**given["args"]["data"], "drop_last": False, "num_workers": 2}}

    run = changed("olmo", several)
    assert len(rows(run, 1, 11))
    for start, stop in ((11, 12), (9, 12), (12, 13), (30, 31)):
        with pytest.raises(NotReplayable, match="num_workers"):
            rows(run, start, stop)

    def one(given: dict[str, Any]) -> None:
        several(given)
        given["args"]["data"]["num_workers"] = 1

    assert len(rows(changed("olmo", one), 9, 13))
