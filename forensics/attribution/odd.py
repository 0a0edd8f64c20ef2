"""Documents unlike those of the baseline, by features that need no model, and what kind of unlike they are.

A p-value per document says how rare its most extreme feature is among ordinary documents; what stands out is grouped
by label and kind. Kinds are judged on groups: whether documents have structure of their own, share the vocabulary of
ordinary text, or repeat one another can only be seen on several together. Odd is not dirty: languages, tables and new
subjects are odd and wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from forensics.losses.difficulty import BOOL, F64, I64, Batch, code_lengths, per_document
from forensics.losses.features import Features, signatures, twins

# feature -> which tails count; both the repeated (too easy) and the broken (too hard) matter
TAILS = {
    "alone": 1,
    "after": 1,
    "gain": -1,
    "compressed": -1,
    "distinct": -1,
    "period": 1,
    "shared": 1,
    "digits": 1,
    "control": 1,
    "foreign": 1,
    "broken": 1,
    "garbled": 1,
    "words": -1,
    "letters": -1,
}
GARBAGE = ("mojibake", "repetition", "binary", "encoded", "scrambled", "duplicate", "template", "placeholder", "markup", "mislabelled")
WANTED = ("language", "table", "log", "unusual")


def values(f: Features) -> dict[str, F64]:
    """The features that count as odd, by name."""
    out = {x.name: getattr(f, x.name) for x in fields(f) if x.name in TAILS}
    out["gain"] = f.alone - f.after
    return {k: v for k, v in out.items() if np.isfinite(v).any()}


@dataclass(frozen=True)
class Oddness:
    """Per document: p-value, largest robust z and the feature that has it, and whether it counts as odd."""

    p: F64
    z: F64
    feature: tuple[str, ...]
    odd: BOOL


def oddness(f: Features, ordinary: BOOL, *, fdr: float, z_least: float, z_sure: float) -> Oddness:
    """How unlike the ordinary documents each one is.

    The tail of every feature beyond its 95th percentile among ordinary documents of like length is taken as
    exponential, so that p-values below one by their number exist. `p = min(1, m min_j p_j)` over m features, then
    Benjamini-Hochberg. A small baseline has too short a tail for that, so a document `z_sure` out is odd as well; what
    keeps chance away then is the scan over steps, whose null has the same documents.
    """
    n = len(f.length)
    found = values(f)
    z, p = np.zeros((len(found), n)), np.ones((len(found), n))
    edges = np.array([0, 32, 128, 512, np.inf])
    bins = np.digitize(f.length, edges) - 1
    for j, (name, x) in enumerate(found.items()):
        signed = TAILS[name] * x
        for b in range(len(edges) - 1):
            here = bins == b
            base = signed[here & ordinary]
            if len(base) < 30:
                base = signed[ordinary]
            base = base[np.isfinite(base)]
            if len(base) < 5 or not here.any():
                continue
            z[j, here], p[j, here] = tail(signed[here], base)
    least = np.nan_to_num(p, nan=1.0).min(axis=0) if len(found) else np.ones(n)
    p_doc = np.minimum(1.0, len(found) * least)
    z = np.nan_to_num(z, nan=0.0)
    best = z.argmax(axis=0) if len(found) else np.zeros(n, dtype=np.int64)
    names = list(found)
    top = z.max(axis=0) if len(found) else np.zeros(n)
    odd = ((benjamini_hochberg(p_doc) <= fdr) & (top >= z_least)) | (top >= z_sure)
    return Oddness(p_doc, top, tuple(names[k] for k in best) if names else ("",) * n, odd)


def robust_z(f: Features, ordinary: BOOL) -> F64:
    """Largest z of any feature [n], from the median and the outer quartile alone."""
    best = np.zeros(len(f.length))
    for name, x in values(f).items():
        signed = TAILS[name] * x
        base = signed[ordinary & np.isfinite(signed)]
        if len(base) < 5:
            continue
        mid, high = np.quantile(base, [0.5, 0.75])
        far = float(np.quantile(base, 0.9)) - mid
        unit = max((high - mid) / 0.6745, far / 1.2816, 0.02)
        best = np.maximum(best, np.nan_to_num((signed - mid) / unit, nan=0.0))
    return best


def tail(x: F64, base: F64) -> tuple[F64, F64]:
    """Z of each value from the middle of `base`, and its upper p-value: beyond the 95th percentile an exponential tail, 1 below it."""
    mid, high, far = np.quantile(base, [0.5, 0.95, 0.99])
    unit = max((high - mid) / 1.645, (far - mid) / 2.326, 1e-3)
    over = base[base > high] - high
    scale = max(float(over.mean()) if len(over) else 0.0, unit / 3)
    p = np.where(x > high, 0.05 * np.exp(-(x - high) / scale), 1.0)
    return (x - mid) / unit, p


def benjamini_hochberg(p: F64) -> F64:
    """q-values of a family of tests."""
    n = len(p)
    if not n:
        return p
    order = np.argsort(p)
    q = np.minimum.accumulate((p[order] * n / np.arange(1, n + 1))[::-1])[::-1]
    out = np.empty(n)
    out[order] = np.minimum(q, 1.0)
    return out


@dataclass(frozen=True)
class Group:
    """Odd documents that belong together.

    Attributes:
        kind: what they are, one of GARBAGE or WANTED.
        label: their source, or "" where several labels hold the kind.
        docs: int64, document rows.
        reasons: what was measured, in words.
        new_label: the baseline holds no document of that source.
        settled: those whose kind a detector or their own features tell; of the others it shows on the group alone.
    """

    kind: str
    label: str
    docs: I64
    reasons: tuple[str, ...]
    new_label: bool = False
    settled: I64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def garbage(self) -> bool:
        """Whether the kind is one nobody wants."""
        return self.kind in GARBAGE


def pair_structure(batch: Batch, rows: I64) -> tuple[F64, F64]:
    """Code length of documents under a table of the other ones of the same group: alone, after the token before."""
    lengths = np.diff(batch.offsets)[rows]
    tokens = (
        np.concatenate([np.asarray(batch.tokens[batch.offsets[r] : batch.offsets[r + 1]], dtype=np.int64) for r in rows])
        if len(rows)
        else np.zeros(0, dtype=np.int64)
    )
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    alone, after = code_lengths(tokens, offsets, np.ones(len(rows), dtype=bool))
    return per_document(alone, offsets), per_document(after, offsets)


def own_kind(f: Features, ordinary: BOOL, twin: F64, marks: Mapping[int, str]) -> list[str]:
    """A kind that a detector or a document's own features settle, else ""."""
    base = f.take(ordinary)

    def top(x: F64, q: float) -> float:
        x = x[np.isfinite(x)]
        return float(np.quantile(x, q)) if len(x) else 0.0

    period, compressed = max(0.5, 1.3 * top(base.period, 0.99)), min(0.3, 0.7 * top(base.compressed, 0.01))
    broken, control = max(0.02, 2 * top(base.broken, 0.99)), max(0.01, 2 * top(base.control, 0.99))
    garbled = max(0.008, 2 * top(base.garbled, 0.99))
    shared = max(0.4, 1.5 * top(base.shared, 0.99))
    spaces = top(base.spaces, 0.01)
    digits = max(0.25, 1.5 * top(base.digits, 0.99))
    kinds = []
    for i in range(len(f.length)):
        if i in marks:
            kind = marks[i]
        elif f.garbled[i] > garbled:
            kind = "mojibake"
        elif f.period[i] >= period or f.compressed[i] <= compressed:
            kind = "repetition"
        elif f.broken[i] > broken or f.control[i] > control:
            kind = "binary"
        elif f.spaces[i] < 0.02 and spaces > 0.04 and f.foreign[i] < 0.2 and f.length[i] >= 64:
            kind = "encoded"
        elif f.digits[i] > digits and f.letters[i] < 0.25:
            kind = "table"
        elif f.shared[i] >= shared and twin[i] >= 3:
            kind = "duplicate"
        else:
            kind = ""
        kinds.append(kind)
    return kinds


