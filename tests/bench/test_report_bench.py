"""The report of a window of 300 steps x 2048 sequences: CPU seconds, memory, size, first paint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..reports.browser import Browser, browser  # noqa: F401
from ..reports.cases import make_case

pytestmark = pytest.mark.bench

SCRIPT = """
import json, resource, sys
from pathlib import Path
from forensics.case import open_case
from forensics.reports.replay import write_replay
write_replay(open_case(Path(sys.argv[1])), Path(sys.argv[2]))
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"cpu": used.ru_utime + used.ru_stime, "bytes": used.ru_maxrss * 1024}))
"""


def test_a_window_of_three_million_segments(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    make_case(tmp_path / "case", steps=300, rows=2048, documents=1_200_000, suspects=20_000, per_row=5)
    page = tmp_path / "report.html"
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "case"), str(page)], capture_output=True, text=True, check=True)
    used = json.loads(done.stdout)
    print(f"{used['cpu']:.1f} s of CPU, {used['bytes'] / 2**20:.0f} MiB, page of {page.stat().st_size / 1e6:.2f} MB")
    assert used["cpu"] < 30
    assert used["bytes"] < 1 << 30
    assert page.stat().st_size < 12e6
    window: Browser = request.getfixturevalue("browser")
    paints = []
    for _ in range(3):
        window.open(page)
        paints.append(window.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    print(f"first contentful paint {min(paints):.0f} ms")
    assert min(paints) < 1500
    script = "const t = performance.now(), e = document.querySelector('[data-table=suspects] input'); e.value = arguments[0];"
    took = [window.run(script + "e.dispatchEvent(new Event('input')); return performance.now() - t", f"document 4{k}") for k in range(5)]
    print(f"a filter over the suspects {took[0]:.0f} ms at first, then {min(took[1:]):.0f} ms")
    assert min(took[1:]) < 200
    assert window.errors() == []
