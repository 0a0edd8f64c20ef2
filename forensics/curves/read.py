"""Logs of one run, any trainer, to the table `metrics`.

Several files are one run: they are put in order, restarts are numbered as launches, and what a later launch wrote over
stays in the table under its own launch. What is larger than memory goes through `slabs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.curves.launches import natural, reading_order
from forensics.curves.series import runs_of
from forensics.curves.slabs import Long, LongRun, gather, long_apart
from forensics.curves.sources.base import SOURCES, Block, ColumnMap, Log, Options, Problems, Source, describe_unknown, head_of, sniff
from forensics.curves.traces import Rows, Trace, apart, join_run
from forensics.errors import ForensicsError, StoreError, UsageError, nearest
from forensics.schemas import FAILURES, METRICS, Failures, Metrics

LAST_STEP = 2**53
"""Steps above are no counts: a float64, as many logs store them, cannot tell neighbours apart."""


@dataclass(frozen=True)
class LogsRead:
    """What reading logs gave.

    Attributes:
        metrics: every logged number; of long runs an overview.
        failures: what could not be read, counted.
        formats: file -> name of its source.
        long: runs that are larger than memory, by name.
    """

    metrics: Metrics
    failures: Failures
    formats: dict[str, str]
    long: dict[str, LongRun] = field(default_factory=dict)

    def pieces(self) -> Iterator[Metrics]:
        """Every logged number, in the order of the table, a part at a time."""
        if not self.long:
            yield self.metrics
            return
        for run in runs_of(self.metrics):
            if run in self.long:
                yield from self.long[run].pieces()
            else:
                yield Metrics(self.metrics.filter(pc.equal(self.metrics.column("run").cast(pa.string()), pa.scalar(run))))


def read_metrics(paths: Sequence[Path], run: str = "run", columns: Mapping[str, str] | None = None, *, sequence_length: int | None = None) -> Metrics:
    """The metrics of one run from all its logs; `read_logs` says what could not be read as well.

    Args:
        paths: files or folders of one run, any mix of formats.
        run: its name in the table.
        columns: name in the log -> canonical metric, `step`, `time`, `tokens`, `rank`, `run`, or an empty string to drop it.
        sequence_length: tokens of a row, where only consumed sequences are logged.

    Raises:
        StoreError: when no file holds a metric.
    """
    return read_logs(paths, run, columns, sequence_length=sequence_length).metrics


def read_logs(
    paths: Sequence[Path],
    run: str = "run",
    columns: Mapping[str, str] | None = None,
    *,
    sequence_length: int | None = None,
    format: str | None = None,
    only: str | None = None,
    scratch: Path | None = None,
) -> LogsRead:
    """As `read_metrics`, with the failures and the formats found.

    `format`: a source's name, instead of recognising files; `only`: name of one run of several; `scratch`: a folder that does not exist yet, for what
    is larger than memory, to be deleted by the caller (None: everything stays in memory).
    """
    problems, options = Problems(), Options(ColumnMap(columns), sequence_length)
    traces: list[tuple[Path, Trace | Long]] = []
    formats: dict[str, str] = {}
    errors: list[ForensicsError] = []
    for path in files_of(paths):
        try:
            name, source = _source_of(path, format)
            formats[str(path)] = name
            found = gather(_possible(source.read(Log(path, options, problems)), path, problems), str(path), name, scratch)
            if not any(t.columns for t in found):
                raise _no_record(path, name, format)
            for trace in (t for t in found if t.columns):
                parts: Sequence[Trace | Long] = apart(trace) if isinstance(trace, Trace) else long_apart(trace)
                for part in parts[1:]:
                    begin = part if isinstance(part, Trace) else part.load(0, ())
                    line = int(begin.lines[0])
                    other = f"the steps start over from {begin.steps[0]} with other losses: another run in the same file, read as `{part.run}`"
                    problems.add(path, f"{other}; split the file, or pick one with `--only`", line if line > 0 else None)
                traces += [(path, t) for t in parts]
        except ForensicsError as error:
            errors.append(error)
            problems.add(path, error.message)
    _refuse_unmet(options.columns, formats)
    if not traces:
        raise _nothing(errors, problems)
    if only is not None:
        traces = _picked(traces, only)
    metrics, long = _table(traces, run, problems)
    rows = problems.rows()
    failures = FAILURES.of({"stage": ["read_metrics"] * len(rows), "item": [r[0] for r in rows], "error": [r[1] for r in rows], "count": [r[2] for r in rows]})
    return LogsRead(metrics, Failures(failures), formats, long)


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Files as given; of folders, all files below whose content is a known log, hidden ones left out."""
    if not paths:
        raise UsageError("no log was given")
    found: list[Path] = []
    for path in (Path(p) for p in paths):
        if path.is_dir():
            inside = sorted(
                (p for p in path.rglob("*") if p.is_file() and not any(part.startswith(".") for part in p.relative_to(path).parts)),
                key=lambda p: natural(str(p)),
            )
            logs = [p for p in inside if sniff(head_of(p, 1 << 14)) is not None]
            if not logs:
                raise StoreError(f"no file below {path} is a log of a known format", hint=f"known formats: {', '.join(SOURCES.names())}")
            found += logs
        elif path.exists():
            found.append(path)
        else:
            raise StoreError(f"{path} does not exist")
    return list(dict.fromkeys(found))


