"""Files as this tool touches them: written whole or not at all, opened by content rather than by name.

Compressed text is recognised by its first bytes. Lines are split on the line feed alone: texts contain U+2028, U+0085
and form feeds that `str.splitlines` would break records at.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

from forensics.errors import ForensicsError, StoreError

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes when it does not.

    Raises:
        ForensicsError: when the folder cannot be written or the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        os.close(handle)
    except OSError as error:
        raise _write_error(path, error) from error
    part = Path(name)
    try:
        yield part
        with part.open("rb") as done:
            os.fsync(done.fileno())
        part.chmod(0o644)
        part.replace(path)
    except OSError as error:
        raise _write_error(path, error) from error
    finally:
        part.unlink(missing_ok=True)


def _write_error(path: Path, error: OSError) -> ForensicsError:
    if error.errno == errno.EFBIG:
        return ForensicsError(f"{path} is larger than this shell lets files grow", hint="raise the limit (`ulimit -f unlimited`), run the same command again")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "free space or give another folder; what was finished is kept, run the same command again"
        return ForensicsError(f"no space left while writing {path}", hint=hint)
    return ForensicsError(f"{path} cannot be written ({error.strerror or error})", hint="give a folder you may write to, with `-o` or the option that names it")


def make_folder(path: Path) -> Path:
    """Create a folder and those above it.

    Raises:
        ForensicsError: when it cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _write_error(path, error) from error
    return path


def write_text(path: Path, text: str) -> None:
    """Write a whole UTF-8 file atomically; lone surrogates become U+FFFD."""
    with writing(path) as part:
        part.write_bytes(text.encode("utf-8", "replace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file atomically."""
    with writing(path) as part:
        part.write_bytes(data)


def open_binary(path: Path) -> BinaryIO:
    """Open for reading, through gzip or zstandard where the first bytes say so.

    Raises:
        StoreError: when the file does not exist or cannot be read.
    """
    try:
        raw = path.open("rb")
        head = raw.peek(4)[:4]  # a pipe cannot be sought back
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror or error})") from error
    if head.startswith(GZIP):
        import gzip

        return cast(BinaryIO, gzip.GzipFile(fileobj=raw, mode="rb"))
    if head == ZSTD:
        import zstandard

        return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True, closefd=True))
    return raw


def blocks(stream: IO[bytes], size: int = 1 << 22) -> Iterator[bytes]:
    """Successive blocks of a stream, until it ends."""
    while block := stream.read(size):
        yield block


def lines(stream: IO[bytes], size: int = 1 << 22) -> Iterator[bytes]:
    r"""Lines of a stream without their `\n`, in bounded memory but for one line; the last one may be torn."""
    rest = b""
    for block in blocks(stream, size):
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
    if rest:
        yield rest


def digest(*parts: object) -> str:
    """A short hash of the `repr` of plain values, for fingerprints."""
    sha = hashlib.blake2b(digest_size=16)
    for part in parts:
        sha.update(part if isinstance(part, bytes) else repr(part).encode("utf-8", "surrogatepass"))
        sha.update(b"\0")
    return sha.hexdigest()


def stamp(path: Path) -> tuple[str, int, int]:
    """Name, size in bytes and modification time in ns: what tells that a file changed."""
    state = path.stat()
    return str(path), state.st_size, state.st_mtime_ns


def read_text(path: Path, limit_bytes: int = 1 << 28) -> str:
    """A whole UTF-8 text, through compression; undecodable bytes become U+FFFD.

    Raises:
        StoreError: when it cannot be read or is larger than the limit.
    """
    taken, size = [], 0
    try:
        with open_binary(path) as stream:
            for block in blocks(stream):
                taken.append(block)
                size += len(block)
                if size > limit_bytes:
                    raise StoreError(f"{path} is larger than {limit_bytes >> 20} MiB, too large for this kind of file")
    except (OSError, EOFError) as error:
        raise StoreError(f"{path} is damaged ({error})") from error
    return b"".join(taken).decode("utf-8", "replace")
