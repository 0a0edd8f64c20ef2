"""Which column of a table of numbers is the step, the time, the tokens, and which metric the others are.

Shared by every source whose records are key-value pairs (JSON lines, CSV, Parquet, W&B, trainer state, console dicts).
The optimizer step wins over a logger's own counter: W&B's `_step` counts log calls, `train/global_step` counts updates.
Records without the step column (an evaluation logged by itself) take the step of the record before them.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from forensics.curves.names import _ALIASES, EXACT, METRICS, is_known, resolve, scaled
from forensics.curves.sources.base import Log, Options, Recorder

STEPS = (
    "update_step",
    "train/update_step",
    "optimizer_step",
    "train/global_step",
    "trainer/global_step",
    "global_step",
    "iteration",
    "train/iteration",
    "train_step",
    "train/step",
    "step",
    "steps",
    "optim/step",
    "iter",
    "iters",
    "num_updates",
    "update",
    "updates",
    "time/batch",
    "n_iter",
    "iter_num",
    "train/iter",
    "train/steps",
    "training_step",
    "current_iteration",
    "_step",
    "batch",
    "batch_idx",
    "index",
    "it",
)
TIMES = ("_timestamp", "timestamp", "wall_time", "walltime", "wall time", "datetime", "created_at", "@timestamp", "time_ms", "time", "date", "ts", "unix_time")
PER_STEP = frozenset(
    {"tokens", "num_tokens", "n_tokens", "train_tokens", "total_tokens", "ntokens"}
)  # running totals in some logs, counts of the step in others
RANKS = ("rank", "global_rank", "dp_rank", "data_parallel_rank", "local_rank")
LAUNCHES = ("launch",)  # as our own tables call it
LABELS = ("metric", "tag", "name", "key", "variable")
RUNS = ("run", "run_name", "run_id", "experiment", "run name", "exp_name")
IGNORED = frozenset({"_wandb", "best_metric", "train/epoch_step", "global_rank", "total_flos", "max_steps", "num_train_epochs", "lineno"})
HELD_OUT = frozenset(
    {"val", "valid", "validation", "eval", "evaluation", "val_loss", "eval_loss", "valid_loss", "validation_loss", "val_losses", "eval_losses", "loss_val"}
)
BY_SOURCE = frozenset(
    {
        "src",
        "source",
        "sources",
        "by_source",
        "loss_by_source",
        "source_loss",
        "source_losses",
        "loss_by_domain",
        "domain_loss",
        "domain_losses",
        "per_source",
        "per_domain",
        "loss_per_source",
        "domains",
    }
)
NUMBER = re.compile(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\Z")
WORDS = {
    "nan": math.nan,
    "-nan": math.nan,
    "+nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-infinity": -math.inf,
}
PER_RANK = frozenset(
    {
        "step_time",
        "data_time",
        "memory_allocated",
        "memory_reserved",
        "memory_peak",
        "tokens_per_second",
        "tokens_per_second_per_device",
        "train_loss",
        "grad_norm",
        "gpu_utilization",
        "sm_clock",
        "power",
        "temperature",
    }
)


def number(value: object) -> float | None:
    """The number in a cell; None where it holds none. `nan` and `inf` in words are numbers, an empty cell is not."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, (int, float)):
        return float(value)
    if not isinstance(value, str):
        return None
    text = value.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if "," in text and re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    return float(text.replace("_", "")) if NUMBER.match(text) else None


def seconds(value: object) -> float:
    """Seconds since 1970 (UTC) of a clock reading in s, ms, us, ns or ISO text; NaN where it is none."""
    if isinstance(value, str):
        plain = number(value)
        if plain is None:
            return clock(value)
        value = plain
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return math.nan
    for scale in (1.0, 1e3, 1e6, 1e9):
        if 1e8 <= value / scale < 1e10:
            return value / scale
    return math.nan


