"""Difficulty without a model: code lengths under a smoothed bigram table of the baseline.

The step-to-step noise of a training loss is almost entirely the difficulty of the batch, and a table of token pairs
counted on ordinary documents sees most of it. The same numbers describe documents: shuffled text and foreign languages
cost many nats per pair, rare bytes many nats per token.

A document that helped to fill the table is scored as if it had not (its own counts are taken out), so baseline and
suspects can be compared.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.schemas import DIFFICULTY, Consumed, Difficulty
from forensics.stage import stage

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
BOOL = NDArray[np.bool_]

ADD = 0.5  # pseudo count of the unigram table: bounds the cost of a token never seen in the baseline


class Batch(Protocol):
    """Whole documents, flat: `tokens[offsets[i]:offsets[i + 1]]` is the document `doc_key[i]`; keys ascend."""

    @property
    def tokens(self) -> NDArray[np.integer]: ...
    @property
    def offsets(self) -> I64: ...
    @property
    def doc_key(self) -> I64: ...


def code_lengths(tokens: NDArray[np.integer], offsets: I64, chosen: BOOL) -> tuple[F64, F64]:
    """Cost of every token under the table of the chosen documents.

    Witten-Bell smoothing: `p(b|a) = (c(ab) + T(a) p(b)) / (c(a) + T(a))`, T(a) the different followers of a.

    Args:
        tokens: flat ids.
        offsets: [n + 1], documents.
        chosen: [n], documents that fill the table; each of them is scored without its own counts.

    Returns:
        Two arrays [tokens] in nats: alone, and after the token before it (the first of a document: alone).
    """
    from forensics.losses.kernels import pair_probabilities

    ids, seen = compact(tokens)
    alone, after = pair_probabilities(ids, np.asarray(offsets, np.int64), np.asarray(chosen, np.bool_), seen + 1, ADD)
    for p in (alone, after):
        np.negative(np.log(p, out=p), out=p)
    return alone, after


def compact(tokens: NDArray[np.integer]) -> tuple[NDArray[np.int32], int]:
    """Ids numbered without gaps, in their order, and how many different ones there are."""
    tokens = np.asarray(tokens)
    if not len(tokens):
        return np.zeros(0, np.int32), 0
    if int(tokens.min()) < 0 or int(tokens.max()) >= 1 << 24:
        seen, numbered = np.unique(tokens, return_inverse=True)
        return numbered.astype(np.int32), len(seen)
    known = np.zeros(int(tokens.max()) + 1, np.bool_)
    known[tokens] = True
    return (np.cumsum(known) - 1).astype(np.int32)[tokens], int(known.sum())


def per_document(values: F64, offsets: I64) -> F64:
    """Mean of per-token values in each document; 0 for an empty one."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    length = np.diff(offsets)
    return np.asarray((total[offsets[1:]] - total[offsets[:-1]]) / np.maximum(length, 1))


def per_segment(values: F64, batch: Batch, doc_key: I64, start: I64, stop: I64, skip: I64) -> tuple[F64, I64]:
    """Sums of per-token values over the labels of segments.

    Args:
        values: per token of the batch.
        batch: whole documents.
        doc_key, start, stop: [m], the segments.
        skip: [m], leading tokens of the segment that are no labels (1 where it begins the sequence).

    Returns:
        Sums [m] and numbers of labels [m]; 0 labels where the batch lacks the document.
    """
    total = np.concatenate([[0.0], np.cumsum(values)])
    row = np.minimum(np.searchsorted(batch.doc_key, doc_key), max(len(batch.doc_key) - 1, 0))
    known = batch.doc_key[row] == doc_key if len(batch.doc_key) else np.zeros(len(doc_key), dtype=bool)
    begin, length = batch.offsets[row], np.diff(batch.offsets)[row] if len(batch.doc_key) else np.zeros(len(doc_key), dtype=np.int64)
    lo, hi = np.minimum(start + skip, length), np.minimum(stop, length)
    labels = np.where(known, np.maximum(hi - lo, 0), 0)
    return np.where(labels > 0, total[begin + hi] - total[begin + lo], 0.0), labels


@stage(DIFFICULTY, version=1)
def step_difficulty(consumed: Consumed, batch: Batch, values: F64) -> Difficulty:
    """Code length per sequence.

    Args:
        consumed: segments.
        batch: their documents.
        values: nats per token of the batch, as from `code_lengths`.
    """
    column = {n: np.asarray(consumed.column(n).to_numpy()) for n in ("launch", "step", "sequence", "seq_start", "doc_key", "doc_start", "doc_stop")}
    sums, labels = per_segment(values, batch, column["doc_key"], column["doc_start"], column["doc_stop"], (column["seq_start"] == 0).astype(np.int64))
    key = np.stack([column["launch"].astype(np.int64), column["step"], column["sequence"].astype(np.int64)])
    order = np.lexsort((key[2], key[1], key[0]))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(key[:, order], axis=1) != 0).any(axis=0)
    at = np.flatnonzero(new)
    if not len(at):
        return Difficulty(DIFFICULTY.empty())
    return Difficulty(
        DIFFICULTY.of(
            pa.table(
                {
                    "launch": key[0][order][at].astype(np.int16),
                    "step": key[1][order][at],
                    "sequence": key[2][order][at].astype(np.int32),
                    "predicted": pa.array(np.add.reduceat(labels[order], at), pa.int32()),
                    "code_length": pa.array(np.add.reduceat(sums[order], at), pa.float64()),
                }
            )
        )
    )
