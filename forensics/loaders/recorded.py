"""The loader `recorded`: no reconstruction, the run itself wrote down what it consumed.

The way out for every trainer whose order cannot be recomputed. `args.consumed` names a table (Parquet or JSON lines) with
the columns `step`, `sequence`, `seq_start`, `corpus`, `document`, `doc_start`, `doc_stop` and optionally `sample`, `rank`,
`microbatch`, `launch`, `epoch`; `forensics.live.recorder` writes it. Tables may be large: columns are read for the steps
asked for, by row group, and rows never become Python objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forensics.errors import ConfigError, ForensicsError, RunError, StoreError, nearest
from forensics.files import digest, open_binary, stamp
from forensics.loaders.base import BLOCK_ROWS, LOADERS, Span, StepFacts, pieces, ran_twice
from forensics.loaders.megatron.names import BYSTANDERS, KNOWN
from forensics.loaders.megatron.weights import parse_blend
from forensics.records import RecordReader, read_records, record_shards
from forensics.run import READERS, RunSpec
from forensics.schemas import BLENDS, CONSUMED, CORPORA, DOC_BITS, DOC_MASK, LAUNCHES, Blends, Consumed, Corpora, Launches
from forensics.steps import StepRange, ranges_of

if TYPE_CHECKING:
    from forensics.stores.base import RunStore, TokenFile

NEEDED = ("step", "sequence", "seq_start", "document", "doc_start", "doc_stop")
OPTIONAL = ("sample", "rank", "microbatch", "launch", "epoch", "corpus")
SEGMENTS_PER_ROW = 8  # a guess that only sizes the blocks read at a time


class Record:
    """The recorded table, opened.

    Args:
        path: the recorder's folder, a Parquet file, a folder of Parquet files, or JSON lines, compressed or not.

    Raises:
        StoreError: it does not read, or lacks a column.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow.dataset as ds

        self.path = path
        try:
            if record_shards(path, "consumed"):
                self._data: Any = ds.dataset(read_records(path, "consumed"))
            else:
                self._data = ds.dataset(path, format="parquet") if path.is_dir() or _is_parquet(path) else ds.dataset(_read_lines(path))
        except (pa.ArrowInvalid, OSError) as error:
            raise StoreError(f"{path} is no readable record of consumption ({' '.join(str(error).split())[:200]})", hint="Parquet or JSON lines") from error
        self.columns = [name for name in (*NEEDED, *OPTIONAL) if name in self._data.schema.names]
        for name in NEEDED:
            if name not in self.columns:
                raise StoreError(
                    f"{path} lacks the column `{name}`{nearest(name, self._data.schema.names)}",
                    hint=f"needed: {', '.join(NEEDED)}, and `corpus` where there are several",
                )
            if not pa.types.is_integer(self._data.schema.field(name).type):
                raise StoreError(f"{path}: column `{name}` holds {self._data.schema.field(name).type}, whole numbers are expected")
        self.has_launch = "launch" in self.columns

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Every recorded step, ascending, each once."""
        found = [np.unique(b.column(0).to_numpy(zero_copy_only=False)) for b in self._data.to_batches(columns=["step"]) if b.num_rows]
        return np.unique(np.concatenate(found)).astype(np.int64) if found else np.empty(0, np.int64)

    @cached_property
    def reach(self) -> dict[int, tuple[int, int]]:
        """First and stop step of each launch, where the record tells launches apart."""
        out: dict[int, tuple[int, int]] = {}
        for batch in self._data.to_batches(columns=["launch", "step"]) if self.has_launch else ():
            launch, step = (batch.column(i).to_numpy(zero_copy_only=False).astype(np.int64) for i in range(2))
            for number in np.unique(launch).tolist():
                mine = step[launch == number]
                first, stop = out.get(number, (int(mine.min()), 0))
                out[number] = (min(first, int(mine.min())), max(stop, int(mine.max()) + 1))
        return out

    @cached_property
    def width(self) -> int | None:
        """Longest row in the first stretch of the table."""
        head = self._data.head(BLOCK_ROWS, columns=["seq_start", "doc_start", "doc_stop"])
        if not head.num_rows:
            return None
        start, first, last = (head.column(i).to_numpy().astype(np.int64) for i in range(3))
        return int((start + last - first).max())

    def read(self, steps: StepRange, launch: int | None) -> pa.Table:
        """Rows of some steps, of one launch where the record tells launches apart."""
        chosen = (pc.field("step") >= steps.start) & (pc.field("step") < steps.stop)
        if self.has_launch and launch is not None:
            chosen &= pc.field("launch") == launch
        found: pa.Table = self._data.to_table(columns=self.columns, filter=chosen)
        return found

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The whole table, piece by piece."""
        yield from self._data.to_batches(columns=self.columns)


