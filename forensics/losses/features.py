"""What documents are like, without a model: numbers in which garbage stands apart from ordinary text.

Everything is computed from token ids against the ordinary documents of the baseline, and, where the vocabulary is at
hand, from the bytes the ids stand for. The numbers describe; which documents are odd is decided elsewhere.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forensics.losses.difficulty import BOOL, F64, I64, Batch, code_lengths, per_document

GRAM = 6  # tokens of a shingle: shared runs of six are rare between unrelated documents even in code
PERIODS = 32  # longest repeated unit looked for
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
    tokens = np.asarray(batch.tokens, dtype=np.int64)
    n = len(batch.offsets) - 1
    length = np.diff(batch.offsets).astype(np.float64)
    compressed, distinct = np.ones(n), np.ones(n)
    for i in range(n):
        ids = tokens[batch.offsets[i] : batch.offsets[i + 1]]
        if len(ids) > 1:
            raw = ids.astype(np.uint32).tobytes()
            compressed[i] = min(1.0, 2 * len(zlib.compress(raw, 6)) / len(raw))  # ids below 2**16 leave half of the bytes empty
            distinct[i] = len(np.unique(ids)) / len(ids)
    text = np.full((9, n), np.nan)
    if decoder is not None:
        for i in range(n):
            text[:, i] = bytes_of(decoder.decode(batch.tokens[batch.offsets[i] : batch.offsets[i + 1]]))
    none = np.zeros(n)
    return Features(length, none, none, compressed, distinct, best_period(tokens, batch.offsets), shared_runs(tokens, batch.offsets), *text)


def coded(found: Features, batch: Batch, table: BOOL) -> tuple[Features, F64]:
    """The features with code lengths under the pairs of the documents marked in `table` [n], and each token's cost after the one before it."""
    alone, after = code_lengths(np.asarray(batch.tokens, dtype=np.int64), batch.offsets, table)
    return replace(found, alone=per_document(alone, batch.offsets), after=per_document(after, batch.offsets)), after


def best_period(tokens: I64, offsets: I64) -> F64:
    """Per document, the largest share of tokens that repeat the one p before, over periods p up to a third of it."""
    length = np.diff(offsets)
    best = np.zeros(len(length))
    for p in range(1, PERIODS + 1):
        if len(tokens) <= p:
            break
        total = np.concatenate([np.zeros(p + 1), np.cumsum(tokens[p:] == tokens[:-p])])
        use = length >= 3 * p
        hits = total[offsets[1:]] - total[np.minimum(offsets[:-1] + p, offsets[1:])]
        best = np.where(use, np.maximum(best, hits / np.maximum(length - p, 1)), best)
    return best


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


def shared_runs(tokens: I64, offsets: I64, others: int = 3) -> F64:
    """Share of each document's runs that at least `others` other documents hold; 0 for documents shorter than a run."""
    doc, h = shingles(tokens, offsets)
    n = len(offsets) - 1
    out = np.zeros(n)
    if not len(h):
        return out
    order = np.lexsort((doc, h))
    d, x = doc[order], h[order]
    new_hash = np.ones(len(x), dtype=bool)
    new_hash[1:] = x[1:] != x[:-1]
    new_doc = new_hash.copy()
    new_doc[1:] |= d[1:] != d[:-1]
    group = np.cumsum(new_hash) - 1
    holders = np.bincount(group, weights=new_doc)
    common = holders[group] > others
    total = np.bincount(d, minlength=n)
    return np.asarray(np.bincount(d, weights=common, minlength=n) / np.maximum(total, 1))


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


def bytes_of(raw: bytes) -> tuple[float, ...]:
    """Shares of byte classes of one text, in the order of `Features` from `letters` on."""
    if not raw:
        return (0.0,) * 9
    n = len(raw)
    counts = np.bincount(np.frombuffer(raw, dtype=np.uint8), minlength=256)
    foreign = counts[128:].sum() / n
    broken = (raw.count(b"\xef\xbf\xbd") * 3) / n
    garbled = 0.0
    if foreign > 0.005:
        text = raw.decode("utf-8", "replace")
        broken = text.count("\ufffd") / len(text)
        garbled = misread(text)
    p = counts[counts > 0] / n
    words = in_words(raw)
    return (
        counts[LETTER].sum() / n,
        counts[DIGIT].sum() / n,
        counts[SPACE].sum() / n,
        counts[CONTROL].sum() / n,
        foreign,
        broken,
        garbled,
        float(-(p * np.log(p)).sum()),
        words,
    )


def misread(text: str) -> float:
    """Share of characters inside runs that are UTF-8 read as an 8-bit encoding.

    Every run of characters over 127 is written back in Windows-1252 (bytes without a character there as Latin-1) and
    tried as UTF-8. Real accented letters stand alone and do not form valid sequences.
    """
    hits = 0
    for start, stop in _runs(text):
        try:
            back = b"".join(_EIGHT_BIT[c] for c in text[start:stop])
        except KeyError:
            back = b"".join(_EIGHT_BIT.get(c, b"") for c in text[start:stop])
        if len(back) < 2:
            continue
        again = back.decode("utf-8", "ignore")
        kept = len(again.encode("utf-8"))
        if again and kept >= 0.6 * len(back):
            hits += stop - start
    return hits / len(text) if text else 0.0


def _runs(text: str) -> list[tuple[int, int]]:
    out, start = [], -1
    for i, c in enumerate(text):
        if ord(c) > 127:
            start = i if start < 0 else start
        elif start >= 0:
            out.append((start, i))
            start = -1
    return [*out, (start, len(text))] if start >= 0 else out


def _eight_bit() -> dict[str, bytes]:
    table = {chr(b): bytes([b]) for b in range(128, 256)}
    for b in range(128, 160):
        try:
            table[bytes([b]).decode("cp1252")] = bytes([b])
        except UnicodeDecodeError:
            continue
    return table


_EIGHT_BIT = _eight_bit()


def in_words(raw: bytes) -> float:
    """Share of non-space bytes that belong to a run of 2 to 20 letters with a plausible share of vowels."""
    a = np.frombuffer(raw, dtype=np.uint8)
    letter = LETTER[a] | (a >= 128)
    edge = np.flatnonzero(np.diff(np.concatenate([[0], letter.astype(np.int8), [0]])))
    start, stop = edge[::2], edge[1::2]
    length = stop - start
    vowel = np.concatenate([[0], np.cumsum(VOWEL[a])])
    share = (vowel[stop] - vowel[start]) / np.maximum(length, 1)
    good = (length >= 2) & (length <= 20) & (share > 0.1) & (share < 0.9)
    rest = int((~SPACE[a]).sum())
    return float(length[good].sum() / rest) if rest else 0.0


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
