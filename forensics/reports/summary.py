"""What a case says, for a terminal: the same answer as the page's, with small plots. Control characters of strangers are visible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forensics.reports.base import number, percent, shown
from forensics.reports.series import Curve, read_curve
from forensics.reports.tables import Tables
from forensics.reports.terminal import plot, sparkline

WIDTH, SUSPECTS, INCIDENTS = 72, 8, 12


def summary_lines(tables: Tables, plain: bool = False) -> list[str]:
    """The summary of a case of any command; empty where there is nothing to say."""
    verdict = tables.case.json("verdict.json")
    if verdict:
        return [*verdict_lines(verdict), *_around(tables, verdict, plain), *_steps(tables, plain), *_suspects(tables), *_skip(tables, verdict)]
    found = tables.case.json("verdicts.json")
    if found:
        return [line for run in found.get("runs") or [] for line in _run(tables, run, plain)] + [_compared(c) for c in found.get("comparisons") or []]
    return _causes(tables)


def verdict_lines(verdict: dict[str, Any]) -> list[str]:
    """The answer, its evidence and the action, as printed after a replay."""
    cause = verdict["cause"] + (f" ({verdict['subcause']})" if verdict.get("subcause") else "")
    seen = ", ".join(f"{m['right']} of {m['of']} {m['on']}" for m in verdict.get("measured") or [])
    rate = f" (right in {seen} that were answered so)" if seen else ""
    out = [verdict["sentence"], f"severity {verdict['severity']}, cause {cause}, confidence {verdict['confidence']}{rate}"]
    out += [f"  for: {line}" for line in verdict["evidence_for"][:3]]
    out += [f"  against: {line}" for line in verdict["evidence_against"][:2]]
    return [shown(line) for line in [*out, f"do: {verdict['action']}"]]


def _around(tables: Tables, verdict: dict[str, Any], plain: bool) -> list[str]:
    """The loss around the window, with the window's bounds and the onset marked; the other curves in a line each."""
    metrics = tables.get("metrics")
    if metrics is None or not metrics.num_rows:
        return []
    spans = tables.roles(verdict)
    low, high = (min(a for a, _ in spans.values()), max(b for _, b in spans.values())) if spans else (None, None)
    loss = read_curve(metrics, "train_loss", None, low, high)
    out = []
    if loss is not None:
        window = spans.get("window")
        marks = sorted({*([window[0], window[1] - 1] if window else []), *([verdict["onset"]] if verdict.get("onset") is not None else [])})
        said = f"; ^ window {window[0]} to {window[1] - 1}" if window else ""
        out += ["", f"train_loss, steps {loss.step[0]} to {loss.step[-1]}{said}" + (f", onset {verdict['onset']}" if verdict.get("onset") is not None else "")]
        out += plot(loss.step.astype(float), loss.value, marks=[float(m) for m in marks], plain=plain, height=7, width=WIDTH)
    for name in ("grad_norm", "learning_rate"):
        curve = read_curve(metrics, name, None, low, high)
        if curve is not None:
            out.append(_line(name, curve, plain))
    return out


def _line(name: str, curve: Curve, plain: bool) -> str:
    known = curve.value[np.isfinite(curve.value)]
    ends = f"{number(float(known.min()))} to {number(float(known.max()))}" if len(known) else "no number"
    return f"{name:<15}{sparkline(curve.value, WIDTH - 15, plain)} {ends}"


def _steps(tables: Tables, plain: bool) -> list[str]:
    """Share of odd, flagged and copied tokens per step, in a line each."""
    table = tables.get("steps")
    if table is None or not table.num_rows:
        return []
    table = table.sort_by([("step", "ascending")])
    tokens = np.maximum(1, table["tokens"].to_numpy())
    out = []
    for name in ("odd", "flagged", "duplicate", "repeated"):
        column: Any = table[f"{name}_tokens"]
        share = np.asarray(column.cast("double").to_numpy(zero_copy_only=False), np.float64) / tokens
        if np.isfinite(share).any() and np.nanmax(share) > 0:
            out.append(f"{name + ' tokens':<17}{sparkline(share, WIDTH - 17, plain)} up to {percent(float(np.nanmax(share)))}")
    return ["", *out] if out else []


