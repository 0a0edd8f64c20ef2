"""Curves around a window and composition per step, as specifications for the page's charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.reports.base import Page, card, escape
from forensics.reports.plots import legend, stacked
from forensics.reports.series import HALF_LIFE, Curve, Floats, ema, read_curve, thin, trend_band

if TYPE_CHECKING:
    from forensics.reports.tables import Tables

PANELS = (("train_loss", "training loss", "nats/token", 260), ("grad_norm", "gradient norm", "", 140), ("learning_rate", "learning rate", "", 110))
ROLES = {"window": "window asked about", "lookback": "look-back", "baseline": "baseline"}
MOST_COLUMNS, MOST_SOURCES = 160, 7


def curves(page: Page, tables: Tables, verdict: dict[str, Any]) -> str:
    """Loss, gradient norm and learning rate around the window, with roles, events, skips and checkpoints marked."""
    table = tables.get("metrics")
    if table is None:
        return ""
    if not table.num_rows:
        return card('<p class="none">The run description names no logs, so there is no curve to show: add `log:` or `metrics:`.</p>')
    spans = tables.roles(verdict)
    low, high = reach(spans)
    out, axes, missing = [], {"step"}, []
    for name, label, unit, height in PANELS:
        curve = read_curve(table, name, None, low, high)
        if curve is None:
            missing.append(label)
            continue
        axes |= set(curve.axes)
        lines, between, whole = _lines(curve, label, quiet(spans, verdict) if name == "train_loss" else None)
        out.append(f"<h3>{escape(label)}{f' [{unit}]' if unit else ''}</h3>" + page.chart(f"chart-{name}", f"{label} by step", {
            "x": whole.axes, "series": lines, "between": between, "bands": _bands(spans, verdict), "height": height,
            "marks": marks(tables, verdict, whole, labels=name == "train_loss"),
        }))  # fmt: skip
    gaps = f'<p class="none">Not logged around these steps: {escape(", ".join(missing))}.</p>' if missing else ""
    return card(axis_buttons(axes) + _keys(spans, verdict) + "".join(out) + gaps)


def quiet(spans: dict[str, tuple[int, int]], verdict: dict[str, Any]) -> tuple[int, int] | None:
    """The baseline up to the onset: a trend is learnt before the event only."""
    if "baseline" not in spans:
        return None
    start, stop = spans["baseline"]
    onset = verdict.get("onset")
    return start, stop if onset is None else max(start, min(stop, int(onset)))


def reach(spans: dict[str, tuple[int, int]]) -> tuple[int | None, int | None]:
    """Steps to show: all roles with some room."""
    if not spans:
        return None, None
    low, high = min(a for a, _ in spans.values()), max(b for _, b in spans.values())
    room = max(20, (high - low) // 10)
    return low - room, high + room


def _lines(curve: Curve, label: str, baseline: tuple[int, int] | None) -> tuple[list[dict[str, Any]], list[tuple[int, int]], Curve]:
    """The curve and, for the loss, its EMA and the trend's band; pairs of lines that bound a band; the drawn records."""
    places = thin(curve)
    drawn = curve.part(places)
    lines: list[dict[str, Any]] = [{"label": label, "values": drawn.value, "color": 0}]
    if label != PANELS[0][1]:
        return lines, [], drawn
    lines.append({"label": f"EMA, half-life {HALF_LIFE:.0f} steps", "values": ema(curve.step, curve.value)[places], "color": 1, "width": 2.5})
    band = trend_band(curve, *baseline) if baseline else None
    if band is None:
        return lines, [], drawn
    lines += [{"label": f"trend, {side} edge", "values": edge[places], "quiet": True} for side, edge in zip(("lower", "upper"), band, strict=True)]
    return lines, [(3, 2)], drawn


def axis_buttons(axes: set[str]) -> str:
    """Buttons for the axes that are known."""
    known = [k for k in ("step", "tokens", "time") if k in axes]
    if len(known) < 2:
        return ""
    buttons = "".join(f'<button type="button" data-axis="{k}" aria-pressed="{"true" if k == "step" else "false"}">{k}</button>' for k in known)
    return f'<div class="tools" role="group" aria-label="axis"><span class="soft small">axis</span>{buttons}</div>'


