"""Losses of single sources where only their shares in each step are known: from a replay's tables, or logged.

A batch holds some of each source, and its mean loss is the share-weighted mean of theirs. Shares vary from batch to batch by chance, so over a stretch of steps
the loss regressed on them gives every source its own level. A source that is rare, or whose share hardly varies, gets a wide error and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from forensics.curves.event import Context, Event
from forensics.curves.series import Curves, Floats, Ints, Series
from forensics.curves.trend import line
from forensics.robust import mad_scale
from forensics.schemas import Consumed, Documents, Steps

PRIOR = 1.0  # nats/token by which a source may differ from the mean before it is looked at
WIDEST = 0.15  # nats/token: a level with a wider error is left out
PER_SOURCE = 15  # records in a stretch for each source
BEFORE = 10  # stretches that a level is compared with
SURE = 5.0  # standard errors


def source_shares(consumed: Consumed, documents: Documents) -> dict[str, Series]:
    """`source_share/<source>`: share of every source in the tokens that each step read; where a step was run twice, of its last launch."""
    known = documents.column("doc_key").to_numpy()
    order = np.argsort(known, kind="stable")
    keys = consumed.column("doc_key").to_numpy()
    at = np.minimum(np.searchsorted(known[order], keys), max(0, len(known) - 1))
    if not len(keys) or not len(known):
        return {}
    named = documents.column("source").cast(pa.string()).combine_chunks().dictionary_encode()
    labels = [str(x) for x in named.dictionary.to_pylist()]
    code = np.where(known[order][at] == keys, np.asarray(named.indices.fill_null(len(labels)).to_numpy(zero_copy_only=False))[order][at], len(labels))
    step, launch = consumed.column("step").to_numpy(), consumed.column("launch").to_numpy().astype(np.int64)
    tokens = consumed.column("doc_stop").to_numpy() - consumed.column("doc_start").to_numpy()
    steps, row = np.unique(step, return_inverse=True)
    last = np.full(len(steps), -1, dtype=np.int64)
    np.maximum.at(last, row, launch)
    mine = launch == last[row]
    sums = np.bincount(row[mine] * (len(labels) + 1) + code[mine], tokens[mine].astype(np.float64), len(steps) * (len(labels) + 1))
    table = sums.reshape(len(steps), len(labels) + 1)
    table = table / np.maximum(table.sum(axis=1, keepdims=True), 1.0)
    return {f"source_share/{n}": Series(f"source_share/{n}", steps, table[:, i].copy()) for i, n in enumerate([*labels, "unknown"]) if table[:, i].any()}


def step_statistics(steps: Steps) -> dict[str, Series]:
    """`odd_share` and `document_length` by step, as far as a replay measured them."""
    order = np.lexsort((steps.column("launch").to_numpy(), steps.column("step").to_numpy()))
    step = steps.column("step").to_numpy()[order]
    last = np.append(step[1:] != step[:-1], True) if len(step) else np.zeros(0, dtype=bool)
    read = {n: _floats(steps, n)[order][last] for n in ("odd_tokens", "tokens", "length_max")}
    with np.errstate(invalid="ignore", divide="ignore"):
        found = {"odd_share": read["odd_tokens"] / read["tokens"], "document_length": read["length_max"]}
    return {n: Series(n, step[last][ok], v[ok]) for n, v in found.items() if (ok := np.isfinite(v)).any()}


def _floats(table: pa.Table, name: str) -> Floats:
    return np.asarray(table.column(name).cast(pa.float64()).to_numpy(), dtype=np.float64)


def with_mix(curves: Curves, mix: Mapping[str, Series]) -> Curves:
    """Curves with what a replay knows of each step beside what was logged; what was logged stays."""
    return Curves(curves.run, {**mix, **curves.global_}, curves.ranks) if mix else curves


@dataclass(frozen=True)
class Stretches:
    """Levels of the sources by stretch.

    Attributes:
        names: sources. start, stop: int64 [m], steps, half-open.
        level, error: float64 [m, sources], NaN where a level is not known.
    """

    names: list[str]
    start: Ints
    stop: Ints
    level: Floats
    error: Floats


def shares_of(ctx: Context) -> tuple[list[str], Ints, Floats] | str:
    """Names, steps and shares [n, sources] at steps where all shares are known; made of logged token counts where those were logged instead."""
    found = ctx.curves.starting("source_share/") or ctx.curves.starting("source_tokens/")
    if len(found) < 2:
        return "the shares of two sources in each step are not known: give a replay's case with `--case`"
    names = list(found)
    step = np.unique(np.concatenate([s.step for s in found.values()]))
    table = np.zeros((len(step), len(names)))
    for i, n in enumerate(names):
        table[np.searchsorted(step, found[n].step), i] = np.nan_to_num(found[n].value)
    total = table.sum(axis=1, keepdims=True)
    keep = total[:, 0] > 0
    return names, step[keep], table[keep] / total[keep]


def by_source(ctx: Context) -> Stretches | str:
    """Regress the loss on the shares, stretch by stretch."""
    shares = shares_of(ctx)
    if isinstance(shares, str):
        return shares
    if ctx.loss is None:
        return "the training loss was not logged"
    names, at, share = shares
    step, i, j = np.intersect1d(at, ctx.loss.step, assume_unique=True, return_indices=True)
    width = max(50, PER_SOURCE * len(names))
    if len(step) < 2 * width:
        return f"{len(step)} steps have a loss and known shares, {2 * width} are needed for {len(names)} sources"
    share, y = share[i], ctx.loss.value[j]
    edges = np.arange(0, len(step) - width + 1, width)
    level, error = np.full((len(edges), len(names)), np.nan), np.full((len(edges), len(names)), np.inf)
    for k, a in enumerate(edges.tolist()):
        level[k], error[k] = _levels(share[a : a + width], y[a : a + width])
    level[error > WIDEST] = np.nan
    return Stretches(names, step[edges], step[edges + width - 1] + 1, level, error)


def _levels(share: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Ridge towards the mean loss of the stretch, with Huber weights against batches that are odd in themselves; levels and standard errors."""
    mean = float(np.median(y))
    w = np.ones(len(y))
    mu, s = np.zeros(share.shape[1]), max(mad_scale(y), 1e-6)
    gram: Floats = np.eye(share.shape[1])
    for _ in range(4):
        gram = np.asarray(np.linalg.inv((share * w[:, None]).T @ share + (s / PRIOR) ** 2 * np.eye(share.shape[1])), dtype=np.float64)
        mu = gram @ (share.T @ (w * (y - mean)))
        r = y - mean - share @ mu
        s = max(mad_scale(r) * float(np.sqrt(len(y) / max(1, len(y) - share.shape[1]))), 1e-6)
        w = 1.0 / np.maximum(1.0, np.abs(r) / (2.5 * s))
    return mean + mu, s * np.sqrt(np.diag(gram))


