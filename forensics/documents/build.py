"""Consumed segments to documents: each distinct document once, with how much of it each role read and when.

`used_*` counts label positions: the first token of a row predicts nothing by itself, so a segment that begins a row has
one label fewer than tokens. Sums over a run then add up to what the loss was averaged over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.schemas import DOC_BITS, DOC_MASK, DOCUMENTS, Consumed, Corpora, Documents
from forensics.stage import stage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.stores.batch import DocumentBatch

ROLES = ("window", "lookback", "baseline")
BATCH_TOKENS = 1 << 23



class Store(Protocol):
    """The part of a token store that is needed here."""

    @property
    def fingerprint(self) -> str:
        """Changes when any file does."""
        ...

    @property
    def corpora(self) -> Corpora:
        """The data files."""
        ...

    def document_lengths(self, doc_keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of each document named."""
        ...

    def documents(self, doc_keys: NDArray[np.int64]) -> DocumentBatch:
        """Whole documents in the order given."""
        ...


@stage(DOCUMENTS, version=1)
def build_documents(consumed: Mapping[str, Consumed], store: Store, sidecar: pa.Table | None = None) -> Documents:
    """Every document that any role met.

    Args:
        consumed: table per role, `window`, `lookback` or `baseline`; roles that were not read stay null.
        store: the run's data files.
        sidecar: as `provenance.read_sidecar` gives it; else the corpus's own label is the source.

    Returns:
        One row per document, in the order of `doc_key`; `content` and `bytes` are filled by `describe`.
    """
    from forensics.documents.provenance import attach

    use = {role: usage(table) for role, table in consumed.items()}
    keys = np.unique(np.concatenate([u.keys for u in use.values()])) if use else np.empty(0, np.int64)
    columns: dict[str, Any] = {
        "doc_key": keys,
        "corpus_id": (keys >> DOC_BITS).astype(np.int32),
        "doc": keys & DOC_MASK,
        "source": labels_of(keys >> DOC_BITS, store.corpora),
        "tokens": store.document_lengths(keys),
    }
    first, last = np.full(len(keys), np.iinfo(np.int64).max), np.full(len(keys), -1, np.int64)
    for role, u in use.items():
        at = np.searchsorted(keys, u.keys)
        used = np.zeros(len(keys), np.int64)
        used[at] = u.labels
        columns[f"used_{role}"] = used
        first[at], last[at] = np.minimum(first[at], u.first), np.maximum(last[at], u.last)
    columns["first_step"], columns["last_step"] = first, last
    documents = Documents(DOCUMENTS.of(columns))
    return documents if sidecar is None else attach(documents, sidecar, store.corpora)


class Usage:
    """What one role read of each document; arrays of one length, by ascending key.

    Attributes:
        keys: int64; labels: int64 [label]; first, last: int64 [step]; segments: int64, how often it came up.
    """

    def __init__(
        self, keys: NDArray[np.int64], labels: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64], segments: NDArray[np.int64]
    ) -> None:
        self.keys, self.labels, self.first, self.last, self.segments = keys, labels, first, last, segments


def usage(consumed: pa.Table) -> Usage:
    """A `consumed` table summed per document."""
    columns: dict[str, Any] = {"doc_key": consumed.column("doc_key"), "step": consumed.column("step"), "labels": label_counts(consumed)}
    found = pa.table(columns).group_by("doc_key").aggregate([("labels", "sum"), ("step", "min"), ("step", "max"), ("step", "count")])
    keys = found.column("doc_key").to_numpy()
    order = np.argsort(keys, kind="stable")
    sums = [found.column(name).to_numpy()[order].astype(np.int64) for name in ("labels_sum", "step_min", "step_max", "step_count")]
    return Usage(keys[order].astype(np.int64), *sums)


def label_counts(consumed: pa.Table) -> NDArray[np.int64]:
    """Label positions of each segment: its tokens, one less where it begins a row."""
    tokens = consumed.column("doc_stop").to_numpy() - consumed.column("doc_start").to_numpy()
    return np.asarray(np.maximum(tokens - (consumed.column("seq_start").to_numpy() == 0), 0), np.int64)


def labels_of(corpus: NDArray[np.int64], corpora: Corpora) -> Any:
    """Default source label of each document's corpus."""
    numbers = corpora.column("corpus_id").to_pylist()
    names = corpora.column("source").cast(pa.string()).to_pylist()
    at = {number: i for i, number in enumerate(numbers)}
    codes = np.array([at[c] for c in np.unique(corpus).tolist()], np.int32)
    where = np.searchsorted(np.unique(corpus), corpus)
    indices: Any = codes[where] if len(codes) else np.empty(0, np.int32)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string()))


@stage(DOCUMENTS, version=1)
def describe(documents: Documents, batches: Iterable[pa.Table]) -> Documents:
    """Documents with what their own tokens say.

    Args:
        documents: in the order of `doc_key`.
        batches: tables with `doc_key` and any of `content`, `bytes`, from passes over the documents, in any order.
    """
    parts = list(batches)
    if not parts:
        return documents
    found = pa.concat_tables(parts)
    keys = documents.column("doc_key")
    at = pc.index_in(keys, value_set=found.column("doc_key").combine_chunks())
    for name in found.column_names:
        if name != "doc_key":
            index = documents.schema.get_field_index(name)
            documents = Documents(
                documents.set_column(index, documents.schema.field(index), found.column(name).take(at).cast(documents.schema.field(index).type))
            )
    return documents


def document_batches(documents: Documents, store: Store, max_tokens: int = BATCH_TOKENS) -> Iterable[DocumentBatch]:
    """The documents themselves, in order, a bounded number of tokens at a time (one document at least)."""
    keys, lengths = documents.column("doc_key").to_numpy(), documents.column("tokens").to_numpy()
    ends = np.cumsum(lengths)
    first = 0
    while first < len(keys):
        done = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, done + max_tokens, side="right")))
        yield store.documents(keys[first:stop])
        first = stop


def text_bytes(batch: DocumentBatch) -> Any:
    """Length of each document as text, null without a vocabulary: int64 [n]."""
    if batch.vocabulary is None:
        return pa.nulls(len(batch), pa.int64())
    if batch.is_text:
        return pa.array(batch.lengths)
    from forensics.documents.counts import sums_by_id

    return pa.array(sums_by_id(np.asarray(batch.tokens), np.asarray(batch.offsets, np.int64), batch.vocabulary.plain_lengths))
