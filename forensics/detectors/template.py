"""One skeleton, many fillings: rows that differ only in slots, as product lists, search-engine pages and generated records have them.

A row is a line of running text (no columns, no indentation: tables and code are not templates); rows belong together when their words agree in order but for a
quarter or so, measured row by row against the ones just before. The skeleton is shown once with its slots marked. Copies without any difference are
repetition, not a template. The same skeleton in many documents is found by `clustering.templates`.
"""

from __future__ import annotations

import numpy as np

from forensics.detectors.base import Region, Text, text_detector
from forensics.detectors.lines import CODE, DIGIT, HIGH, LOWER, SPACE, START, STOP, UPPER
from forensics.text import skeleton

LIKE = 0.6  # words in common, in order, with the most alike row before
MEAN = 0.72  # of a whole region
BACK = 4
NEAR = 4
ROWS = 5
WORDS, SHORTEST, SPACES = 7, 30, 5


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
    joined = b"".join(text.bytes[a:b] for a, b in part[:, :2].tolist())
    if (joined.count(b"_") + 2 * joined.count(b"::") + 2 * joined.count(b"->")) * 25 > size:
        return False  # identifiers: declarations and calls of one family
    if sum(text.bytes[a:b].rstrip()[-1:] in (b";", b"{", b"}") for a, b in part[:, :2].tolist()) * 2 > len(rows):
        return False
    other = size - int((part[:, SPACE] + part[:, UPPER] + part[:, LOWER] + part[:, DIGIT] + part[:, HIGH]).sum())
    return int(part[:, CODE].sum()) <= 0.06 * size and other <= 0.2 * size and int((part[:, UPPER] + part[:, LOWER] + part[:, HIGH]).sum()) >= 0.4 * size


@text_detector("template", version=1, screen="template")
def template(text: Text) -> list[Region]:
    """Regions of rows that fill one skeleton."""
    t, raw = text.lines, text.bytes
    out = []
    for rows, mean in rows_of(text):
        if mean < MEAN or not _is_prose(text, rows):
            continue
        shown = [raw[t[r, START] : t[r, STOP]].decode("utf-8", "replace").strip()[:300] for r in rows[:4]]
        if len({raw[t[r, START] : t[r, STOP]].strip() for r in rows}) * 2 < len(rows):
            continue  # mostly copies: repetition
        start, stop = int(t[rows[0], START]), int(t[rows[-1], STOP])
        inside = int((t[rows, STOP] - t[rows, START]).sum()) / (stop - start)
        out.append(Region(start, stop, f"{len(rows)} rows of {skeleton(shown)[:160]!r}", min(1.0, inside)))
    return out
