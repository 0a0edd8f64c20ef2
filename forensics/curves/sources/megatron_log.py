"""Standard output of Megatron-LM and its descendants (Megatron-DeepSpeed, GPT-NeoX, Megatron-LLM, Megatron Bridge, BLOOM).

Follows `training_log` of `megatron/training/training.py` (2020 to core 0.19) and what forks made of it: fields between
bars in any order, milliseconds or seconds, prefixes of launchers, records that a terminal or a chronicle wrapped.

Two traps. Megatron prints a loss only where its average is greater than zero, so a loss that is not finite makes the
field vanish while the counter of NaN iterations may stay 0: such a step is recorded as NaN. Where every update of the
interval was skipped the field is absent too, and then the loss is not known; the grad norm printed beside it is the one
of an earlier step and is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from forensics.curves.names import resolve, scaled
from forensics.curves.sources.base import SOURCES, Block, Column, Head, Log, Recorder
from forensics.curves.sources.roles import WORDS, clock

HEADER = re.compile(r"\biteration:?\s+(\d+)\s*/\s*(\d+)\s*\|")
HEADER_BYTES = re.compile(rb"\biteration:?\s+(\d+)\s*/\s*(\d+)\s*\|")
_VALIDATION = re.compile(r"\b(validation|valid|test)\b[\w ]*?\b(?:loss|results?)\b[\w ]*?\bat (?:iteration\s+(\d+)|(?:the )?end of training)([^|]*)\|(.*)")
_DATE = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_RANK = re.compile(r"\[(?:default|rank)(\d+)\]|^\s*(\d{1,5}):\s")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_TIMER = re.compile(r"^\s+(batch-generator|save-checkpoint|evaluate|evaluation)\s*\.*:\s*\(\s*([\d.]+),\s*([\d.]+)\)")
_MEMORY = re.compile(r"\[Rank (\d+)\].*?after (\d+) iterations.*?memory \(MB\)\s*\|(.*)", re.I)
_SEQ_LENGTH = re.compile(r"^(?:\[[^\]]*\]:?\s*)*\s*seq_length\s*\.{3,}\s*(\d+)\s*$")
_REST = re.compile(r"\s*(?!time \(ms\))[a-z][A-Za-z0-9_ ()/-]*:\s")
_AFTER_LOSS = ("loss_scale", "grad_norm", "skipped_steps", "nan_steps", "grad_zeros", "params_norm")
_TIMERS = {"batch-generator": "data_time", "save-checkpoint": "save_time", "evaluate": "eval_time", "evaluation": "eval_time"}
_MEBI = 2.0**20
MAX_WRAP = 8


def value_of(text: str) -> float | None:
    """The number a field's value begins with; `nan` and `inf` in words."""
    text = text.strip()
    if text[-1:].isdigit() and text[:1] in "+-.0123456789":
        try:
            return float(text) if "_" not in text else None
        except ValueError:
            pass
    word = WORDS.get(text.lower())
    if word is not None:
        return word
    found = _NUMBER.match(text)
    if found is None:
        return None
    rest = text[found.end() :]
    return float(found[0]) if not rest or not re.search(r"\d", rest) else None


class Fields:
    """What a file's field names mean; a fork's own name of the main loss is learnt when no known one is there."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.names: dict[str, tuple[str, float]] = {}

    @property
    def knows_loss(self) -> bool:
        """Whether a field has been met that is the main loss."""
        return any(name == "train_loss" for name, _ in self.names.values())

    def name(self, key: str) -> tuple[str, float]:
        """Canonical name and factor; `consumed_samples`, `consumed_tokens` are axes."""
        known = self.names.get(key)
        if known is None:
            mapped = self.log.options.columns.get(key)
            known = (mapped, resolve(key)[1]) if mapped is not None else resolve(re.sub(r"\s+", " ", key))
            self.names[key] = known
        return known

    def main_loss(self, fields: list[tuple[str, float]]) -> list[tuple[str, float]]:
        """The fields with the fork's own loss under `train_loss`, where the record names none and one unknown loss."""
        if any(name == "train_loss" for name, _ in fields):
            return fields
        own = [name for name, _ in fields if name.lower().rstrip().endswith("loss") and not name.startswith(("aux_loss", "eval_"))]
        if len(own) != 1:
            return fields
        for key, (name, factor) in self.names.items():
            if name == own[0]:
                self.names[key] = ("train_loss", factor)
        return [("train_loss" if name == own[0] else name, value) for name, value in fields]


