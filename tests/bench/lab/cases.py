"""One case of the lab: a corpus with an accident, a training over it, its reruns without the accident, and the truth.

A seed is one world: sources, tokenizer, shapes, optimizer, a base that was trained once, and ordinary documents that
every case reads before and around its accident. The run over those documents alone is the counterfactual of all cases.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from . import texts
from .model import Fault, Log, Settings, State, fresh, train

Array = np.ndarray


@dataclass(frozen=True)
class Slab:
    """Documents of one kind: first step after the event, how many steps, token share, label ("" = an ordinary one), role."""

    kind: str
    at: int
    steps: int
    share: float
    label: str = ""
    role: str = "guilty"


@dataclass(frozen=True)
class Plan:
    """What happens in one case; steps count from the event. The last fields say what the run logged."""

    name: str
    cls: str
    slabs: tuple[Slab, ...] = ()
    faults: tuple[Fault, ...] = ()
    loader: str = ""
    loader_steps: int = 24
    mix: tuple[float, ...] = ()
    declared: bool = False
    fair: tuple[str, ...] = ()
    resume: int | None = None
    ranks: int = 1
    no_norm: bool = False
    no_val: bool = False
    no_checkpoint: bool = False


@dataclass(frozen=True)
class World:
    """What the cases of a seed share.

    Attributes:
        base_log: until the first recorded step; lead_log: recorded steps before the event, from state `base` to `before`.
        clean: validation of the run without an accident; twin: its scatter between two runs that differ by a hair.
        reach: steps that the loader mixes; lead, after: steps before and after the event.
    """

    seed: int
    settings: Settings
    sources: tuple[str, ...]
    usual: tuple[float, ...]
    tokenizer: Tokenizer
    val: dict[str, Array]
    reach: int
    lead: int
    after: int
    base: int = 0
    before: State | None = None
    base_log: Log = field(default_factory=Log)
    lead_log: Log = field(default_factory=Log)
    clean: dict[int, float] = field(default_factory=dict)
    twin: float = 0.0

    @property
    def event(self) -> int:
        """The step at which accidents begin."""
        return self.base + self.lead + 1

    @cached_property
    def pools(self) -> dict[str, list[Array]]:
        """Ordinary documents by source that the base has not seen."""
        return {name: self.encode(texts.pieces(name)[len(texts.pieces(name)) // 2 :]) for name in self.sources}

    def encode(self, some: list[str] | tuple[str, ...]) -> list[Array]:
        """Token ids with the end of document behind, at most 700."""
        found = (np.array([*e.ids[:700], 0], dtype=np.int64) for e in self.tokenizer.encode_batch(list(some)))
        return [x for x in found if len(x) > 24]

    def spoilt(self, kind: str, rng: np.random.Generator, pool: tuple[str, ...], n: int) -> list[Array]:
        """n documents of one kind; `tokens` are ordinary ones with their tokens in any order."""
        if kind == "tokens":
            return [np.append(rng.permutation(x[:-1]), 0) for x in self.encode([pool[int(k)] for k in rng.integers(0, len(pool), n)])]
        return self.encode(texts.garbage(kind, rng, pool, n))


def world(seed: int, cache: Path) -> World:
    """Sources, tokenizer, shapes and the trained base of a seed, kept in `cache`."""
    rng = np.random.default_rng([seed, 1])
    sources = tuple(str(x) for x in rng.choice(texts.SOURCES, int(rng.integers(3, 6)), replace=False))
    usual = tuple(float(x) for x in rng.dirichlet([6.0] * len(sources)))
    batch, seq = [(8, 128), (10, 112), (12, 96), (8, 112), (16, 64)][int(rng.integers(5))]
    beta2, reach = float(rng.choice([0.95, 0.95, 0.98])), int(rng.choice([8, 12, 16]))
    s = Settings(
        vocab=int(rng.choice([1024, 1280, 1536])), d=int(rng.choice([64, 72, 80])), seq=seq, batch=batch, lr=float(rng.choice([2e-3, 3e-3, 4e-3])),
        betas=(0.9, beta2), warmup=int(rng.choice([50, 80])), decay=int(rng.choice([1000, 3000, 6000])),
    )  # fmt: skip
    folder = cache / f"world-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokenizer.json").exists():
        _tokenizer(s.vocab, sources).save(str(folder / "tokenizer.json"))
    plain = World(seed, s, sources, usual, Tokenizer.from_file(str(folder / "tokenizer.json")), {}, reach, reach * int(rng.integers(80, 112) // reach), 112)
    old = {name: texts.pieces(name)[: len(texts.pieces(name)) // 2] for name in sources}
    for name in sources:
        held = np.concatenate(plain.encode(old[name][:24]))
        plain.val[name] = np.stack([held[k * seq : k * seq + seq + 1] for k in range(8 * 128 // seq)])
    steps = int(rng.integers(42, 66)) * 10
    if (folder / "base.pt").exists():
        return replace(plain, **torch.load(folder / "base.pt", weights_only=False))
    stream = np.concatenate(_draw(rng, plain, {n: plain.encode(x[24:]) for n, x in old.items()}, (steps * batch + 1) * seq + 1))
    order = rng.permutation(steps * batch).reshape(steps, batch)
    state = fresh(s, seed)
    base_log = train(state, s, lambda k: np.stack([stream[r * seq : r * seq + seq + 1] for r in order[k - 1]]), steps, keep=False)
    plain = replace(plain, base=steps)
    c = case(plain, Plan("clean", "benign"))
    lead_log = train(state, s, c.batch, plain.event - 1, val=plain.val)
    before, other = state.copy(), state.copy()
    with torch.no_grad():
        for p in other.model.parameters():
            p += 1e-3 * p.abs().mean() * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    runs = [means(train(x, s, c.batch, c.last, val=plain.val, keep=False)) for x in (state, other)]
    twin = max(0.01, float(np.std(list(excess(*runs).values())[2:])))
    kept = {"base": steps, "before": before, "base_log": base_log, "lead_log": lead_log, "clean": runs[0], "twin": twin}
    torch.save(kept, folder / "base.pt")
    return replace(plain, **kept)


def _tokenizer(vocab: int, sources: tuple[str, ...]) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    made.train_from_iterator([x for name in sources for x in texts.pieces(name)[:300]], trainer)
    return made


def _draw(rng: np.random.Generator, w: World, pools: dict[str, list[Array]], total: int) -> list[Array]:
    """Ordinary documents of at least `total` tokens."""
    out, size, used = [], 0, dict.fromkeys(w.sources, 0)
    while size < total:
        name = w.sources[int(rng.choice(len(w.sources), p=w.usual))]
        out.append(pools[name][used[name] % len(pools[name])])
        used[name] += 1
        size += len(out[-1])
    return out


@dataclass(frozen=True)
class Case:
    """A corpus in training order and what every step reads of it.

    Attributes:
        docs, source, role: documents in nominal order, their labels, and `clean` or role:kind; ends: in the stream.
        order: int64 [steps, B], samples in nominal order; given: the ones really delivered.
    """

    w: World
    plan: Plan
    docs: list[Array]
    source: list[str]
    role: list[str]
    ends: Array
    order: Array
    given: Array

    @property
    def first(self) -> int:
        """First recorded step."""
        return self.w.base + 1

    @property
    def last(self) -> int:
        """Last step."""
        return self.w.base + len(self.given)

    @cached_property
    def stream(self) -> Array:
        """All tokens."""
        return np.concatenate(self.docs)

    def batch(self, step: int) -> Array:
        """Token rows of a step, [B, S + 1]."""
        S = self.w.settings.seq
        return np.stack([self.stream[k * S : k * S + S + 1] for k in self.given[step - self.first].tolist()])

    def of_labels(self, step: int) -> Array:
        """Document of every label of a step, [B, S]."""
        at = self.given[step - self.first][:, None] * self.w.settings.seq + 1 + np.arange(self.w.settings.seq)
        return np.searchsorted(self.ends, at, side="right")

    def marked(self, role: str) -> Array:
        """Documents whose role begins so, bool [n]."""
        return np.array([r.startswith(role) for r in self.role])


def case(w: World, plan: Plan) -> Case:
    """Draw the documents, pack and shuffle them, and deliver them as the plan's loader does. Before the event all cases are alike."""
    rng, own = np.random.default_rng([w.seed, 4]), np.random.default_rng([w.seed, *plan.name.encode()])
    s, steps = w.settings, w.lead + w.after
    per_step = s.batch * s.seq
    spoil = tuple(x for name in w.sources for x in texts.pieces(name)[-300:])
    made = [w.spoilt(x.kind, own, spoil, int(min(x.steps, w.after) * per_step * x.share / 120) + 8) for x in plan.slabs]
    dirty, met, used = [0.0] * len(made), [1.0] * len(made), dict.fromkeys(w.sources, 0)
    docs: list[Array] = []
    source, role, size = [], [], 0
    while size < (steps + 2) * per_step:
        now = size / per_step - w.lead
        here = [k for k, x in enumerate(plan.slabs) if x.at <= now < x.at + x.steps]
        k = next((k for k in here if dirty[k] <= plan.slabs[k].share * met[k] or plan.slabs[k].share >= 1), None)
        p = np.array(plan.mix) if plan.mix and now >= 0 else np.array(w.usual)
        label, what = w.sources[int(rng.choice(len(w.sources), p=p))], "clean"
        if k is None:
            docs.append(w.pools[label][used[label] % len(w.pools[label])])
            used[label] += 1
        else:
            docs.append(made[k].pop() if len(made[k]) > 1 else made[k][0])
            dirty[k] += len(docs[-1])
            label, what = plan.slabs[k].label or label, f"{plan.slabs[k].role}:{plan.slabs[k].kind}"
        for k in here:
            met[k] += len(docs[-1])
        source.append(label)
        role.append(what)
        size += len(docs[-1])
    mix, block, count = np.random.default_rng([w.seed, 5]), w.reach * s.batch, steps * s.batch
    order = np.concatenate([lo + mix.permutation(min(block, count - lo)) for lo in range(0, count, block)]).reshape(steps, s.batch)
    c = Case(w, plan, docs, source, role, np.cumsum([len(d) for d in docs]), order, order)
    return replace(c, given=_delivered(c))


