"""The `trainer` block of an OLMo-core run: what it skips, where it ends, and which callbacks change a batch.

Names are those of `TrainerConfig` and of the callbacks in train/callbacks, read in 3.0.0. A callback is told by its
`_CLASS_`, else by its key in `callbacks`; one that is not known could do anything to a batch and is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forensics.errors import ConfigError, NotReplayable, RunError
from forensics.loaders.arguments import Arguments
from forensics.loaders.olmo_core.order import Change, Counters, Walk
from forensics.run import Launch
from forensics.steps import MAX_STEP, StepRange

TRAINER = ("max_duration", "hard_stop", "steps_to_skip", "callbacks", "load_trainer_state")
TRAINER_HARMLESS = (
    "_CLASS_", "save_folder", "work_dir", "load_path", "load_strategy", "load_optim_state", "checkpointer", "device", "save_overwrite",
    "cancel_check_interval", "metrics_collect_interval", "async_bookkeeping", "bookkeeping_soft_timeout", "no_checkpoints", "no_evals", "checkpoints_to_eval",
)  # fmt: skip
BATCH_SIZE, SEQUENCE_LENGTH = "batch_size_scheduler", "sequence_length_scheduler"
_BYSTANDERS = """
beaker checkpoint_ready_notifier checkpointer comet config_saver console_logger evaluator lm_evaluator downstream_evaluator gap_monitor
garbage_collector gpu_memory_monitor gpu_monitor hf_converter list_checkpointer metric_saver model_merge monkey_patcher profiler nvidia_profiler
torch_memory_history slack_notifier speed_monitor stability_monitor wandb
"""
BYSTANDERS = frozenset(_BYSTANDERS.split())


@dataclass(frozen=True)
class LengthWarmup:
    """`SequenceLengthSchedulerCallback`: shorter sequences up to and with step `steps`.

    Attributes:
        least: `min_sequence_length`.
        truncate: whether instances are cut; else they are split into rows, and every token stays.
        multiple: `keep_multiple_of`.
    """

    least: int
    steps: int
    truncate: bool
    multiple: int

    def width(self, step: int, longest: int) -> int:
        """Tokens that stay of an instance of `longest` at a step."""
        if not self.truncate or step > self.steps:
            return longest
        grown = self.least + (longest - self.least) * min(step, self.steps) / self.steps
        return min(int(self.multiple * (grown // self.multiple)), longest)


@dataclass(frozen=True)
class TrainerOptions:
    """What the trainer block decides.

    Attributes:
        skipped: steps that are read and not trained on.
        schedule: changes of the batch size.
        warmup: of the sequence length; None without.
        ends: (value, unit) after each of which the run stops.
    """

    skipped: tuple[StepRange, ...]
    schedule: tuple[Change, ...]
    warmup: LengthWarmup | None
    ends: tuple[tuple[int, str], ...]

    def end(self, walk: Walk, start: Counters) -> int | None:
        """One past the last step that `max_duration` (or an earlier `hard_stop`) allows."""
        return min((_end_of(value, unit, walk, start) for value, unit in self.ends), default=None)


def read_trainer(given: Mapping[str, Any], launch: Launch) -> TrainerOptions:
    """Check the trainer block of a launch.

    Raises:
        ConfigError, NotReplayable: options or callbacks that are unknown or not modelled.
        RunError: a resumed launch that, by its options, loaded no trainer state.
    """
    read = Arguments("trainer", given, TRAINER, TRAINER_HARMLESS)
    if launch.after_step and not read.flag("load_trainer_state", True):
        raise RunError(
            f"launch {launch.number} is said to start after step {launch.after_step}, but with `load_trainer_state: false` its steps count from 1",
            hint="say `after_step: 0` for it",
        )
    found = _callbacks(read.mapping("callbacks"))
    return TrainerOptions(
        tuple(_skipped(read)),
        schedule_of(found.get(BATCH_SIZE)),
        _warmup(found.get(SEQUENCE_LENGTH)),
        tuple(duration(read.get(name)) for name in ("max_duration", "hard_stop") if name in read),
    )


def _callbacks(given: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The callbacks that change batches, by kind."""
    out = {}
    for key, value in given.items():
        block = value if isinstance(value, Mapping) else {}
        named = str(block.get("_CLASS_") or "").rpartition(".")[2]
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", re.sub("Callback(Config)?$", "", named)).lower() if named else str(key)
        kind = {"gapmonitor": "gap_monitor", "hfconverter": "hf_converter", "wand_b": "wandb", "lmevaluator": "lm_evaluator"}.get(kind, kind)
        if kind in (BATCH_SIZE, SEQUENCE_LENGTH):
            out[kind] = block
        elif kind not in BYSTANDERS and value is not None and block.get("enabled", True):
            raise NotReplayable(
                f"the callback `{key}`{f' ({named})' if named else ''} of the trainer is not known: a callback may change the batches it sees",
                hint="if it surely does not, take it out of the description; else record what the run consumes (trainer: recorded)",
            )
    return out


def _warmup(given: Mapping[str, Any] | None) -> LengthWarmup | None:
    if given is None:
        return None
    known = ("min_sequence_length", "warmup_steps", "truncate", "keep_multiple_of", "enabled")
    read = Arguments(SEQUENCE_LENGTH, given, known, ("_CLASS_",))
    if not read.flag("enabled", True):
        return None
    return LengthWarmup(
        read.integer("min_sequence_length", 128, least=1),
        read.integer("warmup_steps", 2000, least=1),
        read.flag("truncate", False),
        read.integer("keep_multiple_of", 128, least=1),
    )


def schedule_of(given: Mapping[str, Any] | None) -> tuple[Change, ...]:
    """Changes of the batch size (`BatchSizeSchedulerCallback`)."""
    if not given:
        return ()
    read = Arguments(BATCH_SIZE, given, ("batch_sizes", "schedule", "enabled"), ("_CLASS_",))
    sizes, moments = read.listed("batch_sizes"), read.listed("schedule")
    if not read.flag("enabled", True) or not moments:
        return ()
    if len(sizes) != len(moments):
        raise ConfigError("`batch_sizes` and `schedule` of batch_size_scheduler have different lengths")
    return tuple(Change(int(size), *duration(moment)) for size, moment in zip(sizes, moments))


def duration(given: object) -> tuple[int, str]:
    """Value and unit (steps, tokens, epochs) of a `Duration`."""
    if isinstance(given, Mapping):
        read = Arguments("a duration", given, ("value", "unit"), ("_CLASS_",))
        return read.integer("value", least=0), read.choice("unit", ("steps", "tokens", "epochs"), "steps")
    if isinstance(given, int):
        return given, "steps"
    raise ConfigError(f"{given!r} is no duration: a mapping of `value` and `unit` was expected")


def _skipped(read: Arguments) -> Sequence[StepRange]:
    out = []
    for item in read.listed("steps_to_skip"):
        start, stop = (item["start"], item["stop"]) if isinstance(item, Mapping) else (item[0], item[1])
        if stop > start:
            out.append(StepRange(int(start), int(stop)))
    return out


def _end_of(value: int, unit: str, walk: Walk, start: Counters) -> int:
    if unit == "steps":
        return max(value, start.step) + 1
    step = start.step
    while step < MAX_STEP:
        epoch, _, tokens, last = walk.place(step + 1)
        if unit == "epochs":
            if epoch > value:
                break
            step = last
            continue
        seen = walk.after(last).total_tokens
        if seen >= value:
            return last - (seen - value) // tokens + 1
        step = last
    return step + 1
