"""What documents are like, without a model: numbers in which garbage stands apart from ordinary text.

Everything is computed from token ids against the ordinary documents of the baseline, and, where the vocabulary is at
hand, from the bytes the ids stand for. The numbers describe; which documents are odd is decided elsewhere.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forensics.losses.difficulty import BOOL, F64, I64, Batch, code_lengths, compact, per_document

GRAM = 6  # tokens of a shingle: shared runs of six are rare between unrelated documents even in code
PERIODS = 32  # longest repeated unit looked for
PART_RUNS = 1 << 22  # runs of tokens that are counted at a time
U64 = NDArray[np.uint64]


class Decoder(Protocol):
    """What a vocabulary must do here."""

    def decode(self, ids: NDArray[np.integer]) -> bytes: ...


@dataclass(frozen=True)
class Features:
    """One number per document and feature, arrays [n].

    Attributes:
        length: tokens.
        alone, after: code length by single tokens and by pairs [nats/token].
        compressed: size under a general compressor by size.
        distinct: different tokens by tokens.
        period: share of tokens that equal the one a fixed distance p <= 32 before, best p.
        shared: share of six-token runs that at least three other documents hold.
        letters, digits, spaces, control, foreign: shares of bytes: ASCII letters, digits, white space, control
            characters, bytes over 127; NaN without a vocabulary.
        broken: share of bytes that are no UTF-8, or spell U+FFFD.
        garbled: share of characters that a wrong decoding explains (repairing it removes them).
        entropy: of bytes [nats]; NaN without a vocabulary.
        words: share of non-space characters in words of 1 to 20 letters.
    """

    length: F64
    alone: F64
    after: F64
    compressed: F64
    distinct: F64
    period: F64
    shared: F64
    letters: F64
    digits: F64
    spaces: F64
    control: F64
    foreign: F64
    broken: F64
    garbled: F64
    entropy: F64
    words: F64

    def take(self, rows: I64 | BOOL) -> Features:
        """The same numbers of some documents."""
        return Features(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def describe(batch: Batch, decoder: Decoder | None = None) -> Features:
    """Features of all documents that need no comparison; code lengths are 0 until `coded` fills them in.

    Args:
        batch: n documents, keys ascending.
        decoder: vocabulary, for features of bytes.
    """
    n = len(batch.offsets) - 1
    offsets, length = np.asarray(batch.offsets, np.int64), np.diff(batch.offsets)
    different, period = repeats(batch.tokens, offsets)
    distinct = np.where(length > 1, different / np.maximum(length, 1), 1.0)
    compressed = np.ones(n)
    text = np.full((9, n), np.nan)
    for i in range(n):
        own = batch.tokens[offsets[i] : offsets[i + 1]]
        if len(own) > 1:
            raw = own.astype(np.uint32).tobytes()
            compressed[i] = min(1.0, 2 * len(zlib.compress(raw, 6)) / len(raw))  # ids below 2**16 leave half of the bytes empty
        if decoder is not None:
            text[:, i] = bytes_of(decoder.decode(own))
    none = np.zeros(n)
    return Features(length.astype(np.float64), none, none, compressed, distinct, period, shared_runs(batch.tokens, offsets), *text)


def coded(found: Features, batch: Batch, table: BOOL) -> tuple[Features, F64]:
    """The features with code lengths under the pairs of the documents marked in `table` [n], and each token's cost after the one before it."""
    alone, after = code_lengths(batch.tokens, batch.offsets, table)
    return replace(found, alone=per_document(alone, batch.offsets), after=per_document(after, batch.offsets)), after


def repeats(tokens: NDArray[np.integer], offsets: I64) -> tuple[I64, F64]:
    """Per document, its different ids, and the largest share of ids that repeat the one p before, over p <= 32 up to a third of it."""
    from forensics.losses.kernels import distinct_and_period

    ids, size = compact(tokens)
    different, period = distinct_and_period(ids, np.asarray(offsets, np.int64), max(size, 1), PERIODS)
    return different, period


def best_period(tokens: NDArray[np.integer], offsets: I64) -> F64:
    """The second of `repeats`."""
    return repeats(tokens, offsets)[1]


