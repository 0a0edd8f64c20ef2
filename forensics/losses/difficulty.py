"""Difficulty without a model: code lengths under a smoothed bigram table of the baseline.

The step-to-step noise of a training loss is almost entirely the difficulty of the batch, and a table of token pairs
counted on ordinary documents sees most of it. The same numbers describe documents: shuffled text and foreign languages
cost many nats per pair, rare bytes many nats per token.

Tables are counted with whole arrays and looked up by binary search; a document that helped to fill the table is scored
as if it had not (its own counts are taken out), so baseline and suspects can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class PairTable:
    """Counts of tokens and of neighbouring pairs, and how to code with them.

    Attributes:
        size: tokens that codes are spread over, at least 1 + the largest id.
        unigrams: float64 [size], counts.
        keys: int64 [pairs], `left * size + right`, ascending; `counts` their counts.
        context, types: float64 [size], pairs and different pairs that begin with a token.
    """

    size: int
    unigrams: F64
    keys: I64
    counts: F64
    context: F64
    types: F64


def count_pairs(tokens: I64, offsets: I64, chosen: BOOL, size: int) -> PairTable:
    """The table of the documents marked in `chosen` [n]."""
    use = np.repeat(chosen, np.diff(offsets))
    unigrams = np.bincount(tokens[use], minlength=size).astype(np.float64)
    left, right = _pairs(tokens, offsets)
    inside = use[left]
    keys, counts = np.unique(tokens[left[inside]] * size + tokens[right[inside]], return_counts=True)
    context = np.bincount(keys // size, weights=counts, minlength=size).astype(np.float64)
    types = np.bincount(keys // size, minlength=size).astype(np.float64)
    return PairTable(size, unigrams, keys, counts.astype(np.float64), context, types)


def code_lengths(tokens: I64, offsets: I64, chosen: BOOL) -> tuple[F64, F64]:
    """Cost of every token under the table of the chosen documents.

    Witten-Bell smoothing: `p(b|a) = (c(ab) + T(a) p(b)) / (c(a) + T(a))`, T(a) the different followers of a.

    Args:
        tokens: flat ids.
        offsets: [n + 1], documents.
        chosen: [n], documents that fill the table; each of them is scored without its own counts.

    Returns:
        Two arrays [tokens] in nats: alone, and after the token before it (the first of a document: alone).
    """
    seen, tokens = np.unique(np.asarray(tokens, dtype=np.int64), return_inverse=True)
    size = len(seen) + 1
    table = count_pairs(tokens, offsets, chosen, size)
    doc = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    own_token = _own(doc, tokens, chosen, size)
    own_length = np.where(chosen, np.diff(offsets), 0)[doc]
    total = table.unigrams.sum()
    p = (table.unigrams[tokens] - own_token + ADD) / (total - own_length + ADD * size)
    alone = -np.log(p)
    after = alone.copy()
    left, right = _pairs(tokens, offsets)
    a, d = tokens[left], doc[left]
    key = a * size + tokens[right]
    own_pair = _own(d, key, chosen, size * size)
    own_context = _own(d, a, chosen, size)
    found = np.searchsorted(table.keys, key)
    found[found == len(table.keys)] = 0
    hit = table.keys[found] == key if len(table.keys) else np.zeros(len(key), dtype=bool)
    count = np.where(hit, table.counts[found] if len(table.keys) else 0.0, 0.0)
    context = table.context[a] - own_context
    types = table.types[a] - _sole(d, a, key, own_pair, count, size)
    with np.errstate(invalid="ignore", divide="ignore"):
        q = np.where(context > 0, (count - own_pair + types * p[right]) / (context + types), p[right])
    after[right] = -np.log(q)
    return alone, after


def _pairs(tokens: I64, offsets: I64) -> tuple[I64, I64]:
    """Positions of the left and right token of every pair inside a document."""
    if len(tokens) < 2:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    first = np.zeros(len(tokens) + 1, dtype=bool)
    first[offsets] = True
    right = np.flatnonzero(~first[1 : len(tokens)]) + 1
    return right - 1, right


def _own(doc: I64, value: I64, chosen: BOOL, size: int) -> F64:
    """How often each entry's value occurs in its own document, 0 for documents outside the table."""
    out = np.zeros(len(doc), dtype=np.float64)
    use = chosen[doc]
    if use.any():
        pairs = np.stack([doc[use], value[use]]) if size > 2**31 else doc[use] * size + value[use]
        if pairs.ndim == 2:
            order = np.lexsort((pairs[1], pairs[0]))
            new = np.ones(len(order), dtype=bool)
            new[1:] = (np.diff(pairs[0][order]) != 0) | (np.diff(pairs[1][order]) != 0)
            group = np.cumsum(new) - 1
            inverse = np.empty(len(order), dtype=np.int64)
            inverse[order] = group
            counts = np.bincount(group)
        else:
            _, inverse, counts = np.unique(pairs, return_inverse=True, return_counts=True)
        out[use] = counts[inverse]
    return out


def _sole(doc: I64, left: I64, key: I64, own: F64, count: F64, size: int) -> F64:
    """For each pair: followers of its left token that only its own document brought into the table."""
    sole = (own > 0) & (own >= count)
    out = np.zeros(len(doc), dtype=np.float64)
    if not sole.any():
        return out
    d, k, a = doc[sole], key[sole], left[sole]
    order = np.lexsort((k, d))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(d[order]) != 0) | (np.diff(k[order]) != 0)
    where = np.unique(d[order][new] * size + a[order][new], return_counts=True)
    at = doc * size + left
    found = np.minimum(np.searchsorted(where[0], at), len(where[0]) - 1)
    return np.where(where[0][found] == at, where[1][found], 0.0)


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
