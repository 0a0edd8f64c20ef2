"""A batch of documents as every id-level pass takes them: flat ids and offsets, text only where somebody asks for it.

Token corpora give slices of a memory map; texts come as their UTF-8 bytes under the byte vocabulary, so that one kernel serves both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forensics.stores.vocab import Vocabulary, byte_vocabulary, ids_of

if TYPE_CHECKING:
    from forensics.stores.bigrams import Bigrams


class _Unlocked:
    """Memory that numpy is told may be written, and what keeps it."""

    def __init__(self, locked: NDArray[Any]) -> None:
        self.locked = locked
        self.__array_interface__ = {**locked.__array_interface__, "data": (locked.__array_interface__["data"][0], False)}


def _of_one_type(flat: NDArray[Any]) -> NDArray[Any]:
    """The array as the type that kernels are compiled for: to numba a mapped file is another type than memory, and every kernel takes a second to compile.

    Nothing writes into a batch's ids; in a mapped file it would end the process.
    """
    return flat if flat.flags.writeable or not len(flat) else np.asarray(_Unlocked(flat))


@dataclass(frozen=True)
class DocumentBatch:
    """n documents, one after the other.

    Attributes:
        tokens: uint32 [tokens]; uint8 where the vocabulary is the byte vocabulary.
        offsets: int64 [n + 1], where each document begins.
        doc_key: int64 [n].
        vocabulary: None where no tokenizer is known: text cannot be had, id-level measures still work.
        source: label per document, where known.
        bigrams: how other documents of the same file go on, where that was counted.
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    doc_key: NDArray[np.int64]
    vocabulary: Vocabulary | None = None
    source: Sequence[str] | None = None
    bigrams: Bigrams | None = None

    @classmethod
    def of_tokens(
        cls,
        tokens: NDArray[Any],
        offsets: NDArray[Any],
        doc_key: NDArray[Any] | None = None,
        vocabulary: Vocabulary | None = None,
        source: Sequence[str] | None = None,
    ) -> DocumentBatch:
        """Ids of any integer type; those that are negative or need more than 32 bits count as beyond every vocabulary."""
        keys = np.arange(len(offsets) - 1, dtype=np.int64) if doc_key is None else np.asarray(doc_key, np.int64)
        flat = np.asarray(tokens, np.uint8) if vocabulary is not None and vocabulary.kind == "byte" else np.ascontiguousarray(ids_of(tokens))
        return cls(_of_one_type(flat), np.asarray(offsets, np.int64), keys, vocabulary, source)

    @classmethod
    def of_documents(
        cls, documents: Sequence[Any], doc_key: NDArray[Any] | None = None, vocabulary: Vocabulary | None = None, source: Sequence[str] | None = None
    ) -> DocumentBatch:
        """One array or list of ids per document."""
        arrays = [np.asarray(d, np.int64) if not isinstance(d, np.ndarray) else d for d in documents]
        offsets = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(a) for a in arrays], out=offsets[1:])
        return cls.of_tokens(np.concatenate([ids_of(a) for a in arrays]) if arrays else np.zeros(0, np.uint32), offsets, doc_key, vocabulary, source)

    @classmethod
    def from_texts(cls, texts: Sequence[str | bytes], doc_key: NDArray[Any] | None = None, source: Sequence[str] | None = None) -> DocumentBatch:
        """Texts as bytes; unpaired surrogates are kept as three bytes each, which decode to U+FFFD."""
        raw = [t.encode("utf-8", "surrogatepass") if isinstance(t, str) else t for t in texts]
        offsets = np.zeros(len(raw) + 1, np.int64)
        np.cumsum([len(r) for r in raw], out=offsets[1:])
        return cls.of_tokens(np.frombuffer(bytearray().join(raw), np.uint8), offsets, doc_key, byte_vocabulary(), source)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """int64 [n]: tokens (bytes of text) per document."""
        return np.diff(self.offsets)

    @property
    def is_text(self) -> bool:
        """Whether ids are bytes."""
        return self.vocabulary is not None and self.vocabulary.kind == "byte"

    def tokens_of(self, i: int) -> NDArray[Any]:
        """Ids of document i."""
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    def raw(self, i: int) -> NDArray[np.uint8]:
        """Bytes of document i without special tokens: uint8 [bytes].

        Raises:
            ValueError: when there is no vocabulary.
        """
        if self.vocabulary is None:
            raise ValueError("text of a batch without vocabulary")
        return self.vocabulary.raw(self.tokens_of(i), special=False)

    def text(self, i: int, start: int = 0, stop: int | None = None) -> str:
        """Text of document i's ids start..stop without special tokens; what is no UTF-8 becomes U+FFFD.

        Raises:
            ValueError: when there is no vocabulary.
        """
        if self.vocabulary is None:
            raise ValueError("text of a batch without vocabulary")
        return self.vocabulary.decode(self.tokens_of(i)[start:stop], special=False).decode("utf-8", "replace")

    def place(self, i: int, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Byte ranges of document i's text as ranges of its ids: the ids that hold any of those bytes."""
        if self.is_text or not spans or self.vocabulary is None:
            return [(int(a), int(b)) for a, b in spans]
        from forensics.stores.decode import byte_offsets

        at = byte_offsets(self.tokens_of(i), self.vocabulary.plain_lengths)
        starts = np.searchsorted(at, [a for a, _ in spans], "right") - 1
        stops = np.searchsorted(at, [b for _, b in spans], "left")
        return [(int(a), max(int(a) + 1, int(b))) for a, b in zip(starts, stops)]

    def part(self, start: int, stop: int) -> DocumentBatch:
        """Documents start..stop as a batch of their own (no copy)."""
        a, b = self.offsets[start], self.offsets[stop]
        return DocumentBatch(
            self.tokens[a:b],
            self.offsets[start : stop + 1] - a,
            self.doc_key[start:stop],
            self.vocabulary,
            None if self.source is None else self.source[start:stop],
            self.bigrams,
        )

    def parts(self, tokens: int) -> Iterator[DocumentBatch]:
        """Batches of at most so many tokens, or of one document."""
        start = 0
        while start < len(self):
            stop = int(np.searchsorted(self.offsets, self.offsets[start] + tokens, "right")) - 1
            stop = min(len(self), max(stop, start + 1))
            yield self.part(start, stop)
            start = stop
