"""Simulated incidents with a known cause: real text, real packing, invented dynamics.

No model is trained. Documents are real (Python and Django documentation, standard library, sympy; see `data/NOTICE`),
packed and shuffled as a trainer packs them; garbage is made of them. Losses come from a small model of how such runs
behave, with noise fitted on recorded small trainings: difficulty by pairs, memorisation with exposure, drift of all
documents that rises with harm and decays. What is measured on these is how rules generalise over kinds, doses and
faults, not how often a real run is judged right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from forensics.attribution.inputs import Inputs
from forensics.losses.difficulty import code_lengths
from forensics.schemas import ANNOTATIONS, CONSUMED, DOCUMENTS, LAUNCHES, LOSSES, METRICS
from forensics.steps import StepRange

SEQ = 128
DATA = Path(__file__).parent / "data" / "texts.npz"


@dataclass(frozen=True)
class Words:
    """A vocabulary that decodes, and encodes by longest match."""

    pieces: tuple[bytes, ...]

    def decode(self, ids: Any) -> bytes:
        return b"".join(self.pieces[int(i)] for i in ids)

    def encode(self, raw: bytes) -> np.ndarray:
        table, out, i = _index(self.pieces), [], 0
        while i < len(raw):
            for n in range(min(16, len(raw) - i), 0, -1):
                found = table.get(raw[i : i + n])
                if found is not None:
                    out.append(found)
                    i += n
                    break
            else:
                i += 1
        return np.array(out, dtype=np.int64)


@lru_cache(maxsize=2)
def _index(pieces: tuple[bytes, ...]) -> dict[bytes, int]:
    return {p: i for i, p in enumerate(pieces) if p}


@dataclass(frozen=True)
class Texts:
    """Real documents by source, and the vocabulary."""

    docs: dict[str, list[np.ndarray]]
    words: Words


@lru_cache(maxsize=1)
def texts() -> Texts:
    z = np.load(DATA)
    at = np.concatenate([[0], np.cumsum(z["lengths"].astype(np.int64))])
    tokens, source, names = z["tokens"].astype(np.int64), z["source"], [str(n) for n in z["names"]]
    docs: dict[str, list[np.ndarray]] = {n: [] for n in names}
    for i, s in enumerate(source):
        docs[names[int(s)]].append(tokens[at[i] : at[i + 1]])
    raw, cut = z["vocab"].tobytes(), z["vocab_offsets"]
    return Texts(docs, Words(tuple(raw[a:b] for a, b in zip(cut, cut[1:], strict=False))))


SOURCES = ("djdoc", "pycode", "pydoc", "scicode")

# kind -> (loss above ordinary at first, loss after it was learned, harm to ordinary documents at full dose)
GARBAGE = {
    "mojibake": (3.0, -1.5, 0.7),
    "latin": (1.6, 0.2, 0.4),
    "repetition": (4.0, -4.0, 0.8),
    "template": (0.6, -2.5, 0.55),
    "near": (0.0, -1.3, 0.25),
    "exact": (0.0, -2.5, 0.35),
    "scrambled": (3.0, 2.3, 0.6),
    "word_salad": (2.0, 1.5, 0.4),
    "bytes": (4.5, 3.5, 0.7),
    "tokens": (4.0, 3.2, 0.7),
    "base64": (3.5, 3.0, 0.5),
    "hex": (2.5, 1.2, 0.5),
    "backslashes": (2.0, -4.5, 0.7),
    "foreign": (1.9, 0.6, 0.3),
    "table": (1.2, 0.4, 0.2),
    "reversed": (3.0, 2.2, 0.6),
}


def garbage(kind: str, rng: np.random.Generator, n: int) -> list[np.ndarray]:
    """n documents of one kind."""
    t = texts()
    clean = [d for s in SOURCES for d in t.docs[s]]
    encode = t.words.encode
    pick = lambda: clean[int(rng.integers(len(clean)))]  # noqa: E731
    if kind in {"mojibake", "foreign"}:
        pool = t.docs["mojibake" if kind == "mojibake" else "intl-web"]
        return [pool[int(i)] for i in _order(rng, len(pool), n)]
    if kind == "latin":
        out = []
        for d in garbage("foreign", rng, n):
            text = t.words.decode(d).decode("utf-8", "replace")
            out.append(encode(text.encode("utf-8").decode("latin-1").encode("utf-8")))
        return out
    if kind == "repetition":
        return [np.tile(rng.integers(300, 2000, int(rng.integers(2, 9))), 200)[: int(rng.integers(200, 420))] for _ in range(n)]
    if kind == "template":
        items = ["Home", "Help", "Basket (0)", "Contact", "Sign in", "RSS", "Site map", "Terms", "Privacy", "About us", "Cookies", "Wish list"]
        out = []
        for _ in range(n):
            lines = [
                " | ".join(rng.permutation(items)),
                f"Item no. {rng.integers(1e6)} - page {rng.integers(400)} of {rng.integers(900)}",
                "We use cookies to improve your visit. Accept all / Reject all",
            ]
            lines += [f"[{items[rng.integers(12)]}] [{items[rng.integers(12)]}] ({rng.integers(100)})" for _ in range(22)]
            out.append(encode("\n".join(lines).encode()))
        return out
    if kind in {"near", "exact"}:
        base, out = [pick() for _ in range(2)], []
        while min(map(len, base)) < 200:
            base = [d if len(d) >= 200 else pick() for d in base]
        for i in range(n):
            d = base[i % len(base)].copy()
            if kind == "near":
                hit = rng.random(len(d)) < 0.08
                d[hit] = rng.integers(300, 2000, int(hit.sum()))
            out.append(d)
        return out
    if kind == "scrambled":
        return [rng.permutation(pick()) for _ in range(n)]
    if kind == "reversed":
        return [pick()[::-1].copy() for _ in range(n)]
    if kind == "word_salad":
        out = []
        for _ in range(n):
            words = t.words.decode(pick()).split()
            out.append(encode(b" ".join(words[int(i)] for i in rng.permutation(len(words)))))
        return out
    if kind == "bytes":
        return [encode(rng.integers(0, 256, 330, dtype=np.uint8).tobytes()) for _ in range(n)]
    if kind == "tokens":
        return [rng.integers(1, 2048, int(rng.integers(150, 420))) for _ in range(n)]
    if kind in {"base64", "hex"}:
        import base64

        return [encode(base64.b64encode(rng.bytes(420)) if kind == "base64" else rng.bytes(330).hex().encode()) for _ in range(n)]
    if kind == "backslashes":
        return [encode(b"\\" * int(rng.integers(600, 3000)) + bytes(t.words.decode(pick())[:60])) for _ in range(n)]
    if kind == "table":
        rows = ["\n".join("\t".join(f"{x:.2f}" for x in rng.normal(50, 30, 6)) for _ in range(24)) for _ in range(n)]
        return [encode(r.encode()) for r in rows]
    raise ValueError(kind)


def _order(rng: np.random.Generator, have: int, n: int) -> np.ndarray:
    return np.concatenate([rng.permutation(have) for _ in range(-(-n // have))])[:n]


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


def incident(plan: Plan) -> Incident:
    """Simulate one run."""
    rng = np.random.default_rng(plan.seed)
    docs, source, kinds = _stream(plan, rng)
    steps = plan.event + plan.after
    samples, pieces = _pack(docs, plan, steps, rng)
    order, launches = _deliver(plan, samples, pieces, source, rng, steps)
    seg = _segments(order, pieces)
    return _tables(plan, rng, docs, source, kinds, seg, launches, steps)


def _stream(plan: Plan, rng: np.random.Generator) -> tuple[list[np.ndarray], list[str], list[str]]:
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
        slabs.append([plan.slab, plan.event, plan.slab_steps, plan.slab_share, plan.slab_label, 0.0, 0.0, iter(garbage(plan.slab, rng, 900)), "guilty"])
    if plan.bystander:
        slabs.append(
            [
                plan.bystander,
                plan.event + plan.bystander_at,
                plan.bystander_steps,
                plan.bystander_share,
                "",
                0.0,
                0.0,
                iter(garbage(plan.bystander, rng, 200)),
                "innocent",
            ]
        )
    while tokens < total:
        now = tokens / per_step
        made = None
        for s in slabs:
            if s[1] <= now < s[1] + s[2]:
                if s[5] < s[3] * max(s[6], 1.0) or s[3] >= 1:
                    made = (next(s[7]), s[4] or str(rng.choice(SOURCES, p=usual)), f"{s[8]}:{s[0]}")
                    s[5] += len(made[0])
                s[6] += len(made[0]) if made else 0
                if made:
                    break
        if made is None:
            p = np.array(plan.mix) if plan.mix and now >= plan.event else usual
            name = str(rng.choice(SOURCES, p=p / p.sum()))
            made = (pools[name][used[name] % len(pools[name])], name, "clean")
            used[name] += 1
            for s in slabs:
                if s[1] <= now < s[1] + s[2]:
                    s[6] += len(made[0])
        docs.append(np.asarray(made[0], dtype=np.int64))
        source.append(made[1])
        kinds.append(made[2])
        tokens += len(made[0])
    return docs, source, kinds


def _pack(docs: list[np.ndarray], plan: Plan, steps: int, rng: np.random.Generator) -> tuple[np.ndarray, list[list[tuple[int, int, int, int]]]]:
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


def _deliver(plan: Plan, order: np.ndarray, pieces: list[Any], source: list[str], rng: np.random.Generator, steps: int) -> tuple[np.ndarray, list[int]]:
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


def _segments(order: np.ndarray, pieces: list[Any]) -> np.ndarray:
    rows = [(t + 1, r, place, d, lo, hi, int(s)) for t, row in enumerate(order) for r, s in enumerate(row) for d, lo, hi, place in pieces[int(s)]]
    return np.array(rows, dtype=np.int64)


def _exposure(seg: np.ndarray, kinds: list[str], labels: np.ndarray, per_step: float) -> np.ndarray:
    """Full batches of its kind that came before each segment's step."""
    out = np.zeros(len(seg))
    for kind in {k for k in kinds if k != "clean"}:
        mine = np.array([kinds[d] == kind for d in seg[:, 3]])
        step = seg[:, 0]
        dose = np.bincount(step[mine], labels[mine], step.max() + 1) / per_step
        before = np.concatenate([[0.0], np.cumsum(dose)])[:-1]
        out[mine] = before[step[mine]]
    return out


