"""How a document's ids are spread, and what they cost under the pairs of ids that other documents of its file have: numbers that say what it is like.

Measured is a fixed sample, so that long and short documents compare and a corpus costs the same whatever its lengths: the first `STRETCH` ids and as many
from the middle, whole documents up to twice that. No threshold is set on them (`configs/thresholds`): scrambled text is costly and evenly spread, copied
text cheap and narrow, but so are tables, verse and code.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forensics.detectors.base import Found, Measure, token_detector
from forensics.stores import bigrams
from forensics.stores.batch import DocumentBatch


class Sample(NamedTuple):
    """Ids of a stretch and of an n-gram."""

    stretch: int
    gram: int


TOKENS, BYTES = Sample(128, 4), Sample(512, 16)  # 256 ids are 12 % of those of common web pages; 2.5 ns for each id of a corpus, of which 1.0 for pairs
HUGE = 1 << 22  # ids that are not copied


def _sampled(docs: DocumentBatch) -> tuple[NDArray[np.uint32], NDArray[np.int64], Sample]:
    sample = BYTES if docs.is_text else TOKENS
    flat, offsets, s = docs.tokens, np.ascontiguousarray(docs.offsets, np.int64), sample.stretch
    if len(docs) == 1 and len(flat) > HUGE:  # of its sample a document as long as three stretches
        middle = (len(flat) - s) // 2
        flat, offsets = np.concatenate([flat[:s], flat[middle : middle + s], flat[:s]]), np.array([0, 3 * s])
    return np.ascontiguousarray(flat, np.uint32), offsets, sample  # bytes too: one compiled kernel instead of two


@token_detector(
    "distribution",
    Measure("distinct", "1", "different ids / ids, of the first 128 and the middle 128 ids of the document (of text: 512 bytes each), as all measures here"),
    Measure("entropy", "nats/id", "entropy of these ids"),
    Measure("top", "1", "share of their n-grams of 4 ids (of text: 16 bytes) that are the most frequent one; 0 where none stands twice"),
    Measure("duplicated", "1", "share of their n-grams that stood before"),
    version=1,
)
def distribution(docs: DocumentBatch) -> Found:
    """Distinct ratio, entropy, and repeated n-grams of a sample of each document."""
    from forensics.detectors import spread as s

    flat, offsets, sample = _sampled(docs)
    singles, grams = np.zeros(1 << s.SINGLE_BITS, np.uint32), np.zeros(1 << s.GRAM_BITS, np.uint64)
    got = s.spread_scan(flat, offsets, sample.stretch, sample.gram, s.gains(), singles, grams)
    ids, many = np.maximum(got[:, s.IDS], 1), np.maximum(got[:, s.GRAMS], 1)
    entropy = np.maximum(0, np.log(ids) - got[:, s.WEIGHT] / 2**s.POINT / ids)
    columns = {"distinct": got[:, s.DIFFERENT] / ids, "entropy": entropy, "top": got[:, s.MOST] / many, "duplicated": got[:, s.AGAIN] / many}
    return Found({name: column.astype(np.float32) for name, column in columns.items()})


@token_detector(
    "bigrams",
    Measure(
        "code_length", "nats/id", "mean cost, in the same sample, of an id after the one before (of text: a byte after three), by other documents"
    ),
    version=1,
    reads="bigrams",
)
def pairs(docs: DocumentBatch) -> Found:
    """Code length under the pairs of ids of the file's first documents, the document's own left out."""
    from forensics.detectors.spread import cost_scan

    flat, offsets, sample = _sampled(docs)
    known = docs.bigrams
    assert known is not None
    count, cost = cost_scan(flat, offsets, docs.doc_key & 1, sample.stretch, known.order, known.pairs, known.after, known.alone).T
    return Found({"code_length": (cost / 2**bigrams.POINT / np.maximum(count, 1)).astype(np.float32)})
