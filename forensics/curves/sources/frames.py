"""Arrow tables of records to blocks: the fast road of JSON lines, CSV and Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute

from forensics.curves.names import scaled
from forensics.curves.sources.base import Block, Column, Floats, Ints
from forensics.curves.sources.roles import Roles, number, seconds

pa: Any = pyarrow  # the stubs know few of the calls below
pc: Any = pyarrow.compute


class Frames:
    """Turns tables of one file, in order, into blocks.

    Args:
        roles: what each column is.
    """

    def __init__(self, roles: Roles) -> None:
        self.roles = roles
        self.last = 0
        self.count = 0

    def blocks(self, table: pyarrow.Table, first_line: int, lines: Ints | None = None) -> Iterator[Block]:
        """Blocks of a table whose first record stands on `first_line`; one per run named in it.

        Raises:
            pa.ArrowInvalid: when a column that should hold numbers does not.
        """
        if not table.num_rows:
            return
        if lines is None:
            lines = np.arange(first_line, first_line + table.num_rows, dtype=np.int64)
        roles = self.roles
        axes = {roles.step, roles.time, roles.tokens, roles.rank, roles.launch, roles.label, roles.value}
        for run, part, where in _split(table, lines, self.roles.run):
            if self.roles.label is None or self.roles.value is None:
                yield self._block(part, where, run)
                continue
            for metric, rows, places in _split(part, where, self.roles.label):
                if metric:
                    rows = rows.select([n for n in rows.column_names if n in axes])
                    named = rows.drop_columns([self.roles.label]).rename_columns(
                        [metric if n == self.roles.value else n for n in rows.column_names if n != self.roles.label]
                    )
                    yield self._block(named, places, run)

    def _block(self, table: pyarrow.Table, lines: Ints, run: str | None) -> Block:
        roles = self.roles
        steps = self._steps(table)
        columns: dict[str, Column] = {}
        for key in table.column_names:
            if key in (roles.step, roles.time, roles.tokens, roles.rank, roles.launch, roles.run) or (named := roles.metric(key)) is None:
                continue
            column = table.column(key)
            if pa.types.is_nested(column.type) or pa.types.is_null(column.type) or pa.types.is_temporal(column.type):
                continue
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                column = pa.chunked_array([pa.array([number(v) for v in column.to_pylist()], pa.float64())])
            values, known = numbers(column)
            if known is None or known.any():
                values = values if named[1] == 1.0 else scaled(values, named[1])
                columns[named[0]] = Column(values) if known is None else Column(values[known], np.flatnonzero(known))
        tokens, ranks, launches = (_integers(table, key) for key in (roles.tokens, roles.rank, roles.launch))
        return Block(steps, columns, lines, times=self._times(table), tokens=tokens, ranks=ranks, launches=launches, run=run, cumulative=roles.cumulative)

    def _steps(self, table: pyarrow.Table) -> Ints:
        key = self.roles.step
        if key is None or key not in table.column_names:
            steps = np.arange(self.count + 1, self.count + table.num_rows + 1, dtype=np.int64) if key is None else np.full(table.num_rows, self.last, np.int64)
        else:
            values, known = numbers(table.column(key))
            if known is not None or not np.isfinite(values).all():
                good = np.isfinite(values) if known is None else known & np.isfinite(values)
                at = np.maximum.accumulate(np.where(good, np.arange(len(values)), -1))
                values = np.where(at >= 0, values[np.maximum(at, 0)], self.last)
            steps = np.clip(values, -(2.0**62), 2.0**62).astype(np.int64)
        self.count += len(steps)
        self.last = int(steps[-1])
        return steps

    def _times(self, table: pyarrow.Table) -> Floats | None:
        key = self.roles.time
        if key is None or key not in table.column_names:
            return None
        column = table.column(key)
        if pa.types.is_temporal(column.type):
            micro = column.cast(pa.timestamp("us", tz=getattr(column.type, "tz", None)), safe=False).cast(pa.int64())
            values, known = numbers(micro)
            return np.where(known, values, np.nan) / 1e6 if known is not None else values / 1e6
        if pa.types.is_string(column.type):
            return np.array([np.nan if v is None else seconds(v) for v in column.to_pylist()])
        values, known = numbers(column)
        read = np.full(len(values), np.nan)
        for scale in (1.0, 1e3, 1e6, 1e9):
            hit = (values / scale >= 1e8) & (values / scale < 1e10)
            read[hit] = values[hit] / scale
        return read


def _split(table: pyarrow.Table, lines: Ints, key: str | None) -> Iterator[tuple[str | None, pyarrow.Table, Ints]]:
    """The rows of each value of a column of names; one part where there is no such column."""
    if key is None or key not in table.column_names:
        yield None, table, lines
        return
    labels = table.column(key).cast(pa.string()).combine_chunks()
    for name in pc.unique(labels).to_pylist():
        mask = pc.equal(labels, name) if name is not None else pc.is_null(labels)
        rows = np.flatnonzero(np.asarray(mask.fill_null(False)))
        yield name, table.take(pa.array(rows)), lines[rows]


def numbers(column: Any) -> tuple[Floats, Any]:
    """Values as float64 and a mask of those that are not null (None: all)."""
    nulls = column.null_count
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if column.type != pa.float64():
        column = column.cast(pa.float64(), safe=False)
    if not nulls:
        return np.asarray(column.to_numpy()), None
    known = np.asarray(pc.is_valid(column).to_numpy())
    return np.asarray(pc.fill_null(column, 0.0).to_numpy()), known


def _integers(table: pyarrow.Table, key: str | None) -> Ints | None:
    if key is None or key not in table.column_names:
        return None
    values, known = numbers(table.column(key))
    good = np.isfinite(values) if known is None else known & np.isfinite(values)
    return np.where(good, values, -1).astype(np.int64)
