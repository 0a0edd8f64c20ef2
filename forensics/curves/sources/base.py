"""What a metric source is: it recognises its own files by content and turns them into blocks of records.

A source never decides what a step's final value is, which launch a record belongs to, or what a curve means: it reports
what was logged, in the file's order, in canonical names and units. `forensics.curves.read` does the rest. Reading is
streamed: a source yields blocks, and its working memory does not grow with the file.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from forensics.errors import StoreError
from forensics.files import GZIP, ZSTD, blocks, open_binary
from forensics.registry import Registry

HEAD_BYTES = 1 << 18
BLOCK_RECORDS = 1 << 16
_CONTROL = bytes(c for c in range(32) if c not in (9, 10, 11, 12, 13, 27))

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """Values of one metric in a block. `rows` None: one value per record; else the records that logged it."""

    values: Floats
    rows: Ints | None = None


@dataclass(frozen=True)
class Block:
    """Records in the order of the file.

    Attributes:
        steps: [n] step of each record.
        columns: canonical metric -> values.
        lines: [n] line (in binary files record) number from 1; -1 = not known.
        times: [n] seconds since 1970 in UTC; NaN = not known.
        tokens: [n] tokens consumed up to and including the step; -1 = not known.
        ranks: [n] rank that logged it; -1 = global.
        run: name of the run where the file names it.
        cumulative: the tokens are a running total for certain; else their course decides.
        launches: [n] launch that logged it, where the file says so; -1 = not known.
    """

    steps: Ints
    columns: Mapping[str, Column]
    lines: Ints
    times: Floats | None = None
    tokens: Ints | None = None
    ranks: Ints | None = None
    run: str | None = None
    cumulative: bool = True
    launches: Ints | None = None

    def select(self, keep: NDArray[np.bool_]) -> Block:
        """The records of a mask [n]."""
        moved = np.cumsum(keep) - 1
        columns = {}
        for name, column in self.columns.items():
            chosen = keep if column.rows is None else keep[column.rows]
            columns[name] = Column(column.values[chosen], None if column.rows is None else moved[column.rows[chosen]])
        tokens, ranks, launches = (None if axis is None else axis[keep] for axis in (self.tokens, self.ranks, self.launches))
        times = None if self.times is None else self.times[keep]
        return replace(self, steps=self.steps[keep], columns=columns, lines=self.lines[keep], times=times, tokens=tokens, ranks=ranks, launches=launches)


@dataclass
class Problems:
    """What could not be read, counted by kind, with the first place of each."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: dict[tuple[str, str], int | None] = field(default_factory=dict)

    def add(self, path: Path, message: str, line: int | None = None, count: int = 1) -> None:
        """Count a problem of a file; lower case, no full stop."""
        key = (str(path), message)
        self.counts[key] += count
        self.first.setdefault(key, line)

    def rows(self) -> list[tuple[str, str, int]]:
        """Place, message, count."""
        return [(f"{path}:{self.first[path, message]}" if self.first[path, message] else path, message, n) for (path, message), n in self.counts.items()]


class ColumnMap(dict[str, str]):
    """Name in the log -> canonical name; remembers the names that the sources looked up, which are those that the logs hold."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        super().__init__(given or {})
        self.met: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The canonical name of a name in the log."""
        self.met.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.met.add(str(key))
        return super().__contains__(key)


@dataclass(frozen=True)
class Options:
    """What the user says about logs that do not say it themselves.

    Attributes:
        columns: name in the log -> canonical name, `step`, `time`, `tokens`, `rank`, `run`, or an empty string to drop it.
        sequence_length: tokens of a row, to turn consumed samples into tokens.
    """

    columns: Mapping[str, str] = field(default_factory=ColumnMap)
    sequence_length: int | None = None


