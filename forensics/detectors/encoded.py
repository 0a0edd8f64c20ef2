"""Data that stands where text should: base64, hexadecimal, percent-encoding, random characters, packed code.

Words (runs without space, quote or comma) of 40 characters and more are told by their alphabet and by how often they change between cases and digits; words
that follow each other, like the lines of a certificate, form one region. Packed code is told by its line: long, hardly a space, full of code's punctuation.
Nucleotide sequences, also those with codes for doubtful places, and long paths look alike to neither and are left alone; so do lines of links.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from forensics.detectors.base import Region, Text, merge_regions, text_detector
from forensics.detectors.lines import START, STOP, W_START, W_STOP
from forensics.detectors.records import PACKED, data_lines

NAMES = ("", "percent-encoding", "hexadecimal digits", "base64 or random characters")
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


@numba.njit(cache=True, nogil=True)
def word_kinds(words: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Which of `NAMES` each long word is: uint8 [words]."""
    out = np.zeros(len(words), np.uint8)
    for k in range(len(words)):
        start, stop, upper, lower, digit, hexed, percent, sixtyfour, dna, switch = words[k]
        size = stop - start
        if percent * 3 >= 0.6 * size:
            out[k] = 1
        elif hexed >= 0.97 * size and digit < 0.97 * size and digit >= 0.1 * size and dna < 0.98 * size:
            out[k] = 2
        elif sixtyfour >= 0.97 * size and upper >= 0.12 * size and lower >= 0.12 * size and switch >= 0.28 * size and dna < 0.5 * size:
            out[k] = 3
    return out


def words(text: Text) -> list[Region]:
    """Regions of encoded words."""
    t = text.words
    kind = word_kinds(t)
    return _joined(text, [Region(int(t[k, W_START]), int(t[k, W_STOP]), NAMES[kind[k]]) for k in kind.nonzero()[0].tolist()])


def packed_lines(text: Text) -> list[Region]:
    """Lines of packed code and of hexadecimal dumps."""
    t = text.lines
    kind = data_lines(text.raw, t)
    found = kind.nonzero()[0]
    out = []
    for (start, stop), k in zip(t[found][:, [START, STOP]].tolist(), kind[found].tolist()):
        out += [Region(start, stop, "packed code")] if k & PACKED else []
        out += [Region(start, stop, "hexadecimal dump")] if k & ~PACKED else []
    return merge_regions(out, 1)


@text_detector("encoded", version=3, screen="dense")
def encoded(text: Text) -> list[Region]:
    """Regions of encoded data and packed code."""
    return merge_regions(words(text) + packed_lines(text), 1)
