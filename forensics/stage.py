"""What a stored result depends on.

A stage is an ordinary function from values and tables to one named table. The decorator attaches the table it returns
and a version; `Case.run` uses them to check the result and to know when a stored one can be used again.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa

from forensics.files import digest, stamp
from forensics.schemas import TableType

P = ParamSpec("P")
T = TypeVar("T")
MARK = b"forensics.fingerprint"


@dataclasses.dataclass(frozen=True)
class Stage(Generic[P, T]):
    """A function with the table it returns and the version of its results."""

    table: TableType
    version: int
    function: Callable[P, T]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The function itself: no case, no files."""
        return self.function(*args, **kwargs)

    @property
    def name(self) -> str:
        """Module and function, for provenance."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def mark(self, *args: object, **kwargs: object) -> str:
        """Fingerprint of the result that these arguments give."""
        named = sorted((k, fingerprint(v)) for k, v in kwargs.items())
        return digest(self.table.name, self.table.version, self.name, self.version, [fingerprint(a) for a in args], named)


def stage(table: TableType, version: int) -> Callable[[Callable[P, T]], Stage[P, T]]:
    """Declare a stage. Raise `version` when its results change for the same input."""

    def wrap(function: Callable[P, T]) -> Stage[P, T]:
        return Stage(table, version, function)

    return wrap


def fingerprint(value: Any) -> str:
    """A hash that is equal exactly when the value is, across processes.

    Plain values, frozen dataclasses, arrays, paths (by size and time where they exist), tables (by their own mark where
    they came from a case, else by content), and objects with an attribute `fingerprint`.
    """
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    if isinstance(value, pa.Table):
        mark = (value.schema.metadata or {}).get(MARK)
        return mark.decode() if mark else content(value.replace_schema_metadata(None).combine_chunks())
    if isinstance(found := getattr(value, "fingerprint", None), str):
        return found
    if isinstance(value, Path):
        return digest(*stamp(value)) if value.is_file() else str(value)
    if isinstance(value, np.ndarray):
        return digest(value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
    if isinstance(value, enum.Enum):
        return repr(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return digest(type(value).__qualname__, [(f.name, fingerprint(getattr(value, f.name))) for f in dataclasses.fields(value)])
    if hasattr(value, "__struct_fields__"):
        return digest(type(value).__qualname__, [(f, fingerprint(getattr(value, f))) for f in value.__struct_fields__])
    if isinstance(value, Mapping):
        return digest("map", sorted((str(k), fingerprint(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return digest("list", [fingerprint(v) for v in value])
    if isinstance(value, (set, frozenset)):
        return digest("set", sorted(fingerprint(v) for v in value))
    raise TypeError(f"no fingerprint for {type(value).__qualname__}; give it an attribute `fingerprint`")


class _Hash(io.RawIOBase):
    """A file that keeps a hash of what is written to it."""

    def __init__(self) -> None:
        self.state = hashlib.blake2b(digest_size=16)

    def writable(self) -> bool:
        return True

    def write(self, part: Any) -> int:
        self.state.update(part)
        return len(part)


def content(table: pa.Table) -> str:
    """A hash of a table's names, types and rows, in the pieces that it is in."""
    out = _Hash()
    with pa.ipc.new_stream(pa.PythonFile(out, "w"), table.schema) as stream:
        stream.write_table(table)
    return out.state.hexdigest()
