"""Faults of the recipe that the logs show: collapsing loss scales, learning rates that jump or leave their schedule, warm-ups that are too short."""

from __future__ import annotations

import numpy as np

from forensics.curves.event import Context, Event
from forensics.curves.series import Series


def scale_collapse(ctx: Context) -> list[Event] | str:
    """Loss scale of an fp16 run: three halvings within 50 steps, down to 1, or an overflow in more than one step of twenty (rule 16)."""
    s = ctx.curves.get("loss_scale")
    if s is None:
        return "the loss scale was not logged"
    s = s.finite()
    s = s.where(s.value > 0)
    if len(s) < 2 or s.value.max() <= 1.0:
        return "the loss scale is not in use (bf16 has the exponent range of fp32)"
    found = _halvings(ctx, s)
    if not found and s.value[-1] <= 1.0 < s.value.max():
        at = int(np.argmax(s.value <= 1.0))
        found.append(_collapse(s, at, len(s) - 1, {"scale_before": float(s.value[max(0, at - 1)]), "scale_after": float(s.value[-1])}))
    return found or _overflow(ctx, s)


def _halvings(ctx: Context, s: Series) -> list[Event]:
    """Stretches in which the scale halves often enough; the search for a first scale at the start of a run is not one."""
    rule = ctx.settings.scale
    log = np.log2(s.value)
    down = np.flatnonzero(np.diff(log) <= -0.9) + 1
    lost = -np.diff(log)[down - 1]
    start_up = s.step[0] <= 50 * s.cadence
    found: list[Event] = []
    i = 0
    window = max(50, 3 * s.cadence)
    while i < len(down):
        j = i
        while j + 1 < len(down) and s.step[down[j + 1]] - s.step[down[i]] <= window:
            j += 1
        total = float(lost[i : j + 1].sum())
        searching = start_up and s.step[down[j]] <= max(100, 12 * s.cadence) and s.value[down[j]] >= 1024
        if total >= rule.halvings and not searching:
            while j + 1 < len(down) and s.step[down[j + 1]] - s.step[down[j]] <= window:
                j += 1
            found.append(
                _collapse(
                    s,
                    int(down[i]),
                    int(down[j]),
                    {"halvings": float(lost[i : j + 1].sum()), "scale_before": float(s.value[down[i] - 1]), "scale_after": float(s.value[down[j]])},
                )
            )
        i = j + 1
    return found


