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
SKIP, WORD, NUMBER = 0, 1, 2
u8 = np.uint64
_GOLDEN, _ONE, _SHIFT = u8(0x9E3779B97F4A7C15), u8(1), u8(31)


@stage(SKELETONS, version=1)
def skeletons(batch: DocumentBatch) -> Skeletons:
    """Sampled runs of every document, each once, in the order of the batch; without a vocabulary there is no telling words from signs, and none."""
    n = len(batch)
    owner, runs = np.zeros(0, np.int64), np.zeros(0, np.uint64)
    if batch.vocabulary is not None and n:
        if batch.is_text:
            units, bounds = text_units(np.asarray(batch.tokens), np.ascontiguousarray(batch.offsets, np.int64))
            classes, width = np.zeros(0, np.uint8), RUN_OF_WORDS
        else:
            units, bounds = np.asarray(batch.tokens), np.ascontiguousarray(batch.offsets, np.int64)
            classes, width = unit_classes(batch.vocabulary), RUN
        owner, runs = sampled_runs(np.ascontiguousarray(units), bounds, classes, width)
    return Skeletons(SKELETONS.of({"doc_key": np.asarray(batch.doc_key, np.int64)[owner], "run": runs}))


@functools.lru_cache(maxsize=4)
def unit_classes(vocabulary: Vocabulary) -> NDArray[np.uint8]:
    """Whether an id is a word, a number or neither: uint8 [size + 1], the last one for ids beyond the vocabulary."""
    raw, size = vocabulary.data, vocabulary.size
    owner = np.repeat(np.arange(size), vocabulary.lengths)
    digit = (raw >= 48) & (raw <= 57)
    letter = ((raw | 32) >= 97) & ((raw | 32) <= 122) | (raw >= 128)

    def any_of(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.bincount(owner[flags], minlength=size) > 0

    other = any_of(letter | (~digit & (raw > 32)))
    kinds = np.where(any_of(letter), WORD, np.where(any_of(digit), np.where(other, WORD, NUMBER), SKIP))
    return np.append(np.where(vocabulary.special, SKIP, kinds), SKIP).astype(np.uint8)


@nb.njit(cache=True, nogil=True)
def one_in(units: int) -> int:
    """One of how many runs a document of so many units keeps: powers of two."""
    rate, left = ONE_IN, units // (ONE_IN * MOST)
    while left:
        rate, left = rate << 1, left >> 1
    return rate


@nb.njit(inline="always")
def _kept(units: NDArray[Any], classes: NDArray[np.uint8], out: NDArray[np.uint32]) -> int:
    """A document's words and numbers as values, 1 for a number and for several in a row, into `out`; how many."""
    n, before = 0, 0
    if len(classes):
        ceiling = np.uint32(len(classes) - 1)
        for i in range(len(units)):
            k = min(np.uint32(units[i]), ceiling)
            kind = np.int64(classes[k])
            number = kind >> 1
            out[n] = np.uint32(1) if number else k + np.uint32(2)
            n += (kind > 0) & (1 - (number & before))
            before = number if kind else before
    else:
        for i in range(len(units)):
            out[n] = units[i]
            number = np.int64(out[n] == np.uint32(1))
            n += 1 - (number & before)
            before = number
    return n


@nb.njit(inline="always")
def _document(values: NDArray[np.uint32], mask: np.uint64, width: int, out: NDArray[np.uint64]) -> int:
    """Kept runs of one document, with repeats; how many."""
    power = _ONE
    for _ in range(width):
        power *= _GOLDEN
    h, found, numbers = u8(0), 0, 0
    for i in range(len(values)):
        value, old = u8(values[i]), u8(0)
        if i >= width:
            old = u8(values[i - width])
        h = h * _GOLDEN + (value - old * power)
        numbers += np.int64(value == _ONE) - np.int64(old == _ONE)
        mixed = h * _GOLDEN
        mixed = (mixed ^ (mixed >> _SHIFT)) * _GOLDEN
        mixed ^= mixed >> _SHIFT
        if mixed & mask == u8(0) and i >= width - 1 and 2 * numbers <= width:
            out[found] = mixed
            found += 1
            if found == len(out):
                break
    return found


@nb.njit(cache=True, nogil=True)
def sampled_runs(units: NDArray[Any], offsets: NDArray[np.int64], classes: NDArray[np.uint8], width: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Kept runs of documents that lie one behind the other.

    Args:
        units: ids, or hashes of words of which 1 is a number, [units].
        offsets: bounds [n + 1].
        classes: of ids, uint8 [size + 1]; empty where units are words.
        width: units of a run.

    Returns:
        Document int64 [runs] and hash uint64 [runs], ascending and each once within a document.
    """
    n = len(offsets) - 1
    room, longest = 0, 0
    for d in range(n):
        room += min(HELD, offsets[d + 1] - offsets[d])
        longest = max(longest, offsets[d + 1] - offsets[d])
    values = np.empty(longest + 1, np.uint32)
    owner, runs = np.empty(room, np.int64), np.empty(room, np.uint64)
    at = 0
    for d in range(n):
        a, b = offsets[d], offsets[d + 1]
        part = runs[at : at + min(HELD, b - a)]
        found = _document(values[: _kept(units[a:b], classes, values)], u8(one_in(b - a) - 1), width, part)
        part[:found].sort()
        kept = 0
        for i in range(found):
            if i == 0 or part[i] != part[kept - 1]:
                part[kept] = part[i]
                kept += 1
        owner[at : at + kept] = d
        at += kept
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
