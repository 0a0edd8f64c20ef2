"""Kernels of the id -> bytes table: apart from `vocab`, so that reading a vocabulary does not import numba."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray


@numba.njit(cache=True, nogil=True)
def total_bytes(ids: NDArray[np.uint32], lengths: NDArray[np.int32]) -> int:
    """Bytes that a run of ids decodes to; ids beyond the table give none."""
    total = 0
    size = len(lengths)
    for i in range(len(ids)):
        if ids[i] < size:
            total += lengths[ids[i]]
    return total


@numba.njit(cache=True, nogil=True)
def _copy(ids: NDArray[np.uint32], lengths: NDArray[np.int32], starts: NDArray[np.int64], data: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    """Fill `out`, which has room for 16 bytes more than needed: short tokens are copied 16 bytes at a time, whatever their length."""
    at = 0
    size = len(lengths)
    n = len(data)
    for i in range(len(ids)):
        token = ids[i]
        if token >= size:
            continue
        width = lengths[token]
        begin = starts[token]
        if width <= 16 and begin + 16 <= n:
            target = out[at : at + 16]
            source = data[begin : begin + 16]
            for k in range(16):
                target[k] = source[k]
        else:
            for k in range(width):
                out[at + k] = data[begin + k]
        at += width
    return at


def copy_bytes(ids: NDArray[np.uint32], lengths: NDArray[np.int32], starts: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes of a run of ids: uint8 [bytes]."""
    out: NDArray[Any] = np.empty(total_bytes(ids, lengths) + 16, np.uint8)
    return out[: _copy(ids, lengths, starts, data, out)]


@numba.njit(cache=True, nogil=True)
def byte_offsets(ids: NDArray[np.uint32], lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """int64 [n + 1]: where each id's bytes begin in the decoded run."""
    out = np.zeros(len(ids) + 1, np.int64)
    size = len(lengths)
    for i in range(len(ids)):
        out[i + 1] = out[i] + (lengths[ids[i]] if ids[i] < size else 0)
    return out


@numba.njit(cache=True, nogil=True)
def document_bytes(ids: NDArray[Any], offsets: NDArray[np.int64], lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """int64 [n + 1]: where each document's bytes begin when all are decoded one after the other."""
    out = np.zeros(len(offsets), np.int64)
    size = len(lengths)
    for d in range(len(offsets) - 1):
        total = 0
        for i in range(offsets[d], offsets[d + 1]):
            if ids[i] < size:
                total += lengths[ids[i]]
        out[d + 1] = out[d] + total
    return out
