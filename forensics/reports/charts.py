"""Curves around a window and composition per step, as specifications for the page's charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forensics.reports.base import Page, card, escape
from forensics.reports.plots import legend, stacked

if TYPE_CHECKING:
    from forensics.reports.replay import Tables

PANELS = (("train_loss", "training loss", "nats/token"), ("grad_norm", "gradient norm", ""), ("learning_rate", "learning rate", ""))
MOST_POINTS = 4000
HALF_LIFE = 20.0
ROLES = {"window": "--band", "lookback": "--band3", "baseline": "--band2"}


def curves(page: Page, tables: Tables, verdict: dict[str, Any]) -> str:
    """Loss, gradient norm and learning rate around the window, with roles, events, skips and checkpoints marked."""
    table = tables.get("metrics")
    if table is None or not table.num_rows:
        return ""
    spans = roles(tables, verdict)
    out = [f'<div class="tools">{_axes(table)}</div>', _keys()]
    for name, label, unit in PANELS:
        series = read_series(table, name, spans)
        if series is None:
            out.append(f'<p class="none">{escape(label)} was not logged.</p>')
            continue
        x, value = series
        lines = [{"label": label, "values": value, "color": 0}]
        if name == "train_loss":
            lines.append({"label": f"EMA (half-life {HALF_LIFE:.0f} steps)", "values": ema(x["step"], value), "color": 1, "width": 2})
        out.append(f"<h3>{escape(label)}</h3>" + page.chart(f"chart-{name}", f"{label} by step", {
            "x": x, "series": lines, "unit": unit, "bands": [{"start": a, "stop": b, "color": ROLES[r]} for r, (a, b) in spans.items() if r in ROLES],
            "marks": _marks(tables, verdict, x["step"]), "height": 230 if name == "train_loss" else 130,
        }))  # fmt: skip
    return card("".join(out))


def roles(tables: Tables, verdict: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Half-open steps of each role."""
    found = {r: (int(a), int(b)) for r, text in (tables.case.info.get("ranges") or {}).items() if ":" in str(text) for a, b in [str(text).split(":")]}
    window = verdict.get("window")
    return found or ({"window": (int(window[0]), int(window[1]))} if window else {})


