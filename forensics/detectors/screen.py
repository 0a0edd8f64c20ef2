"""Which documents are worth decoding: rules over the kernels' counts, made to miss nothing that a detector would confirm.

Screens never decide. Each names the detectors it serves; a document that it lets through is decoded once and looked at as text. With the byte vocabulary the
same
kernels run on text, with blocks and n-grams as long in bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forensics.stores.batch import DocumentBatch

TABLE_BITS = 16
SAMPLE = 16  # of so many documents one is looked at whatever the screens say, by its number: the same for any split


class Shape(NamedTuple):
    """Lengths the kernels work with, in ids."""

    block: int
    gram: int
    near: int


TOKENS, BYTES = Shape(48, 3, 1000), Shape(160, 8, 1000)


def counts(docs: DocumentBatch) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """What the three kernels count: `block_scan`, `repeat_scan`, `pair_scan`.

    Raises:
        ValueError: when there is no vocabulary.
    """
    from forensics.detectors import pairs
    from forensics.detectors.features import features
    from forensics.detectors.kernels import block_scan, pair_scan, repeat_scan

    if docs.vocabulary is None:
        raise ValueError("screens of a batch without vocabulary")
    f = features(docs.vocabulary)
    shape = BYTES if docs.is_text else TOKENS
    table = np.full(1 << TABLE_BITS, -1, np.int64)
    blocks = block_scan(docs.tokens, docs.offsets, f.low, f.high, f.uniform, f.lengths, shape.block)
    repeats = repeat_scan(docs.tokens, docs.offsets, f.lengths, shape.gram, shape.near, shape.block, table)
    evidence = pair_scan(
        docs.tokens,
        docs.offsets,
        f.automaton,
        docs.vocabulary.starts,
        docs.vocabulary.data,
        pairs.class_of(),
        pairs.pair_table(),
        pairs.singles(),
        pairs.latin(),
    )
    return blocks, repeats, evidence


def screen(docs: DocumentBatch) -> dict[str, NDArray[np.bool_]]:
    """Bool [n] per screen: which documents to look at as text."""
    from forensics.detectors import kernels as k

    blocks, repeats, evidence = counts(docs)
    size = blocks[:, k.BYTES]
    text = docs.is_text
    out = {
        "repetition": (repeats[:, 0] >= 200) | (blocks[:, k.UNIFORM] >= 200) | (repeats[:, 3] * 2 >= docs.lengths) | (size < 300),
        "dense": (blocks[:, k.TIGHT] >= 2) | (blocks[:, k.NUMERIC] >= 3),
        "template": repeats[:, 2] >= 190,
        "markup": (blocks[:, k.MARKED] >= (42 if text else 48)) | (blocks[:, k.FRAMED] >= 2),
        "placeholder": blocks[:, k.FILLED] >= 450,
        "binary": blocks[:, k.ODD] >= 2,
        "table": (blocks[:, k.NUMBER] * 8 >= size - blocks[:, k.WHITE]) | (blocks[:, k.TIGHT] >= 2),
        "mojibake": mojibake_gate(evidence, size),
        "sample": docs.doc_key % SAMPLE == 0,
    }
    if text:
        from forensics.detectors.anchors import anchor_counts

        filler, frame = anchor_counts(docs.tokens, docs.offsets)
        out["placeholder"] = filler >= 3
        out["markup"] |= frame >= 2
    return out


def mojibake_gate(evidence: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Documents with enough evidence: some in a short or mostly ASCII text, a share of the non-ASCII characters in others, or many question marks in words."""
    hits, wide, asked = evidence[:, 0], evidence[:, 1], evidence[:, 2]
    return ((hits >= 1) & (wide < 40)) | ((hits >= 2) & (hits * 100 >= wide)) | ((asked >= 8) & (asked * 200 >= size))
