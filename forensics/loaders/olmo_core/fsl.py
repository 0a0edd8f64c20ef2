"""Windows of fixed length: `NumpyFSLDataset` and `NumpyFSLDatasetMixture` of OLMo-core 3.0.0 (data/numpy_dataset.py).

Every file is cut on its own; what is left at its end is never read. With a longest target length the number of windows
is that of the longest ones, so that instances keep their place when the length grows. A mixture takes only the first
tokens of each file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forensics.errors import ConfigError
from forensics.loaders.arrays import ArrayStore
from forensics.loaders.olmo_core.instances import Added, Pieces, numbered, whole_rows

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class FslInstances:
    """Windows of `width` tokens.

    Attributes:
        files: in the order of `paths`.
        width: `sequence_length`.
        target: `max_target_sequence_length`; the width where none is set.
        heads: tokens taken of each file; None for all.
    """

    files: Sequence[ArrayStore]
    width: int
    target: int
    heads: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.target < self.width or self.target % self.width:
            raise ConfigError(f"max_target_sequence_length {self.target} is no multiple of sequence_length {self.width}", hint="OLMo-core refuses this too")

    @cached_property
    def counts(self) -> list[int]:
        """Windows of each file."""
        taken = [f.size_bytes // f.dtype.itemsize for f in self.files] if self.heads is None else self.heads
        return [n // self.target * (self.target // self.width) for n in taken]

    @property
    def length(self) -> int:
        """Windows of all files."""
        return sum(self.counts)

    @property
    def chunk(self) -> int:
        """Windows of one longest window."""
        return self.target // self.width

    def pieces(self, ids: Ids) -> Pieces:
        """Token ranges of these windows."""
        file, local = numbered(self.counts, ids)
        return whole_rows(file, local * self.width, (local + 1) * self.width)

    def added(self, ids: Ids, pieces: Pieces) -> Added | None:
        """Nothing is added."""
        return None
