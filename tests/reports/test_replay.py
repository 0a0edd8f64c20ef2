"""The report of a replay whatever is missing, damaged or old; and its short form."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forensics.case import Case, open_case
from forensics.reports.markdown import inert, markdown
from forensics.reports.replay import write_replay
from forensics.reports.tables import Tables

from .cases import make_case

TABLES = (
    "consumed",
    "documents",
    "steps",
    "metrics",
    "suspects",
    "excerpts",
    "findings",
    "clusters",
    "dedup",
    "sources",
    "lengths",
    "buckets",
    "proof",
    "events",
    "token_losses",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_case(tmp_path_factory.mktemp("made"), steps=20, rows=4, documents=60, suspects=40).path


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "case"))


@pytest.mark.parametrize("name", TABLES)
def test_a_missing_table_is_said_or_not_missed(folder: Path, name: str) -> None:
    (folder / "tables" / f"{name}.parquet").unlink()
    page = write_replay(open_case(folder)).read_text()
    assert page.count("<section") == 11
    said = f"This case holds no table `{name}`" in page
    assert said == (name in ("metrics", "suspects", "dedup", "sources", "lengths", "buckets", "proof", "findings"))


@pytest.mark.parametrize("name", TABLES)
def test_a_damaged_table_is_said(folder: Path, name: str) -> None:
    (folder / "tables" / f"{name}.parquet").write_bytes(b"PAR1 not really PAR1")
    page = write_replay(open_case(folder)).read_text()
    assert page.count("<section") == 11
    assert "does not read" in page or name in page[page.index("could not be read") :]


def test_a_case_without_anything_but_its_name_still_opens(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.close(command="replay", steps="10:20")
    page = write_replay(open_case(tmp_path)).read_text()
    assert "holds no <code>verdict.json</code>" in page
    assert "steps 10:20" in page
    assert "holds no verdict" in (tmp_path / "report.md").read_text()


def test_columns_of_other_versions_do_no_harm(folder: Path) -> None:
    for name, lost in (("suspects", "q_value"), ("steps", "shift"), ("documents", "used_after"), ("sources", "bytes")):
        path = folder / "tables" / f"{name}.parquet"
        table = pq.read_table(path).drop_columns([lost])
        table = table.append_column("of_tomorrow", pa.array([1] * table.num_rows)).replace_schema_metadata({"forensics.table": name, "forensics.version": "9"})
        pq.write_table(table, path)
    page = write_replay(open_case(folder)).read_text()
    assert "of_tomorrow" not in page
    assert "does not read" not in page


def test_the_page_can_be_written_beside_a_case_that_may_not_be(folder: Path, tmp_path: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    write_replay(open_case(folder), tmp_path / "elsewhere.html")
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


def test_data_blocks_and_markup_hold_no_foreign_tags(made: Path, tmp_path: Path) -> None:
    page = write_replay(open_case(made), tmp_path / "r.html").read_text()
    blocks = re.findall(r'<script type="application/json" id="data-[\w-]+">(.*?)</script>', page, re.S)
    assert len(blocks) > 8
    assert not any("<" in b or "\u2028" in b for b in blocks)
    assert len(re.findall(r"<script", page)) == len(blocks) + 5
    assert "<svg onload" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_the_page_is_the_same_every_time(made: Path, tmp_path: Path) -> None:
    one, two = (write_replay(open_case(made), tmp_path / f"{n}.html").read_bytes() for n in "ab")
    assert one == two
    assert len(one) < 3e6


def test_columns_without_values_are_left_out(made: Path, tmp_path: Path) -> None:
    page = write_replay(open_case(made), tmp_path / "r.html").read_text()
    assert '"name":"q_value"' in page
    assert '"name":"p_value"' not in page


def test_the_short_form_is_inert(made: Path) -> None:
    text = markdown(Tables(open_case(made)))
    assert text.startswith("# Steps 1010 to 1011: data")
    assert "<script" not in text.replace("\\<", "")
    assert "\x1b" not in text
    table = [line for line in text.split("\n") if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert "```\ntrain_loss, steps 1000 to 1011" in text


def test_inert_text_cannot_mark_up() -> None:
    assert inert("a|b *c* [x](y) <i>\n#1 @me") == r"a\|b \*c\* \[x\](y) \<i\> \#1 \@me"
