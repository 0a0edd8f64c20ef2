"""MaxText's console: `completed step: 9, seconds: 5.667, TFLOP/s/device: 134.9, Tokens/s/device: 8672.8, total_weights: 196608, loss: 10.374`.

Follows `metric_logger.py` of AI-Hypercomputer/maxtext (2023 to 2025). `total_weights` counts the target tokens of the
step that are not padding.
"""

from __future__ import annotations

import re

from forensics.curves.sources.base import SOURCES
from forensics.curves.sources.console import LineFormat

MAXTEXT = LineFormat(
    name="maxtext",
    doc="MaxText's console: completed step: N, seconds: T, ..., loss: X",
    record=re.compile(r"\b(?:completed step|eval metrics after step): (?P<step>\d+),"),
    pairs=re.compile(r"(?:,|^)\s*(?P<key>[A-Za-z_/ ]+)[:=]\s*(?P<value>[^,\s]+)"),
    names={"seconds": "step_time", "perplexity": "train_ppl"},
    held_out=re.compile(r"\beval metrics after step"),
    sure=95,
)
SOURCES.add("maxtext", MAXTEXT, __name__)
