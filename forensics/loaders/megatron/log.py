"""What a Megatron training log says of the run: arguments, launches, counters, the sizes of its indices.

One pass over logs of any age and of any size: prefixes of launchers (`[default7]:`, `0: `, time stamps), fields in any
order, records wrapped over a few lines, output of several ranks in one file. A start of the program is seen by its
arguments block, its loading of a checkpoint, its building of data sets, or a step number that goes back. Follows the
prints of `megatron/training/{arguments,training,checkpointing}.py` and `megatron/core/datasets`, v2.5 to 0.19.
Loss and other curves are not read here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from forensics.files import lines, open_binary, stamp

BLOCK_LINES = 6000  # an arguments block that has not ended after so many lines was torn
WRAPPED = 3  # lines after which a wrapped record is given up
_ITERATION = re.compile(rb"iteration\s+(\d{1,15})\s*/\s*(\d{1,15})\s*\|(.*)")
_CONSUMED, _BATCH, _DROPPED = b"consumed samples:", b"global batch size:", b"skipped samples:"
_ARGUMENT = re.compile(rb"(?:^|[\s:\]])([A-Za-z_]\w*) (?:\.+(?: |$)|(?<=\w{48} ))(.*)$")
_BEGIN, _END = re.compile(rb"-{5,} (?:updated )?arguments -{5,}"), re.compile(rb"-{5,} end of (?:updated )?arguments -{5,}")
_LOAD = re.compile(rb"loading (?:release )?(?:distributed )?checkpoint from (.+?)(?: at iteration (\d+))?\s*$")
_LOADED = re.compile(rb"successfully loaded checkpoint from (.+?)(?: \[.*?\])? at iteration (\d+)")
_SAVED = re.compile(rb"successfully saved\s+checkpoint (?:from|at) iteration\s+(\d+)")
_EXIT = re.compile(rb"exiting program at iteration (\d+)")
_WORLD = re.compile(rb"using world size: (\d+),? (?:and )?(?:data-parallel|model-parallel)[ -]size: (\d+)")
_TARGET = re.compile(rb"^\W*(?:.*\] -\s+|.*?:\s+)?\s*(train|validation|test):\s+(\d+)\s*$")
_SPLIT = re.compile(rb"(?:Load|Build and save) the (\w+Dataset) (train|valid|test)?\s*ind", re.IGNORECASE)
_PREFIX = re.compile(rb"Load the (?:_IndexReader|\w+) from (.+?)\.idx")
_OLD = re.compile(rb"loading (doc|sample|shuffle)-idx mapping from (.+?)\s*$")
_SAMPLES, _EPOCHS = re.compile(rb"total number of samples:\s*(\d+)"), re.compile(rb"total number of epochs:\s*(\d+)")
_TIME = re.compile(rb"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
_CACHE = re.compile(rb"Load the document index from (\S+)")


@dataclass(frozen=True)
class Built:
    """An index as the trainer reported it.

    Attributes:
        split: `train`, `valid`, `test`, or None where the log does not say.
        prefix: data file, as the run knew it; None where the log does not say.
        samples, epochs: K and E; K of old logs is already reduced by the one they count too many.
    """

    split: str | None
    prefix: str | None
    samples: int
    epochs: int | None
    file: str | None
    line: int


@dataclass
class Points:
    """Counters per logged step; lists of one length. None where a line does not carry the field."""

    step: list[int] = field(default_factory=list)
    consumed: list[int | None] = field(default_factory=list)
    batch: list[int | None] = field(default_factory=list)
    dropped: list[int | None] = field(default_factory=list)
    line: list[int] = field(default_factory=list)
    file: list[Path] = field(default_factory=list)


@dataclass
class LoggedLaunch:
    """One start of the program as logs show it.

    Attributes:
        file, line: where it begins (lines from 1).
        args: arguments block, values typed; empty where the log has none.
        args_line: line of the block.
        loaded: step of the checkpoint it loaded; 0 where it says that it starts afresh; None where it does not say.
        targets: samples asked for: train, validation, test.
        planned: the last step, as `iteration N/PLANNED` prints it.
        saved: steps it saved.
        stopped: step at which it said it exits.
        time: time stamp of its first logged step, as text.
    """

    file: Path
    line: int
    args: dict[str, Any] = field(default_factory=dict)
    args_line: int | None = None
    loaded: int | None = None
    targets: dict[str, int] = field(default_factory=dict)
    built: list[Built] = field(default_factory=list)
    points: Points = field(default_factory=Points)
    planned: int | None = None
    saved: list[int] = field(default_factory=list)
    stopped: int | None = None
    time: str | None = None

    @property
    def first(self) -> int | None:
        """First step logged."""
        return self.points.step[0] if self.points.step else None

    @property
    def last(self) -> int | None:
        """Last step that it certainly finished."""
        known = [*self.points.step[-1:], *self.saved[-1:], *([self.stopped] if self.stopped is not None else [])]
        return max(known) if known else None

    @property
    def origin(self) -> str:
        """Where its arguments were read, for people."""
        return f"log {self.file.name}:{self.args_line or self.line}"

    def go_on(self, later: LoggedLaunch) -> None:
        """Take over what a later file says of the same launch."""
        for name in ("step", "consumed", "batch", "dropped", "line", "file"):
            getattr(self.points, name).extend(getattr(later.points, name))
        self.saved += later.saved
        self.built += later.built
        self.planned, self.stopped = later.planned or self.planned, later.stopped

    def after_step(self) -> tuple[int | None, bool]:
        """(steps finished when it started, whether the log says so rather than implies it)."""
        if self.loaded is not None:
            return self.loaded, True
        if self.first is None:
            return None, False
        if self.first == 1 or not self.points.step[1:]:
            return self.first - 1, self.first == 1
        given = self.args.get("log_interval")
        every = given if isinstance(given, int) and given > 0 else self.points.step[1] - self.points.step[0]
        # newer trainers also log the first step of a launch, whatever the interval
        return max(0, self.first - every if self.first % every == 0 else self.first - 1), self.first == every

    def consumed(self) -> int | None:
        """Samples counted when it started, where its first line implies it: the next step, or a constant batch since."""
        start, _ = self.after_step()
        if start == 0:
            return 0
        if start is None or not self.points.step:
            return None
        seen, batch = self.points.consumed[0], self.points.batch[0]
        if seen is None or batch is None:
            return None
        steps = self.points.step[0] - start
        varies = any(self.args.get(name) for name in ("rampup_batch_size", "step_batch_size_schedule", "decrease_batch_size_if_needed"))
        before = seen - steps * batch
        return before if before >= 0 and (steps == 1 or (self.args and not varies)) else None


def read_logs(paths: Sequence[Path]) -> list[LoggedLaunch]:
    """Every start of the program that these logs show, in order of time.

    Files keep the order they are given in, unless all of them carry time stamps. A file that goes on where the one before
    ended, without a start of its own, belongs to the launch before.

    Raises:
        StoreError: a file cannot be read.
    """
    return list(_read_logs(tuple(stamp(path) for path in paths)))


@lru_cache(maxsize=2)
def _read_logs(stamps: tuple[tuple[str, int, int], ...]) -> tuple[LoggedLaunch, ...]:
    """The same by name, size and time: one command asks several times and a log may be large."""
    files = [found for name, _, _ in stamps if (found := _Reader(Path(name)).read())]
    times = [next((x.time for x in found if x.time), None) for found in files]
    if all(times):
        files = [found for _, found in sorted(zip(times, files, strict=True), key=lambda pair: str(pair[0]))]
    out: list[LoggedLaunch] = []
    for launch in (x for found in files for x in found):
        starts = bool(launch.args) or launch.loaded is not None or bool(launch.targets)
        if out and not starts and launch.first is not None and out[-1].last is not None and launch.first > out[-1].last:
            out[-1].go_on(launch)
        else:
            out.append(launch)
    return tuple(out)


class _Reader:
    """One pass over one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.launches: list[LoggedLaunch] = []
        self.number = 0
        self.in_block = 0
        self.wrapped: tuple[int, bytes] | None = None
        self.split: str | None = None
        self.prefix: str | None = None
        self.file: str | None = None
        self.old = False
        self.samples: int | None = None
        self.in_targets = False

    def read(self) -> list[LoggedLaunch]:
        with open_binary(self.path) as stream:
            for raw in lines(stream):
                self.number += 1
                self.line(raw.rstrip(b"\r"))
        self.finish_samples()
        return [x for x in self.launches if x.args or x.points.step or x.loaded is not None or x.targets]

    def now(self) -> LoggedLaunch:
        if not self.launches:
            self.launches.append(LoggedLaunch(self.path, self.number))
        return self.launches[-1]

    def begin(self) -> LoggedLaunch:
        self.finish_samples()
        self.launches.append(LoggedLaunch(self.path, self.number))
        self.split = self.prefix = self.file = None
        return self.launches[-1]

    def starting(self) -> LoggedLaunch:
        """The launch that is coming up: a new one where the last has trained already."""
        return self.begin() if self.launches and self.launches[-1].points.step else self.now()

    def line(self, raw: bytes) -> None:
        if self.in_block:
            self.argument(raw)
        elif b"iteration" in raw and (m := _ITERATION.search(raw)):
            self.step(m)
        elif self.wrapped is not None:
            self.unwrap(raw)
        elif b"arguments" in raw and _BEGIN.search(raw):
            self.block()
        elif raw.startswith(b"time (ms)"):
            return
        elif b"heckpoint" in raw or b"exiting program" in raw:
            self.checkpoint(raw)
        elif b"dataset" in raw or b"ndex" in raw or b"total number" in raw or b"-idx" in raw or self.in_targets or b"using world size" in raw:
            self.data(raw)

    # ---- arguments

    def block(self) -> None:
        launch = self.starting()
        if launch.args and launch.args_line is not None and (launch.targets or launch.loaded is not None or launch.built):
            launch = self.begin()  # it started, never logged a step, and started again
        launch.args, launch.args_line = {}, self.number
        self.in_block = 1

    def argument(self, raw: bytes) -> None:
        self.in_block += 1
        if _END.search(raw) or self.in_block > BLOCK_LINES:
            self.in_block = 0
        elif _ITERATION.search(raw) or _BEGIN.search(raw):
            self.in_block = 0
            self.line(raw)
        elif len(raw) < 1 << 20 and (m := _ARGUMENT.search(raw)):
            self.now().args[m[1].decode()] = value_of(m[2].decode("utf-8", "replace"))

    # ---- steps

    def step(self, m: re.Match[bytes]) -> None:
        step, rest = int(m[1]), m[3]
        if _CONSUMED not in rest and b"elapsed time" not in rest:
            self.wrapped = (1, m[0])
            return
        self.point(step, int(m[2]), rest, m.string)

    def unwrap(self, raw: bytes) -> None:
        assert self.wrapped is not None
        count, text = self.wrapped
        text += b" " + raw
        self.wrapped = (count + 1, text) if count < WRAPPED else None
        m = _ITERATION.search(text)
        if m and (_BATCH in text or self.wrapped is None) and _CONSUMED in text:
            self.wrapped = None
            self.point(int(m[1]), int(m[2]), text, text)

    def point(self, step: int, planned: int, rest: bytes, raw: bytes) -> None:
        launch = self.now()
        if launch.points.step and step <= launch.points.step[-1]:
            if step == launch.points.step[-1] and _number(rest, _CONSUMED) == launch.points.consumed[-1]:
                return  # the same line of another rank
            launch = self.begin()
        if not launch.points.step and (found := _TIME.search(raw[:200])):
            launch.time = found[0].decode().replace("T", " ")
        launch.planned = planned
        launch.points.step.append(step)
        launch.points.line.append(self.number)
        launch.points.file.append(self.path)
        launch.points.consumed.append(_number(rest, _CONSUMED))
        launch.points.batch.append(_number(rest, _BATCH))
        launch.points.dropped.append(_number(rest, _DROPPED))

    # ---- checkpoints and data sets

    def checkpoint(self, raw: bytes) -> None:
        if m := _SAVED.search(raw):
            self.now().saved.append(int(m[1]))
        elif m := _EXIT.search(raw):
            self.now().stopped = int(m[1])
        elif (m := _LOADED.search(raw)) or (m := _LOAD.search(raw)):
            launch = self.starting()
            if launch.args.get("finetune") is True or b"release" in m[0]:
                launch.loaded = 0
            elif m[2] is not None:
                launch.loaded = int(m[2])
        elif b"will not load any checkpoints" in raw:
            self.starting().loaded = 0

    def data(self, raw: bytes) -> None:
        if m := _WORLD.search(raw):
            launch = self.starting()
            launch.args.setdefault("world_size", int(m[1]))
            if b"data-parallel" in m[0]:
                launch.args.setdefault("data_parallel_size", int(m[2]))
        elif b"datasets target sizes" in raw:
            self.in_targets = True
            self.starting()
        elif self.in_targets and (m := _TARGET.search(raw)):
            self.now().targets[m[1].decode()] = int(m[2])
            self.in_targets = m[1] != b"test"
        elif b"building train, validation, and test datasets" in raw:
            self.starting()
        else:
            self.index(raw)

    def index(self, raw: bytes) -> None:
        if m := _PREFIX.search(raw):
            self.prefix = m[1].decode("utf-8", "replace")
        elif m := _SPLIT.search(raw):
            self.finish_samples()
            self.split, self.file, self.old = (m[2].decode().lower() if m[2] else None), None, False
        elif m := _CACHE.search(raw):
            self.file = m[1].decode("utf-8", "replace").rsplit("/", 1)[-1]
        elif m := _OLD.search(raw):
            self.finish_samples()
            self.old, name = True, m[2].decode("utf-8", "replace")
            self.file = name.rsplit("/", 1)[-1]
            parts = re.match(r"(.*)_(train|valid|test)(?:_\d+)?_indexmap_", name)
            self.prefix, self.split = (parts[1], parts[2]) if parts else (None, None)
        elif m := _SAMPLES.search(raw):
            self.finish_samples()
            self.samples = int(m[1]) - self.old
        elif (m := _EPOCHS.search(raw)) and self.samples is not None:
            self.built(int(m[1]))

    def finish_samples(self) -> None:
        if self.samples is not None:
            self.built(None)

    def built(self, epochs: int | None) -> None:
        assert self.samples is not None
        self.now().built.append(Built(self.split, self.prefix, self.samples, epochs, self.file, self.number))
        self.samples = None


def _number(text: bytes, name: bytes) -> int | None:
    """The whole number behind a field's name; None where it is absent or torn."""
    at = text.find(name)
    if at < 0:
        return None
    at += len(name)
    value = text[at : at + 32].partition(b"|")[0].strip()
    return int(value) if value.isdigit() and len(value) < 19 else None


def value_of(text: str) -> Any:
    """The value that an arguments block prints: numbers, flags, None, lists; everything else stays text."""
    text = text.strip()
    if text in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[text]
    if re.fullmatch(r"[-+]?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\d+\.\d*|\.\d+|\d+)(e[-+]?\d+)?|[-+]?inf|nan", text, re.IGNORECASE):
        return float(text)
    if text[:1] in ("[", "{") and len(text) < 1 << 20:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text
    return text


def known(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that were given: None means not."""
    return {k: v for k, v in args.items() if v is not None}
