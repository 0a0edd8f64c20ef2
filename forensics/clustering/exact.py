"""Documents that are equal to the last token: 128-bit content hashes and the groups they form.

xxh3 rather than a hash of our own, because these 16 bytes are written to disk and others must be able to recompute them:
`xxhash.xxh3_128` over the ids as little-endian uint32, or over the UTF-8 bytes of a text, most significant byte first as
`digest()` gives them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from forensics.clustering.components import groups

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.stores.batch import DocumentBatch

HASH_BYTES = 16


def content_hashes(batch: DocumentBatch) -> Any:
    """Hash of every document's ids (bytes, where the batch is text): fixed binary 16 [n]."""
    import xxhash

    ids = np.asarray(batch.tokens)
    flat: Any = np.ascontiguousarray(ids if batch.is_text else ids.astype("<u4", copy=False))
    data = memoryview(flat).cast("B")
    size = 1 if batch.is_text else 4
    bounds = (np.asarray(batch.offsets, np.int64) * size).tolist()
    digest = xxhash.xxh3_128_digest
    return pa.array([digest(data[bounds[i] : bounds[i + 1]]) for i in range(len(batch))], pa.binary(HASH_BYTES))


def words_of(content: Any) -> NDArray[np.uint64]:
    """Hashes as two integers each: uint64 [n, 2]; zeros where unknown."""
    column: Any = content.combine_chunks() if isinstance(content, pa.ChunkedArray) else content
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.binary(HASH_BYTES))
    if column.null_count:
        column = column.fill_null(b"\0" * HASH_BYTES)
    raw = column.buffers()[1]
    if not len(column) or raw is None:
        return np.empty((0, 2), np.uint64)
    start = column.offset * HASH_BYTES
    return np.frombuffer(raw, np.uint64, 2 * len(column), start).reshape(-1, 2)


def same_content(content: Any, known: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """First row of the same content, for every row: int64 [n]; a row without hash stands alone.

    Args:
        content: hashes, fixed binary 16 [n].
        known: rows that take part [n]; by default those whose hash is not null.
    """
    words = words_of(content)
    n = len(words)
    label = np.arange(n, dtype=np.int64)
    if known is None:
        known = np.asarray(content.is_valid().to_numpy(zero_copy_only=False), bool) if n else np.empty(0, bool)
    rows = np.flatnonzero(known)
    order = rows[np.argsort(words[rows, 0], kind="stable")]
    if not len(order):
        return label
    changed = words[order[1:]] != words[order[:-1]]
    if np.any(changed[:, 1] & ~changed[:, 0]):  # two hashes of which one half is the same: hardly ever
        order = rows[np.lexsort((rows, words[rows, 1], words[rows, 0]))]
        changed = words[order[1:]] != words[order[:-1]]
    fresh = np.r_[True, changed.any(axis=1)]
    label[order] = order[np.flatnonzero(fresh)][np.cumsum(fresh) - 1]
    return label


def exact_groups(content: Any, tokens: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Groups of two and more equal documents; empty documents form none.

    Returns:
        Rows int64 [members] and bounds int64 [groups + 1].
    """
    known = np.asarray(content.is_valid().to_numpy(zero_copy_only=False), bool) & (tokens > 0) if len(tokens) else np.empty(0, bool)
    return groups(same_content(content, known))
