"""A first run description from what a run left behind: checkpoints, logs, the launch script.

Launches are those that the logs show; without logs, a change of arguments between two checkpoints means that a launch
began in between. What all launches share is written once, what differs goes to its launch, and every value carries in a
comment where it was read. What no source tells is written as a commented key with the place to look.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forensics.errors import UsageError
from forensics.files import open_binary, read_text
from forensics.loaders.megatron.checkpoint import Saved, read_saved, sniff
from forensics.loaders.megatron.describe import COUNTERS, GROUPS, LISTS, changes
from forensics.loaders.megatron.log import LoggedLaunch, read_logs
from forensics.loaders.megatron.names import KNOWN
from forensics.loaders.megatron.script import Script, is_script, read_script

HEAD_BYTES = 1 << 18
SEARCH_DEPTH, SEARCH_ENTRIES = 4, 20_000
_ORDER = (
    *LISTS, "split", "seq_length", "seed", "global_batch_size", "rampup_batch_size", "step_batch_size_schedule", "micro_batch_size", "data_parallel_size",
    *GROUPS[0], "eval_interval", "eval_iters", "dataloader_type",
)  # fmt: skip
_DERIVED = frozenset(["world_size", "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "gtp_weight_remat_size"])
_DEFAULTS = {"data_sharding": True, "mid_level_dataset_surplus": 0.005, "dataloader_type": None, "add_extra_token_to_sequence": True}
_DEFAULTS |= {"drop_last_partial_validation_sequence": True, "padded_vocab_size": None}


@dataclass
class Found:
    """One launch with its arguments and where each was read.

    Attributes:
        note: what is uncertain about it.
    """

    after_step: int
    consumed: int | None
    last_step: int | None
    args: dict[str, Any]
    origin: str
    note: str = ""


@dataclass
class Sources:
    """The files given, by kind."""

    checkpoints: list[Path] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    scripts: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class Draft:
    """A description to write, and what a user should know about it."""

    text: str
    launches: tuple[Found, ...]
    notes: tuple[str, ...]


def sort_out(paths: Sequence[Path]) -> Sources:
    """Which of the files are checkpoints, logs, scripts; told by content.

    Raises:
        UsageError: one that is none of them.
    """
    out = Sources()
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist")
        if path.is_dir():
            if not sniff(path):
                raise UsageError(
                    f"{path} holds no Megatron checkpoints",
                    hint="expected iter_NNNNNNN folders; logs are given as files; the save folder of OLMo-core, OLMo or the HF Trainer is given alone; "
                    "for others see configs/runs",
                )
            out.checkpoints.append(path)
            continue
        with open_binary(path) as stream:
            head = stream.read(HEAD_BYTES).decode("utf-8", "replace")
        if "consumed samples:" in head or "end of arguments" in head or "datasets target sizes" in head:
            out.logs.append(path)
        elif is_script(head):
            out.scripts.append(path)
        elif read_logs([path]):
            out.logs.append(path)
        else:
            raise UsageError(
                f"{path} is neither a training log nor a launch script",
                hint="a log has an arguments block or lines with `consumed samples:`, a script has options like --seq-length",
            )
    if not paths:
        raise UsageError("nothing to describe the run from", hint="forensics init CHECKPOINTS... LOGS... [LAUNCH_SCRIPT]")
    return out


def draft(paths: Sequence[Path], folder: Path) -> Draft:
    """The description of the run that these files belong to, for a file in `folder`.

    Raises:
        UsageError: a file of no known kind, or nothing in them that describes a run.
        StoreError: a damaged checkpoint or log.
    """
    sources = sort_out(paths)
    logged = read_logs(sources.logs) if sources.logs else []
    saved = sorted((s for f in sources.checkpoints for s in read_saved(f)), key=lambda s: s.step)
    notes: list[str] = []
    found = from_logs(logged, saved) if any(x.first is not None for x in logged) else from_checkpoints(saved, notes)
    script = _scripts(sources.scripts)
    if not found:
        block = next((x for x in reversed(logged) if x.args), None)
        found = [Found(0, 0, None, relevant(block.args) if block else {}, block.origin if block else "")]
    _fill(found, script, sources, notes)
    if not any(x.args for x in found):
        raise UsageError("neither an arguments block, nor checkpoint arguments, nor options of a launch script were found in these files")
    return Draft("\n".join(_write(found, sources, script, folder)) + "\n", tuple(found), tuple(notes))


def relevant(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments worth writing: they decide the order or the masks, and are not the default."""
    out = {k: v for k, v in args.items() if k in KNOWN and k not in COUNTERS and not _unset(v) and _DEFAULTS.get(k, ...) != v}
    if out.get("train_samples") is not None:
        out.pop("train_iters", None)
    if out.get("step_batch_size_schedule"):
        out.pop("global_batch_size", None)
    if any(out.get(name) for name in LISTS if name not in ("data_path", "data_args_path")):
        out.pop("split", None)
    if "data_parallel_size" in out:
        out = {k: v for k, v in out.items() if k not in _DERIVED}
    if out.get("dataloader_type") == "single":
        del out["dataloader_type"]
    out.pop("padded_vocab_size", None)
    return out


