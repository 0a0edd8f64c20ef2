"""Documents that are data by nature rather than text: binary files that entered as text, logs, tables of numbers, sequences of a few letters.

Only `binary` is garbage. Logs, tables and nucleotide sequences are wanted by some and are reported, so that nobody takes them for damage: their share of
digits,
punctuation or repeated words would otherwise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forensics.detectors.base import Region, Text, merge_regions, text_detector
from forensics.detectors.lines import START, STOP, W_DNA, W_START, W_STOP
from forensics.detectors.records import numeric_lines, record_lines

BLOCK = 512
KINDS = 6  # of control characters; texts that use one to part records, to overstrike or to mark have fewer


@text_detector("binary", version=2, screen="binary")
def binary(text: Text) -> list[Region]:
    """Blocks with control characters that text does not use, among other bytes; runs of one character are repetition."""
    x = text.raw
    odd = ((x < 32) & (x != 9) & (x != 10) & (x != 13) & (x != 12) & (x != 27)) | (x == 127)
    if not odd.any():
        return []
    edges = np.arange(0, len(x), BLOCK)
    count = np.add.reduceat(odd.astype(np.int64), edges)
    size = np.diff(np.append(edges, len(x)))
    out = []
    for k in np.flatnonzero((count >= 0.01 * size) & (count >= 2)).tolist():
        block = x[edges[k] : edges[k] + size[k]]
        if len(np.unique(block)) >= 8:
            out.append(Region(int(edges[k]), int(edges[k] + size[k]), "control characters"))
    return [r for r in merge_regions(out, 2 * BLOCK) if len(np.unique(x[r.start : r.stop][odd[r.start : r.stop]])) >= KINDS]


def _runs(t: NDArray[np.int64], hit: NDArray[np.bool_], near: int, least: int, detail: str) -> list[Region]:
    """Runs of at least so many marked lines, others of at most `near` lines between them."""
    groups: list[list[int]] = []
    for k in hit.nonzero()[0].tolist():
        if groups and k - groups[-1][-1] <= near + 1:
            groups[-1].append(k)
        else:
            groups.append([k])
    return [Region(int(t[g[0], START]), int(t[g[-1], STOP]), detail) for g in groups if len(g) >= least]


@text_detector("log", version=2, screen="table")
def log(text: Text) -> list[Region]:
    """Lines that begin like records of a log: a time, a level, a step."""
    t = text.lines
    if len(t) < 5:
        return []
    return _runs(t, record_lines(text.raw, t), 1, 5, "log records")


@text_detector("table", version=1, screen="table")
def table(text: Text) -> list[Region]:
    """Rows of numbers, and sequences over four letters."""
    t = text.lines
    numbers = numeric_lines(text.raw, t)
    out = _runs(t, numbers, 1, 4, "rows of numbers")
    out += [Region(a, b, "rows of numbers") for a, b in t[numbers & (t[:, STOP] - t[:, START] >= 400)][:, :2].tolist()]
    w = text.words
    if len(w):
        dna = (w[:, W_DNA] >= 0.98 * (w[:, W_STOP] - w[:, W_START])) & (w[:, W_STOP] - w[:, W_START] >= 60)
        out += [Region(a, b, "a sequence over four letters") for a, b in w[dna][:, :2].tolist() if len(set(text.bytes[a:b])) >= 4]
    return merge_regions(out, 2)
