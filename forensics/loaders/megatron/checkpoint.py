"""Megatron checkpoints: which steps there are, and what one says of the run that saved it.

Four layouts, told apart by what lies in `iter_NNNNNNN`: `mp_rank_*/model_optim_rng.pt` (legacy), `common.pt` beside
`.distcp` parts (torch_dist up to 0.18, zarr), the object `common_state` inside a `.distcp` part, found through
`.metadata` (0.19), and Megatron Bridge's `run_config.yaml` with `train_state.pt`. Checkpoints of NeMo 1 say step and
samples in their name alone. Follows `megatron/training/checkpointing.py`. Arguments in a checkpoint describe the launch that saved it, not the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forensics.errors import RunError, StoreError
from forensics.loaders.megatron import bridge
from forensics.unpickle import attributes, load, plain

ITER = re.compile(r"iter_(\d{1,12})$")
NEMO = re.compile(r".*\bstep=(\d{1,12})-consumed_samples=(\d{1,15})(?:\.0)?(?:-last)?(?:\.ckpt)?$")
TRACKERS = ("latest_checkpointed_iteration.txt", "latest_train_state.pt")
LARGE_INDEX = 4 << 20  # bytes of `.metadata` from which reading it whole takes seconds
FRONT_BYTES, FRONT_OBJECTS = 32 << 20, 64
_COMMON = re.compile(r"common_state(/shard_\d+_\d+)?$")


@dataclass(frozen=True)
class Saved:
    """What one checkpoint says.

    Attributes:
        step: steps finished when it was saved.
        path: its folder.
        layout: `legacy`, `common`, `distributed`, `bridge` or `nemo`.
        args: arguments of the launch that saved it; those that were None are left out.
        consumed: training samples the trainer had counted; None where the layout does not say.
        skipped: samples counted as skipped.
    """

    step: int
    path: Path
    layout: str
    args: Mapping[str, Any] = field(default_factory=dict)
    consumed: int | None = None
    skipped: int | None = None


def sniff(folder: Path) -> bool:
    """Whether the folder holds Megatron checkpoints, or is one."""
    try:
        return any((folder / name).is_file() for name in TRACKERS) or bool(_layout_of(folder)) or any(True for _ in _folders(folder))
    except (OSError, StoreError):
        return False  # a folder that may not be read is not asked further


def saved_steps(folder: Path) -> list[int]:
    """Steps one can go back to: those whose checkpoint looks complete; ascending."""
    return [step for step, path in _folders(folder) if _layout_of(path)]


def unfinished(folder: Path) -> list[Path]:
    """Checkpoint folders without what a load needs: a save that was interrupted or is under way."""
    return [path for _, path in _folders(folder) if not _layout_of(path)]


def latest(folder: Path) -> int | None:
    """The step that a restart would load: the tracker's number, `release` gives None."""
    try:
        text = (folder / TRACKERS[0]).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and len(text) < 13 else None


def read_saved(folder: Path, steps: Sequence[int] | None = None) -> list[Saved]:
    """The checkpoints below `folder` (or the one that it is), ascending; only these steps where given.

    Raises:
        StoreError: one is damaged or not of a known layout.
        RunError: a checkpoint's own step is not that of its folder.
    """
    found = [(step, path) for step, path in _folders(folder) if _layout_of(path) and (steps is None or step in steps)]
    if not found and steps is None and not list(_folders(folder)) and _layout_of(folder):
        found = [(-1, folder)]
    return [read_one(path, step) for step, path in found]


def read_one(path: Path, step: int = -1) -> Saved:
    """One checkpoint folder.

    Raises:
        StoreError: damaged, or not of a known layout.
        RunError: its own step is not `step`.
    """
    layout = _layout_of(path)
    if layout == "bridge":
        out = _bridge(path)
    elif layout == "nemo" and (m := NEMO.fullmatch(path.name)):
        out = Saved(int(m[1]), path, layout, {}, int(m[2]))
    elif layout:
        state = _common_state(path, layout)
        out = _saved(path, layout, state)
    else:
        raise StoreError(
            f"{path} holds no checkpoint of a known layout",
            hint="expected mp_rank_*/model_optim_rng.pt, common.pt, .metadata with .distcp parts, or train_state.pt",
        )
    if step >= 0 and out.step != step:
        raise RunError(
            f"{path} holds the state after step {out.step}, its name says {step}",
            hint="the folder was renamed or mixed with another; use one whose name and content agree",
        )
    return out


def _folders(folder: Path) -> Iterator[tuple[int, Path]]:
    try:
        inside = sorted((int(m[1]), p) for p in folder.iterdir() if (m := ITER.fullmatch(p.name)) and p.is_dir())
        inside = inside or sorted((int(m[1]), p) for p in folder.iterdir() if (m := NEMO.fullmatch(p.name)))
    except OSError as error:
        raise StoreError(f"{folder} cannot be read ({error.strerror or error})") from error
    if not inside and (m := ITER.fullmatch(folder.resolve().name)):
        inside = [(int(m[1]), folder)]
    yield from inside


