"""What attribution reads and the numbers it decides by.

`Inputs` holds the tables of one question about one run; `Rules` the thresholds, with their defaults in
`configs/attribution/default.yaml`. Nothing here computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from forensics.losses.difficulty import Batch
from forensics.schemas import Annotations, Blends, Clusters, Consumed, Documents, Events, Findings, Launches, Losses, Metrics
from forensics.steps import StepRange


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Thresholds of attribution. Steps, nats per token, shares of tokens, robust standard deviations."""

    lookback: int = 40  # steps before the window that may hold the cause, at least; 2 tau_v and the shuffle reach raise it
    lookback_most: int = 512
    follow: int = 256  # steps after the window that a dirty stretch is followed at most
    baseline_steps: int = 256  # steps before the look-back to compare with; their rows are sampled to the budget
    baseline_least: int = 12  # steps without which nothing is compared
    budget: float = 3.0  # token passes over window, look-back and baseline by the window's
    odd_fdr: float = 0.05
    odd_z: float = 3.5
    odd_z_sure: float = 4.0  # odd without regard to the false discovery rate
    dose_least: float = 1.0  # full batches of odd tokens
    share_least: float = 0.08  # mean share of odd tokens in the stretch
    scan_p: float = 0.01
    shifts: int = 2000
    gap: int = 12  # ordinary steps that do not end a dirty stretch
    lr_jump: float = 0.01  # relative discontinuity of the logged learning rate
    clip_slack: float = 1.05
    norm_z: float = 8.0
    rms_shift: float = 0.7  # log units
    mix_change: float = 0.15
    mix_z: float = 5.0
    skip_share: float = 0.5  # share of odd tokens in a stretch from which whole steps are skipped
    skip_cover: float = 0.95
    skip_intervals: int = 5
    merge_gap: int = 4
    skip_budget: int = 0  # label tokens that the skip list may take at most; 0: any number
    close_share: float = 0.5  # guilty share of a cluster, crawl or run of neighbours from which its other documents are offered
    close: bool = False  # take them


@dataclass(frozen=True)
class Inputs:
    """The tables of one question.

    Attributes:
        window: steps asked about.
        consumed: segments of baseline, look-back, window and what follows; rows of the baseline may be a sample.
        documents: every document of `consumed`, with its source.
        batch: their tokens, keys ascending; its `vocabulary` (may be None) decodes.
        metrics: logged numbers of the run, all steps that are known.
        launches: the run's history.
        losses: recorded or scored, origins side by side.
        findings, clusters, annotations, blends, events: where there are.
        optimizer: as in the run description: name, lr, betas, clip, warmup, decay_steps, schedule.
        checkpoints: steps with a checkpoint, and its path where known.
        shuffle_reach: steps over which the loader mixes samples, where known.
        experiments: name (replay, removal, control, ...) -> metrics of a rerun.
        command: how a plan writes this run, e.g. `RUN`.
    """

    window: StepRange
    consumed: Consumed
    documents: Documents
    batch: Batch
    metrics: Metrics
    launches: Launches
    losses: Losses | None = None
    findings: Findings | None = None
    clusters: Clusters | None = None
    annotations: Annotations | None = None
    blends: Blends | None = None
    events: Events | None = None
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: tuple[tuple[int, str | None], ...] = ()
    shuffle_reach: int | None = None
    experiments: Mapping[str, Metrics] = field(default_factory=dict)
    command: str = "RUN"
