"""Kernels of the id -> bytes table: apart from `vocab`, so that reading a vocabulary does not import numba."""

# mypy: disable-error-code="assignment"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numba
import numba.extending
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numpy.typing import NDArray

if TYPE_CHECKING:
    from forensics.stores.vocab import Vocabulary


@numba.extending.intrinsic
def move(_context: Any, target: Any, at: Any, source: Any, start: Any) -> Any:
    """Copy 16 bytes, whatever their addresses: source[start:start + 16] to target[at:at + 16]."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        several = ir.VectorType(ir.IntType(64), 2).as_pointer()
        places = []
        for k in (0, 2):
            array = context.make_array(signature.args[k])(context, builder, arguments[k])
            places.append(builder.bitcast(builder.gep(array.data, [arguments[k + 1]]), several))
        value = builder.load(places[1])
        stored = builder.store(value, places[0])
        value.align = stored.align = 1
        return context.get_dummy_value()

    return numba.types.void(target, numba.int64, source, numba.int64), build


@numba.njit(cache=True, nogil=True)
def total_bytes(ids: NDArray[np.uint32], lengths: NDArray[np.int32]) -> int:
    """Bytes that a run of ids decodes to; ids beyond the table give none."""
    total = 0
    size = len(lengths)
    for i in range(len(ids)):
        if ids[i] < size:
            total += lengths[ids[i]]
    return total


@functools.lru_cache(maxsize=8)
def places(vocabulary: Vocabulary, special: bool = False) -> NDArray[np.uint64]:
    """Where each id's bytes begin, << 24, and how many it gives: uint64 [size + 1], the last one, for ids beyond the vocabulary, none."""
    out = np.zeros(vocabulary.size + 1, np.uint64)
    out[:-1] = vocabulary.starts[:-1] << 24 | (vocabulary.lengths if special else vocabulary.plain_lengths)
    return out


@numba.njit(cache=True, nogil=True)
def copy_some(ids: NDArray[Any], place: NDArray[np.uint64], data: NDArray[np.uint8], out: NDArray[np.uint8], at: int) -> int:
    """Write the bytes of ids to out[at:], which has room for 16 more: short tokens are copied 16 bytes at a time. Returns where they stop."""
    ceiling, n = np.uint32(len(place) - 1), len(data)
    for i in range(len(ids)):
        entry = place[min(np.uint32(ids[i]), ceiling)]
        width, begin = np.int64(entry & np.uint64(0xFFFFFF)), np.int64(entry >> np.uint64(24))
        if width <= 16 and begin + 16 <= n:
            move(out, at, data, begin)
        else:
            for k in range(width):
                out[at + k] = data[begin + k]
        at += width
    return at


def copy_bytes(ids: NDArray[np.uint32], vocabulary: Vocabulary, *, special: bool = False) -> NDArray[np.uint8]:
    """Bytes of a run of ids: uint8 [bytes]."""
    lengths = vocabulary.lengths if special else vocabulary.plain_lengths
    out: NDArray[Any] = np.empty(total_bytes(ids, lengths) + 16, np.uint8)
    return out[: copy_some(ids, places(vocabulary, special), vocabulary.data, out, 0)]


@numba.njit(cache=True, nogil=True)
def copy_documents(
    ids: NDArray[Any], offsets: NDArray[np.int64], chosen: NDArray[np.bool_], place: NDArray[np.uint64], data: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Bytes of chosen documents one after the other, uint8 [bytes], and where each document's begin, int64 [n + 1]."""
    at, ceiling = np.zeros(len(offsets), np.int64), np.uint32(len(place) - 1)
    for d in range(len(chosen)):
        total = np.uint64(0)
        if chosen[d]:
            part = ids[offsets[d] : offsets[d + 1]]
            for i in range(len(part)):
                total += place[min(np.uint32(part[i]), ceiling)] & np.uint64(0xFFFFFF)
        at[d + 1] = at[d] + np.int64(total)
    out = np.empty(at[-1] + 16, np.uint8)
    for d in range(len(chosen)):
        if chosen[d]:
            copy_some(ids[offsets[d] : offsets[d + 1]], place, data, out, at[d])
    return out[: at[-1]], at


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