def group_kind(batch: Batch, f: Features, ordinary: BOOL, rows: I64, twin: F64) -> tuple[str, tuple[str, ...]]:
    """What a group is that no document's own features settle.

    Ordinary text costs less by pairs than by single tokens. Text whose order was destroyed keeps its vocabulary and
    loses that gain; noise has neither; another language or subject has its own vocabulary and a gain under its own pairs.
    """
    base = f.take(ordinary)
    gain_base = float(np.median(base.alone - base.after))
    weight = f.length[rows]

    def mean(x: F64) -> float:
        return float((x * weight).sum() / weight.sum())

    gain = mean((f.alone - f.after)[rows])
    peer_alone, peer_after = pair_structure(batch, rows)
    new_words = mean(f.alone[rows]) - mean(peer_alone)
    peer_gain = mean(peer_alone) - mean(peer_after)
    after_high = float(np.quantile(base.after, 0.95))
    high = mean(f.after[rows]) > after_high or gain < 0.5 * gain_base
    alone_ok = mean(f.alone[rows]) <= float(np.quantile(base.alone, 0.95))
    many = weight.sum() >= 2000 and len(rows) >= 4
    facts = (
        f"pairs gain {gain:.2f} nats per token against {gain_base:.2f} in ordinary documents",
        f"under each other's pairs {peer_gain:.2f}",
        f"vocabulary of their own worth {new_words:.2f}",
    )
    alike = float(np.median(twin[rows])) >= max(3.0, 0.05 * len(rows))
    if alike and float(np.median(f.shared[rows])) >= 0.3:
        return ("template" if mean(f.compressed[rows]) < 0.8 * float(np.median(base.compressed)) else "duplicate"), facts
    if high and alone_ok and (new_words < 0.35 or (not many and gain < 0.25 * gain_base)) and (peer_gain < 0.5 * gain_base or new_words < 0.2):
        return "scrambled", facts
    if high and many and peer_gain < 0.3 * gain_base:
        return "encoded", facts
    if high and (many or not alone_ok):
        return "language", facts
    return "unusual", facts


