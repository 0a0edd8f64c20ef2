"""The binary `.wandb` file of a W&B run, read without the wandb package; only the history is looked at.

Format, read in files of 2023 to 2026: 7 bytes (`:W&B`, 0xBEE1, version), then LevelDB's log framing in blocks of 32 KiB:
CRC-32 (zlib's, over type and data), length, type (full, first, middle, last). The payload is a protobuf whose field 2 is
a history record: items with key (field 1) or nested key (field 2) and a JSON value (field 16), and W&B's own step.
Everything else in the file (host, user, e-mail, command line, paths, console output) is skipped unread.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from forensics.curves.sources.base import SOURCES, Block, Head, Log
from forensics.curves.sources.protobuf import fields
from forensics.curves.sources.roles import Pairs, Roles, flatten

_BLOCK = 32768
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_SAMPLE = 400


class WandbFile:
    """A run's binary log."""

    name = "wandb"
    doc = "binary .wandb file of a W&B run (history only; host, user and paths are never read)"

    def sniff(self, head: Head) -> int:
        """The file's magic bytes."""
        return 99 if head.data.startswith(b":W&B\xe1\xbe") else 0

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order; a record's line is its number in the history."""
        first: list[tuple[int, dict[str, Any]]] = []
        pairs: Pairs | None = None
        with log.open() as stream:
            for number, record in enumerate(_history(stream, log), 1):
                if pairs is None:
                    first.append((number, record))
                    if len(first) < _SAMPLE:
                        continue
                    pairs = _start(first, log)
                else:
                    pairs.add(record, number)
                if pairs.full:
                    yield from pairs.cut()
        yield from (pairs or _start(first, log)).cut()


def _start(first: list[tuple[int, dict[str, Any]]], log: Log) -> Pairs:
    sample: dict[str, Any] = {}
    for _, record in first:
        for key, value in flatten(record):
            sample.setdefault(key, value)
    pairs = Pairs(Roles(sample, sample, log.options))
    for number, record in first:
        pairs.add(record, number)
    return pairs


def _history(stream: BinaryIO, log: Log) -> Iterator[dict[str, Any]]:
    for payload in _payloads(stream, log):
        try:
            history = next((value for number, kind, value in fields(payload) if number == 2 and kind == 2), None)
            if isinstance(history, bytes):
                record = _record(history)
                if record:
                    yield record
        except ValueError:
            log.problem("a record whose protobuf is broken")


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
            except ValueError:
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