@dataclass(frozen=True)
class Log:
    """A file being read: where, with what options, and where to report problems."""

    path: Path
    options: Options
    problems: Problems

    def open(self) -> BinaryIO:
        """The bytes, decompressed."""
        return open_binary(self.path)

    def large(self, size: int) -> bool:
        """Whether the file holds more bytes than that, a compressed one taken as six times its size."""
        with self.path.open("rb") as raw:
            packed = raw.read(4).startswith((GZIP, ZSTD))
        return self.path.stat().st_size * (6 if packed else 1) > size

    def blocks(self, size: int = 1 << 22) -> Iterator[bytes]:
        """Decompressed bytes in pieces; a damaged tail is reported and ends the file."""
        with self.open() as stream:
            pieces = blocks(stream, size)
            while True:
                try:
                    piece = next(pieces, b"")
                except (OSError, EOFError, zlib.error, ValueError) as error:
                    self.problem(f"the compressed stream is damaged or cut short ({_reason(error)}); what came before is kept")
                    return
                except Exception as error:  # zstandard raises its own class, which must not be imported for gzip files
                    if type(error).__module__.partition(".")[0] != "zstandard":
                        raise
                    self.problem(f"the compressed stream is damaged or cut short ({_reason(error)}); what came before is kept")
                    return
                if not piece:
                    return
                yield piece

    def chunks(self, size: int = 1 << 22) -> Iterator[tuple[bytes, int, bool]]:
        """Whole lines in large pieces: bytes, number of the first line (from 1), whether the last line lacks its line feed."""
        rest, number = b"", 1
        for piece in self.blocks(size):
            data = rest + piece if rest else piece
            cut = data.rfind(b"\n") + 1
            rest = data[cut:]
            if cut:
                yield data[:cut], number, False
                number += data.count(b"\n", 0, cut)
        if rest:
            yield rest, number, True

    def lines(self) -> Iterator[tuple[int, str, bool]]:
        """Number (from 1), text, and whether the line is the last and lacks its line feed."""
        for data, number, torn in self.chunks():
            rows = data.split(b"\n")
            if not torn:
                rows.pop()
            for i, row in enumerate(rows):
                yield number + i, row.decode("utf-8", "replace").rstrip("\r"), torn and i == len(rows) - 1

    def problem(self, message: str, line: int | None = None, count: int = 1) -> None:
        """Report something that could not be read."""
        self.problems.add(self.path, message, line, count)


def _reason(error: Exception) -> str:
    return str(error).strip().rstrip(".").lower() or type(error).__name__


@dataclass(frozen=True)
class Head:
    """The beginning of a file, decompressed, for recognising it.

    Attributes:
        whole: the file is not longer than this.
    """

    path: Path
    data: bytes
    whole: bool

    @cached_property
    def text(self) -> str:
        """As text; bytes that are no UTF-8 become U+FFFD."""
        return self.data.decode("utf-8", "replace")

    @cached_property
    def rows(self) -> list[str]:
        """Whole lines that are not blank (the last one too where the file ends there)."""
        rows = self.text.split("\n")
        return [row.rstrip("\r") for row in (rows if self.whole else rows[:-1] or rows) if row.strip()]

    @cached_property
    def binary(self) -> bool:
        """More than a few control characters (a crash may leave some NUL bytes in a text log)."""
        sample = self.data[:65536]
        return len(sample) - len(sample.translate(None, _CONTROL)) > 0.02 * len(sample)


def head_of(path: Path, size: int = HEAD_BYTES) -> Head:
    """The first bytes of a file, decompressed as far as that goes.

    Raises:
        StoreError: when the file cannot be opened.
    """
    taken: list[bytes] = []
    with open_binary(path) as stream:
        try:
            while (left := size - sum(map(len, taken))) > 0:
                piece = stream.read(min(left, 1 << 14))
                if not piece:
                    return Head(path, b"".join(taken), True)
                taken.append(piece)
        except (EOFError, gzip.BadGzipFile, zlib.error, OSError):
            return Head(path, b"".join(taken), True)
        except Exception as error:  # zstandard's own class, as above
            if type(error).__module__.partition(".")[0] != "zstandard":
                raise
            return Head(path, b"".join(taken), True)
    return Head(path, b"".join(taken), False)


