"""How often answers about real small trainings were right, by cause and by the confidence they were given with.

    python -m lab.table CASES ANSWERS      (from tests/bench)

CASES is a folder of written cases, ANSWERS one that holds NAME/verdict.json for each (and NAME-clean/verdict.json for a window before
the event), as a scorer of the lab keeps them. Prints the lines of `configs/attribution/trainings.yaml`.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

RIGHT = {
    "data": {"data"}, "two_events": {"data"}, "loader": {"loader"}, "composition": {"composition"}, "benign_schedule": {"composition"},
    "config_fault": {"numerics"},
    "numerics_fp16": {"numerics"}, "transient_fault": {"numerics", "hardware", "interaction"}, "persistent_fault": {"hardware", "numerics"},
    "benign_hard": {"interaction", "composition"}, "benign": {"interaction", "composition", "undetermined"},
}  # fmt: skip


def right(truth: dict[str, Any], verdict: dict[str, Any]) -> bool:
    """The true cause; or, where held-out loss shows no harm, an answer that claims none and does not blame the documents."""
    if verdict["cause"] in RIGHT[truth["class"]] or verdict["cause"] in truth.get("fair_causes", []):
        return True
    harmless = (truth.get("severity_on_clean_validation") or {}).get("verdict") == "no_harm"
    return harmless and truth["class"] not in {"data", "two_events"} and verdict["cause"] != "data" and verdict["severity"] in {"none", "returned"}


def main() -> None:
    cases, answers = map(Path, sys.argv[1:3])
    table: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for file in sorted(answers.glob("*/verdict.json")):
        name, verdict = file.parent.name, json.loads(file.read_text())
        clean = name.endswith("-clean")
        truth = json.loads((cases / name.removesuffix("-clean") / "truth/truth.json").read_text())
        ok = verdict["cause"] == "undetermined" and verdict["severity"] == "none" if clean else right(truth, verdict)
        if clean and verdict["cause"] == "undetermined":
            continue  # a quiet window answered with nothing says little; wrong ones count
        row = table[verdict["cause"]][verdict["confidence"]]
        row[0] += ok
        row[1] += 1
    for cause in sorted(table):
        print(f"{cause}: {{{', '.join(f'{c}: {table[cause][c]}' for c in ('high', 'medium', 'low') if c in table[cause])}}}")


if __name__ == "__main__":
    main()
