"""The report of a replay, from the tables of its case: the answer first, then what it rests on.

Reads tables only: a part whose table is not there says so, and a case of an older version still opens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forensics.case import Case
from forensics.reports.base import Page, card, code, escape, facts, items, number, percent, prose, static_table
from forensics.reports.charts import composition, curves, per_step
from forensics.reports.documents import document_views, skeletons
from forensics.reports.parts import CHOICE, NUMBER, duplicates, lengths, made, packing, sources
from forensics.reports.plots import bars
from forensics.reports.tables import MOST_ROWS, Tables, absent, columns_of, more_rows

TONE = {"diverging": "bad", "level_shift": "bad", "slow": "warn", "returned": "good", "none": "good"}
VIEW = '<div id="document" aria-live="polite"><p class="none">Choose a row (Enter or click) to read the document.</p></div>'


def write_replay(case: Case, path: Path | None = None) -> Path:
    """`report.html` of a replay's case, and beside it the short `report.md`."""
    from forensics.reports.markdown import write_markdown

    tables = Tables(case)
    verdict = case.json("verdict.json") or {}
    page = Page("forensics replay", subject(case, verdict))
    page.section("answer", "Answer", answer(tables, verdict), titled=False)
    page.section("curves", "Curves", curves(page, tables, verdict) or absent(tables, "metrics"))
    page.section("proof", "Proof of the replay", proof(tables, verdict))
    page.section("steps", "What the steps read", (composition(tables) + per_step(page, tables)) or absent(tables, "steps"))
    page.section("suspects", "Suspects", suspects(page, tables))
    page.section("duplicates", "Duplicates", duplicates(page, tables))
    page.section("templates", "Templates", skeletons(tables))
    page.section("sources", "Sources", sources(page, tables))
    page.section("lengths", "Lengths and packing", lengths(tables) + packing(tables))
    page.section("open", "Not evaluated", card(items((f"{x['what']}: {x['why']}" for x in verdict.get("not_evaluated") or []), "Everything had its inputs.")))
    page.section("made", "How this was made", made(tables))
    if path is None:
        write_markdown(tables, case.path / "report.md")
    return page.write(path or case.path / "report.html")


def subject(case: Case, verdict: dict[str, Any]) -> str:
    """Steps and run."""
    window = verdict.get("window")
    steps = f"steps {window[0]:,} to {window[1] - 1:,}" if window else f"steps {case.info.get('steps', 'unknown')}"
    run = case.info.get("run")
    return steps + (f" of {Path(run).parent.name if Path(run).suffix else Path(run).name}" if run else "")


def answer(tables: Tables, verdict: dict[str, Any]) -> str:
    """Verdict, action, evidence."""
    if not verdict:
        return card('<p class="none">This case holds no <code>verdict.json</code>: the replay did not come to its end.</p>')
    cause = verdict["cause"] + (f" ({verdict['subcause']})" if verdict.get("subcause") else "")
    severity = str(verdict["severity"])
    badges = [
        f'<span class="badge {TONE.get(severity, "")}">severity <b>{escape(severity.replace("_", " "))}</b></span>',
        f'<span class="badge">cause <b>{escape(cause)}</b></span>',
        f'<span class="badge">confidence <b>{escape(verdict["confidence"])}</b></span>',
        f'<span class="badge">onset <b>{escape(number(verdict["onset"]) if verdict.get("onset") is not None else "not found")}</b></span>',
    ]
    against = "<h3>against</h3>" + items(verdict.get("evidence_against") or [], "Nothing that was looked at speaks against it.")
    notes = "<h3>notes</h3>" + items(verdict["notes"]) if verdict.get("notes") else ""
    second = "<h3>also seen</h3>" + items(_second(x) for x in verdict["secondary"]) if verdict.get("secondary") else ""
    return (
        f'<h1>{prose(verdict["sentence"])}</h1><div class="badges">{"".join(badges)}</div>'
        + card("<h2>Do now</h2><p>" + prose(verdict["action"]) + "</p>" + prescription(tables.case, verdict), "act")
        + '<div class="grid">'
        + card("<h3>for</h3>" + items(verdict.get("evidence_for") or []) + against + second + notes)
        + card("<h3>reruns that would decide it</h3>" + plan(tables.case))
        + "</div>"
    )


