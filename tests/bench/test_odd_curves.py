"""Curves unlike those that the rules grew up with: other trends, noises, print intervals, lengths and places of the event, with their truth.

`python tests/bench/test_odd_curves.py SEED COUNT` prints recall, false alarms and severities by kind of event. A curve is drawn from eleven trends
(small and large models, warm-up, cosine and linear decay, batch ramp, fine-tuning, a resumed log, no trend), nine noises (normal, t3, AR(1) 0.3 and 0.7,
skewed, wandering, bf16, two and three decimals), print intervals of 1 to 100 steps (means or samples) and 120 to 10,000 records.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from forensics.curves.event import Event
from forensics.curves.events import read_curves
from forensics.curves.series import Curves, Series

pytestmark = pytest.mark.bench

Array = np.ndarray
NOISES = ("normal", "t3", "ar3", "ar7", "skew", "wander", "bf16", "round2", "round3")
TRENDS = ("small", "noisy", "large", "warm", "cosine", "linear", "resumed", "ramp", "finetune", "rewards", "flat")
KINDS = ("none", "none", "outlier", "spike", "recovering", "shift", "divergence", "drift", "dip", "plateau", "nan", "periodic", "two")
LOSS_ALARM = {"spike", "dip", "level_shift", "drift", "divergence", "plateau", "composition_shift", "nonfinite", "noise_growth"}
ACCEPT = {
    "spike": {"spike", "outlier", "divergence", "level_shift", "nonfinite"},
    "shift": {"level_shift", "composition_shift", "drift", "spike", "divergence"},
    "divergence": {"divergence", "nonfinite", "spike", "drift", "level_shift"},
    "drift": {"drift", "divergence", "level_shift"},
    "dip": {"dip"},
    "plateau": {"plateau"},
    "periodic": {"periodic"},
    "nan": {"nonfinite", "gap"},
}


@dataclass
class Truth:
    """What was planted at which steps, inclusive, and how it ends (None: not asked)."""

    kind: str
    first: int
    last: int
    severity: str | None = None


@dataclass
class Odd:
    """A curve and its truth."""

    kind: str
    step: Array
    metrics: dict[str, Array]
    truth: list[Truth] = field(default_factory=list)


def level(trend: str, s: Array, last: float) -> Array:
    """The loss without noise."""
    part = np.clip((s - 0.8 * last) / (0.2 * last), 0, 1)
    return {
        "noisy": lambda: 2.0 + 7 * (s + 30.0) ** -0.4,
        "large": lambda: 1.75 + 9 * (s + 150.0) ** -0.42,
        "warm": lambda: 2.2 + 8.6 * np.exp(-s / 120.0) + 3.0 * (s + 60.0) ** -0.3,
        "cosine": lambda: 1.8 + 6 * (s + 20.0) ** -0.35 - 0.25 * ((1 - np.cos(np.pi * s / last)) / 2) ** 1.5,
        "linear": lambda: 1.9 + 6 * (s + 20.0) ** -0.35 - 0.3 * part**0.8,
        "finetune": lambda: 0.9 + 0.6 * np.exp(-s / (0.15 * last)),
        "rewards": lambda: 0.02 - 0.015 * s / last,
        "flat": lambda: 2.31 + 0 * s,
    }.get(trend, lambda: 1.7 + 6 * (s + 20.0) ** -0.35)()


def noise(kind: str, n: int, r: np.random.Generator) -> Array:
    """n records of unit scale."""
    if kind == "t3":
        return r.standard_t(3, n) / np.sqrt(3)
    if kind == "skew":
        return (np.exp(r.normal(0, 0.5, n)) - np.exp(0.125)) / 0.6
    phi = {"ar3": 0.3, "ar7": 0.7, "wander": 0.98}.get(kind, 0.0)
    e = r.normal(0, 1, n)
    for i in range(1, n) if phi else ():
        e[i] = phi * e[i - 1] + np.sqrt(1 - phi**2) * e[i]
    return 0.6 * e + 0.8 * r.normal(0, 1, n) if kind == "wander" else e


def rounded(kind: str, y: Array) -> Array:
    if kind == "bf16":
        return (y.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(float)
    return np.round(y, int(kind[-1])) if kind.startswith("round") else y


def plant(kind: str, y: Array, s: Array, base: Array, a: int, every: int, sd: float, mean: bool, r: np.random.Generator) -> list[Truth] | None:
    """Change the steps of a curve; None where the curve has no room for it."""
    n, records = len(y), len(y) // every
    k = np.arange(n - a)

    def decay(at: int, height: float, half: int) -> Truth:
        y[at:] += height * np.exp(-np.arange(n - at) / (half / 2)) * (np.arange(n - at) < 5 * half)
        return Truth("spike", int(s[at]), int(s[min(n - 1, at + half)]), "returned" if at + 8 * half < n else None)

    if kind == "outlier":
        a = a // every * every
        y[a + every - 1] += sd * r.uniform(12, 40) * (every if mean else 1)
        return [Truth("spike", int(s[a]), int(s[a + every - 1]), "returned")]
    if kind in ("spike", "recovering"):
        return [decay(a, sd * r.uniform(25, 60), int(r.integers(4, 10) if kind == "spike" else r.integers(30, 60)) * every)]
    if kind == "two":
        b = a + 40 * every
        return [decay(a, 40 * sd, 5 * every), decay(b, 40 * sd, 5 * every)] if b + 30 * every < n else None
    if kind == "shift":
        height = max(0.02, sd * max(1.5, 25 / np.sqrt(max(1, min(len(k) // every, 400)))))
        y[a:] += height
        y[a : a + 20 * every] += 2 * height
        return [Truth("shift", int(s[a]), int(s[min(n - 1, a + 20 * every)]), "level_shift")]
    if kind == "divergence":
        y[a:] += 200 * sd * (1 - np.exp(-k / (0.5 * len(k))))
        return [Truth("divergence", int(s[a]), int(s[-1]), "diverging")]
    if kind == "drift":
        y[a:] += 14 * sd * k / len(k) + base[a] - base[a:]
        return [Truth("drift", int(s[a]), int(s[-1]), "diverging")]
    if kind == "dip":
        b = min(n, a + max(20, records // 30) * every)
        y[a:b] -= max(12 * sd, 0.1 * abs(base[a]))
        return [Truth("dip", int(s[a]), int(s[b - 1]))]
    if kind == "plateau":
        a = n // 3
        if base[a] - base[-1] < 6 * sd or records < 500:
            return None
        y[a:] += base[a] - base[a:]
        return [Truth("plateau", int(s[a]), int(s[-1]))]
    if kind == "nan":
        a = a // every * every + every - 1
        y[a] = np.nan
        return [Truth("nan", int(s[a - every + 1]), int(s[a]))]
    if kind == "periodic":
        hits = np.arange(max(10, records // 14) * every - 1, n, max(10, records // 14) * every)
        y[hits] += 20 * sd * (every if mean else 1)
        return [Truth("periodic", int(s[hits[0]]), int(s[hits[-1]]))] if (s[hits] > 330).sum() >= 6 else None
    return []


def draw(r: np.random.Generator) -> Odd | None:
    """One curve; None where the draw makes no sense."""
    trend, kind, which = str(r.choice(TRENDS)), str(r.choice(NOISES)), str(r.choice(KINDS))
    records, every = int(r.choice([120, 250, 600, 1500, 4000, 10_000], p=[0.15, 0.15, 0.2, 0.2, 0.2, 0.1])), int(r.choice([1, 1, 5, 10, 100]))
    every = min(every, 400_000 // records)
    mean = bool(r.random() < 0.6) and every > 1
    n, first = records * every, 60_001 if trend == "resumed" else 1
    if first == 1 and n < 1000:
        return None
    s = first + np.arange(n)
    sd = {"noisy": 0.08, "large": 0.005, "finetune": 0.15, "rewards": 0.05, "warm": 0.03, "ramp": 0.06}.get(trend, 0.02) * np.ones(n)
    if trend == "ramp":
        sd /= np.sqrt(np.minimum(8, 1 + 7 * np.arange(n) // max(1, n // 2)))
    base = level(trend, s.astype(float), float(s[-1]))
    y = base + noise(kind, n, r) * sd
    ends = which in ("outlier", "spike", "dip", "nan", "none") and bool(r.random() < 0.25)
    a = max(int(n * (0.98 if ends else r.uniform(0.15, 0.7))), 80 * every, 330 if first == 1 else 0)
    grid = {"bf16": 0.016, "round2": 0.01, "round3": 0.001}.get(kind, 0.0)
    printed = max(float(sd[a]) / (np.sqrt(every) if mean else 1.0) * (1.5 if kind in ("ar7", "wander") else 1.0), grid)
    truth = plant(which, y, s, base, a, every, printed, mean, r)
    if truth is None:
        return None
    pick = np.arange(every - 1, n, every)
    metrics = {"train_loss": rounded(kind, y.reshape(records, every).mean(axis=1) if mean else y[pick])}
    if trend in ("cosine", "linear"):
        part = np.clip((s[pick] - 0.8 * s[-1]) / (0.2 * s[-1]), 0, 1) if trend == "linear" else (1 - np.cos(np.pi * s[pick] / s[-1])) / 2
        metrics["learning_rate"] = 3e-4 * (1 - part)
    return Odd(which, s[pick], metrics, truth)


def odd_curves(seed: int, count: int) -> Iterator[Odd]:
    r = np.random.default_rng(seed)
    while count:
        made = draw(r)
        if made is not None:
            count -= 1
            yield made


def judged(c: Odd) -> dict[str, int]:
    """Events planted and found, severities asked and right, alarms on the loss that nothing planted explains."""
    events = read_curves(Curves("run", {k: Series(k, c.step, v) for k, v in c.metrics.items()})).events
    near = max(5, 3 * int(np.median(np.diff(c.step))))
    free: list[Event] = list(events)
    out: dict[str, int] = defaultdict(int, curves=1)
    for t in c.truth:
        fits = [e for e in free if e.shape in ACCEPT[t.kind] and e.start <= t.last + near and e.last >= t.first - near]
        best = min(fits, key=lambda e: (e.level != "alarm", abs(e.start - t.first)), default=None)
        out["planted"] += 1
        out["found"] += best is not None
        out["asked"] += t.severity is not None
        if best is not None:
            free.remove(best)
            out["right"] += t.severity is not None and (best.severity == t.severity or (t.severity == "returned" and best.severity in ("none", "slow")))
    out["false"] = sum(
        e.level == "alarm"
        and e.metric == "train_loss"
        and e.shape in LOSS_ALARM
        and not any(e.start <= t.last + max(50, near) and e.last >= t.first - near for t in c.truth)
        for e in events
    )
    return out


def table(seed: int, count: int) -> dict[str, dict[str, int]]:
    """The sums by kind of event, and `all`."""
    out: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for c in odd_curves(seed, count):
        for key, value in judged(c).items():
            out[c.kind][key] += value
            out["all"][key] += value
    return out


def test_curves_that_no_rule_was_made_for() -> None:
    got = table(77, 150)["all"]
    print(dict(got))
    assert got["found"] >= 0.93 * got["planted"]
    assert got["right"] >= 0.9 * got["asked"]
    assert got["false"] <= 0.04 * got["curves"]


if __name__ == "__main__":
    for kind, row in sorted(table(int(sys.argv[1]), int(sys.argv[2])).items()):
        found, severity = f"found {row['found']} of {row['planted']}", f"severity {row['right']} of {row['asked']}"
        print(f"{kind:11} curves {row['curves']:4}  {found}  {severity}  false alarms {row['false']}")
