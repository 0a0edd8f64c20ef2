"""Changes of the mix: sources that appear, grow or vanish, declared or not, and what they alone do to the loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.attribution.inputs import Rules
from forensics.attribution.signals import turning_point
from forensics.attribution.timeline import Timeline, column
from forensics.losses.difficulty import BOOL, F64
from forensics.schemas import Annotations, Blends, Launches
from forensics.steps import StepRange

WIDTH = 8  # steps that a change of share must last


@dataclass(frozen=True)
class Change:
    """One change of the mix.

    Attributes:
        label: source.
        start, stop: steps, half-open; stop is the last step seen where it lasts.
        before, after: share of tokens.
        z: by the scatter of eight-step means before.
        new: the baseline holds nothing of it.
        declared: what announced it, or "".
    """

    label: str
    start: int
    stop: int
    before: float
    after: float
    z: float
    new: bool
    declared: str = ""


def overdispersion(counts: F64, totals: F64) -> float:
    """Pearson chi-square by degrees of freedom of per-step counts: how much more they scatter than independent draws, at least 1."""
    rate = counts.sum() / max(totals.sum(), 1e-9)
    if rate <= 0 or rate >= 1 or len(counts) < 3:
        return 1.0
    expected = totals * rate
    return max(1.0, float(((counts - expected) ** 2 / np.maximum(expected * (1 - rate), 1e-9)).sum() / (len(counts) - 1)))


def changes(line: Timeline, ordinary: BOOL, reach: StepRange, rules: Rules) -> list[Change]:
    """Lasting changes of any source's share that begin within `reach`.

    Args:
        line: the axis.
        ordinary: steps [T] of the baseline.
        reach: where a change may begin.
        rules: thresholds.
    """
    out: list[Change] = []
    if ordinary.sum() < rules.baseline_least:
        return out
    begin = line.index(reach.start)
    for s, label in enumerate(line.names):
        share = line.share(line.source == s)
        base = share[ordinary]
        before, sd = float(base.mean()), float(base.std())
        if len(share) - begin < WIDTH:
            continue
        smooth = np.convolve(base, np.ones(WIDTH) / WIDTH, "valid") if len(base) > WIDTH else base
        scale = float(np.hypot(max(sd / np.sqrt(WIDTH), float(smooth.std()), 0.01), sd / np.sqrt(len(base))))
        mean = np.array([share[i : i + WIDTH].mean() for i in range(begin, len(share) - WIDTH + 1)])
        new = before <= 0.001
        least = 0.08 if new else rules.mix_change
        hits = np.flatnonzero((np.abs(mean - before) >= least) & (np.abs(mean - before) / scale >= rules.mix_z))
        if not len(hits):
            continue
        sign = float(np.sign(mean[hits[0]] - before))
        half = before + 0.4 * float(mean[hits[0]] - before)
        k = turning_point(sign * (share - half), begin + int(hits[0]), WIDTH)
        half = before + 0.5 * (float(share[k + 1 : k + 1 + WIDTH].mean()) - before)
        k = turning_point(sign * (share - half), k, WIDTH)
        stop = k + 1
        while stop < len(share) and sign * (share[stop : stop + WIDTH].mean() - half) > 0:
            stop += 1
        if int(line.steps[k]) not in reach:
            continue
        after = float(share[k:stop].mean())
        out.append(Change(label, int(line.steps[k]), int(line.steps[stop - 1]) + 1, before, after, float((after - before) / scale), new))
    return sorted(out, key=lambda c: (c.start, -abs(c.z)))


def declared_mixes(annotations: Annotations | None, blends: Blends | None, launches: Launches) -> list[tuple[int, str]]:
    """Steps at which people or the run's own arguments say that the mix changed, and in what words."""
    out: list[tuple[int, str]] = []
    if annotations is not None:
        for row in annotations.select(["step", "kind", "text"]).to_pylist():
            if row["kind"] in {"mix", "data", "blend"} and row["step"] is not None:
                out.append((int(row["step"]), str(row["text"])))
    if blends is not None and blends.num_rows:
        first = dict(zip(column(launches, "launch").tolist(), column(launches, "first_step").tolist(), strict=True))
        by: dict[int, list[tuple[int, float]]] = {}
        for row in blends.select(["launch", "split", "corpus_id", "weight"]).to_pylist():
            if row["split"] in {"train", "", None}:
                by.setdefault(row["launch"], []).append((row["corpus_id"], round(row["weight"] or 0.0, 6)))
        for a, b in zip(sorted(by), sorted(by)[1:], strict=False):
            if sorted(by[a]) != sorted(by[b]) and b in first:
                out.append((first[b], f"launch {b} was started with other weights"))
    return sorted(out)


def with_declarations(found: list[Change], declared: list[tuple[int, str]], slack: int = 20) -> list[Change]:
    """Changes with the announcement that lies within `slack` steps of their start."""
    out = []
    for c in found:
        near = [(abs(step - c.start), text) for step, text in declared if abs(step - c.start) <= slack]
        out.append(Change(c.label, c.start, c.stop, c.before, c.after, c.z, c.new, min(near)[1] if near else ""))
    return out


def explained(line: Timeline, loss: F64, ordinary: BOOL, steps: BOOL) -> float:
    """Mean change of loss that the mix of some steps alone would bring, at the sources' mean losses [nats/token].

    Sources that the ordinary segments lack bring their loss of the first eight steps in which they appear.

    Args:
        line: the axis.
        loss: mean loss per segment [m], NaN where unknown.
        ordinary: steps [T] of the baseline.
        steps: the steps asked about [T].
    """
    ok = np.isfinite(loss)
    source = line.source[line.doc]
    total = 0.0
    base = ordinary[line.at] & ok
    if not base.any():
        return 0.0
    overall = float(np.average(loss[base], weights=np.maximum(line.labels[base], 1)))
    for s in range(len(line.names)):
        share = line.share(line.source == s)
        change = float(share[steps].mean() - share[ordinary].mean()) if steps.any() else 0.0
        mine = base & (source == s)
        if not mine.any():
            here = steps[line.at] & ok & (source == s)
            if not here.any():
                continue
            mine = here & (line.at < int(line.at[here].min()) + 8)
        total += change * (float(np.average(loss[mine], weights=np.maximum(line.labels[mine], 1))) - overall)
    return total