def regressed(ctx: Context) -> dict[str, Series]:
    """`regressed_loss/<source>` at the last step of every stretch; empty where the losses by source were logged or cannot be regressed."""
    found = by_source(ctx) if not ctx.curves.starting("train_loss/") else "logged"
    if isinstance(found, str):
        return {}
    out = {}
    for i, name in enumerate(found.names):
        ok = np.isfinite(found.level[:, i])
        if ok.any():
            out[f"regressed_loss/{name}"] = Series(f"regressed_loss/{name}", found.stop[ok] - 1, found.level[ok, i])
    return out


def regressed_domains(ctx: Context) -> list[Event] | str:
    """Sources whose regressed loss leaves its own trend while others stay (rule 6)."""
    if ctx.curves.starting("train_loss/"):
        return "losses by source were logged: nothing to regress"
    found = by_source(ctx)
    if isinstance(found, str):
        return found
    if len(found.start) < 5:
        return f"{len(found.start)} stretches of known shares, at least 5 are needed"
    moved = [(name, e) for i, name in enumerate(found.names) for e in _moves(found, i)]
    for name, e in moved:
        others = {n for n, o in moved if n != name and o.start <= e.last and o.last >= e.start}
        share = (len(others) + 1) / len(found.names)
        e.evidence["sources_that_move"] = share
        e.subcause = "domain_event" if share <= 1 / 3 or not others else ("global_event" if share > 0.5 else None)
    return [e for _, e in moved]


def _moves(found: Stretches, i: int) -> list[Event]:
    """Stretches in which a source stands off the line of its calm stretches before."""
    x, y, se = np.log(found.stop.astype(np.float64)), found.level[:, i], found.error[:, i]
    calm: list[int] = []
    events: list[Event] = []
    opened = -2
    for t in range(len(y)):
        if not np.isfinite(y[t]):
            continue
        before = np.array(calm[-BEFORE:], dtype=np.int64)
        if len(before) < 4:
            calm.append(t)
            continue
        cut, slope = line(x[before], y[before])
        own = y[before] - cut - slope * x[before]
        spread = float(((x[before] - x[before].mean()) ** 2).sum())
        noise = max(mad_scale(own), float(np.median(se[before])))
        error = float(np.hypot(se[t], noise * np.sqrt(1 / len(before) + (x[t] - x[before].mean()) ** 2 / max(spread, 1e-12))))
        off = float(y[t] - cut - slope * x[t])
        if abs(off) < max(SURE * error, 0.02):
            calm.append(t)
        elif opened == t - 1 and events and (events[-1].height or 0.0) * off > 0:
            opened, events[-1].stop = t, int(found.stop[t])
            if abs(off) > abs(events[-1].height or 0.0):
                events[-1].height, events[-1].sigma, events[-1].peak = off, abs(off) / error, int(found.stop[t]) - 1
        else:
            opened = t
            events.append(_event(found, i, t, off, error))
    return events


def _event(found: Stretches, i: int, t: int, off: float, error: float) -> Event:
    return Event(
        f"regressed_loss/{found.names[i]}",
        "spike" if off > 0 else "dip",
        "notice",
        int(found.start[t]),
        int(found.stop[t]),
        int(found.stop[t]) - 1,
        "unknown",
        off,
        abs(off) / error,
        confidence="medium",
        evidence={"level": float(found.level[t, i]), "standard_error": error},
    )