def _bands(spans: dict[str, tuple[int, int]], verdict: dict[str, Any]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = [{"start": a, "stop": b, "color": f"--{r}"} for r, (a, b) in spans.items() if r in ROLES]
    return out + [{"start": a, "stop": b, "hatch": True} for a, b in (verdict.get("skip") or {}).get("steps") or []]


def _keys(spans: dict[str, tuple[int, int]], verdict: dict[str, Any]) -> str:
    keys = [f'<span><i class="key" style="background:var(--{r})"></i>{n}</span>' for r, n in ROLES.items() if r in spans]
    if "baseline" in spans:
        keys.append('<span><i class="key" style="background:var(--trend)"></i>trend of the baseline ± 2 robust deviations</span>')
    if (verdict.get("skip") or {}).get("steps"):
        keys.append('<span><i class="key drop"></i>steps to drop</span>')
    return f'<div class="legend">{"".join(keys)}<span>short ticks below: checkpoints</span></div>'


def marks(tables: Tables, verdict: dict[str, Any], curve: Curve, labels: bool) -> list[dict[str, Any]]:
    """Onset, rollback, alarms, values that are no number, checkpoints: lines with a name each, inside the curve's steps."""
    low, high = int(curve.step[0]), int(curve.step[-1])
    found: list[dict[str, Any]] = []
    back = (verdict.get("rollback") or {}).get("step")
    if back is not None:
        found.append({"step": back, "color": "--accent", "dash": [7, 3], "label": "roll back to"})
    if verdict.get("onset") is not None:
        found.append({"step": verdict["onset"], "color": "--bad", "label": "onset"})
    events = [r for r in tables.rows("events") if r["level"] == "alarm" and low <= r["start"] <= high][:24]
    found += [{"step": r["start"], "color": "--warn", "dash": [2, 3], "label": str(r["shape"]).replace("_", " ")} for r in events]
    found += [{"step": s, "color": "--bad", "dash": [1, 2], "label": "no number"} for s in curve.unlogged()[:24]]
    found += [{"step": k, "color": "--soft", "tick": True} for k in tables.case.info.get("checkpoints", [])]
    shown = sorted((m for m in found if low <= m["step"] <= high), key=lambda m: int(m["step"]))
    return shown if labels else [{k: v for k, v in m.items() if k != "label"} for m in shown]


def composition(tables: Tables) -> str:
    """Share of each source per step, from `consumed` and `documents`."""
    consumed = tables.columns("consumed", ("step", "doc_key", "doc_start", "doc_stop"))
    documents = tables.columns("documents", ("doc_key", "source"))
    if consumed is None or documents is None or not consumed.num_rows or not documents.num_rows:
        return ""
    keys = documents["doc_key"].to_numpy()
    names, code = codes(documents["source"])
    tokens = (consumed["doc_stop"].to_numpy() - consumed["doc_start"].to_numpy()).astype(np.float32)
    source = code[np.minimum(np.searchsorted(keys, consumed["doc_key"].to_numpy()), len(keys) - 1)]
    step = consumed["step"].to_numpy()
    first, stop = int(step.min()), int(step.max()) + 1
    edges = np.unique(np.linspace(first, stop, min(stop - first, MOST_COLUMNS) + 1).astype(int))
    column = np.searchsorted(edges, step, side="right") - 1
    cell = np.bincount(source.astype(np.int64) * (len(edges) - 1) + column, weights=tokens, minlength=len(names) * (len(edges) - 1))
    table = cell.reshape(len(names), -1)
    whole = np.maximum(table.sum(axis=0), 1)
    top = np.argsort(-table.sum(axis=1), kind="stable")[:MOST_SOURCES]
    shares = {names[k]: table[k] / whole for k in top.tolist()}
    if len(names) > len(top):
        shares[f"{len(names) - len(top)} others"] = np.maximum(0, 1 - sum(shares.values()))
    brackets = [(a, b, ROLES[r].split(" ")[0]) for r, (a, b) in tables.roles({}).items() if r in ROLES]
    return card("<h3>share of tokens by source</h3>" + legend(list(shares)) + stacked(shares, edges.tolist(), "share of tokens by source and step", brackets))


def codes(column: Any) -> tuple[list[str], NDArray[np.int64]]:
    """Distinct names of a dictionary column and the number of each row's; rows without a name are `unknown`."""
    whole = column.cast(pa.string()).dictionary_encode() if not pa.types.is_dictionary(column.type) else column.unify_dictionaries()
    chunks: list[Any] = whole.chunks if isinstance(whole, pa.ChunkedArray) else [whole]
    names = [str(n) for n in chunks[0].dictionary.to_pylist()] if chunks else []
    indices = (
        np.concatenate([c.indices.fill_null(len(names)).to_numpy(zero_copy_only=False) for c in chunks]).astype(np.int64) if chunks else np.zeros(0, np.int64)
    )
    used = np.unique(indices)
    labels = [*names, "unknown"]
    order = sorted(used.tolist(), key=lambda k: labels[k])
    new = np.zeros(len(labels), np.int64)
    new[order] = np.arange(len(order))
    return [labels[k] for k in order], new[indices]


SHARES = (
    ("odd_tokens", "odd against the baseline", 1),
    ("flagged_tokens", "flagged by a detector", 3),
    ("duplicate_tokens", "duplicates", 2),
    ("repeated_tokens", "trained on before", 0),
)
LENGTHS = (("length_p50", "median", 0), ("length_p95", "95th percentile", 1), ("length_max", "longest", 2))
LOSSES = (("scored_loss", "seen", 0), ("expected_loss", "expected", 2), ("shift", "shift of ordinary documents", 1))


def per_step(page: Page, tables: Tables) -> str:
    """Odd, flagged, copied and repeated tokens, length quantiles, expected and seen loss, excess: per step."""
    table = tables.get("steps")
    if table is None or not table.num_rows:
        return ""
    table = table.sort_by([("step", "ascending"), ("launch", "ascending")])
    step = table["step"].to_numpy()
    last = np.append(np.diff(step) != 0, True)
    x = _axes(tables, step[last])
    roles = _bands(tables.roles({}), {})
    share = 1 / np.maximum(table["tokens"].to_numpy(), 1)

    def values(name: str) -> Floats:
        column: Any = table[name]
        found: Floats = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
        kept: Floats = (found * share if name.endswith("_tokens") else found)[last]
        return kept

    def chart(name: str, title: str, wanted: tuple[tuple[str, str, int], ...], **more: Any) -> str:
        found = {label: (values(c), color) for c, label, color in wanted}
        lines = [{"label": label, "values": v, "color": color} for label, (v, color) in found.items() if np.isfinite(v).any()]
        absent = [label for label, (v, _) in found.items() if not np.isfinite(v).any()]
        note = f'<p class="none small">Not known for these steps: {escape(", ".join(absent))}.</p>' if absent and lines else ""
        return f"<h3>{escape(title)}</h3>" + page.chart(name, title, {"x": x, "series": lines, "bands": roles, **more}) + note if lines else ""

    return card(
        chart("chart-share", "share of each step's tokens that are", SHARES, height=170, percent=True)
        + chart("chart-length", "length of the documents met [token]", LENGTHS, height=150, log=True)
        + chart("chart-expected", "loss of the documents, seen and expected [nats/token]", LOSSES, height=170)
        + chart("chart-excess", "excess loss of the step [nats, sum over tokens]", (("excess", "excess", 1),), height=130)
    )


def _axes(tables: Tables, step: NDArray[np.int64]) -> dict[str, Any]:
    """Steps on every axis that the log gives."""
    metrics = tables.get("metrics")
    curve = read_curve(metrics, "train_loss", None, int(step[0]), int(step[-1]) + 1) if metrics is not None and metrics.num_rows else None
    if curve is None or len(curve.step) < 2:
        return {"step": step}
    return {"step": step, **{n: np.interp(step, curve.step, v) for n, v in curve.axes.items() if n != "step"}}
