"""The binary `.wandb` file of a W&B run, read without the wandb package: the history, and of system statistics what a trainer would log.

Format, read in files of 2023 to 2026: 7 bytes (`:W&B`, 0xBEE1, version), then LevelDB's log framing in blocks of 32 KiB:
CRC-32 (zlib's, over type and data), length, type (full, first, middle, last). The payload is a protobuf whose field 2 is
a history record: items with key (field 1) or nested key (field 2) and a JSON value (field 16), and W&B's own step. Field 7 holds
statistics of the machine, which belong to the step logged before them.
Everything else in the file (host, user, e-mail, command line, paths, console output) is skipped unread.
"""

from __future__ import annotations

import itertools
import json
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from forensics.curves.names import scaled
from forensics.curves.sources.base import SOURCES, Block, Head, Log, Recorder
from forensics.curves.sources.protobuf import fields
from forensics.curves.sources.roles import Pairs, Roles, flatten

_BLOCK = 32768
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_SAMPLE = 400
_SYSTEM = {  # W&B's names of what it measures -> ours; everything else (disks, network, process and host names) is not read
    "gpu.gpu": ("gpu_utilization", 0.01),
    "gpu.memoryAllocated": ("memory_share", 0.01),
    "gpu.memoryAllocatedBytes": ("memory_allocated", 1.0),
    "gpu.powerWatts": ("power", 1.0),
    "gpu.temp": ("temperature", 1.0),
    "gpu.smClock": ("sm_clock", 1e6),
    "proc.memory.rssMB": ("cpu_memory", 2.0**20),
}


class WandbFile:
    """A run's binary log."""

    name = "wandb"
    doc = "binary .wandb file of a W&B run (history and device statistics; host, user and paths are never read)"

    def sniff(self, head: Head) -> int:
        """The file's magic bytes."""
        return 99 if head.data.startswith(b":W&B\xe1\xbe") else 0

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order; a record's line is its number in the history."""
        with log.open() as stream:
            records = _records(stream, log)
            first = list(itertools.islice(records, _SAMPLE))
            sample: dict[str, Any] = {}
            for key, value in (pair for record in first if isinstance(record, dict) for pair in flatten(record)):
                sample.setdefault(key, value)
            pairs, system, number = Pairs(Roles(sample, sample, log.options)), Recorder(), 0
            for record in itertools.chain(first, records):
                if isinstance(record, dict):
                    number += 1
                    pairs.add(record, number)
                elif None in pairs.last:
                    system.add(pairs.last[None], record.values, number, time=record.time)
                if pairs.full or system.full:
                    yield from pairs.cut()
                    yield from system.cut()
        yield from pairs.cut()
        yield from system.cut()
        pairs.report(log)


@dataclass(frozen=True)
class Statistics:
    """What W&B measured of the machine at a moment: canonical names, worst device of the node where several were measured."""

    time: float
    values: list[tuple[str, float]]


def _records(stream: BinaryIO, log: Log) -> Iterator[dict[str, Any] | Statistics]:
    """History records and statistics in file order."""
    for payload in _payloads(stream, log):
        try:
            for number, kind, value in fields(payload):
                if kind != 2 or not isinstance(value, bytes):
                    continue
                if number == 2 and (record := _record(value)):
                    yield record
                elif number == 7 and (found := _statistics(value)).values:
                    yield found
        except ValueError:
            log.problem("a record whose protobuf is broken")


def _statistics(data: bytes) -> Statistics:
    """Fields of a statistics record: time (2: seconds 1, nanoseconds 2) and items (3: key 1, JSON value 16)."""
    at = float("nan")
    worst: dict[str, float] = {}
    for number, _, value in fields(data):
        if not isinstance(value, bytes):
            continue
        inner = {n: v for n, _, v in fields(value)}
        if number == 2 and isinstance(seconds := inner.get(1), int):
            at = seconds + int(inner.get(2, 0) or 0) / 1e9
        key, text = inner.get(1), inner.get(16)
        if number != 3 or not isinstance(key, bytes) or not isinstance(text, bytes):
            continue
        named = _SYSTEM.get(re.sub(r"^gpu\.\d+\.", "gpu.", key.decode("utf-8", "replace")))
        try:
            read = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if named is not None and isinstance(read, (int, float)):
            name, factor = named
            got = scaled(float(read), factor)
            least = name in ("gpu_utilization", "sm_clock")
            worst[name] = got if name not in worst else (min if least else max)(worst[name], got)
    return Statistics(at, list(worst.items()))


def _record(history: bytes) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for number, _, value in fields(history):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            key, text = "", b""
            for inner, _, part in fields(value):
                if isinstance(part, bytes):
                    if inner == 1:
                        key = part.decode("utf-8", "replace")
                    elif inner == 2:
                        key = f"{key}/{part.decode('utf-8', 'replace')}" if key else part.decode("utf-8", "replace")
                    elif inner == 16:
                        text = part
            try:
                record[key] = json.loads(text)
            except (ValueError, RecursionError):
                continue
        elif number == 2 and (step := next((v for n, k, v in fields(value) if n == 1 and k == 0), None)) is not None:
            record.setdefault("_step", step)
    return record


def _payloads(stream: BinaryIO, log: Log) -> Iterator[bytes]:
    """Whole records; broken ones are reported and reading goes on at the next block."""
    stream.read(7)
    left = _BLOCK - 7
    parts: list[bytes] = []
    while True:
        if left < _HEADER.size:
            stream.read(left)
            left = _BLOCK
        head = stream.read(_HEADER.size)
        if len(head) < _HEADER.size:
            if head or parts:
                log.problem("the last record is cut short; it is left out")
            return
        check, length, kind = _HEADER.unpack(head)
        if not check and not length and not kind:  # padding of a block that ended early
            stream.read(left - _HEADER.size)
            left = _BLOCK
            continue
        data = stream.read(length)
        left -= _HEADER.size + length
        if len(data) < length:
            log.problem("the last record is cut short; it is left out")
            return
        if left < 0 or zlib.crc32(data, zlib.crc32(bytes([kind]))) != check:
            log.problem("a damaged record; reading goes on at the next block of 32 KiB")
            parts = []
            stream.read(max(0, left))
            left = _BLOCK
            continue
        if kind in (_FULL, _FIRST):
            parts = [data]
        elif parts:
            parts.append(data)
        if kind in (_FULL, _LAST) and parts:
            yield b"".join(parts)
            parts = []


SOURCES.add("wandb", WandbFile(), __name__)
