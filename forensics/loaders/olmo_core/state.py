"""Trainer states of OLMo-core: `step<N>/train/rank<r>.pt`, and what its `config.json` says.

Keys: `Trainer.state_dict` (train/trainer.py) and the loaders' `state_dict` (data/data_loader.py, data/composable/data_loader.py), read in
3.0.0; the two older layouts are those that `Trainer.load_state_dict` still accepts. Files go through the restricted
unpickler: they hold random states and, from the composable loader, an enumeration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.errors import RunError
from forensics.unpickle import load, plain


@dataclass(frozen=True)
class State:
    """What a launch loads.

    Attributes:
        step: `global_step`.
        epoch: from 1.
        tokens, batches: of the epoch so far.
        total_tokens: of the run so far.
        seed: of the loader; wins over the configured one.
        fingerprint: of the data set; None where the state has none.
        length: `sequence_length` at that time.
        batch_tokens: global batch size; None where the state has none.
    """

    step: int
    epoch: int
    tokens: int
    batches: int
    total_tokens: int
    seed: int | None
    fingerprint: str | None = None
    length: int | None = None
    batch_tokens: int | None = None


def read_state(path: Path) -> State:
    """A trainer's state, from a file or a checkpoint folder.

    Raises:
        RunError: the file lacks what such states hold.
    """
    file = state_file(path)
    found = plain(load(file))
    if not isinstance(found, Mapping):
        raise RunError(f"{file} holds no trainer state")
    loader = found.get("data_loader", found.get("dataset"))
    flat = not isinstance(loader, Mapping)
    inner: Mapping[str, Any] = loader if isinstance(loader, Mapping) else found
    names = ("global_train_tokens_seen_this_epoch", "data_seed", "train_sequence_length") if flat else ("tokens_processed", "seed", "sequence_length")
    try:
        return State(
            int(found["global_step"]),
            int((inner.get("epoch") if not flat else None) or found["epoch"]),
            int(inner[names[0]]),
            int(inner.get("batches_processed", 0)),
            int(found.get("global_train_tokens_seen", 0)),
            None if inner.get(names[1]) is None else int(inner[names[1]]),
            inner.get("dataset_fingerprint"),
            None if inner.get(names[2]) is None else int(inner[names[2]]),
            None if inner.get("global_batch_size") is None else int(inner["global_batch_size"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file} lacks what the state of OLMo-core's trainer holds ({error!r})", hint="give the rank file of a step's `train` folder") from error


def state_file(path: Path) -> Path:
    """The rank file meant by a path: itself, or the first one of a checkpoint folder."""
    if path.is_file():
        return path
    for folder in (path / "train", path):
        ranks = sorted(folder.glob("rank*.pt"), key=lambda p: (len(p.name), p.name))
        if ranks:
            return ranks[0]
    raise RunError(f"{path} holds no trainer state", hint="train/rank0.pt was looked for")


def fingerprint(kind: str, fields: Sequence[tuple[str, object]], files: Sequence[tuple[str, int]]) -> str:
    """The library's fingerprint of a data set (version v2.0).

    Args:
        kind: name of the class.
        fields: in the library's order.
        files: path and size in bytes as the data set counts them; only the last part of a path matters.
    """
    sha = hashlib.sha256(f"class={kind}".encode())
    for name, value in fields:
        sha.update(f"{name}={value},".encode())
    for path, size in files:
        sha.update(f"path={path.rsplit('/', 1)[-1]},size={size},".encode())
    return sha.hexdigest()