@dataclass
class Record:
    """A record to which timers printed behind it may still be added."""

    step: int
    values: dict[str, float]
    line: int
    time: float = math.nan
    tokens: int = -1
    rank: int = -1


class Reader:
    """Reads one log line by line; `cut` gives the blocks."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.fields = Fields(log)
        self.recorder = Recorder()
        self.sequence_length = log.options.sequence_length
        self.parts: list[str] = []
        self.first = 0
        self.last_step: int | None = None
        self.totals: set[int] = set()
        self.total = -1
        self.grad_norm: float | None = None
        self.open: Record | None = None
        self.tail: list[str] = []
        self.closed = self.started = 0
        self.before: tuple[int | None, float | None, int] = (None, None, -1)

    def feed(self, line: int, text: str, torn: bool) -> None:
        """One line of the log."""
        self._line(line, text, torn)
        if not self.parts and self.closed != line:
            self.tail = []

    def _line(self, line: int, text: str, torn: bool) -> None:
        if "iteration" in text and HEADER.search(text):
            self.finish(False)
            self.parts, self.first = [text], line
            if torn or text.rstrip().endswith("|"):
                self.finish(torn)
                self.closed = line
        elif self.parts:
            self._continue(line, text, torn)
        elif self.tail and "|" in text and _REST.match(text):
            self._reopen(line, text, torn)
        elif "|" in text or "(" in text or "seq_length" in text or "validation" in text:
            self._other(line, text if not torn or text.rstrip().endswith("|") else text.rpartition("|")[0])

    def _continue(self, line: int, text: str, torn: bool) -> None:
        """A line after a record without its closing bar: the record's rest, or something else."""
        own = (
            bool(text.strip())
            and not re.match(r"\s*(time \(ms\)|-{5,}|\(min, max\)|\[\d{4}-|\[Rank|WARNING|validation)", text)
            and not _VALIDATION.search(text)
        )
        if not own or len(self.parts) >= MAX_WRAP:
            self.finish(False)
            self.feed(line, text, torn)
            return
        self.parts.append(text)
        if torn or text.rstrip().endswith("|"):
            self.finish(torn)
            self.closed = line

    def _reopen(self, line: int, text: str, torn: bool) -> None:
        """The record before was wrapped right behind a bar: it is read again with this line."""
        self.open, self.parts, self.first = None, [*self.tail, text], self.started
        self.last_step, self.grad_norm, self.total = self.before
        if torn or text.rstrip().endswith("|"):
            self.finish(torn)
            self.closed = line

    def finish(self, torn: bool) -> None:
        """The record in hand becomes a row."""
        if not self.parts:
            return
        parts, self.parts = self.parts, []
        self.tail, self.started, self.before = parts, self.first, (self.last_step, self.grad_norm, self.total)
        text = parts[0] if len(parts) == 1 else self._unwrap(parts)
        header = HEADER.search(text)
        if header is None:
            return
        body = text[header.end() :]
        if torn and not body.rstrip().endswith("|"):
            self.log.problem("the last record is cut short; its whole fields are kept", self.first)
            body = body.rpartition("|")[0]
        self._record(text[: header.start()], int(header[1]), int(header[2]), body)

    def _unwrap(self, parts: list[str]) -> str:
        """A wrapped record as one line: joined with or without a space, whichever makes each field readable."""
        text = parts[0].rstrip("\n")
        for part in parts[1:]:
            spaced, glued = f"{text.rstrip()} {part.lstrip()}", text + part
            text = glued if self._readable(glued) > self._readable(spaced) else spaced
        return text

    def _readable(self, text: str) -> int:
        score = 10 * bool(HEADER.search(text))
        for field in text.split("|")[1:]:
            key, colon, value = field.rpartition(":")
            if colon and value_of(value) is not None:
                score += 1 + (resolve(re.sub(r"\s+", " ", key.strip()))[0] != key.strip())
        return score

    def _record(self, before: str, step: int, total: int, body: str) -> None:
        fields: list[tuple[str, float]] = []
        for field in (body if "|" not in before else before.rpartition("]")[2] + "|" + body).split("|"):
            key, colon, text = field.rpartition(":")
            value = value_of(text) if colon else None
            if value is None:
                if text.strip() and colon:
                    self.log.problem(f"field `{key.strip()[:40]}` holds no number", self.first)
                continue
            name, factor = self.fields.name(key.strip())
            if name:
                fields.append((name, value if factor == 1.0 else scaled(value, factor)))
        fields = self.fields.main_loss(fields)
        have = dict(fields)
        tokens = have.pop("consumed_tokens", None)
        if have.get("loss_scale", 0.0) < 0:
            del have["loss_scale"]
        step = int(have.pop("global_step", step))  # NeMo's `iteration` counts within the epoch
        self._judge_loss(step, have)
        samples = have.get("consumed_samples")
        if tokens is None and samples is not None and self.sequence_length is not None:
            tokens = samples * self.sequence_length
        if self.totals and total not in self.totals and self.last_step is not None and step <= self.last_step:
            lengths = f"({total} steps instead of {self.total})"
            self.log.problem(f"steps go back with another length of training {lengths}: another run in the same file? it is read as a later launch", self.first)
        self.totals.add(total)
        self.total = total
        self.last_step = step
        date, rank = (_DATE.search(before), _RANK.search(before)) if before.strip() else (None, None)
        self.close()
        rows = -1 if tokens is None or not math.isfinite(tokens) else int(tokens)
        self.open = Record(step, have, self.first, clock(date[1]) if date else math.nan, rows, -1 if rank is None else int(rank[1] or rank[2]))

    def close(self) -> None:
        """The record in hand goes to the recorder."""
        if self.open is not None:
            record, self.open = self.open, None
            self.recorder.add(record.step, record.values.items(), record.line, time=record.time, tokens=record.tokens, rank=record.rank)

    def _judge_loss(self, step: int, have: dict[str, float]) -> None:
        """The loss field is absent: NaN, or not known because nothing was updated."""
        interval = step - self.last_step if self.last_step is not None and step > self.last_step else None
        skipped = have.get("skipped_steps", 0.0)
        idle = skipped >= 1 and (interval is None or skipped >= interval)
        norm = have.get("grad_norm")
        if "train_loss" not in have and any(name in have for name in _AFTER_LOSS):
            if not idle:
                have["train_loss"] = math.nan
            elif norm is not None and norm == self.grad_norm:
                del have["grad_norm"]
        if norm is not None:
            self.grad_norm = norm

    def _other(self, line: int, text: str) -> None:
        """Validation results, timers, memory, the one argument that turns sequences into tokens."""
        if found := _VALIDATION.search(text):
            self._validation(line, found)
        elif text.lstrip().startswith("time (ms)"):
            self._timers([(_TIMERS[key], value / 1e3) for key, value in _pairs(text) if key in _TIMERS], line)
        elif found := _TIMER.match(text):
            self._timers([(_TIMERS[found[1]], float(found[3]) / 1e3)], line)
        elif found := _MEMORY.search(text):
            values = [(resolve(key)[0], value * _MEBI) for key, value in _pairs("|" + found[3])]
            self.close()
            self.recorder.add(int(found[2]), values, line, rank=int(found[1]))
        elif self.log.options.sequence_length is None and (found := _SEQ_LENGTH.match(text)):
            self.sequence_length = int(found[1])

    def _timers(self, values: list[tuple[str, float]], line: int) -> None:
        if self.open is not None:
            self.open.values.update(values)
        elif values and self.last_step is not None:
            self.recorder.add(self.last_step, values, line)

    def _validation(self, line: int, found: re.Match[str]) -> None:
        step = int(found[2]) if found[2] else self.last_step
        if step is None:
            return
        label = re.sub(r"\b(?:on|for|the|validation|valid|val|set|data|dataset|split)\b", " ", found[3])
        label = "-".join(re.findall(r"[A-Za-z0-9_.\-/]+", label))
        label = label if found[1] != "test" else f"test-{label}".rstrip("-").removesuffix("-test")
        values = []
        for key, value in _pairs("|" + found[4]):
            name = resolve(re.sub(r"[ _]value$", "", key))[0]
            held = {"train_loss": "eval_loss", "train_ppl": "eval_ppl"}.get(name, f"eval_{name.removeprefix('aux_loss/')}")
            values.append((f"{held}/{label}" if label else held, value))
        if values:
            self.close()
            self.recorder.add(step, values, line)


