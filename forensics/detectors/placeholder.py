"""Filler that was never meant to be read: lorem ipsum in any order of its words, and the usual notices of unfinished pages.

A region is a stretch in which at least four of five words belong to the filler's vocabulary and are varied: the Latin of Cicero shares some of it
("dolor", "ut enim"), but neither its share nor its made-up words. Notices are a list shipped as data (`data/placeholders.txt`).
"""

from __future__ import annotations

import functools
import re
from importlib import resources
from itertools import compress

import numba
import numpy as np
from numpy.typing import NDArray

from forensics.detectors.anchors import Strings
from forensics.detectors.base import Region, Text, merge_regions, text_detector

# the filler's usual words; those marked by RARE hardly occur elsewhere
LOREM = frozenset(
    b"lorem ipsum dolor sit amet consectetur consectetuer adipiscing adipisicing elit sed do eiusmod tempor incididunt ut labore et "
    b"dolore magna aliqua enim ad minim veniam quis nostrud exercitation ullamco laboris nisi aliquip ex ea commodo consequat duis aute "
    b"irure in reprehenderit voluptate velit esse cillum eu fugiat nulla pariatur excepteur sint occaecat cupidatat non proident sunt "
    b"culpa qui officia deserunt mollit anim id est laborum vivamus vestibulum curabitur pellentesque suspendisse aenean mauris nullam "
    b"quisque phasellus vel eros accumsan nibh euismod tincidunt laoreet aliquam erat volutpat wisi suscipit lobortis nisl hendrerit "
    b"vulputate molestie iriure feugiat facilisis at vero iusto odio dignissim blandit praesent luptatum zzril delenit augue feugait "
    b"facilisi diam nonummy".split()
)
RARE = (
    b"consectetu",
    b"adipis",
    b"eiusmod",
    b"incididunt",
    b"aliqua",
    b"nostrud",
    b"ullamco",
    b"commodo",
    b"consequat",
    b"veniam",
    b"tempor",
    b"labor",
    b"ipsum",
    b"vestibulum",
    b"pellentesque",
)
WINDOW, SHARE, GAP = 16, 0.8, 4


@functools.cache
def notice_lines() -> tuple[bytes, ...]:
    """The notices in the data file, small letters."""
    text = resources.files("forensics.detectors").joinpath("data", "placeholders.txt").read_text(encoding="utf-8")
    return tuple(line.strip().encode().lower() for line in text.split("\n") if line.strip() and not line.startswith("#"))


@functools.cache
def _strings() -> Strings:
    """Rare words and notices, each of a kind of its own."""
    return Strings.of([(w, k) for k, w in enumerate(RARE + notice_lines())])


@functools.cache
def _lorem() -> NDArray[np.uint64]:
    """Hashes of the filler's words, in order."""
    return np.sort(np.array([_hash(np.frombuffer(bytearray(w), np.uint8)) for w in LOREM], np.uint64))


@numba.njit(cache=True, nogil=True)
def _hash(word: NDArray[np.uint8]) -> np.uint64:
    h = np.uint64(14695981039346656037)
    for c in word:
        h = (h ^ np.uint64(c)) * np.uint64(1099511628211)
    return h


@numba.njit(cache=True, nogil=True)
def _stretches(x: NDArray[np.uint8], lorem: NDArray[np.uint64], window: int, share: float, gap: int) -> list[tuple[int, int]]:
    """Stretches of words of which so many in each window are filler, the first and the last of it among them; near ones joined."""
    starts, filler = np.zeros(window, np.int64), np.zeros(window, np.bool_)
    out = [(0, 0) for _ in range(0)]
    n, count, i = 0, 0, 0
    while i < len(x):
        start = i
        while i < len(x) and (x[i] >= 128 or (x[i] | 32 >= 97 and x[i] | 32 <= 122)):
            i += 1
        if i == start:
            i += 1
            continue
        h = _hash(x[start:i])
        known = False
        for word in lorem:
            known |= word == h
        slot = n % window
        count += (1 if known else 0) - (1 if filler[slot] else 0)
        starts[slot], filler[slot] = start, known
        n += 1
        first = n % window
        if n >= window and known and filler[first] and count >= share * window:
            if out and starts[first] <= out[-1][1] + gap:
                out[-1] = (out[-1][0], i)
            else:
                out.append((starts[first], i))
    return out


@text_detector("placeholder", version=1, screen="placeholder")
def placeholder(text: Text) -> list[Region]:
    """Regions of filler text and placeholder notices."""
    lower = text.bytes.lower()
    x = np.frombuffer(bytearray(lower), np.uint8)
    seen = (_strings().places(x, np.array([[0, len(x)]]), len(RARE) + len(notice_lines()))[0] > 0).tolist()
    out = []
    if sum(seen[: len(RARE)]) >= 3:
        found = _stretches(x, _lorem(), WINDOW, SHARE, GAP)
        out = [Region(a, b, "lorem ipsum") for a, b in found if sum(w in lower[a:b] for w in RARE) >= 3]
    for notice in compress(notice_lines(), seen[len(RARE) :]):
        out += [Region(m.start(), m.end(), f"placeholder notice {notice.decode()!r}") for m in re.finditer(re.escape(notice), lower)]
    return merge_regions(out)
