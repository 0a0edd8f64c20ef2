"""modded-nanogpt's log: `step:919/19073 train_loss:4.31 train_time:131066ms step_avg:144.19ms`.

Follows the record logs of KellerJordan/modded-nanogpt (2024 to 2026). The file begins with the source of the training
program, which holds strings like `step:`; only lines that begin with the record count. `train_time` excludes
evaluations; `step_avg` is the mean since the start, so the time of a step is taken from differences of `train_time`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from forensics.curves.sources.base import SOURCES, Block, Head, Log, Recorder
from forensics.curves.sources.roles import number

_RECORD = re.compile(r"^s?\s*step:(\d+)/(\d+)\s+(.*)$")
_FIELD = re.compile(r"(\w+):\s*(-?[\d.]+(?:[eE][-+]?\d+)?|nan|inf)(ms|s)?(?=\s|$)")
_NAMES = {"train_loss": "train_loss", "val_loss": "eval_loss", "loss": "train_loss", "lr": "learning_rate", "grad_norm": "grad_norm"}


class ModdedNanoGPT:
    """modded-nanogpt's text log."""

    name = "modded_nanogpt"
    doc = "modded-nanogpt's log file: step:N/M train_loss:X train_time:Tms"

    def sniff(self, head: Head) -> int:
        """A record, or the program's source before the first one."""
        if any(_RECORD.match(row) for row in head.rows):
            return 90
        return 45 if head.data.startswith(b"=" * 40 + b"=") and b"import torch" in head.data else 0

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order."""
        recorder = Recorder()
        before: tuple[int, float] | None = None
        for line, text, torn in log.lines():
            found = _RECORD.match(text)
            if found is None:
                continue
            step, values = int(found[1]), []
            fields = list(_FIELD.finditer(found[3]))
            for field in fields[:-1] if torn else fields:
                value = number(field[2])
                if value is None:
                    continue
                if field[1] == "train_time":
                    elapsed = value / 1e3 if field[3] == "ms" else value
                    values.append(("elapsed_time", elapsed))
                    if before is not None and step > before[0] and elapsed >= before[1]:
                        values.append(("step_time", round((elapsed - before[1]) / (step - before[0]), 9)))
                    if before is None or step != before[0]:
                        before = (step, elapsed)
                elif field[1] in _NAMES:
                    values.append((_NAMES[field[1]], value))
            if torn:
                log.problem("the last line is cut short; its whole fields are kept", line)
            if values:
                recorder.add(step, values, line)
            if recorder.full:
                yield from recorder.cut()
        yield from recorder.cut()


SOURCES.add("modded_nanogpt", ModdedNanoGPT(), __name__)
