"""A Megatron run description completed from the run's own logs and checkpoints.

Arguments come, strongest first, from `--set`, the description, the log's arguments block, and the checkpoint; each keeps
the place it came from. A block belongs to the launch that starts where its log does; a checkpoint describes the launch
that saved it, never the one that loaded it. Options that exclude one another (steps or samples, one list of data or one
per split) are taken as a group from the strongest source that sets any of them. What is missing in the end is listed all
at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from forensics.errors import ConfigError, StoreError
from forensics.loaders.megatron.names import KNOWN
from forensics.run import Launch, Missing, RunSpec, refuse_missing

if TYPE_CHECKING:
    from forensics.loaders.megatron.checkpoint import Saved
    from forensics.loaders.megatron.log import LoggedLaunch

GROUPS = (
    ("train_iters", "train_samples"),
    ("data_path", "train_data_path", "valid_data_path", "test_data_path", "data_args_path", "per_split_data_args_path"),
    ("data_sharding", "no_data_sharding"),
)
SHOWN_SOURCES = 8
COUNTERS = frozenset(["iteration", "consumed_train_samples", "consumed_valid_samples", "skipped_train_samples"])
LISTS = GROUPS[1]
_NEEDED = (
    (("seq_length",), "tokens per sequence: --seq-length"),
    (GROUPS[0], "steps or samples that the launch was started for: --train-iters or --train-samples"),
    (LISTS, "prefixes of the data files as the launch was given them, with their weights: --data-path"),
)


class Reader:
    """What Megatron's own files tell about a run."""

    def sniff(self, path: Path) -> bool:
        """Whether the folder holds Megatron checkpoints, or is one."""
        from forensics.loaders.megatron.checkpoint import sniff

        return sniff(path)

    def complete(self, run: RunSpec) -> RunSpec:
        """The run with what its logs and checkpoints add.

        Raises:
            ConfigError: what decides the order is missing; all of it is named.
            RunError: a checkpoint contradicts its name.
            StoreError: a log or checkpoint cannot be read.
        """
        from forensics.loaders.megatron.log import read_logs
        from forensics.loaders.megatron.options import check_names

        for launch in run.launches:
            check_names(launch)
        logged = read_logs(run.logs) if run.logs else []
        if not run.launches_given and (shown := shown_launches(run, logged)):
            run = shown
        notes = list(run.notes)
        launches = [_with_log(launch, run, logged, notes) for launch in run.launches]
        run = dataclasses.replace(run, launches=tuple(launches))
        if run.checkpoint_folders:
            run = _with_checkpoints(run, notes)
        notes += _sources(run.launches)
        run = dataclasses.replace(run, notes=tuple(dict.fromkeys(notes)), optimizer=run.optimizer or _optimizer(logged))
        if run.file is None:
            run = _at_home(run)
        missing = list(_missing(run))
        refuse_missing(
            run.file.name if run.file else f"the run in {run.folder}",
            missing,
            hint="arguments are in the launch script, a checkpoint (`checkpoint:`) and the log's arguments block (`log:`)"
            if any(m.name.startswith("args.") for m in missing)
            else None,
        )
        return run


def shown_launches(run: RunSpec, logged: Sequence[LoggedLaunch]) -> RunSpec | None:
    """The run with the launches that its logs show; None where they show none that trained."""
    trained = [x for x in logged if x.first is not None]
    if not trained or (len(trained) == 1 and not trained[0].after_step()[1]):
        return None  # the tail of a log does not say where its launch began
    template, out, notes = run.launches[0], [], list(run.notes)
    for number, one in enumerate(trained):
        start, said = one.after_step()
        if not said:
            notes.append(f"launch {number} is taken to start after step {start}, by the first step in {one.file.name}:{one.line}: no checkpoint is named there")
        out.append(dataclasses.replace(template, number=number, after_step=start or 0, last_step=None if number == len(trained) - 1 else one.last))
    notes.append(
        f"the launches are those that the log shows: {', '.join(f'{x.number} after step {x.after_step}' for x in out[:12])}{' ...' if len(out) > 12 else ''}"
    )
    return dataclasses.replace(run, launches=tuple(out), notes=tuple(notes))


