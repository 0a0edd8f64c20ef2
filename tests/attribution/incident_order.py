"""The stream of documents of a simulated run, its packing and order with their faults, and the faults of its state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from incident_plan import BASE, Plan
from incident_texts import SEQ, SOURCES, garbage, ids_of, texts


@dataclass
class Slab:
    """Garbage that is mixed in: from which step on, for how many, at which share of tokens; `dirty` and `seen` count tokens so far."""

    role: str
    kind: str
    start: float
    steps: int
    share: float
    label: str
    pool: Iterator[Any]
    dirty: float = 0.0
    seen: float = 0.0

    def __contains__(self, now: float) -> bool:
        return self.start <= now < self.start + self.steps


def stream(plan: Plan, rng: np.random.Generator) -> tuple[list[np.ndarray], list[str], list[str]]:
    t = texts()
    pools = {s: [t.docs[s][int(i)] for i in rng.permutation(len(t.docs[s]))] for s in SOURCES}
    used = dict.fromkeys(SOURCES, 0)
    per_step = plan.batch * SEQ
    total = (plan.event + plan.after + plan.block + 2) * per_step
    docs: list[np.ndarray] = []
    source: list[str] = []
    kinds: list[str] = []
    tokens = 0
    usual = np.array([0.28, 0.27, 0.23, 0.22])
    slabs = []
    if plan.slab:
        slabs.append(Slab("guilty", plan.slab, plan.event, plan.slab_steps, plan.slab_share, plan.slab_label, iter(garbage(plan.slab, rng, 900))))
    if plan.bystander:
        at = plan.event + plan.bystander_at
        slabs.append(Slab("innocent", plan.bystander, at, plan.bystander_steps, plan.bystander_share, "", iter(garbage(plan.bystander, rng, 200))))
    while tokens < total:
        now = tokens / per_step
        made = None
        for slab in slabs:
            if now in slab:
                if slab.dirty < slab.share * max(slab.seen, 1.0) or slab.share >= 1:
                    made = (ids_of(next(slab.pool)), slab.label or str(rng.choice(SOURCES, p=usual)), f"{slab.role}:{slab.kind}")
                    slab.dirty += len(made[0])
                slab.seen += len(made[0]) if made else 0
                if made:
                    break
        if made is None:
            p = np.array(plan.mix) if plan.mix and now >= plan.event else usual
            name = str(rng.choice(SOURCES, p=p / p.sum()))
            made = (pools[name][used[name] % len(pools[name])], name, "clean")
            used[name] += 1
            for slab in slabs:
                if now in slab:
                    slab.seen += len(made[0])
        docs.append(np.asarray(made[0], dtype=np.int64))
        source.append(made[1])
        kinds.append(made[2])
        tokens += len(made[0])
    return docs, source, kinds


def pack(docs: list[np.ndarray], plan: Plan, steps: int, rng: np.random.Generator) -> tuple[np.ndarray, list[list[tuple[int, int, int, int]]]]:
    """Samples in nominal order, and each sample's segments (document, start, stop, place)."""
    ends = np.cumsum([len(d) for d in docs])
    begins = ends - [len(d) for d in docs]
    count = steps * plan.batch
    pieces = []
    for s in range(count + 64):
        a, b = s * SEQ, s * SEQ + SEQ + 1
        first = int(np.searchsorted(ends, a, "right"))
        row, d = [], first
        while d < len(docs) and begins[d] < b:
            lo, hi = max(a, int(begins[d])), min(b, int(ends[d]))
            row.append((d, lo - int(begins[d]), hi - int(begins[d]), lo - a))
            d += 1
        pieces.append(row)
    block = plan.block * plan.batch
    order = np.concatenate([lo + rng.permutation(min(block, count - lo)) for lo in range(0, count, block)])
    return order[:count].reshape(steps, plan.batch), pieces


def deliver(plan: Plan, order: np.ndarray, pieces: list[Any], source: list[str], rng: np.random.Generator, steps: int) -> tuple[np.ndarray, list[int]]:
    """What was read, and the steps after which launches began."""
    starts = [0, int(rng.integers(8, max(9, plan.event - 20)))]
    e, n = plan.event, plan.loader_steps
    out = order.copy()
    if plan.loader in {"stale", "stale_twice"}:
        times = 2 if plan.loader == "stale_twice" else 1
        starts.append(e)
        again = np.concatenate([order[max(0, e - n) : e]] * times)
        out = np.concatenate([order[:e], again, order[e:]])[:steps]
    elif plan.loader == "ranks":
        half = plan.batch // plan.ranks
        for r in range(1, plan.ranks):
            out[e : e + n, r * half : (r + 1) * half] = order[e : e + n, :half]
    elif plan.loader == "sorted":
        flat = order[e : e + 4 * n].reshape(-1)
        label = [source[pieces[int(s)][0][0]] for s in flat]
        out[e : e + 4 * n] = flat[np.argsort(label, kind="stable")].reshape(-1, plan.batch)
    elif plan.loader == "skipped":
        starts.append(e)
        out = np.concatenate([order[:e], order[e + n :]])
    return out, sorted(starts)


