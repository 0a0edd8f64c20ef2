"""nanotron's console: `iteration: 327281 / 378950 | consumed_tokens: 85.8G | lm_loss: 2.38 | grad_norm: 1.25`.

Follows `src/nanotron/trainer.py` and its `LogItem` (2023 to 2025): numbers are shortened with K, M and G, so tokens are
known to three digits only and losses to two decimals.
"""

from __future__ import annotations

import re

from forensics.curves.sources.base import SOURCES
from forensics.curves.sources.console import LineFormat

NANOTRON = LineFormat(
    name="nanotron",
    doc="nanotron's console: iteration: N / M | key: value | ...",
    record=re.compile(r"\biteration: (?P<step>\d+) / \d+ \|"),
    pairs=re.compile(r"\|\s*(?P<key>[A-Za-z_/ ]+):\s*(?P<value>[^|]+)"),
    names={"elapsed_time_per_iteration_ms": "step_time_ms", "model_tflops_per_gpu": "tflops_per_device", "hardware_tflops_per_gpu": ""},
    sure=95,
)


class Nanotron(LineFormat):
    """nanotron's console; milliseconds may be shortened (`11.5K`)."""

    def _named(self, key: str, value: float, unit: float | None) -> tuple[str, float]:
        name, value = super()._named(key, value, unit)
        return ("step_time", value / 1e3) if name == "step_time_ms" else (name, value)


SOURCES.add("nanotron", Nanotron(**{f: getattr(NANOTRON, f) for f in ("name", "doc", "record", "pairs", "names", "sure")}), __name__)
