"""DeepSpeed's own log lines, where no trainer prints records around them.

Follows `deepspeed/runtime/engine.py`, `pipe/engine.py` and `utils/timer.py` (0.3 to 0.16): `step=10, skipped=0, lr=[...]`,
`steps: 10 loss: 2.3 iter time (s): 1.2 samples/sec: 20.3`, `global_step=10, RunningAvgSamplesPerSec=..., MemAllocated=1.2GB`
(its GB is 2^30), and the overflow messages, which belong to the step after the last one logged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from forensics.curves.sources.base import SOURCES, Block, Head, Log, Recorder
from forensics.curves.sources.console import DATE, quantity
from forensics.curves.sources.roles import clock, number

_STEP = re.compile(r"\[Rank 0\] step=(\d+), skipped=(\d+), lr=\[([^\]]*)\]")
_PIPE = re.compile(r"\bsteps: (\d+) loss: (\S+) iter time \(s\): (\S+) samples/sec: (\S+)")
_TIMER = re.compile(
    r"(?:global_step=|timer\.py\S*\]?\s+(?:\d+/)?)(\d+), "
    r"RunningAvgSamplesPerSec=(\S+?), CurrSamplesPerSec=(\S+?), MemAllocated=(\S+?)GB, MaxMemAllocated=(\S+?)GB"
)
_OVERFLOW = re.compile(r"OVERFLOW!.*?Skipping step\. Attempted loss scale: ([\d.e+]+), reducing to ([\d.e+]+)")
_GIB = 2.0**30


class DeepSpeed:
    """DeepSpeed's log."""

    name = "deepspeed"
    doc = "DeepSpeed's own lines: step=N, skipped=..., lr=[...]; steps: N loss: X; overflow messages"

    def sniff(self, head: Head) -> int:
        """One of its lines."""
        text = "" if head.binary else head.text
        return 60 if _PIPE.search(text) or _STEP.search(text) or _TIMER.search(text) else 0

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order."""
        recorder = Recorder()
        last, skipped = 0, 0
        for line, text, torn in log.lines():
            if "step" not in text and "SamplesPerSec" not in text:
                continue
            if torn:
                log.problem("the last line lacks its line feed; it may be cut short and is left out", line)
                continue
            values: list[tuple[str, float | None]] = []
            step = last
            if found := _STEP.search(text):
                step = int(found[1])
                values = [("skipped_steps", float(max(0, int(found[2]) - skipped))), ("learning_rate", number(found[3].split(",")[0]))]
                skipped = int(found[2])
            elif found := _PIPE.search(text):
                step = int(found[1])
                values = [("train_loss", number(found[2])), ("step_time", number(found[3])), ("samples_per_second", number(found[4]))]
            elif found := _TIMER.search(text):
                step = int(found[1])
                memory = [quantity(found[4]), quantity(found[5])]
                values = [("samples_per_second", number(found[3]))]
                values += [(name, m[0] * _GIB) for name, m in zip(("memory_allocated", "memory_peak"), memory) if m is not None]
            elif found := _OVERFLOW.search(text):
                step = last + 1
                values = [("loss_scale", number(found[2]))]
            known = [(name, value) for name, value in values if value is not None]
            if known:
                date = DATE.search(text)
                recorder.add(step, known, line, time=clock(date[1] or date[2]) if date else math.nan)
                last = max(last, step) if not _OVERFLOW.search(text) else last
            if recorder.full:
                yield from recorder.cut()
        yield from recorder.cut()


SOURCES.add("deepspeed", DeepSpeed(), __name__)
