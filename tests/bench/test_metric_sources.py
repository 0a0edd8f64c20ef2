# ruff: noqa: E501 - records are as long as trainers print them
"""Reading logs: the compiled scan against the careful reader, and memory that does not grow with text that holds no record."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forensics.curves.sources import megatron_log
from forensics.curves.sources.base import Log, Options, Problems

pytestmark = pytest.mark.bench


def records(n: int) -> str:
    return "".join(
        f" [2026-05-28 22:{i // 60 % 60:02d}:{i % 60:02d}] iteration {i + 1:8d}/ 1000000 | consumed samples: {i * 512:12d} | elapsed time per iteration (ms): {990 + i % 20}.5"
        f" | learning rate: {3e-4 - i * 1e-10:.6E} | global batch size:   512 | lm loss: {2 + i % 977 / 1e3:.6E} | loss scale: 1.0 | grad norm: {i % 71 / 70:.3f}"
        " | num zeros: 0 | params norm: 1234.567 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        for i in range(n)
    )


def lines_a_second(path: Path) -> float:
    begun = time.process_time()
    n = sum(len(block.steps) for block in megatron_log.MegatronLog().read(Log(path, Options(), Problems())))
    return n / (time.process_time() - begun)


def test_the_compiled_scan_is_several_times_the_careful_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.log"
    path.write_text(records(150_000))
    monkeypatch.setattr(megatron_log, "FAST_BYTES", 0)
    lines_a_second(path)  # compiles, or loads what was compiled
    fast = lines_a_second(path)
    path.write_text(records(15_000))
    monkeypatch.setattr(megatron_log, "FAST_BYTES", 1 << 40)
    careful = lines_a_second(path)
    print(f"{fast:,.0f} records/s compiled, {careful:,.0f} records/s careful, {path.stat().st_size / 15_000:.0f} bytes each")
    assert fast > 5 * careful


def test_memory_stays_flat_over_text_that_holds_no_record(tmp_path: Path) -> None:
    noise = "[rank3]:[W1128 12:00:00.1 ProcessGroupNCCL.cpp:1250] Warning: some text (a call) that holds nothing to read\n" * 3000
    program = "import resource, sys; from pathlib import Path; from forensics.curves.read import read_metrics; read_metrics([Path(sys.argv[1])]); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    peaks = []
    for repeats in (150, 900):
        path = tmp_path / f"{repeats}.log"
        with path.open("w") as out:
            for i in range(repeats):
                out.write(records(1).replace("       1/", f"{i + 1:8d}/") + noise)
        peaks.append(int(subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True).stdout))
        path.unlink()
    print(f"peak {peaks[0] >> 10} MiB and {peaks[1] >> 10} MiB over six times the text; this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")
    assert peaks[1] < 1.15 * peaks[0]
