"""Signs in the logs of a fault that is not data: learning rate, clipping, loss scale, gradients, optimizer state, ranks.

Each sign says when it began, what it is, how strong, and in words what was read. A sign is evidence of a cause only
where an event follows it; whether one does is decided elsewhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forensics.attribution.excess import Excess
from forensics.attribution.inputs import Rules
from forensics.attribution.signals import Series, Signals, turning_point
from forensics.attribution.timeline import Timeline
from forensics.losses.difficulty import BOOL, F64, I64
from forensics.robust import spread
from forensics.steps import StepRange

GROSS = 10.0  # times the usual gradient norm: no batch of ordinary text does that, and clipping may hide it from the loss


@dataclass(frozen=True)
class Sign:
    """One sign of a fault.

    Attributes:
        cause, subcause: of verdicts.
        start, stop: steps in which it shows; stop None = to the end of what was logged.
        shows: first step whose loss can show it.
        strength: 1 = a hint, 2 = clear, 3 = cannot be anything else.
        text: what was read.
    """

    cause: str
    subcause: str
    start: int
    stop: int | None
    shows: int
    strength: int
    text: str


def signs(log: Signals, optimizer: Mapping[str, Any], reach: StepRange, rules: Rules) -> tuple[list[Sign], list[tuple[str, str]]]:
    """All signs that begin within `reach`, and what could not be looked at: (what, why)."""
    found: list[Sign] = []
    missing: list[tuple[str, str]] = []
    checks: tuple[tuple[str, str, Callable[[Series], list[Sign]]], ...] = (
        ("learning_rate", "learning rate against its schedule", lambda x: learning_rate(x, optimizer, reach, rules)),
        ("loss_scale", "fp16 loss scale", lambda x: loss_scale(x, reach)),
        ("update_rms/embedding", "optimizer state", lambda x: optimizer_state(x, reach, rules)),
    )
    for name, what, rule in checks:
        series = log.get(name)
        if len(series):
            found += rule(series)
        else:
            missing.append((what, f"`{name}` was not logged"))
    norm = log.get("grad_norm")
    if len(norm):
        found += gradient_norm(norm, reach, rules)
        if len(log.get("clip_ratio")):
            found += clipping(norm, log.get("clip_ratio"), optimizer, reach, rules)
        else:
            missing.append(("gradient clipping", "`clip_ratio` was not logged"))
    else:
        missing.append(("gradient norm", "`grad_norm` was not logged"))
    for name in ("train_loss", "grad_norm"):
        found += not_finite(name, log.get(name), reach)
    found += skipped(log.get("skipped_steps"), reach)
    return sorted(found, key=lambda s: (-s.strength, s.start)), missing


def schedule(optimizer: Mapping[str, Any], steps: I64, observed: F64) -> F64 | None:
    """The declared learning rate at these steps, or None where no reading of the declaration fits what was logged.

    Trainers differ in where the decay begins and whether the first step counts as 0 or 1; the reading that fits the
    logged values best is taken.
    """
    try:
        peak, warmup = float(optimizer["lr"]), int(optimizer.get("warmup") or 0)
        decay = int(optimizer.get("decay_steps") or 0)
        text = str(optimizer.get("schedule") or "constant").lower()
    except (KeyError, TypeError, ValueError):
        return None
    if percent := re.search(r"([\d.]+)\s*%", text):
        floor = float(percent[1]) / 100
    else:
        to = re.search(r"to\s+([\d.eE+-]+)\s*$", text)
        try:
            floor = float(to[1]) / peak if to else 0.0
        except ValueError:
            floor = 0.0
    best: tuple[float, F64] | None = None
    for off in (0, 1):
        for from_warmup in (True, False):
            t = steps - off
            begin = warmup if from_warmup else 0
            progress = np.clip((t - begin) / max(1, decay - begin), 0.0, 1.0) if decay else np.zeros(len(t))
            if "cos" in text:
                shape = floor + (1 - floor) * 0.5 * (1 + np.cos(math.pi * progress))
            elif "lin" in text:
                shape = floor + (1 - floor) * (1 - progress)
            elif "inv" in text or "sqrt" in text:
                shape = np.sqrt(max(1, warmup) / np.maximum(t, max(1, warmup)))
            else:
                shape = np.ones(len(t))
            rate = peak * np.where(t < warmup, np.maximum(t, 0) / max(1, warmup), shape)
            with np.errstate(divide="ignore", invalid="ignore"):
                off_by = np.abs(np.log(observed / rate))
            known = off_by[np.isfinite(off_by)]
            miss = float(np.minimum(known, 1.0).mean()) if len(known) else math.inf
            if len(known) and float(np.median(known)) < 0.02 and (best is None or miss < best[0]):
                best = (miss, rate)
    return best[1] if best is not None else None


def learning_rate(series: Series, optimizer: Mapping[str, Any], reach: StepRange, rules: Rules) -> list[Sign]:
    """Jumps of the learning rate that the declared schedule does not have."""
    ok = np.isfinite(series.values) & (series.values > 0)
    steps, lr = series.steps[ok], series.values[ok]
    if len(lr) < 8:
        return []
    declared = schedule(optimizer, steps, lr)
    x = np.log(lr)
    if declared is not None:
        with np.errstate(divide="ignore"):
            x = x - np.log(np.maximum(declared, 1e-30))
    change = np.diff(x) / np.maximum(np.diff(steps), 1)
    usual = float(np.median(np.abs(change)))
    digits = 3.0 * _rounding(lr)
    padded = np.abs(np.concatenate([np.full(10, usual), change]))
    near = np.median(np.lib.stride_tricks.sliding_window_view(padded, 10), axis=1)[: len(change)]
    jump = np.abs(np.diff(x)) > np.maximum(rules.lr_jump, 5 * near * np.diff(steps)) + digits[1:]
    out: list[Sign] = []
    at = [int(i) + 1 for i in np.flatnonzero(jump) if int(steps[i + 1]) in reach]
    while at:
        i = at.pop(0)
        level = x[i - 1]
        back = np.flatnonzero(np.abs(x[i:] - level) <= max(rules.lr_jump, 0.02))
        stop = int(steps[i + back[0]]) if len(back) else None
        at = [k for k in at if stop is not None and steps[k] > stop]
        until = len(x) if stop is None else int(np.searchsorted(steps, stop))
        far = float(x[i:until][np.argmax(np.abs(x[i:until] - level))] - level)
        against = "its declared schedule" if declared is not None else "the steps before"
        name = "lr_jump" if stop is not None else ("schedule_reset" if declared is not None else "lr_jump")
        size = abs(far)
        out.append(
            Sign(
                "numerics",
                name,
                int(steps[i]),
                stop,
                int(steps[i]) + 1,
                3 if size > 0.25 else 2 if size > 0.05 else 1,
                f"learning rate x {math.exp(far):.3g} against {against} from step {steps[i]}" + (f" to {stop - 1}" if stop else " on"),
            )
        )
    return out


def _rounding(x: F64) -> F64:
    """Relative size of the last printed digit, seen from how finely the values lie."""
    gaps = np.diff(np.unique(x))
    unit = float(gaps.min()) if len(gaps) else 0.0
    return np.asarray(np.minimum(unit / np.maximum(x, 1e-300), 0.05))


def clipping(norm: Series, ratio: Series, optimizer: Mapping[str, Any], reach: StepRange, rules: Rules) -> list[Sign]:
    """Clipping that stops acting, or acts at another norm than declared."""
    limit = optimizer.get("clip")
    value, factor = norm.values, ratio.at(norm.steps)
    ok = np.isfinite(value) & np.isfinite(factor) & (value > 0)
    steps, value, factor = norm.steps[ok], value[ok], factor[ok]
    acts = factor < 0.999
    kept = value * factor
    before = acts & (steps < reach.start)
    if before.sum() >= 3:
        bound = float(np.median(kept[before]))
    elif isinstance(limit, (int, float)) and limit > 0:
        bound = float(limit)
    else:
        return []
    over = (value > rules.clip_slack * bound) & (np.abs(kept / bound - 1) > 0.05)
    crushed = acts & (kept < 0.95 * bound)
    out: list[Sign] = []
    for wrong, name, words in (
        (over & ~crushed, "clip_inactive", "the gradient passed above the clip"),
        (crushed, "clip_changed", "clipping cut below its bound"),
    ):
        hits = np.flatnonzero(wrong & (steps >= reach.start) & (steps < reach.stop))
        usual = float(wrong[steps < reach.start].mean()) if (steps < reach.start).any() else 0.0
        if len(hits) < 3 or usual > 0.02:
            continue
        first = int(steps[hits[0]])
        due = ((value > rules.clip_slack * bound) | crushed) & (steps >= first) & (steps < first + 64)
        share = float(wrong[due].mean()) if due.any() else 0.0
        if share < 0.8:
            continue
        out.append(
            Sign(
                "numerics",
                name,
                first,
                None,
                first + 1,
                2,
                f"{words} of {bound:.3g} from step {first} ({len(hits)} steps, e.g. norm {value[hits[0]]:.3g}, factor {factor[hits[0]]:.3g})",
            )
        )
    return out


def loss_scale(series: Series, reach: StepRange) -> list[Sign]:
    """Collapse of the fp16 loss scale."""
    ok = np.isfinite(series.values) & (series.values > 0)
    steps, scale = series.steps[ok], series.values[ok]
    halved = np.flatnonzero(np.diff(np.log2(scale)) <= -0.9) + 1
    for k, i in enumerate(halved):
        last = halved[min(k + 2, len(halved) - 1)]
        three = k + 2 < len(halved) and steps[last] - steps[i] <= 50
        floor = scale[i] <= 1.0 or float(scale[i : i + 8].min()) <= 2.0**-4 * float(np.median(scale[:i]))
        if (three or floor) and int(steps[i]) in reach:
            text = f"loss scale fell from {scale[i - 1]:.3g} to {float(scale[i : int(last) + 1].min()):.3g} from step {steps[i]}"
            return [Sign("numerics", "fp16_scale_collapse", int(steps[i]), None, int(steps[i]) + 1, 3, text)]
    return []


def gradient_norm(series: Series, reach: StepRange, rules: Rules) -> list[Sign]:
    """Vanished gradients, and single norms far outside."""
    steps, norm = series.steps, series.values
    out: list[Sign] = []
    before = norm[(steps < reach.start) & (steps >= reach.start - 400) & np.isfinite(norm) & (norm > 0)]
    if len(before) < 20:
        return out
    typical = float(np.median(before))
    here = np.array([s in reach for s in steps.tolist()])
    gone = here & (norm >= 0) & (norm < 1e-3 * typical)
    if gone.sum() >= 2:
        first = int(steps[gone][0])
        out.append(
            Sign("numerics", "vanishing_gradients", first, None, first + 1, 3, f"gradient norm 0 or nearly so on {int(gone.sum())} steps from step {first}")
        )
    z = (np.log(np.maximum(norm, 1e-12)) - math.log(typical)) / spread(np.log(before), 0.02)
    for i in np.flatnonzero(here & np.isfinite(norm) & (z > rules.norm_z)):
        out.append(
            Sign(
                "numerics",
                "norm_outlier",
                int(steps[i]),
                int(steps[i]) + 1,
                int(steps[i]),
                2 if norm[i] >= GROSS * typical else 1,
                f"gradient norm {norm[i]:.3g} at step {steps[i]}, {norm[i] / typical:.1f} times the usual",
            )
        )
        break
    return [*out, *norm_level(steps, norm, reach)]


def norm_level(steps: I64, norm: F64, reach: StepRange, width: int = 24) -> list[Sign]:
    """A lasting change of the norm's level: with an unchanged mean loss, a batch of another size, or ranks that see the same."""
    ok = np.isfinite(norm) & (norm > 0)
    steps, x = steps[ok], np.log(norm[ok])
    before = x[(steps < reach.start) & (steps >= reach.start - 200)]
    if len(before) < 40:
        return []
    scale = spread(before, 0.01)
    for i in range(int(np.searchsorted(steps, reach.start)), len(x) - width + 1):
        if int(steps[i]) not in reach:
            break
        part = x[i : i + width] - float(np.median(before))
        level = float(np.median(part))
        if abs(level) > max(0.1, 8 * 1.2533 * scale / math.sqrt(width)) and np.mean(np.sign(part) == np.sign(level)) > 0.9:
            k = turning_point(math.copysign(1, level) * (x - float(np.median(before))) - 0.5 * abs(level), i, 8)
            text = f"gradient norm at {math.exp(level):.2f} of its level from step {steps[k]} on"
            return [Sign("numerics", "norm_level", int(steps[k]), None, int(steps[k]) + 1, 1, text)]
    return []