def _second(found: Any) -> str:
    if not isinstance(found, dict):
        return str(found)
    said = found.get("sentence") or found.get("what") or found.get("label")
    return str(said) if said else ", ".join(f"{k} {number(v)}" for k, v in found.items() if isinstance(v, (str, int, float)))


def _with_error(values: dict[str, Any], name: str, error: str, unit: str) -> str | None:
    value = values.get(name)
    return None if value is None else f"{number(float(value), 0)} ± {number(float(values.get(error) or 0), 0)} {unit}"


def _to_come(found: dict[str, Any]) -> str | None:
    if not found.get("known_to") or found["known_to"] <= found["after"]:
        return None
    where = f", {found['first']:,} to {found['last']:,}" if found["steps"] else ""
    return f"{found['steps']:,} steps after {found['after']:,} hold some of the {found['documents']:,} documents{where}"


def _rest(group: dict[str, Any]) -> str:
    return f"{group['label']}: {group['others']:,} documents ({number(group['tokens'])} tokens) beside {group['guilty']:,} guilty ones"


def prescription(case: Case, verdict: dict[str, Any]) -> str:
    """Rollback, skip list with its meaning, expected effect."""
    back, skip, expected = (verdict.get(k) or {} for k in ("rollback", "skip", "expected"))
    removed = expected.get("excess_removed_nats")
    place = f" ({back['checkpoint']})" if back.get("checkpoint") else ""
    rows: list[tuple[str, object]] = [
        ("roll back to", f"checkpoint of step {back['step']:,}{place}" if back.get("step") is not None else None),
        ("steps to drop", ", ".join(f"{a:,} to {b - 1:,}" if b - a > 1 else f"{a:,}" for a, b in skip.get("steps") or []) or None),
        ("guilty documents", f"{skip['documents']:,} ({number(skip.get('tokens'))} tokens read)" if skip.get("documents") else None),
        ("excess loss this removes", None if removed is None else f"{number(float(removed), 0)} ± {number(float(expected.get('error_nats') or 0), 0)} nats"),
        ("dirty tokens covered", percent(expected["dirty_tokens_covered"]) if expected.get("dirty_tokens_covered") is not None else None),
        ("ordinary tokens lost", expected.get("ordinary_tokens_lost")),
        ("harm to other documents since", _with_error(expected, "harm_to_others_nats", "harm_error_nats", "nats")),
        ("learning rate ahead of the updates", percent(expected["learning_rate_ahead"]) if expected.get("learning_rate_ahead") else None),
        ("behind where it was going", _with_error(verdict.get("cost") or {}, "steps_behind", "error_steps", "steps")),
        ("going back costs", f"{verdict['cost']['steps_again']:,} steps again" if (verdict.get("cost") or {}).get("steps_again") is not None else None),
        ("still to come", _to_come(verdict.get("remaining") or {})),
        ("not found guilty in the same groups", "; ".join(_rest(g) for g in verdict.get("rest_of_groups") or []) or None),
    ]
    out = facts(rows)
    folder = case.path / "manifest"
    for file in sorted(folder.glob("*"), key=lambda f: (f.name != "README.txt", f.name)) if folder.is_dir() else []:
        text = file.read_text(encoding="utf-8", errors="replace")
        if file.name == "README.txt":
            out += "<h3>what the skip list means</h3>" + items(line[2:] for line in text.split("\n") if line.startswith("- "))
        else:
            out += f"<h3><code>manifest/{escape(file.name)}</code></h3>" + code(_head(text.strip(), 4000))
    return out


def _head(text: str, limit: int) -> str:
    """The beginning of a file, cut at a line where it is long."""
    if len(text) <= limit:
        return text
    kept = text[:limit].rsplit("\n", 1)[0]
    return f"{kept}\n... ({len(text) - len(kept):,} more characters in the file)"


