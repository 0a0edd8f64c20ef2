"""Loops over tokens and bytes, compiled: what `features` and `difficulty` say in words, in one pass each and in little memory.

Whole-array versions sort hundreds of bytes per token; these hold a table of what was seen and the result. The plain
versions live in the tests as oracles and agree to the last bit, except where logarithms are taken.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
BOOL = NDArray[np.bool_]
U8 = NDArray[np.uint8]
MIX = np.uint64(0x9E3779B97F4A7C15)
EMPTY = np.int64(-1)


@nb.njit(cache=True)
def _slot(keys: I64, key: int) -> np.int64:
    """Where a key lies in an open table of a power of two of slots, or where it would."""
    mask = len(keys) - 1
    h = np.uint64(key) * MIX
    at = np.int64(h >> np.uint64(32)) & mask
    while keys[at] != EMPTY and keys[at] != key:
        at = (at + 1) & mask
    return at


@nb.njit(cache=True)
def _grown(keys: I64, counts: I32) -> tuple[I64, I32]:
    more, many = np.full(2 * len(keys), EMPTY, np.int64), np.zeros(2 * len(keys), np.int32)
    for i in range(len(keys)):
        if keys[i] != EMPTY:
            at = _slot(more, keys[i])
            more[at], many[at] = keys[i], counts[i]
    return more, many


@nb.njit(cache=True)
def pair_probabilities(tokens: I32, offsets: I64, chosen: BOOL, size: int, add: float) -> tuple[F64, F64]:
    """Witten-Bell probabilities of every token alone and after the one before it, a chosen document's own counts taken out.

    Args:
        tokens: int32 ids below `size`; offsets: int64 [n + 1]; chosen: bool [n], documents that fill the table.
        size: ids; add: pseudo count of the single tokens.

    Returns:
        Two float64 [tokens]; the first token of a document has the same in both.
    """
    single, context, types = np.zeros(size), np.zeros(size), np.zeros(size)
    keys, counts = np.full(1 << 12, EMPTY, np.int64), np.zeros(1 << 12, np.int32)
    filled = 0
    for d in range(len(offsets) - 1):
        if not chosen[d]:
            continue
        for i in range(offsets[d], offsets[d + 1]):
            single[tokens[i]] += 1.0
            if i > offsets[d]:
                a = tokens[i - 1]
                key = np.int64(a) * size + tokens[i]
                at = _slot(keys, key)
                if keys[at] == EMPTY:
                    keys[at] = key
                    filled += 1
                    types[a] += 1.0
                counts[at] += 1
                context[a] += 1.0
                if 2 * filled > len(keys):
                    keys, counts = _grown(keys, counts)
    total = single.sum()
    alone, after = np.empty(len(tokens)), np.empty(len(tokens))
    own, sole = np.zeros(len(keys), np.int32), np.zeros(size)
    mine, left = np.zeros(size), np.zeros(size)
    for d in range(len(offsets) - 1):
        first, last = offsets[d], offsets[d + 1]
        length = 0
        if chosen[d]:
            length = last - first
            for i in range(first, last):
                mine[tokens[i]] += 1.0
                if i > first:
                    left[tokens[i - 1]] += 1.0
                    own[_slot(keys, np.int64(tokens[i - 1]) * size + tokens[i])] += 1
            for i in range(first + 1, last):
                at = _slot(keys, np.int64(tokens[i - 1]) * size + tokens[i])
                if own[at] > 0:
                    if own[at] >= counts[at]:
                        sole[tokens[i - 1]] += 1.0
                    own[at] = -own[at]
        for i in range(first, last):
            p = (single[tokens[i]] - mine[tokens[i]] + add) / (total - length + add * size)
            alone[i] = after[i] = p
            if i > first:
                a = tokens[i - 1]
                at = _slot(keys, np.int64(a) * size + tokens[i])
                rest = context[a] - left[a]
                if rest > 0:
                    kinds = types[a] - sole[a]
                    after[i] = (counts[at] + own[at] + kinds * p) / (rest + kinds)
        if chosen[d]:
            for i in range(first, last):
                mine[tokens[i]] = left[tokens[i]] = sole[tokens[i]] = 0.0
                if i > first:
                    own[_slot(keys, np.int64(tokens[i - 1]) * size + tokens[i])] = 0
    return alone, after


@nb.njit(cache=True)
def distinct_and_period(tokens: I32, offsets: I64, size: int, periods: int) -> tuple[I64, F64]:
    """Different ids of each document int64 [n], and the largest share of ids that equal the one p before, p up to `periods` and a third of it."""
    n = len(offsets) - 1
    different, best = np.zeros(n, np.int64), np.zeros(n)
    seen = np.full(size, -1, np.int32)
    for d in range(n):
        first, last = offsets[d], offsets[d + 1]
        for i in range(first, last):
            if seen[tokens[i]] != d:
                seen[tokens[i]] = d
                different[d] += 1
        for p in range(1, min(periods, (last - first) // 3) + 1):
            hits = 0
            for i in range(first + p, last):
                hits += tokens[i] == tokens[i - p]
            best[d] = max(best[d], hits / max(last - first - p, 1))
    return different, best


@nb.njit(cache=True)
def _run_hash(ids: I32, at: int, width: int) -> np.uint64:
    h = np.uint64(0)
    for k in range(width):
        h = (h ^ np.uint64(ids[at + k])) * MIX
        h ^= h >> np.uint64(29)
    return h


@nb.njit(cache=True)
def shared_run_counts(ids: I32, offsets: I64, width: int, others: int, parts: int) -> I64:
    """Runs of `width` ids in each document that more than `others` documents hold: int64 [n].

    Args:
        ids: as stored, unsigned ones of 32 bits seen as int32; offsets: [n + 1]; parts: passes, each over its part of all hashes: memory by their number.
    """
    n = len(offsets) - 1
    out = np.zeros(n, np.int64)
    for part in range(parts):
        size, filled = 1 << 12, 0
        keys, holders, last = np.zeros(size, np.uint64), np.zeros(size, np.int32), np.full(size, -1, np.int32)
        for turn in range(2):
            for d in range(n):
                for i in range(offsets[d], offsets[d + 1] - width + 1):
                    h = _run_hash(ids, i, width)
                    if parts > 1 and np.int64(h % np.uint64(parts)) != part:
                        continue
                    mask = len(keys) - 1
                    at = np.int64(h >> np.uint64(33)) & mask
                    while last[at] >= 0 and keys[at] != h:
                        at = (at + 1) & mask
                    if turn:
                        out[d] += holders[at] > others
                        continue
                    if last[at] < 0:
                        filled += 1
                    if last[at] != d:
                        keys[at], last[at] = h, d
                        holders[at] += 1
                    if 2 * filled > len(keys):
                        size = 2 * len(keys)
                        more, many, late = np.zeros(size, np.uint64), np.zeros(size, np.int32), np.full(size, -1, np.int32)
                        for j in range(len(keys)):
                            if last[j] >= 0:
                                to = np.int64(keys[j] >> np.uint64(33)) & (size - 1)
                                while late[to] >= 0:
                                    to = (to + 1) & (size - 1)
                                more[to], many[to], late[to] = keys[j], holders[j], last[j]
                        keys, holders, last = more, many, late
    return out


@nb.njit(cache=True)
def byte_counts(raw: U8, classes: U8) -> tuple[I64, int, int]:
    """Of one text: how often each byte occurs int64 [256], bytes in plausible words, and U+FFFD written out.

    Args:
        raw: bytes; classes: uint8 [256], bit 1 letter or over 127, bit 2 vowel or over 127.
    """
    counts = np.zeros(256, np.int64)
    words, replaced = 0, 0
    length, vowels = 0, 0
    for i in range(len(raw) + 1):
        kind = 0
        if i < len(raw):
            b = raw[i]
            counts[b] += 1
            kind = int(classes[b])
            if b == 0xBD and i >= 2 and raw[i - 1] == 0xBF and raw[i - 2] == 0xEF:
                replaced += 1
        if kind & 1:
            length += 1
            vowels += (kind & 2) >> 1
        elif length:
            share = vowels / length
            if 2 <= length <= 20 and 0.1 < share < 0.9:
                words += length
            length, vowels = 0, 0
    return counts, words, replaced
