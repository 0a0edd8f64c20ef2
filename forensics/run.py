"""A training run, described: which trainer, which data, which launches with which arguments.

`forensics.yaml` speaks the trainer's own option names. A `RunSpec` is that description resolved: relative paths made
absolute, arguments of every launch merged from all their sources, the origin of each argument kept. What a trainer's own
files (checkpoints, logs) add is read by that trainer's `RunReader`; it registers itself in `READERS`.

Precedence of arguments: `--set`, the description, the log, the checkpoint, the trainer's default.
"""

from __future__ import annotations

import dataclasses
import glob
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from forensics.config import build, merge, overrides, read_yaml
from forensics.errors import ConfigError, ForensicsError, UsageError, nearest
from forensics.files import digest, stamp
from forensics.registry import Registry
from forensics.steps import StepRange, parse_steps

FILE = "forensics.yaml"
SET = "--set"


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
    checkpoint: str | list[str] = []
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
        origins: argument -> where its value came from: `--set`, `args`, `launches[1].args`, `log FILE:LINE`, `checkpoint FILE`.
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

    def with_args(self, args: Mapping[str, Any], origin: str) -> Launch:
        """This launch with arguments of a weaker source added: those it has already stay."""
        new = {k: v for k, v in args.items() if k not in self.args}
        return dataclasses.replace(self, args=MappingProxyType({**self.args, **new}), origins=MappingProxyType({**self.origins, **dict.fromkeys(new, origin)}))


@dataclass(frozen=True)
class RunSpec:
    """A run description, resolved.

    Attributes:
        name: for reports.
        trainer: name of the loader.
        folder: what relative paths count from.
        launches: in order of time, at least one.
        launches_given: whether the description itself lists them; else one is assumed unless a log shows them.
        moved: path prefixes as the run saw them, longest first, and where they are now.
        checkpoint: folder of checkpoints; `checkpoint_folders`: all of them; `checkpoints`: the steps of the rollback points.
        notes: what was concluded or assumed on the way, in sentences, for the user.
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
    launches_given: bool = True
    checkpoint_folders: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    def path(self, text: str) -> Path:
        """Where a path that the run knew as `text` lies now."""
        for old, new in self.moved:
            if text.startswith(old):
                text = new + text[len(old) :]
                break
        return self.folder / Path(text).expanduser()

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
        """Changes when anything that decides the order or the files does; a log that merely grows does not."""
        files = [p for p in (*self.losses, *self.metrics, *self.annotations, *self.documents) if p.is_file()]
        read = [*files, *(p for p in (*self.cache, *self._data()) if p.exists())]
        return digest(self.trainer, self.version, str(self.folder), self.moved, [_plain(launch) for launch in self.launches], [stamp(p) for p in read])

    def _data(self) -> list[Path]:
        """Files and folders that the arguments name as data, in any of the forms trainers use."""
        words: dict[str, None] = {}
        for launch in self.launches:
            words.update(dict.fromkeys(_data_words(launch.args)))
        return [self.path(word + suffix) for word in words for suffix in ("", ".idx", ".bin")]

    def checkpoint_at(self, step: int) -> Path | None:
        """The folder of the checkpoint saved after that step, by the names trainers use; None where it is not here."""
        return next((at for folder in self.checkpoint_folders for saved, at in saved_folders(folder) if saved == step), None)

    def rows(self) -> list[dict[str, Any]]:
        """Every argument of every launch with its value and where it came from; sorted."""
        return [
            {"launch": x.number, "argument": name, "value": x.args[name], "origin": x.origins.get(name, "args")}
            for x in self.launches
            for name in sorted(x.args)
        ]


def saved_folders(folder: Path) -> list[tuple[int, Path]]:
    """(step, folder) of the checkpoints in a folder, by the names that trainers give them; sorted.

    `iter_0041000` (Megatron), `step1000` (OLMo), `global_step1000` (DeepSpeed, NeoX), `checkpoint-1000` (HF Trainer), `step_1000`.
    """
    found = ((re.fullmatch(r"(?:iter_|step_?|global_step|checkpoint-)(\d{1,15})", p.name), p) for p in folder.glob("*") if p.is_dir())
    return sorted((int(match[1]), p) for match, p in found if match)


def _json(value: Any) -> Any:
    """The value where JSON has it, else its text."""
    if isinstance(value, (list, tuple)):
        return [_json(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _json(v) for k, v in value.items()}
    finite = not isinstance(value, float) or abs(value) < float("inf")
    return value if finite and (value is None or isinstance(value, (str, int, float))) else str(value)


def _data_words(value: Any, named: bool = False) -> Iterator[str]:
    """Texts below keys that name data: `data_path`, `paths`, `local`, `consumed` and their like, at any depth."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            name = str(key)
            yield from _data_words(inner, named or "data_path" in name or name in ("consumed", "paths", "local", "data_files", "data_args_path"))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _data_words(inner, named)
    elif named and isinstance(value, str):
        yield value


