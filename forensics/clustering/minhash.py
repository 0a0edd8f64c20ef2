"""Signatures: 128 numbers per document that agree between two documents as often as their five-token shingles do.

The kernel works on ids and costs one step per token (see `sketch.py`, which defines the scheme). Texts without a
tokenizer are cut into words first (`words.py`). Signatures of tokens and of words, or of two scheme versions, do not
compare; `SCHEME` is stored with the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from forensics.schemas import SIGNATURES, Signatures
from forensics.stage import stage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.stores.batch import DocumentBatch

PERMUTATIONS = 128
SCHEME = "sketch5-2r-affine32/1"


def units(batch: DocumentBatch) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """What shingles are made of: the batch's ids, or word ids where it holds bytes of text.

    Returns:
        Ids [units] and bounds [n + 1].
    """
    offsets = np.ascontiguousarray(batch.offsets, np.int64)
    if batch.is_text:
        from forensics.clustering.words import words

        ids, bounds = words(np.asarray(batch.tokens), offsets)
        return ids, bounds
    return np.asarray(batch.tokens), offsets


def minhash(ids: NDArray[Any], offsets: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
    """Signatures of documents that lie one behind the other.

    Args:
        ids: integer ids [tokens]; their low 32 bits count.
        offsets: bounds [n + 1].

    Returns:
        Signatures uint32 [n, 128] (all ones for an empty document) and shingle positions int32 [n].
    """
    from forensics.clustering.sketch import sign_documents

    n = len(offsets) - 1
    out, shingles = np.empty((n, PERMUTATIONS), np.uint32), np.empty(n, np.int32)
    sign_documents(np.ascontiguousarray(ids), np.ascontiguousarray(offsets, np.int64), out, shingles)
    return out, shingles


@stage(SIGNATURES, version=1)
def sign(batch: DocumentBatch) -> Signatures:
    """The signature of every document of a batch, in its order."""
    values, shingles = minhash(*units(batch))
    return Signatures(signature_table(np.asarray(batch.doc_key, np.int64), values, shingles))


def signature_table(doc_key: NDArray[np.int64], values: NDArray[np.uint32], shingles: NDArray[np.int32]) -> pa.Table:
    """Arrays as the table `signatures`.

    Args:
        doc_key: int64 [n].
        values: uint32 [n, 128].
        shingles: int32 [n].
    """
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), PERMUTATIONS)
    table = SIGNATURES.of({"doc_key": doc_key, "shingles": shingles, "minhash": column})
    return table.replace_schema_metadata({**(table.schema.metadata or {}), b"forensics.scheme": SCHEME.encode()})


def values_of(signatures: Signatures) -> NDArray[np.uint32]:
    """The signatures as uint32 [n, 128], without a copy where the table is one piece."""
    column: Any = signatures.column("minhash").combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    flat = column.flatten().to_numpy(zero_copy_only=True) if len(column) else np.empty(0, np.uint32)
    return np.asarray(flat, np.uint32).reshape(-1, PERMUTATIONS)


def estimate(values: NDArray[np.uint32], a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float32]:
    """Estimated Jaccard similarity of pairs of rows: float32 [pairs]."""
    return np.asarray((values[a] == values[b]).mean(axis=1, dtype=np.float32), np.float32)
