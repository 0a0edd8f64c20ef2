"""Recording costs the training thread less than a hundredth of a step.

The yardstick is a step that is as cheap as steps get: a 124 M parameter model at half a million tokens a second on one
accelerator, as speed-run trainings reach; larger models spend more per token and the share shrinks with them. What counts is the time
that the training thread spends in `record`; the writing thread runs beside it, its CPU is shown as a share of one core.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from forensics.live.recorder import Recorder

pytestmark = pytest.mark.bench
ROWS, WIDTH, CALLS, TOKENS_PER_S = 32, 1024, 60, 500_000


def test_time_of_the_training_thread_in_record(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 500, (ROWS, WIDTH + 1))
    loss, mask = rng.gamma(2.0, 1.0, (ROWS, WIDTH)).astype(np.float32), np.ones((ROWS, WIDTH), np.float32)
    recorder = Recorder(tmp_path)
    calls, everything = [], time.process_time()
    for step in range(CALLS):
        before = time.thread_time()
        recorder.record(step, sample=np.arange(ROWS) + ROWS * step, tokens=tokens, loss=loss, mask=mask, eod=0)
        calls.append(time.thread_time() - before)
        while recorder._queue.qsize() > 8:
            time.sleep(0.002)
    recorder.flush()
    everything = (time.process_time() - everything) / CALLS
    size = sum(p.stat().st_size for p in tmp_path.glob("*.npz")) / CALLS
    recorder.close()
    step_s = ROWS * WIDTH / TOKENS_PER_S
    here = float(np.median(calls))
    print(
        f"\na step of {1e3 * step_s:.0f} ms ({ROWS * WIDTH} tokens): record takes {1e3 * here:.3f} ms of the training thread ({100 * here / step_s:.2f} %), "
        f"the writing thread {1e3 * (everything - here):.2f} ms ({100 * (everything - here) / step_s:.1f} % of a core), {size:.0f} bytes"
    )
    assert recorder.dropped == recorder.errors == 0
    assert here < 0.01 * step_s
    assert everything < 0.2 * step_s
