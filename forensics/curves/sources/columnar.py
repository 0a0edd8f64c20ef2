"""Parquet and Arrow files of metrics, wide (a column per metric) or long (`metric`, `step`, `value`), our own tables too."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from forensics.curves.sources.base import SOURCES, Block, Head, Log
from forensics.curves.sources.frames import Frames
from forensics.curves.sources.roles import Roles
from forensics.errors import StoreError

_ROWS = 1 << 18


class Columnar:
    """Parquet and Arrow."""

    name = "parquet"
    doc = "Parquet and Arrow files, wide or long, with any column names"

    def sniff(self, head: Head) -> int:
        """The magic bytes."""
        return 98 if head.data.startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")) else 0

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order; a record's line is its row."""
        frames: Frames | None = None
        row = 1
        try:
            for batch in _batches(log):
                table = _plain(pa.Table.from_batches([batch]))
                if frames is None:
                    sample = {name: next((v for v in table.column(name).slice(0, 200).to_pylist() if v is not None), None) for name in table.column_names}
                    frames = Frames(
                        Roles(
                            table.column_names,
                            {k: (v.isoformat() if isinstance(v, (datetime.datetime, datetime.date)) else v) for k, v in sample.items()},
                            log.options,
                        )
                    )
                    if frames.roles.step is None:
                        log.problem("no step column; records are numbered from 1")
                yield from frames.blocks(table, row)
                row += table.num_rows
        except (pa.ArrowInvalid, OSError) as error:
            if frames is None:
                raise StoreError(f"{log.path} is damaged ({str(error).strip().splitlines()[0].lower()})") from error
            log.problem(f"the file is damaged behind row {row - 1}; what came before is kept")


def _batches(log: Log) -> Iterator[Any]:
    with log.path.open("rb") as stream:
        magic = stream.read(6)
    if magic.startswith(b"PAR1"):
        yield from pq.ParquetFile(log.path).iter_batches(batch_size=_ROWS)
    elif magic.startswith(b"ARROW1"):
        reader = pyarrow.ipc.open_file(str(log.path))
        yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        yield from pyarrow.ipc.open_stream(log.path.read_bytes())


def _plain(table: pa.Table) -> pa.Table:
    """Nested columns flattened, dictionaries decoded."""
    while any(pa.types.is_struct(f.type) for f in table.schema):
        table = table.flatten()
        table = table.rename_columns([n.replace(".", "/") for n in table.column_names])
    for i, f in enumerate(table.schema):
        if pa.types.is_dictionary(f.type):
            table = table.set_column(i, f.name, table.column(i).cast(f.type.value_type))
    return table


SOURCES.add("parquet", Columnar(), __name__)
