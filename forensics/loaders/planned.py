"""A loader made of one order per launch: what the trainers outside Megatron share.

A trainer's module opens a run into a `History`: its data files, and for every launch an `Order` that says which samples
each step took (`rows`) and which parts of which documents each sample is (`segments`). `PlannedLoader` turns that into
the tables of the `Loader` protocol: launches, consumed, trained, locate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.errors import RunError
from forensics.files import digest
from forensics.loaders.base import OPEN_END, Span, StepFacts, blocks_of, pieces
from forensics.run import Launch, RunSpec
from forensics.schemas import BLENDS, CONSUMED, CORPORA, DOC_BITS, DOC_MASK, LAUNCHES, Blends, Consumed, Corpora, Launches
from forensics.steps import StepRange
from forensics.stores.base import RunStore, TokenFile
from forensics.stores.gather import expand_runs, offsets_of

Ids = NDArray[np.int64]
VERIFIED = "recomputed"
UNVERIFIED = "recomputed, unverified"
CACHED = "cached_index"
RECORDED = "recorded"


@dataclass(frozen=True)
class Rows:
    """Sequences of some steps, in order of step, microbatch, rank and position; int64 arrays of one length.

    Attributes:
        step: as logged.
        sample: the trainer's own number.
        rank: data-parallel rank.
        microbatch: within the step.
        epoch: from 0; -1 where epochs are shuffled together.
    """

    step: Ids
    sample: Ids
    rank: Ids
    microbatch: Ids
    epoch: Ids

    def __len__(self) -> int:
        return len(self.step)

    @property
    def sequence(self) -> Ids:
        """Number of each row within its step."""
        if not len(self.step):
            return np.zeros(0, np.int64)
        first = np.flatnonzero(np.r_[True, self.step[1:] != self.step[:-1]])
        return np.arange(len(self.step)) - np.repeat(first, np.diff(np.r_[first, len(self.step)]))

    def take(self, keep: NDArray[Any]) -> Rows:
        """Some of the rows."""
        return Rows(self.step[keep], self.sample[keep], self.rank[keep], self.microbatch[keep], self.epoch[keep])

    @classmethod
    def concat(cls, parts: list[Rows]) -> Rows:
        """Several, one after the other."""
        if not parts:
            none = np.zeros(0, np.int64)
            return cls(none, none, none, none, none)
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("step", "sample", "rank", "microbatch", "epoch")))


@dataclass(frozen=True)
class Segments:
    """Parts of documents that fill rows, ordered by row and place; int64 arrays of one length.

    Attributes:
        row: index into the rows.
        place: token of the row at which the part begins.
        corpus: number of the data file.
        document: in the file, from 0.
        start: first token of the document.
        stop: one past its last.
        stored: stored sequence, where a document may have several; None where the format knows no difference.
    """

    row: Ids
    place: Ids
    corpus: Ids
    document: Ids
    start: Ids
    stop: Ids
    stored: Ids | None = None

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True)
class Inserted:
    """Tokens of rows that come from no document: padding and special tokens the trainer added."""

    row: Ids
    place: Ids
    token: Ids


class Order(Protocol):
    """What one launch reads."""

    @property
    def launch(self) -> Launch:
        """The launch."""
        ...

    @property
    def origin(self) -> str:
        """How the order is known: recomputed (`unverified` where nobody compared it), cached_index or recorded."""
        ...

    @property
    def note(self) -> str:
        """What a reader of the order must know, or nothing."""
        ...

    @property
    def limit(self) -> int | None:
        """One past the last step that the options allow; None where nothing ends the run."""
        ...

    @property
    def rows_per_step(self) -> int:
        """Sequences of a full step."""
        ...

    @property
    def row_width(self) -> int | None:
        """Tokens of a full sequence."""
        ...

    @property
    def data_parallel_size(self) -> int | None:
        """Data-parallel ranks."""
        ...

    @property
    def micro_batch_size(self) -> int | None:
        """Sequences per rank and microbatch."""
        ...

    @property
    def target_samples(self) -> int | None:
        """Samples the order was built for."""
        ...

    @property
    def identity(self) -> tuple[object, ...]:
        """Everything that decides the order, as plain values."""
        ...

    def rows(self, steps: StepRange) -> Rows:
        """The sequences of these steps."""
        ...

    def segments(self, rows: Rows) -> Segments:
        """What these rows consist of."""
        ...

    def inserted(self, rows: Rows, segments: Segments) -> Inserted | None:
        """Tokens that the trainer added to these rows; None where it adds none."""
        ...

    def candidates(self, corpus: int, documents: Ids) -> Ids | None:
        """Samples that can hold any of these documents, sorted; None where all may."""
        ...

    def counter(self, steps: StepRange) -> Ids:
        """The trainer's own counter after each step; -1 where it keeps none."""
        ...