def plan(case: Case) -> str:
    """Reruns that would decide it, with predicted outcomes."""
    found = case.json("plan.json") or []
    if not found:
        return '<p class="none">No rerun is needed, or none was planned.</p>'
    out = []
    for x in found:
        predicts = x.get("predicts") or {}
        rows = static_table(["if it is", "then"], [[k, v] for k, v in predicts.items()]) if isinstance(predicts, dict) else items(predicts)
        command = x.get("command") or ""
        head = f"{escape(x.get('name', 'experiment'))}: <span class='plain'>{prose(x.get('change') or '')}</span>"
        out.append(f"<details><summary>{head}</summary>{code(str(command)) if command else ''}{rows}</details>")
    return "".join(out)


def proof(tables: Tables, verdict: dict[str, Any]) -> str:
    """Does the logged loss follow the reconstructed steps, and do the files agree."""
    identity = tables.case.info.get("identity")
    out = f"<p>{prose(identity)}</p>" if identity else ""
    rows = [r for r in tables.rows("proof") if r["r"] is not None]
    if rows:
        said = str((verdict.get("proof") or {}).get("answer") or rows[0]["answer"]).replace("_", " ")
        best = max(rows, key=lambda r: r["r"])
        out += (
            f'<p class="lead">Does the logged loss follow the difficulty of the reconstructed steps? <b>{escape(said)}</b>, over {number(rows[0]["steps"])} steps. '
            "Correlation by lag [step]; a right description peaks at lag 0. Shaded: two standard errors.</p>"
            + bars({_lag(r["lag"]): r["r"] for r in rows}, "correlation by lag", 2 * (rows[0]["standard_error"] or 0.0), strong=_lag(best["lag"]))
        )
    elif tables.get("proof") is None:
        out += absent(tables, "proof")
    else:
        out += '<p class="none">The loss was not compared with the reconstructed steps: too few of them are in the log.</p>'
    checks = tables.rows("identity")
    if checks:
        shown = [[r["check"].replace("_", " "), r["subject"], r["expected"], r["found"], r["answer"].replace("_", " ")] for r in checks]
        bad = sum(r["answer"] == "contradicts" for r in checks)
        head = f"{len(checks)} checks against the run's own files" + (f", {bad} contradict" if bad else "")
        out += f"<details><summary>{head}</summary>{static_table(['check', 'subject', 'expected', 'found', 'answer'], shown)}</details>"
    return card(out)


def _lag(lag: int) -> str:
    return f"{lag:+d}".replace("-", "−") if lag else "0"


def suspects(page: Page, tables: Tables) -> str:
    """The ranked explanation and the documents behind it."""
    table = tables.get("suspects")
    page.data("documents", document_views(tables))
    if table is None:
        return absent(tables, "suspects")
    if not table.num_rows:
        return card('<p class="none">Nothing that was read stands out against the baseline.</p>')
    columns = columns_of(table.slice(0, MOST_ROWS), [
        ("rank", "#", NUMBER), ("level", "level", CHOICE), ("label", "what", {}), ("reasons", "reasons", CHOICE),
        ("guilty", "guilty", {"title": "whether the verdict names it"}), ("tokens_window", "tokens", {"number": True, "title": "in window and look-back"}),
        ("tokens_baseline", "in baseline", NUMBER), ("excess", "excess [nats]", {"number": True, "title": "loss over what its kind is expected to cost; negative: memorised"}),
        ("share", "of excess", {"number": True, "format": "percent"}), ("log_odds", "log-odds", {"number": True, "title": "window against baseline"}),
        ("p_value", "p", {"number": True, "format": "p"}), ("q_value", "q", {"number": True, "format": "p", "title": "after false discovery control"}), ("key", "key", {"hidden": True, "format": "key"}),
    ])  # fmt: skip
    by = {c["name"]: c for c in columns}
    by["guilty"]["values"] = ["" if v is None else "named" if v else "no" for v in by["guilty"]["values"]]
    by["label"]["values"] = [tables.masked(v) for v in by["label"]["values"]]
    by["key"]["values"] = [k if level == "document" else None for k, level in zip(by["key"]["values"], by["level"]["values"], strict=True)]
    return card(page.table("suspects", "suspects", columns, sort="rank", down=False, opens="key", rows=12) + more_rows(table, "suspects")) + card(VIEW)