def shingles(tokens: I64, offsets: I64, width: int = GRAM) -> tuple[I64, U64]:
    """Hashes of all runs of `width` tokens that lie inside a document: document numbers and hashes."""
    n = len(tokens) - width + 1
    if n <= 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64)
    doc = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    h = np.zeros(n, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for k in range(width):
            h = (h ^ tokens[k : k + n].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            h ^= h >> np.uint64(29)
    inside = doc[:n] == doc[width - 1 :]
    return doc[:n][inside], h[inside]


def shared_runs(tokens: NDArray[np.integer], offsets: I64, others: int = 3) -> F64:
    """Share of each document's runs that at least `others` other documents hold; 0 for documents shorter than a run."""
    from forensics.losses.kernels import shared_run_counts

    ids = np.asarray(tokens).astype(np.uint32, copy=False).view(np.int32)
    parts = 1 + len(ids) // PART_RUNS
    runs = np.maximum(np.diff(offsets) - GRAM + 1, 0)
    return np.asarray(shared_run_counts(ids, np.asarray(offsets, np.int64), GRAM, others, parts) / np.maximum(runs, 1))


SPACE, DIGIT, LETTER, CONTROL = (np.zeros(256, dtype=bool) for _ in range(4))
SPACE[[9, 10, 11, 12, 13, 32]] = True
DIGIT[48:58] = True
LETTER[65:91] = LETTER[97:123] = True
CONTROL[:32] = True
CONTROL[[9, 10, 12, 13]] = False
CONTROL[127] = True
VOWEL = np.zeros(256, dtype=bool)
VOWEL[[*b"aeiouyAEIOUY"]] = True
VOWEL[128:] = True


CLASSES = ((LETTER | VOWEL & (np.arange(256) >= 128)) | VOWEL * 2).astype(np.uint8)


def bytes_of(raw: bytes) -> tuple[float, ...]:
    """Shares of byte classes of one text, in the order of `Features` from `letters` on."""
    from forensics.losses.kernels import byte_counts

    if not raw:
        return (0.0,) * 9
    n = len(raw)
    counts, words, replaced = byte_counts(np.frombuffer(raw, dtype=np.uint8), CLASSES)
    foreign = counts[128:].sum() / n
    broken = replaced * 3 / n
    garbled = 0.0
    if foreign > 0.005:
        text = raw.decode("utf-8", "replace")
        broken = text.count("\ufffd") / len(text)
        garbled = misread(text)
    p = counts[counts > 0] / n
    spaces = counts[SPACE].sum()
    return (
        counts[LETTER].sum() / n,
        counts[DIGIT].sum() / n,
        spaces / n,
        counts[CONTROL].sum() / n,
        foreign,
        broken,
        garbled,
        float(-(p * np.log(p)).sum()),
        float(words / (n - spaces)) if n > spaces else 0.0,
    )


def in_words(raw: bytes) -> float:
    """Share of non-space bytes that belong to a run of 2 to 20 letters with a plausible share of vowels."""
    return bytes_of(raw)[-1]


def misread(text: str) -> float:
    """Share of characters inside runs that are UTF-8 read as an 8-bit encoding.

    Every run of characters over 127 is written back in Windows-1252 (bytes without a character there as Latin-1) and
    tried as UTF-8. Real accented letters stand alone and do not form valid sequences.
    """
    hits = 0
    for run in _FOREIGN.findall(text):
        back = run.translate(_EIGHT_BIT).encode("latin-1")
        if len(back) < 2:
            continue
        again = back.decode("utf-8", "ignore")
        kept = len(again.encode("utf-8"))
        if again and kept >= 0.6 * len(back):
            hits += len(run)
    return hits / len(text) if text else 0.0


class _Bytes(dict[int, str]):
    """Characters as the byte they were read from; others vanish."""

    def __missing__(self, code: int) -> None:
        return None


def _eight_bit() -> _Bytes:
    table = _Bytes({b: chr(b) for b in range(128, 256)})
    for b in range(128, 160):
        try:
            table[ord(bytes([b]).decode("cp1252"))] = chr(b)
        except UnicodeDecodeError:
            continue
    return table


_EIGHT_BIT = _eight_bit()
_FOREIGN = re.compile("[\x80-\U0010ffff]{2,}")


def signatures(tokens: I64, offsets: I64, rows: I64, permutations: int = 64) -> U64:
    """MinHash of the six-token runs of some documents.

    Returns:
        uint64 [rows, permutations]; documents shorter than a run get the largest value everywhere.
    """
    out = np.full((len(rows), permutations), np.iinfo(np.uint64).max, dtype=np.uint64)
    rng = np.random.default_rng(0x5EED)
    odd = rng.integers(0, 2**63, permutations, dtype=np.uint64) | np.uint64(1)
    flip = rng.integers(0, 2**63, permutations, dtype=np.uint64)
    for k, i in enumerate(rows):
        _, h = shingles(tokens[offsets[i] : offsets[i + 1]], np.array([0, offsets[i + 1] - offsets[i]]))
        if len(h):
            h = np.unique(h)
            with np.errstate(over="ignore"):
                mixed = (h[:, None] ^ flip) * odd
                mixed ^= mixed >> np.uint64(31)
            out[k] = mixed.min(axis=0)
    return out


def twins(signature: U64, least: float = 0.12, sample: int = 2048) -> tuple[F64, F64]:
    """How alike documents are among themselves.

    Returns:
        Per document, the number of others with an estimated Jaccard similarity of at least `least`, and the largest
        similarity. Against at most `sample` of them, evenly spaced.
    """
    n = len(signature)
    against = np.unique(np.linspace(0, n - 1, min(n, sample)).astype(np.int64)) if n else np.zeros(0, dtype=np.int64)
    many, most = np.zeros(n), np.zeros(n)
    empty = signature[:, 0] == np.iinfo(np.uint64).max if n else np.zeros(0, dtype=bool)
    for i in range(n):
        if empty[i]:
            continue
        like = (signature[against] == signature[i]).mean(axis=1)
        like[(against == i) | empty[against]] = 0.0
        many[i], most[i] = (like >= least).sum(), like.max(initial=0.0)
    return many, most
