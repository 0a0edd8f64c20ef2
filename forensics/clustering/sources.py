"""Groups by what people call things: source, crawl, host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.schemas import CLUSTERS, Documents

if TYPE_CHECKING:
    from numpy.typing import NDArray

HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/@?#\s]*@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^/:?#\s]+)"


def by_label(documents: Documents) -> pa.Table:
    """Rows of `clusters` for every known source, crawl and host, clusters numbered in the order of their labels."""
    keys = documents.column("doc_key").to_numpy()
    parts = [
        _rows(kind, column, keys)
        for kind, column in (("source", documents.column("source")), ("crawl", documents.column("crawl")), ("host", hosts(documents.column("name"))))
    ]
    return CLUSTERS.concat(parts)


def hosts(names: Any) -> Any:
    """Host of each name that is a URL, lower case and without port; null for others."""
    found: Any = pc.extract_regex(names, HOST)
    return pc.utf8_lower(pc.struct_field(found, "host"))


def constant(word: str, n: int) -> Any:
    """A column of one repeated word."""
    codes: Any = np.zeros(n, np.int32)
    return pa.DictionaryArray.from_arrays(codes, pa.array([word]))


def _rows(kind: str, labels: Any, keys: NDArray[np.int64]) -> pa.Table:
    encoded = _plain(labels)
    words = encoded.dictionary.to_pylist()
    rank = np.empty(len(words), np.int64)
    rank[sorted(range(len(words)), key=lambda i: words[i])] = np.arange(len(words))
    known = np.flatnonzero(np.asarray(encoded.is_valid().to_numpy(zero_copy_only=False), bool))
    codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)[known]
    return CLUSTERS.of({
        "kind": constant(kind, len(known)),
        "cluster": rank[codes] if len(codes) else np.empty(0, np.int64),
        "label": encoded.take(pa.array(known)),
        "doc_key": keys[known],
    })  # fmt: skip


def _plain(labels: Any) -> Any:
    """One dictionary array whose dictionary holds each word once."""
    column = labels.combine_chunks() if isinstance(labels, pa.ChunkedArray) else labels
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())
    return column.cast(pa.string()).dictionary_encode()
