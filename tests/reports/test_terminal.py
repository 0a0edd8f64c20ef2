"""Curves as text."""

from __future__ import annotations

import numpy as np

from forensics.reports.terminal import BLOCKS, columns, plot, sparkline


def test_sparkline_spans_the_blocks() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == BLOCKS
    assert sparkline([], 8) == ""
    assert sparkline([1.0, float("nan"), 2.0], 8)[1] == " "


def test_one_tall_record_among_many_stays_visible() -> None:
    v = np.ones(10_000)
    v[4321] = 5.0
    assert sparkline(v, 40).count(BLOCKS[-1]) == 1
    assert columns(v, 40).max() == 5.0


def test_plain_text_is_ascii() -> None:
    assert all(ord(c) < 128 for line in plot(np.arange(50), np.sin(np.arange(50)), plain=True, marks=[10]) for c in line)


def test_plot_has_axis_labels_and_marks_in_place() -> None:
    lines = plot(np.arange(100, 200), np.linspace(3, 1, 100), width=50, height=6, marks=[150])
    assert len(lines) == 9 and lines[0].lstrip().startswith("3") and "100" in lines[7] and "199" in lines[7]
    left = len(lines[6]) - len(lines[6].lstrip()) + 1
    assert lines[8].index("^") - left == 25


def test_constant_and_empty_curves_plot() -> None:
    assert len(plot([1, 2, 3], [2.0, 2.0, 2.0])) == 10
    assert plot([], []) == ["(no records)"]
