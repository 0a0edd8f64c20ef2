"""What goes with frequent needles of the gradient norm while the loss still falls: long rows, odd data, or nothing that was logged (rule 21).

The records with a needle are compared with all others by the rank of a statistic. Statistics of neighbouring steps resemble each other (shards, ramps, sorted
lengths), so the null is made by turning the needles round the run as a whole: that keeps their own spacing and the statistic's course.
"""

from __future__ import annotations

import numpy as np

from forensics.curves.event import Context, Event, Scan
from forensics.curves.grad_norm import usable
from forensics.curves.series import Series
from forensics.curves.trend import Floats, Ints

OFTEN = 0.005  # share of records with a needle above which they are frequent
LEAST = 8  # needles at steps with the statistic
TURNS = 999
SURE = 0.01  # over all statistics tried
LENGTHS = ("max_sequence_length", "batch_tokens", "sequence_length", "document_length")


def norm_spikes_by(ctx: Context) -> list[Event] | str:
    """Frequent needles, and the statistic of the batch that goes with them."""
    s = usable(ctx)
    if isinstance(s, str):
        return s
    if ctx.loss is None:
        return "the training loss was not logged"
    asked = _statistics(ctx)
    if not asked:
        return "neither row lengths, tokens per step nor shares of odd data or sources are known by step"
    scan = ctx.scan("grad_norm")
    if scan is None:
        return f"{len(s)} records of the gradient norm are too few"
    hot = np.flatnonzero((scan.z >= ctx.settings.norm.point) & (np.arange(len(scan.y)) >= scan.first))
    share = len(hot) / max(1, len(scan.y) - scan.first)
    if share <= OFTEN or len(hot) < LEAST or not _falls(ctx):
        return []
    tried = [(kind, name, *found) for kind, name, series in asked if (found := with_rank(scan.step, hot, series)) is not None]
    if not tried:
        return "no statistic of the batch was logged at the steps of the needles"
    kind, name, rho, p = min(tried, key=lambda t: (t[3], -t[2]))
    p = min(1.0, p * len(tried))
    return [_event(scan, hot, share, kind if p < SURE else "unexplained", {"rho": rho, "p": p, f"by/{name}": 1.0 if p < SURE else 0.0})]


def _statistics(ctx: Context) -> list[tuple[str, str, Series]]:
    """Statistics of the batch that vary, by what they would explain."""
    lengths = [("length", name, s.finite()) for name in LENGTHS if (s := ctx.curves.get(name)) is not None]
    odd = ctx.curves.get("odd_share")
    data = [("data", "odd_share", odd.finite())] if odd is not None else []
    data += [("data", f"source_share/{name}", s.finite()) for name, s in ctx.curves.starting("source_share/").items()]
    return [(kind, name, s) for kind, name, s in lengths + data if len(s) >= 100 and s.value.min() < s.value.max()]


def _falls(ctx: Context) -> bool:
    """Whether the loss ends under where it was judged first."""
    s = ctx.loss
    assert s is not None
    y = s.value[s.step >= ctx.judged_from]
    k = max(1, len(y) // 10)
    return len(y) >= 20 and float(np.median(y[-k:])) <= float(np.median(y[:k]))


def with_rank(step: Ints, hot: Ints, series: Series) -> tuple[float, float] | None:
    """Spearman's correlation of having a needle with a statistic, and its one-sided p; None where too few needles have the statistic.

    Args:
        step: int64 [n], of the norm's records.
        hot: indices of those with a needle.
        series: the statistic.
    """
    common, i, j = np.intersect1d(step, series.step, assume_unique=True, return_indices=True)
    mark = np.zeros(len(step), dtype=bool)
    mark[hot] = True
    at = np.flatnonzero(mark[i])
    n, m = len(common), len(at)
    if m < LEAST or m > n // 2:
        return None
    rank = ranks(series.value[j])
    spread = float(rank.std()) * float(np.sqrt(m / n * (1 - m / n)))
    if spread == 0:
        return None
    seen = float(rank[at].mean())
    turns = np.random.default_rng(0).integers(1, n, TURNS)
    beyond = sum(float(rank[(at + t) % n].mean()) >= seen - 1e-9 for t in turns.tolist())
    return (seen - float(rank.mean())) * (m / n) / spread, (1 + beyond) / (TURNS + 1)


def ranks(value: Floats) -> Floats:
    """Ranks from 1; equal values share their mean rank."""
    _, inverse, count = np.unique(value, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2.0)[inverse.reshape(-1)], dtype=np.float64)


def _event(scan: Scan, hot: Ints, share: float, kind: str, evidence: dict[str, float]) -> Event:
    tall = int(hot[np.argmax(scan.z[hot])])
    return Event(
        "grad_norm",
        "norm_spike",
        "notice",
        int(scan.step[hot[0]]),
        int(scan.step[hot[-1]]) + 1,
        int(scan.step[tall]),
        "none",
        float(np.exp(scan.y[tall]) - np.exp(scan.expected[tall])),
        float(scan.z[tall]),
        subcause=f"norm_spikes_{kind}",
        confidence="low" if kind == "unexplained" else "medium",
        evidence={"needles": float(len(hot)), "share_of_records": share, **evidence},
    )
