"""The command `forensics show`: the answer with plots, a document by its losses, nothing that a terminal would act on."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from forensics.cli.show import command, filtered
from forensics.errors import UsageError

APP = typer.Typer()
APP.command()(command)


def cases() -> Any:
    """The module that makes cases, which lies beside the tests of reports."""
    path = Path(__file__).parent.parent / "reports" / "cases.py"
    spec = importlib.util.spec_from_file_location("made_cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = cases().make_case(tmp_path_factory.mktemp("case"), steps=20, rows=4, documents=60, suspects=40).path
    return made


def run(*words: Any, **more: Any) -> Any:
    return CliRunner().invoke(APP, [str(w) for w in words], **more)


def test_the_summary_holds_answer_plot_suspects_and_tables(folder: Path) -> None:
    got = run(folder)
    assert got.exit_code == 0, got.output
    for text in (
        "It was the data",
        "do: skip",
        "train_loss, steps 1000 to 1011; ^ window 1010 to 1011, onset 1010",
        "└───",
        "odd tokens",
        "(32 more suspects)",
        "skip list: ",
        "excerpts",
    ):
        assert text in got.stdout, text
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", got.stdout) is None


def test_the_same_as_json(folder: Path) -> None:
    got = json.loads(run(folder, "--format", "json").stdout)
    assert got["verdict"]["cause"] == "data"
    assert got["tables"]["suspects"] == 40
    assert got["plan"][0]["name"] == "removal"


def test_a_document_is_shown_with_controls_visible(folder: Path) -> None:
    got = run(folder, "--doc", "0:21")
    assert got.exit_code == 0, got.output
    assert "␛[2J␛[31mred" in got.stdout
    assert "\x1b" not in got.stdout


def test_nothing_is_written_by_looking(folder: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    for words in ([], ["suspects"], ["--doc", "0:21"], ["--format", "json"]):
        assert run(folder, *words).exit_code == 0
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


def test_a_damaged_table_does_not_stop_the_rest(folder: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(folder, tmp_path / "case"))
    (copy / "tables" / "metrics.parquet").write_bytes(b"no table")
    got = run(copy)
    assert got.exit_code == 0, got.output
    assert "It was the data" in got.stdout


def test_wrong_requests_are_refused(folder: Path) -> None:
    for words in (["suspects", "--doc", "1"], ["--doc", "x"], ["--doc", "0:999999"]):
        assert isinstance(run(folder, *words).exception, UsageError)


@pytest.mark.parametrize("condition", ["hash~x", "spans=3", "spans~3", "n>abc", "n>99999999999999999999999", "n", "m=1"])
def test_a_condition_that_cannot_be_met_is_refused(condition: str) -> None:
    table = pa.table({"n": [1], "hash": [b"\xff\xfe"], "spans": [[1, 2]]})
    with pytest.raises(UsageError):
        filtered(table, [condition])
