"""Documents that begin or stop in the middle of a word or sentence, as cutting by length leaves them. Reported, never garbage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forensics.detectors.base import DETECTORS, Detector, Evidence, Found, Measure, Text
from forensics.stores.batch import DocumentBatch

ENDS = ".!?…。！？:;)]}>\"'»”’`|*-_=#~"
LONG = 400  # characters from which a document has an end worth looking at
MEASURES = (Measure("cut", "1", "1 where the text stops inside a word or sentence, 0.5 more where it begins inside one"),)


def cut(string: str) -> float:
    """How much speaks for a text being a piece of another one."""
    body = string.rstrip()
    last_line = body[body.rfind("\n") + 1 :]
    score = 0.0
    if len(last_line.split()) >= 4 and body[-1] not in ENDS and (body[-1].isalnum() or body[-1] in ",("):
        score += 1.0
    first = string.lstrip()
    if first[:1].islower() and " " in first[:60]:
        score += 0.5
    return score


def _run(docs: DocumentBatch, chosen: NDArray[np.bool_], texts: Sequence[Text | None]) -> Found:
    found = Found({"cut": np.zeros(len(docs), np.float32)})
    for i in np.flatnonzero(chosen).tolist():
        text = texts[i]
        if text is None or len(text) < LONG:
            continue
        size = len(text)
        parts = ((0, 200), (size - 2000, size)) if size > 4000 else ((0, size),)
        ends = "".join(text.piece(a, b).decode("utf-8", "ignore") for a, b in parts)
        score = cut(ends)
        found.columns["cut"][i] = score
        if score >= 1:
            found.evidence[i] = Evidence(text.place([(max(0, len(text) - 80), len(text))]), f"stops with {ends.rstrip()[-40:]!r}")
    return found


DETECTORS.add("truncated", Detector("truncated", MEASURES, 1, "text", _run, None, "sample"), __name__)