def _delivered(c: Case) -> Array:
    """The samples that the loader really gave."""
    order, e, loader = c.order, c.w.lead, c.plan.loader
    n = min(c.plan.loader_steps, e)
    out = order.copy()
    if loader in {"replay", "rewind"}:
        out = np.concatenate([order[:e], order[e - n if loader == "replay" else 0 : e], order[e:]])
    elif loader == "stuck":
        out = np.concatenate([order[:e], np.repeat(order[e : e + 1], n, axis=0), order[e + 1 :]])
    elif loader == "ranks":
        half = order.shape[1] // c.plan.ranks
        for r in range(1, c.plan.ranks):
            out[e : e + n, r * half : (r + 1) * half] = order[e : e + n, :half]
    elif loader == "sorted":
        flat = order[e : e + n].reshape(-1)
        label = [c.source[int(np.searchsorted(c.ends, k * c.w.settings.seq + c.w.settings.seq // 2, side="right"))] for k in flat]
        out[e : e + n] = flat[np.argsort(label, kind="stable")].reshape(n, -1)
    elif loader == "unshuffled":
        out[e : e + n] = np.sort(order[e : e + n].reshape(-1)).reshape(n, -1)
    return out[: len(order)]


def means(log: Log) -> dict[int, float]:
    """Mean validation loss by step."""
    return {k: float(np.mean(list(v.values()))) for k, v in log.val.items()}


def excess(run: dict[int, float], other: dict[int, float]) -> dict[int, float]:
    """Validation of a run minus that of another."""
    return {k: round(run[k] - other[k], 4) for k in run if k in other}


def severity(gap: dict[int, float], twin: float) -> dict[str, Any]:
    """No harm below 3 twin deviations; returned if the last four average below 2; slow if they are below 30 % of the peak."""
    x = np.array(list(gap.values()))
    peak, last = float(x.max()), float(x[-4:].mean())
    name = "no_harm" if peak < 3 * twin else "returned" if last < 2 * twin else "slow" if last < 0.3 * peak else "step_or_diverging"
    return {"peak_excess": round(peak, 4), "peak_step": list(gap)[int(x.argmax())], "mean_excess_last_4": round(last, 4), "verdict": name}


def rerun(c: Case, steps: set[int] = frozenset(), docs: Array | None = None) -> dict[int, float]:  # type: ignore[assignment]
    """Validation of the same run from the event on, with these steps skipped or the labels of these documents [n, bool] without loss."""
    assert c.w.before is not None
    keep = None if docs is None else lambda step: ~docs[c.of_labels(step)]
    return means(train(c.w.before.copy(), c.w.settings, lambda k: None if k in steps else c.batch(k), c.last, weight=keep, val=c.w.val, keep=False))


@dataclass(frozen=True)
class Made:
    """A trained case: what it logged from the event on, and the truth."""

    case: Case
    log: Log
    truth: dict[str, Any]


def make(w: World, plan: Plan) -> Made:
    """Train one case from the event on."""
    c = case(w, plan)
    faults = tuple(replace(f, at=w.event + f.at, until=w.event + f.until if f.until else 0) for f in plan.faults)
    assert w.before is not None
    log = train(w.before.copy(), w.settings, c.batch, c.last, val=w.val, faults=faults)
    return Made(c, log, _truth(c, faults, excess(means(log), w.clean)))


def _truth(c: Case, faults: tuple[Fault, ...], gap: dict[int, float]) -> dict[str, Any]:
    w, plan, guilty = c.w, c.plan, c.marked("guilty")
    fraction = {k: round(float(guilty[c.of_labels(k)].mean()), 4) for k in range(w.event, c.last + 1)}
    fraction = {k: v for k, v in fraction.items() if v > 0}
    seen = np.unique(np.concatenate([c.of_labels(k).ravel() for k in range(c.first, c.last + 1)]))
    late = {"lr", "lr_reset", "grad_noise", "grad_times", "momentum", "second", "betas", "eps", "fp16", "clip_off"}
    shows = min((f.at + (f.kind in late) for f in faults), default=w.event if plan.loader or plan.slabs or plan.mix else None)
    is_data = plan.cls in {"data", "two_events"}
    steps = [k for k, v in fraction.items() if v > 0.01]
    start = min(steps) if is_data else min((f.at for f in faults), default=w.event)
    return {
        "case": plan.name, "class": plan.cls, "events": [{"class": "data"}] if is_data else [], "fair_causes": list(plan.fair), "event_start_step": start,
        "slabs": [list(vars(x).values()) for x in plan.slabs], "faults": [[f.kind, f.at, f.until, f.x] for f in faults], "loader": plan.loader or None,
        "first_step_whose_loss_can_show_it": shows, "guilty_steps": steps if is_data else [], "dirty_token_fraction": fraction,
        "guilty_docs": [int(x) for x in seen if guilty[x]] if is_data else [], "severity_on_clean_validation": severity(gap, w.twin),
        "twin_sd": round(w.twin, 4),
        "validation_minus_counterfactual": {"clean_data": gap},
    }  # fmt: skip
