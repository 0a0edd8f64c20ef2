"""The command `forensics curves`: what it writes, prints and returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from forensics.cli.curves import CommandClass, command
from forensics.errors import UsageError

APP = typer.Typer()
APP.command(cls=CommandClass)(command)
BATCH = np.random.default_rng(0).normal(0, 0.02, 1500)


def log(path: Path, seed: int, spike: bool = True, batch: np.ndarray = BATCH) -> Path:
    s = np.arange(1, 1501)
    y = 1.7 + 6 * (s + 20.0) ** -0.35 + batch + np.random.default_rng(seed).normal(0, 0.002, 1500)
    if spike:
        y[1000:1010] += 0.8
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("".join(json.dumps({"step": int(a), "loss": float(b)}) + "\n" for a, b in zip(s, y, strict=True)))
    return path


def run(*words: Any) -> Any:
    return CliRunner().invoke(APP, [str(w) for w in words])


def test_tables_verdicts_and_terminal_agree(tmp_path: Path) -> None:
    got = run(log(tmp_path / "a.jsonl", 1), "-o", tmp_path / "case")
    assert got.exit_code == 0, got.output
    events = pq.read_table(tmp_path / "case/tables/events.parquet").to_pylist()
    (alarm,) = [e for e in events if e["level"] == "alarm"]
    assert (alarm["start"], alarm["shape"], alarm["severity"], alarm["cause"]) == (1001, "spike", "returned", "undetermined")
    assert set(pq.read_table(tmp_path / "case/tables/metrics.parquet").column("metric").to_pylist()) == {"train_loss"}
    for text in ("1001-10", "do: do nothing", "forensics replay RUN --steps 1001:", "loader queue", "not evaluated: ", "spike score of train_loss"):
        assert text in got.stdout
    said = json.loads((tmp_path / "case/verdicts.json").read_text())
    assert said["runs"][0]["verdicts"][0]["start"] == 1001
    assert {"what": "val_gap", "why": "no held-out loss was logged"} in said["runs"][0]["not_evaluated"]
    expected = said["runs"][0]["loss_events_expected_from_noise"]
    assert 0 <= expected < 1 and said["runs"][0]["loss_events_found"] == 1
    assert f"loss events found: 1; noise alone would give about {expected:.1f}" in got.stdout
    assert json.loads((tmp_path / "case/case.json").read_text())["command"] == "curves"


def test_json_and_csv_are_parsed_back(tmp_path: Path) -> None:
    path = log(tmp_path / "a.jsonl", 1)
    data = json.loads(run(path, "-o", tmp_path / "c", "--format", "json").stdout)
    assert data["events"][0]["evidence"]["hot_records"] >= 3
    lines = run(path, "-o", tmp_path / "c", "--format", "csv").stdout.splitlines()
    assert lines[0].startswith("event_id,incident,run,metric") and len(lines) == 1 + len(data["events"])


@pytest.mark.parametrize(("words", "code"), [("spike", 3), ("level_shift,returned", 3), ("level_shift,diverging", 0)])
def test_fail_on(tmp_path: Path, words: str, code: int) -> None:
    assert run(log(tmp_path / "a.jsonl", 1), "-o", tmp_path / "c", "--fail-on", words).exit_code == code


def test_a_word_that_is_no_shape_is_refused(tmp_path: Path) -> None:
    got = run(log(tmp_path / "a.jsonl", 1), "-o", tmp_path / "c", "--fail-on", "levelshift")
    assert isinstance(got.exception, UsageError) and "did you mean `level_shift`" in got.exception.message


def test_against_takes_several_files_and_names_common_peaks(tmp_path: Path) -> None:
    a, b = log(tmp_path / "a.jsonl", 1), log(tmp_path / "b.jsonl", 2, spike=False)
    rows = b.read_text().splitlines(keepends=True)
    (tmp_path / "b1.jsonl").write_text("".join(rows[:700]))
    (tmp_path / "b2.jsonl").write_text("".join(rows[700:]))
    got = run(a, "--against", tmp_path / "b1.jsonl", tmp_path / "b2.jsonl", "-o", tmp_path / "c")
    assert got.exit_code == 0, got.output
    assert "read the same batches in the same order" in got.stdout and "peaks of a alone" in got.stdout
    assert set(pq.read_table(tmp_path / "c/tables/metrics.parquet").column("run").to_pylist()) == {"a", "b1"}


def test_a_run_description_gives_checkpoints_and_optimizer(tmp_path: Path) -> None:
    (tmp_path / "forensics.yaml").write_text(
        "run: r\ntrainer: recorded\nargs: {seq_length: 8, global_batch_size: 2}\ncheckpoints: [500, 900, 1200]\n"
        "optimizer: {name: adamw, betas: [0.9, 0.95], warmup: 100}\nannotations: notes.csv\n"
    )
    (tmp_path / "notes.csv").write_text("step,kind,text\n1000,mix,more code\n")
    got = run(log(tmp_path / "a.jsonl", 1), "--run", tmp_path, "-o", tmp_path / "case")
    assert got.exit_code == 0, (got.output, got.exception)
    (alarm,) = [e for e in pq.read_table(tmp_path / "case/tables/events.parquet").to_pylist() if e["level"] == "alarm"]
    assert (alarm["checkpoint"], alarm["cause"], alarm["subcause"]) == (900, "composition", "declared_mix")


def test_equal_input_gives_equal_tables(tmp_path: Path) -> None:
    path = log(tmp_path / "a.jsonl", 1)
    for name in ("one", "two"):
        run(path, "-o", tmp_path / name)
    one, two = (pq.read_table(tmp_path / name / "tables/events.parquet") for name in ("one", "two"))
    assert one.to_pylist() == two.to_pylist()
