"""Checkpoint files without torch and without running what they ask for.

`load` opens a torch file of either age (the zip of 1.6 and later, the concatenated pickles before it), a plain pickle,
or a slice of a larger file that holds one of these (a `.distcp` part), and gives the object tree with inert stand-ins for
everything that is not a plain value (`forensics.pickles`). Tensors stay on disk: `Tensor.numpy()` reads one, `plain`
turns a tree into ordinary values and reads tensors of one element on the way, because some trainers keep every counter
as a 0-d tensor. Archive entries are read by name and never extracted, so their names can do no harm.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forensics.errors import StoreError
from forensics.inert import Array, Limits, Made, Named, PickleProblem
from forensics.pickles import Machine

__all__ = ["Array", "Limits", "Made", "Named", "Tensor", "attributes", "load", "plain"]

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
PLAIN_NODES, PLAIN_DEPTH = 500_000, 200
_SCALARS = {
    **{"Double": "f8", "Float": "f4", "Half": "f2", "BFloat16": "bf16", "Long": "i8", "Int": "i4", "Short": "i2", "Char": "i1", "Byte": "u1", "Bool": "?"},
    **{
        "float64": "f8",
        "float32": "f4",
        "float16": "f2",
        "bfloat16": "bf16",
        "int64": "i8",
        "int32": "i4",
        "int16": "i2",
        "int8": "i1",
        "uint8": "u1",
        "bool": "?",
    },
    **{
        "uint16": "u2",
        "uint32": "u4",
        "uint64": "u8",
        "Untyped": "u1",
        "float8_e4m3fn": "u1",
        "float8_e5m2": "u1",
        "ComplexFloat": "c8",
        "ComplexDouble": "c16",
    },
}


@dataclass(eq=False)
class Storage:
    """The bytes of one or more tensors, on disk."""

    key: str
    kind: str
    numel: int
    read: Callable[[int, int], bytes]
    big_endian: bool = False


@dataclass(eq=False)
class Tensor:
    """A tensor whose elements are still on disk.

    Args:
        shape, stride: in elements.
        offset: first element within the storage.
        kind: numpy type, `bf16` for bfloat16; the 8-bit floats are given as their bytes.
    """

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    kind: str
    limit_bytes: int

    def numpy(self) -> NDArray[np.generic]:
        """Returns: the elements [shape]; bfloat16 widened to float32."""
        raw = "u2" if self.kind == "bf16" else self.kind
        order = "" if np.dtype(raw).itemsize == 1 else ">" if self.storage.big_endian else "<"
        kind = np.dtype(order + raw)
        if len(self.shape) != len(self.stride) or len(self.shape) > 32 or self.offset < 0 or any(n < 0 for n in (*self.shape, *self.stride)):
            raise PickleProblem("a tensor with an impossible shape")
        if not math.prod(self.shape):
            return np.zeros(self.shape, "f4" if self.kind == "bf16" else raw)
        span = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        if max(span, math.prod(self.shape)) * kind.itemsize > self.limit_bytes:
            raise PickleProblem(f"a tensor of {list(self.shape)} is larger than the {self.limit_bytes} bytes allowed")
        flat = np.frombuffer(self.storage.read(self.offset * kind.itemsize, span * kind.itemsize), kind)
        out = np.lib.stride_tricks.as_strided(flat, self.shape, tuple(s * kind.itemsize for s in self.stride)).astype(kind.newbyteorder("="))
        if self.kind == "bf16":
            return (out.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return out

    def __repr__(self) -> str:
        return f"<tensor {list(self.shape)} {self.kind}>"


class _Builder(Machine):
    """The machine with torch's tensor builders; everything else stays inert."""

    def __init__(self, data: bytes | mmap.mmap, storage: Callable[[tuple[object, ...]], Storage], limits: Limits, position: int = 0) -> None:
        super().__init__(data, self._persistent, limits, position)
        self._storage = storage

    def _persistent(self, pid: object) -> object:
        if isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage":
            return self._storage(pid)
        return Made(Named("pickle", "persistent_id"), (pid,))

    def call(self, what: object, args: object) -> object:
        if isinstance(what, Named) and isinstance(args, tuple) and args:
            if what.module == "torch._utils" and what.name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3") and isinstance(args[0], Storage):
                return self._tensor(args)
            if what.module == "torch._utils" and what.name.startswith("_rebuild_parameter") and isinstance(args[0], Tensor):
                return args[0]
            if what.module == "torch._tensor" and what.name == "_rebuild_from_type_v2" and len(args) == 4 and isinstance(args[2], tuple):
                return self.call(args[0], args[2])
        return super().call(what, args)

    def build(self, target: object, state: object) -> None:
        if not isinstance(target, (Tensor, Storage)):  # a tensor's Python state (hooks, names) is of no use here
            super().build(target, state)

    def _tensor(self, args: tuple[object, ...]) -> Tensor:
        storage, offset, shape, stride = (*args[:4], *(None,) * 4)[:4]
        if not isinstance(storage, Storage) or not isinstance(offset, int) or not _whole(shape) or not _whole(stride):
            raise PickleProblem("a tensor with an impossible shape")
        kind = storage.kind
        if len(args) >= 7 and isinstance(args[6], Named):
            kind = args[6].name
        if kind not in _SCALARS:
            raise PickleProblem(f"a tensor of unknown type {kind}")
        return Tensor(storage, offset, tuple(shape), tuple(stride), _SCALARS[kind], self.limits.array)  # type: ignore[arg-type]


