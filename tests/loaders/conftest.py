"""Small Megatron corpora and run descriptions for the tests of loaders."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

from forensics.run import RunFile, RunSpec, resolve


def write_corpus(prefix: Path, documents: Sequence[Sequence[int]], *, seed: int = 0, dtype: str = "int32", vocabulary: int = 1000) -> list[list[np.ndarray]]:
    """A `.bin`/`.idx` pair of random tokens; `documents` lists the lengths of each document's stored sequences."""
    rng = np.random.default_rng(seed)
    tokens = [[rng.integers(0, vocabulary, n).astype(dtype) for n in document] for document in documents]
    flat = [s for d in tokens for s in d]
    lengths = np.array([len(s) for s in flat], np.int32)
    offsets = np.zeros(len(flat), np.int64)
    np.cumsum(lengths[:-1].astype(np.int64) * np.dtype(dtype).itemsize, out=offsets[1:])
    bounds = np.cumsum([0, *(len(d) for d in documents)]).astype(np.int64)
    code = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}[dtype]
    prefix.parent.mkdir(parents=True, exist_ok=True)
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(flat), len(bounds))
    prefix.with_name(prefix.name + ".idx").write_bytes(head + lengths.tobytes() + offsets.tobytes() + bounds.tobytes())
    prefix.with_name(prefix.name + ".bin").write_bytes(np.concatenate([*flat, np.empty(0, dtype)]).astype(dtype).tobytes())
    return tokens


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[..., list[list[np.ndarray]]]:
    """`corpus(name, documents)` writes `data/NAME` under the test's folder and returns its tokens."""
    return lambda name, documents, **options: write_corpus(tmp_path / "data" / name, documents, **options)


@pytest.fixture
def describe(tmp_path: Path) -> Callable[..., RunSpec]:
    """`describe(args, launches=...)` writes `forensics.yaml`; the run is as described, without what logs and checkpoints would add."""

    def write(args: dict[str, Any], *, trainer: str = "megatron", version: str | None = "0.16.0", **keys: Any) -> RunSpec:
        content = {"run": "test", "trainer": trainer, "args": args, **({"version": version} if version else {}), **keys}
        (tmp_path / "forensics.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return resolve(msgspec.convert(content, RunFile), None, tmp_path)

    return write


@pytest.fixture
def base() -> dict[str, Any]:
    """Arguments of a small run over one corpus `data/web`."""
    return {
        "data_path": ["data/web"], "split": "100,0,0", "seq_length": 16, "seed": 1234, "global_batch_size": 8, "micro_batch_size": 2, "data_parallel_size": 2,
        "train_iters": 10, "eval_interval": 100, "eval_iters": 0,
    }  # fmt: skip