def _layout_of(path: Path) -> str | None:
    if NEMO.fullmatch(path.name):
        return "nemo"
    if (path / bridge.STATE).is_file() and (path / bridge.CONFIG).is_file():
        return "bridge"
    if (path / "common.pt").is_file():
        return "common"
    if (path / ".metadata").is_file():
        return "distributed"
    return "legacy" if _rank_files(path) else None


def _rank_files(path: Path) -> list[Path]:
    """Files of the legacy layout, rank 0 first; any of them carries the arguments."""
    return sorted(p for name in ("model_optim_rng.pt", "model_rng.pt") for p in path.glob(f"mp_rank_*/{name}"))


def _common_state(path: Path, layout: str) -> Mapping[str, object]:
    """The dictionary with `args` and `iteration`."""
    if layout == "distributed":
        return _distributed(path)
    return _mapping(load(_rank_files(path)[0] if layout == "legacy" else path / "common.pt"), path)


def _mapping(value: object, path: Path) -> Mapping[str, object]:
    """The state itself, also where the layout wraps it in a list of one."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    found = attributes(value)
    if not found:
        raise StoreError(f"{path} holds a {type(value).__name__} where a checkpoint's state is expected")
    return found


def _front(file: Path) -> Mapping[str, object] | None:
    """The common state among the first objects of a part: its writer puts objects before tensors."""
    try:
        with file.open("rb") as raw:
            head = raw.read(FRONT_BYTES)
        at = 0
        for _ in range(FRONT_OBJECTS):
            end = head.find(b"PK\x05\x06", at) + 22
            if not head.startswith(b"PK\x03\x04", at) or end < 22:
                return None
            found = load(file, offset=at, length=end - at)
            found = found[0] if isinstance(found, list) and len(found) == 1 else found
            if isinstance(found, dict) and "args" in found and "iteration" in found:
                return attributes(found)
            at = end
    except (OSError, StoreError):
        pass  # the index of the whole checkpoint decides then
    return None


def _distributed(path: Path) -> Mapping[str, object]:
    """The common state inside a `.distcp` part, or the objects `args` and `iteration` that lie there one by one."""
    large = (path / ".metadata").stat().st_size > LARGE_INDEX
    if large and (found := _front(path / "__0_0.distcp")) is not None:
        return found
    stored = attributes(load(path / ".metadata")).get("storage_data")
    parts: dict[str, tuple[Path, int, int]] = {}
    for index, info in stored.items() if isinstance(stored, dict) else ():
        name, where = attributes(index).get("fqn"), attributes(info)
        file, offset, length = where.get("relative_path"), where.get("offset"), where.get("length")
        if not isinstance(name, str) or not (_COMMON.match(name) or name in ("args", "iteration")):
            continue
        if not isinstance(file, str) or Path(file).name != file or not isinstance(offset, int) or not isinstance(length, int):
            raise StoreError(f"{path / '.metadata'} places `{name}` outside the checkpoint's folder")
        parts[name] = (path / file, offset, length)
    common = [n for n in sorted(parts) if _COMMON.match(n)]
    if common:
        file, offset, length = parts[common[0]]
        return _mapping(load(file, offset=offset, length=length), file)
    if not parts:
        raise StoreError(
            f"{path / '.metadata'} lists no `common_state`", hint="a checkpoint of weights alone does not say how the run was made; use another, or the log"
        )
    return {name: load(file, offset=offset, length=length) for name, (file, offset, length) in parts.items()}


def _saved(path: Path, layout: str, state: Mapping[str, object]) -> Saved:
    args = plain(state.get("args"))
    known = {k: v for k, v in args.items() if v is not None} if isinstance(args, dict) else {}
    step = plain(state.get("iteration"))
    if not isinstance(step, int):
        found = ITER.fullmatch(path.resolve().name)
        step = known.get("iteration", int(found[1]) if found else None)
    if not isinstance(step, int):
        raise StoreError(f"{path} does not say after which step it was saved")
    consumed, skipped = known.get("consumed_train_samples"), known.get("skipped_train_samples")
    if consumed == 0 and step > 0:
        # as the trainer does when it loads a checkpoint from before samples were counted
        consumed = step * known["global_batch_size"] if isinstance(known.get("global_batch_size"), int) and known.get("train_samples") is None else None
    return Saved(step, path, layout, known, consumed if isinstance(consumed, int) else None, skipped if isinstance(skipped, int) else None)


def _bridge(path: Path) -> Saved:
    state = bridge.read_state(path / bridge.STATE)
    return Saved(
        state["step"], path, "bridge", bridge.read_config(path / bridge.CONFIG), state.get("consumed_train_samples"), state.get("skipped_train_samples")
    )
