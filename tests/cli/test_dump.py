"""`forensics dump` as a user types it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import typer
import yaml
from typer.testing import CliRunner

from forensics.cli.dump import command
from forensics.errors import RunError

CASE = Path(__file__).parents[1] / "oracles" / "megatron" / "launches_rollback_skips_v0_16"


@pytest.fixture
def folder(tmp_path):
    run = json.loads((CASE / "run.json").read_text())
    for name in ("data", "more"):
        shutil.copytree(CASE / name, tmp_path / name)
    shared = {k: v for k, v in run.items() if k not in {"about", "framework", "mcore_version", "launches", "data_moved", "data_cache_path"}}
    launches = []
    for x in run["launches"]:
        args = {k: v for k, v in x.items() if k not in {"start_iteration", "stop_iteration", "consumed_train_samples"}}
        launches.append({"after_step": x["start_iteration"], "consumed": x["consumed_train_samples"], "last_step": x["stop_iteration"], "args": args})
    content = {"trainer": "megatron", "version": run["mcore_version"], "moved": run["data_moved"], "args": shared, "launches": launches}
    (tmp_path / "forensics.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


def type_in(*words):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(w) for w in words])


def test_the_plan_comes_first_and_twice_run_steps_are_named(folder):
    result = type_in(folder, "--steps", "28:42", "-o", folder / "out", "--format", "json")
    assert result.exit_code == 0, result.output
    lines = result.stderr.splitlines()
    assert lines[0].startswith("14 steps, first 28, last 41, ")
    assert "steps 28 to 34 were run by launches 0, 1; taken from launch 1" in result.stderr
    assert "steps 41 to 41 were run by launches 1, 2; taken from launch 2" in result.stderr
    assert json.loads(result.stdout)["sequences"] == 14 * 16
    got = np.load(folder / "out" / "sequences.npz")
    assert set(got["launch"][got["step"] == 41].tolist()) == {2}
    assert got["steps"][~got["trained"]].tolist() == [30, 31, 34]


def test_a_launch_can_be_chosen(folder):
    result = type_in(folder, "--steps", "28:30", "--launch", 0, "--no-text", "-o", folder / "out")
    assert result.exit_code == 0, result.output
    assert "taken from launch 0" in result.stderr
    want = np.load(CASE / "expected.npz")
    rows = (want["row_launch"] == 0) & (want["row_step"] >= 28) & (want["row_step"] < 30)
    np.testing.assert_array_equal(np.load(folder / "out" / "sequences.npz")["tokens"], want["tokens"][rows])
    assert not (folder / "out" / "sequences.jsonl").exists()


def test_without_its_tokenizer_all_but_the_text_is_written(folder):
    content = yaml.safe_load((folder / "forensics.yaml").read_text())
    (folder / "forensics.yaml").write_text(yaml.safe_dump(content | {"tokenizer": "gone.json"}))
    result = type_in(folder, "--steps", "28:30", "-o", folder / "out")
    assert result.exit_code == 0, result.output
    assert "note: no text: " in result.stderr and "gone.json" in result.stderr
    assert any("gone.json" in note for note in json.loads((folder / "out" / "dump.json").read_text())["notes"])
    lines = [json.loads(line) for line in (folder / "out" / "sequences.jsonl").read_text().splitlines()]
    assert {s["text"] for line in lines for s in line["segments"]} == {None}


def test_what_cannot_be_dumped_is_an_error_of_ours(folder):
    result = type_in(folder, "--steps", "70:80", "-o", folder / "out")
    assert isinstance(result.exception, RunError)
    assert "no launch ran step 73" in result.exception.message
    assert not (folder / "out").exists()