def _overflow(ctx: Context, s: Series) -> list[Event]:
    skipped = ctx.curves.get("skipped_steps")
    if skipped is None or len(skipped) < 20:
        return []
    skipped = skipped.finite()
    late = skipped.where(skipped.step >= max(ctx.judged_from, int(skipped.step[0]) + 200))
    if len(late) < 20:
        return []
    width = max(1, 200 // late.cadence)
    share = np.convolve(late.value / late.cadence, np.ones(width) / width, mode="valid") if len(late) >= width else np.array([late.value.mean() / late.cadence])
    if share.max() <= ctx.settings.scale.overflow_share:
        return []
    at = int(np.argmax(share > ctx.settings.scale.overflow_share))
    stop = min(len(late) - 1, at + width + int(np.argmax(share)))
    return [
        Event(
            "loss_scale",
            "scale_collapse",
            "notice",
            int(late.step[at]),
            int(late.step[stop]) + 1,
            None,
            "unknown",
            cause="numerics",
            subcause="overflow_share",
            confidence="medium",
            evidence={"overflow_share": float(share.max()), "scale": float(s.value[-1])},
        )
    ]


def _collapse(s: Series, a: int, b: int, evidence: dict[str, float]) -> Event:
    back = bool((s.value[b:] >= s.value[max(0, a - 1)]).any())
    return Event(
        "loss_scale",
        "scale_collapse",
        "alarm",
        int(s.step[a]),
        int(s.step[b]) + 1,
        int(s.step[b]),
        "returned" if back else "unknown",
        float(s.value[b] - s.value[max(0, a - 1)]),
        None,
        cause="numerics",
        subcause="fp16_scale_collapse",
        confidence="high",
        evidence=evidence,
    )


def lr_jump(ctx: Context) -> list[Event] | str:
    """A rate that changes by more than 1.3 within 50 steps where its schedule is smooth (rule 14)."""
    lr = ctx.curves.get("learning_rate")
    if lr is None:
        return "the learning rate was not logged"
    lr = lr.finite()
    lr = lr.where(lr.value > 0.02 * lr.value.max()) if len(lr) else lr  # at the end of a decay to 0 ratios mean nothing
    if len(lr) < 10:
        return f"{len(lr)} records of the learning rate, at least 10 are needed"
    log = np.log(lr.value)
    d = np.diff(log)
    warm = ctx.warmup or 0
    jumps = np.flatnonzero((np.abs(d) > np.log(ctx.settings.lr.jump)) & (lr.step[1:] > max(warm, 2 * int(lr.step[0]))))
    found: list[Event] = []
    for i in jumps:
        near = np.concatenate([d[max(0, i - 10) : i], d[i + 1 : i + 11]])
        if len(near) and abs(d[i]) < 4 * float(np.median(np.abs(near))) + 1e-9:
            continue  # a steep but smooth schedule
        if found and lr.step[i] - found[-1].start <= 50 * lr.cadence and np.sign(d[i]) != np.sign(found[-1].evidence["log_ratio"]):
            found[-1].stop = int(lr.step[i]) + 1
            continue
        restart = _restart(ctx, int(lr.step[i + 1]))
        found.append(
            Event(
                "learning_rate",
                "lr_jump",
                "notice" if restart else "alarm",
                int(lr.step[i + 1]),
                int(lr.step[i + 1]) + 1,
                int(lr.step[i + 1]),
                "unknown",
                float(lr.value[i + 1] - lr.value[i]),
                None,
                cause="numerics",
                subcause="lr_jump",
                confidence="medium" if restart else "high",
                evidence={"before": float(lr.value[i]), "after": float(lr.value[i + 1]), "ratio": float(np.exp(d[i])), "log_ratio": float(d[i])},
            )
        )
    return found


def _restart(ctx: Context, step: int) -> bool:
    """Whether somebody declared a change of the rate at this step."""
    return any(a.step is not None and abs(a.step - step) <= 20 and a.kind in ("lr", "config") for a in ctx.annotations)


def schedule_mismatch(ctx: Context) -> list[Event] | str:
    """A logged rate that leaves the described schedule (warm-up, peak, cosine or linear decay) by more than a tenth."""
    o, lr = ctx.optimizer, ctx.curves.get("learning_rate")
    if lr is None:
        return "the learning rate was not logged"
    if o.lr is None or o.schedule is None:
        return "the run description gives no peak rate and schedule"
    want = schedule_of(ctx, lr.finite().step)
    if want is None:
        return f"schedule `{o.schedule}` is not one of constant, linear, cosine with a number of decay steps"
    lr = lr.finite()
    off = np.abs(lr.value - want) > np.maximum(0.1 * want, 0.01 * o.lr)
    if off.mean() > 0.8:
        return "the whole logged rate differs from the described schedule: the description is taken to be wrong"
    edges = np.flatnonzero(np.diff(np.concatenate([[0], off.astype(np.int8), [0]])))
    found = []
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        if lr.step[b - 1] - lr.step[a] + lr.cadence < 5:
            continue
        ratio = float(np.median(lr.value[a:b] / np.maximum(want[a:b], 1e-30)))
        found.append(
            Event(
                "learning_rate",
                "schedule_mismatch",
                "alarm",
                int(lr.step[a]),
                int(lr.step[b - 1]) + 1,
                int(lr.step[a]),
                "unknown",
                float(lr.value[a] - want[a]),
                None,
                cause="numerics",
                subcause="schedule_mismatch",
                confidence="high",
                evidence={"ratio": ratio, "logged": float(lr.value[a]), "described": float(want[a])},
            )
        )
    return found


def schedule_of(ctx: Context, step: np.ndarray) -> np.ndarray | None:
    """The described rate at each step; None where the words are not understood."""
    o = ctx.optimizer
    if o.lr is None or o.schedule is None:
        return None
    words = o.schedule.lower().split()
    kind = words[0] if words else ""
    end = next((float(w.rstrip("%")) / 100 for w in words if w.endswith("%")), 0.0)
    warm = o.warmup or 0
    rise = o.lr * np.minimum(1.0, step / warm) if warm else np.full(len(step), o.lr)
    if kind == "constant":
        return rise
    if kind not in ("cosine", "linear") or not o.decay_steps:
        return None
    t = np.clip((step - warm) / max(1, o.decay_steps - warm), 0.0, 1.0)
    shape = 0.5 * (1 + np.cos(np.pi * t)) if kind == "cosine" else 1 - t
    low = end * o.lr
    return np.where(step < warm, rise, low + (o.lr - low) * shape)


def warmup_short(ctx: Context) -> list[Event] | str:
    """A warm-up shorter than two time constants of the second moment: the first estimates of it are not trustworthy yet."""
    if ctx.warmup is None:
        return "neither the description nor the log tells the warm-up"
    if ctx.optimizer.betas is None:
        return "the run description gives no betas"
    if ctx.warmup >= 2 * ctx.optimizer.tau_v:
        return []
    return [
        Event(
            "learning_rate",
            "schedule_mismatch",
            "notice",
            1,
            max(2, ctx.warmup + 1),
            None,
            "none",
            cause="numerics",
            subcause="warmup_short",
            confidence="medium",
            evidence={"warmup": float(ctx.warmup), "tau_v": ctx.optimizer.tau_v},
        )
    ]
