"""Length-delimited protobuf fields: the little of the wire format that event files need."""

from __future__ import annotations

from collections.abc import Iterator


def fields(data: bytes | memoryview) -> Iterator[tuple[int, int, int | bytes]]:
    """Field number, wire type and value: an integer for varint and fixed fields (raw bits), bytes for the others.

    Raises:
        ValueError: when the bytes are no such message.
    """
    at, size = 0, len(data)
    while at < size:
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at)
            yield number, kind, value
        elif kind == 2:
            length, at = varint(data, at)
            if at + length > size:
                raise ValueError("a field reaches beyond its message")
            yield number, kind, bytes(data[at : at + length])
            at += length
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            if at + width > size:
                raise ValueError("a field reaches beyond its message")
            yield number, kind, int.from_bytes(data[at : at + width], "little")
            at += width
        else:
            raise ValueError(f"wire type {kind}")


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """An integer and the place behind it.

    Raises:
        ValueError: when it is cut short or too long.
    """
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("an integer is cut short")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
