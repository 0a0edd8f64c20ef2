"""Data that stands where text should: base64, hexadecimal, percent-encoding, random characters, packed code.

Words (runs without space, quote or comma) of 40 characters and more are told by their alphabet and by how often they change between cases and digits; words
that follow each other, like the lines of a certificate, form one region. Packed code is told by its line: long, hardly a space, full of code's punctuation.
Nucleotide sequences and long paths look alike to neither and are left alone.
"""

from __future__ import annotations

import numpy as np

from forensics.detectors.base import Region, Text, merge_regions, text_detector
from forensics.detectors.lines import (
    ANGLE,
    CODE,
    CONTROL,
    DIGIT,
    HEXWORD,
    HIGH,
    LOWER,
    SPACE,
    START,
    STOP,
    TAG,
    UPPER,
    W_DIGIT,
    W_DNA,
    W_HEX,
    W_LOWER,
    W_PERCENT,
    W_SIXTYFOUR,
    W_START,
    W_STOP,
    W_SWITCH,
    W_UPPER,
)
from forensics.detectors.records import dump_lines

GAP = 6  # bytes between two words of one region: a line feed and indentation, quotes and a comma
LEAST = 64  # bytes of a region; shorter ones are identifiers and hashes


def _joined(text: Text, regions: list[Region]) -> list[Region]:
    """Regions of one kind that are only a line break or quotes apart, as one."""
    out: list[Region] = []
    for r in regions:
        between = text.bytes[out[-1].stop : r.start] if out else b""
        if out and out[-1].detail == r.detail and len(between) <= GAP and not between.strip(b" \t\r\n\"',\\+;"):
            out[-1] = Region(out[-1].start, r.stop, r.detail)
        else:
            out.append(r)
    return [r for r in out if r.stop - r.start >= LEAST]


def words(text: Text) -> list[Region]:
    """Regions of encoded words."""
    t = text.words
    if not len(t):
        return []
    size = t[:, W_STOP] - t[:, W_START]
    percent = t[:, W_PERCENT] * 3 >= 0.6 * size
    dna = t[:, W_DNA] >= 0.98 * size
    hexa = (t[:, W_HEX] >= 0.97 * size) & (t[:, W_DIGIT] < 0.97 * size) & (t[:, W_DIGIT] >= 0.1 * size) & ~dna
    mixed = (t[:, W_UPPER] >= 0.12 * size) & (t[:, W_LOWER] >= 0.12 * size) & (t[:, W_SWITCH] >= 0.28 * size)
    base64 = (t[:, W_SIXTYFOUR] >= 0.97 * size) & mixed & ~hexa
    kind = np.select([percent, hexa, base64], [1, 2, 3], 0)
    names = ("", "percent-encoding", "hexadecimal digits", "base64 or random characters")
    return _joined(text, [Region(int(t[k, W_START]), int(t[k, W_STOP]), names[kind[k]]) for k in np.flatnonzero(kind)])


def packed_lines(text: Text) -> list[Region]:
    """Lines of packed code and of hexadecimal dumps."""
    t = text.lines
    long = t[t[:, STOP] - t[:, START] >= 200]
    size = long[:, STOP] - long[:, START]
    letters = long[:, UPPER] + long[:, LOWER]
    space, code = long[:, SPACE], long[:, CODE]
    other = size - letters - space - long[:, DIGIT] - long[:, HIGH]
    shape = (long[:, HIGH] < 0.2 * size) & (letters >= 0.3 * size) & (long[:, TAG] < 0.4 * size) & (long[:, CONTROL] == 0)
    packed = shape & (((space <= 0.05 * size) & (code >= 0.045 * size)) | ((space <= 0.14 * size) & (code >= 0.08 * size)))
    packed |= (size >= 1000) & (space <= 0.1 * size) & (other >= 0.3 * size) & (letters >= 0.2 * size) & (long[:, ANGLE] < 0.02 * size)
    out = [Region(a, b, "packed code") for a, b in long[packed][:, : STOP + 1].tolist()]
    starts = {r.start for r in out}
    dumped = dump_lines(text.raw, t)
    hexed = np.flatnonzero(t[:, HEXWORD] >= 16)
    rows = t[hexed]
    visible = rows[:, STOP] - rows[:, START] - rows[:, SPACE]
    dump = (rows[:, HEXWORD] >= 0.6 * visible) & (rows[:, DIGIT] < 0.9 * rows[:, HEXWORD]) & (rows[:, DIGIT] >= 0.2 * rows[:, HEXWORD])
    either = np.union1d(np.flatnonzero(dumped), hexed[dump])
    out += [Region(a, b, "hexadecimal dump") for k, (a, b) in zip(either.tolist(), t[either][:, : STOP + 1].tolist()) if dumped[k] or a not in starts]
    return merge_regions(out, 1)


@text_detector("encoded", version=2, screen="dense")
def encoded(text: Text) -> list[Region]:
    """Regions of encoded data and packed code."""
    return merge_regions(words(text) + packed_lines(text), 1)
