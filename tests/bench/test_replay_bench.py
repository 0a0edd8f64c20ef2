"""A whole replay of a synthetic run: CPU time by stage, speed against a copy of the same bytes, memory beside the mapped files.

    FORENSICS_BENCH_REPLAY=256x4096x300 pytest tests/bench/test_replay_bench.py -s     # 315 M tokens in the window

The run blends 20 corpora and goes bad at the first step of the window. By default it is small; budgets scale with it.
`FORENSICS_BENCH_FOLDER` keeps the data between calls.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "pipelines"))
from blend_run import Size, make_run

pytestmark = pytest.mark.bench
BATCH, WIDTH, STEPS = (int(x) for x in os.environ.get("FORENSICS_BENCH_REPLAY", "16x1024x100").split("x"))
LOOK_AT = """
import json, sys, threading, time
from pathlib import Path
import forensics.pipelines.replay as R
from forensics.case import Case
from forensics.run import open_run
from forensics.schemas import DOCUMENTS
from forensics.steps import parse_steps

STAGES = {"read_consumed": "order", "build_documents": "documents met", "describe_documents": "content hashes", "find_faults": "detectors",
          "sign_documents": "signatures", "cluster": "clusters", "with_duplicates": "clusters", "summarise": "summaries", "read_curves": "curves",
          "attribute": "attribution", "conclude": "skip list and round trip", "store_answer": "skip list and round trip", "excerpts_of": "report",
          "write_replay": "report"}
spent, inner = {}, [0.0]

def timed(name, call):
    def run(*args, **kwargs):
        begin, before = time.process_time(), inner[0]
        inner[0] = 0.0
        try:
            return call(*args, **kwargs)
        finally:
            whole = time.process_time() - begin
            spent[STAGES[name]] = spent.get(STAGES[name], 0.0) + whole - inner[0]
            inner[0] = before + whole
    return run

def private():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * 1024

peak = [0]
def watch():
    while True:
        peak[0] = max(peak[0], private())
        time.sleep(0.05)

import dataclasses
for name in STAGES:
    call = getattr(R, name)
    wrapped = dataclasses.replace(call, function=timed(name, call.function)) if dataclasses.is_dataclass(call) else timed(name, call)
    setattr(R, name, wrapped)
if len(sys.argv) > 4:  # compile first
    warm = R.plan_replay(open_run(Path(sys.argv[4])), parse_steps(sys.argv[5]), R.ReplayConfig())
    R.replay(Case(Path(sys.argv[6])), warm, R.ReplayConfig())
    spent.clear()
threading.Thread(target=watch, daemon=True).start()
begin, wall = time.process_time(), time.time()
plan = R.plan_replay(open_run(Path(sys.argv[1])), parse_steps(sys.argv[2]), R.ReplayConfig())
case = Case(Path(sys.argv[3]))
out = R.replay(case, plan, R.ReplayConfig())
total = time.process_time() - begin
rows = plan.facts.sequences
inside = (plan.facts.step >= plan.whole.start) & (plan.facts.step < plan.whole.stop)
read = int(rows[inside].sum() + rows[~inside].sum() // plan.every) * plan.row_tokens
documents = case.get(DOCUMENTS).num_rows
print(json.dumps({"spent": spent, "total": total, "wall": time.time() - wall, "peak": peak[0], "documents": documents, "read": read, "share": plan.share,
                  "every": plan.every, "window": plan.sequences * plan.row_tokens, "cause": out.verdict["cause"], "skip": out.verdict["skip"]}))
"""


def measured(run: Path, steps: str, case: Path, *warm: str) -> dict[str, object]:
    """One replay in a process of its own."""
    done = subprocess.run([sys.executable, "-c", LOOK_AT, str(run), steps, str(case), *warm], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def copy_seconds(size: int) -> float:
    """CPU seconds to copy so many bytes."""
    import time

    source = np.ones(min(size, 1 << 28), np.uint8)
    target = np.empty_like(source)
    np.copyto(target, source)
    begin = time.process_time()
    np.copyto(target, source)
    return (time.process_time() - begin) * size / len(source)


def test_a_replay_in_time_and_memory(tmp_path: Path) -> None:
    size = Size(batch=BATCH, width=WIDTH, before=400, after=STEPS + 256, length=800)
    folder = Path(os.environ.get("FORENSICS_BENCH_FOLDER", str(tmp_path / "run")))
    if not (folder / "forensics.yaml").exists():
        make_run(folder, size)
    small = make_run(tmp_path / "small", Size(batch=2, width=128))
    steps = f"{size.event}:{size.event + STEPS}"
    found = measured(folder, steps, tmp_path / "case", str(small), "81:101", str(tmp_path / "warm"))
    again = measured(folder, steps, tmp_path / "case", str(small), "81:101", str(tmp_path / "warm"))
    read, window, n = int(found["read"]), int(found["window"]), int(found["documents"])  # type: ignore[call-overload]
    total, peak = float(found["total"]), int(found["peak"])  # type: ignore[arg-type,call-overload]
    copy = copy_seconds(2 * read)
    print(f"\n{window / 1e6:.0f} M tokens in the window, {read / 1e6:.0f} M read with look-back and samples, {n:,} documents")
    print(f"{'stage':28s} {'CPU s':>8s} {'M tokens/s':>11s}")
    for name, seconds in found["spent"].items():  # type: ignore[attr-defined]
        print(f"{name:28s} {seconds:8.2f} {read / 1e6 / max(seconds, 1e-9):11.1f}")
    print(f"{'all':28s} {total:8.2f} {read / 1e6 / total:11.1f}   copy of the same bytes {copy:.3f} s: ratio {total / copy:.0f}")
    print(f"peak {peak / 2**20:.0f} MiB beside the maps; second call {float(again['total']):.2f} s of CPU; verdict {found['cause']}, {found['skip']}")  # type: ignore[arg-type]
    assert found["cause"] == "data"
    assert read <= 3 * window or read - window <= 25 << 20
    assert peak <= 1.5 * 2**30 + 512 * n
    assert float(again["total"]) < 0.5 * total  # type: ignore[arg-type]