def _unset(value: Any) -> bool:
    """Whether a value means that nothing was asked for; the number 0 is a value."""
    return value is None or value is False or value == [] or value == ""


def from_logs(logged: Sequence[LoggedLaunch], saved: Sequence[Saved]) -> list[Found]:
    """Launches that trained, as the logs show them; those without an arguments block take a checkpoint that they saved."""
    out: list[Found] = []
    trained = [x for x in logged if x.first is not None]
    for number, one in enumerate(trained):
        start, said = one.after_step()
        last = one.last if number < len(trained) - 1 else None
        note = "" if said else f"start implied by its first logged step, {one.first}"
        args, origin = relevant(one.args), one.origin
        if not args and (own := [s for s in saved if (start or 0) < s.step <= (one.last or 0)]):
            args, origin = relevant(own[-1].args), f"checkpoint {own[-1].path.name}"
        loaded = next((s for s in saved if s.step == start), None)
        consumed = one.consumed()
        out.append(Found(start or 0, consumed if consumed is not None else loaded.consumed if loaded else None, last, args, origin, note))
    return out


def from_checkpoints(saved: Sequence[Saved], notes: list[str]) -> list[Found]:
    """Launches that changed arguments between two checkpoints show; rollbacks that were saved over do not."""
    out: list[Found] = []
    for number, one in enumerate(saved):
        before = saved[number - 1] if number else None
        if before is None:
            out.append(Found(0, 0, None, relevant(one.args), f"checkpoint {one.path.name}"))
        elif changed := changes(before.args, one.args):
            note = f"began after step {before.step} or later, before {one.step}: {', '.join(changed)} changed between these checkpoints"
            notes.append(f"launch {len(out)} {note}; the log of that day knows the step it loaded")
            out.append(Found(before.step, before.consumed, None, relevant(one.args), f"checkpoint {one.path.name}", note))
    return out


def _scripts(paths: Sequence[Path]) -> Script:
    out = Script()
    for path in paths:
        one = read_script(read_text(path, 1 << 24))
        out.args.update(one.args)
        out.unknown.update(one.unknown)
    return out


def _fill(found: list[Found], script: Script, sources: Sources, notes: list[str]) -> None:
    """Let the script fill what the last launch lacks, and say where it differs: it may belong to the next launch."""
    if not sources.scripts:
        return
    name, last = sources.scripts[-1].name, found[-1]
    given = relevant(script.args)
    if not last.args:
        last.args, last.origin = given, f"script {name}"
        return
    taken = {k for group in GROUPS for k in group if any(n in last.args for n in group)}
    last.args.update({k: v for k, v in given.items() if k not in last.args and k not in taken})
    differ = [k for k in changes(last.args, {**last.args, **given}) if k in given]
    if differ:
        notes.append(f"{name} differs from the last launch in {', '.join(differ)}: it may belong to the next one; the description keeps what ran")


# ---- writing


def _write(found: Sequence[Found], sources: Sources, script: Script, folder: Path) -> Iterator[str]:
    shared = {k: v for k, v in found[0].args.items() if all(_same(x.args.get(k), v) for x in found)} if found else {}
    yield "# Run description written by `forensics init`; check it, then `forensics replay --steps A:B`."
    yield "# Paths count from this file. Values name where they were read; `--set key=value` overrides one."
    yield f"run: {_yaml(folder.resolve().name)}"
    yield "trainer: megatron"
    asked = (
        "needed: iterations_to_skip names other steps before 0.17 than since"
        if any(x.args.get("iterations_to_skip") for x in found)
        else "asked for only where it changes the order"
    )
    yield f"# version: '0.16.1'   # of megatron-core where the run was made (`pip show megatron-core`); {asked}"
    yield "args:"
    origins = sorted({x.origin for x in found if x.origin})
    yield f"  # of every launch; from {', '.join(origins)}" if origins else "  # nothing was found"
    for name in _sorted(shared):
        yield f"  {name}: {_yaml(shared[name])}"
    yield from _absent_args(found, script)
    yield "launches:"
    for number, one in enumerate(found):
        own = {k: v for k, v in one.args.items() if k not in shared}
        parts = [f"after_step: {one.after_step}"]
        parts += [f"consumed: {one.consumed}"] if one.consumed is not None else []
        parts += [f"last_step: {one.last_step}"] if one.last_step is not None else []
        parts += ["args: {" + ", ".join(f"{k}: {_yaml(own[k])}" for k in _sorted(own)) + "}"] if own else []
        yield (f"  # launch {number}: {one.origin or 'no arguments known'}" + (f"; {one.note}" if one.note else ""))
        yield "  - {" + ", ".join(parts) + "}"
    yield from _places(found, sources, script, folder)


