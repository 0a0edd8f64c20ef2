"""JSON lines: one record per line, flat or nested, from any trainer or export (W&B history, our own live recorder).

Large plain files go through Arrow's parser in pieces; a piece it refuses (NaN literals, nested records, a broken line)
is read line by line, so one odd line costs one piece and never the file.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.json

from forensics.curves.sources.base import SOURCES, Block, Head, Log, head_of
from forensics.curves.sources.frames import Frames
from forensics.curves.sources.roles import Pairs, Roles, flatten, number

_SAMPLE = 400
_BLOCK = 1 << 20


def records_of(head: Head) -> list[dict[str, Any]]:
    """JSON objects among the first lines."""
    found = []
    for row in head.rows[:_SAMPLE]:
        if row.lstrip().startswith("{"):
            try:
                record = json.loads(row)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                found.append(record)
    return found


def roles_of(records: list[dict[str, Any]], log: Log) -> Roles:
    """Roles from the keys that the first records show."""
    sample: dict[str, Any] = {}
    for record in records:
        for key, value in flatten(record):
            if sample.get(key) is None:
                sample[key] = value
    return Roles(sample, sample, log.options)


class JsonLines:
    """JSON lines."""

    name = "jsonl"
    doc = "JSON lines with any keys; nested records are flattened"

    def sniff(self, head: Head) -> int:
        """Most of the first lines are JSON objects that hold a number."""
        rows = head.rows[:_SAMPLE]
        records = records_of(head)
        numeric = sum(any(number(v) is not None for _, v in flatten(r)) for r in records)
        return 60 if numeric and 2 * numeric >= len(rows) else 0

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order."""
        head = records_of(head_of(log.path))
        roles = roles_of(head, log)
        if roles.step is None:
            log.problem("no step column; records are numbered from 1")
        nested = any(isinstance(v, (dict, list)) for r in head for v in r.values())
        frames, pairs = Frames(roles), Pairs(roles)
        known: Any = None
        for data, first, torn in log.chunks():
            if not nested and not torn:
                table = _arrow(data, known)
                if table is not None:
                    known = _schema(table)
                    pairs.last[None], pairs.count = frames.last, frames.count
                    yield from pairs.cut()
                    try:
                        yield from frames.blocks(table, first)
                        continue
                    except pa.ArrowInvalid:
                        pass
            pairs.last[None], pairs.count = frames.last, frames.count
            for i, row in enumerate(data.split(b"\n")):
                if row.strip():
                    _one(row, first + i, torn and i == data.count(b"\n"), pairs, log)
            frames.last, frames.count = pairs.last.get(None, frames.last), pairs.count
            yield from pairs.cut()
        pairs.report(log)


def _arrow(data: bytes, known: Any) -> Any:
    """The piece as a table of one row per line; None where Arrow refuses it or lines would lose their number.

    Args:
        data: whole lines.
        known: schema of the piece before, which saves guessing types; None at first.
    """
    for schema in (known, None) if known is not None else (None,):
        try:
            table = pyarrow.json.read_json(
                io.BytesIO(data),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=max(_BLOCK, data.find(b"\n") * 4)),
                parse_options=pyarrow.json.ParseOptions(explicit_schema=schema),
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            continue
        if table.num_rows == data.count(b"\n") and len(set(table.column_names)) == table.num_columns and all(map(_flat, table.schema)):
            return table
    return None


def _flat(field: Any) -> bool:
    kind = field.type
    return bool(pa.types.is_primitive(kind) or pa.types.is_string(kind) or pa.types.is_null(kind))


def _schema(table: Any) -> Any:
    """Types for the next piece: any number may turn out a fraction."""
    return pa.schema([pa.field(f.name, pa.float64() if pa.types.is_integer(f.type) or pa.types.is_null(f.type) else f.type) for f in table.schema])


def _one(row: bytes, line: int, torn: bool, pairs: Pairs, log: Log) -> None:
    text = row.decode("utf-8", "replace")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        log.problem("the last line is cut short; it is left out" if torn else "not a JSON record", line)
        return
    if isinstance(record, dict):
        pairs.add(record, line)
    else:
        log.problem("not a JSON record", line)


SOURCES.add("jsonl", JsonLines(), __name__)
