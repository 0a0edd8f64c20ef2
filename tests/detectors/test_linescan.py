"""Sums over lines and stretches of ids, against plain definitions, under a vocabulary of one id per byte that does not count as text."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.detectors import linescan as s
from forensics.detectors import markscan
from forensics.detectors.features import make
from forensics.detectors.kernels import run_scan
from forensics.stores.decode import places
from forensics.stores.vocab import byte_vocabulary

VOCABULARY = dataclasses.replace(byte_vocabulary(), kind="bpe", hash="each byte an id")
FEATURES = make(VOCABULARY)
WORDS = ["alpha", "beta", "gamma", "12", "7", "x1", "(a);", "{}", "--", "été", "表", "\t", "q" * 45, "0x1F"]


def rows_of(*texts: str) -> np.ndarray:
    parts = [np.frombuffer(t.encode(), np.uint8).astype(np.uint32) for t in texts]
    return s.line_scan(np.concatenate(parts), np.concatenate([[0], np.cumsum([len(p) for p in parts])]), FEATURES.line, FEATURES.hashed, FEATURES.flags, 0.5)


def scan(text: str) -> tuple[np.ndarray, int]:
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.uint32)
    f, v = FEATURES, VOCABULARY
    marks = markscan.mark_scan(ids, np.array([0, len(ids)]), np.ones(1, np.bool_), f.low, places(v), v.data, 48, *markscan.names())
    return rows_of(text)[0], int(marks[0])


def plain(text: str) -> list[int]:
    """REPEATED, NUMERIC_ROWS, DIGIT_ROWS, PACKED, DENSE, DUMPED and LINES by the words of `line_scan`: an id is a byte here."""
    lines: list[bytes] = []
    for line in re.findall(rb"[^\n]*\n|[^\n]+", text.encode()):
        lines += [line[k : k + s.CUT] for k in range(0, len(line), s.CUT)]
    seen: dict[bytes, int] = {}
    out = [0] * 7
    for line in (x for x in lines if len(x) >= 18):
        size, space = len(line), len(re.findall(rb"[ \t\r\n\x0b\x0c]", line))
        digits, code = len(re.findall(rb"[0-9]", line)), len(re.findall(rb"[(){};=]", line))
        wide, letters = len(re.findall(rb"[\x80-\xff]", line)), len(re.findall(rb"[A-Za-z\x80-\xff]", line))
        other, visible = size - space - digits - code - letters, size - space
        key = bytes(sorted(line))
        seen[key] = seen.get(key, 0) + 1
        out[0] += size * (seen[key] >= 5)
        out[1] += size * (digits >= 2 and digits >= 0.18 * visible)
        out[2] += size * (digits >= 2)
        tight = space <= 0.07 * size and code >= 0.035 * size
        loose = space <= 0.16 * size and code >= 0.07 * size
        long = size >= 500 and space <= 0.12 * size and code + other >= 0.27 * size
        out[3] += size * (size >= 180 and letters >= 0.18 * size and (tight or loose or long))
        if size >= 40 and wide * 4 < size:
            out[4] += sum(len(w) for w in re.findall(rb" ?[!#-&(-+\--\[\]-_a-~]{39,}", line) if len(w) >= 40)
        out[5] += size * (digits >= 2 and digits >= 0.32 * visible and letters * 2 <= visible and code * 20 <= visible)
        out[6] += 1
    return out


@given(st.lists(st.sampled_from([*WORDS, " ", " ", " ", "\n", "\n"]), max_size=60), st.integers(1, 7))
@settings(max_examples=200, deadline=None)
def test_sums_are_those_of_plain_python(words: list[str], times: int) -> None:
    text = "".join(words) * times
    row = rows_of("something before\n" * 3, text)[1]
    got = [row[k] for k in (s.REPEATED, s.NUMERIC_ROWS, s.DIGIT_ROWS, s.PACKED, s.DENSE, s.DUMPED, s.LINES)]
    assert got == plain(text)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(3, 9), st.lists(st.integers(0, 40), max_size=50))
@settings(max_examples=200, deadline=None)
def test_runs_of_any_unit_are_measured(unit: list[int], copies: int, noise: list[int]) -> None:
    x = np.array([60 + k for k in noise] + unit * copies, np.uint32)
    found = int(run_scan(x, np.array([0, len(x)]), FEATURES.lengths, 4, 13)[0])
    best = 0
    for period in range(1, len(x) // 3 + 1):
        run = 0
        for j in range(period, len(x)):
            run = run + 1 if x[j] == x[j - period] else 0
            if run and run + period >= 3 * period:
                best = max(best, run + period)
    assert found <= best
    if len(unit) * (copies - 1) >= 7 and len(set(unit)) > 3:
        assert found >= len(unit) * copies


def test_rows_of_one_skeleton_agree_and_prose_does_not() -> None:
    rows = "".join(f"Looking for {w} hotels in {c} today with free breakfast and parking\n" for w, c in zip("abcdefgh", "stuvwxyz"))
    assert rows_of(rows)[0][s.ALIKE] >= 400
    prose = "The morning train was late again and nobody knew why\nTwo boys argued about a fox behind the sheds\n"
    prose += "When the signal changed, all of us looked at our shoes\nA swan had settled on the rails near the old mill\n"
    prose += "He wrote it into his log, with the time and colour\n"
    assert rows_of(prose)[0][s.ALIKE] < 400


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
