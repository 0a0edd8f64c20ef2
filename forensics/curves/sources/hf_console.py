"""Console of Hugging Face's Trainer: progress bars, Python dicts of metrics, and DeepSpeed's overflow messages between them.

A dict names no step: it belongs to the number that the training progress bar shows last (`380/2724 [14:02:33<...`). Bars
of evaluations have another total and are passed over. Without bars (tqdm switched off) the dicts of training are
numbered from 1, which is reported. An overflow message comes while the bar still shows the step before.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from forensics.curves.sources.base import SOURCES, Block, Head, Log
from forensics.curves.sources.console import DATE
from forensics.curves.sources.roles import Pairs, Roles, clock, number
from forensics.curves.sources.trainer_state import without_summary

_DICT = re.compile(r"\{'[A-Za-z][^{}]*\}")
_PAIR = re.compile(r"'([^']+)':\s*'?([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))'?(?=[,}])", re.I)
_BAR = re.compile(r"(\d+)/(\d+) \[\d")
_OVERFLOW = re.compile(r"OVERFLOW!.*?Skipping step\. Attempted loss scale: ([\d.e+]+), (?:reducing to|but hysteresis.*?) ?([\d.e+]*)")
_PART = re.compile(rf"(?P<dict>{_DICT.pattern})|(?P<bar>{_BAR.pattern})|(?P<overflow>OVERFLOW![^\r\n]*)")


def _is_metrics(text: str) -> bool:
    keys = [k for k, _ in _PAIR.findall(text)]
    return "loss" in keys or "train_runtime" in keys or any(k.startswith("eval_") for k in keys)


class HfConsole:
    """The Trainer's console."""

    name = "hf_console"
    doc = "console of Hugging Face's Trainer: {'loss': ..., 'learning_rate': ...} and progress bars"

    def sniff(self, head: Head) -> int:
        """A Python dict with a loss, or DeepSpeed's overflow beside a progress bar."""
        if head.binary:
            return 0
        text = head.text
        if any(_is_metrics(d[0]) for d in _DICT.finditer(text)):
            return 65
        return 45 if "OVERFLOW!" in text and _BAR.search(text) else 0

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order."""
        state = _State(log)
        for line, text, torn in log.lines():
            for part in _PART.finditer(text):
                if not (torn and part["overflow"]):  # its numbers may be cut short
                    state.part(part, text, line)
            if torn and "{'" in text and not text.rstrip().endswith("}"):
                log.problem("the last record is cut short; it is left out", line)
            if state.pairs.full:
                yield from state.pairs.cut()
        if state.unnumbered:
            log.problem("no progress bar: records are numbered from 1", count=state.unnumbered)
        yield from state.pairs.cut()


class _State:
    """Where the training bar stands."""

    def __init__(self, log: Log) -> None:
        self.log = log
        keys = ["global_step", "time", "loss", "learning_rate", "grad_norm", "epoch", "loss_scale", "skipped_steps"]
        self.pairs = Pairs(Roles(keys, {"time": 1e9}, log.options))
        self.total: int | None = None
        self.step: int | None = None
        self.unnumbered = 0
        self.counted = 0

    def part(self, part: re.Match[str], text: str, line: int) -> None:
        """A bar, a dict or an overflow."""
        if part["bar"]:
            done, total = (int(n) for n in part["bar"].split(" ")[0].split("/"))
            if self.total is None:
                self.total = total
            if total == self.total:
                self.step = done
        elif part["dict"]:
            self._dict(part["dict"], line)
        elif (found := _OVERFLOW.search(part["overflow"])) and self.step is not None:
            date = DATE.search(text[: part.start()])
            record: dict[str, Any] = {"global_step": self.step + 1, "skipped_steps": 1.0, "loss_scale": number(found[2] or found[1])}
            at = clock(date[1] or date[2]) if date else math.nan
            self.pairs.add(record if math.isnan(at) else {**record, "time": at}, line)

    def _dict(self, text: str, line: int) -> None:
        if not _is_metrics(text):
            return
        record: dict[str, Any] = without_summary({key: number(value) for key, value in _PAIR.findall(text)})
        if not any(k == "loss" or k.startswith("eval_") for k in record):
            return
        step = self.step
        if step is None:
            self.unnumbered += 1
            self.counted += "loss" in record
            step = self.counted
        self.pairs.add({**record, "global_step": step}, line)


SOURCES.add("hf_console", HfConsole(), __name__)
