"""First descriptions from the save folders that real trainers left, held against what these runs read."""

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from forensics.errors import StoreError
from forensics.loaders.base import loader_of
from forensics.loaders.folders import describe_folder, trainer_in
from forensics.run import open_run
from forensics.steps import StepRange

ORACLES = Path(__file__).parents[1] / "oracles"


def copied(name: str, tmp_path: Path) -> Path:
    found = next(ORACLES.glob(f"*/{name}"), None) or next(ORACLES.glob(f"**/{name}"))
    return Path(shutil.copytree(found, tmp_path / "run"))


def described(run: Path, folder: Path, **more: object) -> Path:
    text, _ = describe_folder(folder, run)
    given = yaml.safe_load(text)
    given["args"].update(more)
    (run / "forensics.yaml").write_text(yaml.safe_dump(given))
    return run


def test_the_folder_of_an_olmo_core_run(tmp_path) -> None:
    run = copied("real_trainer_skip_resume", tmp_path)
    text, notes = describe_folder(run / "save", run)
    given = yaml.safe_load(text)
    assert trainer_in(run / "save") == given["trainer"] == "olmo-core" and given["args"]["dp_world_size"] == 1
    assert [x["after_step"] for x in given["launches"]] == [0, 12] and "correct `after_step`" in notes[1]
    given["launches"][0]["last_step"], given["launches"][1] = 12, {**given["launches"][1], "after_step": 9}  # what the logs would tell
    given["launches"][1]["args"]["state"] = "save/step9"
    (run / "forensics.yaml").write_text(yaml.safe_dump(given))
    spec = open_run(run)
    want = np.load(run / "expected.npz")
    steps = StepRange(10, int(want["steps"].max()) + 1)
    loader = loader_of(spec)
    got = np.concatenate([r.sample for r, _ in loader.sequences(spec, steps, 1)])
    rows = np.repeat(want["steps"], np.diff(want["row_ptr"]))
    first = int(np.flatnonzero(np.diff(want["steps"]) <= 0)[-1]) + 1 if (np.diff(want["steps"]) <= 0).any() else int(np.searchsorted(want["steps"], 10))
    assert rows[want["row_ptr"][first]] == 10
    np.testing.assert_array_equal(got, want["sample_ids"][want["row_ptr"][first] :])
    assert loader.trained(spec, StepRange(13, 16), 1).trained.tolist() == [True, False, True]


def test_the_folder_of_a_trainer_run(tmp_path) -> None:
    run = copied("trainer_resume_mid_epoch2", tmp_path)
    text, _ = describe_folder(run, run)
    given = yaml.safe_load(text)
    assert trainer_in(run) == given["trainer"] == "hf" and given["args"]["world_size"] == 1
    assert given["args"]["per_device_train_batch_size"] == 3 and given["metrics"] == ["checkpoint-20/trainer_state.json"]
    described(run, run, data="data.jsonl")
    spec = open_run(run)
    want = np.load(run / "expected.npz")
    got = np.concatenate([r.sample for r, _ in loader_of(spec).sequences(spec, StepRange(1, 8))])
    np.testing.assert_array_equal(got, want["sample_ids"][: len(got)])


def test_the_folder_of_an_old_olmo_run(tmp_path) -> None:
    (tmp_path / "out" / "step40").mkdir(parents=True)
    config = {"data": {"paths": ["a.npy"], "seed": 3}, "model": {"max_sequence_length": 16, "d_model": 8, "eos_token_id": 0}, "optimizer": {"name": "adamw"},
              "global_train_batch_size": 8, "seed": 1}  # fmt: skip
    (tmp_path / "out" / "config.yaml").write_text(yaml.safe_dump(config))
    given = yaml.safe_load(describe_folder(tmp_path / "out", tmp_path)[0])
    model = {"max_sequence_length": 16, "eos_token_id": 0}
    assert given["trainer"] == "olmo" and given["args"] == {"data": config["data"], "seed": 1, "global_train_batch_size": 8, "model": model}


def test_the_command_writes_it_and_a_damaged_configuration_is_named(tmp_path) -> None:
    import typer

    from forensics.cli.init import command

    run = copied("real_trainer_skip_resume", tmp_path)
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, [str(run / "save"), "-o", str(run / "forensics.yaml")])
    assert done.exit_code == 0 and yaml.safe_load((run / "forensics.yaml").read_text())["trainer"] == "olmo-core"
    (run / "save" / "step9" / "config.json").write_text("{")
    with pytest.raises(StoreError, match="cannot be read"):
        describe_folder(run / "save", run)


class Call:
    """A pickle that asks for a call."""

    def __reduce__(self) -> object:
        return os.system, ("true",)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (Call(), f"a call of {os.system.__module__}.system"),
        ({"seed": 10**5000}, "cannot be written as YAML"),
        ([1, 2], "holds no arguments"),
    ],
)
def test_arguments_that_are_none_are_refused_by_name(args: object, said: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text("{}")
    (tmp_path / "checkpoint-2" / "training_args.bin").write_bytes(pickle.dumps(args))
    with pytest.raises(StoreError, match=said):
        describe_folder(tmp_path, tmp_path)


def test_options_of_odd_types_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text("{}")
    (tmp_path / "checkpoint-2" / "training_args.bin").write_bytes(pickle.dumps({"seed": 3, "data_seed": [1], "max_steps": "many"}))
    assert yaml.safe_load(describe_folder(tmp_path, tmp_path)[0])["args"] == {"seed": 3}


def test_configurations_that_no_yaml_file_can_hold_are_refused(tmp_path: Path) -> None:
    (tmp_path / "step1").mkdir()
    file = tmp_path / "step1" / "config.json"
    file.write_text(json.dumps({"trainer": {"callbacks": [1]}, "data_loader": {"seed": 1}}))
    assert yaml.safe_load(describe_folder(tmp_path, tmp_path)[0])["args"]["data_loader"] == {"seed": 1}
    for text in ('{"dataset": "\\ud800"}', '{"dataset":' * 900 + "1" + "}" * 900):
        file.write_text(text)
        with pytest.raises(StoreError, match="cannot be written as YAML"):
            describe_folder(tmp_path, tmp_path)