class RunReader(Protocol):
    """What a trainer's own files tell about a run."""

    def sniff(self, path: Path) -> bool:
        """Whether the folder is a checkpoint folder of this trainer; looks at names only."""
        ...

    def complete(self, run: RunSpec) -> RunSpec:
        """The run with what its checkpoints and logs add."""
        ...


HOMES = {"hf": "pytorch", "datasets": "iterable"}  # modules of loaders that are not called after their trainer
READERS: Registry[RunReader] = Registry("run reader", "forensics.loaders", HOMES)


def _described(file: Path) -> dict[str, Any]:
    try:
        return read_yaml(file)
    except ConfigError as error:
        raise error if error.hint else ConfigError(error.message, hint="a run description is wanted here; `forensics init` writes one from logs") from error


def open_run(path: Path | None = None, settings: Sequence[str] = ()) -> RunSpec:
    """The run that `path` describes.

    Args:
        path: description file, folder with one, checkpoint folder, or None for the nearest description upwards, else `$FORENSICS_RUN`.
        settings: `--set` overrides, e.g. `args.train_iters=5000` (for every launch) or `launches.1.args.seed=7`.

    Raises:
        ConfigError: no description found, unknown keys, values of the wrong type, files that are not there.
    """
    found = find(path)
    file, data = (found, _described(found)) if found.is_file() else (found / FILE, _bare(found))
    run = resolve(_file(data, str(file), settings), file if found.is_file() else None, file.parent, _typed(overrides(settings)))
    if run.trainer in READERS:
        return READERS.get(run.trainer).complete(run)
    saved = {step for folder in run.checkpoint_folders for step, _ in saved_folders(folder)}
    return dataclasses.replace(run, checkpoints=tuple(sorted({*run.checkpoints, *saved})))


def find(path: Path | None) -> Path:
    """The description file meant by `path`, or the folder with checkpoints that stands in for one."""
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
    if not path.exists():
        raise ConfigError(f"{path} does not exist", hint="give a run description, a folder that holds one, or a checkpoint folder")
    if _checkpoint_in(path):
        return path
    raise ConfigError(f"{path} holds neither a `{FILE}` nor checkpoints", hint="`forensics init CHECKPOINT LOG` writes a first description")


def _checkpoint_in(path: Path) -> tuple[str, Path] | None:
    """(trainer, checkpoint folder) where `path` is one or holds exactly one."""
    try:
        inside = sorted(p for p in path.iterdir() if p.is_dir())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror or error})") from error
    for folders in ([path], inside):
        hits = [(name, folder) for folder in folders for name, reader in READERS.items() if reader.sniff(folder)]
        if len(hits) == 1:
            return hits[0]
        if hits:
            names = ", ".join(folder.name for _, folder in hits)
            raise ConfigError(
                f"{path} holds several checkpoint folders ({names})", hint="give one of them, or write a `forensics.yaml`: `forensics init CHECKPOINT...`"
            )
    return None


def _bare(folder: Path) -> dict[str, Any]:
    """The description that a folder with nothing but checkpoints stands for."""
    found = _checkpoint_in(folder)
    assert found
    trainer, where = found
    return {"trainer": trainer, "run": folder.resolve().name, "checkpoint": str(where.resolve())}


