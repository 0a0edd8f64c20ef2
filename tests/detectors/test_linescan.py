"""Sums over lines, under a vocabulary of one id per byte that does not count as text."""

from __future__ import annotations

import dataclasses

import numpy as np

from forensics.detectors import linescan as s
from forensics.detectors import markscan
from forensics.detectors.features import make
from forensics.stores.vocab import byte_vocabulary

VOCABULARY = dataclasses.replace(byte_vocabulary(), kind="bpe", hash="each byte an id")


def scan(text: str) -> tuple[np.ndarray, int]:
    f = make(VOCABULARY)
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.uint32)
    offsets = np.array([0, len(ids)])
    marks = markscan.mark_scan(ids, offsets, np.ones(1, np.bool_), f.low, VOCABULARY.starts, f.lengths, VOCABULARY.data, 48, *markscan.names())
    return s.line_scan(ids, offsets, f.line, f.flags, 0.5)[0], int(marks[0])


def test_lines_that_stood_four_times_before_are_counted() -> None:
    line = "the same line of words again\n"
    row, marks = scan(line * 9)
    assert row[s.REPEATED] == 5 * len(line) and row[s.LINES] == 9 and marks == 0


def test_numbers_and_dense_words_are_counted() -> None:
    rows = "".join(f"{k * 7919:08d} {k * 104729:09d} 12\n" for k in range(9))
    assert scan(rows)[0][s.NUMERIC_ROWS] == len(rows)
    assert scan("some words " + "Zm9vYmFy" * 20 + " and more\n")[0][s.DENSE] == 161  # with the space that begins it


def test_tags_style_rules_and_entities_are_marks_and_comparisons_are_not() -> None:
    assert scan('<div class="a"><p>x</p></div>&nbsp;&amp; ' * 4)[1] >= 60
    assert scan("{ margin: 0; padding: 1px; color: red; }\n" * 4)[1] >= 60
    assert scan("if (a < b && c > d) { x[i] = vector<int>{}; }\n" * 4)[1] == 0
