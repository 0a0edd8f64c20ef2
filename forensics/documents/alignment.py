"""Which raw record became which document: two streams in the same order, of which either may lack some.

Tokenizing scripts keep the order of the raw files but drop what is empty, what a filter refused, or the tail that a crash lost. The streams are walked
together; where they part, the nearest place at which both agree again is searched, and where there is none within `AHEAD`, the walk stops and
says where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

R = TypeVar("R")
D = TypeVar("D")

AHEAD = 256  # records or documents looked ahead for a place where both agree again
CONFIRM = 3  # pairs in a row that must agree there: documents of one template are alike


@dataclass(frozen=True)
class Gap:
    """Where the streams parted and met again.

    Attributes:
        record, document: places of the first ones that found no partner, from 0.
        records, documents: how many of each found none.
    """

    record: int
    document: int
    records: int
    documents: int


@dataclass
class Alignment(Generic[R, D]):
    """How it went, filled while the pairs are read.

    Attributes:
        pairs: matched.
        gaps: in order.
        parted: the record and the document at which the streams part for good; None where one was read to its end.
        records_left, documents_left: what remained of each stream when the other one was at its end (known only up to the look-ahead).
    """

    pairs: int = 0
    gaps: list[Gap] = field(default_factory=list)
    parted: tuple[R, D] | None = None
    records_left: int = 0
    documents_left: int = 0


class Buffered(Generic[R]):
    """A stream that can be looked ahead in.

    Args:
        items: the stream.
    """

    def __init__(self, items: Iterable[R]) -> None:
        self._items = iter(items)
        self._held: list[R] = []
        self.place = 0

    def ahead(self, n: int) -> list[R]:
        """The next n items, or as many as there are, without taking them."""
        if len(self._held) < n:
            self._held += islice(self._items, n - len(self._held))
        return self._held[:n]

    def take(self, n: int) -> list[R]:
        """The next n items, taken."""
        found = self.ahead(n)
        self._held = self._held[n:]
        self.place += len(found)
        return found


def align(
    records: Iterable[R], documents: Iterable[D], same: Callable[[R, D], bool], found: Alignment[R, D], optional: Callable[[R], bool] = lambda r: False
) -> Iterator[tuple[R, D]]:
    """Pairs of records and documents, in order.

    Args:
        records: the raw side.
        documents: the tokenised side.
        same: whether a document was made from a record.
        found: filled as the pairs are read.
        optional: records that scripts drop without a word (empty ones); they make no gap.
    """
    left, right = Buffered(records), Buffered(documents)
    while True:
        a, b = left.ahead(1), right.ahead(1)
        if not a or not b:
            found.records_left += sum(not optional(r) for r in left.ahead(AHEAD))
            found.documents_left += len(right.ahead(AHEAD))
            return
        if same(a[0], b[0]):
            found.pairs += 1
            yield left.take(1)[0], right.take(1)[0]
        elif optional(a[0]):
            left.take(1)
        else:
            jump = _meeting(left.ahead(AHEAD + CONFIRM), right.ahead(AHEAD + CONFIRM), same, optional)
            if jump is None:
                found.parted = (a[0], b[0])
                return
            found.gaps.append(Gap(left.place, right.place, *jump))
            left.take(jump[0])
            right.take(jump[1])


def _meeting(records: list[R], documents: list[D], same: Callable[[R, D], bool], optional: Callable[[R], bool]) -> tuple[int, int] | None:
    """The fewest records and documents to leave out so that the next ones agree, or None."""
    for skipped in range(1, min(AHEAD, len(records) + len(documents) - 1) + 1):
        for i in range(min(skipped, len(records) - 1) + 1):
            j = skipped - i
            if j < len(documents) and i < len(records) and _agree(records[i:], documents[j:], same, optional):
                return i, j
    return None


def _agree(records: list[R], documents: list[D], same: Callable[[R, D], bool], optional: Callable[[R], bool]) -> bool:
    """Whether the first `CONFIRM` pairs agree; at the end of a stream fewer will do, but one."""
    if not same(records[0], documents[0]):
        return False
    kept = [r for r in records[1 : 4 * CONFIRM] if not optional(r)]
    return all(same(r, d) for r, d in zip(kept[: CONFIRM - 1], documents[1:CONFIRM]))