def _possible(blocks: Iterable[Block], path: Path, problems: Problems) -> Iterator[Block]:
    """Blocks without the records of steps that no run has, which are counted as a problem."""
    for block in blocks:
        good = (block.steps >= 0) & (block.steps <= LAST_STEP)
        if good.all():
            yield block
            continue
        line = int(block.lines[np.argmin(good)])
        problems.add(path, f"a step below 0 or above {LAST_STEP}; its record is left out", line if line > 0 else None, int((~good).sum()))
        yield block.select(good)


def _source_of(path: Path, format: str | None) -> tuple[str, Source]:
    if format is not None:
        return format, SOURCES.get(format)
    head = head_of(path)
    found = sniff(head)
    if found is None:
        raise describe_unknown(head)
    return found


def _picked(traces: list[tuple[Path, Trace | Long]], only: str) -> list[tuple[Path, Trace | Long]]:
    """The traces of one run.

    Raises:
        UsageError: no log names it.
    """
    names = sorted({t.run for _, t in traces if t.run is not None})
    if only not in names:
        hint = f"runs: {', '.join(names)}" if names else "the logs hold one run, which is not named"
        raise UsageError(f"no log holds a run `{only}`{nearest(only, names)}", hint=hint)
    return [(p, t) for p, t in traces if t.run == only]


def _no_record(path: Path, name: str, format: str | None) -> StoreError:
    """A file without a record: of the format that it looks like, or of the one that was asked for."""
    if format is None:
        return StoreError(f"{path} looks like {name} but holds no record", hint="a live log may need its first record")
    seen = sniff(head_of(path))
    looks = "is no log of a known format" if seen is None else (f"looks like {seen[0]}" if seen[0] != name else "holds no record of it")
    return StoreError(f"{path} was to be read as {name}, but {looks}", hint="leave `--source` out, and the format is recognised by its content")


def _refuse_unmet(columns: Mapping[str, str], formats: Mapping[str, str]) -> None:
    """A name that was mapped and stands in no log is a mistake.

    Raises:
        UsageError: names the nearest one that the logs hold.
    """
    met = columns.met if isinstance(columns, ColumnMap) else set()
    for name in columns:
        if name and formats and name not in met:
            names = sorted(met)
            known = f"the logs hold {', '.join(names[:20])}" + (f" and {len(names) - 20} more" if len(names) > 20 else "")
            hint = known if names else f"names of {', '.join(sorted(set(formats.values())))} are fixed and cannot be mapped"
            raise UsageError(f"no log holds a column `{name}`{nearest(name, names)}", hint=hint)


def _nothing(errors: list[ForensicsError], problems: Problems) -> ForensicsError:
    error = errors[0] if errors else StoreError("no file holds a metric")
    for place, message, count in problems.rows():
        if message != error.message:
            error.add_note(f"{place}: {message}" + (f" ({count} times)" if count > 1 else ""))
    return error


def _table(traces: list[tuple[Path, Trace | Long]], run: str, problems: Problems) -> tuple[Metrics, dict[str, LongRun]]:
    """All rows of runs that fit into memory, an overview of the others, and those."""
    names = {t.run for _, t in traces if t.run is not None}
    groups: dict[str, list[tuple[Path, Trace | Long]]] = {}
    for path, trace in traces:
        own = trace.run if trace.run is not None and len(names) > 1 else None
        groups.setdefault(run if own is None else (own if run == "run" else f"{run}/{own}"), []).append((path, trace))
    rows = Rows(sorted(groups), sorted({m for _, t in traces for m in t.columns}), list(dict.fromkeys(t.file for _, t in traces)))
    long: dict[str, LongRun] = {}
    parts: list[Metrics] = []
    for name in sorted(groups):
        mine = groups[name]
        order = reading_order([p for p, _ in mine], [_clock(t) for _, t in mine])
        ordered = [mine[i][1] for i in order]
        if any(isinstance(t, Long) for t in ordered):
            long[name] = LongRun(name, ordered)
            parts.append(long[name].overview())
            continue
        rows.duplicates.clear()
        rows.add(join_run(name, [t for t in ordered if isinstance(t, Trace)]))
        parts.append(Metrics(METRICS.of(rows.table())))
        if rows.duplicates:
            problems.add(mine[0][0], *duplicated(rows.duplicates))
    return Metrics(METRICS.concat(parts)), long


def duplicated(duplicates: Mapping[str, int]) -> tuple[str, None, int]:
    """The problem of steps that one launch logged more than once: message, no line, count."""
    metric, count = max(duplicates.items(), key=lambda item: item[1])
    return f"steps logged more than once by one launch, most often `{metric}`; the last record is kept", None, count


def _clock(trace: Trace | Long) -> float | None:
    """The first time of a trace."""
    first = trace.load(0, ()) if isinstance(trace, Long) else trace
    return None if first.times is None or np.isnan(first.times).all() else float(np.nanmin(first.times))