def _file(data: dict[str, Any], where: str, settings: Sequence[str]) -> RunFile:
    """The description with `--set` on top, checked key by key; keys left empty count as absent."""
    data = {key: value for key, value in data.items() if value is not None}
    over = overrides(settings)
    launches = over.pop("launches", None)
    data = merge(data, over)
    if launches is not None:
        data["launches"] = _set_launches(data.get("launches"), launches)
    entries = data.get("launches")
    if entries is not None and not isinstance(entries, list):
        raise ConfigError(f"{where}: `launches` is a {type(entries).__name__}, expected a list of mappings")
    known = LaunchFile.__struct_fields__
    for number, entry in enumerate(entries or []):
        for key in entry if isinstance(entry, Mapping) else ():
            if key not in known:
                raise ConfigError(f"{where}: unknown key `launches[{number}].{key}`{nearest(str(key), [*known, *RunFile.__struct_fields__])}")
    for place, entry in [("", data), *((f"launches[{n}].", x) for n, x in enumerate(entries or []) if isinstance(x, Mapping))]:
        if isinstance(entry.get("version"), (int, float)):
            raise ConfigError(
                f"{where}: `{place}version` is the number {entry['version']}, expected text",
                hint="write it in quotes: version: '0.16.1' (0.10 as a number is 0.1)",
            )
    if "trainer" not in data:
        raise ConfigError(
            f"{where}: `trainer` is missing: whose data order is it? (one of {', '.join(READERS.names()) or 'the loaders'}, ...)",
            hint="write `trainer: megatron`, or another one; `configs/runs` holds a commented example per trainer",
        )
    return build(RunFile, data, where)


def _set_launches(given: Any, over: Any) -> Any:
    """`launches` with `--set launches.1.key=value` (by number) or a whole new list on top."""
    if not isinstance(over, Mapping):
        return over
    out = list(given) if isinstance(given, list) else [{}]
    for number, entry in over.items():
        if not str(number).isdigit() or int(number) >= len(out):
            raise ConfigError(f"`--set launches.{number}`: the description has {len(out)} launches, numbered from 0")
        out[int(number)] = merge(out[int(number)], entry) if isinstance(entry, Mapping) else entry
    return out


def _typed(over: Mapping[str, Any]) -> dict[int | None, dict[str, Any]]:
    """Arguments typed with `--set`: None -> those for every launch, number -> those for one."""
    out: dict[int | None, dict[str, Any]] = {None: dict(over.get("args") or {})}
    launches = over.get("launches")
    for number, entry in launches.items() if isinstance(launches, Mapping) else ():
        out[int(number)] = dict(entry.get("args") or {}) if isinstance(entry, Mapping) else {}
    return out


def resolve(data: RunFile, file: Path | None, folder: Path, typed: Mapping[int | None, Mapping[str, Any]] | None = None) -> RunSpec:
    """A description with its paths made absolute and its launches' arguments merged.

    Args:
        data: the description.
        file: where it was read; None where a checkpoint folder stands for it.
        folder: what relative paths count from.
        typed: arguments given with `--set`, by launch, None for all.
    """
    folder = folder.resolve()
    absent: list[str] = []
    launches = tuple(_launch(n, x, data, typed or {}) for n, x in enumerate(data.launches or [LaunchFile()]))

    def paths(key: str, must: bool = True) -> tuple[Path, ...]:
        value = getattr(data, key)
        out: list[Path] = []
        for text in [value] if isinstance(value, str) else value:
            many = any(c in text for c in "*?[")
            pattern = os.path.join(glob.escape(str(folder)), os.path.expanduser(text))  # noqa: PTH111, PTH118 - a pattern, not a path
            hits = [Path(p) for p in sorted(glob.glob(pattern, recursive=True), key=_natural)] if many else [folder / Path(text).expanduser()]  # noqa: PTH207
            if must and not any(p.exists() for p in hits):
                absent.append(f"`{key}: {text}`" + (" (matches nothing)" if many else ""))
            out += hits
        return tuple(out)

    logs, losses, metrics = paths("log"), paths("losses"), paths("metrics")
    annotations, documents, checkpoints = paths("annotations"), paths("documents"), paths("checkpoint")
    _check_values(data, str(file or folder))
    if endless := [p for p in (*logs, *losses, *metrics, *annotations, *documents) if p.is_char_device() or p.is_block_device()]:
        raise ConfigError(f"{file or folder}: {endless[0]} is a device, not a file", hint="name the file itself")
    if absent:
        raise ConfigError(f"{file or folder}: files that are not there: {', '.join(absent)}", hint=f"relative paths count from {folder}")
    caches = paths("cache", must=False)
    return RunSpec(
        name=data.run or folder.name, trainer=data.trainer, folder=folder, launches=launches, version=data.version, file=file,
        moved=tuple(sorted(data.moved.items(), key=lambda x: (-len(x[0]), x[0]))), cache=caches,
        checkpoint=checkpoints[0] if checkpoints else None, checkpoint_folders=checkpoints, checkpoints=tuple(sorted(set(data.checkpoints))),
        optimizer=MappingProxyType(dict(data.optimizer)), logs=logs, tokenizer=folder / Path(data.tokenizer).expanduser() if data.tokenizer else None,
        metrics=metrics, losses=losses, annotations=annotations, documents=documents, launches_given=bool(data.launches),
        notes=tuple(f"`cache: {p}` is not there: the order is computed anew, unchecked by the run's own index files" for p in caches if not p.exists()),
    )  # fmt: skip


