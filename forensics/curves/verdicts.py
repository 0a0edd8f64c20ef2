"""From shapes to verdicts: severity (validation first), what the curves can say about the cause, the cost in steps, and what to do.

Severity and cause are independent: a spike that returns may be dirty data, one that stays may be a learning rate. Curves alone settle few causes; where they
do not, the verdict is `undetermined` and carries the exact replay command. Nothing here is inferred from the other axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.curves.event import Context, Event
from forensics.curves.gap import val_shift
from forensics.curves.incidents import leader
from forensics.curves.whole import passes, recovery_kind

LOSS = ("spike", "outlier", "dip", "level_shift", "divergence", "drift", "composition_shift", "nonfinite", "plateau", "periodic")
CHAIN = ("spike", "dip", "level_shift", "divergence")
AHEAD = {"scale_collapse": 40, "lr_jump": 50, "schedule_mismatch": 50, "clip_fault": 5, "router_collapse": 50}
DECLARED = {"mix": "composition", "lr": "numerics", "config": "numerics", "hardware": "hardware", "restart": "undetermined"}


@dataclass(frozen=True)
class Verdict:
    """What is concluded about one incident.

    Attributes:
        incident: its number. events: ids of its events are in the table.
        start, stop: steps, half-open.
        shape, level, severity, cause, subcause, confidence: of its leading event.
        moved: other metrics that moved with it.
        recovery_kind: fast, second_moment, relearning; None where it did not return or that was not seen.
        sentence, action: in words.
        replay: the command that answers the question of the cause; None where nothing is to be asked.
        checkpoint: nearest earlier one.
        cost: steps of progress lost.
        rollback_pays: None where not known.
    """

    incident: int
    start: int
    stop: int
    shape: str
    metric: str
    level: str
    severity: str | None
    cause: str | None
    subcause: str | None
    confidence: str | None
    moved: tuple[str, ...]
    recovery_kind: str | None
    sentence: str
    action: str | None
    replay: str | None
    checkpoint: int | None
    cost: float | None
    rollback_pays: bool | None


def judge(ctx: Context, incidents: list[list[Event]]) -> None:
    """Fill in severity by validation, cause, confidence, cost and action of every event."""
    every = [e for members in incidents for e in members]
    faults = [e for e in every if e.shape in AHEAD]
    for members in incidents:
        lead = leader(members)
        for e in members:
            if e.metric.startswith("train_loss") and e.shape in LOSS:
                _validate(ctx, e, every)
                _cost(ctx, e)
            if e.cause is None:
                e.cause, e.subcause, confidence = _cause(ctx, e, members, faults)
                e.confidence = e.confidence or confidence
            e.confidence = e.confidence or _confidence(e)
        for e in members:
            e.action = action(ctx, e, lead)


def _validate(ctx: Context, e: Event, every: list[Event]) -> None:
    """Severity by the held-out loss where it resolves the event; its numbers go to the evidence either way.

    The line before is that before the first of the events that a dip joins to this one, and what begins later is not this event's.
    """
    if e.severity == "diverging" or e.shape in ("nonfinite", "plateau", "periodic", "outlier", "composition_shift"):
        return
    same = sorted((o for o in every if o.metric == e.metric and o.shape in CHAIN and o.rule == e.rule), key=lambda o: o.start)
    start, last = _joined(ctx, e, same)
    found = val_shift(ctx, start, min((o.start for o in same if o.level == "alarm" and o.start > last), default=None))
    if found is None:
        return
    slow_after = min(100.0, 3 * ctx.optimizer.tau_v)
    e.evidence |= {"val_peak": found.peak, "val_last": found.last, "val_noise": found.noise, "val_error": found.last_error}
    e.evidence |= {"val_records": float(len(found.step)), "val_out": float(found.out()), "val_usual": float(found.usual[-4:].mean())}
    if len(found.step) < 4 or found.last_error > 0.2 * max(abs(e.height or 0.0), found.peak):
        return
    word = found.severity(slow_after)
    e.severity = word or ("returned" if e.severity != "level_shift" else e.severity)
    if word in ("slow", "level_shift"):
        e.residual = found.last
    e.evidence["val_told"] = float(found.told(slow_after))
    if e.shape == "level_shift" and e.severity in ("returned", "slow") and (e.height or 0.0) > 0:
        e.shape = "spike"


def _joined(ctx: Context, e: Event, same: list[Event]) -> tuple[int, int]:
    """First and last step of what is one event with this one: two that are close together, one of them a dip that no peak begins."""
    start, last = e.start, e.last
    peaks = {o.start for o in same if o.shape != "dip"}
    for o in [*reversed([o for o in same if o.start < e.start]), *(o for o in same if o.start >= e.start)]:
        near = o.start <= last + ctx.settings.loss.merge_steps and start <= o.last + ctx.settings.loss.merge_steps
        if near and o is not e and any(x.shape == "dip" and x.start not in peaks for x in (o, e)):
            start, last = min(start, o.start), max(last, o.last)
    return start, last


def _cost(ctx: Context, e: Event) -> None:
    """Steps by which the run is behind: what is left over the trend, divided by the trend's descent per step; and whether a rollback pays.

    A run that is back on its trend has lost nothing but the steps themselves. A rollback throws away what was trained since the checkpoint.
    """
    scan = ctx.scan("train_loss")
    if scan is None or e.residual is None or e.shape in ("outlier", "dip", "periodic", "plateau"):
        return
    i = max(0, int(np.searchsorted(scan.step, e.start)) - 1)
    a = max(0, i - 50)
    seg = np.isfinite(scan.expected[a : i + 1])
    if seg.sum() < 5:
        return
    slope = float(np.polyfit(scan.step[a : i + 1][seg].astype(float), scan.expected[a : i + 1][seg], 1)[0])
    if slope >= 0:
        return
    lasting = e.severity in ("level_shift", "diverging", "slow") or e.residual > e.evidence.get("residual_limit", np.inf)
    e.cost = float(max(0.0, e.residual) / -slope) if lasting else 0.0
    e.evidence["descent_per_step"] = -slope
    back = _checkpoint(ctx, e.start)
    if back is not None:
        redo = (e.stop or e.start + 1) - back
        e.evidence["rollback_steps"] = float(redo)
        e.evidence["rollback_pays"] = 1.0 if e.cost > redo else 0.0


def _checkpoint(ctx: Context, step: int) -> int | None:
    earlier = [c for c in ctx.checkpoints if c < step]
    return max(earlier) if earlier else None


def _cause(ctx: Context, e: Event, members: list[Event], faults: list[Event]) -> tuple[str, str | None, str | None]:
    """Cause, sub-cause and confidence: only what curves and declarations can say."""
    declared = next((a for a in ctx.annotations if a.step is not None and -2 <= e.start - a.step <= 20 and a.kind in DECLARED), None)
    if declared is not None:
        return DECLARED[declared.kind], f"declared_{declared.kind}", "high" if declared.kind != "restart" else "medium"
    if e.shape == "slow_rank":
        return "hardware", e.subcause, "medium"
    if not e.metric.startswith("train_loss"):
        if e.shape == "norm_spike" and any(m.shape == "throughput_drop" for m in members):
            return "undetermined", "length", "medium"
        return "undetermined", e.subcause, None
    for f in faults:
        if f is not e and f.metric != e.metric and -5 <= e.start - f.start <= AHEAD[f.shape] and f.level == "alarm":
            near = abs(e.start - f.start) <= 5
            return "numerics", f.subcause or f.shape, "high" if near or f.shape == "scale_collapse" else "medium"
    if e.shape == "composition_shift":
        return "composition", "data_order", "medium"
    if e.shape == "plateau":
        if e.subcause == "plateau_schedule":
            return "numerics", "plateau_schedule", "high"
        times = passes(ctx)
        if times is not None and times[0] > 1:
            e.evidence["passes" if times[1] is None else f"passes/{times[1]}"] = times[0]
        if times is not None and times[0] > 4:  # up to four passes cost little (Muennighoff et al., 2305.16264)
            return "loader", "plateau_repetition", "medium"
        return "undetermined", e.subcause, e.confidence
    if e.shape in ("dip", "level_shift") and (e.height or 0.0) < 0 and _new_launch(ctx, e.start):
        return "loader", "resumed_position", "medium"
    if e.shape in ("dip", "outlier") and e.evidence.get("like_dips", 0.0) >= 3:
        return "composition", "data_order", "low"
    return "undetermined", e.subcause, None


def _new_launch(ctx: Context, step: int) -> bool:
    """Whether a launch began within the two steps before."""
    s = ctx.loss
    if s is None or s.launch is None:
        return False
    starts = s.step[1:][np.diff(s.launch) != 0]
    return bool(len(starts) and np.min(np.abs(starts - step)) <= 2)


def _confidence(e: Event) -> str:
    """Low where few records speak or the held-out loss usually strays by as much as decides; high where the event is tall and its aftermath long."""
    after = e.evidence.get("records_after")
    if (after is not None and after < 10) or e.evidence.get("val_told") == 0.0:
        return "low"
    if (e.sigma or 0.0) >= 10 and (after is None or after >= 60):
        return "high"
    return "medium"


def action(ctx: Context, e: Event, lead: Event) -> str:
    """What to do about it."""
    if e is not lead and e.incident == lead.incident and e.level == "notice":
        return f"see the {lead.shape} of {lead.metric} at step {lead.start}"
    if e.metric.startswith("train_loss") and e.shape in ("spike", "dip", "level_shift", "divergence", "drift", "outlier", "composition_shift"):
        return _loss_action(ctx, e)
    return _OTHER.get(e.subcause or "", _OTHER.get(e.shape, "look at it beside the loss"))


def _loss_action(ctx: Context, e: Event) -> str:
    back = _checkpoint(ctx, e.start)
    where = f"checkpoint {back}" if back is not None else f"the last checkpoint before step {e.start}"
    if e.severity == "diverging":
        return f"stop; go back to {where}, and replay the steps before you skip anything"
    if e.cause == "numerics" and e.severity in ("level_shift", "slow") and (e.height or 0.0) > 0:
        return f"mend the {(e.subcause or 'recipe').replace('_', ' ')}, then go back to {where}; no data need be skipped"
    if e.severity == "level_shift" and (e.height or 0.0) > 0 and e.shape != "composition_shift":
        if e.cause == "composition":
            return "nothing, if the mix was meant to change: compare on validation"
        pays = e.evidence.get("rollback_pays")
        weigh = "" if pays is None else (" (it pays)" if pays else " (weigh it: the rollback costs more steps than the shift)")
        return f"replay the steps to see what was read; then go back to {where} and skip what is guilty{weigh}"
    if e.shape == "dip" and e.level == "alarm":
        return (
            "replay: text that is repeated, leaked or served again after a resume is learnt and drives the loss down; the harm shows when other data come back"
        )
    if e.shape in ("composition_shift", "dip") or (e.height or 0.0) < 0:
        return "do nothing: the level follows what is read; a shuffled order would not show it" if e.cause == "composition" else "note it"
    if e.severity == "slow":
        return "watch it; keep the checkpoint before it, and roll back if the residual does not close"
    if e.severity == "unknown":
        return "keep the checkpoint before it and wait: the log ends before it can be judged"
    lasted = f"in {e.recovery} steps " if e.recovery else ""
    return f"do nothing: it came back to its trend {lasted}and cost no lasting progress"


_OTHER = {
    "nonfinite": "look at the loss scale, the step before, and the batch; replay the step; NaN in a windowed skip rule blocks it for a whole window",
    "plateau": "compare with the schedule and the passes over the data; decay the rate or add data",
    "plateau_capacity": "decay the rate to collect what is left, or train a larger model: more data of this kind will not help this one",
    "norm_spikes_length": "put rows of like length together, or cut the longest",
    "norm_spikes_data": "replay some of these steps: what they read is what they have in common",
    "norm_spikes_unexplained": "note it: nothing that was logged of the batches goes with them",
    "periodic": "look for what runs with this period: shard or epoch boundary, evaluation, save",
    "scale_collapse": "use bf16, or restart from before the collapse with a reset scale",
    "lr_jump": "fix the schedule; a resume that loses the scheduler's state does lasting harm",
    "schedule_mismatch": "fix the schedule or the description of it",
    "clip_fault": "fix the clipping: read what the trainer means by 0",
    "norm_spike": "note it: the loss did not move",
    "norm_rise": "save batch ids; lower the rate or the clip if the loss follows",
    "norm_vanish": "look at clipping, loss scale and schedule",
    "update_norm": "watch: the update moved before the loss",
    "val_gap": "look for repetition and duplicates; stop or add data",
    "throughput_drop": "look at clocks, network and the slowest node; the loss is not concerned",
    "throughput_sawtooth": "save asynchronously, or add loader workers, if the pauses cost enough",
    "slow_rank": "cordon the node and run diagnostics",
    "memory_leak": "find tensors that are kept; test with evaluation off",
    "memory_near_limit": "recompute activations or use smaller microbatches",
    "memory_periodic": "use the same length limits in evaluation; save asynchronously",
    "router_collapse": "raise the balance loss or restart from before",
    "aux_loss": "note it",
    "batch_change": "plot on tokens; do not compare by step across it",
    "gap": "find the missing part of the log",
    "stuck": "distrust the metric; check that parameters change",
    "noise_growth": "look at rate, batch size and the loader's mix",
}


def verdicts(ctx: Context, incidents: list[list[Event]], run: str = "forensics.yaml") -> list[Verdict]:
    """One verdict per incident, in order of the start."""
    return [_verdict(ctx, members, run) for members in incidents]


def _verdict(ctx: Context, members: list[Event], run: str) -> Verdict:
    lead = leader(members)
    stop = max(e.stop or e.start + 1 for e in members if e.shape == lead.shape and e.metric == lead.metric)
    moved = tuple(sorted({e.metric for e in members} - {lead.metric}))
    back = _checkpoint(ctx, lead.start)
    ask = lead.level == "alarm" and lead.cause in ("undetermined", None) and lead.metric.startswith("train_loss")
    end = min(stop, lead.start + 200)
    pays = lead.evidence.get("rollback_pays")
    return Verdict(
        lead.incident,
        lead.start,
        stop,
        lead.shape,
        lead.metric,
        lead.level,
        lead.severity,
        lead.cause,
        lead.subcause,
        lead.confidence,
        moved,
        recovery_kind(ctx, lead, members),
        sentence(lead, stop, moved),
        lead.action,
        f"forensics replay {run} --steps {lead.start}:{end}" if ask else None,
        back,
        lead.cost,
        None if pays is None else bool(pays),
    )


def sentence(e: Event, stop: int, moved: tuple[str, ...]) -> str:
    """The incident in a line."""
    span = f"step {e.start}" if stop - e.start <= 1 else f"steps {e.start}-{stop - 1}"
    size = "" if e.height is None else f", {e.height:+.3g} over the trend" + (f" ({e.sigma:.0f} sd)" if e.sigma else "")
    how = {
        "returned": "it returned",
        "slow": "it returns slowly",
        "level_shift": "it left a lasting shift" + (f" of {e.residual:+.3f}" if e.residual is not None else ""),
        "diverging": "it does not come back",
        "unknown": "whether it returns is not known yet",
    }.get(e.severity or "", "")
    if how and "val_last" in e.evidence:
        how += f" (held-out loss {e.evidence['val_last']:+.3f} +- {np.hypot(e.evidence['val_error'], e.evidence['val_usual']):.3f} after it)"
    cause = {"undetermined": "; cause: undetermined from curves alone", None: ""}.get(
        e.cause, f"; cause: {e.cause}" + (f" ({e.subcause})" if e.subcause else "")
    )
    with_ = f"; moved with it: {', '.join(moved)}" if moved else ""
    return f"{e.shape.replace('_', ' ')} of {e.metric} at {span}{size}" + (f"; {how}" if how else "") + cause + with_
