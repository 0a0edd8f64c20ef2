"""Simulated incidents with a known cause: real text, real packing, invented dynamics.

No model is trained. Documents are real (Python and Django documentation, standard library, sympy; see `data/NOTICE`),
packed and shuffled as a trainer packs them; garbage is made of them. Losses come from a small model of how such runs
behave, with noise fitted on recorded small trainings: difficulty by pairs, memorisation with exposure, drift of all
documents that rises with harm and decays. What is measured on these is how rules generalise over kinds, doses and
faults, not how often a real run is judged right.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from incident_order import deliver, pack, segments, stream
from incident_plan import BASE, Incident, Plan
from incident_tables import tables


def incident(plan: Plan) -> Incident:
    """Simulate one run."""
    rng = np.random.default_rng(plan.seed)
    docs, source, kinds = stream(plan, rng)
    steps = plan.event + plan.after
    samples, pieces = pack(docs, plan, steps, rng)
    order, launches = deliver(plan, samples, pieces, source, rng, steps)
    seg = segments(order, pieces)
    return tables(plan, rng, docs, source, kinds, seg, launches, steps)


NUMERIC = frozenset({"numerics", "hardware"})
MIXED = frozenset({"composition"})
FAULTS = ("lr_jump", "lr_high", "rewarm", "clip_off", "fp16", "gradient", "weights", "momentum", "beta", "nan")


def catalogue() -> list[Plan]:
    """All incidents: every positive beside a twin that differs in the cause alone."""
    out: list[Plan] = []
    rng = np.random.default_rng(11)

    def add(name: str, expect: frozenset[str], **more: Any) -> None:
        event = int(rng.choice([64, 80, 96, 112]))
        batch, block = int(rng.choice([8, 8, 12])), int(rng.choice([8, 12, 16]))
        event -= event % block
        shape = {"event": event, "batch": batch, "block": block, "ranks": int(rng.choice([1, 2, 4])), **more}
        out.append(Plan(name, expect, 1000 + len(out), **shape))

    data = frozenset({"data"})
    for kind in (
        "mojibake",
        "latin",
        "repetition",
        "template",
        "near",
        "exact",
        "scrambled",
        "word_salad",
        "bytes",
        "tokens",
        "base64",
        "hex",
        "backslashes",
        "reversed",
    ):
        for share, steps in ((1.0, 24), (0.7, 32), (0.45, 34), (0.3, 130), (0.2, 48)):
            add(f"{kind} {share}", data, slab=kind, slab_share=share, slab_steps=steps, slab_label="crawl-b7" if share in {1.0, 0.45} else "")
    for share, steps in ((0.5, 32), (0.35, 130), (0.25, 60)):
        add(f"mislabelled {share}", data, slab="foreign", slab_share=share, slab_steps=steps)
    for share, steps, declared in ((0.35, 130, False), (0.35, 130, True), (0.6, 40, False), (0.25, 130, True), (0.2, 130, False)):
        add(f"new language {share}", MIXED, slab="foreign", slab_share=share, slab_steps=steps, slab_label="intl-web", declared=declared)
    for share, steps in ((0.3, 130), (0.5, 24), (0.25, 60)):
        add(f"tables {share}", frozenset({"composition", "interaction"}), slab="table", slab_share=share, slab_steps=steps, slab_label="tables")
    for mix in ((0.7, 0.1, 0.1, 0.1), (0.1, 0.7, 0.1, 0.1), (0.1, 0.1, 0.1, 0.7), (0.05, 0.05, 0.45, 0.45)):
        for declared in (False, True):
            add(f"mix {mix}", MIXED, mix=mix, declared=declared)
    for kind in ("stale", "stale_twice", "ranks", "sorted"):
        for n in (12, 26, 40):
            add(f"loader {kind} {n}", frozenset({"loader"}), loader=kind, loader_steps=n, **({"ranks": 4, "batch": 8} if kind == "ranks" else {}))
    for fault in FAULTS:
        for at in (1, 5, 9):
            add(f"fault {fault}", NUMERIC, fault=fault, fault_at=at)
        add(f"fault {fault} no losses", NUMERIC, fault=fault, recorded=False)
        add(f"fault {fault} no checkpoint", NUMERIC, fault=fault, checkpoint=False)
    for fault in ("weights", "lr_jump", "gradient", "momentum", "clip_off"):
        for kind in ("template", "scrambled", "mojibake"):
            add(f"bystander {kind} {fault}", NUMERIC, fault=fault, bystander=kind, bystander_at=-28, bystander_steps=8, bystander_share=0.15)
    for fault in ("lr_jump", "weights"):
        for kind in ("scrambled", "template", "repetition"):
            add(f"both {kind} {fault}", data, slab=kind, slab_share=0.6, slab_steps=32, fault=fault, fault_at=34)
    for at in (2, 6):
        add("hard batch", frozenset({"interaction", "composition"}), fault="hard_batch", fault_at=at)
        add("gradient without harm", NUMERIC, fault="gradient", harmless=True, fault_at=at)
    for n in range(16):
        add("clean", frozenset(), window=(BASE + 12 + 3 * n, BASE + 44 + 3 * n), event=112)
        add("clean no losses", frozenset(), window=(BASE + 40, BASE + 72), event=112, recorded=False) if n < 4 else None
    for kind in ("scrambled", "mojibake", "template", "repetition", "near", "bytes"):
        add(f"clean before {kind}", frozenset(), slab=kind, slab_share=0.8, slab_steps=30, event=96, window=(BASE + 12, BASE + 44))
        add(f"{kind} no losses", data, slab=kind, slab_share=0.6, slab_steps=32, recorded=False)
        add(f"{kind} no checkpoint", data, slab=kind, slab_share=0.6, slab_steps=32, checkpoint=False)
        add(f"{kind} no validation", data, slab=kind, slab_share=0.5, slab_steps=32, validation=False)
    return out


SMALL: dict[str, Any] = {"event": 64, "after": 64, "block": 8}


@lru_cache(maxsize=64)
def judged(name: str, seed: int = 0, **more: Any) -> tuple[Incident, Any]:
    """A small incident and its attribution, made once per test run."""
    from forensics.attribution import attribute

    made = incident(Plan(name, frozenset({"data"}) if more.get("slab") else frozenset({"other"}), seed, **{**SMALL, **more}))
    return made, attribute(made.inputs)


def run(plan: Plan, attribute: Callable[..., Any]) -> tuple[Incident, Any]:
    """Simulate and judge one."""
    made = incident(plan)
    return made, attribute(made.inputs)
