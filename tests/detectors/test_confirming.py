"""The kernels that confirm suspects, against the patterns and plain loops that they stand for."""

from __future__ import annotations

import random
import re

import numpy as np

from forensics.detectors import lines as ln
from forensics.detectors.anchors import Strings
from forensics.detectors.markscan import names, tag_bytes
from forensics.detectors.markup import TAGS
from forensics.detectors.placeholder import GAP, LOREM, SHARE, WINDOW, _lorem, _stretches

MARKS = [
    b"<", b">", b"/", b"a", b"br", b"div", b"H1", b"h7", b" ", b"\t", b"href=x", b"<!--", b"-->", b"<!DOCTYPE", b"<!", b"&", b"amp", b";", b"#", b"12", b"x",
    b"#xAf", b"&nbsp;", b"&#38;", b"&#x26;", b"z" * 499, b"z" * 500, b"z" * 501, b"--", b"\xc3\xa9", b"</", b"<p>", b"<p/>", b"&abcdefgh;", b"&abcdefghi;",
]  # fmt: skip


def array(text: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(text), np.uint8)


def test_tags_are_those_of_the_pattern() -> None:
    r = random.Random(1)
    for _ in range(5000):
        line = b"".join(r.choice(MARKS) for _ in range(r.randint(1, 14)))
        body = line.strip()
        table = np.zeros((1, ln.LINE_COLUMNS), np.int64)
        table[0, ln.STOP] = len(line)
        got, enough = tag_bytes(array(line), table, np.ones(1, np.bool_), 0.5, *names())
        covered = sum(m.end() - m.start() for m in TAGS.finditer(body))
        assert (got[0], enough[0]) == (covered, len(body) >= 4 and covered >= 0.5 * len(body)), line


def test_strings_are_counted_where_they_begin_and_a_space_is_any_white_space() -> None:
    r = random.Random(2)
    words = [b"log in", b"login", b"in", b"we use cookies", b"use"]
    strings = Strings.of([(w, k) for k, w in enumerate(words)], lower=True)
    for _ in range(500):
        text = b"".join(r.choice([*words, b"LOG", b" ", b"  ", b"\t", b"\n", b"We Use", b"x"]) for _ in range(r.randint(1, 9)))
        wanted = [len(re.findall(b"(?=" + w.replace(b" ", rb"\s+") + b")", text, re.I)) for w in words]
        assert strings.places(array(text), np.array([[0, len(text)]]), len(words))[0].tolist() == wanted, text


def test_lines_are_cut_and_counted_as_by_hand() -> None:
    r = random.Random(3)
    for _ in range(200):
        text = bytes(r.choice(b"aB7 (<\n\xc3\xa9") for _ in range(r.randint(1, 400))) + b"b" * r.choice([0, 0, 300, 5000]) + b"7" * r.choice([0, 1])
        table = ln.lines_of(array(text))
        assert b"".join(text[a:b] for a, b in table[:, :2].tolist()) == text
        for row in table.tolist():
            line = text[row[0] : row[1]]
            assert b"\n" not in line[:-1] and (line.endswith(b"\n") or row[1] == len(text) or len(line) >= ln.LINE)
            kinds = (b" ", b"B", b"ab", b"7", b"\xc3\xa9")
            assert row[2:7] == [sum(c in k for c in line) for k in kinds] and row[ln.CODE] == line.count(b"(") and row[ln.ANGLE] == line.count(b"<")


def test_long_words_are_those_of_the_pattern() -> None:
    r = random.Random(4)
    for _ in range(500):
        text = bytes(r.choice(b'abcdefgABC012+/ "\n') for _ in range(r.randint(0, 300)))
        wanted = [m.span() for m in re.finditer(rb"[!-~]{5,}", re.sub(rb"[\"',\\`]", b" ", text))]
        assert [tuple(w) for w in ln.words_of(array(text), 5)[:, :2].tolist()] == wanted, text


def test_filler_is_found_in_windows_of_words() -> None:
    r = random.Random(5)
    filler = sorted(LOREM)
    for _ in range(200):
        words = [r.choice(filler) if r.random() < r.choice([0.5, 0.8, 0.95]) else b"house" for _ in range(r.randint(0, 60))]
        text = b" ".join(words)
        at = [m.span() for m in re.finditer(rb"\w+", text)]
        hits: list[tuple[int, int]] = []
        for k in range(len(words) - WINDOW + 1):
            known = [w in LOREM for w in words[k : k + WINDOW]]
            if known[0] and known[-1] and sum(known) >= SHARE * WINDOW:
                start, stop = at[k][0], at[k + WINDOW - 1][1]
                if hits and start <= hits[-1][1] + GAP:
                    hits[-1] = hits[-1][0], stop
                else:
                    hits.append((start, stop))
        assert _stretches(array(text), _lorem(), WINDOW, SHARE, GAP) == hits, text
