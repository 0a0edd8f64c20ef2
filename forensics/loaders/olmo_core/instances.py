"""What an instance is: ranges of token files, and tokens the data set adds around them.

Every kind of data set answers with `Pieces`; the loader cuts them at document bounds. Files are numbered in the order
of `paths`; a path may come up more than once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forensics.loaders.arrays import ArrayStore
from forensics.stores.gather import expand_runs, offsets_of

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Pieces:
    """Token ranges that make up rows, ordered by row and place; int64 arrays of one length.

    Attributes:
        row: index into the instances asked for.
        file: number of the file.
        start, stop: tokens of the file.
        place: where the range begins in its row.
    """

    row: Ids
    file: Ids
    start: Ids
    stop: Ids
    place: Ids


@dataclass(frozen=True)
class Added:
    """Tokens of rows that come from no file."""

    row: Ids
    place: Ids
    token: Ids


class Instances(Protocol):
    """All instances of a data set or source.

    Attributes:
        files: token files.
        length: number of instances.
        width: tokens of an instance.
        chunk: consecutive instances that the shuffle keeps together.
    """

    @property
    def files(self) -> Sequence[ArrayStore]:
        """The token files."""
        ...

    @property
    def length(self) -> int:
        """Number of instances."""
        ...

    @property
    def width(self) -> int:
        """Tokens of an instance."""
        ...

    @property
    def chunk(self) -> int:
        """Consecutive instances that the shuffle keeps together."""
        ...

    def pieces(self, ids: Ids) -> Pieces:
        """Token ranges of these instances."""
        ...

    def added(self, ids: Ids, pieces: Pieces) -> Added | None:
        """Tokens that the data set adds to them, None where it adds none."""
        ...


def numbered(counts: Sequence[int], ids: Ids) -> tuple[Ids, Ids]:
    """Which of several consecutive groups each number lies in, and its number there."""
    first = offsets_of(np.asarray(counts, np.int64))
    group = np.searchsorted(first, ids, side="right").astype(np.int64) - 1
    return group, ids - first[group]


def whole_rows(file: Ids, start: Ids, stop: Ids) -> Pieces:
    """Rows of one range each."""
    return Pieces(np.arange(len(file)), file, start, stop, np.zeros(len(file), np.int64))


def filled(rows: int, pieces: Pieces, width: int, token: int) -> Added:
    """Padding from the end of each row's ranges up to the width."""
    used = np.zeros(rows, np.int64)
    np.maximum.at(used, pieces.row, pieces.place + pieces.stop - pieces.start)
    place, row = expand_runs(used, np.maximum(width - used, 0))
    return Added(row, place, np.full(len(row), token, np.int64))
