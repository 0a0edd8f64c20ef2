"""The numbers of the curve rules, as frozen structs; the shipped values and their reasons are in `configs/curves/default.yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from forensics.config import build, merge, preset
from forensics.schemas import Annotations


class Loss(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events on the training loss."""

    window: int
    point: float
    slack: float
    limit: float
    settle: int
    relative_floor: float
    skip_steps: int
    merge_steps: int
    residual: float
    alarm_share: float
    alarm_hot: int
    dip_share: float
    short_log: int
    typical_noise: float


class Trend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Plateaus, drifts, noise."""

    plateau_share: float
    plateau_error: float
    plateau_steps: float
    drift_error: float
    noise_ratio: float


class Norm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Gradient norm."""

    window: int
    point: float
    slack: float
    limit: float
    high: float
    rise: float
    vanish: float


class LearningRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Learning rate."""

    jump: float


class Scale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Loss scale of fp16 runs."""

    halvings: int
    overflow_share: float


class Throughput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens per second, step times, ranks."""

    point: float
    low: float
    mild: float
    rank: float
    rank_share: float


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Device memory."""

    near: float
    growth: float
    capacity_bytes: float | None = None


class Gap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Missing records."""

    factor: float


class SmallRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A finished smaller run of the same recipe: its size, its tokens, its last loss."""

    parameters: float
    tokens: float
    loss: float


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size of the model, own smaller runs, and the published law that stands in for them."""

    floor: float
    a_factor: float
    a_exponent: float
    b_factor: float
    b_exponent: float
    share: float
    parameters: float | None = None
    runs: tuple[SmallRun, ...] = ()


class Corpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Distinct tokens of the training set, as a whole and by source."""

    tokens: float | None = None
    sources: dict[str, float] = {}


class Ruler(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a loss was measured with: names, or files that are compared by content."""

    tokenizer: str | None = None
    validation: str | None = None
    loss: str | None = None
    bytes_per_token: float | None = None


class CurveSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of them."""

    loss: Loss
    trend: Trend
    norm: Norm
    lr: LearningRate
    scale: Scale
    throughput: Throughput
    memory: Memory
    gap: Gap
    model: Model
    corpus: Corpus = Corpus()
    ruler: Ruler = Ruler()
    against: Ruler = Ruler()


class Optimizer(msgspec.Struct, frozen=True):
    """What a run description says about its optimizer; null where it says nothing."""

    name: str | None = None
    lr: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    weight_decay: float | None = None
    clip: float | None = None
    warmup: int | None = None
    decay_steps: int | None = None
    schedule: str | None = None

    @property
    def tau_m(self) -> float:
        """Time constant of the first moment [step]; of beta1 0.9 where unknown."""
        return 1.0 / (1.0 - (self.betas[0] if self.betas else 0.9))

    @property
    def tau_v(self) -> float:
        """Time constant of the second moment [step]; of beta2 0.95 where unknown."""
        return 1.0 / (1.0 - (self.betas[1] if self.betas else 0.95))


class Annotation(msgspec.Struct, frozen=True):
    """What people know about a moment of the run: mix, lr, restart, hardware, config, with a sentence."""

    kind: str
    text: str
    step: int | None = None
    time: int | None = None


def annotations_of(table: Annotations) -> tuple[Annotation, ...]:
    """The rows of an annotations table; times become microseconds since 1970."""
    step, time = table.column("step").to_pylist(), table.column("time").cast(pa.int64()).to_pylist()
    kind, text = table.column("kind").cast(pa.string()).to_pylist(), table.column("text").to_pylist()
    return tuple(Annotation(str(k), str(t), s, at) for s, at, k, t in zip(step, time, kind, text, strict=True))


def settings(over: Mapping[str, Any] | None = None, files: Sequence[Mapping[str, Any]] = ()) -> CurveSettings:
    """The shipped numbers with a user's on top."""
    data = preset("curves/default")
    for mapping in (*files, over or {}):
        data = merge(data, mapping)
    return build(CurveSettings, data, "curves settings")


def optimizer_of(data: Mapping[str, Any]) -> Optimizer:
    """The optimizer block of a run description; keys it does not know are ignored, they belong to other readers."""
    known = {f.name for f in msgspec.structs.fields(Optimizer)}
    return build(Optimizer, {k: v for k, v in data.items() if k in known}, "optimizer")