def _suspects(tables: Tables) -> list[str]:
    table = tables.get("suspects")
    if table is None or not table.num_rows:
        return []
    rows = table.slice(0, SUSPECTS).to_pylist()
    listed = [[r["rank"], r["label"], ", ".join(r["reasons"] or []), r["tokens_window"], r["excess"], percent(r["share"])] for r in rows]
    more = [f"({table.num_rows - SUSPECTS:,} more suspects)"] if table.num_rows > SUSPECTS else []
    return ["", *columns(["#", "suspect", "reasons", "tokens", "excess [nats]", "of excess"], listed), *more]


def _skip(tables: Tables, verdict: dict[str, Any]) -> list[str]:
    skip, back = verdict.get("skip") or {}, verdict.get("rollback") or {}
    out = []
    if back.get("step") is not None:
        out.append(f"roll back to the checkpoint of step {back['step']}")
    if skip.get("steps"):
        out.append("drop steps " + ", ".join(f"{a} to {b - 1}" for a, b in skip["steps"]))
    if skip.get("documents"):
        out.append(f"leave out {skip['documents']:,} documents")
    files = sorted((tables.case.path / "manifest").glob("*")) if (tables.case.path / "manifest").is_dir() else []
    return ["", *out, *([f"skip list: {', '.join(str(f) for f in files)}"] if files else [])] if out or files else []


def _run(tables: Tables, run: dict[str, Any], plain: bool) -> list[str]:
    """A run's curves: the loss with its alarms, then the incidents in a line each."""
    verdicts = run.get("verdicts") or []
    alarms = [v for v in verdicts if v["level"] == "alarm"]
    metrics = tables.get("metrics")
    loss = read_curve(metrics, "train_loss", run["run"]) if metrics is not None else None
    out = [
        f"{run['run']}: {counted(len(alarms), 'alarm')}, {counted(len(verdicts) - len(alarms), 'notice')}"
        + (f"; {run['summary']}" if run.get("summary") else "")
    ]
    if loss is not None:
        clip = 0.02 if len(loss.value) > 200 else 0.0
        out += plot(loss.step.astype(float), loss.value, marks=[float(v["start"]) for v in alarms], plain=plain, clip=clip, width=WIDTH)
    for v in [*alarms, *(v for v in verdicts if v["level"] != "alarm")][:INCIDENTS]:
        out.append(shown(f"{v['level']} {v['incident']}: {v['sentence']}"))
        out += [f"  do: {v['action']}"] if v["level"] == "alarm" and v["action"] else []
    return [*out, *([f"({len(verdicts) - INCIDENTS} more incidents)"] if len(verdicts) > INCIDENTS else []), ""]


def counted(n: int, name: str) -> str:
    """`1 alarm`, `2 alarms`."""
    return f"{n:,} {name}{'' if n == 1 else 's'}"


def _compared(c: dict[str, Any]) -> str:
    return shown(f"not compared: {c['not_evaluated']}" if "not_evaluated" in c else str(c["verdict"]))


def _causes(tables: Tables) -> list[str]:
    """Documents by primary cause, of an audit."""
    found, documents = tables.get("findings"), tables.get("documents")
    if found is None or documents is None:
        return []
    counts: dict[tuple[bool, str], int] = {}
    for row in found.filter(found["primary"]).select(["garbage", "cause"]).to_pylist():
        key = (not row["garbage"], row["cause"])
        counts[key] = counts.get(key, 0) + 1
    rows: list[list[object]] = [[cause, "reported" if other else "garbage", n] for (other, cause), n in sorted(counts.items(), key=lambda x: (x[0][0], -x[1]))]
    head = f"{sum(n for (other, _), n in counts.items() if not other):,} of {documents.num_rows:,} documents are garbage"
    return [head, *(["", *columns(["cause", "verdict", "documents"], rows)] if rows else [])]


def columns(head: Sequence[str], rows: Sequence[Sequence[object]], limit: int = 44) -> list[str]:
    """Aligned columns, numbers to the right, long texts cut."""
    cells = [[_cut(number(v), limit) for v in row] for row in rows]
    widths = [max(len(h), *(len(r[i]) for r in cells)) for i, h in enumerate(head)]
    right = [all(isinstance(r[i], (int, float)) or str(r[i]).endswith("%") or r[i] is None for r in rows) for i in range(len(head))]
    return ["  ".join(c.rjust(w) if n else c.ljust(w) for c, w, n in zip(line, widths, right, strict=True)).rstrip() for line in [list(head), *cells]]


def _cut(text: str, limit: int) -> str:
    flat = shown(text).replace("\n", "⏎")
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