def loss_kind(batch: Batch, f: Features, ordinary: BOOL, rows: I64) -> tuple[str, tuple[str, ...]]:
    """Documents that only their loss sets apart: `scrambled` where words keep their letters but stand in no order.

    One document's gain by pairs is too noisy to tell; the mean of many is not. Hard documents keep the gain.
    """
    gain = f.alone - f.after
    base = gain[ordinary]
    mean, usual = float(gain[rows].mean()), float(base.mean())
    z = (usual - mean) / max(float(base.std()) / np.sqrt(len(rows)), 1e-6)
    peer_alone, peer_after = pair_structure(batch, rows)
    weight = f.length[rows]
    own = float(((f.alone[rows] - peer_alone) * weight).sum() / weight.sum())
    peer_gain = float(((peer_alone - peer_after) * weight).sum() / weight.sum())
    facts = (
        f"pairs gain {mean:.2f} nats per token against {usual:.2f} in ordinary documents ({z:.0f} standard errors of the mean)",
        f"vocabulary of their own worth {own:.2f}",
        f"under each other's pairs {peer_gain:.2f}",
    )
    alone_ok = float(np.median(f.alone[rows])) <= float(np.quantile(f.alone[ordinary], 0.9))
    if z >= 6 and mean <= 0.8 * usual and own < 0.35 and alone_ok:
        return "scrambled", facts
    return "unusual", facts