def log_of(launch: Launch, run: RunSpec, logged: Sequence[LoggedLaunch]) -> LoggedLaunch | None:
    """The start of the program that is this launch: the last one that begins where it does and trained; else the only one there is."""
    same = [x for x in logged if x.after_step()[0] == launch.after_step]
    trained = [x for x in same if x.first is not None] or same
    if trained:
        earlier = sum(1 for x in run.launches[: launch.number] if x.after_step == launch.after_step)
        later = sum(1 for x in run.launches[launch.number + 1 :] if x.after_step == launch.after_step)
        return trained[earlier if earlier + later else -1] if earlier < len(trained) else None
    return logged[0] if len(logged) == 1 and len(run.launches) == 1 and logged[0].after_step()[0] is None else None


def _with_log(launch: Launch, run: RunSpec, logged: Sequence[LoggedLaunch], notes: list[str]) -> Launch:
    found = log_of(launch, run, logged)
    if found is None:
        return launch
    notes += _against(launch, found.args, found.origin)
    out = launch.with_args(weaker(launch, found.args), found.origin)
    return dataclasses.replace(out, consumed=found.consumed()) if out.consumed is None else out


def _against(launch: Launch, args: Mapping[str, Any], origin: str) -> list[str]:
    """Where a stronger source overrules what this one says of the launch, unless it only says where the data lie now."""
    known = {k: v for k, v in args.items() if v is not None}
    differ = [k for k in changes(launch.args, {**launch.args, **known}) if k in known and k in launch.args and k not in LISTS]
    return [f"launch {launch.number}: `{k}` is {launch.args[k]} ({launch.origins.get(k, 'args')}), {origin} says {known[k]}" for k in differ]


def _sources(launches: Sequence[Launch]) -> list[str]:
    """Which arguments came from elsewhere than the description, in a line per place; in one line where launches are many."""
    lines: list[str] = []
    for launch in launches:
        places: dict[str, list[str]] = {}
        for name in sorted(launch.args):
            origin = launch.origins.get(name, "args")
            if not origin.startswith(("args", "launches")):
                places.setdefault(origin, []).append(name)
        where = f"launch {launch.number}, " if len(launches) > 1 else ""
        lines += [f"{where}from {origin}: {', '.join(names)}" for origin, names in sorted(places.items())]
    if len(lines) <= SHOWN_SOURCES:
        return lines
    kinds = sorted({o.split(" ")[0] for x in launches for o in x.origins.values() if not o.startswith(("args", "launches"))})
    return [f"arguments of {len(launches)} launches come from {' and '.join(kinds)} too; `case.json` lists each with its place"]


def weaker(launch: Launch, args: Mapping[str, Any]) -> dict[str, Any]:
    """Those arguments of a weaker source that may be added: they matter for the order and no group is torn."""
    out = {k: v for k, v in args.items() if v is not None and k in KNOWN and k not in COUNTERS}
    for group in GROUPS:
        if any(launch.args.get(name) is not None for name in group):
            out = {k: v for k, v in out.items() if k not in group}
    if out.get("train_samples") is not None:
        out.pop("train_iters", None)  # the trainer works it out from the samples once it has started
    return out


