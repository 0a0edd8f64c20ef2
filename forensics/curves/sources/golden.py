"""Golden values of Megatron-LM's functional tests: {metric: {start_step, end_step, step_interval, values}}.

Follows `tests/functional_tests/python_test_utils` of NVIDIA/Megatron-LM: the string "nan" stands for a value that was not
recorded (most iteration times, whole stretches of loss), never for a loss that was NaN. Older files list the values
without their steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from forensics.curves.names import resolve, scaled
from forensics.curves.sources.base import SOURCES, Block, Column, Head, Log
from forensics.curves.sources.documents import begins_document, load


class Golden:
    """Megatron-LM's golden values."""

    name = "megatron_golden"
    doc = "golden values of Megatron-LM's functional tests (JSON)"

    def sniff(self, head: Head) -> int:
        """An object of metrics with start_step and step_interval."""
        return 95 if begins_document(head) and b'"start_step"' in head.data[:4096] and b'"step_interval"' in head.data[:4096] else 0

    def read(self, log: Log) -> Iterator[Block]:
        """One block."""
        document = load(log, objects=True)
        if not isinstance(document, dict):
            return
        series = {}
        for raw, entry in document.items():
            if not isinstance(entry, dict) or not isinstance(entry.get("values"), (dict, list)):
                log.problem(f"`{str(raw)[:40]}` is no list of values")
                continue
            name, factor = resolve(raw)
            series[name if name not in series else raw] = {step: scaled(value, factor) for step, value in _points(entry, log)}
        listed = {
            int(step)
            for entry in document.values()
            if isinstance(entry, dict) and isinstance(entry.get("values"), dict)
            for step in entry["values"]
            if str(step).isdigit()
        }
        if (loss := series.get("train_loss")) and len(listed) > len(loss):
            main = {
                int(step) for raw, entry in document.items() if resolve(raw)[0] == "train_loss" for step in entry["values"] if isinstance(entry["values"], dict)
            }
            series["recorded"] = {step: float(step in loss) for step in sorted(main)}
        steps = sorted({step for values in series.values() for step in values})
        place = {step: i for i, step in enumerate(steps)}
        columns = {
            name: Column(np.array(list(values.values()), np.float64), np.array([place[s] for s in values], np.int64))
            for name, values in series.items()
            if values
        }
        columns = {name: Column(c.values) if len(c.values) == len(steps) else c for name, c in columns.items()}
        if steps:
            yield Block(np.array(steps, np.int64), columns, np.full(len(steps), -1, np.int64))


def _points(entry: dict[str, Any], log: Log) -> Iterator[tuple[int, float]]:
    values = entry["values"]
    if isinstance(values, dict):
        pairs = [(int(step), value) for step, value in values.items() if str(step).strip().lstrip("-").isdigit()]
    else:
        start, interval = int(entry.get("start_step", 0)), max(1, int(entry.get("step_interval", 1)))
        pairs = [(start + i * interval, value) for i, value in enumerate(values)]
    for step, value in sorted(pairs, key=lambda p: p[0]):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield step, float(value) if math.isfinite(value) else math.nan
        elif not (isinstance(value, str) and value.lower() in ("nan", "inf", "-inf")):
            log.problem("a value that is no number")


SOURCES.add("megatron_golden", Golden(), __name__)
