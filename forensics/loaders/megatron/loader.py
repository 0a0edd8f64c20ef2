"""The loader `megatron`: from the steps of a launch to the documents they read, and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.errors import ForensicsError, NotReplayable, RunError
from forensics.loaders.base import Span, StepFacts, blocks_of, pieces, ran_twice
from forensics.loaders.megatron.corpus import Parts
from forensics.loaders.megatron.dataset import DataSet
from forensics.loaders.megatron.history import Histories, History
from forensics.loaders.megatron.options import SPLITS
from forensics.loaders.megatron.plan import Plan
from forensics.loaders.megatron.sampler import Cyclic, Rows, Sampler, Single
from forensics.run import RunSpec
from forensics.schemas import BLENDS, CONSUMED, DOC_BITS, DOC_MASK, LAUNCHES, Blends, Consumed, Corpora, Identity, Launches
from forensics.steps import StepRange
from forensics.stores.base import RunStore
from forensics.stores.gather import expand_runs

VERSION = 1


@dataclass(frozen=True)
class Width:
    """How a row of a launch is cut: tokens read, and tokens the model gets."""

    read: int
    length: int


class MegatronLoader:
    """megatron-core 0.5 to 0.19, through Megatron-LM, Megatron Bridge or NeMo with the `single` or `cyclic` loader."""

    name = "megatron"

    def __init__(self) -> None:
        self._histories = Histories()

    def history(self, run: RunSpec) -> History:
        """The run's launches, worked out."""
        return self._histories.of(run)

    def spans(self, run: RunSpec) -> tuple[Span, ...]:
        """Steps of every launch."""
        return self.history(run).spans

    def notes(self, run: RunSpec) -> list[str]:
        """What was assumed, and which cached indices were not used."""
        return self.history(run).notes()

    def identity(self, run: RunSpec) -> Identity:
        """Checks of the description against the run's own log, checkpoints, caches and data files.

        Raises:
            RunError: they contradict it.
        """
        from forensics.loaders.megatron.identity import check_identity, refuse_contradictions

        table = check_identity(run, self.history(run))
        refuse_contradictions(table)
        return table

    def ran_twice(self, run: RunSpec, steps: StepRange) -> list[tuple[StepRange, tuple[int, ...]]]:
        """Steps that several launches ran, and which."""
        return ran_twice(self.spans(run), steps)

    def launches(self, run: RunSpec) -> Launches:
        """The run's history."""
        history = self.history(run)
        rows: list[dict[str, Any]] = []
        for plan, span in zip(history.plans, history.spans):
            o = plan.options
            rows.append({
                "launch": plan.launch.number, "first_step": span.start, "stop_step": span.stop, "consumed": plan.consumed_start,
                "trainer": self.name, "version": plan.launch.version,
                "origin": ", ".join(sorted({_origin(x) for x in plan.launch.origins.values()})) or "defaults",
                "row_width": o.seq_length + o.extra, "data_parallel_size": o.data_parallel_size,
                "micro_batch_size": o.micro_batch_size, "target_samples": plan.wanted("train"), "order_hash": plan.order_hash,
            })  # fmt: skip
        return Launches(LAUNCHES.of({name: [row[name] for row in rows] for name in rows[0]}))

    def corpora(self, run: RunSpec) -> Corpora:
        """The run's data files, numbered by first use."""
        return self.store(run).corpora

    def blends(self, run: RunSpec) -> Blends:
        """What each launch mixed."""
        history = self.history(run)
        rows: list[dict[str, Any]] = []
        for plan in history.plans:
            plan.check()
            for name in SPLITS:
                rows += _blend_rows(plan, name, history)
        columns = [c.name for c in BLENDS.columns]
        return Blends(BLENDS.of({name: [row[name] for row in rows] for name in columns}))

    def store(self, run: RunSpec) -> RunStore:
        """The run's data files, opened."""
        return self.history(run).store

    def width(self, run: RunSpec, launch: int) -> Width:
        """How rows of a launch are cut."""
        o = self.history(run).plans[launch].options
        return Width(o.seq_length + o.extra, o.seq_length)

    def consumed(self, run: RunSpec, steps: StepRange, launch: int | None = None) -> Iterator[Consumed]:
        """What the steps read, one table per block of steps."""
        history = self.history(run)
        chosen = pieces(history.spans, steps, launch)
        for number in dict.fromkeys(n for n, _ in chosen):
            history.plans[number].check()
        return self._consumed(history, chosen)

    def _consumed(self, history: History, chosen: list[tuple[int, StepRange]]) -> Iterator[Consumed]:
        for number, part in chosen:
            plan = history.plans[number]
            most = int(np.diff(_positions(plan, part)).max())
            for block in blocks_of(part, most):
                rows = plan.sampler.rows(block.start, _positions(plan, block) + plan.shift)
                yield table_of(rows, plan.data("train"), number, history)

    def trained(self, run: RunSpec, steps: StepRange, launch: int | None = None) -> StepFacts:
        """Whether each step was trained on, and the counter after it."""
        history = self.history(run)
        out = []
        for number, part in pieces(history.spans, steps, launch):
            plan = history.plans[number]
            positions = _positions(plan, part)
            step = np.arange(part.start, part.stop, dtype=np.int64)
            dropped = np.isin(step, np.fromiter(plan.skipped, np.int64, len(plan.skipped)))
            out.append(StepFacts(np.full(len(step), number, np.int16), step, np.diff(positions), positions[1:], ~dropped))
        return StepFacts.concat(out)

    def validation(self, run: RunSpec, batches: StepRange, launch: int = 0, split: str = "valid") -> Iterator[Consumed]:
        """Rows of validation (or test) batches, numbered from 1 over the whole run; `step` is the batch.

        A launch mixes its own validation set; where in it an evaluation begins is the run's count of validation samples.

        Raises:
            RunError: no such split, or a batch beyond its end.
        """
        history = self.history(run)
        if not 0 <= launch < len(history.plans):
            raise RunError(f"the run has {len(history.plans)} launches, not a launch {launch}")
        plan = history.plans[launch]
        data = plan.data(split)
        sampler, batch, last = _evaluation(plan, data, split)
        if batches.start < 1 or batches.last > last:
            raise RunError(f"{split} batches {batches.start} to {batches.last} are asked for, the launch has 1 to {last}")
        for block in blocks_of(batches, batch):
            positions = np.minimum(np.arange(block.start - 1, block.stop, dtype=np.int64) * batch, len(data) if last * batch > len(data) else last * batch)
            yield table_of(sampler.rows(block.start, positions), data, launch, history)

    def validation_batches(self, run: RunSpec, launch: int = 0, split: str = "valid") -> int:
        """How many batches of a split the launch's data set holds."""
        plan = self.history(run).plans[launch]
        return _evaluation(plan, plan.data(split), split)[2]

    def locate(self, run: RunSpec, doc_keys: NDArray[np.int64]) -> Iterator[Consumed]:
        """Every segment of these documents in the steps of all launches, those the last one would still run included."""
        history = self.history(run)
        keys = np.unique(np.asarray(doc_keys, dtype=np.int64))
        sequences = _sequences(history, keys)
        for plan, span in zip(history.plans, history.spans):
            stop = span.limit if span.launch == len(history.spans) - 1 else span.stop
            if stop <= span.start:
                continue
            plan.check()
            samples = plan.data("train").find(sequences)
            for rows in _rows_holding(plan, samples, StepRange(span.start, stop)):
                table = table_of(rows, plan.data("train"), span.launch, history)
                table = table.filter(pa.array(np.isin(table.column("doc_key").to_numpy(), keys)))
                if table.num_rows:
                    yield Consumed(table)


