"""Opening whatever path a user names: each format is recognised by its first bytes, or by the file beside it.

The order matters where contents are ambiguous: a `.bin` beside an `.idx` is Megatron's, a raw array of ids has no mark at all and comes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forensics.errors import StoreError, UsageError
from forensics.files import GZIP, ZSTD, digest, open_binary
from forensics.stores.arrow import IPC_FILE, IPC_STREAM, PARQUET, ArrowFile, dataset_files
from forensics.stores.batch import DocumentBatch
from forensics.stores.flat import FlatFile, document_shards, runs_of
from forensics.stores.jsonl import JsonlFile
from forensics.stores.records import Part, ReadOptions, RecordFile, Shard, keys_of, vocabulary_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

RAW_NAMES = (".npy", ".bin", ".ds", ".u16", ".u32", ".tokens", ".dat", ".mmap")
UTF16 = (b"\xff\xfe", b"\xfe\xff")
COMPANIONS = (".csv.gz", ".index", ".metadata", ".ds.index", ".ds.metadata")


class MegatronRecords:
    """A `.bin`/`.idx` pair read from front to back.

    Args:
        path: either file, or their prefix.
        options: the tokenizer.
    """

    format = "megatron"
    is_text = False

    def __init__(self, path: Path, options: ReadOptions) -> None:
        from forensics.stores.megatron import MegatronStore

        self.store = MegatronStore(path)
        self.path, self.options = self.store.path, options
        self._vocabulary = vocabulary_of(options)
        self._dtype = np.dtype(np.uint32) if self.store.dtype.kind == "u" else None  # that of batches, so that ids are copied once

    @property
    def fingerprint(self) -> str:
        """Changes when either file or the tokenizer named does."""
        return digest(self.store.fingerprint, str(self.options.tokenizer))

    def shards(self, size_bytes: int) -> list[Shard]:
        """Ranges of documents of about this size."""
        return document_shards(self.store.document_lengths() * self.store.dtype.itemsize, size_bytes)

    def parts(self, shard: Shard, corpus_id: int, max_bytes: int) -> Iterator[Part]:
        """Documents of a shard."""
        from forensics.stores.base import read

        numbers = np.arange(shard.start, shard.stop, dtype=np.int64)
        for a, b in runs_of(self.store.document_lengths(numbers), max_bytes // self.store.dtype.itemsize):
            tokens, offsets = read(self.store, numbers[a:b], dtype=self._dtype)
            yield Part(DocumentBatch.of_tokens(tokens, offsets, keys_of(numbers[a:b], corpus_id), self._vocabulary))

    def documents(self, numbers: NDArray[np.int64], corpus_id: int) -> DocumentBatch:
        """Whole documents by number, in the order given."""
        from forensics.stores.base import read

        tokens, offsets = read(self.store, np.asarray(numbers, np.int64), dtype=self._dtype)
        return DocumentBatch.of_tokens(tokens, offsets, keys_of(numbers, corpus_id), self._vocabulary)


def expand(paths: Sequence[Path]) -> list[Path]:
    """Files that the paths name: folders become their data files, in order of name, and a pair or a dataset is named once.

    Cases that lie in a folder are passed over: an audit of the folder that its own case is written to reads the same files again.

    Raises:
        UsageError: a path that does not exist, or a folder without data.
    """
    out: list[Path] = []
    for path in paths:
        if path.is_dir():
            cases = _cases(path)
            found = dataset_files(path) or [p for p in sorted(path.rglob("*")) if p.is_file() and not p.name.startswith((".", "_")) and _is_data(p)]
            found = [p for p in found if cases.isdisjoint(p.parents)]
            if not found:
                hint = f"what a case holds: forensics show {min(cases)}" if cases else None
                raise UsageError(f"the folder {path} holds no file of documents" + (" beside cases" if cases else ""), hint=hint)
            out += found
        elif path.exists() or path.with_name(path.name + ".idx").exists():
            out.append(path)
        else:
            raise UsageError(f"{path} does not exist")
    return list(dict.fromkeys(_pair(p) for p in out))


def _cases(folder: Path) -> set[Path]:
    """Case folders at or under a folder, unfinished ones of audits too."""
    return {p.parent for p in folder.rglob("case.json")} | {p.parent for p in folder.rglob("parts") if (p.parent / "tables").is_dir()}


def _pair(path: Path) -> Path:
    """The prefix of a Megatron pair for either of its files; other paths as they are."""
    prefix = path.with_suffix("") if path.suffix in (".idx", ".bin") else path
    return prefix if prefix.with_name(prefix.name + ".idx").exists() and prefix.with_name(prefix.name + ".bin").exists() else path


def _is_data(path: Path) -> bool:
    if path.name.endswith(COMPANIONS):
        return False
    return path.suffix in (".idx", *RAW_NAMES) or path.name.removesuffix(".gz").removesuffix(".zst").endswith(
        (".jsonl", ".json", ".ndjson", ".parquet", ".arrow", ".feather")
    )


def open_records(path: Path, options: ReadOptions = ReadOptions()) -> RecordFile:  # noqa: B008
    """A file of documents, by its content.

    Raises:
        StoreError: a file that is none, or that is damaged.
        UsageError: a raw array of which nothing says where documents end.
    """
    if _pair(path) != path or path.with_name(path.name + ".idx").exists() or path.suffix == ".idx":
        return MegatronRecords(path, options)
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror or error})") from error
    if head.startswith((PARQUET, IPC_FILE, IPC_STREAM)):
        return ArrowFile(path, options)
    if head.startswith(GZIP) or head[:4] == ZSTD:
        head = _first_bytes(path)
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"{"):
        return JsonlFile(path, options)
    if start.startswith(b"[") and path.suffix not in RAW_NAMES:
        raise StoreError(f"{path} is one JSON list, not one record per line", hint="write one object per line: jq -c '.[]' FILE > FILE.jsonl")
    if path.suffix in RAW_NAMES or options.dtype is not None or options.eos is not None:
        return FlatFile(path, options=options)
    if not head and _is_data(path):
        return JsonlFile(path, options)
    if head.startswith(UTF16):
        raise StoreError(f"{path} is UTF-16, no UTF-8", hint="iconv -f UTF-16 -t UTF-8 FILE > FILE.jsonl")
    raise StoreError(
        f"{path} is no file of documents that is known here: it begins with {head[:12]!r}",
        hint="read are JSON Lines (.gz, .zst), Parquet, Arrow, Megatron .bin/.idx, and raw token arrays with --eos and --dtype",
    )


def _first_bytes(path: Path) -> bytes:
    try:
        with open_binary(path) as stream:
            return stream.read(64)
    except Exception:  # gzip and zstandard raise errors of their own kinds; what they are is told when the file is read
        return b"{"
