"""One skeleton, many fillings: rows that differ only in slots, as product lists, search-engine pages and generated records have them.

A row is a line of running text (no columns, no indentation: tables and code are not templates); rows belong together when their words agree in order but for a
quarter or so, measured row by row against the ones just before; an address on the web is no wording. Text of their own between rows (translations,
descriptions) counts against them: a sentence that is said of each of several things is at home in a manual, as parallel items are in a list of changes, and
it takes two or four times as much of them. The skeleton is shown once with its slots marked. Copies without any difference are repetition, records of a log
are a log, neither is a template. The same skeleton in many documents is found by `clustering.templates`.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from forensics.detectors.base import Region, Text, text_detector
from forensics.detectors.lines import CODE, DIGIT, HIGH, LOWER, SPACE, START, STOP, UPPER
from forensics.text import skeleton

LIKE = 0.6  # words in common, in order, with the most alike row before
MEAN = 0.72  # of a whole region
BACK = 4
NEAR = 4
ROWS = 5
WORDS, SHORTEST, SPACES = 7, 30, 5
ADDRESS = re.compile(rb"\b\w{1,40}://[^\s)\]>\"']*|(?<=\]\()[^\s)]*")
QUOTED = re.compile(rb"[\"']?[\w.\[\]-]{1,40}[\"']?\s*+[:=]?\s*\".*\"")  # an entry of a catalogue of messages, a setting
FLAGS = re.compile(rb"(?<=\s)--?\w|\w/\w")  # options and paths
NAMES = re.compile(rb"[a-z][A-Z]\w{0,80}[*&]* \w{1,80}[,)]|\b[A-Z]\w+\.[A-Z]\w|\w=[\w\"']|=>")  # parameters with their types, modules, settings
BULLETS = b"*-+"
ITEMS = 5  # in a document beside the rows that are such, from which it is a list
NUMBERS = re.compile(rb"\d+")
CLOSED = (b";", b"{", b"}", b">", b"/")  # ends of statements, declarations, entries of a dictionary; commas behind them do not count


def rows_of(text: Text) -> list[tuple[list[int], float]]:
    """Groups of lines that follow one skeleton, with their mean likeness."""
    from forensics.detectors.rows import compare, sentence_like

    t = text.lines
    if len(t) < ROWS:
        return []
    usable = sentence_like(text.raw, t, SHORTEST, SPACES)
    if np.count_nonzero(usable) < ROWS:
        return []
    best, which, _, _ = compare(text.raw, t, usable, BACK, WORDS)
    groups: list[list[int]] = []
    for r in np.flatnonzero(best >= LIKE).tolist():
        q = int(which[r])
        if groups and groups[-1][0] <= q <= groups[-1][-1] and r - groups[-1][-1] <= NEAR:
            groups[-1].append(r)
        else:
            groups.append([q, r])
    return [(g, float(np.mean(best[g[1:]]))) for g in groups if len(g) >= ROWS]


def _is_prose(text: Text, rows: list[int]) -> bool:
    part = text.lines[rows]
    size = int((part[:, STOP] - part[:, START]).sum())
    lines = [text.piece(a, b) for a, b in part[:, :2].tolist()]
    joined = b"".join(lines)
    if (joined.count(b"_") + 2 * joined.count(b"::") + 2 * joined.count(b"->") + 2 * len(NAMES.findall(joined)) + len(FLAGS.findall(joined))) * 25 > size:
        return False  # identifiers: declarations and calls of one family
    bare = [line.rstrip(b" \t\r\n,") for line in lines]
    if sum((b.endswith(CLOSED) and not b.endswith(b"*/")) or (b[:1] == b"(" and b[-1:] == b")") for b in bare) * 2 > len(rows):
        return False
    if sum(QUOTED.fullmatch(line.strip(b" \t\r\n,")) is not None for line in lines) * 2 > len(rows):
        return False
    digits = int(part[:, DIGIT].sum())
    other = size - digits - int((part[:, SPACE] + part[:, UPPER] + part[:, LOWER] + part[:, HIGH]).sum())
    letters = int((part[:, UPPER] + part[:, LOWER] + part[:, HIGH]).sum())
    return int(part[:, CODE].sum()) <= 0.06 * size and other <= 0.2 * size and letters >= 0.4 * size and digits <= 0.25 * size


def _own_text(text: Text, rows: list[int], members: NDArray[np.bool_]) -> tuple[int, int]:
    """Lines between rows that follow no skeleton, neither rows of any nor alike but for numbers: (how many, bytes)."""
    t = text.lines
    between = [k for k in range(rows[0], rows[-1]) if not members[k]]
    bodies = [NUMBERS.sub(b"0", text.piece(*t[k, :2].tolist()).strip()) for k in between]
    often = Counter(bodies)
    own = [len(b) for b in bodies if b and often[b] == 1]
    return len(own), sum(own)


def _items(text: Text) -> NDArray[np.bool_]:
    """Lines that begin as items of a list: bool [lines]."""
    x, start = text.raw, text.lines[:, START]
    found: NDArray[np.bool_] = np.isin(x[start], list(BULLETS)) & (x[np.minimum(start + 1, len(x) - 1)] == 32)
    return found


def _wording(text: Text, rows: list[int]) -> float:
    """Share of the bytes of rows outside of addresses, 0 where rows are not alike without them."""
    from forensics.detectors.lines import lines_of
    from forensics.detectors.rows import compare

    lines = [text.piece(a, b) for a, b in text.lines[rows][:, :2].tolist()]
    joined = b"".join(lines)
    bare = ADDRESS.sub(b"", joined)
    if len(bare) == len(joined):
        return 1.0
    raw = np.frombuffer(bytearray(bare), np.uint8)
    t = lines_of(raw)
    best = compare(raw, t, np.ones(len(t), np.bool_), BACK, 2)[0]
    return len(bare) / len(joined) if float(np.mean(best[1:])) >= MEAN else 0.0


@text_detector("template", version=2, screen="template")
def template(text: Text) -> list[Region]:
    """Regions of rows that fill one skeleton."""
    from forensics.detectors.records import stamped_lines

    t, raw = text.lines, text.bytes
    groups = rows_of(text)
    members = np.zeros(len(t), np.bool_)
    for rows, _ in groups:
        members[rows] = True
    items = _items(text)
    others = np.count_nonzero(items & ~members)
    out = []
    for rows, mean in groups:
        if mean < MEAN or not _is_prose(text, rows) or np.count_nonzero(stamped_lines(text.raw, t[rows])) * 2 > len(rows):
            continue
        shown = [raw[t[r, START] : t[r, STOP]].decode("utf-8", "replace").strip()[:300] for r in rows[:4]]
        if len({raw[t[r, START] : t[r, STOP]].strip() for r in rows}) * 2 < len(rows):
            continue  # mostly copies: repetition
        start, stop = int(t[rows[0], START]), int(t[rows[-1], STOP])
        size = int((t[rows, STOP] - t[rows, START]).sum()) * _wording(text, rows)
        lines, own = _own_text(text, rows, members)
        listed = others >= ITEMS and np.count_nonzero(items[rows]) * 5 >= 4 * len(rows)
        counts = (size - own) * (0.25 if listed else 0.5 if lines * 2 >= len(rows) else 1.0)
        if counts > 0:
            out.append(Region(start, stop, f"{len(rows)} rows of {skeleton(shown)[:160]!r}", min(1.0, counts / (stop - start))))
    return out
