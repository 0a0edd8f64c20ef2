"""torchtitan's console: `step: 10  loss:  4.1234  grad_norm: 1.2  memory: 10.00GiB(12.34%)  tps: 1,234  tflops: 56.78  mfu: 9.10%`.

Follows `torchtitan/components/metrics.py` (2024 to 2026): `tps` and `tflops` are per device, colour codes may stand
between fields.
"""

from __future__ import annotations

import re

from forensics.curves.sources.base import SOURCES
from forensics.curves.sources.console import LineFormat

_GAP = r"(?:\x1b\[[\d;]*m|\s)*"
TORCHTITAN = LineFormat(
    name="torchtitan",
    doc="torchtitan's console: step: N loss: X grad_norm: Y memory: ... tps: ... mfu: ...",
    record=re.compile(rf"(?:validate )?{_GAP}step:{_GAP}(?P<step>\d+){_GAP}loss:"),
    pairs=re.compile(rf"(?P<key>[A-Za-z_]+):{_GAP}(?P<value>[-+\d.,]*\d(?:[eE][-+]?\d+)?(?:GiB|%)?|nan|inf)"),
    names={"memory": "memory_peak", "tps": "tokens_per_second_per_device", "tflops": "tflops_per_device", "step": ""},
    held_out=re.compile(r"\bvalidate\b"),
    sure=85,
)
SOURCES.add("torchtitan", TORCHTITAN, __name__)
