"""Trainers that print one record per line of text: the common part of their sources.

A format is a pattern that finds the step in a line, and one that finds the fields behind it. Names, units and suffixes
(`562.8ms`, `22.8K`, `12.3GiB`, `1,234`) are shared; each format's file says what is particular to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from forensics.curves.names import FACTORS, resolve, scaled
from forensics.curves.sources.base import Block, Head, Log, Recorder
from forensics.curves.sources.roles import STEPS, clock, number

DATE = re.compile(r"(\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:\d\d)?)|(\d\d/\d\d/\d{4} \d\d:\d\d:\d\d)")
MAGNITUDE = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
QUANTITY = re.compile(
    r"(?P<number>[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?))\s*(?P<unit>[A-Za-z%]*)", re.I
)


def quantity(text: str) -> tuple[float, float | None] | None:
    """A number with its suffix: value in the suffix's base unit, and the factor where the suffix is a unit (None: there was none)."""
    found = QUANTITY.match(text.strip())
    value = number(found["number"]) if found else None
    if found is None or value is None:
        return None
    unit = found["unit"]
    if unit in MAGNITUDE:
        return value * MAGNITUDE[unit], None
    if unit.lower() in FACTORS:
        return value, FACTORS[unit.lower()]
    return value, None


@dataclass(frozen=True)
class LineFormat:
    """A source whose records are lines.

    Attributes:
        record: finds a record; its group `step` is the step, an optional group `set` names a held-out set.
        pairs: finds fields in the rest of the line: groups `key` and `value`.
        names: the trainer's names -> canonical (empty: left out); others by `resolve`.
        held_out: a record that matches this is an evaluation: its losses are held-out losses.
        offset: added to the step as printed, where the trainer counts otherwise.
    """

    name: str
    doc: str
    record: re.Pattern[str]
    pairs: re.Pattern[str]
    names: Mapping[str, str] = field(default_factory=dict)
    held_out: re.Pattern[str] | None = None
    sure: int = 70

    def sniff(self, head: Head) -> int:
        """Some line is a record with a loss or another known field."""
        if head.binary:
            return 0
        return self.sure if any(self.parse(row) for row in head.rows) else 0

    def parse(self, text: str) -> tuple[int, list[tuple[str, float]], float | None] | None:
        """Step, fields in canonical units, tokens consumed; None where the line is no record."""
        found = self.record.search(text)
        if found is None:
            return None
        values: list[tuple[str, float]] = []
        tokens: float | None = None
        for pair in self.pairs.finditer(text, found.end("step")):
            read = quantity(pair["value"])
            if read is None:
                continue
            name, value = self._named(pair["key"].strip(), *read)
            if name == "consumed_tokens":
                tokens = value
            elif name:
                values.append((name, value))
        if self.held_out is not None and self.held_out.search(text):
            values = [(f"eval_{n.removeprefix('train_')}" if n in ("train_loss", "train_ppl", "train_accuracy") else n, v) for n, v in values]
        return (int(found["step"].replace(",", "")), values, tokens) if values else None

    def _named(self, key: str, value: float, unit: float | None) -> tuple[str, float]:
        named = self.names.get(key)
        name, factor = (named, 1.0) if named is not None else resolve(key)
        factor = unit if unit is not None else factor
        return name, scaled(value, factor) if factor != 1.0 else value

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order; lines that are no records are other output."""
        recorder = Recorder()
        for line, text, torn in log.lines():
            parsed = self.parse(text)
            if parsed is None:
                continue
            step, values, tokens = parsed
            if torn:
                log.problem("the last record lacks its line feed; its last field may be cut short and is left out", line)
                values = values[:-1]
            date = DATE.search(text)
            at = clock(date[1] or date[2]) if date else math.nan
            recorder.add(step, values, line, time=at, tokens=-1 if tokens is None or not math.isfinite(tokens) else int(tokens))
            if recorder.full:
                yield from recorder.cut()
        yield from recorder.cut()


@dataclass(frozen=True)
class PairLines:
    """A source whose records are a header line with the step and one pair of key and value a line behind it.

    Attributes:
        header: finds a header; its group `step` is the step.
        pair: matches a line of a record: groups `key` and `value`.
    """

    name: str
    doc: str
    header: re.Pattern[str]
    pair: re.Pattern[str]

    def sniff(self, head: Head) -> int:
        """A header with a pair behind it."""
        rows = head.rows
        return 92 if any(self.header.search(a) and self.pair.match(b) for a, b in zip(rows, rows[1:])) else 0

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order."""
        recorder = Recorder()
        step, at, first = 0, math.nan, 0
        values: list[tuple[str, float]] | None = None
        tokens = -1
        for line, text, torn in log.lines():
            pair = self.pair.match(text) if values is not None else None
            if values is not None and pair is not None:
                if torn:
                    log.problem("the last line lacks its line feed; its value may be cut short and is left out", line)
                    continue
                found = number(pair["value"])
                name, factor = resolve(pair["key"].strip())
                if found is None:
                    log.problem(f"`{pair['key'].strip()[:40]}` holds no number", line)
                elif pair["key"].strip().lower() in STEPS:
                    continue
                elif name == "consumed_tokens":
                    tokens = int(found) if math.isfinite(found) else -1
                else:
                    values.append((name, scaled(found, factor)))
                continue
            if values:
                recorder.add(step, values, first, time=at, tokens=tokens)
            values = None
            header = self.header.search(text)
            if header is not None:
                date = DATE.search(text)
                step, first, values, tokens = int(header["step"].replace(",", "")), line, [], -1
                at = clock(date[1] or date[2]) if date else math.nan
            if recorder.full:
                yield from recorder.cut()
        if values:
            recorder.add(step, values, first, time=at, tokens=tokens)
        yield from recorder.cut()
