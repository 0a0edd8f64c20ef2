"""Scores against known truth, by scorers that are independent of this project: each prints the row that the README quotes.

The scorers and their cases (labelled curves and texts, small trainings with a known cause) do not ship with the project. Name their folder, which
holds `score/*.py`, `data/` and `oracles/`:

    FORENSICS_SCORES=<folder> pytest tests/bench/test_scores.py -s
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = os.environ.get("FORENSICS_SCORES")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="FORENSICS_SCORES names no folder of scorers and cases")
SEEDS = (1, 2, 3)


def test_real_curves() -> None:
    totals = score("curves.py", cases("data/curves"))
    assert totals["failed"] == 0 and totals["recall"] >= 0.95 and totals["false_per_20k"] <= 1 and totals["severity_right"] >= 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_generated_curves(seed: int, tmp_path: Path) -> None:
    run("make_curves.py", str(tmp_path / "curves"), "--seed", str(seed))
    totals = score("curves.py", tmp_path / "curves")
    assert totals["failed"] == 0 and totals["recall"] >= 0.97 and totals["false_per_20k"] <= 0.5


def test_real_texts() -> None:
    totals = score("texts.py", cases("data/text"))
    assert totals["seen"] == totals["documents"]
    assert min(totals["macro_precision"], totals["macro_recall"]) >= 0.95 and totals["false_garbage_on_hard"] <= 2


@pytest.mark.parametrize("seed", SEEDS)
def test_generated_texts(seed: int, tmp_path: Path) -> None:
    run("make_texts.py", str(cases("data/text")), str(tmp_path / "texts"), "--seed", str(seed))
    totals = score("texts.py", tmp_path / "texts")
    assert min(totals["macro_precision"], totals["macro_recall"]) >= 0.95


def test_trainings_with_a_known_cause() -> None:
    totals = score("spikelab.py", cases("oracles/spikelab"))
    assert totals["failed"] == 0 and totals["false_data"] == 0 and totals["clean_false"] == 0


def test_orders() -> None:
    totals = score("oracles.py", cases("oracles/megatron"))
    assert totals["equal"] == totals["cases"]


def cases(name: str) -> Path:
    """A folder of cases."""
    assert FOLDER
    return Path(FOLDER) / name


def score(script: str, folder: Path) -> dict[str, Any]:
    """The totals that a scorer prints last."""
    out = run(script, str(folder), "--cmd", shutil.which("forensics") or "forensics")
    print(out)
    totals: dict[str, Any] = json.loads(out.splitlines()[-1])
    return totals


def run(script: str, *words: str) -> str:
    """What a script of the folder prints."""
    return subprocess.run([sys.executable, str(cases("score") / script), *words], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
