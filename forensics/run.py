"""A training run, described: which trainer, which data, which launches with which arguments.

`forensics.yaml` speaks the trainer's own option names. A `RunSpec` is that description resolved: relative paths made
absolute, arguments of every launch merged with what they share, the origin of each argument kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from forensics.config import build, merge, overrides, read_yaml
from forensics.errors import ConfigError, UsageError
from forensics.files import digest, stamp
from forensics.steps import StepRange, parse_steps

FILE = "forensics.yaml"


class LaunchFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One entry of `launches:`."""

    after_step: int = 0
    consumed: int | None = None
    last_step: int | None = None
    version: str | None = None
    args: dict[str, Any] = {}
    skipped: list[str | int] = []


class RunFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The keys of a run description."""

    trainer: str
    run: str | None = None
    version: str | None = None
    args: dict[str, Any] = {}
    launches: list[LaunchFile] = []
    checkpoint: str | None = None
    checkpoints: list[int] = []
    optimizer: dict[str, Any] = {}
    log: str | list[str] = []
    cache: str | list[str] = []
    moved: dict[str, str] = {}
    tokenizer: str | None = None
    metrics: str | list[str] = []
    losses: str | list[str] = []
    annotations: str | list[str] = []
    documents: str | list[str] = []


@dataclass(frozen=True)
class Launch:
    """One start of the trainer.

    Attributes:
        number: from 0, in order of time.
        after_step: steps finished when it starts; its first step is one more.
        last_step: last step it executed; None where only its arguments say so.
        consumed: the trainer's sample counter at its start; None where not given.
        version: version of the library that ordered the data; None where not given.
        args: every argument known for it, in the trainer's own names.
        origins: argument -> where its value came from.
        skipped: steps left out, as logged.
    """

    number: int
    after_step: int = 0
    last_step: int | None = None
    consumed: int | None = None
    version: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    skipped: tuple[StepRange, ...] = ()


@dataclass(frozen=True)
class RunSpec:
    """A run description, resolved.

    Attributes:
        name: for reports.
        trainer: name of the loader.
        folder: what relative paths count from.
        launches: in order of time, at least one.
        moved: path prefixes as the run saw them, longest first, and where they are now.
        checkpoint: folder of checkpoints; `checkpoints`: their steps where only these are known.
    """

    name: str
    trainer: str
    folder: Path
    launches: tuple[Launch, ...]
    version: str | None = None
    file: Path | None = None
    moved: tuple[tuple[str, str], ...] = ()
    cache: tuple[Path, ...] = ()
    checkpoint: Path | None = None
    checkpoints: tuple[int, ...] = ()
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    logs: tuple[Path, ...] = ()
    tokenizer: Path | None = None
    metrics: tuple[Path, ...] = ()
    losses: tuple[Path, ...] = ()
    annotations: tuple[Path, ...] = ()
    documents: tuple[Path, ...] = ()

    def path(self, text: str) -> Path:
        """Where a path that the run knew as `text` lies now."""
        for old, new in self.moved:
            if text.startswith(old):
                text = new + text[len(old) :]
                break
        return self.folder / text

    def launch(self, number: int) -> Launch:
        """The launch of that number.

        Raises:
            UsageError: when the run has none.
        """
        if not 0 <= number < len(self.launches):
            raise UsageError(f"the run has {len(self.launches)} launches (0 to {len(self.launches) - 1}), not a launch {number}")
        return self.launches[number]

    @property
    def fingerprint(self) -> str:
        """Changes when anything that decides the order or the files does."""
        paths = [p for p in (*self.cache, *self.logs, *self.losses, *self.metrics, *self.annotations, *self.documents) if p.is_file()]
        return digest(self.trainer, self.version, str(self.folder), self.moved, [_plain(launch) for launch in self.launches], [stamp(p) for p in paths])


def open_run(path: Path | None = None, settings: Sequence[str] = ()) -> RunSpec:
    """The run that `path` describes: a description file, a folder with one, or None for the nearest upwards, else `$FORENSICS_RUN`.

    Args:
        path: description file or folder.
        settings: `--set` overrides, e.g. `args.train_iters=5000`.

    Raises:
        ConfigError: no description found, unknown keys, values of the wrong type.
    """
    file = find(path)
    data = merge(read_yaml(file), overrides(settings))
    return resolve(build(RunFile, data, str(file)), file)


def find(path: Path | None) -> Path:
    """The description file meant by `path`."""
    if path is None:
        here = Path.cwd()
        for folder in (here, *here.parents):
            if (folder / FILE).is_file():
                return folder / FILE
        if given := os.environ.get("FORENSICS_RUN"):
            return find(Path(given))
        raise ConfigError(f"no `{FILE}` here or in a folder above", hint="`forensics init CHECKPOINT LOG` writes a first one; or give the run's folder")
    if path.is_dir() and (path / FILE).is_file():
        return path / FILE
    if path.is_file():
        return path
    raise ConfigError(f"{path} holds no `{FILE}`" if path.is_dir() else f"{path} does not exist", hint="`forensics init CHECKPOINT LOG` writes a first one")


def resolve(data: RunFile, file: Path) -> RunSpec:
    """A description with its paths made absolute and its launches' arguments merged."""
    folder = file.parent.resolve()
    launches = tuple(_launch(n, x, data) for n, x in enumerate(data.launches or [LaunchFile()]))

    def paths(value: str | list[str]) -> tuple[Path, ...]:
        out: list[Path] = []
        for text in [value] if isinstance(value, str) else value:
            out += sorted(folder.glob(text)) if any(c in text for c in "*?[") and not Path(text).is_absolute() else [folder / text]
        return tuple(out)

    return RunSpec(
        name=data.run or folder.name, trainer=data.trainer, folder=folder, launches=launches, version=data.version, file=file,
        moved=tuple(sorted(data.moved.items(), key=lambda x: -len(x[0]))),
        cache=paths(data.cache), checkpoint=folder / data.checkpoint if data.checkpoint else None, checkpoints=tuple(sorted(data.checkpoints)),
        optimizer=MappingProxyType(dict(data.optimizer)), logs=paths(data.log), tokenizer=folder / data.tokenizer if data.tokenizer else None,
        metrics=paths(data.metrics), losses=paths(data.losses), annotations=paths(data.annotations), documents=paths(data.documents),
    )  # fmt: skip


def _launch(number: int, x: LaunchFile, data: RunFile) -> Launch:
    args = {**data.args, **x.args}
    origins = {k: f"launches[{number}].args" if k in x.args else "args" for k in args}
    skipped = tuple(parse_steps(str(s)) for s in x.skipped)
    return Launch(number, x.after_step, x.last_step, x.consumed, x.version or data.version, MappingProxyType(args), MappingProxyType(origins), skipped)


def _plain(launch: Launch) -> tuple[object, ...]:
    return (launch.number, launch.after_step, launch.last_step, launch.consumed, launch.version, sorted(launch.args.items(), key=str), launch.skipped)