def _absent_args(found: Sequence[Found], script: Script) -> Iterator[str]:
    """What decides the order and is not known, as commented keys."""
    needed = {
        "data_path": (LISTS, "prefixes with weights, --data-path"), "seq_length": (("seq_length",), "--seq-length"),
        "global_batch_size": (("global_batch_size", "step_batch_size_schedule"), "--global-batch-size"),
        "train_iters": (GROUPS[0], "--train-iters, or train_samples"),
        "micro_batch_size": (("micro_batch_size",), "--micro-batch-size; for ranks and microbatches"),
        "data_parallel_size": (("data_parallel_size", "world_size"), "world size / (tensor x pipeline x context parallel); for ranks and microbatches"),
    }  # fmt: skip
    for name, (names, where) in needed.items():
        if not all(any(n in x.args for n in names) for x in found):
            hint = next((f"; the script has `{script.unknown[n]}`" for n in names if n in script.unknown), "")
            yield f"  # {name}:   # not found: {where}{hint}"


def _places(found: Sequence[Found], sources: Sources, script: Script, folder: Path) -> Iterator[str]:
    for key, paths in (("checkpoint", sources.checkpoints), ("log", sources.logs)):
        if paths:
            texts = [_relative(p, folder) for p in paths]
            yield f"{key}: {_yaml(texts[0] if len(texts) == 1 else texts)}"
    if any(x.args.get("data_cache_path") for x in found):
        yield "# cache: data/cache   # the run's own index files, where they lie now, if not at data_cache_path"
    moved, lost = _moved(found, folder)
    if moved:
        yield "moved:   # paths as the run saw them: where files of that name lie now; check"
        for old, new in moved.items():
            yield f"  {_yaml(old)}: {_yaml(new)}"
    if lost:
        folders = dict.fromkeys(os.path.dirname(name) or name for name in lost)  # noqa: PTH120 - the run's paths, not ours
        names = ", ".join(f"{Path(name).name}.idx" for name in lost)
        gone = "was not found; say where its" if len(lost) == 1 else "were not found; say where their"
        where = "folders lie" if len(folders) > 1 else "folder lies"
        yield f"# moved: {{{', '.join(f'{_yaml(f)}: .' for f in folders)}}}   # {names} {gone} {where} now"
    given = script.args.get("tokenizer_model") or script.args.get("vocab_file")
    known = folder / str(given) if given else None
    if known is not None and known.exists():
        yield f"tokenizer: {_yaml(str(given))}"
    else:
        yield "# tokenizer: tokenizer/   # folder or tokenizer.json; texts need it, the order does not"
    yield "# losses: losses/*.parquet   # recorded losses; annotations: annotations.csv; documents: documents.parquet (sidecar)"


def _moved(found: Sequence[Found], folder: Path) -> tuple[dict[str, str], list[str]]:
    """(folder as the run saw it -> where its files lie now, prefixes that were not found)."""
    wanted = dict.fromkeys(p for x in found for name in LISTS[:4] for p in _prefixes(x.args.get(name)) if not (folder / f"{p}.idx").is_file())
    moved: dict[str, str] = {}
    lost: list[str] = []
    near = _nearby(folder) if wanted else {}
    for prefix in wanted:
        here = near.get(f"{Path(prefix).name}.idx", [])
        old = prefix[: len(prefix) - len(Path(prefix).name)]
        if len(here) == 1 and old and moved.get(old, here[0]) == here[0]:
            moved[old] = here[0]
        else:
            lost.append(prefix)
    return moved, lost


def _prefixes(value: Any) -> list[str]:
    words = [str(v) for v in value] if isinstance(value, (list, tuple)) else str(value).split() if value else []
    return [w for w in words if not _number(w)]


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _nearby(folder: Path) -> dict[str, list[str]]:
    """Index files below the folder by name -> their folders, relative with a slash; a bounded look."""
    out: dict[str, list[str]] = {}
    seen = 0
    for root, folders, files in os.walk(folder):
        depth = len(Path(root).relative_to(folder).parts)
        folders[:] = sorted(f for f in folders if not f.startswith((".", "iter_"))) if depth < SEARCH_DEPTH else []
        seen += len(files)
        for name in files:
            if name.endswith(".idx"):
                where = str(Path(root).relative_to(folder))
                out.setdefault(name, []).append("" if where == "." else where + "/")
        if seen > SEARCH_ENTRIES:
            break
    return out


def _relative(path: Path, folder: Path) -> str:
    path, folder = path.resolve(), folder.resolve()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


def _sorted(args: Mapping[str, Any]) -> list[str]:
    return sorted(args, key=lambda k: (_ORDER.index(k) if k in _ORDER else len(_ORDER), k))


def _yaml(value: Any) -> str:
    """A value on one line."""
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, width=1 << 20, allow_unicode=True).strip()
    return text.removesuffix("...").strip()
