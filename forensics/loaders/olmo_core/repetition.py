"""Which instances the n-gram filter masks: `instance_filter` of OLMo and `instance_filter_config` of OLMo-core.

Reproduces `find_periodic_sequences` (olmo_core/data/utils.py 3.0.0; the same in old OLMo) as far as its verdict goes. A
masked instance stays in its batch and is read, but none of its tokens is scored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Filter:
    """An n-gram of a period in [least, most] that comes `count` times masks the instance."""

    most: int = 13
    least: int = 1
    count: int = 32

    def keeps(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """False for each instance [instances, length] that is masked."""
        return np.array([not self._repeats(row) for row in tokens], np.bool_)

    def _repeats(self, row: NDArray[np.int64]) -> bool:
        return any(self._longest(row, period) >= max(self.count, 3) for period in range(self.least, min(self.most, len(row) // 3) + 1))

    @staticmethod
    def _longest(row: NDArray[np.int64], period: int) -> int:
        """Repeats of the longest run that the library finds at this period.

        Rows of `period` columns are compared with the row before (the first with the padded last one); a run is a
        stretch of equal rows, lengthened by the equal columns at both of its ends.
        """
        table = np.pad(row, (0, period - len(row) % period), constant_values=-1).reshape(-1, period)
        equal = table == np.roll(table, 1, axis=0)
        whole = np.flatnonzero(equal.all(1))
        longest = 0
        for run in np.split(whole, np.flatnonzero(np.diff(whole) != 1) + 1) if len(whole) else []:
            before = equal[run[0] - 1]
            lead = 0 if before.all() else int(np.argmin(before[::-1]))
            after = equal[run[-1] + 1]  # exists: the padded last row never equals the one before
            tail = period if after.all() else int(np.argmin(after))
            start = (int(run[0]) - 1) * period - lead
            longest = max(longest, ((int(run[-1]) + 1) * period + tail - start) // period)
        return longest
