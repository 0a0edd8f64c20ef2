"""Severity and cause, kept apart, by stated rules.

Every rule turns evidence into a `Claim`: a cause, when its effect began, how strong it is, and what speaks for and
against it. Claims are ordered by what the tests can exclude: a fault of the order is read off exactly, documents
need a dose, a place in time and an effect, logged settings are certain but may be bystanders, and a fault that left no
trace in logs or data is what remains when ordinary documents shift without any. Odd documents that ended before the
event without an effect of their own stay bystanders.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from forensics.attribution.baseline import time_constants
from forensics.attribution.composition import Change
from forensics.attribution.evidence import Evidence, with_harm
from forensics.attribution.severity import Severity, judge, validation
from forensics.attribution.signals import Departure
from forensics.attribution.slabs import Slab
from forensics.curves.lines import fall

WORDS = {
    "mojibake": "text decoded with the wrong encoding",
    "repetition": "repeated n-grams",
    "binary": "broken bytes",
    "encoded": "text without any structure of its own",
    "scrambled": "text whose token order is destroyed",
    "duplicate": "near copies of one another",
    "template": "pages from one template",
    "placeholder": "placeholders",
    "markup": "left-over markup",
    "mislabelled": "a language or subject their source never held",
    "language": "another language or subject",
    "table": "tables of numbers",
    "log": "logs",
    "unusual": "unusual documents",
}

UNSEEN = 1 / 3  # of the peak: while dirt flows, an excess of which two errors leave more open has not been seen to go


@dataclass(frozen=True)
class Claim:
    """One possible cause of the event.

    Attributes:
        cause, subcause: of verdicts.
        onset: first step whose loss can show it; start: first step of the cause itself.
        stop: one past its last step, None where it runs on.
        strength: 0 (hint) to 3 (certain).
        pro, contra: what speaks for and against it, in sentences.
    """

    cause: str
    subcause: str
    onset: int
    start: int
    stop: int | None
    strength: int
    pro: tuple[str, ...] = ()
    contra: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """The verdict before it is written down: claims by rank, the first one is the answer."""

    primary: Claim | None
    secondary: tuple[Claim, ...]
    severity: Severity
    confidence: str
    guilty: tuple[Slab, ...] = ()
    bystanders: tuple[Slab, ...] = ()
    notes: tuple[str, ...] = field(default=())


def decide(e: Evidence) -> Decision:
    """Weigh all claims: the first in this order is the answer, the others are secondary.

    Faults of the order and guilty documents; then what the logs and the mix show close to the event; then what remains
    when neither does; last, what lies far from the event. Without an event only what is clear by itself counts.
    """
    event, measure = first_event(e)
    loader, logged = _loader(e, event), _logged(e)
    guilty, bystanders = _documents(e, logged, event)
    data = _data(e, guilty)
    mix = [*_mix(e, event), *_hard(e, bystanders)]
    order = [*loader, data] if data and loader and loader[0].strength >= 3 and data.strength < 3 and loader[0].start <= data.start else [data, *loader]
    first = [c for c in order if c is not None]
    if event is None:
        rest = [c for c in (*logged, *mix) if c.strength >= 2] or ([] if first else _quiet(logged, bystanders, e))
    else:
        near = [c for c in logged if c.strength >= 3 or -24 <= event.start - c.onset <= 32]
        strong, weak = (
            [c for c in near if c.strength >= 2],
            [c for c in near if c.strength < 2 and c.onset <= event.start + 4 and (c.subcause != "norm_level" or measure == "eval_loss")],
        )
        close = [c for c in mix if c.strength >= 2 and -16 <= event.start - c.onset <= 40]
        state = _state(e, event, measure, bool(first or close))
        if state and state[0].cause == "numerics":
            state = [*weak, *state]
        chosen = [*strong, *close, *state]
        rest = [*chosen, *(c for c in (*logged, *mix) if c not in chosen)]
    claims = [*first, *rest]
    if not compared(e):  # a hint is a comparison with ordinary steps, and there are none
        claims = [c for c in claims if c.strength >= 2]
    if not claims:
        severity = severity_from(e, event.start if event else e.ranges.window.start)
        return Decision(None, (), severity if event else replace(severity, name="none"), "low", (), bystanders)
    primary = claims[0]
    severity = severity_from(e, primary.onset)
    if severity.name == "none" and _visible(e, primary):
        severity = replace(severity, name="returned")
    if severity.name == "returned" and primary.cause == "data" and still_read(e, primary) and 2 * severity.error > UNSEEN * severity.peak:
        severity = replace(severity, name="slow")
        primary = replace(
            primary, contra=(*primary.contra, f"they are still read at step {int(e.line.steps[-1])}: the loss does not show that the run has come back")
        )
    named = tuple(guilty) if primary.cause == "data" else ()
    return Decision(primary, tuple(claims[1:]), severity, _confidence(e, primary, claims[1:]), named, bystanders)


def still_read(e: Evidence, claim: Claim) -> bool:
    """Whether the cause goes on to the last step that was read."""
    return claim.stop is not None and claim.stop >= int(e.line.steps[-1]) - 1


def compared(e: Evidence) -> bool:
    """Whether there were enough steps before the event to compare with; others only stand in for them."""
    return e.ranges.baseline is not None and len(e.ranges.baseline) >= e.rules.baseline_least


def _quiet(logged: list[Claim], bystanders: tuple[Slab, ...], e: Evidence) -> list[Claim]:
    """Without an event and without anything clear: what hit the optimizer though the loss need not show it.

    Gradients many times their usual size, which clipping may have made harmless; or a lasting change of the optimizer's state:
    a lost second moment or another decay rate moves the ratio of gradient to root second moment for good while the loss stays in
    its noise. Documents that are odd or new do both as well: gradients say nothing in their steps, the state nothing where there are any.
    """
    beside = [*e.slabs, *(s for s in e.wanted if s.group.kind != "unusual" or s.group.new_label)]
    gross = [s for s in e.signs if s.subcause == "norm_outlier" and s.strength >= 2]
    gross = [s for s in gross if not any(b.stretch.start <= s.start <= b.stretch.stop + 3 for b in beside)]
    hit = [Claim("numerics", "gradient_fault", gross[0].start + 1, gross[0].start, gross[-1].stop, 1, (gross[0].text,), ("no loss shows it",))] if gross else []
    lasting = [] if bystanders or e.slabs or e.wanted or e.changes else [c for c in logged if c.subcause == "optimizer_state"]
    return [*hit, *lasting]


def first_event(e: Evidence) -> tuple[Departure | None, str]:
    """The departure that an answer must explain, and in which series: the most reliable series that rises, else a dip of the loss."""
    for name in ("drift", "shift", "train_loss", "eval_loss"):
        up = [d for d in e.departures.get(name, []) if d.sign > 0 and _counts(d, name)]
        if up:
            return min(up, key=lambda d: d.start), name
    down = [d for d in e.departures.get("train_loss", []) if _counts(d, "train_loss")]
    return (min(down, key=lambda d: d.start), "train_loss") if down else (None, "")


def _counts(d: Departure, name: str) -> bool:
    if name == "eval_loss":
        return True
    long = d.stop - d.start >= 6 and d.mean >= (1.5 if name != "train_loss" else 1.8)
    return d.peak_z >= 7 or (long and d.peak_z >= 3.5)


def _loader(e: Evidence, event: Departure | None) -> list[Claim]:
    out = []
    for f in e.faults:
        sure = f.kind in {"stale_position", "duplicated_ranks", "repeated_samples"} and f.share >= 0.3
        strength = 3 if sure else 2 if f.kind != "skipped_range" else 0
        if strength or (event is not None and abs(event.start - f.start) <= 4):
            out.append(Claim("loader", f.kind, f.start, f.start, f.stop, strength, (f.text,)))
    return sorted(out, key=lambda c: (-c.strength, c.start))


def _logged(e: Evidence) -> list[Claim]:
    return [Claim(s.cause, s.subcause, s.shows, s.start, s.stop, s.strength, (s.text,)) for s in e.signs if s.subcause != "norm_outlier"]


def qualifies(slab: Slab) -> bool:
    """Whether odd documents of an unwanted kind have the dose and an effect that make them a cause."""
    s = slab.stretch
    harmful = slab.harm_z >= 4 and slab.harm >= 0.03
    visible = abs(slab.shows) >= 0.5 or slab.learned <= -0.5
    if slab.group.kind == "mislabelled":
        return harmful and s.dose >= 3 and s.share >= 0.15
    if slab.group.kind == "encoded":
        return (harmful or visible) and s.dose >= 2 and s.share >= 0.12
    return harmful or (visible and s.dose >= 2) or s.dose >= 6


def _documents(e: Evidence, logged: list[Claim], event: Departure | None) -> tuple[list[Slab], tuple[Slab, ...]]:
    """Slabs that count as guilty, and those that were only there.

    What is read after the onset cannot have caused it; what ended before the window, when another event lies in the
    window, explains at most itself; what ended before a window in which nothing happens must have done harm; what ended
    shortly before another event must have done harm until then.
    """
    guilty: list[Slab] = []
    aside: list[Slab] = []
    for slab in e.slabs:
        s = slab.stretch
        late = [c.onset for c in logged if c.strength >= 2 and c.onset > s.stop + 3]
        for name in ("drift", "shift", "train_loss"):
            late += [d.start for d in e.departures.get(name, []) if d.sign > 0 and d.peak_z >= 8 and d.start > s.stop + 3]
        if (late and s.stop <= e.ranges.window.start) or _was_off(e, s.start):
            aside.append(slab)
            continue
        judged = with_harm(e, slab, until=min(late)) if late else slab
        harmful = judged.harm_z >= 4 and judged.harm >= 0.03
        asked = not late and (event is not None or s.stop > e.ranges.window.start)
        (guilty if (harmful or asked) and qualifies(judged) else aside).append(judged)
    return guilty, tuple(aside)


def _was_off(e: Evidence, start: int) -> bool:
    """Whether ordinary documents had left their level for good before the first odd step."""
    series, name = (e.drift, "drift") if e.drift is not None else (e.shift, "shift")
    if series is None:
        return False
    for d in e.departures.get(name, []):
        use = (e.line.steps >= d.start) & (e.line.steps < start) & np.isfinite(series.value)
        if d.sign > 0 and d.start <= start - 4 and use.sum() >= 3:
            mean, error = float(series.value[use].mean()), float(np.sqrt((series.error[use] ** 2).mean() / use.sum()))
            if mean > 0.15 and mean > 6 * error:
                return True
    return False


def _data(e: Evidence, guilty: list[Slab]) -> Claim | None:
    if not guilty:
        return None
    main = max(guilty, key=lambda s: s.stretch.dose)
    start = min(s.stretch.start for s in guilty if s.stretch.dose >= 0.1 * main.stretch.dose)
    stop = max(s.stretch.stop for s in guilty)
    pro = []
    for s in guilty:
        t = s.stretch
        origin = f" under the label {s.group.label}" if s.group.label else ""
        pro.append(
            f"{len(s.docs)} documents of {WORDS[s.group.kind]}{origin} make up {100 * t.share:.0f} % of the tokens of steps {t.start} to {t.stop - 1} "
            f"(together {t.dose:.1f} full batches; scan p = {t.p:.2g} over {t.shifts} shifts)"
        )
        if s.harm_z >= 4:
            pro.append(f"ordinary documents or validation rise by {s.harm:.2f} nats per token after they begin ({s.harm_z:.0f} standard errors)")
        if np.isfinite(s.shows) and abs(s.shows) >= 0.5:
            pro.append(f"their own loss starts {s.shows:+.2f} nats per token from that of ordinary documents")
        if np.isfinite(s.learned) and s.learned <= -0.5:
            pro.append(f"their loss falls by {-s.learned:.2f} nats per token while they pass: they are memorised")
    sure = main.harm_z >= 4 and main.stretch.dose >= 2
    return Claim("data", main.group.kind, start, start, stop, 3 if sure else 2, tuple(pro))


def _mix(e: Evidence, event: Departure | None) -> list[Claim]:
    out = []
    for slab in e.wanted:
        if slab.group.kind == "unusual" and not slab.group.new_label:
            continue
        s = slab.stretch
        change = next((c for c in e.changes if c.label == slab.group.label), None)
        declared = change.declared if change else ""
        origin = f" from {slab.group.label}" if slab.group.label else ""
        text = f"documents of {WORDS[slab.group.kind]}{origin} make up {100 * s.share:.0f} % of steps {s.start} to {s.stop - 1}; nothing in them is broken"
        out.append(_mix_claim("new_source" if slab.group.new_label else "mix_change", s.start, s.stop, 2, declared, text))
    known = {c.onset for c in out}
    for c in e.changes:
        if any(abs(c.start - k) <= 16 for k in known):
            continue
        text = f"the share of {c.label} goes from {100 * c.before:.0f} to {100 * c.after:.0f} % at step {c.start}"
        effect = f"the mix alone would move the loss by {e.mix_explains:+.2f} nats per token"
        lasting = (c.new or abs(c.after - c.before) >= 0.25 or _moved(e, c) >= 0.25) and c.stop - c.start >= 16
        out.append(_mix_claim("new_source" if c.new else "mix_change", c.start, c.stop, 2 if lasting else 1, c.declared, text, effect))
    for step, text in e.declared:
        if step in e.reach and not any(abs(step - c.start) <= 24 for c in out):
            out.append(Claim("composition", "declared_mix", step, step, None, 2 if event is not None else 1, (f"announced at step {step}: {text}",)))
    return sorted(out, key=lambda c: (-c.strength, c.start))


def _moved(e: Evidence, c: Change) -> float:
    """Share of the tokens that changed hands around one change: half the sum over sources that changed within 16 steps of it."""
    return sum(abs(x.after - x.before) for x in e.changes if abs(x.start - c.start) <= 16) / 2


def _mix_claim(kind: str, start: int, stop: int, strength: int, declared: str, *pro: str) -> Claim:
    if declared:
        return Claim("composition", kind, start, start, stop, 3, (*pro, f"announced: {declared}"))
    return Claim("composition", kind, start, start, stop, strength, pro, ("nobody declared it",))


def _hard(e: Evidence, bystanders: tuple[Slab, ...]) -> list[Claim]:
    """Documents that are hard and lie together, but are neither broken nor of a new source."""
    unusual = [s for s in e.wanted if s.group.kind == "unusual" and not s.group.new_label]
    out = []
    for slab in (*unusual, *(s for s in bystanders if s.group.kind in {"mislabelled", "encoded"})):
        s = slab.stretch
        if s.dose >= 2 and slab.shows >= 0.5:
            text = (
                f"{len(slab.docs)} hard documents make up {100 * s.share:.0f} % of steps {s.start} to {s.stop - 1} ({slab.shows:+.2f} nats per token at first)"
            )
            out.append(Claim("interaction", "hard_documents", s.start, s.start, s.stop, 2, (text,)))
    return out


def _state(e: Evidence, event: Departure, measure: str, other: bool) -> list[Claim]:
    """An event that neither the logs nor the data explain: a transient fault, the state, or hard batches."""
    s = event.start
    tail = time_constants(e.inputs.optimizer)[0]
    if event.sign < 0:
        return []
    after = _ordinary_after(e, event)
    brief = event.stop - event.start <= 4 and after is not None and after < 0.05
    alone = measure == "train_loss" and e.excess is not None and (after is None or after < 0.05)
    if (brief or alone) and not other:
        flat = f" ({after:+.2f} nats per token)" if after is not None else ""
        text = f"the loss is high on steps {s} to {event.stop - 1} by what they read, and ordinary documents do not move afterwards{flat}"
        return [Claim("interaction", "hard_batch", s, s, event.stop, 1, (text,))]
    norms = [d for d in e.departures.get("grad_norm", []) if d.sign > 0 and s - tail <= d.start <= s + 1]
    outlier = [x for x in e.signs if x.subcause == "norm_outlier" and s - tail <= x.start <= s + 1]
    at = outlier[0].start if outlier else norms[0].start if norms else None
    if at is None:
        sub, text = "optimizer_state", "the gradient norm does not stand out when ordinary documents begin to shift"
    elif at < s:
        sub, text = "gradient_fault", f"the gradient norm jumps at step {at}, before ordinary documents shift"
    else:
        sub, text = "state_corruption", f"loss and gradient norm jump together at step {s}"
    pro = (f"all sources shift from step {s} (up to {event.peak_z:.0f} standard errors) with no odd documents before", text)
    return [Claim("numerics", sub, s, s, None, 1, pro, ("no log entry names a fault",))]


def _ordinary_after(e: Evidence, event: Departure) -> float | None:
    for series in (e.drift, e.shift):
        if series is None:
            continue
        use = (e.line.steps >= event.stop) & (e.line.steps < event.stop + 10) & np.isfinite(series.value)
        if use.sum() >= 4:
            return float(np.mean(series.value[use]))
    return None


def _visible(e: Evidence, claim: Claim) -> bool:
    stop = claim.stop if claim.stop is not None else claim.onset + 64
    return any(claim.onset - 2 <= d.start <= stop + 2 for name in ("train_loss", "drift", "shift") for d in e.departures.get(name, []) if _counts(d, name))


def severity_from(e: Evidence, onset: int) -> Severity:
    """How bad, from validation where it was measured on both sides of the onset, else from ordinary documents, else from the loss."""
    tail = 3 * time_constants(e.inputs.optimizer)[1]
    val, train = validation(e.log), e.log.get("train_loss")
    if len(val):
        found = judge(val.steps, val.values, onset, "eval_loss", floor=0.03, slow_after=tail, known=fall(train.steps, train.values, onset))
        if found.name != "unknown":
            return found
    for series in (e.drift, e.shift):
        if series is None:
            continue
        ok = np.isfinite(series.value)
        steps, values = e.line.steps[ok], series.value[ok]
        if series is e.drift:
            lead = np.arange(onset - 12, onset)
            steps, values = np.concatenate([lead, steps[steps >= onset]]), np.concatenate([np.zeros(len(lead)), values[steps >= onset]])
        found = judge(steps, values, onset, "ordinary documents", floor=0.05, slow_after=tail)
        if found.name != "unknown":
            return found
    return judge(train.steps, train.values, onset, "train_loss", floor=0.05, slow_after=tail)


def _confidence(e: Evidence, primary: Claim, others: list[Claim]) -> str:
    """low, medium or high, by stated rules.

    high: the claim is certain by itself and no other certain one competes; medium: clear, or certain with a rival;
    low: a hint, a baseline under its least length (steps after the window stand in), or the remainder when nothing else was found.
    """
    if primary.strength <= 1 or e.ordinary.sum() < e.rules.baseline_least or not compared(e):
        return "low"
    rival = any(c.strength >= 3 and c.cause != primary.cause for c in others)
    return "high" if primary.strength >= 3 and not rival else "medium"
