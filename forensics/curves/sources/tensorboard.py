"""TensorBoard event files: scalars of any writer, read without the tensorboard package.

TFRecord framing: length (8 bytes), masked CRC-32C of it, payload, masked CRC-32C of that. The payload is an Event: wall
time (field 1, double), step (field 2), summary (field 5) of values: tag (1), simple_value (2, float), or a scalar tensor
(8: double_val 6, float_val 5, int_val 7, int64_val 10, tensor_content 4 with dtype 1) as TF2 writers store it. Tags that
count in samples (Megatron's `... vs samples`) repeat others on another axis and are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np

from forensics.curves.names import resolve, scaled
from forensics.curves.sources.base import SOURCES, Block, Head, Log, Recorder
from forensics.curves.sources.protobuf import fields, varint

_MAX_RECORD = 1 << 28
_BATCH = 4096
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
        return 99 if length < _MAX_RECORD and check == _masked_length(data[:8]) else 0

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order; a record's line is its number in the file. Successive values of one step are one record."""
        recorder = Recorder()
        names: dict[str, tuple[str, float] | None] = {}
        step, row, at, values = 0, 0, 0.0, dict[str, float]()
        with log.open() as stream:
            for number, payload in _payloads(stream, log):
                try:
                    wall, this, scalars = _plain(payload) or _event(payload)
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


def _plain(payload: bytes) -> tuple[float, int, list[tuple[str, float]]] | None:
    """An event of one simple value, as nearly all are; None for any other layout."""
    if len(payload) < 20 or payload[0] != 0x09 or payload[9] != 0x10:
        return None
    size = len(payload)
    step, at = varint(payload, 10)
    for key in (0x2A, 0x0A):
        if at >= size or payload[at] != key:
            return None
        length, at = varint(payload, at + 1)
        if at + length != size:
            return None
    if at >= size or payload[at] != 0x0A:
        return None
    length, at = varint(payload, at + 1)
    end = at + length
    if end + 5 != size or payload[end] != 0x15 or step >= 1 << 63:
        return None
    return struct.unpack_from("<d", payload, 1)[0], step, [(payload[at:end].decode("utf-8", "replace"), struct.unpack_from("<f", payload, end + 1)[0])]


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
    number, ended = 0, False
    while not ended:
        batch: list[tuple[int, bytes]] = []
        while len(batch) < _BATCH:
            number += 1
            body = _frame(stream, number, log)
            if body is None:
                ended = True
                break
            batch.append((number, body))
        good = _sound([body for _, body in batch])
        for (at, body), sound in zip(batch, good):
            if sound:
                yield at, body[:-4]
            else:
                log.problem("a record with a wrong checksum", at)


def _frame(stream: BinaryIO, number: int, log: Log) -> bytes | None:
    """The next payload with its checksum; None at the end, which is reported where the file is cut or damaged there."""
    head = stream.read(12)
    if not head:
        return None
    if len(head) < 12:
        log.problem("the last record is cut short; it is left out", number)
        return None
    length, check = struct.unpack("<QI", head)
    if length > _MAX_RECORD or check != _masked_length(head[:8]):
        log.problem("a damaged frame; nothing behind it can be read", number)
        return None
    body = stream.read(length + 4)
    if len(body) < length + 4:
        log.problem("the last record is cut short; it is left out", number)
        return None
    return body


def _sound(bodies: list[bytes]) -> list[bool]:
    """Whether each payload has the checksum behind it; records of one length are checked together."""
    lengths: dict[int, list[int]] = {}
    for i, body in enumerate(bodies):
        lengths.setdefault(len(body), []).append(i)
    sound = [True] * len(bodies)
    for length, places in lengths.items():
        rows = np.frombuffer(b"".join(bodies[i] for i in places), np.uint8).reshape(len(places), length)
        crc = np.full(len(places), 0xFFFFFFFF, np.uint32)
        for column in rows[:, :-4].T:
            crc = _CRC32C[(crc ^ column) & 0xFF] ^ (crc >> np.uint32(8))
        crc ^= np.uint32(0xFFFFFFFF)
        masked = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
        for i, right in zip(places, masked == np.ascontiguousarray(rows[:, -4:]).view("<u4")[:, 0]):
            sound[i] = bool(right)
    return sound


def _table() -> Any:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & 1, np.uint32(0x82F63B78), np.uint32(0))
    return table


_CRC32C = _table()


@lru_cache(maxsize=4096)
def _masked_length(head: bytes) -> int:
    """TFRecord's masked CRC-32C of a length; a log has few different ones."""
    crc = 0xFFFFFFFF
    for byte in head:
        crc = int(_CRC32C[(crc ^ byte) & 0xFF]) ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


SOURCES.add("tensorboard", EventFile(), __name__)