def _whole(value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(n, int) for n in value)


def _storage_parts(pid: tuple[object, ...]) -> tuple[str, str, int]:
    """(key, kind, elements) of torch's persistent id ('storage', type, key, device, elements)."""
    kind = pid[1].name if isinstance(pid[1], Named) else str(pid[1])
    if not isinstance(pid[2], str) or not isinstance(pid[4], int):
        raise PickleProblem("a storage without its key")
    return pid[2], kind.removesuffix("Storage") or kind, pid[4]


class _Slice(io.RawIOBase):
    """A window of a file as a file of its own."""

    def __init__(self, raw: io.BufferedReader, offset: int, length: int) -> None:
        self._raw, self._offset, self._length, self._at = raw, offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        want = max(0, min(len(view), self._length - self._at))
        self._raw.seek(self._offset + self._at)
        got = self._raw.read(want)
        view[: len(got)] = got
        self._at += len(got)
        return len(got)


def load(path: Path, *, offset: int = 0, length: int | None = None, limits: Limits | None = None) -> object:
    """Read a checkpoint file, or the checkpoint that lies inside [offset, offset + length) of one.

    Returns:
        The object tree: plain values, `Tensor`, `Array`, and `Made` / `Named` for what was not built.

    Raises:
        StoreError: when it is no checkpoint, damaged, or asks for more than it may.
    """
    limits = limits or Limits()
    try:
        size = path.stat().st_size
        if offset < 0 or offset > size or (length is not None and (length < 0 or offset + length > size)):
            raise PickleProblem(f"bytes {offset} to {offset + (length or 0)} lie outside its {size} bytes")
        length = size - offset if length is None else length
        with path.open("rb") as raw:
            raw.seek(offset)
            head = raw.read(min(4, length))
        if head == b"PK\x03\x04":
            return _load_zip(path, offset, length, limits)
        if head[:1] == b"\x80":
            return _load_stream(path, offset, length, limits)
        if not head:
            raise PickleProblem("it is empty")
        raise PickleProblem("it is neither a torch file nor a pickle of protocol 2 or later")
    except OSError as x:
        raise StoreError(f"{path} cannot be read ({x.strerror or x})") from x
    except (PickleProblem, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, struct.error, MemoryError) as x:
        hint = "the file is damaged, foreign, or was made to do harm; nothing of it was executed"
        raise StoreError(f"{path} cannot be read as a checkpoint: {x}", hint=hint) from x


