"""Losses, curves and tables of a simulated run: difficulty by pairs, memorisation with exposure, drift that rises with harm and decays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from incident_order import exposure, faults
from incident_plan import BASE, Incident, Plan
from incident_texts import GARBAGE, SEQ, SOURCES, Words, texts

from forensics.attribution.inputs import Inputs
from forensics.losses.difficulty import code_lengths
from forensics.schemas import ANNOTATIONS, CONSUMED, DOCUMENTS, LAUNCHES, LOSSES, METRICS
from forensics.steps import StepRange


def tables(
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
    exposed = exposure(seg, kinds, labels, per_step)
    harm = np.zeros(steps + 1)
    for kind, (first, learned, hurt) in GARBAGE.items():
        mine = np.array([kinds[d].endswith(":" + kind) for d in seg[:, 3]])
        if mine.any():
            loss[mine] += first + (learned - first) * (1 - np.exp(-exposed[mine] / 5.0))
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
    fault, shows = faults(plan, steps, rng)
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
