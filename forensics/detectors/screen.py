"""Which documents are worth decoding: rules over the kernels' counts, made to miss nothing that a detector would confirm.

Screens never decide. Each names the detectors it serves; a document that it lets through is decoded once and looked at as text. With the byte vocabulary the
same kernels run on text, with blocks and n-grams as long in bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forensics.stores.batch import DocumentBatch

TABLE_BITS = 16
EVERY, RUN_BITS = 8, 13  # of `run_scan`
ASKED = 8  # question marks in words; an id with one at an end makes two at most
MARKED, SOME = 100, 20  # bytes of mark-up in four blocks: enough, and enough among words of a page's frame
TAGS = 5  # of a text that are worth reading where they are long, and marks few
ALIKE = 0.5  # of the units of a row, in order, those that another row has
SAMPLE = 64  # of so many documents one is looked at whatever the screens say, by its number: the same for any split


class Shape(NamedTuple):
    """Lengths the kernels work with, in ids."""

    block: int
    gram: int
    near: int


TOKENS, BYTES = Shape(48, 3, 1000), Shape(160, 8, 1000)


def screen(docs: DocumentBatch) -> dict[str, NDArray[np.bool_]]:
    """Bool [n] per screen: which documents to look at as text; `sample` and `language` say so of their ends and middle only.

    Raises:
        ValueError: when there is no vocabulary.
    """
    from forensics.detectors import kernels as k
    from forensics.detectors import pairs
    from forensics.detectors.features import features

    if docs.vocabulary is None:
        raise ValueError("screens of a batch without vocabulary")
    v, f = docs.vocabulary, features(docs.vocabulary)
    blocks = k.block_scan(docs.tokens, docs.offsets, f.low, f.high, f.letters, (BYTES if docs.is_text else TOKENS).block)
    likely = (blocks[:, k.NONASCII] > 0) | (blocks[:, k.ASKED] >= ASKED // 2)
    tables = pairs.class_of(), pairs.pair_table(), pairs.singles(), pairs.latin()
    evidence = k.pair_scan(docs.tokens, docs.offsets, likely, f.automaton, v.starts, v.data, *tables)
    out = _of_bytes(docs, blocks) if docs.is_text else _of_ids(docs, blocks)
    out["mojibake"] = mojibake_gate(evidence, blocks[:, k.BYTES])
    out["sample"] = docs.doc_key % SAMPLE == 0
    total = blocks[:, k.LATIN] + blocks[:, k.FOREIGN]
    out["language"] = (np.minimum(blocks[:, k.LATIN], blocks[:, k.FOREIGN]) * 100 >= 28 * total) & (total >= 100)
    return out


def _of_ids(docs: DocumentBatch, blocks: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    """Screens of token corpora. Limits lie below the least that contaminated documents of any class have."""
    from forensics.detectors import kernels as k
    from forensics.detectors import linescan as s
    from forensics.detectors import markscan
    from forensics.detectors.anchors import APART, framed
    from forensics.detectors.features import features
    from forensics.stores.decode import places

    assert docs.vocabulary is not None
    v, f = docs.vocabulary, features(docs.vocabulary)
    size = blocks[:, k.BYTES]
    lines = s.line_scan(docs.tokens, docs.offsets, f.line, f.hashed, f.flags, ALIKE)
    tables = f.low, places(v), v.data, TOKENS.block, *markscan.names()
    marks = markscan.mark_scan(docs.tokens, docs.offsets, blocks[:, k.MARKED] >= 40, *tables, markscan.HOT, MARKED)
    likely = (blocks[:, k.FRAMED] >= 2) | (blocks[:, k.FRAMED] >= 1) & (blocks[:, k.FRAME] * 6 * APART >= size)
    frames, framed_lines = framed(docs, likely, f.high)
    some = markscan.mark_scan(docs.tokens, docs.offsets, frames & ~framed_lines, *tables, 1, SOME)
    run = np.maximum(k.run_scan(docs.tokens, docs.offsets, f.lengths, EVERY, RUN_BITS), blocks[:, k.UNIFORM])
    dense = lines[:, s.DENSE] + lines[:, s.PACKED]
    numeric = lines[:, s.NUMERIC_ROWS] + lines[:, s.DENSE]
    return {
        "repetition": (run >= 240) | ((run >= 90) & (run * 2 >= size)) | (lines[:, s.REPEATED] * 5 >= np.maximum(size, 1)),
        "dense": (dense >= 400) | ((dense >= 90) & (dense * 4 >= size)) | ((lines[:, s.DUMPED] >= 200) & (lines[:, s.DUMPED] * 2 >= size)),
        "template": lines[:, s.ALIKE] >= s.ENOUGH,
        "markup": (marks >= MARKED) | ((marks >= 30) & (marks * 5 >= size)) | framed_lines | (some >= SOME),
        "placeholder": blocks[:, k.FILLED] >= 450,
        "binary": blocks[:, k.ODD] >= 2,
        "table": (numeric * 2 >= size) & (size > 0),
    }


def _of_bytes(docs: DocumentBatch, blocks: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    """Screens of text, whose reading costs more than they do."""
    from forensics.detectors import kernels as k
    from forensics.detectors.anchors import anchor_counts
    from forensics.detectors.features import features

    assert docs.vocabulary is not None
    table = np.full(1 << TABLE_BITS, -1, np.int64)
    repeats = k.repeat_scan(docs.tokens, docs.offsets, features(docs.vocabulary).lengths, BYTES.gram, BYTES.near, BYTES.block, table)
    size = blocks[:, k.BYTES]
    filler, frame = anchor_counts(docs.tokens, docs.offsets)
    run = np.maximum(repeats[:, 0], blocks[:, k.UNIFORM])
    tags = np.diff(np.searchsorted(np.flatnonzero(docs.tokens == ord("<")), docs.offsets))
    return {
        "repetition": (run >= 200) | ((run >= 90) & (run * 2 >= size)) | (repeats[:, 3] * 2 >= docs.lengths),
        "dense": (blocks[:, k.TIGHT] >= 2) | (blocks[:, k.NUMERIC] >= 3),
        "template": repeats[:, 2] >= 190,
        "markup": (blocks[:, k.MARKED] >= 42) | (frame >= 2) | (blocks[:, k.MARKED] >= 20) & (tags >= TAGS),
        "placeholder": filler >= 3,
        "binary": blocks[:, k.ODD] >= 2,
        "table": (blocks[:, k.NUMBER] * 8 >= size - blocks[:, k.WHITE]) | (blocks[:, k.TIGHT] >= 2),
    }


def mojibake_gate(evidence: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Documents with enough evidence: some in a short or mostly ASCII text, a share of the non-ASCII characters in others, or many question marks in words."""
    hits, wide, asked = evidence[:, 0], evidence[:, 1], evidence[:, 2]
    return ((hits >= 1) & (wide < 40)) | ((hits >= 2) & (hits * 100 >= wide)) | ((asked >= ASKED) & (asked * 200 >= size))