def optimizer_state(series: Series, reach: StepRange, rules: Rules) -> list[Sign]:
    """A lasting change of gradient over root second moment: the state, its decay rate or eps changed.

    The quantity flickers by orders of magnitude on single steps, so levels are medians over twelve steps.
    """
    ok = np.isfinite(series.values) & (series.values > 0)
    steps, x = series.steps[ok], np.log(series.values[ok])
    width = 12
    before = (steps < reach.start) & (steps >= reach.start - 400)
    if before.sum() < 40 or len(x) < 3 * width:
        return []
    medians = np.median(np.lib.stride_tricks.sliding_window_view(x, width), axis=1)
    begin = np.searchsorted(steps, reach.start)
    history = medians[before[: len(medians)]]
    level, scale = float(np.median(history)), max(spread(history), 0.03)
    limit = max(rules.rms_shift, 6 * scale)
    for i in range(int(begin), len(medians)):
        if int(steps[i]) not in reach:
            break
        if abs(medians[i] - level) > limit and np.mean(np.sign(x[i : i + width] - level) == np.sign(medians[i] - level)) > 0.9:
            first = i
            while first < i + width - 1 and abs(x[first] - level) < 0.5 * limit:
                first += 1
            outliers = [k for k in range(max(0, first - 1), min(len(x), first + width)) if x[k] - level > math.log(50)]
            if outliers and medians[i] < level:
                spike = outliers[0]
                after = math.exp(medians[min(spike + 1, len(medians) - 1)] - level)
                text = (
                    f"gradient over root second moment {math.exp(x[spike]):.3g} at step {steps[spike]}, then {after:.2g} of its usual level: "
                    "the second moment took one huge gradient"
                )
                return [Sign("numerics", "gradient_fault", int(steps[spike]), int(steps[spike]) + 1, int(steps[spike]) + 1, 3, text)]
            text = f"gradient over root second moment at {math.exp(medians[i] - level):.2g} of its usual level from step {steps[first]} on"
            return [Sign("numerics", "optimizer_state", int(steps[first]), None, int(steps[first]) + 1, 1, text)]
    return []


