"""What happens in the cases of one seed: drawn, so that every seed brings other kinds, doses and faults."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .cases import Plan, Slab
from .model import Fault

GARBAGE = (
    "mojibake", "mojibake_twice", "mojibake_cyrillic", "mojibake_utf8_cyrillic", "replaced", "template", "repetition", "characters", "base64", "packed", "hex",
    "percent", "markup", "binary", "shuffled", "lines_reversed", "letters", "markov", "near", "exact", "placeholder", "foreign", "greek",
)  # fmt: skip
WANTED = ("invented", "table", "log", "foreign", "greek")
FAULTS = (
    Fault("lr", 3, 15, 6.0), Fault("lr", 4, 400, 3.0), Fault("lr_reset", 4), Fault("grad_noise", 5, 0, 1.0), Fault("weights", 4, 0, -10.0),
    Fault("weights", 6, 0, 4.0), Fault("embedding", 5, 0, 0.3), Fault("momentum", 5, 0, -10.0), Fault("momentum", 5, 0, -40.0),
    Fault("second", 4, 0, 0.01), Fault("betas", 4, 0, 0.5), Fault("eps", 4, 0, 1e-3), Fault("fp16", 3, 22, 6e-8), Fault("rank", 4, 400, 0.4, (1, 4)),
    Fault("grad_times", 4, 12, 50.0), Fault("clip_off", 2, 400),
)  # fmt: skip
CLASS = {"lr": "config_fault", "lr_reset": "config_fault", "betas": "config_fault", "eps": "config_fault", "clip_off": "config_fault", "fp16": "numerics_fp16",
         "rank": "persistent_fault"}  # fmt: skip
LOADERS = ("replay", "stuck", "ranks", "sorted", "unshuffled", "rewind")


def plans(seed: int, sources: tuple[str, ...]) -> list[Plan]:
    """Nineteen cases: seven of dirty data, one with a fault; five faults, one beside odd documents; two of the loader; three of the mix; nothing."""
    rng = np.random.default_rng([seed, 2])
    kinds = [GARBAGE[int(k)] for k in rng.permutation(len(GARBAGE))]
    faults = [FAULTS[int(k)] for k in rng.permutation(len(FAULTS))]
    wanted = WANTED[int(rng.integers(len(WANTED)))]
    declared = bool(rng.random() < 0.5)
    far = lambda low, high: float(rng.uniform(low, high))  # noqa: E731
    out = []
    shapes = (("slab", 24, 1.0), ("mixed", 36, far(0.45, 0.6)), ("low", 60, far(0.2, 0.25)), ("lasting", 400, far(0.25, 0.4)), ("third", 40, far(0.3, 0.4)))
    for (shape, steps, share), kind in zip(shapes, kinds, strict=False):
        out.append(_plan(rng, f"{shape}_{kind}", "data", slabs=(Slab(kind, 0, steps, share, "crawl-b7" if rng.random() < 0.3 else ""),)))
    out.append(_plan(rng, f"burst_{kinds[5]}", "data", slabs=tuple(Slab(kinds[5], 14 * k, 5, 0.8) for k in range(3))))
    out.append(_plan(rng, f"resume_{kinds[6]}", "data", slabs=(Slab(kinds[6], 3, 32, far(0.4, 0.9)),), resume=0))
    out.append(_plan(rng, f"both_{kinds[7]}_lr", "data", slabs=(Slab(kinds[7], 0, 36, far(0.4, 0.9)),), faults=(Fault("lr", 20, 34, 3.0),), fair=("numerics",)))
    for n, f in enumerate(faults[:5]):
        name, cls = f"fault_{f.kind}_{f.x:g}", CLASS.get(f.kind, "transient_fault")
        if n == 4:
            name, f = f"bystander_{kinds[8]}_{f.kind}", replace(f, at=f.at + 28, until=f.until + 28 if f.until else 0)
        odd = (Slab(kinds[8], 0, 5, 0.15, "", "innocent"),) if n == 4 else ()
        out.append(_plan(rng, name, cls, faults=(f,), ranks=f.rank[1], slabs=odd))
    for name in rng.choice(LOADERS, 2, replace=False):
        fair = ("composition",) if name == "sorted" else ()
        out.append(
            _plan(rng, f"loader_{name}", "loader", loader=str(name), loader_steps=int(rng.choice([16, 24, 40])), ranks=2 if name == "ranks" else 1, fair=fair)
        )
    out.append(
        _plan(rng, f"new_source_{wanted}", "benign_schedule", slabs=(Slab(wanted, 0, 400, far(0.2, 0.45), "partner-feed", "wanted"),), declared=declared)
    )
    mix = np.where(np.arange(len(sources)) == rng.integers(len(sources)), 0.7, 0.1)
    out.append(_plan(rng, "mix_shift", "composition", mix=tuple(float(x) for x in mix / mix.sum()), declared=not declared))
    out.append(_plan(rng, f"hard_{wanted}", "benign_hard", slabs=(Slab(wanted, 2, 4, 0.6, "partner-feed", "wanted"),)))
    out.append(_plan(rng, "nothing", "benign", resume=2 if rng.random() < 0.5 else None))
    return out


def _plan(rng: np.random.Generator, name: str, cls: str, **more: object) -> Plan:
    """A case, and what its run happened to log."""
    gaps = {k: bool(rng.random() < p) for k, p in (("no_norm", 0.12), ("no_val", 0.12), ("no_checkpoint", 0.25))}
    if rng.random() < 0.5:
        more = {"resume": -int(rng.integers(5, 60)), **more}
    return replace(Plan(name, cls), **{**gaps, **more})  # type: ignore[arg-type]
