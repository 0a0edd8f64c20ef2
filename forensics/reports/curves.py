"""The report of training curves: incidents first, then the four panels with their gaps, a second run beside it, what was not judged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from forensics.case import Case
from forensics.curves.names import METRICS as KNOWN
from forensics.reports.base import Page, card, code, escape, facts, items, number, percent, prose, static_table
from forensics.reports.charts import axis_buttons
from forensics.reports.parts import failures
from forensics.reports.series import Curve, read_curve, thin
from forensics.reports.summary import counted
from forensics.reports.tables import Tables, absent

TONE = {"diverging": "bad", "level_shift": "bad", "slow": "warn", "unknown": "warn", "returned": "good", "none": "good"}
PANELS = ("quality", "stability", "performance", "resources")
MOST_CHARTS, MOST_LINES, POINTS, MOST_INCIDENTS = 8, 7, 1600, 200
ROOM = 50  # steps around an incident of which every record is drawn
BOOKKEEPING = ("consumed_samples", "consumed_tokens", "elapsed_time", "epoch", "recorded")
START_UP = 0.03  # of the records of a run that are not let decide how high a chart is
FIRST = ("train_loss", "eval_loss", "grad_norm", "learning_rate", "loss_scale", "tokens_per_second", "step_time", "memory_peak")


def write_curves(case: Case, path: Path | None = None, known: Mapping[str, pa.Table] | None = None) -> Path:
    """`report.html` of a case that `forensics curves` made; `known`: tables of it that are in memory already."""
    tables = Tables(case, known)
    found: dict[str, Any] = case.json("verdicts.json") or {}
    runs = found.get("runs") or []
    page = Page("forensics curves", ", ".join([str(r["run"]) for r in runs] + [f"against {r['run']}" for r in found.get("against") or []]) or "no run")
    page.section(
        "answer", "Answer", "".join(answer(r) for r in runs) or card('<p class="none">This case holds no <code>verdicts.json</code>.</p>'), titled=False
    )
    page.section("incidents", "Incidents", "".join(incidents(r, len(runs) > 1) for r in runs))
    if found.get("comparisons"):
        page.section("comparison", "Two runs", comparison(page, tables, found))
    page.section("panels", "Panels", panels(page, tables, found))
    page.section("open", "Not judged", "".join(not_judged(r) for r in runs) or absent(tables, "not_evaluated"))
    page.section("made", "How this was made", made(tables, found))
    return page.write(path or case.path / "report.html")


def answer(run: dict[str, Any]) -> str:
    """How many incidents, the worst in words, and what that means in short."""
    verdicts = run.get("verdicts") or []
    alarms = [v for v in verdicts if v["level"] == "alarm"]
    worst = (alarms or verdicts)[:1]
    count = f"{counted(len(alarms), 'alarm')} and {counted(len(verdicts) - len(alarms), 'notice')}"
    title = f"{count} on {run['run']}" if verdicts else f"No incident on the curves of {run['run']}"
    badges = [f'<span class="badge">{escape(run["summary"])}</span>'] if run.get("summary") else []
    if worst:
        severity = str(worst[0]["severity"])
        badges.insert(0, f'<span class="badge {TONE.get(severity, "")}">first alarm <b>{escape(severity.replace("_", " "))}</b></span>' if alarms else "")
    first = ""
    if worst:
        replay = code(worst[0]["replay"]) if worst[0].get("replay") else ""
        first = card(
            f"<h2>{'The first alarm' if alarms else 'The first notice'}</h2><p>{prose(worst[0]['sentence'])}</p><p><b>Do:</b> {prose(worst[0]['action'] or 'nothing')}</p>{replay}",
            "act",
        )
    again = card(f"<h3>it comes back</h3><p>{prose(_words(run['recurrent']))}</p>") if run.get("recurrent") else ""
    return f'<h1>{escape(title)}</h1><div class="badges">{"".join(badges)}</div>{first}{again}'


def _words(value: Any) -> str:
    return "; ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def incidents(run: dict[str, Any], named: bool) -> str:
    """Every incident: what, what to do, the command that asks about the data, and a button that shows it on the charts."""
    verdicts = run.get("verdicts") or []
    head = f"<h3>{escape(run['run'])}</h3>" if named else ""
    if not verdicts:
        return card(head + '<p class="none">No rule found anything; which rules could not be applied stands below.</p>')
    out = []
    for v in verdicts[:MOST_INCIDENTS]:
        room = max(ROOM, 2 * (v["stop"] - v["start"]))
        rows: list[tuple[str, object]] = [
            ("severity", str(v["severity"]).replace("_", " ") if v["severity"] else None),
            ("cause", " ".join(str(x) for x in (v["cause"], f"({v['subcause']})" if v["subcause"] else "") if x)),
            ("confidence", v["confidence"]), ("moved with it", ", ".join(v["moved"])), ("recovery", str(v["recovery_kind"]).replace("_", " ") if v["recovery_kind"] else None),
            ("nearest checkpoint before", v["checkpoint"]), ("progress lost", f"{number(v['cost'], 0)} steps" if v["cost"] else None),
            ("does a rollback pay", None if v["rollback_pays"] is None else "yes" if v["rollback_pays"] else "no"),
        ]  # fmt: skip
        body = f"<p>{prose(v['sentence'])}</p><p><b>Do:</b> {prose(v['action'] or 'nothing')}</p>{code(v['replay']) if v['replay'] else ''}{facts(rows)}"
        button = f'<button type="button" data-zoom="{v["start"] - room}:{v["stop"] + room}">Show on the charts</button>'
        tone = "▲ alarm" if v["level"] == "alarm" else "notice"
        summary = f"{tone} {v['incident']}: {str(v['shape']).replace('_', ' ')} of {v['metric']}, steps {v['start']:,} to {v['stop'] - 1:,}"
        out.append(f'<details id="incident-{v["incident"]}"><summary>{escape(summary)}</summary>{body}<p>{button}</p></details>')
    more = f'<p class="soft small">{len(verdicts) - MOST_INCIDENTS:,} more in <code>verdicts.json</code>.</p>' if len(verdicts) > MOST_INCIDENTS else ""
    return card(head + "".join(out) + more)


def panels(page: Page, tables: Tables, found: dict[str, Any]) -> str:
    """The four panels: charts of what was logged, and which of the minimal curves are missing and why they matter."""
    metrics = tables.get("metrics")
    if metrics is None:
        return absent(tables, "metrics")
    runs = [r["run"] for r in [*(found.get("runs") or []), *(found.get("against") or [])]] or [str(n) for n in metrics["run"].unique().to_pylist()]
    logged = sorted(str(n) for n in metrics["metric"].unique().to_pylist())
    families = _families(logged)
    axes: set[str] = set()
    out = []
    for panel in PANELS:
        charts: list[str] = []
        flat: list[str] = []
        names = [n for n in families.get(panel, []) if n not in BOOKKEEPING]
        for name in names:
            curves = read_curves(metrics, name, runs, logged)
            if said := constant(name, curves):
                flat.append(said)
            elif curves and len(charts) < MOST_CHARTS:
                html, known = chart(page, tables, name, curves, found)
                charts.append(html)
                axes |= known
        left = len(names) - len(charts) - len(flat)
        notes = (f'<p class="soft small">Without change: {escape("; ".join(flat))}.</p>' if flat else "") + (
            f'<p class="soft small">{left} more metrics in <code>tables/metrics.parquet</code>.</p>' if left > 0 else ""
        )
        body = f'<div class="charts">{"".join(charts)}</div>' if charts else "" if flat else '<p class="none">Nothing of this panel was logged.</p>'
        out.append(card(f"<h2>{panel}</h2>{body}{notes}{_gaps(found, panel)}"))
    tools = axis_buttons(axes)
    whole = '<button type="button" data-zoom="all">Whole run</button><span class="soft small">drag across a chart to zoom</span>'
    tools = tools.replace("</div>", f"{whole}</div>") if tools else f'<div class="tools">{whole}</div>'
    return tools + "".join(out)


def _families(logged: list[str]) -> dict[str, list[str]]:
    """Base names of the metrics of each panel that were logged, the most telling first."""
    names = {n.split("/")[0] for n in logged}
    order = sorted((n for n in names if n in KNOWN), key=lambda n: (FIRST.index(n) if n in FIRST else len(FIRST), list(KNOWN).index(n)))
    return {panel: [n for n in order if KNOWN[n].panel == panel] for panel in PANELS}


def _gaps(found: dict[str, Any], panel: str) -> str:
    said = {f"{m['what']}: {m['why']}" for r in found.get("runs") or [] for p in r.get("panels") or [] if p["panel"] == panel for m in p["missing"]}
    return "<h3>missing</h3>" + items(sorted(said)) if said else ""


def read_curves(metrics: pa.Table, name: str, runs: list[str], logged: list[str]) -> dict[str, Curve]:
    """A metric of every run, or the members of its family among those logged, by what the legend calls them."""
    members = [m for m in logged if m == name or m.startswith(f"{name}/")][:MOST_LINES]
    curves: dict[str, Curve] = {}
    for run in runs:
        for member in members:
            curve = read_curve(metrics, member, run)
            if curve is not None and len(curves) < MOST_LINES:
                label = member.removeprefix(f"{name}/") if len(members) > 1 else name.replace("_", " ")
                curves[f"{run}: {label}" if len(runs) > 1 else label] = curve
    return curves


def constant(name: str, curves: dict[str, Curve]) -> str:
    """What a metric without change says in words; empty where it moves."""
    values = np.concatenate([c.value for c in curves.values()]) if curves else np.zeros(0)
    if not len(values) or not (values == values[0]).all():
        return ""
    return f"{name.replace('_', ' ')} {number(float(values[0]))}" + (
        f" (one record, step {int(next(iter(curves.values())).step[0]):,})" if len(values) == 1 else ""
    )


def chart(page: Page, tables: Tables, name: str, curves: dict[str, Curve], found: dict[str, Any]) -> tuple[str, set[str]]:
    """One chart with its events and, on the loss, the incidents' steps; and the axes it knows."""
    near = [
        (v["start"] - ROOM, v["stop"] + ROOM) for r in found.get("runs") or [] for v in sorted(r.get("verdicts") or [], key=lambda v: v["level"] != "alarm")
    ]
    x, values = joined([c.part(thin(c, POINTS, near)) for c in curves.values()])
    sparse = len(x["step"]) < 60
    lines = [
        {"label": label, "values": v, "color": i, "span": True, "points": sparse or len(c.step) * 8 < len(x["step"])}
        for i, ((label, c), v) in enumerate(zip(curves.items(), values, strict=True))
    ]
    known, large = KNOWN[name], name == "train_loss"
    bands = _bands(found, x["step"]) if large else []
    spec: dict[str, Any] = {"x": x, "series": lines, "height": 250 if large else 140, "marks": _marks(tables, name, x["step"], found), "bands": bands}
    top = ceiling(list(curves.values()))
    note = ""
    if top is not None:
        spec["top"], note = top, f' <span class="soft small">the start-up goes up to {number(max(float(np.nanmax(c.value)) for c in curves.values()))}</span>'
    key = ""
    if bands:
        key = '<div class="legend"><span><i class="key" style="background:var(--window)"></i>alarms</span><span><i class="key" style="background:var(--baseline)"></i>notices</span><span>above: number of the incident and shape</span></div>'
    unit = f" [{known.unit}]" if known.unit not in ("", "1") else ""
    head = f'<h3 title="{escape(known.doc)}">{escape(name.replace("_", " ") + unit)}{note}</h3>'
    return f"<div{' class=wide' if large else ''}>{head}{key}{page.chart(f'chart-{name}', f'{name} by step', spec)}</div>", set(x)


