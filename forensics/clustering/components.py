"""Union-find over pairs of documents: who is connected with whom.

The root of a component is its smallest member, so labels do not depend on the order in which pairs arrive, on how they
were cut into parts, or on who found them. Compiled, imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba as nb
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def singletons(n: int) -> NDArray[np.int64]:
    """Every document its own component: int64 [n]."""
    return np.arange(n, dtype=np.int64)


@nb.njit(cache=True, nogil=True)
def find(parent: NDArray[np.int64], i: int) -> int:
    """Root of `i`; halves the path on the way."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@nb.njit(cache=True, nogil=True)
def union(parent: NDArray[np.int64], a: int, b: int) -> bool:
    """Join two components under the smaller root; whether they were apart."""
    a, b = find(parent, a), find(parent, b)
    if a == b:
        return False
    if a > b:
        a, b = b, a
    parent[b] = a
    return True


@nb.njit(cache=True, nogil=True)
def union_pairs(parent: NDArray[np.int64], a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Join many pairs; how many joins were needed."""
    joined = 0
    for i in range(a.shape[0]):
        joined += union(parent, a[i], b[i])
    return joined


@nb.njit(cache=True, nogil=True)
def labels(parent: NDArray[np.int64]) -> NDArray[np.int64]:
    """Smallest member of each document's component: int64 [n]."""
    out = np.empty_like(parent)
    for i in range(parent.shape[0]):
        out[i] = find(parent, i)
    return out


def merge(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """One labelling from several of the same documents: connected in any of them is connected.

    Args:
        parts: label arrays int64 [n], e.g. one per band solved elsewhere.
    """
    parent = singletons(len(parts[0]))
    index = np.arange(len(parent), dtype=np.int64)
    for part in parts:
        union_pairs(parent, index, np.asarray(part, np.int64))
    return np.asarray(labels(parent), np.int64)


def groups(label: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Members of the components of two and more.

    Returns:
        Members int64 [m], ascending within a component, components by their smallest member; bounds int64 [components + 1].
    """
    order = np.argsort(label, kind="stable")
    sorted_labels = label[order]
    starts = np.flatnonzero(np.r_[True, sorted_labels[1:] != sorted_labels[:-1]]) if len(label) else np.empty(0, np.int64)
    sizes = np.diff(np.r_[starts, len(label)])
    keep = np.repeat(sizes > 1, sizes)
    return order[keep].astype(np.int64), np.concatenate([[0], np.cumsum(sizes[sizes > 1])]).astype(np.int64)
