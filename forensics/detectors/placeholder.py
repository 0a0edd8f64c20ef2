"""Filler that was never meant to be read: lorem ipsum in any order of its words, and the usual notices of unfinished pages.

A region is a stretch in which at least four of five words belong to the filler's vocabulary and are varied: the Latin of Cicero shares some of it
("dolor", "ut enim"), but neither its share nor its made-up words. Notices are a list shipped as data (`data/placeholders.txt`).
"""

from __future__ import annotations

import functools
import re
from importlib import resources

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
WORD = re.compile(rb"[A-Za-z\x80-\xff]+")
WINDOW, SHARE = 16, 0.8


@functools.cache
def notice_lines() -> tuple[bytes, ...]:
    """The notices in the data file, small letters."""
    text = resources.files("forensics.detectors").joinpath("data", "placeholders.txt").read_text(encoding="utf-8")
    return tuple(line.strip().encode().lower() for line in text.split("\n") if line.strip() and not line.startswith("#"))


def _notices(text: Text) -> list[Region]:
    lower = text.bytes.lower()
    out = []
    for notice in notice_lines():
        at = lower.find(notice)
        while at >= 0:
            out.append(Region(at, at + len(notice), f"placeholder notice {notice.decode()!r}"))
            at = lower.find(notice, at + len(notice))
    return out


def _filler(text: Text) -> list[Region]:
    lower = text.bytes.lower()
    if sum(w in lower for w in RARE) < 3:
        return []
    places = [(m.start(), m.end(), m[0] in LOREM) for m in WORD.finditer(lower)]
    out = []
    flags = [p[2] for p in places]
    count = sum(flags[:WINDOW])
    for k in range(len(places) - WINDOW + 1):
        if k:
            count += flags[k + WINDOW - 1] - flags[k - 1]
        if count >= SHARE * WINDOW and flags[k] and flags[k + WINDOW - 1]:
            out.append(Region(places[k][0], places[k + WINDOW - 1][1], "lorem ipsum"))
    return [r for r in merge_regions(out, 4) if sum(w in lower[r.start : r.stop] for w in RARE) >= 3]


@text_detector("placeholder", version=1, screen="placeholder")
def placeholder(text: Text) -> list[Region]:
    """Regions of filler text and placeholder notices."""
    return merge_regions(_filler(text) + _notices(text))