def _with_checkpoints(run: RunSpec, notes: list[str]) -> RunSpec:
    from forensics.loaders.megatron.checkpoint import read_saved, saved_steps, sniff, unfinished

    for folder in run.checkpoint_folders:
        if torn := unfinished(folder):
            notes.append(f"{', '.join(p.name for p in torn)} in {folder.name}: unfinished, not a rollback point")
        if not sniff(folder):
            notes.append(f"{folder} holds no checkpoint of a known layout")
    places = {step: folder for folder in run.checkpoint_folders for step in saved_steps(folder)}
    saved: dict[int, Saved] = {} if places else {s.step: s for folder in run.checkpoint_folders for s in read_saved(folder)}
    while todo := sorted(_wanted(run, sorted(places)) - set(saved)):
        try:
            saved.update((s.step, s) for s in read_saved(places[todo[-1]], todo[-1:]))
        except StoreError as error:
            notes.append(f"not used: {error.message}")
            del places[todo[-1]]
    steps = sorted(places)
    run = dataclasses.replace(run, checkpoints=tuple(sorted({*run.checkpoints, *steps, *saved})))
    owners = _owners(run, sorted(saved))
    if not run.launches_given and len(run.launches) == 1:
        _refuse_changed(run, [saved[s] for s in owners.get(0, [])])
    launches = []
    for launch in run.launches:
        if own := owners.get(launch.number):
            one = saved[own[-1]]
            notes += _against(launch, one.args, f"checkpoint {one.path.name}")
            launch = launch.with_args(weaker(launch, one.args), f"checkpoint {one.path.name}")
        # a checkpoint that a later launch saved over is not the one this launch loaded
        loaded = launch.after_step in saved and launch.after_step not in {s for n, own in owners.items() if n >= launch.number for s in own}
        if launch.consumed is None and loaded and launch.after_step > 0:
            launch = dataclasses.replace(launch, consumed=saved[launch.after_step].consumed)
        launches.append(launch)
    return dataclasses.replace(run, launches=tuple(launches))


def _wanted(run: RunSpec, steps: Sequence[int]) -> set[int]:
    """Checkpoints worth opening: the last of every launch, those it started from, and the first where launches are not known."""
    out = {step for owner in _owners(run, steps).values() for step in owner[-1:]} | {x.after_step for x in run.launches} & set(steps)
    return out | set(steps[:1]) if not run.launches_given and len(run.launches) == 1 else out


def _owners(run: RunSpec, steps: Sequence[int]) -> dict[int, list[int]]:
    """Launch -> steps of the checkpoints it saved; a step that two launches reached was overwritten by the later one."""
    out: dict[int, list[int]] = {}
    for step in steps:
        able = [x.number for i, x in enumerate(run.launches) if x.after_step < step <= _end(run, i)]
        if able:
            out.setdefault(able[-1], []).append(step)
    return out


def _end(run: RunSpec, number: int) -> int:
    """The last step that a launch can have saved."""
    launch = run.launches[number]
    if launch.last_step is not None:
        return launch.last_step
    later = [x.after_step for x in run.launches[number + 1 :] if x.after_step >= launch.after_step]
    return later[0] if later else 1 << 62