def not_finite(name: str, series: Series, reach: StepRange) -> list[Sign]:
    """NaN and infinity as logged."""
    bad = [int(s) for s, v in zip(series.steps, series.values, strict=True) if not math.isfinite(v) and int(s) in reach]
    return [Sign("numerics", "not_finite", bad[0], bad[-1] + 1, bad[0], 3, f"{name} is not finite on {len(bad)} steps from step {bad[0]}")] if bad else []


def skipped(series: Series, reach: StepRange) -> list[Sign]:
    """Updates that the trainer left out for overflow."""
    hits = [int(s) for s, v in zip(series.steps, series.values, strict=True) if int(s) in reach and v > 0]
    return (
        [Sign("numerics", "skipped_updates", hits[0], hits[-1] + 1, hits[0] + 1, 2, f"{len(hits)} updates skipped from step {hits[0]}")]
        if len(hits) >= 3
        else []
    )


def ranks(line: Timeline, excess: Excess | None, usable: BOOL, reach: StepRange) -> list[Sign]:
    """One rank whose rows stay off from those of the others over twenty steps."""
    if excess is None:
        return []
    known = np.unique(line.rank[line.rank >= 0])
    if len(known) < 3:
        return []
    out: list[Sign] = []
    steps = np.flatnonzero([s in reach for s in line.steps.tolist()])
    table = np.full((len(known), len(line.steps)), np.nan)
    for k, r in enumerate(known):
        use = usable & (line.rank == r) & np.isfinite(excess.value)
        w = np.bincount(line.at, use * line.labels, len(line.steps))
        with np.errstate(invalid="ignore"):
            table[k] = np.where(w > 0, np.bincount(line.at, np.where(use, excess.value, 0) * line.labels, len(line.steps)) / np.maximum(w, 1), np.nan)
    full = np.isfinite(table).any(axis=0)
    middle = np.zeros(len(line.steps))
    middle[full] = np.nanmedian(table[:, full], axis=0)
    off = table - middle
    for k, r in enumerate(known):
        others = np.delete(off, k, axis=0)
        scale = spread(others[np.isfinite(others)].ravel(), 1e-3)
        for a in range(0, max(0, len(steps) - 19), 4):
            part = off[k, steps[a : a + 20]]
            part = part[np.isfinite(part)]
            if len(part) >= 10 and abs(float(np.median(part))) / (1.2533 * scale / math.sqrt(len(part))) > 6 and abs(float(np.median(part))) > 0.3:
                first = int(line.steps[steps[a]])
                out.append(
                    Sign(
                        "hardware",
                        "hardware_persistent",
                        first,
                        None,
                        first,
                        2,
                        f"rank {r} trains at {float(np.median(part)):+.2f} nats per token from the others from step {first}",
                    )
                )
                break
    return out
