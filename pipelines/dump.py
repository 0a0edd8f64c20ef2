"""The very batches of some steps, in the forms a team needs to run them again.

    steps -> consumed -> whole sequences -> sequences.npz, .bin/.idx, .jsonl, consumed.parquet, dump.json

Everything is written block by block: a dump may be larger than memory.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow.parquet as pq

from forensics.errors import UsageError
from forensics.files import make_folder, write_text, writing
from forensics.loaders.base import Loader, loader_of
from forensics.loaders.rows import RowBlock, View, loss_mask, position_ids, rows_of, view_of
from forensics.run import RunSpec
from forensics.schemas import CONSUMED, DOC_BITS, DOC_MASK, Consumed
from forensics.steps import StepRange
from forensics.stores.base import RunStore
from forensics.stores.write import MegatronWriter, NpzWriter

Progress = Callable[[int], None]
ABOUT = "dump.json"  # there from the start: a folder with it may be written over


@dataclass(frozen=True)
class Dump:
    """What will be written, known before anything is read.

    Attributes:
        steps: of the run, or batches of an evaluation split.
        launch: None for the last launch that ran each step.
        split: `train`, `valid` or `test`.
        sequences: rows in all; None where the trainer does not say before reading.
        view: how a row is cut.
    """

    run: RunSpec
    loader: Loader
    steps: StepRange
    launch: int | None
    split: str
    sequences: int | None
    view: View

    def notes(self) -> list[str]:
        """What was assumed and what could not be read, each once; complete when everything is written."""
        return [*self._future(), *getattr(self.loader, "notes", lambda run: [])(self.run), *self.view.notes, *getattr(self.loader.store(self.run), "notes", [])]

    def _future(self) -> list[str]:
        """Which of the steps were never run, as far as the description says where its last launch stopped."""
        stop = int(self.loader.launches(self.run)["stop_step"].to_numpy().max()) if self.split == "train" else self.steps.stop
        if self.steps.stop <= stop:
            return []
        first = max(stop, self.steps.start)
        return [
            f"steps {first} to {self.steps.last} were never run: the last one of the description is {stop - 1}; "
            "these are the batches that the run reads next if its arguments and data stay as they are"
        ]

    def tables(self) -> Iterator[Consumed]:
        """What was consumed, block by block."""
        if self.split == "train":
            return self.loader.consumed(self.run, self.steps, self.launch)
        return cast(Iterator[Consumed], cast(Any, self.loader).validation(self.run, self.steps, self.launch or 0, self.split))


def plan_dump(run: RunSpec, steps: StepRange, launch: int | None = None, split: str = "train") -> Dump:
    """Work out what a dump will hold.

    Raises:
        UsageError: a split that the trainer's loader does not reproduce.
    """
    loader = loader_of(run)
    if split != "train" and not hasattr(loader, "validation"):
        raise UsageError(f"the loader `{loader.name}` reproduces training steps only")
    facts = loader.trained(run, steps, launch) if split == "train" else None
    number = launch if launch is not None else (int(facts.launch[0]) if facts is not None and len(facts) else 0)
    width = loader.launches(run).column("row_width")[number].as_py()
    sequences = None if facts is None else int(facts.sequences.sum())
    return Dump(run, loader, steps, launch, split, sequences, view_of(run, number, loader.store(run), width))


def check_output(dump: Dump, out: Path) -> None:
    """Refuse a folder in which something else lies: a dump writes into a new or empty folder, or over an earlier dump.

    Raises:
        UsageError: it holds the run's own data, or other files.
    """
    if not out.exists():
        return
    own = [Path(str(p)).resolve() for p in dump.loader.corpora(dump.run)["path"].to_pylist()]
    if any(out.resolve() == p or out.resolve() in p.parents for p in own):
        raise UsageError(f"{out} holds the run's own data, which is never written to", hint="give a new folder")
    if not out.is_dir() or (any(out.iterdir()) and not (out / ABOUT).exists()):
        raise UsageError(f"{out} is not empty and holds no earlier dump", hint="give a new folder")


def write_dump(dump: Dump, out: Path, *, text: bool = True, progress: Progress | None = None) -> dict[str, int]:
    """Write the batches; returns counts of sequences, segments and tokens.

    Args:
        dump: from `plan_dump`.
        out: folder.
        text: whether to write `sequences.jsonl`.
        progress: called with the number of sequences written.
    """
    check_output(dump, out)
    make_folder(out)
    write_text(out / ABOUT, "{}\n")
    store = cast(RunStore, dump.loader.store(dump.run))
    counts = {"sequences": 0, "segments": 0, "tokens": 0}
    with contextlib.ExitStack() as stack:
        parquet = pq.ParquetWriter(stack.enter_context(writing(out / "consumed.parquet")), CONSUMED.schema, compression="zstd")
        archive = stack.enter_context(NpzWriter(out / "sequences.npz"))
        stack.callback(parquet.close)
        lines = stack.enter_context(stack.enter_context(writing(out / "sequences.jsonl")).open("w", encoding="utf-8", errors="replace")) if text else None
        pair: MegatronWriter | None = None
        for table in dump.tables():
            parquet.write_table(table.replace_schema_metadata(CONSUMED.schema.metadata))
            for block in rows_of(table, store, dump.view.width):
                pair = pair or stack.enter_context(MegatronWriter(out / "sequences", block.tokens.dtype))
                pair.add(block.tokens[np.arange(dump.view.width) < block.lengths[:, None]], block.lengths)
                archive.add(**_columns(block, dump.view))
                if lines is not None:
                    _write_lines(lines, block, store)
                counts["sequences"] += len(block)
                counts["tokens"] += int(block.lengths.sum())
                if progress:
                    progress(counts["sequences"])
            counts["segments"] += table.num_rows
        if dump.split == "train":
            facts = dump.loader.trained(dump.run, dump.steps, dump.launch)
            archive.add(steps=facts.step, step_launch=facts.launch, trained=facts.trained, consumed_after=facts.consumed_after)
    _write_about(dump, out, counts)
    return counts


def _columns(block: RowBlock, view: View) -> dict[str, Any]:
    columns: dict[str, Any] = {name: getattr(block, name) for name in ("launch", "step", "sequence", "sample", "rank", "microbatch", "tokens")}
    for name, values in (("loss_mask", loss_mask(block.tokens, view)), ("position_ids", position_ids(block.tokens, view))):
        if values is not None:
            columns[name] = values
    return columns


def _write_lines(lines: IO[str], block: RowBlock, store: RunStore) -> None:
    """One line per sequence, its segments with their text; null text without a tokenizer."""
    names = dict(zip(store.corpora.column("corpus_id").to_pylist(), store.corpora.column("name").to_pylist()))
    segments = block.segments.select(["doc_key", "seq_start", "doc_start", "doc_stop"]).to_pylist()
    edges = [*block.first.tolist(), len(segments)]
    for i in range(len(block)):
        row: dict[str, Any] = {n: int(getattr(block, n)[i]) for n in ("launch", "step", "sequence", "sample", "rank", "microbatch")}
        row = {name: None if value < 0 else value for name, value in row.items()}
        row["segments"] = []
        for s in segments[edges[i] : edges[i + 1]]:
            ids = block.tokens[i, s["seq_start"] : s["seq_start"] + s["doc_stop"] - s["doc_start"]]
            row["segments"].append({
                "corpus": names.get(s["doc_key"] >> DOC_BITS), "document": s["doc_key"] & DOC_MASK, "doc_start": s["doc_start"], "doc_stop": s["doc_stop"],
                "text": store.vocabulary.text(ids) if store.vocabulary else None,
            })  # fmt: skip
        lines.write(json.dumps(row, ensure_ascii=False) + "\n")


def _write_about(dump: Dump, out: Path, counts: dict[str, int]) -> None:
    about = {
        "run": dump.run.name, "trainer": dump.run.trainer, "split": dump.split, "steps": [dump.steps.start, dump.steps.stop], "launch": dump.launch,
        "notes": dump.notes(), "view": asdict(dump.view), **counts,
    }  # fmt: skip
    write_text(out / ABOUT, json.dumps(about, indent=1, ensure_ascii=False) + "\n")
