"""Arguments of a launch in the trainer's own names, read strictly into typed values.

Follows `megatron/training/arguments.py`: names are those of the command line with underscores, which are also those in
a checkpoint's `args` and in the log's argument block; values may therefore be Python values, YAML or text. What is not
given takes the trainer's default, and the reader notes that it did.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.errors import ConfigError, NotReplayable, RunError, nearest
from forensics.loaders.megatron.names import BYSTANDERS, KNOWN
from forensics.loaders.megatron.versions import RECORD, Rules, check_option
from forensics.loaders.megatron.weights import Blend, parse_blend
from forensics.run import Launch, RunSpec

SPLITS = ("train", "valid", "test")
DEFAULT_SPLIT = "969, 30, 1"
_REFUSED = {
    "fim_data": "fill-in-the-middle permutes the tokens of a row with a generator per worker process that advances with every read",
    "sft": "the SFT dataset packs conversations by its own rules",
    "mock_data": "mock data are synthetic",
    "perform_rl_step": "reinforcement learning trains on rollouts of its own",
    "data_efficiency_curriculum_learning": "the data-efficiency sampler draws from its own index files",
    "curriculum_learning_legacy": "legacy curriculum learning reshapes the rows",
    "train_data_exact_num_epochs": "Megatron-DeepSpeed forces the number of epochs by its own rule",
}


@dataclass(frozen=True)
class Options:
    """What decides the order of one launch.

    Attributes:
        blends: prefixes and weights per split; None where the split has none of its own.
        split: shares of one common list, None with lists per split.
        ramp: start, increment, samples.
        eval_batch: samples of a validation batch.
        extra: 1 where a sample holds one token more than its length.
        assumed: option -> default that was taken because the run does not say.
    """

    seq_length: int
    seed: int
    split: str | None
    blends: tuple[Blend | None, Blend | None, Blend | None]
    global_batch_size: int
    micro_batch_size: int | None
    data_parallel_size: int | None
    train_iters: int | None
    train_samples: int | None
    ramp: tuple[int, int, int] | None
    schedule: str | None
    decrease: bool
    eval_interval: int
    eval_iters: int
    eval_batch: int
    full_validation: bool
    skip_train: bool
    start_eval: int
    cyclic: bool
    sharding: bool
    to_skip: tuple[int, ...]
    transitions: tuple[int, ...]
    surplus: float
    renormalize: bool
    extra: int
    drop_last: bool
    hybrid_context: bool
    assumed: Mapping[str, Any]


class _Args:
    """Typed look-ups that remember which defaults were taken."""

    def __init__(self, launch: Launch) -> None:
        self.values = launch.args
        self.origins = launch.origins
        self.assumed: dict[str, Any] = {}

    def raw(self, name: str) -> Any:
        value = self.values.get(name)
        return None if isinstance(value, str) and value.strip() in ("", "None", "null") else value

    def _wrong(self, name: str, value: Any, expected: str) -> ConfigError:
        return ConfigError(f"`{name}` is {value!r}, expected {expected} ({self.origins.get(name, 'args')})")

    def integer(self, name: str, default: int | None = None) -> int | None:
        value = self.raw(name)
        if value is None:
            if default is not None:
                self.assumed[name] = default
            return default
        try:
            if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
                raise ValueError
            return int(value) if not isinstance(value, str) else int(value.strip().replace("_", ""))
        except (ValueError, TypeError) as error:
            raise self._wrong(name, value, "a whole number") from error

    def positive(self, name: str) -> int | None:
        value = self.integer(name)
        if value is not None and value <= 0:
            raise self._wrong(name, value, "a number above 0")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.raw(name)
        try:
            return default if value is None else float(value)
        except (ValueError, TypeError) as error:
            raise self._wrong(name, value, "a number") from error

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        if str(value).strip().lower() in ("true", "false", "1", "0"):
            return str(value).strip().lower() in ("true", "1")
        raise self._wrong(name, value, "true or false")

    def words(self, name: str) -> list[str] | None:
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, str) and value.strip().startswith("["):
            try:
                value = ast.literal_eval(value.strip())
            except (ValueError, SyntaxError) as error:
                raise self._wrong(name, value, "a list") from error
        if isinstance(value, str):
            return value.split()
        if isinstance(value, (list, tuple)):
            return [str(item) for item in value] or None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return [str(value)]
        raise self._wrong(name, value, "a list")

    def integers(self, name: str) -> tuple[int, ...]:
        words = self.words(name) or []
        try:
            return tuple(int(part) for word in words for part in word.split(",") if part)
        except ValueError as error:
            raise self._wrong(name, self.values[name], "a list of whole numbers") from error


def check_names(launch: Launch) -> None:
    """Refuse misspelt options: those typed into the description that the trainer does not know.

    Raises:
        ConfigError: with the nearest known name.
    """
    for name in launch.args:
        typed = launch.origins.get(name, "args").startswith(("args", "launches", "--set"))
        if typed and name not in KNOWN and name not in BYSTANDERS:
            raise ConfigError(f"unknown argument `{name}`{nearest(name, KNOWN)}", hint="options of the trainer that do not touch the data need not be given")


def read_options(run: RunSpec, launch: Launch, rules: Rules) -> Options:
    """Everything that decides the order of a launch.

    Raises:
        ConfigError: an option that is missing or of the wrong type; all missing ones are named at once.
        NotReplayable: an option whose order cannot be recomputed.
        RunError: options that contradict each other or the version.
    """
    check_names(launch)
    args = _Args(launch)
    _refuse(args)
    micro, ranks = args.positive("micro_batch_size"), _ranks(args)
    schedule = args.raw("step_batch_size_schedule")
    batch = _batch(args, schedule, micro, ranks)
    length, iters, samples = args.positive("seq_length"), args.integer("train_iters"), args.integer("train_samples")
    split, blends = _blends(run, args)
    _missing({
        "seq_length": (length, "tokens per sequence (--seq-length)"),
        "global_batch_size": (batch, "sequences per step (--global-batch-size), or micro_batch_size and data_parallel_size with a step schedule"),
        "train_iters": (iters or samples, "steps the launch was started for (--train-iters), or train_samples"),
        "data_path": (blends[0], "prefixes of the data files (--data-path, or lists per split)"),
    }, launch)  # fmt: skip
    assert length and batch
    if iters and samples:
        iters = None if args.origins.get("train_iters", "").startswith(("checkpoint", "log")) else _both(launch)
    skip_train = args.flag("skip_train")
    options = Options(
        seq_length=length, seed=args.integer("seed", 1234) or 0, split=split, blends=blends, global_batch_size=batch,
        micro_batch_size=micro, data_parallel_size=ranks,
        train_iters=iters, train_samples=samples, ramp=_ramp(args), schedule=None if schedule is None else str(schedule),
        decrease=args.flag("decrease_batch_size_if_needed"),
        eval_interval=args.integer("eval_interval", 1000) or 0, eval_iters=args.integer("eval_iters", 100) or 0,
        eval_batch=args.integer("eval_global_batch_size") or batch,
        full_validation=args.flag("full_validation"), skip_train=skip_train, start_eval=args.integer("start_eval_at_iter") or 0,
        cyclic=_cyclic(args), sharding=args.flag("data_sharding", True) and not args.flag("no_data_sharding"),
        to_skip=args.integers("iterations_to_skip"), transitions=tuple(sorted(args.integers("phase_transition_iterations"))),
        surplus=args.number("mid_level_dataset_surplus", 0.005), renormalize=args.flag("renormalize_blend_weights"),
        extra=int(args.flag("add_extra_token_to_sequence", True)),
        drop_last=args.flag("drop_last_partial_validation_sequence", True), hybrid_context=args.flag("hybrid_context_parallel"), assumed=args.assumed,
    )  # fmt: skip
    _consistent(options, rules, args)
    return options


def _refuse(args: _Args) -> None:
    for name, why in _REFUSED.items():
        if args.raw(name) is not None and args.flag(name):
            raise NotReplayable(f"`{name}` is on: {why}, so its rows cannot be recomputed", hint=RECORD)


def _cyclic(args: _Args) -> bool:
    kind = args.raw("dataloader_type") or "single"
    if kind not in ("single", "cyclic"):
        raise NotReplayable(f"`dataloader_type: {kind}` feeds the run from outside the trainer's own samplers", hint=RECORD)
    return kind == "cyclic"


def _ranks(args: _Args) -> int | None:
    """Data-parallel ranks; expert parallelism does not enter."""
    if (given := args.positive("data_parallel_size")) is not None:
        return given
    if (world := args.positive("world_size")) is None:
        return None
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "gtp_weight_remat_size")
    share = 1
    for name in names:
        share *= args.positive(name) or 1
    if world % share:
        raise RunError(f"world_size {world} is no multiple of {share} (tensor x pipeline x context parallel)")
    return world // share


def _batch(args: _Args, schedule: Any, micro: int | None, ranks: int | None) -> int | None:
    batch = args.positive("global_batch_size")
    if schedule is not None and batch is not None and args.origins.get("global_batch_size", "args").startswith(("args", "launches", "--set")):
        raise RunError("`global_batch_size` may not be given beside `step_batch_size_schedule`; the trainer refuses both together")
    if schedule is not None or batch is None:
        return micro * ranks if micro and ranks else None
    return batch


def _ramp(args: _Args) -> tuple[int, int, int] | None:
    found = args.integers("rampup_batch_size")
    if not found:
        return None
    if len(found) != 3 or min(found) < 0 or found[1] <= 0 or found[2] <= 0:
        raise ConfigError(f"`rampup_batch_size` is {list(found)}, expected start, increment and samples")
    return found[0], found[1], found[2]


def _blends(run: RunSpec, args: _Args) -> tuple[str | None, tuple[Blend | None, Blend | None, Blend | None]]:
    per_split = [args.words(f"{name}_data_path") for name in SPLITS]
    common = args.words("data_path")
    if (file := args.raw("per_split_data_args_path")) is not None:
        per_split = _per_split_file(run.path(str(file)))
    if (file := args.raw("data_args_path")) is not None and common is None:
        common = _text(run.path(str(file))).split()
    if any(per_split):
        if common or (args.raw("split") is not None and args.origins.get("split", "args").startswith(("args", "launches", "--set"))):
            raise RunError("lists per split exclude `data_path` and `split`; the trainer refuses both together")
        train, valid, test = (parse_blend(words) if words else None for words in per_split)
        return None, (train, valid, test)
    split = args.raw("split")
    if split is None:
        split = args.assumed["split"] = DEFAULT_SPLIT
    if isinstance(split, (list, tuple)):
        split = ",".join(str(part) for part in split)
    blend = parse_blend(common) if common else None
    return str(split), (blend, blend, blend)


def read_blends(run: RunSpec, launch: Launch) -> tuple[str | None, tuple[Blend | None, Blend | None, Blend | None]]:
    """Split string and the prefixes of each split of a launch; no prefixes at all where none are given."""
    return _blends(run, _Args(launch))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read ({error})", hint="it is named by the run's arguments; `moved` says where the run's folders lie now") from error


def _per_split_file(path: Path) -> list[list[str] | None]:
    try:
        found = json.loads(_text(path))
        lists = [found.get(name) for name in SPLITS]
    except (ValueError, AttributeError, RecursionError) as error:
        raise RunError(f"{path} is no JSON object with the keys train, valid, test") from error
    return [None if not x else x.split() if isinstance(x, str) else [str(item) for item in x] for x in lists]


def _missing(needed: Mapping[str, tuple[object, str]], launch: Launch) -> None:
    absent = [f"`{name}`: {where}" for name, (value, where) in needed.items() if not value]
    if absent:
        raise ConfigError(
            f"launch {launch.number} lacks arguments that decide the data order: " + "; ".join(absent),
            hint="they are in the launch script, in a checkpoint (`checkpoint:`) and in the log's arguments block (`log:`)",
        )


def _both(launch: Launch) -> int | None:
    raise RunError(f"launch {launch.number} has both `train_iters` and `train_samples`; the trainer takes exactly one", hint="give the one of the command line")


def _consistent(options: Options, rules: Rules, args: _Args) -> None:
    given = {
        "iterations_to_skip": options.to_skip, "rampup_batch_size": options.ramp, "step_batch_size_schedule": options.schedule,
        "phase_transition_iterations": options.transitions,
        "decrease_batch_size_if_needed": options.decrease, "renormalize_blend_weights": options.renormalize,
        "mid_level_dataset_surplus": options.surplus != 0.005,
    }  # fmt: skip
    for name, value in given.items():
        if value:
            check_option(rules, name)
    if options.ramp and (options.schedule or options.transitions):
        raise RunError("`rampup_batch_size` excludes a step schedule and phases; the trainer refuses them together")
    if options.schedule and (options.decrease or options.transitions):
        raise RunError("`step_batch_size_schedule` excludes phases and `decrease_batch_size_if_needed`")
    if options.cyclic and not (options.micro_batch_size and options.data_parallel_size):
        raise ConfigError(
            "a `cyclic` loader needs `micro_batch_size` and `data_parallel_size`: they decide which samples a step holds",
            hint="data-parallel size = world size / (tensor x pipeline x context parallel)",
        )
    if options.decrease and not (options.micro_batch_size and options.data_parallel_size):
        raise ConfigError("`decrease_batch_size_if_needed` needs `micro_batch_size` and `data_parallel_size`")
    if options.hybrid_context and options.cyclic:
        raise RunError("hybrid context parallel works with the `single` loader only")
    for name, number in (("eval_interval", options.eval_interval), ("eval_iters", options.eval_iters), ("seed", options.seed)):
        if number < 0:
            raise ConfigError(f"`{name}` is {number}, expected no negative number")
    for name, number, most in (("seed", options.seed, 2**32 - 1), ("seq_length", options.seq_length, 2**31 - 2)):
        if number > most:
            raise ConfigError(f"`{name}` is {number}, expected at most {most}")