def _is_parquet(path: Path) -> bool:
    with open_binary(path) as file:
        return file.read(4) == b"PAR1"


def _read_lines(path: Path) -> pa.Table:
    import pyarrow.json as pj

    with open_binary(path) as file:
        return pj.read_json(file)


@dataclass
class _Opened:
    """A run's record and its data files."""

    run: RunSpec
    record: Record
    prefixes: tuple[str, ...]

    @cached_property
    def files(self) -> dict[int, TokenFile]:
        """The data files that are here; a record is worth reading without them."""
        from forensics.stores.base import open_file
        from forensics.stores.megatron import sniff

        paths = {n: self.run.path(prefix) for n, prefix in enumerate(self.prefixes)}
        return {n: open_file(path) for n, path in paths.items() if path.exists() or sniff(path)}

    @cached_property
    def store(self) -> RunStore:
        """All data files behind one numbering."""
        from forensics.stores.base import RunStore
        from forensics.stores.vocab import open_vocabulary

        tokenizer = self.run.tokenizer
        if missing := [prefix for n, prefix in enumerate(self.prefixes) if n not in self.files]:
            raise StoreError(f"the data file {self.run.path(missing[0])} does not exist", hint="`args.data_path` and `moved` say where the data lie")
        return RunStore(self.files, names=dict(enumerate(self.prefixes)), vocabulary=lambda: open_vocabulary(tokenizer) if tokenizer else None)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Steps of every launch, as far as recorded."""
        if self.record.has_launch:
            return self._spans_as_recorded()
        steps = self.record.steps
        end = int(steps[-1]) + 1 if len(steps) else 1
        out = []
        launches = self.run.launches
        for i, launch in enumerate(launches):
            stop = end if launch.last_step is None else min(end, launch.last_step + 1)
            if launch.last_step is None and i + 1 < len(launches) and launches[i + 1].after_step >= launch.after_step:
                stop = min(stop, launches[i + 1].after_step + 1)
            start = launch.after_step + 1 if i or not len(steps) else min(launch.after_step + 1, int(steps[0]))
            out.append(Span(i, start, max(stop, start), max(stop, start)))
        return tuple(out)

    def _spans_as_recorded(self) -> tuple[Span, ...]:
        reach = self.record.reach
        if reach and not 0 <= min(reach) <= max(reach) < len(self.run.launches):
            raise RunError(
                f"{self.record.path} holds rows of launches {min(reach)} to {max(reach)}, the description lists {len(self.run.launches)}",
                hint="list every launch under `launches`, each with `after_step`; they are numbered from 0",
            )
        none = [(x.after_step + 1, x.after_step + 1) for x in self.run.launches]
        return tuple(Span(i, *reach.get(i, none[i]), reach.get(i, none[i])[1]) for i in range(len(self.run.launches)))

    def corpus_numbers(self, values: Any) -> NDArray[np.int64]:
        """Numbers of the corpora that the record names, by number, path, tail or last part of the path."""
        if pa.types.is_integer(values.type):
            numbers = values.to_numpy(zero_copy_only=False).astype(np.int64)
            if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(self.prefixes)):
                raise RunError(f"{self.record.path} names corpus {int(numbers.max())}, `data_path` has {len(self.prefixes)}")
            return np.asarray(numbers)
        column: Any = pc.cast(values, pa.string())
        words: Any = (column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column).dictionary_encode()
        words = words.combine_chunks() if isinstance(words, pa.ChunkedArray) else words
        of_word = np.array([self._number(word) for word in words.dictionary.to_pylist()], np.int64)
        return np.asarray(of_word[words.indices.to_numpy(zero_copy_only=False)]) if len(of_word) else np.empty(0, np.int64)

    def _number(self, word: str) -> int:
        mine = PurePosixPath(word.removesuffix(".bin").removesuffix(".idx")).parts
        found = [n for n, prefix in enumerate(self.prefixes) if prefix == word] or [
            n for n, p in enumerate(self.prefixes) if PurePosixPath(p).parts[-len(mine) :] == mine
        ]
        found = found or [n for n, p in enumerate(self.prefixes) if PurePosixPath(p).parts == mine[-len(PurePosixPath(p).parts) :]]
        if len(found) != 1:
            raise RunError(
                f"{self.record.path} names the corpus `{word}`, which {'fits several' if found else 'fits none'} of `data_path`",
                hint=f"data_path holds {', '.join(self.prefixes)}; name a path's last parts, or its number from 0",
            )
        return found[0]


class RecordedLoader:
    """What a run wrote down while it trained."""

    name = "recorded"

    def __init__(self) -> None:
        self._known: tuple[object, _Opened] | None = None

    def _open(self, run: RunSpec) -> _Opened:
        args = run.launches[0].args
        for name in args:
            if name not in KNOWN and name not in BYSTANDERS and name != "consumed":
                raise ConfigError(f"unknown argument `{name}`{nearest(name, [*KNOWN, 'consumed'])}")
        if not args.get("consumed"):
            raise ConfigError(
                "`args.consumed` is not given: the table of what the run consumed",
                hint="Parquet or JSON lines with step, sequence, seq_start, corpus, document, doc_start, doc_stop",
            )
        path = run.path(str(args["consumed"]))
        if not path.exists():
            raise StoreError(f"{path} does not exist", hint="`args.consumed` names the table that the run wrote")
        key = (run.fingerprint, stamp(path))
        if self._known is None or self._known[0] != key:
            self._known = (key, _Opened(run, Record(path), _prefixes(args)))
        return self._known[1]

    def spans(self, run: RunSpec) -> tuple[Span, ...]:
        """Steps of every launch, as far as recorded."""
        return self._open(run).spans

    def notes(self, run: RunSpec) -> list[str]:
        """What is not known because nobody recorded it."""
        opened = self._open(run)
        missing = [name for name in ("sample", "rank", "microbatch") if name not in opened.record.columns]
        return [f"the record holds no {', '.join(missing)}"] if missing else []

    def ran_twice(self, run: RunSpec, steps: StepRange) -> list[tuple[StepRange, tuple[int, ...]]]:
        """Steps that several launches ran, and which."""
        return ran_twice(self.spans(run), steps)

    def launches(self, run: RunSpec) -> Launches:
        """The run's history."""
        opened = self._open(run)
        n = len(run.launches)
        args = [launch.args for launch in run.launches]
        return Launches(
            LAUNCHES.of(
                {
                    "launch": list(range(n)),
                    "first_step": [span.start for span in opened.spans],
                    "stop_step": [span.stop for span in opened.spans],
                    "consumed": [launch.consumed if launch.consumed is not None or launch.after_step else 0 for launch in run.launches],
                    "trainer": [self.name] * n,
                    "version": [launch.version for launch in run.launches],
                    "origin": [f"record {opened.record.path.name}"] * n,
                    "row_width": [opened.record.width] * n,
                    "data_parallel_size": [_whole(a, "data_parallel_size") for a in args],
                    "micro_batch_size": [_whole(a, "micro_batch_size") for a in args],
                    "target_samples": [None] * n,
                    "order_hash": [digest(stamp(opened.record.path))] * n,
                }
            )
        )

    def corpora(self, run: RunSpec) -> Corpora:
        """The run's data files, numbered as in `data_path`."""
        opened = self._open(run)
        if opened.prefixes:
            return opened.store.corpora
        return Corpora(CORPORA.empty())

    def blends(self, run: RunSpec) -> Blends:
        """Nothing: a record holds no weights."""
        return Blends(BLENDS.empty())

    def store(self, run: RunSpec) -> RunStore:
        """The run's data files, opened."""
        return self._open(run).store

    def consumed(self, run: RunSpec, steps: StepRange, launch: int | None = None) -> Iterator[Consumed]:
        """What the steps read, one table per block of steps."""
        opened = self._open(run)
        chosen = pieces(opened.spans, steps, launch)
        for _, part in chosen:
            have = opened.record.steps[np.searchsorted(opened.record.steps, part.start) : np.searchsorted(opened.record.steps, part.stop)]
            if len(have) < len(part):
                gaps = ranges_of(set(part) - set(have.tolist()))
                raise RunError(f"{opened.record.path} holds no rows of steps {', '.join(str(g) for g in gaps[:5])}", hint=_reach(opened.record.steps))
        return self._consumed(opened, chosen)

    def _consumed(self, opened: _Opened, chosen: Sequence[tuple[int, StepRange]]) -> Iterator[Consumed]:
        batch = max(_whole(launch.args, "global_batch_size") or 256 for launch in opened.run.launches)
        for number, part in chosen:
            for block in part.blocks(max(1, BLOCK_ROWS * SEGMENTS_PER_ROW // (batch * SEGMENTS_PER_ROW))):
                table = self._table(opened, opened.record.read(block, number), number)
                _check_unique(table, opened)
                yield table

    def _table(self, opened: _Opened, raw: pa.Table, launch: int | NDArray[np.int64]) -> Consumed:
        n = raw.num_rows
        corpus = np.zeros(n, np.int64)
        if "corpus" in raw.column_names:
            corpus = opened.corpus_numbers(raw.column("corpus"))
        elif len(opened.prefixes) > 1:
            raise RunError(f"{opened.record.path} has no column `corpus`, and `data_path` names {len(opened.prefixes)} corpora")
        document = raw.column("document").to_numpy().astype(np.int64)
        if n and (document.min() < 0 or document.max() > DOC_MASK):
            raise RunError(f"{opened.record.path}: document {int(document.min())} is no document number")
        columns: dict[str, Any] = {
            name: raw.column(name)
            for name in ("step", "sequence", "seq_start", "sample", "rank", "microbatch", "epoch", "doc_start", "doc_stop")
            if name in raw.column_names
        }
        columns |= {"launch": np.broadcast_to(np.asarray(launch, np.int16), n), "doc_key": (corpus << DOC_BITS) | document}
        if "stored_seq" in raw.column_names:
            columns["stored_seq"] = raw.column("stored_seq")
        table = CONSUMED.sorted(CONSUMED.of(columns))
        self._check(opened, table)
        metadata = dict(table.schema.metadata or {})
        metadata.update({b"origin": b"recorded", b"loader": b"recorded 1"})
        return Consumed(table.replace_schema_metadata(metadata))

    def _check(self, opened: _Opened, table: pa.Table) -> None:
        start, stop, place = (table.column(name).to_numpy() for name in ("doc_start", "doc_stop", "seq_start"))
        if table.num_rows and (np.any(start < 0) or np.any(stop < start) or int(place.min()) < 0):
            raise RunError(
                f"{opened.record.path} holds a segment that ends before it begins (step "
                f"{table.column('step')[int(np.argmax((start < 0) | (stop < start) | (place < 0)))]})"
            )
        keys = table.column("doc_key").to_numpy()
        for corpus in np.unique(keys >> DOC_BITS).tolist():
            file = opened.files.get(corpus)
            if file is None:
                continue
            rows = np.flatnonzero(keys >> DOC_BITS == corpus)
            documents = keys[rows] & DOC_MASK
            if int(documents.max()) >= file.n_documents or np.any(stop[rows] > file.document_lengths(documents)):
                raise RunError(
                    f"{opened.record.path} names documents or parts that {file.path} does not hold",
                    hint="the record belongs to other data files, or they were made anew since; documents are "
                    "counted from 0 in file order, parts in tokens of the document",
                )

    def trained(self, run: RunSpec, steps: StepRange, launch: int | None = None) -> StepFacts:
        """Whether each step was trained on, and the counter after it where the batch is constant."""
        opened = self._open(run)
        out = []
        for number, part in pieces(opened.spans, steps, launch):
            one = run.launches[number]
            step = np.arange(part.start, part.stop, dtype=np.int64)
            raw = opened.record.read(part, number)
            rows = np.unique((raw.column("step").to_numpy().astype(np.int64) << 32) | raw.column("sequence").to_numpy())
            sequences = np.bincount(np.searchsorted(step, rows >> 32), minlength=len(step)).astype(np.int64)
            begin = one.consumed if one.consumed is not None or one.after_step else 0
            batch = _whole(one.args, "global_batch_size")
            after = np.full(len(step), -1, np.int64) if begin is None or batch is None else begin + (step - one.after_step) * batch
            dropped = {s for skipped in one.skipped for s in skipped}
            out.append(StepFacts(np.full(len(step), number, np.int16), step, sequences, after, ~np.isin(step, np.fromiter(dropped, np.int64, len(dropped)))))
        return StepFacts.concat(out)

    def locate(self, run: RunSpec, doc_keys: NDArray[np.int64]) -> Iterator[Consumed]:
        """Every recorded segment of these documents; what a run will consume next no record tells."""
        opened = self._open(run)
        keys = np.unique(np.asarray(doc_keys, dtype=np.int64))
        for batch in opened.record.batches():
            raw = pa.Table.from_batches([batch])
            corpus = opened.corpus_numbers(raw.column("corpus")) if "corpus" in raw.column_names else np.zeros(raw.num_rows, np.int64)
            hit = np.isin((corpus << DOC_BITS) | raw.column("document").to_numpy().astype(np.int64), keys)
            if hit.any():
                raw = raw.filter(pa.array(hit))
                yield self._table(opened, raw, self._launch_of(opened, raw))

    def _launch_of(self, opened: _Opened, raw: pa.Table) -> NDArray[np.int64]:
        if opened.record.has_launch:
            return raw.column("launch").to_numpy().astype(np.int64)
        steps = raw.column("step").to_numpy()
        out = np.zeros(len(steps), np.int64)
        for span in opened.spans:
            out[(steps >= span.start) & (steps < span.stop)] = span.launch
        return out


def _check_unique(table: pa.Table, opened: _Opened) -> None:
    """A step recorded twice without launch numbers cannot be told apart."""
    step, sequence, place = (table.column(name).to_numpy().astype(np.int64) for name in ("step", "sequence", "seq_start"))
    length = table.column("doc_stop").to_numpy() - table.column("doc_start").to_numpy()
    keep = length > 0
    step, sequence, place, length = step[keep], sequence[keep], place[keep], length[keep]
    same = (step[1:] == step[:-1]) & (sequence[1:] == sequence[:-1])
    overlap = same & (place[1:] < (place + length)[:-1])
    if overlap.any():
        bad = int(step[1:][overlap][0])
        raise RunError(
            f"{opened.record.path}: segments of step {bad} overlap, row {int(sequence[1:][overlap][0])} is recorded twice",
            hint="a step that two launches ran needs the column `launch` in the record"
            if len(opened.run.launches) > 1
            else "each row of a step must be recorded once",
        )


def _reach(steps: NDArray[np.int64]) -> str | None:
    return f"it holds steps {int(steps[0])} to {int(steps[-1])}" if len(steps) else "it is empty"


def _whole(args: Any, name: str) -> int | None:
    try:
        return int(args[name]) if args.get(name) is not None else None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"`{name}` is {args[name]!r}, expected a whole number") from error


def _prefixes(args: Any) -> tuple[str, ...]:
    """Data files; weights among them are passed over, so that a Megatron list can stay as it was."""
    given = args.get("data_path") or []
    words = given.split() if isinstance(given, str) else [str(word) for word in given]
    try:
        return tuple(dict.fromkeys(parse_blend(words).prefixes)) if words else ()
    except ForensicsError as error:
        raise ConfigError(error.message) from error


LOADERS.add("recorded", RecordedLoader(), __name__)
READERS.add("recorded", RecordReader(), __name__)