def _load_zip(path: Path, offset: int, length: int, limits: Limits) -> object:
    """The zip layout: `<any folder>/data.pkl` beside `<any folder>/data/<key>`."""

    def archive(raw: io.BufferedReader) -> zipfile.ZipFile:
        _check_directory(raw, offset, length, limits)
        return zipfile.ZipFile(io.BufferedReader(_Slice(raw, offset, length)))

    with path.open("rb") as raw, archive(raw) as box:
        names = [n for n in box.namelist() if n == "data.pkl" or n.endswith("/data.pkl")]
        if len(names) != 1:
            raise PickleProblem(f"the archive holds {len(names)} entries called data.pkl, expected one")
        base = names[0].removesuffix("data.pkl")
        stream = _entry(box, names[0], limits.stream)
        big = base + "byteorder" in box.namelist() and _entry(box, base + "byteorder", 16) == b"big"

    def read(name: str, start: int, count: int) -> bytes:
        with path.open("rb") as raw, archive(raw) as box:
            try:
                info = box.getinfo(name)
            except KeyError as x:
                raise PickleProblem(f"the archive lacks the entry {name!r}") from x
            if start < 0 or start + count > info.file_size:
                raise PickleProblem(f"the entry {name!r} holds {info.file_size} bytes, {start} to {start + count} were asked for")
            if info.compress_type != zipfile.ZIP_STORED and start + count > limits.array:
                raise PickleProblem(f"the entry {name!r} is compressed, which torch never does")
            with box.open(info) as entry:
                entry.seek(start)
                got = entry.read(count)
        if len(got) != count:
            raise PickleProblem(f"the entry {name!r} ends early")
        return got

    def storage(pid: tuple[object, ...]) -> Storage:
        key, kind, numel = _storage_parts(pid)
        return Storage(key, kind, numel, lambda start, count: read(f"{base}data/{key}", start, count), big)

    return _Builder(stream, storage, limits).run()