@dataclass(frozen=True)
class History:
    """A run, opened.

    Attributes:
        files: corpus number -> data file.
        names: corpus number -> path as configured.
        orders: one per launch.
        blends: rows of the `blends` table.
    """

    files: Mapping[int, TokenFile]
    names: Mapping[int, str]
    orders: tuple[Order, ...]
    blends: list[dict[str, Any]] = field(default_factory=list)
    sources: Mapping[int, str] = field(default_factory=dict)


def cut(bounds: Ids, starts: Ids, stops: Ids) -> tuple[Ids, Ids, Ids, Ids]:
    """Ranges of a file's tokens as parts of documents.

    Args:
        bounds: first token of each document, and the end of the last one [documents + 1].
        starts, stops: token ranges [n], in any order.

    Returns:
        range number, document, first and stop token inside the document, by range; documents without tokens left out.
    """
    first = np.searchsorted(bounds, starts, side="right") - 1
    last = np.searchsorted(bounds, stops, side="left")
    document, owner = expand_runs(first.astype(np.int64), np.maximum(last - first, 0).astype(np.int64))
    begin = np.maximum(starts[owner], bounds[document])
    end = np.minimum(stops[owner], bounds[document + 1])
    keep = end > begin
    return owner[keep], document[keep], (begin - bounds[document])[keep], (end - bounds[document])[keep]


def places(rows: Ids, lengths: Ids) -> Ids:
    """Where parts begin in their rows when each row's parts lie end to end; `rows` ascends."""
    before = offsets_of(lengths)[:-1]
    if not len(rows):
        return before
    first = np.r_[True, rows[1:] != rows[:-1]]
    begin = np.asarray(before[np.flatnonzero(first)], np.int64)
    return np.asarray(before - begin[np.cumsum(first) - 1], np.int64)


def padded(rows: Rows, segments: Segments, width: int, token: int) -> Inserted:
    """The padding that fills every row up to `width`."""
    used = np.zeros(len(rows), np.int64)
    np.add.at(used, segments.row, segments.stop - segments.start)
    place, row = expand_runs(used, np.maximum(width - used, 0))
    return Inserted(row, place, np.full(len(row), token, np.int64))


def batch_rows(step: Ids, ids: Ids, epoch: Ids | int, *, microbatch: Ids | int = 0) -> Rows:
    """Rows from ids [n, rank, place], one entry of `step`, `epoch` and `microbatch` per n; ids below 0 are no rows."""
    n, ranks, width = ids.shape

    def spread(values: Ids | int) -> Ids:
        return np.broadcast_to(np.asarray(values, np.int64).reshape(-1, 1, 1), (n, ranks, width)).reshape(-1)

    flat = ids.reshape(-1)
    rank = np.broadcast_to(np.arange(ranks).reshape(1, -1, 1), (n, ranks, width)).reshape(-1)
    rows = Rows(spread(step), flat, rank, spread(microbatch), spread(epoch))
    return rows if (flat >= 0).all() else rows.take(flat >= 0)


