"""Documents that are looked at in pieces: the same causes, evidence in its place, characters whole."""

from __future__ import annotations

import random

import numpy as np
import pytest

from forensics.detectors import huge
from forensics.detectors.flagging import flag
from forensics.detectors.measuring import measure
from forensics.detectors.thresholds import read_thresholds
from forensics.stores.batch import DocumentBatch

CONFIG = read_thresholds()
PROSE = "It rained for a week, and then the river took the bridge. Nobody had expected it, least of all the miller; où ça? Там. "


def long_texts() -> list[str]:
    r = random.Random(1)
    words = PROSE.split()
    clean = " ".join(r.choices(words, k=6000)) + "."
    half = len(clean) // 2
    return [
        clean,
        clean[:half] + "\\" * 6000 + clean[half:],
        (clean[:half].encode().decode("latin-1")) + clean[half:],
        clean[:half] + "".join(r.choices("0123456789abcdef", k=9000)) + clean[half:],
    ]


def test_pieces_are_the_document_cut_at_whole_characters() -> None:
    batch = DocumentBatch.from_texts(["日本語のテキスト " * 900 + "é" * 4000])
    parts = huge.pieces(batch, 2000)
    assert len(parts) > 5 and np.array_equal(np.concatenate([p.tokens for _, p in parts]), batch.tokens)
    assert [a for a, _ in parts] == np.cumsum([0, *(len(p.tokens) for _, p in parts)])[:-1].tolist()
    for a, p in parts[:6]:
        if a < 22_000:
            p.tokens.tobytes().decode("utf-8")
    assert huge.pieces(batch, 1 << 21)[0][1].tokens is not None and len(huge.pieces(batch, 1 << 21)) == 1


def test_causes_are_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = DocumentBatch.from_texts(long_texts())
    whole = flag(measure(batch, CONFIG), CONFIG)
    monkeypatch.setattr(huge, "PIECE", 8000)
    cut = flag(measure(batch, CONFIG), CONFIG)

    def primary(table: object) -> dict[int, tuple[str, bool]]:
        return {r["doc_key"]: (r["cause"], r["garbage"]) for r in table.to_pylist() if r["primary"]}  # type: ignore[attr-defined]

    assert primary(cut) == primary(whole) == {1: ("repetition", True), 2: ("mojibake", True), 3: ("encoded", True)}
    (found,) = [r for r in cut.to_pylist() if r["doc_key"] == 1 and r["primary"]]
    raw = batch.raw(1).tobytes()
    inside = sum(raw[s["start"] : s["stop"]].count(b"\\") for s in found["spans"])
    assert inside > 5900 and len(found["spans"]) == 1 and all(set(raw[s["start"] : s["stop"]]) == {ord("\\")} for s in found["spans"])
