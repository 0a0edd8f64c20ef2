"""Every simulated incident judged: the confusion table, and the limits it must keep.

Opt-in (`pytest tests/bench/test_incidents.py -s`): some 220 incidents of about two seconds each. The incidents are invented
dynamics over real text (see `tests/attribution/incidents.py`): the table says how rules generalise, not how often a real
run is judged right.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "attribution"))

from incidents import catalogue, run

from forensics.attribution import attribute

pytestmark = pytest.mark.bench


def test_confusion_over_all_incidents() -> None:
    table: dict[str, Counter[str]] = defaultdict(Counter)
    wrong, false_data, precision, recall, late = [], [], [], [], 0
    plans = catalogue()
    for plan in plans:
        made, got = run(plan, attribute)
        v = got.verdict
        table["/".join(sorted(plan.expect)) or "none"][v["cause"]] += 1
        harmless = plan.harmless and v["severity"] in {"none", "returned"}
        if v["cause"] == "data" and "data" not in plan.expect:
            false_data.append(plan.name)
        elif plan.expect and v["cause"] not in plan.expect and not harmless:
            wrong.append(plan.name)
        if "data" in plan.expect:
            named = {k for r in got.skips.to_pylist() if r["kind"] == "documents" for k in range(r["start"], r["stop"])}
            precision.append(len(named & made.guilty_docs) / max(1, len(named)))
            recall.append(len(named & made.guilty_docs) / max(1, len(made.guilty_docs)))
        late += made.onset is not None and (v["onset"] is None or abs(v["onset"] - made.onset) > 2)
    for truth, said in sorted(table.items()):
        print(f"{truth:28} {dict(sorted(said.items()))}")
    found = f"{sum(precision) / len(precision):.3f}/{sum(recall) / len(recall):.3f}"
    print(f"wrong {wrong}; false data {false_data}; documents {found}; onset off by more than 2 in {late}")
    assert len(plans) >= 200
    assert len(false_data) <= 0.02 * len(plans)
    assert len(wrong) <= 0.1 * len(plans)
    assert sum(precision) / len(precision) >= 0.9 and sum(recall) / len(recall) >= 0.85