def _pairs(text: str) -> Iterator[tuple[str, float]]:
    """Fields after the first bar."""
    for field in text.split("|")[1:]:
        key, colon, rest = field.rpartition(":")
        value = value_of(rest) if colon else None
        if value is not None:
            yield key.strip(), value


FAST_BYTES = 1 << 25  # below this the careful reader is done before the kernel is compiled (some seconds, once per machine)
LEARN_LINES = 300


class Scanner:
    """Runs the compiled kernel beside a careful reader and keeps both in step."""

    CAPACITY = 1 << 15

    def __init__(self, reader: Reader) -> None:
        from forensics.curves import megatron_kernel as kernel

        self.kernel, self.reader = kernel, reader
        self.known = 0
        self.names: list[str] = []
        self.steps, self.lines, self.clocks, self.ranks = (np.zeros(self.CAPACITY, np.int64) for _ in range(4))

    @classmethod
    def load(cls, reader: Reader) -> Scanner | None:
        """None where numba cannot be used here: the careful reader does it all, only slower."""
        try:
            return cls(reader)
        except ImportError:
            return None

    def _learn(self) -> None:
        """The field names that the careful reader has met since."""
        fields = self.reader.fields.names
        self.known = len(fields)
        self.names = list(dict.fromkeys(["train_loss", *(name for name, _ in fields.values() if name), *_TIMERS.values()]))
        column = {name: i for i, name in enumerate(self.names)}
        self.factors = {column[name]: factor for name, factor in fields.values() if name and factor != 1.0}
        mixed = {name for name, factor in fields.values() if any(n == name and f != factor for n, f in fields.values())}
        usable = {key: name for key, (name, _) in fields.items() if name not in mixed and name != "global_step"}
        self.hashes, self.columns = self.kernel.table_of({key: column[name] if name else -1 for key, name in usable.items()})
        self.timer_hashes, self.timer_columns = self.kernel.table_of({key: column[name] for key, name in _TIMERS.items()})
        self.values = np.zeros((self.CAPACITY, len(self.names)))
        self.present = np.zeros((self.CAPACITY, len(self.names)), np.bool_)

    def scan(self, data: bytes, at: int, line: int) -> tuple[Block | None, int, int]:
        """Plain records from a place on: their block, the place and how many lines were passed. The last record stays open in the reader."""
        if self.known != len(self.reader.fields.names):
            self._learn()
        rows, place, passed, _ = self.kernel.scan(
            np.frombuffer(data, np.uint8),
            at,
            self.reader.total,
            self.hashes,
            self.columns,
            self.timer_hashes,
            self.timer_columns,
            0,
            self.kernel.POWERS,
            self.steps,
            self.lines,
            self.clocks,
            self.ranks,
            self.values,
            self.present,
        )
        if not rows:
            return None, place, passed
        self.reader.close()
        values, present = self.values[:rows], self.present[:rows]
        columns: dict[str, Column] = {}
        for i, name in enumerate(self.names):
            known = present[:, i] & (values[:, i] >= 0) if name == "loss_scale" else present[:, i]
            if known.any():
                read = values[known, i]
                read = scaled(read, self.factors[i]) if i in self.factors else read
                columns[name] = Column(read) if known.all() else Column(read, np.flatnonzero(known))
        block = self._block(rows, line, columns)
        return self._keep_last(block), place, passed

    def _block(self, rows: int, line: int, columns: dict[str, Column]) -> Block:
        clocks, ranks = self.clocks[:rows], self.ranks[:rows].copy()
        tokens = columns.pop("consumed_tokens", None)
        if tokens is None and "consumed_samples" in columns and self.reader.sequence_length is not None:
            samples = columns["consumed_samples"]
            tokens = Column(samples.values * self.reader.sequence_length, samples.rows)
        counted = None
        if tokens is not None:
            counted = np.full(rows, -1, np.int64)
            counted[slice(None) if tokens.rows is None else tokens.rows] = tokens.values.astype(np.int64)
        times = None if (clocks < 0).all() else np.where(clocks < 0, np.nan, clocks.astype(np.float64))
        return Block(self.steps[:rows].copy(), columns, self.lines[:rows] + line, times=times, tokens=counted, ranks=None if (ranks < 0).all() else ranks)

    def _keep_last(self, block: Block) -> Block | None:
        """All records but the last, which the reader keeps open for timers behind it."""
        last = len(block.steps) - 1
        have = {}
        columns = {}
        for name, column in block.columns.items():
            if column.rows is None:
                have[name], columns[name] = float(column.values[last]), Column(column.values[:last])
            else:
                own = column.rows[-1] == last
                if own:
                    have[name] = float(column.values[-1])
                values, rows = (column.values[:-1], column.rows[:-1]) if own else (column.values, column.rows)
                if len(rows):
                    columns[name] = Column(values) if len(rows) == last else Column(values, rows)
        reader = self.reader
        reader.open = Record(
            int(block.steps[last]),
            have,
            int(block.lines[last]),
            math.nan if block.times is None else float(block.times[last]),
            -1 if block.tokens is None else int(block.tokens[last]),
            -1 if block.ranks is None else int(block.ranks[last]),
        )
        reader.last_step, reader.grad_norm = reader.open.step, have.get("grad_norm", reader.grad_norm)
        if not last:
            return None
        cut = slice(0, last)
        return Block(
            block.steps[cut],
            columns,
            block.lines[cut],
            times=None if block.times is None else block.times[cut],
            tokens=None if block.tokens is None else block.tokens[cut],
            ranks=None if block.ranks is None else block.ranks[cut],
        )


