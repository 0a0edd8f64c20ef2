"""What happens in one simulated run, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from forensics.attribution.inputs import Inputs


@dataclass(frozen=True)
class Plan:
    """What happens in one simulated run; steps are offsets from the first recorded one."""

    name: str
    expect: frozenset[str]
    seed: int
    event: int = 96
    batch: int = 8
    ranks: int = 1
    block: int = 16
    after: int = 130
    slab: str = ""
    slab_steps: int = 32
    slab_share: float = 1.0
    slab_label: str = ""
    bystander: str = ""
    bystander_at: int = -40
    bystander_steps: int = 4
    bystander_share: float = 0.3
    mix: tuple[float, ...] = ()
    declared: bool = False
    loader: str = ""
    loader_steps: int = 26
    fault: str = ""
    fault_at: int = 3
    harmless: bool = False
    checkpoint: bool = True
    recorded: bool = True
    validation: bool = True
    window: tuple[int, int] | None = None


@dataclass(frozen=True)
class Incident:
    """A run's tables and the truth about it."""

    plan: Plan
    inputs: Inputs
    guilty_docs: frozenset[int]
    guilty_steps: frozenset[int]
    onset: int | None
    expect: frozenset[str] = field(default_factory=frozenset)


BASE = 700
