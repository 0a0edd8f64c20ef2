"""TensorBoard event files: scalars of any writer, read without the tensorboard package.

TFRecord framing: length (8 bytes), masked CRC-32C of it, payload, masked CRC-32C of that. The payload is an Event: wall
time (field 1, double), step (field 2), summary (field 5) of values: tag (1), simple_value (2, float), or a scalar tensor
(8: double_val 6, float_val 5, int_val 7, int64_val 10, tensor_content 4 with dtype 1) as TF2 writers store it. Tags that
count in samples (Megatron's `... vs samples`) repeat others on another axis and are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from forensics.curves.names import resolve, scaled
from forensics.curves.sources.base import SOURCES, Block, Head, Log, Recorder
from forensics.curves.sources.protobuf import fields

_MAX_RECORD = 1 << 28
_CONTENT = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 14: "<u2"}
_OTHER_AXIS = (" vs samples", " vs tokens", "/vs samples", " vs consumed samples", " vs consumed tokens")


class EventFile:
    """A TensorBoard event file."""

    name = "tensorboard"
    doc = "TensorBoard event files (scalars)"

    def sniff(self, head: Head) -> int:
        """A first record whose length has the right checksum."""
        data = head.data[:12]
        if len(data) < 12:
            return 0
        length, check = struct.unpack("<QI", data)
        return 99 if length < _MAX_RECORD and check == _masked(data[:8]) else 0

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order; a record's line is its number in the file. Successive values of one step are one record."""
        recorder = Recorder()
        names: dict[str, tuple[str, float] | None] = {}
        step, row, at, values = 0, 0, 0.0, dict[str, float]()
        with log.open() as stream:
            for number, payload in _payloads(stream, log):
                try:
                    wall, this, scalars = _event(payload)
                except (ValueError, struct.error):
                    log.problem("an event whose protobuf is broken", number)
                    continue
                for tag, value in scalars:
                    if tag not in names:
                        names[tag] = _named(tag, names, log)
                    named = names[tag]
                    if named is None:
                        continue
                    if values and (this != step or named[0] in values):
                        recorder.add(step, values.items(), row, time=at)
                        values = {}
                        if recorder.full:
                            yield from recorder.cut()
                    step, row, at = this, number, wall
                    values[named[0]] = scaled(value, named[1])
        if values:
            recorder.add(step, values.items(), row, time=at)
        yield from recorder.cut()


def _named(tag: str, names: dict[str, tuple[str, float] | None], log: Log) -> tuple[str, float] | None:
    if tag.endswith(_OTHER_AXIS):
        return None
    mapped = log.options.columns.get(tag)
    if mapped is not None:
        return (mapped, 1.0) if mapped else None
    named = resolve(tag)
    return (tag, 1.0) if any(n is not None and n[0] == named[0] for n in names.values()) else named


def _event(payload: bytes) -> tuple[float, int, list[tuple[str, float]]]:
    wall, step, scalars = np.nan, 0, []
    for number, kind, value in fields(payload):
        if number == 1 and kind == 1 and isinstance(value, int):
            wall = struct.unpack("<d", value.to_bytes(8, "little"))[0]
        elif number == 2 and kind == 0 and isinstance(value, int):
            step = value - (1 << 64) if value >= 1 << 63 else value
        elif number == 5 and isinstance(value, bytes):
            for inner, _, part in fields(value):
                if inner == 1 and isinstance(part, bytes) and (scalar := _scalar(part)) is not None:
                    scalars.append(scalar)
    return wall, step, scalars


def _scalar(value: bytes) -> tuple[str, float] | None:
    tag, found = "", None
    for number, kind, part in fields(value):
        if number == 1 and isinstance(part, bytes):
            tag = part.decode("utf-8", "replace")
        elif number == 2 and kind == 5 and isinstance(part, int):
            found = struct.unpack("<f", part.to_bytes(4, "little"))[0]
        elif number == 8 and isinstance(part, bytes):
            found = _tensor(part)
    return (tag, float(found)) if tag and found is not None else None


def _tensor(tensor: bytes) -> float | None:
    """The number in a tensor of one element."""
    kind_of, content = 0, b""
    values: list[float] = []
    for number, kind, part in fields(tensor):
        if number == 1 and isinstance(part, int):
            kind_of = part
        elif number == 4 and isinstance(part, bytes):
            content = part
        elif number in (5, 6) and isinstance(part, bytes):
            values += np.frombuffer(part, "<f4" if number == 5 else "<f8").tolist()
        elif number in (5, 6) and isinstance(part, int):
            values.append(struct.unpack("<f" if kind == 5 else "<d", part.to_bytes(4 if kind == 5 else 8, "little"))[0])
        elif number in (7, 10) and kind == 0 and isinstance(part, int):
            values.append(float(part - (1 << 64) if part >= 1 << 63 else part))
    if content and kind_of in _CONTENT:
        raw = np.frombuffer(content, _CONTENT[kind_of])
        values += (raw.astype(np.uint32) << 16).view(np.float32).tolist() if kind_of == 14 else raw.tolist()
    return values[0] if len(values) == 1 else None


def _payloads(stream: BinaryIO, log: Log) -> Iterator[tuple[int, bytes]]:
    """Records with their number; a damaged length ends the file, a damaged payload costs one record."""
    number = 0
    while True:
        head = stream.read(12)
        if not head:
            return
        number += 1
        if len(head) < 12:
            log.problem("the last record is cut short; it is left out", number)
            return
        length, check = struct.unpack("<QI", head)
        if check != _masked(head[:8]) or length > _MAX_RECORD:
            log.problem("a damaged frame; nothing behind it can be read", number)
            return
        body = stream.read(length + 4)
        if len(body) < length + 4:
            log.problem("the last record is cut short; it is left out", number)
            return
        if struct.unpack("<I", body[length:])[0] != _masked(body[:length]):
            log.problem("a record with a wrong checksum", number)
            continue
        yield number, body[:length]


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC32C = _table()


def _masked(data: bytes) -> int:
    """TFRecord's masked CRC-32C."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


SOURCES.add("tensorboard", EventFile(), __name__)
