"""Other JSON documents of metrics: a list of records, scalars by tag, or columns.

Shapes read: `[{step, loss, ...}, ...]`; `{tag: [[step, value], ...]}` and `{tag: [[time, step, value], ...]}` (exports of
TensorBoard scalars); `{tag: {steps: [...], values: [...]}}`; `{name: [numbers]}` with columns of one length;
`{"100": {loss: ...}}` by step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from forensics.curves.names import resolve, scaled
from forensics.curves.sources.base import SOURCES, Block, Column, Head, Log
from forensics.curves.sources.documents import begins_document, close_cut, load
from forensics.curves.sources.roles import Pairs, Roles, flatten, number, seconds


class JsonDocument:
    """A JSON document of metrics."""

    name = "json"
    doc = "JSON document: list of records, {tag: [[step, value], ...]}, columns, or records by step"

    def sniff(self, head: Head) -> int:
        """An object or list with lists of numbers or records inside; surer where the document parses."""
        if not begins_document(head):
            return 0
        import json

        data = head.data if head.whole else close_cut(head.data)
        try:
            document = json.loads(data or b"null")
        except (ValueError, RecursionError):
            repaired = close_cut(head.data)
            try:
                document = json.loads(repaired or b"null")
            except (ValueError, RecursionError):
                return 0
        shape = _shape(document)
        return 62 if shape == "by step" else (40 if shape else 0)

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks of the shape that the document has."""
        document = load(log)
        shape = _shape(document)
        if shape in ("records", "columns", "by step"):
            yield from _records(_rows(document, shape), log)
        elif shape in ("pairs", "triples", "axes"):
            yield from _tags(document, log)


def _shape(document: Any) -> str:
    """Which of the known shapes a document has; empty for none."""
    if isinstance(document, list):
        if any(isinstance(x, dict) and any(number(v) is not None for _, v in flatten(x)) for x in document[:50]):
            return "records"
        return "triples" if document and all(isinstance(x, list) and len(x) == 3 and all(number(v) is not None for v in x) for x in document[:50]) else ""
    if not isinstance(document, dict) or not document:
        return ""
    values = list(document.values())
    if all(isinstance(v, dict) for v in values):
        if all(any(k in v for k in ("step", "steps")) and any(k in v for k in ("value", "values")) for v in values):
            return "axes"
        return "by step" if all(str(k).isdigit() for k in document) else ""
    lists = [v for v in values if isinstance(v, list) and v]
    if not lists:
        return ""
    if all(isinstance(x, (list, tuple)) and len(x) in (2, 3) for v in lists for x in v[:20]):
        return "pairs"
    plain = [v for v in lists if all(number(x) is not None or x is None for x in v[:20])]
    return "columns" if plain and len({len(v) for v in plain}) <= 2 else ""


def _rows(document: Any, shape: str) -> Iterator[dict[str, Any]]:
    if shape == "records":
        yield from (x for x in document if isinstance(x, dict))
    elif shape == "by step":
        for step in sorted(document, key=int):
            yield {"step": int(step), **document[step]}
    else:
        columns = {k: v for k, v in document.items() if isinstance(v, list)}
        for i in range(max(map(len, columns.values()))):
            yield {k: v[i] for k, v in columns.items() if i < len(v) and v[i] is not None}


def _records(rows: Iterator[dict[str, Any]], log: Log) -> Iterator[Block]:
    kept = list(rows)
    sample: dict[str, Any] = {}
    for row in kept[:2000]:
        for key, value in flatten(row):
            sample.setdefault(key, value)
    roles = Roles(sample, sample, log.options)
    if roles.step is None:
        log.problem("no step; records are numbered from 1")
    pairs = Pairs(roles)
    for row in kept:
        pairs.add(row, -1)
    yield from pairs.cut()


def _tags(document: Any, log: Log) -> Iterator[Block]:
    """Scalars by tag, one block per tag: each has its own steps."""
    if isinstance(document, list):
        document = {log.options.columns.get("", log.path.stem): document}
    taken: set[str] = set()
    for tag, entry in document.items():
        raw = log.options.columns.get(tag, tag)
        name, factor = resolve(raw)
        if name in taken or raw.endswith(("vs samples", "vs tokens")):
            if not raw.endswith(("vs samples", "vs tokens")):
                log.problem(f"`{tag}` means the same as another tag; it is left out")
            continue
        points = _points(entry)
        bad = sum(step is None or value is None for step, value, _ in points)
        if bad:
            log.problem(f"points of `{tag}` that are no numbers", count=bad)
        good = [(int(s), v, t) for s, v, t in points if s is not None and v is not None]
        if good:
            taken.add(name)
            times = np.array([t for _, _, t in good])
            yield Block(
                np.array([s for s, _, _ in good], np.int64),
                {name: Column(scaled(np.array([v for _, v, _ in good], np.float64), factor))},
                np.full(len(good), -1, np.int64),
                times=None if np.isnan(times).all() else times,
            )


def _points(entry: Any) -> list[tuple[float | None, float | None, float]]:
    if isinstance(entry, dict):
        steps, values = entry.get("steps", entry.get("step")), entry.get("values", entry.get("value"))
        times = entry.get("wall_times", entry.get("wall_time", []))
        if not isinstance(steps, list) or not isinstance(values, list):
            return []
        return [
            (number(s), number(v), seconds(times[i]) if isinstance(times, list) and i < len(times) else np.nan) for i, (s, v) in enumerate(zip(steps, values))
        ]
    points = []
    for x in entry if isinstance(entry, list) else []:
        if isinstance(x, list) and len(x) == 2:
            points.append((number(x[0]), number(x[1]), np.nan))
        elif isinstance(x, list) and len(x) == 3:
            points.append((number(x[1]), number(x[2]), seconds(x[0])))
        else:
            points.append((None, None, np.nan))
    return points


SOURCES.add("json", JsonDocument(), __name__)
