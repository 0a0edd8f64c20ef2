"""What a replay will read, worked out before anything is read: steps by role, launches, budgets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from forensics.attribution.baseline import Ranges, ranges
from forensics.attribution.inputs import Rules
from forensics.config import build, merge, preset
from forensics.errors import RunError
from forensics.loaders.base import Loader, StepFacts, loader_of, path_of
from forensics.manifests.base import EXPORTERS, exporter_for, steps_in_words
from forensics.run import RunSpec
from forensics.schemas import Launches
from forensics.steps import StepRange, parse_steps

SAMPLED_TOKENS = 48 << 20  # of baseline and what follows the window, at most
LEAST_TOKENS = 24 << 20  # of the same, even where the window is small
MOST_TOKENS = 12 << 20  # tokens that attribution looks at; of more it takes a sample of rows


class ReplayConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a replay can be told beside the run: `--config FILE`."""

    baseline: str | None = None
    thresholds: str = "default"
    jaccard: float = 0.8
    batch: int | None = None
    exporter: str | None = None
    redact: bool = True
    attribution: dict[str, Any] = {}


@dataclass(frozen=True)
class Plan:
    """What will be read, known before anything is.

    Attributes:
        run, loader: the run and who knows its order.
        window: steps asked about; launch: whose history they are seen from.
        ranges: steps by role; history: which launch each of them is read from.
        facts: per step of all roles.
        row_tokens: tokens per sequence.
        whole: steps of which every row is read; of the others only each `every`-th.
        share: of the rows that are read whole, those that attribution looks at.
        notes: what the loader assumed.
    """

    run: RunSpec
    loader: Loader
    launches: Launches
    window: StepRange
    launch: int
    ranges: Ranges
    history: tuple[tuple[int, StepRange], ...]
    facts: StepFacts
    row_tokens: int
    whole: StepRange
    every: int
    share: float
    notes: tuple[str, ...]

    @property
    def sequences(self) -> int:
        """Rows of the window."""
        inside = (self.facts.step >= self.window.start) & (self.facts.step < self.window.stop)
        return int(self.facts.sequences[inside].sum())


def read_config(data: Mapping[str, Any], where: str = "--config") -> ReplayConfig:
    """Settings from plain data, unknown keys refused."""
    return build(ReplayConfig, data, where)


def plan_replay(run: RunSpec, window: StepRange, config: ReplayConfig, launch: int | None = None) -> Plan:
    """Work out which steps of which launches are read, and in which role.

    Raises:
        RunError: steps that no launch ran; UsageError: a window across launches that do not follow each other, an exporter that does not fit.
    """
    if config.exporter:  # refused before anything is read
        EXPORTERS.get(exporter_for(run.trainer, config.exporter))
    loader = loader_of(run)
    facts = loader.trained(run, window, launch)
    own = int(facts.launch[0])
    launches = loader.launches(run)
    rules = read_rules(config)
    wide = StepRange(max(1, window.start - 4096), window.stop + rules.follow)
    history = path_of(launches, wide, own if launch is not None else int(facts.launch[-1]))
    given = parse_steps(config.baseline) if config.baseline else None
    if given is not None:
        history = path_of(launches, StepRange(min(given.start, wide.start), max(given.stop, wide.stop)), own)
    refuse_uncovered(window, history, launches)
    found = ranges(window, history[0][1].start, history[-1][1].stop, rules, optimizer=run.optimizer, baseline=given)
    reach = [r for r in (found.baseline, found.lookback, found.window, found.after) if r is not None]
    pieces = [(n, part) for n, steps in history for r in sorted(reach) if (part := r.overlap(steps)) is not None]
    every_fact = StepFacts.concat([loader.trained(run, part, n) for n, part in pieces])
    width = next((w for w in launches["row_width"].to_pylist() if w), None) or 1
    whole, every, share = budgets(every_fact, found, rules, int(width))
    notes = (*found.notes, *getattr(loader, "notes", lambda _: [])(run), *_dropped(facts))
    return Plan(run, loader, launches, window, own, found, tuple(pieces), every_fact, int(width), whole, every, share, notes)


def _dropped(facts: StepFacts) -> list[str]:
    """Steps of the window that no model was trained on."""
    steps = facts.step[~facts.trained]
    if not len(steps):
        return []
    rest = "no step of the window was trained" if len(steps) == len(facts) else "they cannot have changed the model"
    return [f"steps {steps_in_words(steps.tolist())} were read and dropped, never trained on (the trainer's skip list): {rest}"]


def refuse_uncovered(window: StepRange, history: list[tuple[int, StepRange]], launches: Launches) -> None:
    """Stop where the launches did not run every step of the window.

    Raises:
        RunError: with what each launch ran.
    """
    ran = sum(len(part) for _, steps in history if (part := window.overlap(steps)) is not None)
    if ran < len(window):
        rows = launches.select(["launch", "first_step", "stop_step"]).to_pylist()
        known = ", ".join(f"launch {r['launch']}: {r['first_step']} to {r['stop_step'] - 1}" for r in rows)
        raise RunError(
            f"{len(window) - ran} of the {len(window)} steps {window.start} to {window.last} were never run",
            hint=f"{known}; ask for steps among these, or say in forensics.yaml that a launch went on (`last_step`)",
        )


def budgets(facts: StepFacts, found: Ranges, rules: Rules, width: int) -> tuple[StepRange, int, float]:
    """Which steps are read whole, each how-many-th row of the others, and the share of rows that attribution looks at.

    The window is always read whole. So is the look-back, unless it is long against the window. Together with the sample of
    the baseline and of what follows, all token passes stay within `rules.budget` times the window's.

    Returns:
        Steps, `every`, and a share in (0, 1].
    """

    def tokens(steps: StepRange) -> float:
        return float(facts.sequences[(facts.step >= steps.start) & (facts.step < steps.stop)].sum()) * width

    window, total = found.window, float(facts.sequences.sum()) * width
    whole = window if found.lookback is None else StepRange(found.lookback.start, window.stop)
    room = (rules.budget - 1) * tokens(window)
    if tokens(whole) - tokens(window) > room / 2:
        whole = window
    others = total - tokens(whole)
    allowed = max(min(room - (tokens(whole) - tokens(window)), SAMPLED_TOKENS), LEAST_TOKENS)
    every = max(1, math.ceil(others / allowed))
    per_row = MOST_TOKENS / max(total, 1.0)  # as many rows of every step, as far as the sample outside goes
    taken = min(others * per_row, others / every)
    share = min(1.0, (MOST_TOKENS - taken) / max(tokens(whole), 1.0))
    return whole, every, share


def read_rules(config: ReplayConfig) -> Rules:
    """The preset of attribution with the configuration's overrides."""
    return build(Rules, merge(preset("attribution/default"), config.attribution), "attribution")
