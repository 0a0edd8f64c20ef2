"""Cases as data: `tests/cases/<detector>/*.jsonl`, one text and what is expected of it a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forensics.detectors.flagging import flag
from forensics.detectors.measuring import measure
from forensics.detectors.thresholds import read_thresholds
from forensics.stores.batch import DocumentBatch

CONFIG = read_thresholds()
FOLDER = Path(__file__).parents[1] / "cases"


def cases() -> list[object]:
    out: list[object] = []
    for file in sorted(FOLDER.glob("*/*.jsonl")):
        for n, line in enumerate(file.read_text("utf-8").split("\n")):
            if line:
                marks = [pytest.mark.xfail(strict=True)] if file.stem == "known_failure" else []
                out.append(pytest.param(file.parent.name, json.loads(line), id=f"{file.parent.name}-{file.stem}-{n}", marks=marks))
    return out


@pytest.mark.parametrize(("detector", "case"), cases())
def test_case(detector: str, case: dict[str, object]) -> None:
    found = flag(measure(DocumentBatch.from_texts([str(case["text"])]), CONFIG, only=[detector]), CONFIG)
    assert bool(found.num_rows) == case["expect"], case["comment"]
