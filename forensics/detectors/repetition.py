"""Text that repeats itself: runs of one character, word, phrase, line or paragraph; OLMo-core's rule beside it.

`times` is OLMo-core's own number, on ids: the most repetitions in a row of a unit of 1..13 tokens, reported from 32 (the filter that OLMo 2 dropped
sequences by). It depends on the tokenizer and misses paragraphs, so the verdict rests on text: `run`, characters of the longest stretch that consists of at
least five copies of one unit in a row, whatever the unit's length. `lines` catches copies that do not stand in a row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.detectors.base import DETECTORS, Detector, Evidence, Found, Measure, Text, token_detector
from forensics.stores.batch import DocumentBatch

LOW, HIGH, TIMES = 1, 13, 32  # InstanceFilterConfig of OLMo-core 3.0
COPIES = 5
GRAM, SHORTEST = 8, 60
ARRAY = 1000  # bytes
LITERAL = re.compile(rb"(?:\s*(?:['\"][^'\"\n]{1,80}['\"][,;]?|(?:0x[0-9a-fA-F]+|-?\d[\d.]*)[,;]|/[A-Za-z.]\w{0,20}(?=\s)|\w{1,40}\([^()\n]{0,20}\);))+\s*")
CELL = re.compile(rb"\s+-?\d[\d.]*|-?\d[\d.]*\s+")  # of a table, by itself
LITERAL_BYTES = b" \t\n\r\x0b\x0c,;.-0123456789abcdefABCDEFx"  # of numbers
FFFD = "\ufffd".encode()

MEASURES = (
    Measure("run", "character", "longest stretch made of five or more copies of one unit in a row"),
    Measure("share", "1", "bytes in such stretches / bytes of the document"),
    Measure("unit", "character", "length of the unit of the longest stretch"),
    Measure("lines", "1", "bytes in lines that stood at least four times before in the document / bytes of the document"),
)


@token_detector(
    "periods",
    Measure("times", "repetition", "most repetitions in a row of a unit of 1..13 tokens, where at least 32"),
    Measure("period", "token", "length of that unit"),
    version=1,
    reads="ids",
)
def periods(docs: DocumentBatch) -> Found:
    """OLMo-core's rule, exactly, per document."""
    from forensics.detectors.periods import period_runs

    runs = period_runs(docs.tokens, docs.offsets, LOW, HIGH, TIMES)
    found = Found({"times": runs[:, 0].astype(np.float32), "period": runs[:, 1].astype(np.float32)})
    for i in np.flatnonzero(runs[:, 0]).tolist():
        times, period, start, stop = runs[i].tolist()
        found.evidence[i] = Evidence([(start, stop)], f"a unit of {period} tokens {times} times in a row")
    return found


def stretches(raw: NDArray[Any], gram: int, shortest: int, copies: int) -> NDArray[np.int64]:
    """int64 [stretches, 3]: start, stop, period of everything that repeats itself; overlapping ones are kept once, the longest."""
    from forensics.detectors.periods import TABLE_BITS, periodic_runs

    table = np.full(1 << min(TABLE_BITS, max(8, len(raw).bit_length())), -1, np.int64)
    out = np.empty((max(16, len(raw) // shortest + 1), 3), np.int64)
    found = out[: periodic_runs(raw, gram, shortest, copies, table, 0, out)]
    order = np.argsort(found[:, 0] - found[:, 1], kind="stable")
    kept: list[list[int]] = []
    for start, stop, period in found[order].tolist():
        if all(stop <= a or start >= b for a, b, _ in kept):
            kept.append([start, stop, period])
    return np.array(sorted(kept), np.int64).reshape(-1, 3)


def _is_text(unit: bytes) -> bool:
    """Whether a unit says anything but U+FFFD, whose runs are damage of another kind."""
    rest = unit.replace(FFFD, b"").translate(None, b" \xef\xbf\xbd\n\r\t")
    return len(rest) * 4 > len(unit) or FFFD[:2] not in unit


def _counts(unit: bytes, size: int) -> bool:
    """Whether a stretch counts: elements of an array or a table (strings, numbers, names), and calls, only where there are very many."""
    quotes = unit.count(b"'") + unit.count(b'"')
    named = quotes or b"/" in unit or b");" in unit
    if size >= ARRAY or len(unit) > 200 or quotes % 2 or (not named and unit.translate(None, LITERAL_BYTES)):
        return True
    if CELL.fullmatch(unit):
        return False
    twice = unit + unit  # a stretch may begin anywhere in its unit
    return not any(LITERAL.fullmatch(twice, k, k + len(unit)) for k in range(len(unit)))


def _words_for(unit: bytes, times: int) -> str:
    shown = unit[:60].decode("utf-8", "replace")
    return f"{shown!r}{'...' if len(unit) > 60 else ''} {times} times in a row"


def repeated_lines(text: Text) -> tuple[int, list[tuple[int, int]]]:
    """Bytes in lines of at least 20 bytes that stood four times before, and where they stand."""
    seen: dict[bytes, int] = {}
    spans, total = [], 0
    raw = text.bytes
    table = text.lines
    for start, stop in table[(table[:, 1] - table[:, 0]) >= 20][:, :2].tolist():
        key = raw[start:stop].strip()
        n = seen.get(key, 0)
        seen[key] = n + 1
        if n >= 4 and len(key) >= 20 and _is_text(key) and _counts(key, n * len(key)):
            total += stop - start
            spans.append((start, stop))
    return total, spans


def _run(docs: DocumentBatch, chosen: NDArray[np.bool_], texts: Sequence[Text | None]) -> Found:
    found = Found({m.name: np.zeros(len(docs), np.float32) for m in MEASURES})
    for i in np.flatnonzero(chosen).tolist():
        text = texts[i]
        if text is None or not len(text):
            continue
        runs = [
            (a, b, p)
            for a, b, p in stretches(text.raw, GRAM, SHORTEST, COPIES).tolist()
            if _is_text(text.bytes[a : a + p]) and _counts(text.bytes[a : a + p], b - a)
        ]
        total, spans = repeated_lines(text)
        found.columns["lines"][i] = total / len(text)
        if runs:
            start, stop, period = max(runs, key=lambda r: r[1] - r[0])
            found.columns["run"][i] = text.characters(start, stop)
            found.columns["share"][i] = sum(b - a for a, b, _ in runs) / len(text)
            found.columns["unit"][i] = text.characters(start, start + period)
            best = sorted(sorted(runs, key=lambda r: r[0] - r[1])[:16])
            found.evidence[i] = Evidence(text.place([(a, b) for a, b, _ in best]), _words_for(text.bytes[start : start + period], (stop - start) // period))
        elif total:
            found.evidence[i] = Evidence(text.place(spans[:32]), f"{len(spans)} copies of lines that stood four times before")
    return found


DETECTORS.add("repetition", Detector("repetition", MEASURES, 2, "text", _run, None, "repetition"), __name__)
