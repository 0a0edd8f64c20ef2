"""`consumed`, `documents` and `losses` as aligned arrays: the axis that every test of attribution stands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.errors import RunError
from forensics.losses.difficulty import BOOL, F64, I64
from forensics.schemas import Consumed, Documents, Launches, Losses


@dataclass(frozen=True)
class Timeline:
    """m segments of n documents in T steps.

    Attributes:
        steps: int64 [T], ascending.
        at: int64 [m], index into `steps`.
        launch, sequence, seq_start, sample, rank, epoch: int64 [m]; sample, rank and epoch are -1 where unknown.
        doc: int64 [m], index into the documents.
        start, stop, labels: int64 [m], part of the document and how many of its tokens are predicted.
        keys: int64 [n], doc_key, ascending.
        source: int64 [n], index into `names`.
        names: labels of the sources.
        tokens: float64 [T], labels per step.
    """

    steps: I64
    at: I64
    launch: I64
    sequence: I64
    seq_start: I64
    sample: I64
    rank: I64
    epoch: I64
    doc: I64
    start: I64
    stop: I64
    labels: I64
    keys: I64
    source: I64
    names: tuple[str, ...]
    tokens: F64

    def per_step(self, weight: F64 | I64 | BOOL) -> F64:
        """Sum over each step's segments [T]."""
        return np.asarray(np.bincount(self.at, weights=np.asarray(weight, dtype=np.float64), minlength=len(self.steps)))

    def share(self, docs: BOOL) -> F64:
        """Token share of the marked documents [n] per step [T]."""
        return self.per_step(self.labels * docs[self.doc]) / np.maximum(self.tokens, 1)

    def of_docs(self, weight: F64 | I64, use: BOOL | None = None) -> F64:
        """Sum over each document's segments [n]."""
        chosen = slice(None) if use is None else use
        return np.asarray(np.bincount(self.doc[chosen], weights=np.asarray(weight, dtype=np.float64)[chosen], minlength=len(self.keys)))

    def index(self, step: int) -> int:
        """Position of the first step not before `step`."""
        return int(np.searchsorted(self.steps, step))


def column(table: pa.Table, name: str, fill: int = -1) -> I64:
    """An integer column as int64, nulls as `fill`."""
    found: Any = table.column(name).cast(pa.int64())
    return np.asarray(found.fill_null(fill).to_numpy(), dtype=np.int64)


def timeline(consumed: Consumed, documents: Documents, launches: Launches) -> Timeline:
    """Aligned arrays of what was consumed.

    A step that two launches ran counts as the later one's. Ranks that the table lacks follow from the launch's
    data-parallel size: rank r holds the r-th equal part of the rows, as in trainers that split a global batch.

    Raises:
        RunError: nothing was consumed, or a document lacks its row.
    """
    if consumed.num_rows == 0:
        raise RunError("no step of the window, the look-back or the baseline consumed anything")
    launch, step = column(consumed, "launch"), column(consumed, "step")
    steps, at = np.unique(step, return_inverse=True)
    newest = np.full(len(steps), -1, dtype=np.int64)
    np.maximum.at(newest, at, launch)
    keep = launch == newest[at]
    place = np.lexsort((column(consumed, "seq_start"), column(consumed, "sequence"), step))
    place = place[keep[place]]
    consumed = Consumed(consumed.take(pa.array(place)))
    launch, step, at = launch[place], step[place], at[place]
    sequence, seq_start, sample, rank, epoch = (column(consumed, n) for n in ("sequence", "seq_start", "sample", "rank", "epoch"))
    start, stop, key = column(consumed, "doc_start"), column(consumed, "doc_stop"), column(consumed, "doc_key")
    keys = column(documents, "doc_key")
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    doc = np.minimum(np.searchsorted(keys, key), max(len(keys) - 1, 0))
    if not len(keys) or (keys[doc] != key).any():
        raise RunError("a consumed document is missing from the table of documents")
    labels = stop - start - (seq_start == 0)
    encoded = documents.column("source").combine_chunks().cast(pa.string()).dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    found = [str(x) for x in encoded.dictionary.to_pylist()]
    names = sorted(found)
    code = np.array([names.index(x) for x in found], dtype=np.int64)[np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)][order]
    if (rank < 0).all():
        rank = _ranks(launches, launch, at, sequence, rank)
    tokens = np.bincount(at, weights=labels, minlength=len(steps)).astype(np.float64)
    return Timeline(steps, at, launch, sequence, seq_start, sample, rank, epoch, doc, start, stop, labels, keys, code, tuple(names), tokens)


def _ranks(launches: Launches, launch: I64, at: I64, sequence: I64, rank: I64) -> I64:
    size = dict(zip(column(launches, "launch").tolist(), column(launches, "data_parallel_size").tolist(), strict=True))
    rows = np.zeros(int(at.max()) + 1, dtype=np.int64)
    np.maximum.at(rows, at, sequence + 1)
    out = rank.copy()
    for number, ranks in size.items():
        if ranks > 1:
            here = (launch == number) & (rows[at] % ranks == 0)
            out[here] = sequence[here] // (rows[at[here]] // ranks)
    return out


@dataclass(frozen=True)
class SegmentLoss:
    """Mean loss of each segment under one origin [nats/token], NaN where none was recorded or it is not finite."""

    origin: str
    mean: F64
    predicted: F64
    not_finite: int


def segment_losses(line: Timeline, losses: Losses | None) -> dict[str, SegmentLoss]:
    """Losses that name a document, by origin, in the order of the timeline's segments."""
    if losses is None or losses.num_rows == 0:
        return {}
    origin = losses.column("origin").cast(pa.string()).to_numpy(zero_copy_only=False)
    out: dict[str, SegmentLoss] = {}
    rows, width = int(line.sequence.max()) + 2, int(line.seq_start.max()) + 2
    mine = (line.at * rows + line.sequence) * width + line.seq_start
    for name in sorted(set(origin.tolist())):
        part = losses.filter(pa.array(origin == name))
        part = part.filter(pc.and_(pc.is_valid(part.column("doc_key")), pc.is_valid(part.column("seq_start"))))
        step, sequence, seq_start = (column(part, n) for n in ("step", "sequence", "seq_start"))
        at = np.minimum(np.searchsorted(line.steps, step), len(line.steps) - 1)
        use = (line.steps[at] == step) & (sequence + 1 < rows) & (seq_start + 1 < width)
        if not use.any():
            continue
        theirs = ((at * rows + sequence) * width + seq_start)[use]
        order = np.argsort(theirs, kind="stable")
        row = np.minimum(np.searchsorted(theirs[order], mine), len(order) - 1)
        hit = theirs[order][row] == mine
        where = np.flatnonzero(use)[order][row]
        total, count = part.column("loss_sum").to_numpy()[where], column(part, "predicted")[where]
        hit &= (count > 0) & (column(part, "launch")[where] == line.launch)
        mean = np.where(hit, total / np.maximum(count, 1), np.nan)
        bad = int((hit & ~np.isfinite(mean)).sum())
        out[str(name)] = SegmentLoss(str(name), np.where(np.isfinite(mean), mean, np.nan), np.where(hit, count, 0).astype(np.float64), bad)
    return out