class Source(Protocol):
    """One log format."""

    @property
    def name(self) -> str:
        """What it is called in messages."""
        ...

    @property
    def doc(self) -> str:
        """One line on the format."""
        ...

    def sniff(self, head: Head) -> int:
        """How sure it is that the file is its own: 0 (no) to 100."""
        ...

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks of records; problems go to `log.problem`."""
        ...


SOURCES: Registry[Source] = Registry("metric source", "forensics.curves.sources")


def sniff(head: Head) -> tuple[str, Source] | None:
    """The source that is surest of a file, if any is."""
    scores = [(source.sniff(head), name, source) for name, source in SOURCES.items()]
    best = max(scores, key=lambda s: s[0])
    return (best[1], best[2]) if best[0] > 0 else None


def describe_unknown(head: Head) -> StoreError:
    """Why a file is no log that we know."""
    known = ", ".join(SOURCES.names())
    if not head.data:
        return StoreError(f"{head.path} is empty", hint="give the file the trainer writes its metrics to; a live log may need its first record")
    if head.binary:
        return StoreError(f"{head.path} is binary and no known log (first bytes {head.data[:8].hex(' ')})", hint=f"known formats: {known}")
    first = head.rows[0][:60] if head.rows else ""
    return StoreError(
        f"{head.path}: no known log format; its first line reads {first!r}",
        hint=f"known formats: {known}; any table can be read as csv or jsonl with a column map",
    )


class Recorder:
    """Collects records one by one and cuts them into blocks."""

    def __init__(self, run: str | None = None, cumulative: bool = True) -> None:
        self.run, self.cumulative = run, cumulative
        self._clear()

    def _clear(self) -> None:
        self.steps: list[int] = []
        self.lines: list[int] = []
        self.times: list[float] = []
        self.tokens: list[int] = []
        self.ranks: list[int] = []
        self.launches: list[int] = []
        self.columns: dict[str, tuple[list[int], list[float]]] = {}

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def full(self) -> bool:
        """Whether it is time to cut a block."""
        return len(self.steps) >= BLOCK_RECORDS

    def add(
        self, step: int, values: Iterable[tuple[str, float]], line: int, *, time: float = np.nan, tokens: int = -1, rank: int = -1, launch: int = -1
    ) -> None:
        """One record: canonical names with values in canonical units."""
        row = len(self.steps)
        columns = self.columns
        for name, value in values:
            column = columns.get(name)
            if column is None:
                column = columns[name] = ([], [])
            if column[0] and column[0][-1] == row:  # named twice in one record: the last one stands
                column[1][-1] = value
                continue
            column[0].append(row)
            column[1].append(value)
        self.steps.append(step)
        self.lines.append(line)
        self.times.append(time)
        self.tokens.append(tokens)
        self.ranks.append(rank)
        self.launches.append(launch)

    def cut(self) -> Iterator[Block]:
        """The records so far as one block, if there are any; starts anew."""
        if self.steps:
            n = len(self.steps)
            columns = {name: Column(np.array(values), None if len(rows) == n else np.array(rows, np.int64)) for name, (rows, values) in self.columns.items()}
            times, tokens, ranks = np.array(self.times), np.array(self.tokens, np.int64), np.array(self.ranks, np.int64)
            launches = np.array(self.launches, np.int64)
            yield Block(
                np.array(self.steps, np.int64),
                columns,
                np.array(self.lines, np.int64),
                times=None if np.isnan(times).all() else times,
                tokens=None if (tokens < 0).all() else tokens,
                ranks=None if (ranks < 0).all() else ranks,
                launches=None if (launches < 0).all() else launches,
                run=self.run,
                cumulative=self.cumulative,
            )
        self._clear()