def ceiling(curves: list[Curve]) -> float | None:
    """Upper end of a chart where the start-up alone would flatten the rest; None where all fits."""
    high, whole, low = -np.inf, -np.inf, np.inf
    for c in curves:
        known = c.value[np.isfinite(c.value)]
        if len(known) < 200 or c.step[0] > 0.01 * c.step[-1]:
            return None
        late = known[int(START_UP * len(known)) :]
        high, whole, low = max(high, float(late.max())), max(whole, float(known.max())), min(low, float(late.min()))
    return high + 0.08 * (high - low) if whole - low > 2 * (high - low) else None


def joined(curves: list[Curve]) -> tuple[dict[str, Any], list[Any]]:
    """Several curves over the steps that any of them has, NaN where one has no record."""
    step = np.unique(np.concatenate([c.step for c in curves]))
    values = []
    for c in curves:
        v = np.full(len(step), np.nan)
        v[np.searchsorted(step, c.step)] = c.value
        values.append(v)
    axes: dict[str, Any] = {"step": step}
    first = curves[0]
    if len(first.step) > 1 and first.step[0] <= step[0] and first.step[-1] >= step[-1]:
        axes |= {n: np.interp(step, first.step, v) for n, v in first.axes.items() if n != "step"}
    return axes, values


def _marks(tables: Tables, name: str, step: Any, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Starts of the asked-about runs' events on a metric, named by incident and shape."""
    mine = {r["run"] for r in found.get("runs") or []}
    rows = [r for r in tables.rows("events") if str(r["metric"]).split("/")[0] == name and step[0] <= r["start"] <= step[-1] and (not mine or r["run"] in mine)]
    rows = sorted(rows, key=lambda r: (r["level"] != "alarm", r["start"]))[:40]
    colour = {"alarm": "--bad", "notice": "--soft"}
    verdicts = [(r["run"], v) for r in found.get("runs") or [] for v in r.get("verdicts") or []]
    marks = []
    for r in rows:
        near = [v for run, v in verdicts if run == r["run"] and v["start"] <= r["start"] < max(v["stop"], v["start"] + 1)]
        name_ = f"{min(near, key=lambda v: r['start'] - v['start'])['incident']} " if near else ""
        dash = [] if r["level"] == "alarm" else [2, 3]
        marks.append({"step": r["start"], "color": colour.get(r["level"], "--soft"), "dash": dash, "label": name_ + str(r["shape"]).replace("_", " ")})
    return sorted(marks, key=lambda m: int(m["step"]))


def _bands(found: dict[str, Any], step: Any) -> list[dict[str, Any]]:
    """Steps of the incidents on the loss, but for those that fill most of the chart."""
    widest = 0.3 * (int(step[-1]) - int(step[0]))
    verdicts = [v for r in (found.get("runs") or [])[:1] for v in r.get("verdicts") or [] if v["metric"].startswith(("train_loss", "eval_loss"))]
    shown = [v for v in verdicts if v["start"] <= step[-1] and (v["level"] == "alarm" or v["stop"] - v["start"] < widest)][:80]
    return [{"start": v["start"], "stop": v["stop"], "color": "--window" if v["level"] == "alarm" else "--baseline"} for v in shown]


def comparison(page: Page, tables: Tables, found: dict[str, Any]) -> str:
    """Do two runs read the same batches, which peaks are common, and their difference."""
    out = []
    for n, c in enumerate(found["comparisons"]):
        if "not_evaluated" in c:
            out.append(card(f'<p class="none">Not compared: {prose(c["not_evaluated"])}.</p>'))
            continue
        rows: list[tuple[str, object]] = [
            ("common steps", c["steps"]), ("numbering of the second ahead by", f"{c['lag']} steps" if c["lag"] else None), ("correlation of residuals", f"{number(c['r'], 3)} ± {number(c['error'], 3)}"),
            ("peaks of both: the batch", _steps(c["common"])), (f"peaks of {c['a']} alone: its state", _steps(c["only_a"])), (f"peaks of {c['b']} alone: its state", _steps(c["only_b"])),
            ("noise removed by the difference", f"{number(c['gain'], 1)} times" if c["gain"] else None),
        ]  # fmt: skip
        stretches = [[s["start"], s["stop"] - 1, "same batches" if s["agree"] else "different batches", s["r"]] for s in c["stretches"][:60]]
        table = "<h3>order of the batches</h3>" + static_table(["from step", "to", "order", "correlation"], stretches) if stretches else ""
        out.append(card(f"<p><b>{prose(c['verdict'])}</b></p>{facts(rows)}{_difference(page, tables, c, n)}{table}"))
    return "".join(out)


def _steps(steps: list[int]) -> str | None:
    return None if not steps else ", ".join(f"{s:,}" for s in steps[:20]) + (f" and {len(steps) - 20:,} more" if len(steps) > 20 else "")


def _difference(page: Page, tables: Tables, c: dict[str, Any], number_: int) -> str:
    metrics = tables.get("metrics")
    a, b = (read_curve(metrics, "train_loss", c[k]) if metrics is not None else None for k in ("a", "b"))
    if a is None or b is None:
        return ""
    common, at, bt = np.intersect1d(a.step, b.step - c["lag"], return_indices=True)
    if len(common) < 2:
        return ""
    difference = Curve(common, a.value[at] - b.value[bt], None, None)
    drawn = difference.part(thin(difference, POINTS))
    line = {"label": f"{c['a']} minus {c['b']}", "values": drawn.value, "color": 0}
    label = "difference of the training losses [nats/token]"
    return f"<h3>{label}</h3>" + page.chart(f"chart-difference-{number_}", label, {"x": drawn.axes, "series": [line], "height": 150})


def not_judged(run: dict[str, Any]) -> str:
    """Rules without inputs, and why; what the rules that ran found."""
    ran = [[str(a["rule"]).replace("_", " "), a["found"]] for a in run.get("rules") or [] if a["found"] is not None]
    head = [f"{x['what'].replace('_', ' ')}: {x['why']}" for x in run.get("not_evaluated") or []]
    law = run.get("law") or {}
    said = (
        f"not fitted: {law['not_evaluated']}"
        if "not_evaluated" in law
        else f"floor {number(law.get('floor'))}, exponent {number(law.get('exponent'))}, R² {number(law.get('r2'))}"
        if law
        else None
    )
    score = "; ".join(f"{k} {percent(v)}" for k, v in (run.get("spike_score") or {}).items() if v is not None)
    rows: list[tuple[str, object]] = [
        ("power law of the loss", said), ("spike score (records beyond 7 sd)", score), ("loss events found", run.get("loss_events_found")),
        ("expected from noise alone", None if run.get("loss_events_expected_from_noise") is None else number(run["loss_events_expected_from_noise"], 1)),
    ]  # fmt: skip
    table = f"<details><summary>{len(ran)} rules ran</summary>{static_table(['rule', 'found'], ran)}</details>" if ran else ""
    return card(f"<h3>{escape(run['run'])}</h3>{facts(rows)}{items(head, 'Every rule had its inputs.')}{table}")


def made(tables: Tables, found: dict[str, Any]) -> str:
    """Files, formats, version."""
    info = tables.case.info
    files = [[name, fmt] for name, fmt in (found.get("formats") or {}).items()]
    rows: list[tuple[str, object]] = [("forensics", info.get("tool")), ("written", info.get("written"))]
    return card(
        facts(rows)
        + static_table(["log", "format"], files)
        + failures(tables)
        + '<p class="soft small">Every number lies beside this file in <code>tables/metrics.parquet</code>.</p>'
    )