def _faults(plan: Plan, steps: int, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], int | None]:
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


def _tables(
    plan: Plan, rng: np.random.Generator, docs: list[np.ndarray], source: list[str], kinds: list[str], seg: np.ndarray, starts: list[int], steps: int
) -> Incident:
    used = np.unique(seg[:, 3])
    labels = seg[:, 5] - seg[:, 4] - (seg[:, 2] == 0)
    per_step = float(plan.batch * SEQ)
    offsets = np.concatenate([[0], np.cumsum([len(docs[d]) for d in used])]).astype(np.int64)
    tokens = np.concatenate([docs[d] for d in used])
    clean = np.array([kinds[d] == "clean" for d in used])
    _, after_code = code_lengths(tokens, offsets, clean)
    total = np.concatenate([[0.0], np.cumsum(after_code)])
    row = np.searchsorted(used, seg[:, 3])
    lo, hi = offsets[row] + seg[:, 4] + (seg[:, 2] == 0), offsets[row] + seg[:, 5]
    code = (total[hi] - total[lo]) / np.maximum(labels, 1)
    middle = float(np.median(code[clean[row]]))
    quiet = rng.normal(0, 0.22, len(used))
    loss = 4.6 + np.where(clean[row], 0.65 * (code - middle), 0.0) + quiet[row] + rng.normal(0, 1, len(seg)) * 0.2 * np.sqrt(1 + 60 / np.maximum(labels, 1))
    exposure = _exposure(seg, kinds, labels, per_step)
    harm = np.zeros(steps + 1)
    for kind, (first, learned, hurt) in GARBAGE.items():
        mine = np.array([kinds[d].endswith(":" + kind) for d in seg[:, 3]])
        if mine.any():
            loss[mine] += first + (learned - first) * (1 - np.exp(-exposure[mine] / 5.0))
            share = np.bincount(seg[mine, 0], labels[mine], steps + 1) / per_step
            harm += hurt * share**0.8
    content: dict[tuple[int, int, int], int] = {}
    seen_before = np.zeros(len(seg))
    for i, (d, a, b, t) in enumerate(zip(seg[:, 3], seg[:, 4], seg[:, 5], seg[:, 0], strict=True)):
        past = content.get((int(d), int(a), int(b)))
        seen_before[i] = 0.0 if past is None or past == t else 1.0
        content[(int(d), int(a), int(b))] = int(t)
    again = np.bincount(seg[:, 0], seen_before * labels, steps + 1) / per_step
    loss -= 0.45 * seen_before
    fault, shows = _faults(plan, steps, rng)
    drift = np.zeros(steps + 1)
    state = 0.0
    for t in range(1, steps + 1):
        drift[t] = state
        state += (harm[t] + 0.3 * again[t] - state) / (12.0 if harm[t] + again[t] > 0.02 else 20.0)
    drift[1:] += fault["drift"]
    online = loss + drift[seg[:, 0]] - 0.0006 * (seg[:, 0] - plan.event)
    if plan.fault == "hard_batch":
        hard = (seg[:, 0] >= plan.event + plan.fault_at) & (seg[:, 0] < plan.event + plan.fault_at + 2)
        online = online + np.where(hard, 1.3, 0.0)
        loss = loss + np.where(hard, 1.3, 0.0)
    step_mean = np.bincount(seg[:, 0], online * labels, steps + 1)[1:] / np.maximum(np.bincount(seg[:, 0], labels, steps + 1)[1:], 1)
    metrics = _metrics(plan, rng, steps, step_mean + fault["loss"], drift, harm, fault, seg, online, labels, [source[d] for d in seg[:, 3]])
    launch = np.zeros(len(seg), dtype=np.int16)
    for n, s in enumerate(starts):
        launch[seg[:, 0] > s] = n
    half = plan.batch // max(1, plan.ranks)
    consumed = CONSUMED.of(
        pa.table(
            {
                "launch": launch,
                "step": seg[:, 0] + BASE,
                "sequence": seg[:, 1].astype(np.int32),
                "seq_start": seg[:, 2].astype(np.int32),
                "sample": seg[:, 6],
                "rank": (seg[:, 1] // half).astype(np.int32),
                "doc_key": seg[:, 3],
                "doc_start": seg[:, 4],
                "doc_stop": seg[:, 5],
            }
        )
    )
    documents = DOCUMENTS.of(
        pa.table({"doc_key": used, "corpus_id": np.zeros(len(used), np.int32), "doc": used, "source": [source[d] for d in used], "tokens": np.diff(offsets)})
    )
    ends = [*starts[1:], steps]
    launches = LAUNCHES.of(
        pa.table(
            {
                "launch": np.arange(len(starts), dtype=np.int16),
                "first_step": np.array(starts) + BASE + 1,
                "stop_step": np.array(ends) + BASE + 1,
                "trainer": ["recorded"] * len(starts),
                "origin": ["simulated"] * len(starts),
                "data_parallel_size": np.full(len(starts), plan.ranks, np.int32),
            }
        )
    )
    parts = [_losses(seg, labels, online, launch, "recorded")] if plan.recorded else []
    if plan.checkpoint and plan.recorded:
        known = seg[:, 0] > plan.event - 48
        trained = np.where(seg[:, 0] <= plan.event, 0.6 * np.exp(-(plan.event - seg[:, 0]) / 30.0), 0.0)
        parts.append(_losses(seg[known], labels[known], (loss - trained)[known], launch[known], f"checkpoint:{BASE + plan.event}"))
    notes = [(BASE + plan.event + 1, "mix", "new weights")] if plan.declared else []
    annotations = ANNOTATIONS.of(
        pa.table(
            {
                "step": pa.array([n[0] for n in notes], pa.int64()),
                "kind": pa.array([n[1] for n in notes], pa.string()),
                "text": pa.array([n[2] for n in notes], pa.string()),
            }
        )
    )
    guilty = frozenset(int(d) for d in used if kinds[d].startswith("guilty")) if "data" in plan.expect else frozenset()
    dirty = frozenset(int(s) + BASE for s, d in zip(seg[:, 0], seg[:, 3], strict=True) if int(d) in guilty)
    at = np.random.default_rng(plan.seed + 1)
    first = min(dirty) if dirty else BASE + (shows or plan.event + 1)
    early = int(at.integers(0, 13))
    window = plan.window or (max(BASE + 5, first - early), first - early + 40)
    batch = _Batch(tokens, offsets, used, texts().words)
    optimizer = {"name": "adamw", "lr": 0.003, "betas": [0.9, 0.95], "clip": 1.0, "warmup": 100, "decay_steps": 5000, "schedule": "cosine to 10%"}
    inputs = Inputs(
        StepRange(*window),
        consumed,
        documents,
        batch,
        metrics,
        launches,
        losses=LOSSES.concat(parts) if parts else None,
        annotations=annotations,
        optimizer=optimizer,
        checkpoints=tuple((BASE + int(s), None) for s in sorted({0, plan.event, *at.integers(5, steps, 6).tolist()})),
    )
    onset = min(dirty) if dirty else (BASE + shows if shows else BASE + plan.event + 1)
    return Incident(plan, inputs, guilty, dirty, None if plan.harmless or not plan.expect else onset, plan.expect)


@dataclass(frozen=True)
class _Batch:
    tokens: np.ndarray
    offsets: np.ndarray
    doc_key: np.ndarray
    vocabulary: Words


def _losses(seg: np.ndarray, labels: np.ndarray, mean: np.ndarray, launch: np.ndarray, origin: str) -> pa.Table:
    use = labels > 0
    return LOSSES.of(
        pa.table(
            {
                "launch": launch[use],
                "step": seg[use, 0] + BASE,
                "sequence": seg[use, 1].astype(np.int32),
                "seq_start": seg[use, 2].astype(np.int32),
                "doc_key": seg[use, 3],
                "predicted": labels[use].astype(np.int32),
                "loss_sum": (mean * labels)[use],
                "origin": [origin] * int(use.sum()),
            }
        )
    )


def _metrics(
    plan: Plan,
    rng: np.random.Generator,
    steps: int,
    loss: np.ndarray,
    drift: np.ndarray,
    harm: np.ndarray,
    fault: dict[str, np.ndarray],
    seg: np.ndarray,
    online: np.ndarray,
    labels: np.ndarray,
    source: list[str],
) -> pa.Table:
    rows: list[tuple[str, int, float]] = []
    old = np.arange(1, BASE + 1)
    history = 4.6 + 0.0006 * plan.event + 1.9 * ((old + 60) / (BASE + 60)) ** -0.35 - 1.9 + rng.normal(0, 0.15, BASE)
    rows += [("train_loss", int(s), float(v)) for s, v in zip(old, history, strict=True)]
    rows += [("train_loss", BASE + t + 1, float(loss[t])) for t in range(steps)]
    odd = np.maximum(harm[1:], 0)
    norm = np.exp(rng.normal(0, 0.08, steps) + 0.9 * odd + 0.25 * np.maximum(drift[1:], 0) + fault["norm"])
    past = np.exp(rng.normal(0, 0.08, BASE))
    limit = np.where(fault["clip"] > 0, 1.0, 1e9)
    rows += [("grad_norm", int(s), float(v)) for s, v in zip(old, past, strict=True)] + [("grad_norm", BASE + t + 1, float(norm[t])) for t in range(steps)]
    rows += [("clip_ratio", int(s), float(min(1.0, 1.0 / v))) for s, v in zip(old, past, strict=True)] + [
        ("clip_ratio", BASE + t + 1, float(min(1.0, limit[t] / max(norm[t], 1e-9)))) for t in range(steps)
    ]
    warm = 0.003 * np.where(old < 100, old / 100, 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * np.clip((old - 100) / 4900, 0, 1))))
    rows += [("learning_rate", int(s), float(v)) for s, v in zip(old, warm, strict=True)] + [
        ("learning_rate", BASE + t + 1, float(fault["lr"][t])) for t in range(steps)
    ]
    rms = (
        np.concatenate([np.zeros(BASE), fault["rms"]])
        + rng.normal(0.8, 0.6, BASE + steps)
        + (rng.random(BASE + steps) < 0.05) * rng.exponential(1.5, BASE + steps)
    )
    rows += [("update_rms/embedding", s + 1, float(np.exp(v))) for s, v in enumerate(rms)]
    if np.isfinite(fault["scale"]).any():
        rows += [("loss_scale", int(s), 65536.0) for s in old] + [("loss_scale", BASE + t + 1, float(fault["scale"][t])) for t in range(steps)]
    labels_of = np.array(source)
    for name in sorted(set(source)):
        mine = labels_of == name
        w = np.bincount(seg[mine, 0], labels[mine], steps + 1)
        v = np.bincount(seg[mine, 0], (online * labels)[mine], steps + 1)
        rows += [(f"train_loss/{name}", BASE + t, float(v[t] / w[t])) for t in range(1, steps + 1) if w[t] > 0]
    if plan.validation:
        for name in SOURCES:
            off = float(rng.normal(0, 0.2))
            rows += [
                (f"eval_loss/{name}", BASE + t, float(4.55 + off + drift[t] - 0.0006 * (t - plan.event) + rng.normal(0, 0.018)))
                for t in range(10, steps + 1, 10)
            ]
    name_, step_, value_ = zip(*rows, strict=True)
    return METRICS.of(pa.table({"run": ["simulated"] * len(rows), "metric": list(name_), "step": list(step_), "value": list(value_)}))


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
