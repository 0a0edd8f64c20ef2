"""What a checkpoint asked for, not built: the values that reading a foreign pickle gives beside plain ones.

`forensics.pickles` makes them, `forensics.unpickle` opens the files around and reads tensors; both import from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forensics.errors import StoreError


class PickleProblem(StoreError):
    """The stream is damaged or asks for more than it is allowed; the caller adds the file."""


@dataclass(frozen=True)
class Limits:
    """What one pickle may cost.

    Args:
        opcodes: instructions, in all.
        produced: bytes and elements that builders may copy beyond what the stream itself holds.
        stream: bytes of one pickle stream.
        marks: marks open at a time, a measure of nesting while building.
        entries: files in one zip archive.
        array: bytes of one tensor or array that is read on demand.
    """

    opcodes: int = 40_000_000
    produced: int = 1 << 28
    stream: int = 1 << 29
    marks: int = 10_000
    entries: int = 200_000
    array: int = 1 << 28


@dataclass(frozen=True)
class Named:
    """A class or function that the pickle names; never imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Made:
    """What a call or an instance would have been: the name, its arguments, and the state set afterwards."""

    what: object
    args: tuple[object, ...] = ()
    state: dict[object, object] = field(default_factory=dict)
    extra: object = None
    items: list[object] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<{self.what if isinstance(self.what, Named) else 'object'}, not built>"


@dataclass(eq=False)
class Array:
    """A numpy array or scalar as pickled: its header and bytes, read on demand."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    fortran: bool = False
    data: bytes = b""

    def numpy(self) -> NDArray[np.generic]:
        """Returns: a copy of the array [shape]."""
        try:
            kind = np.dtype(self.dtype)
        except TypeError as x:
            raise PickleProblem(f"unknown array type {self.dtype!r}") from x
        if kind.hasobject or len(self.shape) > 32 or any(n < 0 for n in self.shape):
            raise PickleProblem("an array of Python objects cannot be read")
        count = 1
        for n in self.shape:
            count *= n
        if count * kind.itemsize != len(self.data):
            raise PickleProblem(f"array of {self.shape} {self.dtype} holds {len(self.data)} bytes")
        return np.frombuffer(self.data, kind).reshape(self.shape, order="F" if self.fortran else "C").copy()

    def __repr__(self) -> str:
        return f"<array {list(self.shape)} {self.dtype}>"
