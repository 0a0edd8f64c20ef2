"""The report of an audit: garbage first, the text of flagged documents, a page per file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from forensics.pipelines.audit import audit, plan, read_settings

from forensics.case import Case
from forensics.engines.local import Inline
from forensics.reports.audit import causes
from forensics.reports.tables import Tables
from forensics.schemas import FINDINGS
from forensics.stores.records import ReadOptions

from .browser import Browser
from .cases import HOSTILE

SENTENCE = "the quick brown fox jumps over a lazy dog while seven wizards boil potions in old kettles near rivers "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    paths = []
    for name in ("one", "two"):
        bad = [{"id": f"{name}-{i}", "text": h + " " + "\\" * 6000 + " mail jane.doe@example.com", "source": h} for i, h in enumerate(HOSTILE)]
        good = [{"id": f"{name}-good-{i}", "text": SENTENCE * 3 + str(i) * 20} for i in range(30)]
        paths.append(folder / f"{name}.jsonl")
        paths[-1].write_text("".join(json.dumps(r) + "\n" for r in [*bad, *good]))
    chosen = read_settings([])
    audit(Case(folder / "case"), plan(paths, folder / "case", ReadOptions(), chosen), chosen, Inline())
    return folder / "case"


def test_the_pages_name_causes_and_files(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "of 88 documents are garbage" in page
    assert "repetition" in page
    for name in ("report-0000-one-jsonl.html", "report-0001-two-jsonl.html"):
        assert f'href="{name}"' in page
        assert "of 44 documents are garbage" in (folder / name).read_text()
    assert "jane.doe" not in page


def test_a_page_counts_as_the_terminal_does(folder: Path) -> None:
    case = Case(folder)
    found = case.get(FINDINGS)
    texts = found.filter(found["primary"]).group_by(["cause", "garbage"]).aggregate([("doc_key", "count")]).to_pylist()
    page = causes(Tables(case))
    for row in texts:
        assert f"<td>{row['cause']}</td><td>{'garbage' if row['garbage'] else 'reported'}</td><td class=\"n\">{row['doc_key_count']:,}</td>" in page
    both = pa.table({"doc_key": [0, 1, 2], "cause": ["markup"] * 3, "garbage": [True, False, False], "primary": [True] * 3})
    sizes = pa.table({"doc_key": [0, 1, 2], "tokens": [5, 7, 11]})
    page = causes(Tables(case, {"findings": both, "documents": sizes}))
    assert page.index('garbage</td><td class="n">1</td><td class="n">5</td>') < page.index('reported</td><td class="n">2</td><td class="n">18</td>')


def test_lengths_of_texts_are_bytes_on_the_page(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "[bytes]" in page
    assert not re.search(r"tokens of a source|clusters hold [\d,]+ tokens|duplicate tokens|\[tokens?\]", page)


def test_they_open_quietly(browser: Browser, folder: Path) -> None:
    for page in sorted(folder.glob("report*.html")):
        for width in (400, 1280):
            browser.open(page, width=width)
            assert browser.errors() == []
            assert browser.requests() == [page.resolve().as_uri()]
            assert browser.run("return window.canary") is None
            assert browser.run("return document.documentElement.scrollWidth") <= width
        assert browser.run("return document.querySelector('#document .doc mark') !== null")