def _origin(text: str) -> str:
    return "description" if text.startswith(("args", "launches")) else text.split(":")[0]


def _positions(plan: Plan, steps: StepRange) -> NDArray[np.int64]:
    first = plan.launch.after_step + 1
    return plan.positions[steps.start - first : steps.stop - first + 1]


def _blend_rows(plan: Plan, name: str, history: History) -> list[dict[str, Any]]:
    try:
        split = plan.split(name)
        data = plan.data(name) if split else None
    except ForensicsError:
        if name == "train":
            raise
        return []
    if split is None or data is None:
        return []
    weights = data.weights or (None,) * len(split.laid)
    return [
        {
            "launch": plan.launch.number, "split": name, "corpus_id": corpus.corpus_id, "position": position, "weight": weight,
            "wanted_samples": laid.epochs.wanted,
            "tokens_per_epoch": laid.epochs.tokens, "epochs": laid.epochs.epochs, "built_samples": laid.epochs.samples,
            "separate_last_epoch": laid.epochs.separate,
            "origin": "cached_index" if corpus.cached else "recomputed",
        }
        for position, (laid, corpus, weight) in enumerate(zip(split.laid, data.corpora, weights))
    ]  # fmt: skip


def _evaluation(plan: Plan, data: DataSet, split: str) -> tuple[Sampler, int, int]:
    """Sampler, samples per batch, and last batch of an evaluation split."""
    o = plan.options
    if o.start_eval:
        raise NotReplayable(
            "`start_eval_at_iter` changes the number of validation samples by a rule that was not verified", hint="training steps do not depend on it"
        )
    if o.full_validation and split == "valid":
        ranks = o.data_parallel_size
        if not ranks:
            raise RunError("full validation reads one sample per rank: `data_parallel_size` is needed")
        return Single(1, ranks), ranks, -(-len(data) // ranks)
    wanted = plan.wanted(split) or 0
    if o.cyclic:
        assert o.micro_batch_size and o.data_parallel_size
        return Cyclic(len(data), 0, b=o.micro_batch_size, dp=o.data_parallel_size, sharding=o.sharding), o.eval_batch, wanted // o.eval_batch
    return Single(o.micro_batch_size, o.data_parallel_size), o.eval_batch, min(wanted, len(data)) // o.eval_batch


def table_of(rows: Rows, data: DataSet, launch: int, history: History) -> Consumed:
    """The segments of some rows as a table `consumed`."""
    parts = data.parts(rows.sample)
    keys, starts = _documents(parts, history)
    row = parts.row
    table = CONSUMED.of({
        "launch": np.full(len(row), launch, np.int16), "step": rows.step[row], "sequence": rows.sequence[row],
        "seq_start": parts.place.astype(np.int32), "sample": rows.sample[row],
        "rank": _known(rows.rank[row]), "microbatch": _known(rows.microbatch[row]), "epoch": _known(parts.epoch), "doc_key": keys, "stored_seq": parts.sequence,
        "doc_start": starts + parts.start, "doc_stop": starts + parts.stop,
    })  # fmt: skip
    origin = "cached_index" if all(corpus.cached for corpus in data.corpora) else "recomputed"
    metadata = dict(table.schema.metadata or {})
    metadata.update({b"origin": origin.encode(), b"loader": f"megatron {VERSION}".encode()})
    return Consumed(table.replace_schema_metadata(metadata))


def _known(values: NDArray[np.int32]) -> Any:
    return pa.array(values, mask=values < 0)


def _documents(parts: Parts, history: History) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Document of each part, and where the part's stored sequence begins in it."""
    keys, starts = np.empty(len(parts), np.int64), np.empty(len(parts), np.int64)
    for corpus in np.unique(parts.corpus):
        rows = np.flatnonzero(parts.corpus == corpus)
        store = history.open(int(corpus))
        sequences = parts.sequence[rows]
        documents = store.documents_of(sequences)
        keys[rows] = documents + (int(corpus) << DOC_BITS)
        starts[rows] = store.starts_in_document(sequences, documents)
    return keys, starts


def _sequences(history: History, keys: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """Stored sequences of documents, by corpus."""
    out: dict[int, NDArray[np.int64]] = {}
    for corpus in np.unique(keys >> DOC_BITS).tolist():
        if not 0 <= corpus < len(history.paths):
            raise RunError(f"the run has no corpus {int(corpus)}: it has {len(history.paths)} data files")
        store = history.open(int(corpus))
        documents = keys[(keys >> DOC_BITS) == corpus] & DOC_MASK
        if int(documents.max()) >= store.n_documents:
            raise RunError(f"{store.path.name} has {store.n_documents} documents, number {int(documents.max())} is asked for")
        first = store.bounds[documents]
        out[int(corpus)] = expand_runs(first, store.bounds[documents + 1] - first)[0]
    return out


def _rows_holding(plan: Plan, samples: NDArray[np.int64], steps: StepRange) -> Iterator[Rows]:
    """Rows of the steps whose sample is among these (ascending)."""
    positions = _positions(plan, steps)
    if isinstance(plan.sampler, Single):
        counters = samples - plan.shift
        counters = counters[(counters >= positions[0]) & (counters < positions[-1])]
        for first in range(0, len(counters), 1 << 16):
            mine = counters[first : first + (1 << 16)]
            at = np.searchsorted(positions, mine, side="right") - 1
            sequence = mine - positions[at]
            o = plan.options
            known = bool(o.micro_batch_size and o.data_parallel_size) and plan.sampler.assigned
            rank = sequence // (o.micro_batch_size or 1) % (o.data_parallel_size or 1) if known else np.full(len(mine), -1)
            micro = sequence // plan.unit if known else np.full(len(mine), -1)
            yield Rows(at + steps.start, sequence.astype(np.int32), mine + plan.shift, rank.astype(np.int32), micro.astype(np.int32))
        return
    for block in blocks_of(steps, int(np.diff(positions).max())):
        rows = plan.sampler.rows(block.start, _positions(plan, block) + plan.shift)
        at = np.flatnonzero(np.isin(rows.sample, samples))
        yield Rows(*(getattr(rows, name)[at] for name in ("step", "sequence", "sample", "rank", "microbatch")))