def read_series(table: pa.Table, name: str, spans: dict[str, tuple[int, int]]) -> tuple[dict[str, Any], NDArray[np.float64]] | None:
    """A metric's global values around the roles, the last launch's where a step was logged twice, thinned to extremes."""
    mine = table.filter(pc.equal(table["metric"].cast(pa.string()), pa.scalar(name)))
    mine = mine.filter(pa.array(np.asarray(mine["rank"].is_null())))
    if not mine.num_rows:
        return None
    step, value = mine["step"].to_numpy(), mine["value"].to_numpy()
    if spans:
        low, high = min(a for a, _ in spans.values()), max(b for _, b in spans.values())
        room = max(20, (high - low) // 10)
        keep = (step >= low - room) & (step < high + room)
        mine, step, value = mine.filter(pa.array(keep)), step[keep], value[keep]
    if not len(step):
        return None
    order = np.argsort(step, kind="stable")
    last = np.append(np.diff(step[order]) != 0, True)
    order = order[last][_thin(value[order][last])]
    tokens = mine["tokens"].to_numpy(zero_copy_only=False)[order] if mine["tokens"].null_count < mine.num_rows else None
    time = mine["time"].cast(pa.int64()).to_numpy(zero_copy_only=False)[order] / 1e6 if mine["time"].null_count < mine.num_rows else None
    x = {"step": step[order], **({"tokens": tokens} if tokens is not None else {}), **({"time": time} if time is not None else {})}
    return x, value[order]


def _thin(value: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places kept: all, or the lowest and highest of every bucket."""
    n = len(value)
    if n <= MOST_POINTS:
        return np.arange(n)
    edges = np.linspace(0, n, MOST_POINTS // 2 + 1).astype(int)
    keep = {0, n - 1}
    for a, b in zip(edges, edges[1:], strict=False):
        part = np.nan_to_num(value[a:b], nan=0.0)
        keep |= {a + int(part.argmin()), a + int(part.argmax())}
    return np.array(sorted(keep))


def ema(step: NDArray[np.int64], value: NDArray[np.float64]) -> NDArray[np.float64]:
    """Exponential mean by half-life in steps, start-up corrected; NaN is passed over."""
    out = np.empty(len(value))
    total = weight = 0.0
    last = int(step[0]) if len(step) else 0
    for i, (s, v) in enumerate(zip(step.tolist(), value.tolist(), strict=True)):
        fade = 0.5 ** ((s - last) / HALF_LIFE)
        if np.isfinite(v):
            a = 1 - 0.5 ** (max(1, s - last) / HALF_LIFE)
            total, weight = total * fade + a * v, weight * fade + a
        out[i] = total / weight if weight else np.nan
        last = s
    return out


def _axes(table: pa.Table) -> str:
    known = ["step", *(["tokens"] if table["tokens"].null_count < table.num_rows else []), *(["time"] if table["time"].null_count < table.num_rows else [])]
    return "".join(f'<button type="button" data-axis="{k}" aria-pressed="{"true" if k == "step" else "false"}">{k}</button>' for k in known)


def _keys() -> str:
    keys = [("window asked about", "var(--band)"), ("look-back", "var(--band3)"), ("baseline", "var(--band2)")]
    lines = "".join(f'<span><i class="key" style="background:{c}"></i>{n}</span>' for n, c in keys)
    return f'<div class="legend">{lines}<span>│ onset</span><span>┆ events</span><span>╷ ticks at the top: checkpoints; dashed: steps to drop</span></div>'


def _marks(tables: Tables, verdict: dict[str, Any], step: NDArray[np.int64]) -> list[dict[str, Any]]:
    low, high = int(step[0]), int(step[-1])
    marks: list[dict[str, Any]] = []
    if verdict.get("onset") is not None:
        marks.append({"step": verdict["onset"], "color": "--bad"})
    marks += [{"step": r["start"], "color": "--warn", "dash": [3, 4]} for r in tables.rows("events") if r["level"] == "alarm"][:40]
    for a, b in (verdict.get("skip") or {}).get("steps") or []:
        marks += [{"step": a, "color": "--c4", "dash": [6, 3]}, {"step": b, "color": "--c4", "dash": [6, 3]}]
    marks += [{"step": k, "color": "--soft", "tick": True} for k in tables.case.info.get("checkpoints", [])]
    return [m for m in marks if low <= m["step"] <= high]


def composition(tables: Tables) -> str:
    """Share of each source per step, from `consumed` and `documents`."""
    consumed, documents = tables.get("consumed"), tables.get("documents")
    if consumed is None or documents is None or not consumed.num_rows:
        return ""
    keys, source = documents["doc_key"].to_numpy(), documents["source"].cast(pa.string()).to_pylist()
    names, code = np.unique(np.array([str(s) for s in source]), return_inverse=True)
    tokens = (consumed["doc_stop"].to_numpy() - consumed["doc_start"].to_numpy()).astype(float)
    at = np.searchsorted(keys, consumed["doc_key"].to_numpy())
    total = np.bincount(code, weights=np.bincount(at, weights=tokens, minlength=len(keys)), minlength=len(names))
    top = np.argsort(-total)[:7]
    step = consumed["step"].to_numpy()
    first, stop = int(step.min()), int(step.max()) + 1
    edges = np.unique(np.linspace(first, stop, min(stop - first, 160) + 1).astype(int))
    column = np.clip(np.searchsorted(edges, step, side="right") - 1, 0, len(edges) - 2)
    whole = np.maximum(np.bincount(column, weights=tokens, minlength=len(edges) - 1), 1)
    shares = {str(names[k]): np.bincount(column, weights=tokens * (code[at] == k), minlength=len(edges) - 1) / whole for k in top}
    if len(names) > len(top):
        shares["others"] = np.maximum(0, 1 - sum(shares.values()))
    marks = [(a, b, r) for r, (a, b) in roles(tables, {}).items() if r != "after"]
    return card("<h3>share of tokens by source</h3>" + legend(list(shares)) + stacked(shares, edges.tolist(), "share of tokens by source and step", marks))


def per_step(page: Page, tables: Tables) -> str:
    """Length quantiles, flagged and repeated tokens, excess per step."""
    table = tables.get("steps")
    if table is None or not table.num_rows:
        return ""
    x = {"step": table["step"].to_numpy()}
    share = 1 / np.maximum(table["tokens"].to_numpy(), 1)

    def values(name: str, scale: NDArray[np.float64] | float = 1.0) -> NDArray[np.float64]:
        column: Any = table[name]
        found: NDArray[np.float64] = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
        return found * scale

    out = "<h3>share of tokens that are odd, flagged, duplicates, or were trained on before</h3>" + page.chart("chart-share", "shares of tokens by step", {
        "x": x, "unit": "share", "height": 150,
        "series": [{"label": n.removesuffix("_tokens"), "values": values(n, share), "color": c} for n, c in (("odd_tokens", 1), ("flagged_tokens", 3), ("duplicate_tokens", 2), ("repeated_tokens", 6))],
    })  # fmt: skip
    out += "<h3>length of the documents met</h3>" + page.chart("chart-length", "length quantiles by step", {
        "x": x, "unit": "token", "height": 140, "log": True,
        "series": [{"label": n, "values": np.maximum(values(c), 1), "color": i} for i, (n, c) in enumerate((("median", "length_p50"), ("95 %", "length_p95"), ("longest", "length_max")))],
    })  # fmt: skip
    if table["expected_loss"].null_count < table.num_rows:
        out += "<h3>loss of the documents, expected and seen</h3>" + page.chart("chart-expected", "expected and scored loss by step", {
            "x": x, "unit": "nats/token", "height": 150, "series": [{"label": "seen", "values": values("scored_loss"), "color": 0}, {"label": "expected", "values": values("expected_loss"), "color": 2}, {"label": "shift of ordinary documents", "values": values("shift"), "color": 1}],
        })  # fmt: skip
    return card(out)
