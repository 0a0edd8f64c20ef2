"""What `forensics.live.recorder` wrote, as Arrow tables.

A folder of numpy archives `consumed-LAUNCH-RANK-NUMBER-FIRST-LAST.npz` and `losses-...npz`, whose arrays are columns.
Loaders and losses both read it, so it lies below them. Column names are those of a run description's recorded tables.
"""

from __future__ import annotations

import dataclasses
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from forensics.errors import StoreError
from forensics.run import RunSpec

SHARD = re.compile(r"(consumed|losses)-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)\.npz$")
ORDER = {
    "consumed": ("step", "sequence", "seq_start", "corpus", "document", "doc_start", "doc_stop", "sample", "rank", "microbatch", "launch"),
    "losses": ("step", "sequence", "seq_start", "document", "predicted", "loss_sum", "sample", "rank", "microbatch", "launch", "corpus"),
}


class RecordReader:
    """What the recorder's folder tells about a run: its launches, where the description lists none."""

    def sniff(self, path: Path) -> bool:
        """A folder of records is no checkpoint."""
        return False

    def complete(self, run: RunSpec) -> RunSpec:
        """The run with the launches that the names of the shards show."""
        given = run.launches[0].args.get("consumed")
        shards = record_shards(run.path(str(given)), "consumed") if given and not run.launches_given else []
        reach: dict[int, tuple[int, int]] = {}
        for path in shards:
            launch, _, _, first, last = (int(n) for n in path.stem.split("-")[1:])
            before = reach.get(launch, (first, last))
            reach[launch] = min(before[0], first), max(before[1], last)
        if len(reach) < 2 or sorted(reach) != list(range(len(reach))):
            return run
        launches = tuple(dataclasses.replace(run.launches[0], number=n, after_step=reach[n][0] - 1, last_step=reach[n][1]) for n in sorted(reach))
        note = "the launches are those of the record: " + ", ".join(f"{x.number} steps {x.after_step + 1} to {x.last_step}" for x in launches)
        return dataclasses.replace(run, launches=launches, notes=(*run.notes, note))


def record_shards(folder: Path, kind: str) -> list[Path]:
    """The recorder's files of one kind in a folder, in order of launch, rank and time; empty where it is no such folder."""
    if not folder.is_dir():
        return []
    found = [(tuple(int(n) for n in m.groups()[1:]), p) for p in folder.iterdir() if (m := SHARD.match(p.name)) and m[1] == kind]
    return [path for _, path in sorted(found)]


def read_records(folder: Path, kind: str) -> pa.Table:
    """All rows of one kind: `consumed` or `losses`.

    Raises:
        StoreError: no such files, one that is damaged, or documents that some shards name and others do not.
    """
    shards = record_shards(folder, kind)
    if not shards:
        raise StoreError(f"{folder} holds no `{kind}-*.npz` of the recorder", hint="forensics.live.recorder writes them; `records/` is the folder it was given")
    tables = [_read(path, kind) for path in shards]
    names = tables[0].column_names
    if any(t.column_names != names for t in tables):
        every = [n for n in ORDER[kind] if any(n in t.column_names for t in tables)]
        tables = [_widened(t, tables, every) for t in tables]
    return pa.concat_tables(tables)


def _read(path: Path, kind: str) -> pa.Table:
    try:
        with np.load(path, allow_pickle=False) as box:
            arrays = {name: box[name] for name in ORDER[kind] if name in box.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise StoreError(
            f"{path} is no readable shard of the recorder ({error})", hint="a copy that was cut short? the recorder itself writes shards whole"
        ) from error
    lengths = {a.shape for a in arrays.values()}
    kinds = {"corpus": "iuU"}
    if "step" not in arrays or len(lengths) != 1 or any(a.ndim != 1 or a.dtype.kind not in kinds.get(name, "iuf") for name, a in arrays.items()):
        raise StoreError(f"{path} holds columns of different lengths or types")
    columns: dict[str, Any] = {name: pa.array(arrays[name]) for name in ORDER[kind] if name in arrays}
    return pa.table(columns)


def _widened(table: pa.Table, tables: list[pa.Table], names: list[str]) -> pa.Table:
    """The table with every column of the others; unknown where it lacks one."""
    types = {n: next(t.schema.field(n).type for t in tables if n in t.column_names) for n in names}
    columns: dict[str, Any] = {n: table.column(n) if n in table.column_names else pa.nulls(table.num_rows, types[n]) for n in names}
    return pa.table(columns)
