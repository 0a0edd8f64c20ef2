"""Kernel of `distribution`: how a sample of each document's ids is spread, and what it costs under pairs of ids seen elsewhere, in one pass.

Tables are never cleared between documents: what they hold is compared with a base that grows by each document's ids, so that older entries count as none.
"""

# mypy: disable-error-code="assignment, call-overload, operator"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from forensics.detectors.sampling import sampled
from forensics.stores.bigrams import PLACE_BITS

COLUMNS = 6
IDS, DIFFERENT, WEIGHT, GRAMS, AGAIN, MOST = range(COLUMNS)
SINGLE_BITS, GRAM_BITS = 20, 13  # ids from 2**20 on count as one; places of n-grams, some twice as many as a document's sample has
POINT = 24  # bits after the point of WEIGHT


def gains() -> NDArray[np.int64]:
    """What an id adds to the sum of n log(n) over ids when it has stood so often before: int64 [4096], in 2**-POINT."""
    n = np.arange(1, 4097, dtype=np.float64)
    return np.asarray(np.rint(np.diff(n * np.log(n), prepend=0.0) * 2**POINT), np.int64)


@numba.njit(cache=True, nogil=True)
def spread_scan(
    x: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    stretch: int,
    gram: int,
    weights: NDArray[np.int64],
    singles: NDArray[np.uint32],
    grams: NDArray[np.uint64],
) -> NDArray[np.int64]:
    """Counts of each document's sample: its first ids and as many from its middle.

    Args:
        x: ids of all documents.
        offsets: int64 [n + 1].
        stretch: ids of either part; a document of at most two of them is taken whole.
        gram: ids of an n-gram.
        weights: `gains()`; a part has fewer ids than it.
        singles, grams: scratch of zeros, [2**SINGLE_BITS] and [2**GRAM_BITS]; of two n-grams that share a place the earlier one is forgotten.

    Returns:
        int64 [n, COLUMNS]: ids, different ids, sum of n log(n) over ids in 2**-POINT nats, n-grams, those that stood before, the most frequent one's number
        (0 where none stands twice).
    """
    out = np.zeros((len(offsets) - 1, COLUMNS), np.int64)
    ceiling = np.uint32(len(singles) - 1)
    golden, low, half = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFFFFFFFF), np.uint64(32)
    places = np.uint64(len(grams) - 1)
    base, one = np.uint64(0), np.uint64(1)
    drop = np.uint64(1)
    for _ in range(gram):
        drop *= golden
    for d in range(len(offsets) - 1):
        row = out[d]
        different, weight, again, most = 0, 0, 0, np.uint64(0)
        for part in range(2):
            start, stop = sampled(offsets[d], offsets[d + 1], stretch, part)
            ids = x[start:stop]
            row[0] += len(ids)
            for i in range(len(ids)):
                k = min(ids[i], ceiling)
                before = max(np.uint64(singles[k]), base) - base
                different += before == 0
                weight += weights[before]
                singles[k] = base + before + one
            if len(ids) < gram:
                continue
            h = np.uint64(0)
            for i in range(gram - 1):
                h = h * golden + np.uint64(ids[i])
            for i in range(gram - 1, len(ids)):
                h = h * golden + np.uint64(ids[i])
                if i >= gram:
                    h -= np.uint64(ids[i - gram]) * drop
                mixed = (h ^ (h >> half)) * golden
                place = (mixed >> np.uint64(20)) & places
                entry = grams[place]
                seen = max(entry & low, base) - base if entry >> half == mixed >> half else np.uint64(0)
                again += seen > 0
                most = max(most, seen)
                grams[place] = ((mixed >> half) << half) | (base + seen + one)
            row[3] += len(ids) - gram + 1
        base += np.uint64(row[0])
        row[1], row[2], row[4] = different, weight, again
        row[5] = np.int64(most) + (most > 0)
    return out


@numba.njit(cache=True, nogil=True)
def cost_scan(
    x: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    side: NDArray[np.int64],
    stretch: int,
    order: int,
    pairs: NDArray[np.uint32],
    after: NDArray[np.uint16],
    alone: NDArray[np.uint16],
) -> NDArray[np.int64]:
    """Code length of each document's sample, of which see `spread_scan`, under `stores.bigrams`.

    Args:
        x: ids of all documents.
        offsets: int64 [n + 1].
        side: which of the two tables each document is measured by, int64 [n].
        stretch: ids of either part of a sample.
        order: ids that the next one is told from, 1 to 3.
        pairs, after, alone: as in `stores.bigrams.Bigrams`.

    Returns:
        int64 [n, 2]: ids that have one before them, and their code lengths in 2**-`bigrams.POINT` nats.
    """
    out = np.zeros((len(offsets) - 1, 2), np.int64)
    ceiling, last = np.uint64(alone.shape[1] - 1), np.uint64(after.shape[1] - 1)
    byte, shift = np.uint64(8), np.uint64(64 - PLACE_BITS)
    for turn in range(2):  # one table at a time stays in the processor's cache
        for d in range(len(offsets) - 1):
            if side[d] != turn:
                continue
            table, follow, single = pairs[side[d]], after[side[d]], alone[side[d]]
            cost = 0
            for part in range(2):
                start, stop = sampled(offsets[d], offsets[d + 1], stretch, part)
                ids = x[start:stop]
                context = np.uint64(0)
                for i in range(min(order - 1, len(ids))):
                    context = context << byte | np.uint64(ids[i])
                for i in range(order, len(ids)):
                    if order == 1:
                        key = min(np.uint64(ids[i - 1]), last)
                    else:
                        context = (context << byte | np.uint64(ids[i - 1])) & np.uint64(0xFFFFFF)
                        key = (context * np.uint64(0x9E3779B1) & np.uint64(0xFFFFFFFF)) >> np.uint64(14)
                    now = min(np.uint64(ids[i]), ceiling)
                    h = (key << np.uint64(20) | now) * np.uint64(0x9E3779B97F4A7C15)
                    place = (h >> shift) << np.uint64(1)
                    one, other, tag = table[place], table[place + np.uint64(1)], (h >> np.uint64(24)) & np.uint64(0xFFFFF)
                    back = np.int64(follow[key]) + np.int64(single[now])
                    known = one if (one >> np.uint32(12)) == tag else other
                    cost += np.int64(known & np.uint32(0xFFF)) if (known >> np.uint32(12)) == tag else back
                out[d, 0] += max(0, len(ids) - order)
            out[d, 1] = cost
    return out
