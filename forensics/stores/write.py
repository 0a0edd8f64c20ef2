"""Writing sequences: large `.npz` archives piece by piece, small Megatron corpora, and lines of JSON.

A dump may be larger than memory. An `.npz` is a zip of arrays whose headers hold the number of rows, and only one member
can be written at a time; so columns go to temporary files beside the archive and are put together at the end.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import zipfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from forensics.files import make_folder, writing
from forensics.stores.megatron import MAGIC, TOKEN_TYPES


class NpzWriter:
    """An `.npz` that grows by rows.

    Args:
        path: the archive; it appears whole when the block ends well, or not at all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns: dict[str, tuple[IO[bytes], np.dtype[Any], tuple[int, ...]]] = {}
        self._rows: dict[str, int] = {}

    def __enter__(self) -> NpzWriter:
        self._folder = tempfile.TemporaryDirectory(dir=make_folder(self.path.parent), prefix=f".{self.path.name}.")
        return self

    def add(self, **columns: NDArray[Any]) -> None:
        """Append rows to columns; a column's type and row shape are those of its first rows."""
        for name, values in columns.items():
            if name not in self._columns:
                self._columns[name] = ((Path(self._folder.name) / name).open("w+b"), values.dtype, values.shape[1:])
                self._rows[name] = 0
            file, dtype, shape = self._columns[name]
            if values.shape[1:] != shape:
                raise ValueError(f"column {name} has rows of {shape}, {values.shape[1:]} came")
            file.write(np.ascontiguousarray(values, dtype=dtype).data)
            self._rows[name] += len(values)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            for file, _, _ in self._columns.values():
                file.close()
            self._folder.cleanup()

    def _finish(self) -> None:
        with writing(self.path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, (file, dtype, shape) in self._columns.items():
                file.seek(0)
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as out:
                    npy.write_array_header_2_0(out, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (self._rows[name], *shape)})
                    shutil.copyfileobj(file, out, 1 << 22)


class MegatronWriter:
    """A `.bin`/`.idx` pair, one stored sequence per document.

    Args:
        prefix: where to write.
        dtype: type of the ids.
    """

    def __init__(self, prefix: Path, dtype: np.dtype[Any]) -> None:
        self.prefix, self.dtype = prefix, dtype
        self._lengths: list[NDArray[np.int32]] = []

    def __enter__(self) -> MegatronWriter:
        self._writing = writing(self.prefix.with_name(self.prefix.name + ".bin"))
        self._file = self._writing.__enter__().open("wb")
        return self

    def add(self, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append sequences laid end to end."""
        self._file.write(np.ascontiguousarray(tokens, dtype=self.dtype).data)
        self._lengths.append(lengths.astype(np.int32))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        self._writing.__exit__(kind, error, trace)
        if kind is None:
            lengths = np.concatenate(self._lengths) if self._lengths else np.empty(0, np.int32)
            with writing(self.prefix.with_name(self.prefix.name + ".idx")) as part:
                part.write_bytes(index_bytes(lengths, self.dtype))


def index_bytes(lengths: NDArray[np.int32], dtype: np.dtype[Any]) -> bytes:
    """A Megatron index over sequences stored end to end, each its own document."""
    code = next(code for code, kind in TOKEN_TYPES.items() if np.dtype(kind) == dtype)
    n = len(lengths)
    offsets = np.zeros(n, np.int64)
    np.cumsum(lengths[:-1].astype(np.int64) * dtype.itemsize, out=offsets[1:])
    head = MAGIC + struct.pack("<QBQQ", 1, code, n, n + 1)
    return head + lengths.astype("<i4").tobytes() + offsets.astype("<i8").tobytes() + np.arange(n + 1, dtype="<i8").tobytes()
