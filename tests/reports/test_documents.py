"""Documents as reports show them: losses of tokens, copies, templates, matrices."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from forensics.case import open_case
from forensics.reports.documents import (
    causes_by_source,
    clusters_by_source,
    difference,
    document_views,
    duplicate_groups,
    heat,
    heat_scale,
    skeletons,
    token_losses,
)
from forensics.reports.tables import Tables
from forensics.reports.terminal import heat_text

from .cases import make_case


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(open_case(make_case(tmp_path_factory.mktemp("made"), steps=20, rows=4, documents=60, suspects=40).path))


def test_losses_begin_at_the_second_token_of_a_row(tables: Tables) -> None:
    found = token_losses(tables, pa.array(list(range(12)), pa.int64()))
    assert len(found) == 12
    for losses in found.values():
        assert len(losses) == 1000
        assert math.isfinite(losses[1])
    assert any(math.isnan(v[0]) for v in found.values())
    assert any(v[0] == 0.0 for v in found.values())


def test_the_scale_of_heat_is_the_documents_own() -> None:
    scale = heat_scale([math.nan, *(float(i) for i in range(101))])
    assert scale == [5.0, 95.0]
    assert heat(5.0, scale) == -1
    assert heat(50.0, scale) == 0
    assert heat(1000.0, scale) == 1
    assert heat_scale([2.0, 2.0]) == [1.5, 2.5]
    assert heat_scale([math.nan]) is None


def test_views_mark_evidence_and_hold_facts(tables: Tables) -> None:
    views = document_views(tables)
    assert len(views) == 60
    view = views["20"]
    assert view["parts"][0]["pieces"][0] == ["before ", ""]
    assert view["parts"][0]["pieces"][1][1] == "mark"
    assert any(name.endswith("(primary)") for name, _ in view["facts"])


def test_differences_are_marked_word_by_word() -> None:
    assert difference("a b c", "a x c") == 'a <span class="del">b</span> <span class="ins">x</span> c '
    assert "&lt;script&gt;" in difference("<script>", "x")


def test_copies_templates_and_matrices_are_shown(tables: Tables) -> None:
    assert "near cluster 0: 2 suspected members" in duplicate_groups(tables)
    assert skeletons(tables).count('class="slot"') >= 4
    assert "mojibake" in causes_by_source(tables)
    shown = clusters_by_source(tables)
    assert "near 0" in shown
    assert "template 0" in shown


def test_heat_in_a_terminal_is_also_said_without_colour() -> None:
    pieces = [("calm", 0.0), ("hot", 0.9), ("cold\nline", -1.0), ("?", None)]
    assert heat_text(pieces, False) == "calm«hot»cold\nline?"
    coloured = heat_text(pieces, True)
    assert "\x1b[38;5;16;48;5;208m«hot»\x1b[0m" in coloured
    assert "\x1b[38;5;16;48;5;69mcold\x1b[0m\n\x1b[38;5;16;48;5;69mline\x1b[0m" in coloured
