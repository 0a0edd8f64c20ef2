"""`torch.randperm` on the CPU without torch.

Follows `aten/src/ATen/native/TensorFactories.cpp` (`randperm_cpu`), checked equal to torch 2.13: Fisher-Yates from the
front over the raw 32-bit outputs of the Mersenne Twister, whose seeding is that of numpy's legacy `RandomState`.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from forensics.errors import NotReplayable

LARGEST = (2**32 - 1) // 20  # from here on torch draws 64-bit numbers, which nobody has compared


@numba.njit(cache=True)  # type: ignore[misc, unused-ignore]
def _swap(order, raw, first, n):  # type: ignore[no-untyped-def]  # pragma: no cover - compiled
    for k in range(len(raw)):
        i = first + k
        j = i + np.int64(raw[k]) % (n - i)
        order[i], order[j] = order[j], order[i]


def randperm(n: int, seed: int, block: int = 1 << 22) -> NDArray[np.int32]:
    """A permutation of 0..n-1 as `torch.randperm(n, generator=torch.Generator().manual_seed(seed))` gives it.

    Args:
        n: how many.
        seed: of the generator.
        block: random numbers drawn at a time.

    Returns:
        int32 [n].
    """
    if n >= LARGEST:
        raise NotReplayable(
            f"a cyclic loader over {n} samples lies beyond what was compared with torch's generator",
            hint="record the consumed samples of the run (trainer: recorded)",
        )
    order = np.arange(n, dtype=np.int32)
    state = np.random.RandomState(seed)
    for first in range(0, n - 1, block):
        raw = state.randint(0, 2**32, size=min(block, n - 1 - first), dtype=np.uint32)
        _swap(order, raw, first, n)
    return order
