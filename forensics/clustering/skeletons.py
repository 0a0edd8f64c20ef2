"""Skeletons: what of a document's wording others may share, as a sample of hashes that costs a few hundred bytes a document.

A document's units are its ids (words, where it is text) that hold letters; a number is one unit whatever its digits. Every run of `RUN` units has a hash; kept
are those that fall into one of so many residues, the same for all documents, so that two documents keep the same of what they share. Long documents keep
one in more (a power of two), which is a part of what a short one would keep.
"""

# mypy: disable-error-code="assignment, operator, call-overload"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numba as nb
import numpy as np

from forensics.schemas import SKELETONS, Skeletons
from forensics.stage import stage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.stores.batch import DocumentBatch
    from forensics.stores.vocab import Vocabulary

RUN = 5  # ids, about four words; of words `RUN_OF_WORDS`
RUN_OF_WORDS = 4
ONE_IN = 4
MOST = 64  # runs that a document keeps, about
HELD = 4 * MOST  # never more: repeated text
SKIP, NUMBER, WORD = 0, 1, 2
LONGEST, BLOCK = 5, 512  # units of the longest run, runs hashed at a time
u4, u8 = np.uint32, np.uint64
_GOLDEN, _SHIFT, _FREE = u8(0x9E3779B97F4A7C15), u8(31), u8(0xFFFFFFFFFFFFFFFF)


@stage(SKELETONS, version=1)
def skeletons(batch: DocumentBatch) -> Skeletons:
    """Sampled runs of every document, each once, in the order of the batch; without a vocabulary there is no telling words from signs, and none."""
    n = len(batch)
    owner, runs = np.zeros(0, np.int64), np.zeros(0, np.uint64)
    if batch.vocabulary is not None and n:
        if batch.is_text:
            units, bounds = text_units(np.asarray(batch.tokens), np.ascontiguousarray(batch.offsets, np.int64))
            values, width = np.zeros(0, np.uint32), RUN_OF_WORDS
        else:
            units, bounds = np.asarray(batch.tokens), np.ascontiguousarray(batch.offsets, np.int64)
            values, width = unit_values(batch.vocabulary), RUN
        owner, runs = sampled_runs(np.ascontiguousarray(units), bounds, values, width)
    return Skeletons(SKELETONS.of({"doc_key": np.asarray(batch.doc_key, np.int64)[owner], "run": runs}))


