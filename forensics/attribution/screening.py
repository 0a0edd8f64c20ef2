"""Which documents stand out, by features, by their loss, and by what detectors flagged; and which losses can be trusted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.attribution.excess import excess_of
from forensics.attribution.inputs import Inputs, Rules
from forensics.attribution.odd import GARBAGE, Oddness, oddness, robust_z
from forensics.attribution.scan import best_stretch
from forensics.attribution.signals import Signals
from forensics.attribution.timeline import SegmentLoss, Timeline
from forensics.errors import RunError
from forensics.losses.difficulty import BOOL, F64
from forensics.losses.features import Decoder, Features, coded, describe
from forensics.losses.fit import follows, in_bits, unit_of
from forensics.schemas import Findings

PAGES = 8  # of one template, or copies of one document, from which they are more than a few that resemble one another


def screen(inputs: Inputs, line: Timeline, ordinary: BOOL, decoder: Decoder | None, rules: Rules) -> tuple[Features, Oddness, BOOL, F64, BOOL]:
    """Features, oddness, the ordinary documents they were judged by, and the ordinary steps without any that turned out dirty.

    First the baseline is looked at with quartiles, which a quarter of dirty documents cannot move: where the documents
    far outside lie together in time they leave the baseline. Last, ordinary documents right before the first odd
    stretch join the tables, because small baselines make poor ones.
    """
    batch = inputs.batch

    plain = describe(batch, decoder)

    def described(table: BOOL) -> tuple[Features, F64]:
        return coded(plain, batch, table)

    table = _in_steps(line, ordinary)
    features, per_token = described(table)
    far = robust_z(features, table) > 4.5
    for _ in range(2):
        trimmed, excluded = _clean(line, far, ordinary, rules)
        if not excluded.any():
            break
        ordinary, table = trimmed, _in_steps(line, trimmed) & ~(far & _in_steps(line, excluded))
        features, per_token = described(table)
        far = robust_z(features, table) > 4.5
    odd = oddness(features, table, fdr=rules.odd_fdr, z_least=rules.odd_z, z_sure=rules.odd_z_sure)
    strange = odd.odd.copy()
    strange[list(flagged(line, inputs.findings, table))] = True
    first = np.full(len(line.keys), np.iinfo(np.int64).max)
    np.minimum.at(first, line.doc, line.at)
    wider = (first < _first_odd(line, line.share(strange), ordinary)) & ~strange
    if wider.sum() > 1.1 * table.sum() and table.sum() < 2000:
        table = wider
        features, per_token = described(table)
        odd = oddness(features, table, fdr=rules.odd_fdr, z_least=rules.odd_z, z_sure=rules.odd_z_sure)
    return features, odd, table, per_token, ordinary


def _in_steps(line: Timeline, steps: BOOL) -> BOOL:
    """Documents of which at least half of the labels that were read lie in these steps: one token at the edge of a row makes no member."""
    here = line.of_docs(line.labels, steps[line.at])
    return np.asarray((here > 0) & (2 * here >= line.of_docs(line.labels)))


def _clean(line: Timeline, far: BOOL, ordinary: BOOL, rules: Rules) -> tuple[BOOL, BOOL]:
    """The baseline without the stretch in which documents far outside lie together, and the steps that left it."""
    share = line.share(far)
    bar = float(np.median(share)) + rules.share_least
    a, b, found = best_stretch(share, bar)
    excluded = np.zeros(len(ordinary), dtype=bool)
    if found < rules.dose_least:
        return ordinary, excluded
    excluded[a:b] = ordinary[a:b]
    trimmed = ordinary & ~excluded
    if trimmed.sum() < rules.baseline_least:
        return ordinary, np.zeros(len(ordinary), dtype=bool)
    return trimmed, excluded


def _first_odd(line: Timeline, share: F64, ordinary: BOOL) -> int:
    """Index of the first step from which odd documents are more than scattered."""
    base = float(share[ordinary].mean()) if ordinary.any() else 0.0
    total = 0.0
    begin = 0
    start = int(np.flatnonzero(ordinary)[0]) if ordinary.any() else 0
    for i in range(start, len(share)):
        if total <= 0:
            begin = i
        total = max(0.0, total + share[i] - base - 0.08)
        if total > 0.5:
            return max(begin - 2, start + 4)
    return len(share)


@dataclass(frozen=True)
class OwnLoss:
    """Per document [n]: mean loss over what its source, length and pairs explain, and the usual scatter of that [nats/token]; NaN where unknown.

    `fixed` marks those scored under a checkpoint from before the event, or all where none was scored.
    """

    mean: F64
    sd: F64
    fixed: BOOL

    @property
    def hard(self) -> BOOL:
        """Documents that cost far more than is explained, whatever the state of the model."""
        return self.fixed & (np.nan_to_num(self.mean) > 0.6) & (np.nan_to_num(self.mean) > 2.5 * np.maximum(np.nan_to_num(self.sd), 0.1))


def own_loss(line: Timeline, losses: dict[str, SegmentLoss], difficulty: F64, ordinary: BOOL, table: BOOL) -> OwnLoss:
    """What each document costs by itself.

    Under a checkpoint from before, where one was scored and had not seen it; else as trained, less the median of its own
    step where no checkpoint was scored at all, which takes out a shift of all documents.
    """
    n = len(line.keys)
    excess = excess_of(line, losses, difficulty, ordinary[line.at] & table[line.doc], 0.0)
    if excess is None:
        return OwnLoss(np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, dtype=bool))
    value, z = excess.value, excess.z
    scale = np.abs(value / np.where(np.abs(z) > 1e-9, z, np.inf))
    scored = [name for name in losses if name.startswith("checkpoint:") and name.split(":", 1)[1].isdigit()]
    later = np.ones(len(line.at), dtype=bool)
    if scored:
        name = min(scored, key=lambda x: int(x.split(":", 1)[1]))
        under = losses[name].mean - excess.expected
        later = (line.steps[line.at] > int(name.split(":", 1)[1])) & np.isfinite(under)
        value = np.where(later, under, value)
    else:
        middle = np.array([float(np.median(x)) if len(x := value[(line.at == t) & np.isfinite(value)]) >= 4 else 0.0 for t in range(len(line.steps))])
        value = value - np.maximum(middle, 0.0)[line.at]
    usable = np.isfinite(value) & (scale > 0) & (line.labels >= 8)
    fixed = line.of_docs(line.labels, usable & later) > 0
    ok = usable & (later | ~fixed[line.doc])
    w = np.where(ok, line.labels, 0.0)
    total = np.where(line.of_docs(w) > 0, line.of_docs(w), np.nan)
    return OwnLoss(line.of_docs(np.where(ok, value, 0.0) * w) / total, line.of_docs(np.where(ok, scale, 0.0) * w) / total, fixed)


def flagged(line: Timeline, findings: Findings | None, table: BOOL) -> dict[int, str]:
    """Document rows whose primary finding is garbage, a page of a template or a copy, and its cause; causes that ordinary documents often have are left out.

    One page of a template or one copy is no garbage; many of the same one, none of them in ordinary steps, are what a stretch is made of.
    """
    if findings is None or not findings.num_rows:
        return {}
    cause = np.array([str(c) for c in findings.column("cause").cast(pa.string()).to_pylist()], dtype=object)
    garbage, primary = (np.asarray(findings.column(n).to_numpy(zero_copy_only=False), dtype=bool) for n in ("garbage", "primary"))
    key = findings.column("doc_key").to_numpy()
    row = np.minimum(np.searchsorted(line.keys, key), len(line.keys) - 1)
    known = line.keys[row] == key
    use = known & primary & (garbage | (np.isin(cause, ("template", "duplicate")) & _many_new(findings, known & table[row])))
    row, cause = row[use], cause[use]
    out: dict[int, str] = {}
    for name in sorted(set(cause.tolist()) & set(GARBAGE)):
        mine = np.unique(row[cause == name])
        if table[mine].sum() <= max(2.0, 0.02 * table.sum()):
            out |= dict.fromkeys(mine.tolist(), name)
    return out


def _many_new(findings: Findings, ordinary: BOOL) -> BOOL:
    """Findings whose words, a template's skeleton or whose copy it is, at least `PAGES` findings share and no ordinary document has.

    Args:
        findings: N findings.
        ordinary: bool [N], whether it is one of an ordinary document.
    """
    said = pc.replace_substring_regex(findings.column("detail").cast(pa.string()), "^near copy of ", "copy of ")
    words = said.combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
    _, which, counts = np.unique(words, return_inverse=True, return_counts=True)
    new: BOOL = (counts[which] >= PAGES) & (np.bincount(which, weights=ordinary)[which] == 0)
    return new


def fitting(line: Timeline, losses: dict[str, SegmentLoss], difficulty: F64, log: Signals) -> tuple[dict[str, SegmentLoss], list[tuple[str, str]]]:
    """The losses without those that belong to other steps or rows, and what is to be said about them.

    Args:
        line: the axis.
        losses: by origin.
        difficulty: code length per segment of ordinary steps, NaN elsewhere: garbage that is being learned is hard and yet cheap.
        log: what was logged.

    Raises:
        RunError: recorded losses in bits or as perplexities.
    """
    kept: dict[str, SegmentLoss] = {}
    said: list[tuple[str, str]] = []
    for name, record in losses.items():
        ok = np.isfinite(record.mean) & (record.predicted > 0)
        if name == "recorded" and ok.any():
            weight = line.per_step(np.where(ok, record.predicted, 0))
            mean = line.per_step(np.where(ok, record.mean, 0) * record.predicted) / np.maximum(weight, 1)
            unit = unit_of(np.where(weight > 0, mean, np.nan), log.get("train_loss").at(line.steps))
            if unit in {"bits", "perplexity"}:
                against = "1 / ln 2 times as large as the logged training loss" if unit == "bits" else "the exponential of the logged training loss"
                raise RunError(
                    f"the recorded losses look like {unit}: they are {against}",
                    hint="write them in nats per token, or as sums of nats",
                )
            if unit == "other":
                said.append(("recorded losses", "their means do not agree with the logged training loss"))
            covered = float(weight.sum() / max(line.tokens.sum(), 1))
            if covered < 0.9:
                said.append(("documents without a recorded loss", f"the records cover {100 * covered:.0f} % of the tokens"))
        if name.startswith("checkpoint:") and name.split(":", 1)[1].isdigit() and "recorded" in losses:
            later = line.steps[line.at] > int(name.split(":", 1)[1])  # what it had been trained on costs it less
            if in_bits(np.where(later, record.mean, np.nan), losses["recorded"].mean):
                raise RunError(f"the losses `{name}` look like bits: 1 / ln 2 times the recorded ones", hint="write them in nats per token, or as sums of nats")
        if record.not_finite:
            said.append(("losses that are not finite", f"{record.not_finite} records of `{name}` are NaN or infinite and were left out"))
        r, n = follows(record.mean, difficulty, line.at)
        if n >= 200 and r < 0.05:
            said.append(
                (
                    f"losses `{name}`",
                    f"they do not follow the documents they are said to belong to (r = {r:.2f} over {n} parts): other steps or rows; they were left out",
                )
            )
            continue
        kept[name] = record
    return kept, said
