"""CSV and its relatives (semicolon, tab): a header line, then one record per line; also W&B's export from its web page.

Read in pieces with Arrow; a piece it refuses is read with the standard library's reader. W&B's export names columns
`run - metric` and adds `__MIN` and `__MAX` copies: the first become runs, the copies are dropped.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv

from forensics.curves.names import is_known, resolve
from forensics.curves.sources.base import SOURCES, Block, Head, Log, head_of
from forensics.curves.sources.frames import Frames
from forensics.curves.sources.roles import STEPS, Pairs, Roles, number

_DELIMITERS = (",", "\t", ";")


def header_of(head: Head) -> tuple[list[str], str] | None:
    """Column names and delimiter, where the beginning is such a table."""
    rows = head.rows[:60]
    if not rows or "\0" in rows[0] or rows[0].lstrip().startswith(("{", "[")) or max(map(len, rows)) > 1 << 16:
        return None
    for delimiter in _DELIMITERS:
        names = _cells(rows[0].lstrip("\ufeff"), delimiter)
        if len(names) < 2 or any(number(n) is not None for n in names) or len({n for n in names if n}) < len([n for n in names if n]):
            continue
        body = [_cells(row, delimiter) for row in rows[1:]]
        if all(len(n) < 120 for n in names) and sum(len(row) == len(names) for row in body) >= 0.6 * len(body):
            return names, delimiter
    return None


def _cells(row: str, delimiter: str) -> list[str]:
    """The cells of a row; none where it cannot be one."""
    try:
        return next(csv.reader([row], delimiter=delimiter), [])
    except csv.Error:
        return []


class Delimited:
    """CSV."""

    name = "csv"
    doc = "comma, semicolon or tab separated values with a header line; W&B web export"

    def sniff(self, head: Head) -> int:
        """A header without numbers, then rows of as many cells, some of them numbers."""
        found = None if head.binary else header_of(head)
        if found is None:
            return 0
        names, delimiter = found
        rows = [_cells(row, delimiter) for row in head.rows[1:60]]
        cells = sum(number(cell) is not None for row in rows for cell in row)
        known = any(n.strip().lower() in STEPS or is_known(resolve(n)[0]) for n in names)
        return 55 if cells and known else (30 if cells else (20 if known and not rows else 0))

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order; a W&B export gives one run per column."""
        head = head_of(log.path)
        found = header_of(head)
        if found is None:
            return
        names, delimiter = found
        sample: dict[str, Any] = {}
        for row in (_cells(text, delimiter) for text in head.rows[1:]):
            for key, cell in zip(names, row):
                if cell.strip() and (key not in sample or (number(sample[key]) is None and number(cell) is not None)):
                    sample[key] = cell
        if [n.strip().lower() for n in names] == ["wall time", "step", "value"]:  # TensorBoard's download of one scalar: its tag is in the file's name
            names = [*names[:2], log.options.columns.get(names[2]) or log.path.name.split(".csv")[0].rpartition("tag-")[2].replace("_", " ")]
            sample = dict(zip(names, sample.values()))
        exports = _exports(names, log)
        roles = Roles([n for n in names if n not in exports], sample, log.options)
        if roles.step is None:
            log.problem("no step column; records are numbered from 1")
        if exports:
            yield from _export(log, names, delimiter, roles, exports)
            return
        frames, pairs = Frames(roles), Pairs(roles)
        texts = {roles.run, roles.time, roles.label} - {None}
        for data, first, torn in log.chunks():
            if first == 1:
                cut = data.find(b"\n") + 1 or len(data)
                data, first = data[cut:], 2
            table = None if torn else _arrow(data, names, delimiter, {str(t) for t in texts if t is not None and number(sample.get(t)) is None}, sample)
            if table is not None:
                try:
                    yield from frames.blocks(table, first)
                    continue
                except pa.ArrowInvalid:
                    pass
            pairs.last[None], pairs.count = frames.last, frames.count
            for line, record in _rows(data, first, names, delimiter, torn, log):
                pairs.add(record, line)
            frames.last, frames.count = pairs.last.get(None, frames.last), pairs.count
            yield from pairs.cut()
        pairs.report(log)


def _arrow(data: bytes, names: list[str], delimiter: str, texts: set[str], sample: dict[str, Any]) -> Any:
    """The piece as a table of floats (and the named texts), one row per line; None where Arrow refuses it."""
    wanted = [n for n in names if n in texts or number(sample.get(n)) is not None]
    types = {n: pa.string() if n in texts else pa.float64() for n in wanted}
    try:
        table = pyarrow.csv.read_csv(
            io.BytesIO(data),
            read_options=pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=max(1 << 20, len(data))),
            parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=wanted, column_types=types, null_values=["", "null", "None", "NULL"], strings_can_be_null=True
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        return None
    return table if table.num_rows == data.count(b"\n") else None


def _rows(data: bytes, first: int, names: list[str], delimiter: str, torn: bool, log: Log) -> Iterator[tuple[int, dict[str, str]]]:
    rows = data.decode("utf-8", "replace").split("\n")
    for i, text in enumerate(rows):
        line = text.rstrip("\r")
        if not line.strip():
            continue
        cells = _cells(line, delimiter)
        last = torn and i == len(rows) - 1
        if len(cells) != len(names):
            log.problem(
                "the last line is cut short; it is left out" if last else f"a row with another number of cells than the header ({len(names)})", first + i
            )
        else:
            if last:
                log.problem("the last line lacks its line feed; its last cell may be cut short and is left out", first + i)
                cells = cells[:-1]
            yield first + i, {k: v for k, v in zip(names, cells) if v.strip() and v not in ("null", "None", "NULL")}


def _exports(names: list[str], log: Log) -> dict[str, tuple[str, str]]:
    """Columns of W&B's web export: column -> (run, metric); copies with `__MIN` and `__MAX` map to an empty metric."""
    found = {}
    for name in names:
        run, dash, metric = name.rpartition(" - ")
        if dash and name not in log.options.columns:
            found[name] = (run, "" if metric.endswith(("__MIN", "__MAX")) or metric in ("_step",) else metric)
    return found if any(n.endswith(("__MIN", "__MAX")) for n in names) or (found and names[0].strip().lower() in STEPS) else {}


def _export(log: Log, names: list[str], delimiter: str, roles: Roles, exports: dict[str, tuple[str, str]]) -> Iterator[Block]:
    """One recorder per run of a web export."""
    feeds: dict[str, Pairs] = {}
    for run, metric in exports.values():
        if metric:
            feeds.setdefault(
                run, Pairs(Roles([*(k for k in (roles.step, roles.time) if k), *(m for r, m in exports.values() if r == run and m)], {}, log.options))
            )
    axis = [k for k in (roles.step, roles.time) if k]
    for data, first, torn in log.chunks():
        for line, record in _rows(data, first, names, delimiter, torn, log):
            if line == 1:
                continue
            for run, pairs in feeds.items():
                mine = {metric: record[column] for column, (r, metric) in exports.items() if r == run and metric and column in record}
                if mine:
                    pairs.add({**{k: record[k] for k in axis if k in record}, **mine}, line)
        for run, pairs in feeds.items():
            for block in pairs.cut():
                yield Block(block.steps, block.columns, block.lines, block.times, block.tokens, block.ranks, run)
    for pairs in feeds.values():
        pairs.report(log)


SOURCES.add("csv", Delimited(), __name__)
