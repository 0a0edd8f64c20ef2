"""MLPerf training logs: `:::MLLOG {"key": ..., "value": ..., "metadata": {...}, "time_ms": ...}`.

Follows mlcommons/logging and the callbacks of mlperf_common (2023 to 2025). Language-model benchmarks count in samples:
`samples_count`, and also `step` of `tracked_stats`, is a number of sequences, which the global batch size turns into
steps. `eval_accuracy` is the validation log perplexity there, in spite of its name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from forensics.curves.names import resolve, scaled
from forensics.curves.sources.base import SOURCES, Block, Head, Log, Recorder
from forensics.curves.sources.roles import number

_MARK = ":::MLLOG"
_AXES = ("samples_count", "step", "step_num", "epoch_num", "first_step_num", "iteration")


class MLLog:
    """MLPerf logs."""

    name = "mllog"
    doc = "MLPerf training logs (:::MLLOG lines)"

    def sniff(self, head: Head) -> int:
        """A line with the mark."""
        return 92 if _MARK.encode() in head.data and not head.binary else 0

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order."""
        recorder = Recorder()
        batch: float | None = None
        length = log.options.sequence_length
        for line, text, torn in log.lines():
            at = text.find(_MARK)
            if at < 0:
                continue
            try:
                entry = json.loads(text[at + len(_MARK) :])
            except (ValueError, RecursionError):
                log.problem("the last record is cut short; it is left out" if torn else "a record that is no JSON", line)
                continue
            if not isinstance(entry, dict):
                continue
            key, value = str(entry.get("key", "")), entry.get("value")
            if key == "global_batch_size":
                batch = number(value)
            elif key == "max_sequence_length" and length is None:
                found = number(value)
                length = int(found) if found else None
            meta = entry.get("metadata")
            where = _where(meta if isinstance(meta, dict) else {}, batch)
            values = list(_values(key, value))
            if where is None or not values:
                continue
            step, samples = where
            clock = number(entry.get("time_ms"))
            if samples is not None:
                values.append(("consumed_samples", samples))
            tokens = int(samples * length) if samples is not None and length else -1
            recorder.add(step, values, line, time=math.nan if clock is None else clock / 1e3, tokens=tokens)
            if recorder.full:
                yield from recorder.cut()
        yield from recorder.cut()


def _where(meta: dict[str, Any], batch: float | None) -> tuple[int, float | None] | None:
    """Step, and the samples it was counted in."""
    for axis in _AXES:
        at = number(meta.get(axis))
        if at is None or not math.isfinite(at):
            continue
        if axis in ("samples_count", "step") and batch and batch > 1:
            return (int(at // batch), at) if at % batch == 0 else None  # steps of a validation are numbered in their own way
        return int(at), at if axis == "samples_count" else None
    return None


def _values(key: str, value: Any) -> Iterator[tuple[str, float]]:
    if key == "tracked_stats" and isinstance(value, dict):
        mean = "throughput" in value  # a summary of many steps, in samples a second
        for raw, cell in value.items():
            if (mean and raw == "train_step_time") or str(raw).startswith("validation_step"):  # the latter count validation's own steps
                continue
            raw = "samples_per_second" if raw == "throughput" else raw
            found = number(cell)
            if found is not None:
                name, factor = resolve(str(raw))
                yield name, scaled(found, factor)
    elif key in ("eval_accuracy", "eval_loss", "eval_error", "train_loss", "loss"):
        found = number(value)
        if found is not None:
            yield ("eval_loss" if key == "eval_accuracy" and found > 1 else resolve(key)[0]), found


SOURCES.add("mllog", MLLog(), __name__)