def clock(text: str) -> float:
    """Seconds since 1970 of a date in ISO form (also with a comma or slash); UTC where no zone is given."""
    tidy = text.strip().replace(",", ".").replace("/", "-")
    if tidy.endswith(" UTC"):
        tidy = tidy[:-4] + "+00:00"
    try:
        at = datetime.datetime.fromisoformat(tidy)
    except ValueError:
        try:
            at = datetime.datetime.strptime(tidy, "%m-%d-%Y %H:%M:%S").replace(tzinfo=datetime.UTC)
        except ValueError:
            return math.nan
    return (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp()


def flatten(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested records, their path joined by slashes; sets of losses by source or held-out set get their family's name."""
    for key, value in record.items():
        path = f"{prefix}{key}"
        lower = path.lower()
        if not isinstance(value, Mapping):
            yield path, value
            continue
        for leaf, inner in flatten(value):
            if lower in BY_SOURCE and isinstance(inner, (list, tuple)) and len(inner) == 2:
                yield f"source_tokens/{leaf}", inner[0]
                yield f"train_loss/{leaf}", inner[1]
            elif lower in BY_SOURCE and not leaf.startswith("train_loss/"):
                yield f"train_loss/{leaf}", inner
            elif lower in HELD_OUT and (not resolve(f"val/{leaf}")[0].startswith("eval_") or not resolve(f"val_{leaf}")[0].startswith("eval_")):
                yield f"eval_loss/{leaf}", inner
            else:
                yield f"{path}/{leaf}", inner


class Roles:
    """The role of every key of a file, fixed from the keys its beginning shows.

    Args:
        keys: names in the order they appear.
        sample: some value per key.
        options: the user's column map comes first.
    """

    def __init__(self, keys: Iterable[str], sample: Mapping[str, Any], options: Options) -> None:
        self.options = options
        self.mapped = options.columns
        keys = list(keys)
        self.step = self._axis("step", keys, STEPS)
        self.rank = self._axis("rank", keys, RANKS)
        self.launch = next((k for k in self._candidates("launch", keys, LAUNCHES) if _small(sample.get(k))), None)
        self.run = self._axis("run", keys, RUNS)
        self.time = next((k for k in self._candidates("time", keys, TIMES) if not math.isnan(seconds(sample.get(k)))), None)
        self.tokens = next(
            (k for k in self._candidates("tokens", keys, ()) or [k for k in keys if k not in self.mapped and resolve(k)[0] == "consumed_tokens"]), None
        )
        lower = {k.strip().lower(): k for k in reversed(keys)}
        self.label = next((lower[k] for k in LABELS if k in lower), None) if "value" in lower else None
        self.value = lower["value"] if self.label is not None else None
        axes = (self.step, self.rank, self.launch, self.run, self.time, self.tokens, self.label, self.value)
        self._names: dict[str, tuple[str, float] | None] = {k: None for k in axes if k is not None}
        self.numeric = {k for k in keys if is_known(resolve(k)[0]) or number(sample.get(k)) is not None}
        self.cumulative = self.tokens is None or self.tokens.rsplit("/", 1)[-1].lower() not in PER_STEP
        self._taken: set[str] = set()
        for key in sorted((k for k in keys if k not in self._names), key=_preference):
            self.metric(key)

    def _candidates(self, role: str, keys: list[str], known: tuple[str, ...]) -> list[str]:
        chosen = [k for k in keys if self.mapped.get(k) == role]
        if chosen:
            return chosen
        lower = {k.strip().lower(): k for k in reversed(keys) if k not in self.mapped}
        return [lower[k] for k in known if k in lower]

    def _axis(self, role: str, keys: list[str], known: tuple[str, ...]) -> str | None:
        return next(iter(self._candidates(role, keys, known)), None)

    def metric(self, key: str) -> tuple[str, float] | None:
        """Canonical name and factor of a key; None for axes, other counters of steps and keys that were mapped to nothing."""
        if key in self._names:
            return self._names[key]
        named = self._resolve(key)
        if named is not None:
            if named[0] in self._taken:
                named = (key, 1.0)
            self._taken.add(named[0])
        self._names[key] = named
        return named

    def _resolve(self, key: str) -> tuple[str, float] | None:
        lower = key.strip().lower()
        if key in self.mapped:
            name = self.mapped[key]
            return (name, resolve(key)[1]) if name and name not in ("step", "time", "tokens", "rank", "launch", "run") else None
        if lower in IGNORED or lower.startswith("_wandb") or (lower in STEPS and lower not in METRICS):
            return None
        if lower == "_runtime":
            return "elapsed_time", 1.0
        return resolve(key)


def _small(value: object) -> bool:
    """Whether a cell holds the number of a launch rather than a time or a text."""
    found = number(value)
    return found is not None and math.isfinite(found) and found == int(found) and 0 <= found < 1 << 15


def _preference(key: str) -> tuple[int, int]:
    """Where several keys mean one metric, the plainest name has it."""
    name = resolve(key)[0]
    flat = re.sub(r"[^a-z0-9]+", "_", key.lower()).strip("_")
    words = _ALIASES.get(name, "").split()
    return (words.index(flat) if flat in words else len(words) + (flat not in EXACT), len(key))


class Pairs:
    """Feeds key-value records of one file into recorders, one per run."""

    def __init__(self, roles: Roles) -> None:
        self.roles = roles
        self.recorders: dict[str | None, Recorder] = {}
        self.last: dict[str | None, int] = {}
        self.count = 0
        self.unnumbered = 0
        self.odd: dict[str, tuple[int, int, str]] = {}

    def add(self, record: Mapping[str, Any], line: int) -> None:
        """One record, nested or flat."""
        roles, run = self.roles, None
        step: float | None = None
        time, tokens, rank, launch = math.nan, -1, -1, -1
        values: list[tuple[str, float]] = []
        spread: list[tuple[str, list[float]]] = []
        if roles.label is not None and roles.value is not None:
            record = {k: v for k, v in record.items() if k in (roles.step, roles.time, roles.tokens, roles.rank, roles.launch, roles.run)} | {
                str(record.get(roles.label)): record.get(roles.value)
            }
        for key, value in flatten(record):
            if value is None:
                continue
            if key == roles.step:
                step = number(value)
                if step is None:
                    self._odd(key, value, line)
                    return
            elif key == roles.time:
                time = seconds(value)
            elif key == roles.tokens:
                found = number(value)
                tokens = int(found) if found is not None and math.isfinite(found) else -1
            elif key == roles.rank:
                found = number(value)
                rank = int(found) if found is not None else -1
            elif key == roles.launch:
                found = number(value)
                launch = int(found) if found is not None and math.isfinite(found) else -1
            elif key == roles.run:
                run = str(value)
            elif (named := roles.metric(key)) is not None:
                if isinstance(value, (list, tuple)):
                    many = [number(v) for v in value]
                    if named[0] in PER_RANK and len(many) > 1 and all(v is not None for v in many):
                        spread.append((named[0], [scaled(v, named[1]) for v in many if v is not None]))
                elif (found := number(value)) is not None:
                    values.append((named[0], scaled(found, named[1])))
                elif isinstance(value, str) and key in roles.numeric:
                    self._odd(key, value, line)
        self._put(step, run, values, spread, line, time, tokens, rank, launch)

    def _odd(self, key: str, value: object, line: int) -> None:
        """Remember a cell that should hold a number and does not."""
        count, first, text = self.odd.get(key, (0, line, str(value)))
        self.odd[key] = (count + 1, first, text)

    def report(self, log: Log) -> None:
        """Say which cells held no number: column, how many, where the first is and what it says; a record without a readable step is left out."""
        for key, (count, line, text) in self.odd.items():
            lost = "its record is left out" if key == self.roles.step else "it is left out"
            log.problem(f"column `{key}` holds no number here, but {text[:40]!r}; {lost}", line, count)
        self.odd.clear()

    def _put(
        self,
        step: float | None,
        run: str | None,
        values: list[tuple[str, float]],
        spread: list[tuple[str, list[float]]],
        line: int,
        time: float,
        tokens: int,
        rank: int,
        launch: int,
    ) -> None:
        self.count += 1
        if step is None or not math.isfinite(step):
            if not values and not spread:
                return
            if run not in self.last:
                self.unnumbered += 1
            step = self.last.get(run, self.count if self.roles.step is None else 0)
            if self.roles.step is None:
                step = self.count
        self.last[run] = int(step)
        if not values and not spread and tokens < 0:
            return
        recorder = self.recorders.setdefault(run, Recorder(run, self.roles.cumulative))
        recorder.add(int(step), values, line, time=time, tokens=tokens, rank=rank, launch=launch)
        for name, many in spread:
            for i, value in enumerate(many):
                recorder.add(int(step), [(name, value)], line, time=time, rank=i, launch=launch)

    @property
    def full(self) -> bool:
        """Whether a block is due."""
        return any(r.full for r in self.recorders.values())

    def cut(self) -> Iterator[Any]:
        """Blocks of all runs."""
        for recorder in self.recorders.values():
            yield from recorder.cut()
