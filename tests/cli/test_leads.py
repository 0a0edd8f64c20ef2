"""What a command says leads on: the next command is named as it can be typed, and a mistake is told with its remedy."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import typer
from forensics.pipelines.locate import keys_in
from typer.testing import CliRunner

from forensics.case import Case, case_for, open_case
from forensics.cli import audit, lookup, show, sidecar
from forensics.errors import ConfigError, ForensicsError, UsageError
from forensics.loaders.base import loader_of
from forensics.run import open_run
from forensics.schemas import CORPORA, Corpora, doc_key
from forensics.stores.write import MegatronWriter

APP = typer.Typer()
for module in (audit, lookup, show, sidecar):
    APP.command(module.__name__.rpartition(".")[2])(module.command)
QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart"
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards", "boil", "potions", "in", "old", "kettles"]


def run(*words: Any) -> Any:
    return CliRunner().invoke(APP, [str(w) for w in words])


def write(path: Path, sources: int = 1) -> Path:
    rows = [{"text": " ".join(np.random.default_rng(i).choice(WORDS, 60)), "source": f"s{i % sources}"} for i in range(20)]
    rows[7]["text"] = "\\" * 4000
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leads")
    assert run("audit", write(folder / "pages.jsonl"), "-o", folder / "case").exit_code == 0
    return folder


def test_an_audit_names_its_page_and_what_looks_into_it(tmp_path: Path) -> None:
    got = run("audit", write(tmp_path / "pages.jsonl", sources=10), "-o", tmp_path / "case")
    assert got.exit_code == 0, got.output
    case = tmp_path / "case"
    assert f"report: {case / 'report.html'}   look in: forensics show {case}" in got.stderr
    assert f"forensics show {case} sources)" in got.stdout


def test_every_command_that_a_summary_names_works(folder: Path) -> None:
    named = re.findall(r"^one \w+: forensics (.*)$", run("show", folder / "case").stderr, re.MULTILINE)
    assert len(named) == 2, named
    for line in named:
        got = run(*shlex.split(line))
        assert got.exit_code == 0 and "repetition" in got.stdout, line


def test_a_document_is_found_by_the_name_of_its_file(folder: Path) -> None:
    for name in ("pages.jsonl:7", f"{folder / 'pages.jsonl'}:7", "0:7", "7"):
        assert "repetition" in run("show", folder / "case", "--doc", name).stdout, name
    refused = run("show", folder / "case", "--doc", "other.jsonl:7").exception
    assert isinstance(refused, UsageError)
    assert refused.hint == f"corpora by number and name: forensics show {folder / 'case'} corpora"


def test_an_audit_has_no_steps(folder: Path) -> None:
    refused = run("show", folder / "case", "--step", "3").exception
    assert isinstance(refused, UsageError) and "is the case of no replay" in refused.message


def test_the_length_that_batching_was_weighed_at_and_what_it_cuts_off_are_said(tmp_path: Path) -> None:
    with MegatronWriter(tmp_path / "c", np.dtype("uint16")) as writer:
        for i in range(30):
            writer.add(np.arange(20 + i), np.array([20 + i]))
    got = run("audit", tmp_path / "c.idx", "-o", tmp_path / "case", "--set", "seq_length=64")
    assert "batching at 64 tokens" in got.stdout
    schemes = [line.split()[0] for line in got.stdout.splitlines() if line.startswith("buckets_")]
    assert schemes == sorted(schemes, key=lambda s: int(s.rpartition("_")[2]))
    got = run("audit", tmp_path / "c.idx", "-o", tmp_path / "case", "--set", "seq_length=40")
    held, beyond = sum(range(20, 50)), sum(range(1, 10))  # tokens, and those past the fortieth of a document
    (line,) = [line.split() for line in got.stdout.splitlines() if line.startswith("best_fit")]
    assert line[2] == f"{100 * beyond / held:.2f}"


def test_records_over_several_lines_are_told_how_to_become_lines(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("\n".join([json.dumps({"text": "a b c"}, indent=1)] * 3))
    got = run("audit", tmp_path / "a.json", "-o", tmp_path / "case")
    assert got.exit_code == 1 and "hint: one JSON record a line is read" in got.stderr


def test_an_audit_of_a_folder_does_not_read_its_own_case(tmp_path: Path) -> None:
    write(tmp_path / "pages.jsonl")
    first, second = (run("audit", tmp_path, "-o", tmp_path / "case") for _ in range(2))
    assert first.exit_code == second.exit_code == 0 and first.stdout == second.stdout
    (tmp_path / "case" / "case.json").unlink()  # as after a kill
    assert run("audit", tmp_path, "-o", tmp_path / "case").stdout == first.stdout
    assert isinstance(refused := run("audit", tmp_path / "case").exception, UsageError)
    assert "holds no file of documents beside cases" in refused.message


def test_a_case_of_another_command_is_not_written_into(folder: Path, tmp_path: Path) -> None:
    assert case_for("audit", folder / "case").info["command"] == "audit"
    assert case_for("curves", tmp_path / "new").info == {}
    with pytest.raises(UsageError, match="holds the case of `forensics audit`"):
        case_for("curves", folder / "case")
    before = Case(tmp_path / "curves")
    before.close(command="curves")
    assert isinstance(run("audit", folder / "pages.jsonl", "-o", before.path).exception, UsageError)


def test_a_folder_of_cases_names_them(folder: Path) -> None:
    with pytest.raises(ForensicsError, match="is no case folder") as refused:
        open_case(folder)
    assert refused.value.hint == f"cases in it: {folder / 'case'}"


def test_a_lookup_says_what_it_was_given(folder: Path, tmp_path: Path) -> None:
    Case(tmp_path / "curves").close(command="curves")
    assert "is a folder" in str(run("lookup", folder / "case", folder).exception)
    assert "holds no documents to compare with" in str(run("lookup", tmp_path / "curves", folder / "pages.jsonl").exception)
    (tmp_path / "page.txt").write_text("nothing of the kind was ever written in any of these pages here")
    assert "at 0.5 or more; `--least` asks for less" in run("lookup", folder / "case", tmp_path / "page.txt").stderr


def test_a_log_in_place_of_a_description_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(" iteration 1: lm loss: 3.2 | grad norm: 1.0\n")
    with pytest.raises(ConfigError, match="not valid YAML") as refused:
        open_run(tmp_path / "train.log")
    assert "`forensics init` writes one from logs" in str(refused.value.hint)


def test_clusters_of_an_audit_are_found_in_the_run_by_their_files() -> None:
    described = open_run(QUICKSTART)
    mine = loader_of(described).corpora(described)
    theirs = mine.filter(pa.compute.equal(mine["name"], "crawl-03_text_document"))
    (number,) = theirs["corpus_id"].to_pylist()
    assert number != 0
    theirs = theirs.set_column(theirs.schema.get_field_index("corpus_id"), "corpus_id", pa.array([0], pa.int32()))
    keys = np.array([doc_key(0, 3), doc_key(0, 5)])
    np.testing.assert_array_equal(keys_in(described, keys, Corpora(theirs)), [doc_key(number, 3), doc_key(number, 5)])
    np.testing.assert_array_equal(keys_in(described, keys, mine), keys)
    other = theirs.set_column(theirs.schema.get_field_index("documents"), "documents", pa.array([9], pa.int64()))
    with pytest.raises(UsageError, match="which this run does not read"):
        keys_in(described, keys, Corpora(CORPORA.of(other)))
