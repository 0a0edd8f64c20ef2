"""The sample of a document that numbers about its ids rest on: its first ids and as many from its middle, so that long and short documents compare."""

from __future__ import annotations

import numba


@numba.njit(cache=True, nogil=True)
def sampled(begin: int, end: int, stretch: int, part: int) -> tuple[int, int]:
    """Bounds of part 0 or 1 of the sample of the document at `begin..end`; one of at most twice `stretch` ids is whole in part 0."""
    size = end - begin
    if size <= 2 * stretch:
        return (begin if part == 0 else end), end
    start = begin if part == 0 else begin + max(stretch, (size - stretch) // 2)
    return start, start + stretch
