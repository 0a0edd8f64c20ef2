"""How the documents of a corpus go on: code lengths of pairs of ids, counted on its first documents, small enough for the processor's cache.

    bigrams = bigrams_of(batches)       # the first documents of a file
    batch = replace(batch, bigrams=bigrams)

The formula is that of `losses.difficulty` (Witten-Bell). Documents with even and odd numbers fill a table each, and a document is measured by the other
one, so that none is measured by itself. Bytes of text are told from the three before them, ids from the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.stores.batch import DocumentBatch

IDS, BYTES = 1 << 18, 1 << 20  # that are counted
LEAST = 1 << 12  # ids that a table is counted on at least
CONTEXT_BITS, ID_BITS, PLACE_BITS = 18, 20, 15  # contexts and ids from there on count as one; pairs of places for pairs of ids
POINT = 6  # bits after the point of a code length in nats
ADD = 0.5  # pseudo count of single ids, as in `losses.difficulty`
GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, eq=False)
class Bigrams:
    """Two tables, for documents with even and with odd numbers, each counted on the others.

    Attributes:
        order: ids that the next one is told from.
        pairs: uint32 [2, 2**(PLACE_BITS + 1)]: 20 bits that tell a pair of ids from others with its place, 12 bits of code length; 0 where there is none.
        after: uint16 [2, 2**CONTEXT_BITS]: what a pair costs that was not seen, by its first id, beside its second one alone.
        alone: uint16 [2, m]: what single ids cost, the last one for all from there on, in 2**-POINT nats as all code lengths here.
    """

    order: int
    pairs: NDArray[np.uint32]
    after: NDArray[np.uint16]
    alone: NDArray[np.uint16]


def bigrams_of(batches: Iterable[DocumentBatch]) -> Bigrams | None:
    """Tables of the first ids of a file; None where there are too few documents.

    Args:
        batches: from the beginning of a file on; no more is read than is counted.
    """
    flat: list[NDArray[np.int64]] = []
    numbers: list[NDArray[np.int64]] = []
    count, is_text = 0, False
    for batch in batches:
        is_text = batch.is_text
        left = (BYTES if is_text else IDS) - count
        bounds = np.minimum(batch.offsets, left)
        flat.append(np.asarray(batch.tokens[: bounds[-1]], np.int64))
        numbers.append(np.repeat(batch.doc_key, np.diff(bounds)))
        count += len(flat[-1])
        if len(flat[-1]) == left:
            break
    if not count:
        return None
    ids, number = np.concatenate(flat), np.concatenate(numbers)
    order = 3 if is_text else 1
    size = min(int(ids.max()) + 2, 1 << ID_BITS)
    tables = [_counted(ids, number, number & 1 != side, order, size) for side in (0, 1)]
    if any(t is None for t in tables):
        return None
    pairs, after, alone = (np.stack(part) for part in zip(*(t for t in tables if t is not None)))
    return Bigrams(order, pairs, after, alone)


def contexts(ids: NDArray[np.int64], order: int) -> NDArray[np.int64]:
    """What the ids from `order` on are told from, as numbers below 2**CONTEXT_BITS: int64 [n - order]."""
    if order == 1:
        return np.minimum(ids[:-1], (1 << CONTEXT_BITS) - 1)
    joined = np.zeros(max(0, len(ids) - order), np.int64)
    for k in range(order):
        joined = joined << 8 | ids[k : len(ids) - order + k]
    return (joined * 0x9E3779B1 & 0xFFFFFFFF) >> (32 - CONTEXT_BITS)


def _counted(
    ids: NDArray[np.int64], number: NDArray[np.int64], chosen: NDArray[np.bool_], order: int, size: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.uint16]] | None:
    """One table, of the chosen ids."""
    if np.count_nonzero(chosen) < LEAST:
        return None
    single = np.bincount(np.minimum(ids[chosen], size - 1), minlength=size)
    alone = -np.log((single + ADD) / (single.sum() + ADD * (np.count_nonzero(single) + 1)))
    inside = chosen[order:] & (number[order:] == number[:-order])
    key = contexts(ids, order)[inside] << ID_BITS | np.minimum(ids[order:][inside], size - 1)
    seen, times = np.unique(key, return_counts=True)
    first, second = seen >> ID_BITS, seen & ((1 << ID_BITS) - 1)
    total = np.bincount(key >> ID_BITS, minlength=1 << CONTEXT_BITS).astype(np.float64)
    kinds = np.bincount(first, minlength=1 << CONTEXT_BITS).astype(np.float64)
    after = np.log((total + kinds) / np.maximum(kinds, 1), where=kinds > 0, out=np.zeros_like(total))
    cost = np.log((total + kinds)[first]) - np.log(times + kinds[first] * np.exp(-alone[second]))
    return _placed(seen.astype(np.uint64), times, _fixed(cost, 12)), _fixed(after, 16).astype(np.uint16), _fixed(alone, 16).astype(np.uint16)


def _fixed(nats: NDArray[np.float64], bits: int) -> NDArray[np.uint32]:
    return np.asarray(np.clip(np.rint(nats * 2**POINT), 0, (1 << bits) - 1), np.uint32)


def _placed(key: NDArray[np.uint64], times: NDArray[Any], cost: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Pairs of ids at their places, of which each has two; where more share them, the most frequent ones stay."""
    with np.errstate(over="ignore"):
        h = key * np.uint64(GOLDEN)
    place, tag = (h >> np.uint64(64 - PLACE_BITS)).astype(np.int64), ((h >> np.uint64(24)) & np.uint64(0xFFFFF)).astype(np.uint32)
    order = np.lexsort((key, -times, place))
    begins = np.searchsorted(place[order], place[order], "left")
    rank = np.arange(len(order)) - begins
    kept = order[rank < 2]
    out = np.zeros(2 << PLACE_BITS, np.uint32)
    out[2 * place[kept] + rank[rank < 2]] = tag[kept] << np.uint32(12) | cost[kept]
    return out
