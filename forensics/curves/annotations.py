"""What people know about a run: a table of step or time, kind and text, which explains events that the curves show.

A CSV (also with tabs or semicolons), JSON lines or Parquet file. Columns: `step` or `time` (at least one), `kind` (mix,
lr, restart, hardware, config; anything else is `other`), `text` (also `note`, `comment`, `what`).
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forensics.curves.sources.roles import number, seconds
from forensics.errors import ConfigError, nearest
from forensics.files import read_text
from forensics.schemas import ANNOTATIONS, Annotations

KINDS = ("mix", "lr", "restart", "hardware", "config", "other")
_NAMES = {
    "step": "step",
    "iteration": "step",
    "time": "time",
    "date": "time",
    "timestamp": "time",
    "kind": "kind",
    "type": "kind",
    "text": "text",
    "note": "text",
    "comment": "text",
    "what": "text",
}


def read_annotations(paths: Sequence[Path]) -> Annotations:
    """Annotations of all files, sorted by step (those with a time only come last).

    Raises:
        ConfigError: a file without the columns, or a row with neither a step nor a time; file and line are named.
    """
    rows = [row for path in paths for row in _rows(Path(path))]
    rows.sort(key=lambda r: (r["step"] is None, r["step"] or 0, r["time"] or 0))
    return Annotations(
        ANNOTATIONS.of(
            {
                "step": [r["step"] for r in rows],
                "time": [r["time"] for r in rows],
                "kind": [r["kind"] for r in rows],
                "text": [r["text"] for r in rows],
            }
        )
    )


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for line, raw in _records(path):
        known = {_NAMES[k.strip().lower()]: v for k, v in raw.items() if k is not None and k.strip().lower() in _NAMES and v not in (None, "")}
        if not known:
            continue
        step, at = number(known.get("step")), seconds(known.get("time"))
        if (step is None or not math.isfinite(step)) and math.isnan(at):
            raise ConfigError(f"{path}:{line}: an annotation needs a step or a time", hint="columns: step or time, kind, text")
        kind = str(known.get("kind", "other")).strip().lower()
        yield {
            "step": None if step is None or not math.isfinite(step) else int(step),
            "time": None if math.isnan(at) else round(at * 1e6),
            "kind": kind if kind in KINDS else "other",
            "text": str(known.get("text", "")).strip() if kind in KINDS else f"{kind}: {known.get('text', '')}".strip(": "),
        }


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        yield from ((i, row) for i, row in enumerate(pq.read_table(path).to_pylist(), 1))
        return
    text = read_text(path, 1 << 26).lstrip("\ufeff")
    lines = [row.rstrip("\r") for row in text.split("\n")]
    first = next((row for row in lines if row.strip()), "")
    if first.lstrip().startswith("{"):
        for i, row in enumerate(lines, 1):
            if row.strip():
                try:
                    record = json.loads(row)
                except (ValueError, RecursionError) as error:
                    raise ConfigError(f"{path}:{i}: not a JSON record") from error
                if isinstance(record, dict):
                    yield i, record
        return
    delimiter = max(",\t;", key=first.count)
    header = [cell.strip().lower() for cell in next(csv.reader([first], delimiter=delimiter), [])]
    if not {"step", "iteration", "time", "date", "timestamp"} & set(header):
        odd = next((name for name in header if name not in _NAMES), "")
        raise ConfigError(
            f"{path} has no column `step` or `time` (it has {', '.join(header) or 'no header'}){nearest(odd, _NAMES)}", hint="columns: step or time, kind, text"
        )
    begun = lines.index(first) if first else 0
    for i, cells in enumerate(csv.reader(lines[begun + 1 :], delimiter=delimiter), begun + 2):
        if any(cell.strip() for cell in cells):
            yield i, dict(zip(header, cells))


__all__ = ["KINDS", "read_annotations"]