def _entry(box: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """A whole entry, never more than `limit` bytes whatever its header says."""
    with box.open(name) as entry:
        out = entry.read(limit + 1)
    if len(out) > limit:
        raise PickleProblem(f"the entry {name!r} is larger than {limit} bytes")
    return out


def _check_directory(raw: io.BufferedReader, offset: int, length: int, limits: Limits) -> None:
    """Refuse an archive whose directory alone would fill the memory, before `zipfile` reads it."""
    tail_size = min(length, 65_557 + 76)
    raw.seek(offset + length - tail_size)
    tail = raw.read(tail_size)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + 22 > len(tail):
        raise PickleProblem("the archive has no directory; it was not written to its end")
    entries, directory = struct.unpack("<HI", tail[at + 10 : at + 16])
    wide = tail.rfind(b"PK\x06\x06", 0, at)
    if wide >= 0 and wide + 56 <= len(tail):
        entries, directory = struct.unpack("<QQ", tail[wide + 32 : wide + 48])
    if entries > limits.entries or directory > 512 * limits.entries:
        raise PickleProblem(f"the archive announces {entries} entries")


def _load_stream(path: Path, offset: int, length: int, limits: Limits) -> object:
    """A plain pickle, or torch's layout before 1.6: magic, version, system, object, storage keys, then raw storages."""
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    with path.open("rb") as raw, mmap.mmap(raw.fileno(), offset - start + length, access=mmap.ACCESS_READ, offset=start) as data:
        found: dict[str, Storage] = {}
        where: dict[str, int] = {}

        def read(key: str, begin: int, count: int) -> bytes:
            if key not in where:
                raise PickleProblem(f"the file lacks the storage {key!r}")
            with path.open("rb") as again:
                again.seek(where[key] + 8 + begin)
                got = again.read(count)
            if len(got) != count:
                raise PickleProblem(f"the storage {key!r} ends early")
            return got

        def storage(pid: tuple[object, ...]) -> Storage:
            key, kind, numel = _storage_parts(pid)
            return found.setdefault(key, Storage(key, kind, numel, lambda begin, count: read(key, begin, count)))

        machine = _Builder(data, storage, limits, offset - start)
        first = machine.run()
        if first != LEGACY_MAGIC:
            return first
        position = machine.position
        parts: list[object] = []
        for _ in range(4):
            machine = _Builder(data, storage, limits, position)
            parts.append(machine.run())
            position = machine.position
        keys = parts[3] if isinstance(parts[3], list) else []
        at = position
        for key in keys:
            if not isinstance(key, str) or key not in found or at + 8 > len(data):
                raise PickleProblem("the list of storages does not match the file")
            where[key] = start + at
            at += 8 + struct.unpack("<q", data[at : at + 8])[0] * _width(found[key].kind)
            if at < position or at > len(data):
                raise PickleProblem(f"the storage {key!r} reaches beyond the end of the file")
        return parts[2]


def _width(kind: str) -> int:
    if kind not in _SCALARS:
        raise PickleProblem(f"a storage of unknown type {kind}")
    return 2 if _SCALARS[kind] == "bf16" else np.dtype(_SCALARS[kind]).itemsize


def attributes(value: object) -> dict[str, object]:
    """The attributes of an object that was not built (an `argparse.Namespace`, a dataclass), or the entries of a dict."""
    state = value.state if isinstance(value, Made) else value if isinstance(value, dict) else {}
    return {k: v for k, v in state.items() if isinstance(k, str)}


def plain(value: object, nodes: int = PLAIN_NODES) -> object:
    """Ordinary values for a tree: dicts, lists, numbers, text, None; tensors and arrays of one element are read.

    Namespaces and dataclasses become dicts, enumerations their value or name, classes and dtypes their dotted name, paths
    text; larger tensors and arrays, and anything else, a short description in angle brackets. `nodes` bounds the size.

    Raises:
        StoreError: when the tree is deeper or larger than a set of options can be.
    """
    left = [nodes]
    try:
        return _plain(value, left, 0)
    except PickleProblem as x:
        raise StoreError(f"a checkpoint's values cannot be read: {x}") from x


def _plain(value: object, left: list[int], depth: int) -> object:
    left[0] -= 1
    if left[0] < 0 or depth > PLAIN_DEPTH:
        raise PickleProblem("values nested too deep or repeated too often")
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, dict):
        return {k if isinstance(k, (str, int, float)) else str(_plain(k, left, depth + 1)): _plain(v, left, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, left, depth + 1) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(v, left, depth + 1) for v in value), key=repr)
    if isinstance(value, Named):
        return str(value)
    if isinstance(value, Tensor):
        return value.numpy().reshape(-1)[0].item() if math.prod(value.shape) == 1 else repr(value)
    if isinstance(value, Array):
        return value.numpy().reshape(-1)[0].item() if math.prod(value.shape) == 1 and value.dtype not in ("", "O") else repr(value)
    if isinstance(value, Made):
        return _plain_made(value, left, depth)
    return repr(type(value))


def _plain_made(value: Made, left: list[int], depth: int) -> object:
    if value.state:
        return _plain(value.state, left, depth)
    name = str(value.what) if isinstance(value.what, Named) else ""
    if name.startswith("pathlib.") and all(isinstance(a, str) for a in value.args):
        return str(Path(*(str(a) for a in value.args)))
    if name == "builtins.getattr" and len(value.args) == 2:
        return f"{_plain(value.args[0], left, depth + 1)}.{value.args[1]}"
    if len(value.args) == 1 and isinstance(value.args[0], (str, int, float)):
        return value.args[0]
    return repr(value)