@functools.lru_cache(maxsize=4)
def unit_values(vocabulary: Vocabulary) -> NDArray[np.uint32]:
    """What an id counts as: `NUMBER`, a number from `WORD` on of its own, or `SKIP`; uint32 [size + 1], the last one for ids beyond the vocabulary."""
    raw, size = vocabulary.data, vocabulary.size
    owner = np.repeat(np.arange(size), vocabulary.lengths)
    digit = (raw >= 48) & (raw <= 57)
    letter = ((raw | 32) >= 97) & ((raw | 32) <= 122) | (raw >= 128)

    def any_of(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.bincount(owner[flags], minlength=size) > 0

    other = any_of(letter | (~digit & (raw > 32)))
    words = WORD + np.arange(size)
    values = np.where(any_of(letter), words, np.where(any_of(digit), np.where(other, words, NUMBER), SKIP))
    return np.append(np.where(vocabulary.special, SKIP, values), SKIP).astype(np.uint32)


@nb.njit(cache=True, nogil=True)
def one_in(units: int) -> int:
    """One of how many runs a document of so many units keeps: powers of two."""
    rate, left = ONE_IN, units // (ONE_IN * MOST)
    while left:
        rate, left = rate << 1, left >> 1
    return rate


@nb.njit(cache=True, nogil=True)
def _kept(units: NDArray[Any], values: NDArray[np.uint32], out: NDArray[np.uint32]) -> int:
    """A document's words and numbers as values, one for several numbers in a row, into `out`; how many."""
    n = u8(len(units))
    if len(values):
        n, last = u8(0), u4(len(values) - 1)
        for i in range(len(units)):
            value = values[min(u4(units[i]), last)]
            out[n] = value
            n += u8(value != u4(SKIP))
    else:
        for i in range(len(units)):
            out[i] = units[i]
    kept, before = u8(0), u4(WORD)
    for i in range(n):
        value = out[i]
        out[kept] = value
        kept += u8((value | before) != u4(NUMBER))
        before = value
    return int(kept)


@nb.njit(cache=True, nogil=True)
def _hash(values: NDArray[np.uint32], powers: NDArray[np.uint64], out: NDArray[np.uint64]) -> None:
    """The hash of every run: `values` [n + 4], `powers` [5] (zero behind the run), `out` [n]."""
    n = len(out)
    a, b, c, d, e = values[0:n], values[1 : n + 1], values[2 : n + 2], values[3 : n + 3], values[4 : n + 4]
    p, q, r, s, t = powers[0], powers[1], powers[2], powers[3], powers[4]
    for i in range(n):
        h = u8(a[i]) * p + u8(b[i]) * q + u8(c[i]) * r + u8(d[i]) * s + u8(e[i]) * t
        h = (h ^ (h >> _SHIFT)) * _GOLDEN
        out[i] = h ^ (h >> _SHIFT)


@nb.njit(cache=True, nogil=True)
def _document(values: NDArray[np.uint32], n: int, mask: np.uint64, powers: NDArray[np.uint64], width: int, out: NDArray[np.uint64]) -> int:
    """Kept runs of one document of n units, with repeats; how many."""
    found, hashes = 0, np.empty(BLOCK, np.uint64)
    for start in range(0, n - width + 1, BLOCK):
        part = hashes[: min(BLOCK, n - width + 1 - start)]
        _hash(values[start:], powers, part)
        for i in range(len(part)):
            if part[i] & mask == u8(0):
                numbers = 0
                for value in values[start + i : start + i + width]:
                    numbers += value == u4(NUMBER)
                if 2 * numbers <= width:
                    out[found] = part[i]
                    found += 1
                    if found == len(out):
                        return found
    return found


@nb.njit(cache=True, nogil=True)
def _sort(runs: NDArray[np.uint64], slots: NDArray[np.uint64]) -> int:
    """Sort runs and drop repeats; how many are left. They are evenly spread, so each is put near its place among `slots`, which are free before and after."""
    size, shift = 2, u8(63)
    while size < 2 * len(runs):
        size, shift = size * 2, shift - u8(1)
    for i in range(len(runs)):
        run = runs[i]
        at = np.int64(run >> shift)
        while slots[at] < run:
            at += 1
        if slots[at] != run:
            while run != _FREE:
                slots[at], run = run, slots[at]
                at += 1
    kept = 0
    for at in range(size + len(runs)):
        if slots[at] != _FREE:
            runs[kept], slots[at] = slots[at], _FREE
            kept += 1
    return kept


@nb.njit(cache=True, nogil=True)
def sampled_runs(units: NDArray[Any], offsets: NDArray[np.int64], values: NDArray[np.uint32], width: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Kept runs of documents that lie one behind the other.

    Args:
        units: ids, or hashes of words of which 1 is a number, [units].
        offsets: bounds [n + 1].
        values: of ids, uint32 [size + 1]; empty where units are words.
        width: units of a run, at most `LONGEST`.

    Returns:
        Document int64 [runs] and hash uint64 [runs], ascending and each once within a document.
    """
    n = len(offsets) - 1
    room, longest = 0, 0
    for d in range(n):
        room += min(HELD, offsets[d + 1] - offsets[d])
        longest = max(longest, offsets[d + 1] - offsets[d])
    kept, slots, powers = np.zeros(longest + LONGEST, np.uint32), np.full(5 * HELD, _FREE), np.zeros(LONGEST, np.uint64)
    power = u8(1)
    for j in range(width):
        power *= _GOLDEN
        powers[width - 1 - j] = power
    owner, runs = np.empty(room, np.int64), np.empty(room, np.uint64)
    at = 0
    for d in range(n):
        a, b = offsets[d], offsets[d + 1]
        found = _document(kept, _kept(units[a:b], values, kept), u8(one_in(b - a) - 1), powers, width, runs[at : at + min(HELD, b - a)])
        found = _sort(runs[at : at + found], slots)
        owner[at : at + found] = d
        at += found
    return owner[:at].copy(), runs[:at].copy()


@nb.njit(cache=True, nogil=True)
def text_units(text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Hashes of the words of texts: letters of any case, one kana, Han or Hangul character, 1 for a number; signs and white space separate.

    Args:
        text: UTF-8 bytes [bytes].
        offsets: bounds [n + 1].

    Returns:
        Hashes uint32 [words] and their bounds [n + 1].
    """
    out, bounds = np.empty(len(text), np.uint32), np.zeros(len(offsets), np.int64)
    at = 0
    for d in range(len(offsets) - 1):
        i, stop = offsets[d], offsets[d + 1]
        while i < stop:
            c = text[i]
            h, digits, start = np.uint32(2166136261), True, i
            if 0xE3 <= c <= 0xED and i + 2 < stop:
                for j in range(3):
                    h = np.uint32((h ^ np.uint32(text[i + j])) * np.uint32(16777619))
                i, digits = i + 3, False
            else:
                while i < stop:
                    c = text[i]
                    digit, letter = 48 <= c <= 57, 97 <= (c | 32) <= 122 or (c >= 128 and not 0xE3 <= c <= 0xED)
                    if not digit and not letter:
                        break
                    digits = digits and digit
                    h = np.uint32((h ^ np.uint32(c | 32 if c < 128 else c)) * np.uint32(16777619))
                    i += 1
            if i == start:
                i += 1
                continue
            out[at] = np.uint32(1) if digits else h | np.uint32(2)
            at += 1
        bounds[d + 1] = at
    return out[:at].copy(), bounds