def groups(
    batch: Batch,
    f: Features,
    ordinary: BOOL,
    odd: BOOL,
    source: I64,
    names: tuple[str, ...],
    costly: BOOL | None = None,
    marks: Mapping[int, str] | None = None,
) -> list[Group]:
    """Odd documents by kind; those of a label that the baseline lacks are judged as one group by their majority.

    Args:
        batch, f: documents and their features.
        ordinary, odd: which are which.
        source, names: labels.
        costly: documents that stand out by their loss alone; only as a group can they be told from hard ones.
        marks: document rows that detectors call garbage, and the cause.
    """
    known = set(np.unique(source[ordinary]).tolist())
    out: list[Group] = []
    if costly is not None:
        fresh = ~np.isin(source, list(known))
        rows = np.flatnonzero(costly & ~odd & ~fresh)
        if len(rows) >= 4:
            kind, facts = loss_kind(batch, f, ordinary, rows)
            out.append(Group(kind, _label(source, rows, names), rows, facts))
        for s in np.unique(source[fresh & costly & ~odd]):
            rows = np.flatnonzero(costly & ~odd & (source == s))
            if len(rows) >= 4 and (odd & (source == s)).sum() < len(rows):
                kind, facts = loss_kind(batch, f, ordinary, rows)
                out.append(Group(kind, names[s], rows, facts, True))
    rows = np.flatnonzero(odd)
    if not len(rows):
        return out
    many, _ = twins(signatures(np.asarray(batch.tokens, dtype=np.int64), batch.offsets, rows))
    twin = np.zeros(len(odd))
    twin[rows] = many
    own = own_kind(f, ordinary, twin, marks or {})
    left = np.ones(len(rows), dtype=bool)
    for s in np.unique(source[rows]):
        mine = source[rows] == s
        if s in known:
            continue
        out += _new_label(batch, f, ordinary, rows[mine], own, twin, names[s])
        left &= ~mine
    rest = rows[left]
    for kind in sorted({own[i] for i in rest} - {""}):
        these = np.array([i for i in rest if own[i] == kind], dtype=np.int64)
        out.append(Group(_template(kind, f, ordinary, these), _label(source, these, names), these, (f"{len(these)} documents",)))
    unsettled = np.array([i for i in rest if own[i] == ""], dtype=np.int64)
    for part in _split(f, ordinary, unsettled):
        kind, facts = group_kind(batch, f, ordinary, part, twin)
        if kind == "language" and len(part) >= 4:
            kind = "mislabelled"
        out.append(Group(kind, _label(source, part, names), part, facts))
    known_by = np.array([k != "" for k in own], dtype=bool)
    return [replace(g, settled=g.docs if g.new_label else g.docs[known_by[g.docs]]) for g in _joined(out, source, names)]


def _joined(found: list[Group], source: I64, names: tuple[str, ...]) -> list[Group]:
    """Groups of one kind under known labels as one."""
    out: list[Group] = []
    for g in found:
        same = next((k for k, x in enumerate(out) if x.kind == g.kind and not x.new_label and not g.new_label), None)
        if same is None:
            out.append(g)
        else:
            docs = np.union1d(out[same].docs, g.docs)
            out[same] = Group(g.kind, _label(source, docs, names), docs, (*out[same].reasons, *g.reasons))
    return out


def _new_label(batch: Batch, f: Features, ordinary: BOOL, rows: I64, own: list[str], twin: F64, label: str) -> list[Group]:
    weight = f.length[rows]
    kinds = np.array([own[i] for i in rows], dtype=object)
    strong = np.isin(kinds, ["mojibake", "repetition", "binary", "encoded", "placeholder", "markup"])
    kind, facts = group_kind(batch, f, ordinary, rows, twin)
    if strong.any() and weight[strong].sum() >= 0.6 * weight.sum():
        best = max(sorted({str(k) for k in kinds[strong]}), key=lambda k: float(weight[kinds == k].sum()))
        return [Group(best, label, rows, facts, True)]
    out = (
        [Group(str(k), label, rows[kinds == k], (), True) for k in sorted({str(k) for k in kinds[strong]})]
        if weight[strong].sum() >= 0.25 * weight.sum()
        else []
    )
    rest = rows[~strong] if out else rows
    if (tables := kinds == "table").any() and weight[tables].sum() > 0.5 * weight.sum():
        kind = "table"
    return [*out, Group(kind, label, rest, facts, True)]


def _template(kind: str, f: Features, ordinary: BOOL, rows: I64) -> str:
    if kind == "duplicate" and float(np.median(f.compressed[rows])) < 0.8 * float(np.median(f.compressed[ordinary])):
        return "template"
    return kind


def _label(source: I64, rows: I64, names: tuple[str, ...]) -> str:
    found = np.unique(source[rows])
    return names[int(found[0])] if len(found) == 1 else ""


def _split(f: Features, ordinary: BOOL, rows: I64) -> list[I64]:
    """Unsettled documents in two: those with the vocabulary of ordinary text, and the others."""
    if not len(rows):
        return []
    alone = f.alone[rows] > float(np.quantile(f.alone[ordinary], 0.98))
    return [part for part in (rows[~alone], rows[alone]) if len(part)]
