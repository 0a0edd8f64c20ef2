"""What commands share: option types, printing data on stdout and everything else on stderr, progress with a forecast."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import pyarrow as pa

    from forensics.compiled import Ahead

_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_NUMBER = re.compile(r"-?[\d,]*\.?\d*(?:e[-+]?\d+)?|nan|-?inf")


class Format(StrEnum):
    """How data are printed."""

    table = "table"
    json = "json"
    csv = "csv"


class AnswerFormat(StrEnum):
    """How an answer is printed that is more than one table."""

    table = "table"
    json = "json"


RunArgument = Annotated[
    Path | None, typer.Argument(help="Run description, or a folder with `forensics.yaml`. Default: the nearest upwards.", show_default=False)
]
StepsOption = Annotated[str, typer.Option("--steps", help="Steps START:STOP, half-open, as the trainer's log numbers them.")]
CaseOption = Annotated[Path | None, typer.Option("--output", "-o", help="Case folder to write.", show_default=False)]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key: --set args.train_iters=50000.", show_default=False)]
RuleOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting; `configs/audit` and `configs/curves` name them.", show_default=False),
]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="YAML file with settings.", show_default=False)]
FormatOption = Annotated[Format, typer.Option("--format", help="How to print.")]
AnswerFormatOption = Annotated[AnswerFormat, typer.Option("--format", help="How to print.")]
LaunchOption = Annotated[int | None, typer.Option("--launch", help="Which launch, where a step was run twice; the last one by default.", show_default=False)]


class Pulse:
    """A line on stderr when a command has said nothing for a while: the first kernels of a machine compile for a minute, and silence looks like a hang.

    Args:
        first_s: silence before the first such line [s]; each further one waits twice as long.
        every_s: how often to look [s].
    """

    def __init__(self, first_s: float = 10.0, every_s: float = 1.0) -> None:
        self.wait, self.every, self.start, self.last, self.stage = first_s, every_s, time.monotonic(), time.monotonic(), ""

    def heard(self) -> None:
        """Something was said."""
        self.last = time.monotonic()

    def at(self, line: str) -> None:
        """A stage was finished; only kept, for the next line."""
        self.stage = line.partition(":")[0]

    def begin(self) -> None:
        """Watch from now on, in a thread that ends with the program."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(self.every)
            if time.monotonic() - self.last >= self.wait:
                self.wait *= 2
                self.heard()
                try:
                    sys.stderr.write(("\r\033[K" if sys.stderr.isatty() else "") + self.line() + "\n")
                    sys.stderr.flush()
                except (OSError, ValueError):  # nobody listens any more
                    return

    def line(self) -> str:
        """What is being done, as far as known."""
        doing = "compiling kernels, once per machine and version" if _compiling() else "at work"
        return f"{doing}, {time.monotonic() - self.start:.0f} s so far" + (f"; last done: {self.stage}" if self.stage else "")


PULSE = Pulse()


def _compiling() -> bool:
    """Whether some thread holds numba's compiler lock."""
    lock = getattr(getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None), "_lock", None)
    if lock is None or not lock.acquire(blocking=False):
        return lock is not None
    lock.release()
    return False


def compile_ahead(context: typer.Context, *uses: str) -> Ahead:
    """Should this machine's kernels have to be compiled, say so once and use all cores for it.

    Args:
        context: of the command, with which that ends.
        uses: of `compiled.SECONDS`, what is to come.
    """
    from forensics.compiled import Ahead
    from forensics.engines.local import usable_cores

    helpers = min(usable_cores(), 4) - 1
    ahead = Ahead(uses, helpers, lambda seconds: say(f"compiling kernels, once per machine and version: up to about {seconds:.0f} s"))
    ahead.begin()
    context.call_on_close(ahead.close)
    return ahead


def say(line: str = "") -> None:
    """A line for people, on stderr."""
    PULSE.heard()
    typer.echo(_tame(line), err=True)


def answer(line: str = "", coloured: bool = False) -> None:
    """A line of data, on stdout; with `coloured` its escape sequences are our own."""
    PULSE.heard()
    typer.echo(line if coloured else _tame(line))


def _tame(line: str) -> str:
    """The line with control characters made visible: names of files, metrics and runs are strangers' text."""
    from forensics.text import visible

    return _STEERING.sub(lambda found: visible(found[0]), line)


def print_json(value: Any) -> None:
    """JSON on stdout; NaN and infinity become null, bytes hexadecimal."""
    typer.echo(json.dumps(_finite(value), indent=1, ensure_ascii=False, default=lambda v: v.hex() if isinstance(v, bytes) else str(v)))


def print_table(table: pa.Table, form: Format, columns: Sequence[str] | None = None, limit: int | None = None) -> None:
    """An Arrow table on stdout."""
    if columns:
        table = table.select(list(columns))
    shown = table if limit is None else table.slice(0, limit)
    if form is Format.json:
        print_json(shown.to_pylist())
    elif form is Format.csv:
        import csv

        writer = csv.writer(sys.stdout)
        writer.writerow(shown.column_names)
        writer.writerows(["" if v is None else v.hex() if isinstance(v, bytes) else v for v in row.values()] for row in shown.to_pylist())
    else:
        print_rows(shown.column_names, [list(r.values()) for r in shown.to_pylist()])
        if limit is not None and table.num_rows > limit:
            say(f"({table.num_rows - limit:,} more rows)")


def print_rows(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Aligned columns on stdout; numbers right."""
    from forensics.text import one_line

    cells = [[one_line(_cell(v), 80) for v in row] for row in rows]
    widths = [max([len(n), *(len(r[i]) for r in cells)]) for i, n in enumerate(names)]
    numeric = [bool(cells) and all(_NUMBER.fullmatch(r[i]) for r in cells) for i in range(len(names))]
    for row in [list(names), *cells]:
        answer("  ".join(c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric)).rstrip())


class Progress:
    """`label 37 % (12 of 32), about 14 s left` on stderr; silent where stderr is no terminal, but for a last line."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.start, self.shown = label, max(1, total), time.monotonic(), 0.0

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if not sys.stderr.isatty() or (now - self.shown < 0.2 and done < self.total):
            return
        self.shown = now
        PULSE.heard()
        left = (now - self.start) * (self.total - done) / max(1, done)
        sys.stderr.write(f"\r{self.label} {100 * done // self.total} % ({done:,} of {self.total:,}), about {left:.0f} s left\033[K")
        sys.stderr.write("\n" if done >= self.total else "")
        sys.stderr.flush()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e6 else f"{value:.4f}".rstrip("0").rstrip(".")
    if isinstance(value, list):
        return ", ".join(_cell(v) for v in value)
    return value.hex() if isinstance(value, bytes) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
