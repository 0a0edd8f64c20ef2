"""What is said of a whole run rather than of a moment: the law its loss follows, spikes that recur, convergence or engineering.

The law is for orientation and for the reader: events are judged on local trends. It is fitted only where the learning rate does not change much, because a
decaying rate bends the curve by itself.
"""

from __future__ import annotations

import numpy as np

from forensics.curves.event import Context, Event
from forensics.curves.series import Series
from forensics.curves.trend import PowerLaw, power_law

ENGINEERING = {"throughput_drop", "throughput_sawtooth", "slow_rank", "memory_leak", "memory_near_limit", "memory_periodic"}
NEUTRAL = {"gap", "batch_change", "stuck"}


def law_of(ctx: Context) -> PowerLaw | str:
    """L(D) = E + B D^-beta of the training loss over tokens, else steps; or why it is not fitted (rule 3)."""
    s = ctx.loss
    if s is None:
        return "the training loss was not logged"
    lr = ctx.curves.get("learning_rate")
    if lr is not None and len(lr.finite()) > 1:
        v = lr.finite().where(lr.finite().step > (ctx.warmup or 0)).value
        if len(v) and v.min() < 0.8 * v.max():
            return "the learning rate changes by more than a fifth after its warm-up: the loss follows the schedule too"
    keep = s.step >= max(1, ctx.judged_from)
    scan = ctx.scan("train_loss")
    if scan is not None and len(scan.event) == len(keep):
        keep &= scan.event == 0
    d = s.tokens if s.tokens is not None and bool((s.tokens > 0).all()) else s.step
    return power_law(d[keep].astype(np.float64), s.value[keep])


def tokens_at(ctx: Context, step: int) -> float | None:
    """Tokens consumed up to a step: logged, else summed from the batches; None where neither is known."""
    for s in (ctx.loss, *ctx.curves):
        if s is not None and len(s) and s.tokens is not None and s.tokens[s.at(step)] > 0:
            return float(s.tokens[s.at(step)])
    batch, rows, width = (ctx.curves.get(n) for n in ("batch_tokens", "batch_size", "sequence_length"))
    if batch is None and rows is not None and width is not None and len(width.finite()):
        batch = Series("batch_tokens", rows.step, rows.value * float(np.median(width.finite().value)))
    if batch is None or not len(batch.finite()):
        return None
    s = batch.finite()
    upto = s.step <= max(step, int(s.step[0]))
    since = np.diff(s.step[upto], prepend=max(0, int(s.step[0]) - s.cadence))
    return float((s.value[upto] * since).sum() + s.value[upto][-1] * max(0, step - int(s.step[upto][-1])))


def passes(ctx: Context) -> tuple[float, str | None] | None:
    """Passes over the training set at the end of the log (rule 11): logged, or tokens by the size of the corpus.

    Returns:
        The most passes, and the source they are of (None: the whole set); None where nothing is known.
    """
    found: list[tuple[float, str | None]] = []
    s = ctx.curves.get("epoch")
    if s is not None and len(s.finite()):
        found.append((float(s.finite().value.max()), None))
    corpus = ctx.settings.corpus
    used = tokens_at(ctx, int(ctx.loss.step[-1])) if ctx.loss is not None and (corpus.tokens or corpus.sources) else None
    if used is not None and corpus.tokens:
        found.append((used / corpus.tokens, None))
    for name, share in ctx.curves.starting("source_share/").items():
        if used is not None and corpus.sources.get(name) and len(share.finite()):
            found.append((used * float(share.finite().value.mean()) / corpus.sources[name], name))
    return max(found, key=lambda f: f[0], default=None)


def recovery_kind(ctx: Context, e: Event, members: list[Event]) -> str | None:
    """How fast a returned spike came back, against the optimizer's memories (rule 8).

    `second_moment` needs an outlier of the gradient norm at the onset and a return to the old trend; speed alone proves no buffer intact.
    """
    t90 = e.evidence.get("t90")
    if e.shape != "spike" or e.severity not in ("returned", "slow") or t90 is None:
        return None
    o = ctx.optimizer
    if t90 <= 5 * o.tau_m:
        return "fast"
    outlier = any(m.shape == "norm_spike" and abs(m.start - e.start) <= 5 for m in members)
    return "second_moment" if outlier and o.tau_v <= t90 <= 6 * o.tau_v else "relearning"


def recurrent(ctx: Context, events: list[Event], span: int = 10_000) -> str | None:
    """Five or more spikes within ten thousand steps whose cause nothing settles (rule 9); in words."""
    at = sorted(
        e.start
        for e in events
        if e.metric == "train_loss" and e.shape in ("spike", "level_shift", "divergence") and e.level == "alarm" and e.cause == "undetermined"
    )
    most = max((sum(a <= b < a + span for b in at) for a in at), default=0)
    if most < 5:
        return None
    return f"{most} spikes within {span:,} steps, none explained (recurrent_unattributed): replay two of them before you lower the learning rate or the clip"


def kind_of_problem(events: list[Event]) -> str:
    """Convergence, engineering, both, or nothing (rule 33)."""
    alarms = [e for e in events if e.level == "alarm" and e.shape not in NEUTRAL]
    slow, learn = [e for e in alarms if e.shape in ENGINEERING], [e for e in alarms if e.shape not in ENGINEERING]
    if not alarms:
        return "nothing that calls for action"
    if not learn:
        return "an engineering problem: speed or memory, the loss is not concerned"
    if not slow:
        return "a convergence problem: speed and memory are not concerned"
    near = any(abs(a.start - b.start) <= 5 for a in slow for b in learn)
    return "convergence and engineering at once" + (": look at sequence lengths and restarts first, they begin together" if near else ", at different times")