def _check_values(data: RunFile, where: str) -> None:
    """Refuse numbers that no run has."""
    if bad := [step for step in data.checkpoints if step < 0]:
        raise ConfigError(f"{where}: `checkpoints` holds {bad[0]}, expected steps, which are not negative")
    for key, value in data.optimizer.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, float) and not math.isfinite(number):
                raise ConfigError(f"{where}: `optimizer.{key}` is {number}, expected a finite number")


def _natural(text: str) -> list[tuple[int, str]]:
    """Order of names with numbers in them: train-2 before train-10."""
    return [(int(part), "") if part.isdecimal() and part.isascii() else (-1, part) for part in re.split(r"(\d+)", text)]


def _launch(number: int, x: LaunchFile, data: RunFile, typed: Mapping[int | None, Mapping[str, Any]]) -> Launch:
    everywhere, here = typed.get(None, {}), typed.get(number, {})
    args: dict[str, Any] = {**data.args, **x.args, **everywhere, **here}
    origins = {k: SET if k in everywhere or k in here else f"launches[{number}].args" if k in x.args else "args" for k in args}
    for name, value in (("after_step", x.after_step), ("consumed", x.consumed), ("last_step", x.last_step)):
        if value is not None and value < 0:
            raise ConfigError(f"`launches[{number}].{name}` is {value}, expected no negative number")
    if x.last_step is not None and x.last_step < x.after_step:
        raise ConfigError(f"`launches[{number}]` ends with step {x.last_step}, before it starts after step {x.after_step}")
    try:
        skipped = tuple(parse_steps(str(s)) for s in x.skipped)
    except ForensicsError as error:
        raise ConfigError(f"`launches[{number}].skipped`: {error.message}", hint=error.hint) from error
    return Launch(number, x.after_step, x.last_step, x.consumed, x.version or data.version, MappingProxyType(args), MappingProxyType(origins), skipped)


def _plain(launch: Launch) -> tuple[object, ...]:
    return (launch.number, launch.after_step, launch.last_step, launch.consumed, launch.version, sorted(launch.args.items(), key=str), launch.skipped)


@dataclass(frozen=True)
class Missing:
    """One thing that must be known and is not.

    Attributes:
        name: key or argument.
        where: in words, where a user finds it.
    """

    name: str
    where: str


def refuse_missing(subject: str, missing: Iterable[Missing], hint: str | None = None) -> None:
    """Stop where anything is missing, naming all of it at once.

    Raises:
        ConfigError: with one line per missing thing.
    """
    listed = list(missing)
    if listed:
        error = ConfigError(f"{subject} lacks {len(listed)} {'thing that decides' if len(listed) == 1 else 'things that decide'} the data order", hint=hint)
        for one in listed:
            error.add_note(f"`{one.name}`: {one.where}")
        raise error
