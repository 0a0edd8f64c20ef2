"""Which findings of detectors single out documents."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from forensics.attribution.screening import flagged
from forensics.attribution.timeline import Timeline
from forensics.schemas import FINDINGS, Findings

KEYS = np.arange(200, dtype=np.int64)
MANY = list(range(150, 158))


def findings(keys: list[int], cause: str, garbage: bool, primary: bool = True, skeleton: str | None = "dear <...>,") -> Findings:
    n = len(keys)
    same: dict[str, Any] = {"detector": "d", "measure": "m", "version": 1, "value": 1.0, "threshold": 0.5}
    same |= {"cause": cause, "primary": primary, "garbage": garbage}
    return Findings(FINDINGS.of({"doc_key": keys, **{k: [v] * n for k, v in same.items()}, "detail": [skeleton] * n, "spans": [None] * n}))


@pytest.mark.parametrize(
    ("cause", "garbage", "primary", "marked"),
    [
        ("mojibake", True, True, True),
        ("template", False, True, True),
        ("duplicate", False, True, True),
        ("template", False, False, False),
        ("markup", False, True, False),
        ("table", True, True, False),
    ],
)
def test_garbage_and_pages_of_templates_are_marked(cause: str, garbage: bool, primary: bool, marked: bool) -> None:
    table = KEYS < 100
    got = flagged(cast(Timeline, SimpleNamespace(keys=KEYS)), findings(MANY, cause, garbage, primary), table)
    assert got == (dict.fromkeys(MANY, cause) if marked else {})


def test_a_cause_that_ordinary_documents_often_have_marks_nothing() -> None:
    table = KEYS < 100
    assert flagged(cast(Timeline, SimpleNamespace(keys=KEYS)), findings([1, 2, 3, *MANY], "template", False), table) == {}


def test_a_template_of_ordinary_documents_marks_nothing() -> None:
    table = KEYS < 100
    assert flagged(cast(Timeline, SimpleNamespace(keys=KEYS)), findings([1, *MANY], "template", False), table) == {}
    assert flagged(cast(Timeline, SimpleNamespace(keys=KEYS)), findings([1, *MANY], "template", True), table) != {}


def test_a_few_pages_that_resemble_one_another_mark_nothing() -> None:
    table = KEYS < 100
    assert flagged(cast(Timeline, SimpleNamespace(keys=KEYS)), findings(MANY[1:], "template", False), table) == {}


def test_copies_and_near_copies_of_one_document_count_together() -> None:
    near, exact = (
        findings(MANY[:4], "duplicate", False, skeleton="near copy of document 9"),
        findings(MANY[4:], "duplicate", False, skeleton="copy of document 9"),
    )
    line = cast(Timeline, SimpleNamespace(keys=KEYS))
    assert flagged(line, Findings(FINDINGS.concat([near, exact])), KEYS < 100) == dict.fromkeys(MANY, "duplicate")
    assert flagged(line, exact, KEYS < 100) == {}