@dataclass
class PlannedLoader:
    """The `Loader` of a trainer whose runs open into a `History`."""

    name: str
    open: Callable[[RunSpec], History]
    _last: tuple[str, History] | None = None

    def opened(self, run: RunSpec) -> History:
        """The run, opened; the last one is kept."""
        key = run.fingerprint
        if self._last is None or self._last[0] != key:
            self._last = (key, self.open(run))
        return self._last[1]

    def spans(self, run: RunSpec) -> list[Span]:
        """Every launch's steps."""
        orders = self.opened(run).orders
        out = []
        for i, order in enumerate(orders):
            launch = order.launch
            first = launch.after_step + 1
            end = OPEN_END if order.limit is None else min(max(order.limit, first), OPEN_END)
            if launch.last_step is not None:
                if launch.last_step >= end:
                    raise RunError(
                        f"launch {i} is said to have run step {launch.last_step}, but it ends with step {end - 1}",
                        hint="check `last_step` and the options that give the run its length",
                    )
                stop = max(launch.last_step + 1, first)
                out.append(Span(i, first, stop, end if i == len(orders) - 1 else stop))
            else:
                stop = max(orders[i + 1].launch.after_step + 1, first) if i + 1 < len(orders) else end
                out.append(Span(i, first, min(stop, end), end))
        return out

    def launches(self, run: RunSpec) -> Launches:
        """The run's history."""
        history = self.opened(run)
        table = []
        for span, order in zip(self.spans(run), history.orders):
            notes = [order.origin, *([order.note] if order.note else [])]
            table.append({
                "launch": span.launch, "first_step": span.start, "stop_step": span.stop, "consumed": order.launch.consumed, "trainer": self.name,
                "version": order.launch.version, "origin": "; ".join(["description", *notes]), "row_width": order.row_width,
                "data_parallel_size": order.data_parallel_size, "micro_batch_size": order.micro_batch_size, "target_samples": order.target_samples,
                "order_hash": digest(self.name, order.identity, sorted((i, f.fingerprint) for i, f in history.files.items())),
            })  # fmt: skip
        return Launches(LAUNCHES.of(pa.Table.from_pylist(table)))

    def corpora(self, run: RunSpec) -> Corpora:
        """The run's data files."""
        history = self.opened(run)
        table = self.store(run).corpora
        if history.sources:
            labels = [history.sources.get(row["corpus_id"], row["source"]) for row in table.select(["corpus_id", "source"]).to_pylist()]
            table = table.set_column(table.schema.get_field_index("source"), "source", pa.array(labels, pa.string()))
        return Corpora(CORPORA.of(table))

    def blends(self, run: RunSpec) -> Blends:
        """What each launch mixed."""
        rows = self.opened(run).blends
        return Blends(BLENDS.of(pa.Table.from_pylist(rows)) if rows else BLENDS.empty())

    def store(self, run: RunSpec) -> RunStore:
        """The run's data files, opened."""
        history = self.opened(run)

        def vocabulary() -> Any:
            from forensics.stores.vocab import open_vocabulary

            return open_vocabulary(run.tokenizer) if run.tokenizer else None

        return RunStore(history.files, names=history.names, vocabulary=vocabulary)

    def consumed(self, run: RunSpec, steps: StepRange, launch: int | None = None) -> Iterator[Consumed]:
        """What the steps read, a table per block of steps."""
        orders = self.opened(run).orders
        for number, part in pieces(self.spans(run), steps, launch):
            for block in blocks_of(part, orders[number].rows_per_step):
                order = orders[number]
                rows = order.rows(block)
                yield self._table(number, order, rows, rows.sequence, order.segments(rows))

    def _table(self, number: int, order: Order, rows: Rows, sequence: Ids, found: Segments) -> Consumed:
        at = found.row
        epoch = rows.epoch[at]
        table = CONSUMED.of({
            "launch": np.full(len(at), number, np.int16), "step": rows.step[at],
            "sequence": sequence[at].astype(np.int32), "seq_start": found.place.astype(np.int32),
            "sample": rows.sample[at], "rank": rows.rank[at].astype(np.int32), "microbatch": rows.microbatch[at].astype(np.int32),
            "epoch": pa.array(epoch.astype(np.int32), mask=epoch < 0), "doc_key": found.corpus << DOC_BITS | found.document,
            "stored_seq": pa.nulls(len(at), pa.int64()) if found.stored is None else found.stored, "doc_start": found.start, "doc_stop": found.stop,
        })  # fmt: skip
        facts = {"forensics.origin": order.origin, "forensics.loader": self.name, "forensics.loader_version": order.launch.version or ""}
        return Consumed(table.replace_schema_metadata({**(table.schema.metadata or {}), **{k.encode(): v.encode() for k, v in facts.items()}}))

    def trained(self, run: RunSpec, steps: StepRange, launch: int | None = None) -> StepFacts:
        """Whether each step was trained on, and the trainer's counter after it."""
        orders = self.opened(run).orders
        parts = []
        for number, part in pieces(self.spans(run), steps, launch):
            order = orders[number]
            for block in blocks_of(part, order.rows_per_step):
                step = np.arange(block.start, block.stop)
                counts = np.bincount(order.rows(block).step - block.start, minlength=len(block)).astype(np.int64)
                dropped = np.zeros(len(block), np.bool_)
                for skip in order.launch.skipped:
                    dropped |= (step >= skip.start) & (step < skip.stop)
                parts.append(StepFacts(np.full(len(block), number, np.int16), step, counts, order.counter(block), ~dropped))
        return StepFacts.concat(parts)

    def locate(self, run: RunSpec, doc_keys: Ids) -> Iterator[Consumed]:
        """Every segment of these documents in the steps of all launches."""
        orders = self.opened(run).orders
        spans = self.spans(run)
        wanted = np.unique(np.asarray(doc_keys, np.int64))
        for span in spans:
            order = orders[span.launch]
            stop = span.limit if span is spans[-1] and span.limit < OPEN_END else span.stop
            if stop == OPEN_END:
                raise RunError(
                    "the run has no known end, so the steps that will hold a document cannot be listed",
                    hint="give `last_step` of the last launch, or the option that ends the run",
                )
            held = self._candidates(order, wanted)
            if span.start >= stop or (held is not None and not len(held)):
                continue
            for block in blocks_of(StepRange(span.start, stop), order.rows_per_step):
                yield from self._found(span.launch, order, block, wanted, held)

    def _candidates(self, order: Order, wanted: Ids) -> Ids | None:
        out = []
        for corpus in np.unique(wanted >> DOC_BITS).tolist():
            found = order.candidates(corpus, wanted[wanted >> DOC_BITS == corpus] & DOC_MASK)
            if found is None:
                return None
            out.append(found)
        return np.unique(np.concatenate(out)) if out else np.zeros(0, np.int64)

    def _found(self, number: int, order: Order, block: StepRange, wanted: Ids, held: Ids | None) -> Iterator[Consumed]:
        rows = order.rows(block)
        sequence = rows.sequence
        if held is not None:
            keep = np.isin(rows.sample, held)
            rows, sequence = rows.take(keep), sequence[keep]
        segments = order.segments(rows)
        keep = np.isin(segments.corpus << DOC_BITS | segments.document, wanted)
        if keep.any():
            stored = None if segments.stored is None else segments.stored[keep]
            picked = replace(
                segments,
                row=segments.row[keep],
                place=segments.place[keep],
                corpus=segments.corpus[keep],
                document=segments.document[keep],
                start=segments.start[keep],
                stop=segments.stop[keep],
                stored=stored,
            )
            yield self._table(number, order, rows, sequence, picked)

    def sequences(self, run: RunSpec, steps: StepRange, launch: int | None = None) -> Iterator[tuple[Rows, NDArray[np.int64]]]:
        """Rows and their tokens as the trainer saw them [rows, width], filled with -1 where a row is shorter."""
        history = self.opened(run)
        store = self.store(run)
        for number, part in pieces(self.spans(run), steps, launch):
            order = history.orders[number]
            for block in blocks_of(part, order.rows_per_step):
                rows = order.rows(block)
                found = order.segments(rows)
                table = self._table(number, order, rows, rows.sequence, found)
                tokens, offsets = store.gather(table)
                extra = order.inserted(rows, found)
                width = max(order.row_width or 0, int((found.place + found.stop - found.start).max(initial=0)))
                out = np.full((len(rows), width), -1, np.int64)
                column, owner = expand_runs(found.place, np.diff(offsets))
                out[found.row[owner], column] = tokens
                if extra is not None:
                    out[extra.row, extra.place] = extra.token
                yield rows, out
