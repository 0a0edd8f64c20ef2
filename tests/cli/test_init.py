"""The command `forensics init`: writes once, never over a file, says what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from forensics.cli.init import command
from forensics.errors import UsageError

CHECKPOINTS = Path(__file__).parents[1] / "loaders" / "megatron" / "checkpoints"


def test_it_writes_a_description_and_never_overwrites_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    source = [CHECKPOINTS / "torch_dist_v0.19.2"]
    command(source)
    said = capsys.readouterr()
    assert said.out.strip() == "forensics.yaml"
    assert "launch 0: after step 0, from checkpoint iter_0000040" in said.err
    assert "data/web_text_document.idx|.bin`: looked for at" in said.err, "the data are not here, which is said and is no failure"
    spec = yaml.safe_load((tmp_path / "forensics.yaml").read_text())
    assert spec["args"]["train_iters"] == 60
    (tmp_path / "forensics.yaml").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        command(source)
    assert (tmp_path / "forensics.yaml").read_text() == "mine"
    command(source, force=True)
    assert (tmp_path / "forensics.yaml").read_text() != "mine"
    (tmp_path / "data.bin").write_text("tokens")
    with pytest.raises(UsageError, match="no name of a run description"):
        command(source, output=tmp_path / "data.bin", force=True)
    (tmp_path / "there").mkdir()
    command(source, output=tmp_path / "there")
    assert (tmp_path / "there" / "forensics.yaml").is_file()


def test_bad_input_is_one_message(tmp_path: Path) -> None:
    got = subprocess.run([sys.executable, "-m", "forensics", "init", "no-such-folder"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert got.returncode == 2
    assert "error: no-such-folder does not exist" in got.stderr
    assert "Traceback" not in got.stderr