class MegatronLog:
    """Megatron-LM standard output."""

    name = "megatron"
    doc = "standard output of Megatron-LM and forks (Megatron-DeepSpeed, GPT-NeoX, Megatron-LLM, Bridge)"

    def sniff(self, head: Head) -> int:
        """A record with `iteration N/ M |`, also one that begins within the first quarter of a megabyte of other output."""
        if HEADER_BYTES.search(head.data):
            return 90
        arguments = b"end of arguments" in head.data or b"megatron" in head.data[:20000].lower() or b"validation loss at iteration" in head.data
        return 40 if arguments and not head.binary else 0

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order: a long log through the compiled scan, each line that is not plain through the careful reader."""
        reader = Reader(log)
        scanner: Scanner | None = None
        long, torn = log.large(FAST_BYTES), False
        for data, first, torn in log.chunks():
            at, line = 0, first
            while at < len(data):
                if scanner is not None and not reader.parts:
                    block, at, passed = scanner.scan(data, at, line)
                    line += passed
                    if block is not None:
                        yield from reader.recorder.cut()
                        yield block
                stop = data.find(b"\n", at)
                stop = len(data) if stop < 0 else stop
                if at < len(data):
                    reader.feed(line, data[at:stop].decode("utf-8", "replace").rstrip("\r"), torn and stop == len(data))
                    at, line = stop + 1, line + 1
                    if long and scanner is None and line % LEARN_LINES == 0 and reader.fields.knows_loss:
                        scanner = Scanner.load(reader)
                        long = scanner is not None
                if reader.recorder.full:
                    yield from reader.recorder.cut()
        reader.finish(torn)
        reader.close()
        yield from reader.recorder.cut()


SOURCES.add("megatron", MegatronLog(), __name__)
