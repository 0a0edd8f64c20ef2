"""Every simulated incident judged: the confusion table, and the limits it must keep.

Opt-in (`pytest tests/bench/test_incidents.py -s`): 220 incidents of about two seconds each, two at a time with
`incident_table.py`. The incidents are invented dynamics over real text (see `tests/attribution/incidents.py`): the table
says how rules generalise, not how often a real run is judged right.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from incident_table import catalogue, false_data, judge, right, tables

pytestmark = pytest.mark.bench


def test_confusion_over_all_incidents() -> None:
    rows = [judge(plan) for plan in catalogue()]
    print(tables(rows))
    wrong = [f"{r['name']} ({r['seed']}): {r['cause']}" for r in rows if not right(r)]
    print("wrong:", "; ".join(wrong) or "none")
    data = [r for r in rows if "data" in r["expect"]]
    assert len(rows) >= 200
    assert len(false_data(rows)) <= 0.02 * len(rows)
    assert len(wrong) <= 0.1 * len(rows)
    assert sum(r["found"] / max(1, r["named"]) for r in data) / len(data) >= 0.9
    assert sum(r["found"] / max(1, r["guilty"]) for r in data) / len(data) >= 0.85
