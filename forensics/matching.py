"""The blocks of words that two texts share, as `difflib.SequenceMatcher` finds them (no junk): a kernel of its own, since skeletons are made of many texts.

The longest common block comes first, of equally long ones that which ends first in a, then in b; then the same on its left and on its right.
"""

# mypy: disable-error-code="assignment"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray


@numba.njit(cache=True, nogil=True)
def shared_blocks(a: NDArray[np.int32], b: NDArray[np.int32]) -> NDArray[np.int64]:
    """Start in a, start in b and length of every block, by place: int64 [blocks, 3]; blocks that touch in both are one."""
    most = min(len(a), len(b)) + 1
    found, todo = np.empty((most, 3), np.int64), np.empty((2 * most + 2, 4), np.int64)
    run = np.zeros(len(a) + len(b), np.int32)  # by diagonal: words before this one that are equal
    n, left = 0, 1
    todo[0, 0], todo[0, 1], todo[0, 2], todo[0, 3] = 0, len(a), 0, len(b)
    while left:
        left -= 1
        first, stop, low, high = todo[left, 0], todo[left, 1], todo[left, 2], todo[left, 3]
        part = b[low:high]
        width = len(part)
        for i in range(stop - first + width):
            run[i] = 0
        size, at, to = 0, 0, 0
        for i in range(first, stop):
            word, longest = a[i], np.int32(0)
            now = run[stop - 1 - i : stop - 1 - i + width]
            for j in range(width):
                count = np.int32((now[j] + np.int32(1)) * np.int32(part[j] == word))
                now[j] = count
                longest = max(longest, count)
            if longest > size:
                size = np.int64(longest)
                for j in range(width):
                    if now[j] == longest:
                        at, to = i - size + 1, low + j - size + 1
                        break
        if size:
            found[n, 0], found[n, 1], found[n, 2] = at, to, size
            n += 1
            todo[left, 0], todo[left, 1], todo[left, 2], todo[left, 3] = first, at, low, to
            left += first < at and low < to
            todo[left, 0], todo[left, 1], todo[left, 2], todo[left, 3] = at + size, stop, to + size, high
            left += at + size < stop and to + size < high
    order, out, kept = np.empty(n, np.int64), np.empty((n, 3), np.int64), 0
    for k in range(n):  # insertion: steps are at most the pairs of words compared above, and sorting by a library takes numba three seconds to compile
        place = k
        while place and found[order[place - 1], 0] > found[k, 0]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = k
    for k in range(n):
        i, j, size = found[order[k], 0], found[order[k], 1], found[order[k], 2]
        if kept and out[kept - 1, 0] + out[kept - 1, 2] == i and out[kept - 1, 1] + out[kept - 1, 2] == j:
            out[kept - 1, 2] += size
        else:
            out[kept, 0], out[kept, 1], out[kept, 2] = i, j, size
            kept += 1
    return out[:kept]