def _refuse_changed(run: RunSpec, saved: Sequence[Saved]) -> None:
    """A run taken as one launch whose checkpoints were saved under different arguments."""
    first, last = (saved[0], saved[-1]) if saved else (None, None)
    if first is None or last is None or first is last:
        return
    changed = changes(first.args, last.args)
    changed = [name for name in changed if name not in run.launches[0].args]
    if changed:
        raise ConfigError(
            f"the checkpoints {first.path.name} and {last.path.name} were saved under different arguments ({', '.join(changed)}), so a launch began in between",
            hint="`forensics init` writes a description with the launches it finds; or list them under `launches`",
        )


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Arguments that decide the data order and differ between two launches; sorted."""
    quiet = COUNTERS | {"world_size", "data_cache_path", "vocab_size", "padded_vocab_size"}
    names = (KNOWN - quiet) & {*before, *after}
    if before.get("train_samples") is not None and before.get("train_samples") == after.get("train_samples"):
        names = names - {"train_iters"}
    return sorted(n for n in names if _flat(before.get(n)) != _flat(after.get(n)))


def _flat(value: Any) -> Any:
    """A value for comparison: an empty list, False and None all mean that nothing was asked for."""
    if value is None or value is False or value in ([], ()):
        return None
    return [str(v) for v in value] if isinstance(value, (list, tuple)) else value


def _missing(run: RunSpec) -> Iterator[Missing]:
    """Everything that decides the order and that no source gave, over all launches."""
    for launch in run.launches:
        where = f" (launch {launch.number})" if len(run.launches) > 1 else ""
        given = {k for k, v in launch.args.items() if v is not None}
        for names, text in _NEEDED:
            if not given & set(names):
                yield Missing(f"args.{names[0]}", text + where)
        if not given & {"global_batch_size", "step_batch_size_schedule"} and not {"micro_batch_size", "data_parallel_size"} <= given:
            yield Missing("args.global_batch_size", "sequences per step: --global-batch-size" + where)
        ranks = "data_parallel_size" in given or "world_size" in given
        by_rank = (
            launch.args.get("dataloader_type") == "cyclic" or bool(launch.args.get("decrease_batch_size_if_needed")) or "step_batch_size_schedule" in given
        )
        if by_rank and "micro_batch_size" not in given:
            yield Missing("args.micro_batch_size", "sequences per rank and microbatch, which decide the order here: --micro-batch-size" + where)
        if by_rank and not ranks:
            yield Missing(
                "args.data_parallel_size", "data-parallel ranks, which decide the order here: world size / (tensor x pipeline x context parallel)" + where
            )
    yield from _absent_data(run)


def _at_home(run: RunSpec) -> RunSpec:
    """A run described by its checkpoint folder alone, with relative paths counted from the nearest folder that holds its data."""
    for folder in dict.fromkeys((run.folder, *run.folder.parents[:2], Path.cwd())):
        moved = dataclasses.replace(run, folder=folder)
        if not list(_absent_data(moved)):
            return dataclasses.replace(moved, notes=(*run.notes, f"relative paths are taken to count from {folder}"))
    return run


def _absent_data(run: RunSpec) -> Iterator[Missing]:
    from forensics.loaders.megatron.options import read_blends

    seen: dict[str, None] = {}
    for launch in run.launches:
        if not any(launch.args.get(name) is not None for name in LISTS):
            continue
        _, blends = read_blends(run, launch)
        seen.update(dict.fromkeys(blends[0].prefixes if blends[0] else ()))
    for prefix in seen:
        place = run.path(prefix)
        gone = [suffix for suffix in (".idx", ".bin") if not place.with_name(place.name + suffix).is_file()]
        if gone:
            yield Missing(prefix + "|".join(gone), f"looked for at {place}; `moved` maps paths as the run saw them to where they lie now")


def _optimizer(logged: Sequence[LoggedLaunch]) -> Mapping[str, Any]:
    """What the last arguments block says of the optimizer, in the description's own terms; counts in steps."""
    args = next((x.args for x in reversed(logged) if x.args.get("lr") is not None), None)
    if args is None:
        return MappingProxyType({})
    out: dict[str, Any] = {"name": args.get("optimizer") or "adam", "lr": args["lr"], "clip": args.get("clip_grad")}
    if args.get("adam_beta1") is not None and args.get("adam_beta2") is not None:
        out["betas"] = [args["adam_beta1"], args["adam_beta2"]]
    batch = args.get("global_batch_size")
    for ours, theirs in (("warmup", "lr_warmup"), ("decay_steps", "lr_decay")):
        steps, samples = args.get(f"{theirs}_iters"), args.get(f"{theirs}_samples")
        if isinstance(steps, int) and (steps or not samples):
            out[ours] = steps
        elif isinstance(samples, int) and isinstance(batch, int) and batch:
            out[ours] = samples // batch
    if args.get("lr_decay_style"):
        lowest = args.get("min_lr")
        out["schedule"] = str(args["lr_decay_style"]) + (f" to {100 * lowest / args['lr']:.3g}%" if isinstance(lowest, (int, float)) and args["lr"] else "")
    return MappingProxyType({k: v for k, v in out.items() if v is not None})
