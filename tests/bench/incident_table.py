"""Judges simulated incidents and writes down how often the answer was right: by cause and dose, and by the confidence it was given with.

python tests/bench/incident_table.py judge 0/2 rows-0.jsonl      # every second incident; the other half with 1/2
python tests/bench/incident_table.py table rows-*.jsonl          # the tables, as configs/attribution/README.md has them
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "attribution"))

from incident_plan import Plan
from incidents import catalogue, run

from forensics.attribution import attribute

CAUSES = ("data", "composition", "loader", "numerics", "hardware", "interaction", "undetermined")


def judge(plan: Plan) -> dict[str, Any]:
    """One incident: the truth, the answer, and how well documents and onset were found."""
    made, got = run(plan, attribute)
    v = got.verdict
    named = {k for r in got.skips.to_pylist() if r["kind"] == "documents" for k in range(r["start"], r["stop"])}
    return {
        "name": plan.name, "seed": plan.seed, "truth": truth(plan), "expect": sorted(plan.expect), "harmless": plan.harmless, "cause": v["cause"],
        "severity": v["severity"], "confidence": v["confidence"], "onset": v["onset"], "true_onset": made.onset, "named": len(named),
        "guilty": len(made.guilty_docs), "found": len(named & made.guilty_docs),
    }  # fmt: skip


def truth(plan: Plan) -> str:
    """The row of the table that an incident belongs to."""
    if not plan.expect:
        return "nothing"
    if "data" in plan.expect:
        what = "another language under a false label" if plan.slab == "foreign" else "dirty documents"
        if plan.fault:
            return "dirty documents, then a fault"
        lack = "" if plan.recorded else ", no losses"
        return f"{what}, {'70 to 100' if plan.slab_share >= 0.7 else '30 to 60' if plan.slab_share >= 0.3 else '20 to 25'} % of the tokens{lack}"
    if plan.loader:
        return "the loader (stale position, ranks alike, sorted order)"
    if plan.fault == "hard_batch":
        return "a hard batch"
    if plan.fault:
        return "a fault of numerics or hardware" + (", odd documents long before" if plan.bystander else "" if plan.recorded else ", no losses")
    if plan.mix:
        return f"the mix of known sources, {'declared' if plan.declared else 'not declared'}"
    return "tables of numbers from their own source" if plan.slab == "table" else f"a wanted language, {'declared' if plan.declared else 'not declared'}"


def right(row: dict[str, Any]) -> bool:
    """Whether the answer is one that the truth allows."""
    harmless = row["harmless"] and row["cause"] != "data" and row["severity"] in {"none", "returned"}
    return harmless or (row["cause"] in row["expect"] if row["expect"] else row["cause"] == "undetermined" and row["severity"] == "none")


def false_data(rows: list[dict[str, Any]]) -> list[str]:
    """Incidents that were called data and are not."""
    return [f"{r['name']} ({r['seed']})" for r in rows if r["cause"] == "data" and "data" not in r["expect"]]


def tables(rows: list[dict[str, Any]]) -> str:
    """Markdown: truth by answer, then confidence by right and wrong."""
    said: dict[str, Counter[str]] = defaultdict(Counter)
    for r in rows:
        said[r["truth"]][r["cause"]] += 1
        said[r["truth"]]["right"] += right(r)
    used = [c for c in CAUSES if any(s[c] for s in said.values())]
    out = ["| truth | " + " | ".join(used) + " | right |", "|---|" + "---|" * (len(used) + 1)]
    for name, s in sorted(said.items(), key=lambda x: (x[0] == "nothing", x[0])):
        out.append(f"| {name} | " + " | ".join(str(s[c] or "") for c in used) + f" | {s['right']} of {sum(s[c] for c in used)} |")
    sure: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for r in rows:
        sure[r["cause"], r["confidence"]].append(right(r))
    out += ["", "| answer | " + " | ".join(("high", "medium", "low")) + " |", "|---|---|---|---|"]
    cell = lambda x: f"{sum(x)} of {len(x)}" if x else ""  # noqa: E731
    out += [f"| {c} | " + " | ".join(cell(sure[c, k]) for k in ("high", "medium", "low")) + " |" for c in used]
    data = [r for r in rows if "data" in r["expect"]]
    asked = [r for r in rows if r["true_onset"] is not None]
    near = sum(r["onset"] is not None and abs(r["onset"] - r["true_onset"]) <= 2 for r in asked)
    precision = sum(r["found"] / max(1, r["named"]) for r in data) / max(1, len(data))
    recall = sum(r["found"] / max(1, r["guilty"]) for r in data) / max(1, len(data))
    out += ["", f"{len(rows)} incidents, {sum(map(right, rows))} right, called data without any {len(false_data(rows))};"]
    out += [f"guilty documents: precision {precision:.3f}, recall {recall:.3f}; onset within 2 steps {near} of {len(asked)}."]
    return "\n".join(out)


def main(words: list[str]) -> None:
    """`judge I/N FILE` or `table FILE...`."""
    if words[0] == "judge":
        shard, of = (int(x) for x in words[1].split("/"))
        with Path(words[2]).open("w", encoding="utf-8") as file:
            for plan in catalogue()[shard::of]:
                file.write(json.dumps(judge(plan)) + "\n")
                file.flush()
    else:
        rows = [json.loads(x) for f in words[1:] for x in Path(f).read_text(encoding="utf-8").split("\n") if x]
        print(tables(rows))
        print("wrong:", "; ".join(f"{r['name']} ({r['seed']}): {r['cause']}" for r in rows if not right(r)) or "none")


if __name__ == "__main__":
    main(sys.argv[1:])