def segments(order: np.ndarray, pieces: list[Any]) -> np.ndarray:
    rows = [(t + 1, r, place, d, lo, hi, int(s)) for t, row in enumerate(order) for r, s in enumerate(row) for d, lo, hi, place in pieces[int(s)]]
    return np.array(rows, dtype=np.int64)


def exposure(seg: np.ndarray, kinds: list[str], labels: np.ndarray, per_step: float) -> np.ndarray:
    """Full batches of its kind that came before each segment's step."""
    out = np.zeros(len(seg))
    for kind in {k for k in kinds if k != "clean"}:
        mine = np.array([kinds[d] == kind for d in seg[:, 3]])
        step = seg[:, 0]
        dose = np.bincount(step[mine], labels[mine], step.max() + 1) / per_step
        before = np.concatenate([[0.0], np.cumsum(dose)])[:-1]
        out[mine] = before[step[mine]]
    return out


def faults(plan: Plan, steps: int, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], int | None]:
    """Drift of all documents and logged columns that the fault changes; first step (offset, 1-based) whose loss shows it."""
    f = plan.event + plan.fault_at
    t = np.arange(1, steps + 1)
    lr = 0.003 * np.where(t > 0, 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * np.clip((t + BASE - 100) / 4900, 0, 1))), 1)
    out = {
        "drift": np.zeros(steps),
        "lr": lr,
        "norm": np.zeros(steps),
        "rms": np.zeros(steps),
        "clip": np.ones(steps),
        "scale": np.full(steps, np.nan),
        "loss": np.zeros(steps),
    }
    after = np.maximum(t - f, 0)
    on = t > f
    name = plan.fault
    if name == "lr_jump":
        out["lr"] = np.where((t >= f) & (t < f + 12), lr * 8, lr)
        out["drift"] = np.where(on, 0.9 * np.minimum(after / 8, 1) * np.exp(-np.maximum(after - 12, 0) / 40), 0)
    elif name == "lr_high":
        out["lr"] = np.where(t >= f, lr * 3, lr)
        out["drift"] = np.where(on, 0.35 * (1 - np.exp(-after / 15)), 0)
    elif name == "rewarm":
        out["lr"] = np.where(t >= f, 0.003 * np.minimum((t - f + 1) / 100, 1), lr)
        out["drift"] = np.where(on, 0.12 * (1 - np.exp(-after / 60)), 0)
    elif name == "clip_off":
        out["clip"] = np.where(t >= f, 0, 1)
        out["drift"] = np.where(on, 0.25 * (1 - np.exp(-after / 20)), 0)
    elif name == "fp16":
        out["scale"] = np.where(t >= f, np.maximum(65536.0 * 0.5 ** np.maximum(t - f + 1, 0), 2.0**-10), 65536.0)
        out["norm"] = np.where(t > f + 6, -9.0, 0)
        out["drift"] = np.where(t > f + 6, 0.5 * (1 - np.exp(-np.maximum(t - f - 6, 0) / 12)), 0)
    elif name == "gradient":
        out["rms"] = np.where(t == f, 12.0, np.where(on, -2.5 * np.exp(-after / 150), 0))
        out["norm"] = np.where(t == f, 0.2, 0)
        out["drift"] = np.where(on, 0.0 if plan.harmless else 0.3 * np.exp(-after / 25), 0)
    elif name == "weights":
        out["drift"] = np.where(t >= f, 4.0 * np.exp(-np.maximum(t - f, 0) / 8), 0)
        out["norm"] = np.where(t >= f, 1.6 * np.exp(-np.maximum(t - f, 0) / 12), 0)
        f -= 1
    elif name == "momentum":
        out["drift"] = np.where(on, 1.2 * np.minimum(after / 6, 1) * np.exp(-np.maximum(after - 20, 0) / 60), 0)
    elif name == "beta":
        out["rms"] = np.where(on, -1.0, 0)
        out["drift"] = np.where(on, 0.2 * (1 - np.exp(-after / 25)), 0)
    elif name == "nan":
        out["loss"] = np.where((t > f) & (t <= f + 3), np.nan, 0)
        out["drift"] = np.where(on, 0.4 * np.exp(-after / 20), 0)
    elif name == "creep":
        out["drift"] = 0.006 * after
    return out, f + 1 if name else None
