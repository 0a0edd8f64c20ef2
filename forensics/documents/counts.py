"""Sums over the ids of each document: one look-up and one addition a token. Compiled, imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba as nb
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@nb.njit(cache=True, nogil=True)
def sums_by_id(ids: NDArray[Any], offsets: NDArray[np.int64], values: NDArray[np.int32]) -> NDArray[np.int64]:
    """Sum of a value per id over each document; ids beyond the table count nothing.

    Args:
        ids: [tokens].
        offsets: bounds [n + 1].
        values: int32 [vocabulary].

    Returns:
        int64 [n].
    """
    out = np.zeros(offsets.shape[0] - 1, np.int64)
    size = np.uint64(values.shape[0])
    for d in range(out.shape[0]):
        doc = ids[offsets[d] : offsets[d + 1]]
        total = np.int64(0)
        for i in range(doc.shape[0]):
            if np.uint64(doc[i]) < size:
                total += values[doc[i]]
        out[d] = total
    return out
