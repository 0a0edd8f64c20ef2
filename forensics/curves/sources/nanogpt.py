"""nanoGPT (`iter 1631: loss 4.0863, time 561.94ms, mfu 12.3%`) and build-nanogpt (`250 val 3.2521`).

Follows `train.py` of karpathy/nanoGPT and `train_gpt2.py` of karpathy/build-nanogpt. nanoGPT's `time` is that of the
iteration before the print; a negative `mfu` means not measured yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from forensics.curves.sources.base import SOURCES, Block, Head, Log, Recorder
from forensics.curves.sources.console import LineFormat
from forensics.curves.sources.roles import number

NANOGPT = LineFormat(
    name="nanogpt",
    doc="nanoGPT's console: iter N: loss X, time Yms",
    record=re.compile(r"^(?:iter|step) (?P<step>\d+): (?=(?:train )?loss )"),
    pairs=re.compile(r"(?P<key>train loss|val loss|loss|time|mfu|lr|norm)[ :]+(?P<value>-?[\d.]+(?:[eE][-+]?\d+)?(?:ms|s|%)?|nan|inf)"),
    names={"time": "step_time", "train loss": "eval_loss/train", "val loss": "eval_loss"},
    sure=75,
)
BUILD = LineFormat(
    name="build_nanogpt_console",
    doc="build-nanogpt's console: step N | loss: X | lr Y | norm: Z | dt: T ms | tok/sec: R",
    record=re.compile(r"^step\s+(?P<step>\d+)\s*\|\s*(?=loss)"),
    pairs=re.compile(r"(?P<key>[A-Za-z/]+)[ :]+(?P<value>-?[\d.]+(?:[eE][-+]?\d+)?\s*(?:ms)?|nan|inf)"),
    names={"tok/sec": "tokens_per_second", "dt": "step_time", "norm": "grad_norm"},
    sure=75,
)
_SERIES = re.compile(r"^(\d+) (train|val|hella) (\S+)$")
_NAMES = {"train": "train_loss", "val": "eval_loss", "hella": "eval_accuracy/hellaswag"}


class BuildNanoGPT:
    """build-nanogpt's log.txt."""

    name = "build_nanogpt"
    doc = "build-nanogpt's log.txt: step, train|val|hella, value"

    def sniff(self, head: Head) -> int:
        """Nearly all lines are such triples."""
        rows = head.rows[:200]
        return 80 if rows and sum(bool(_SERIES.match(r)) for r in rows) > 0.8 * len(rows) else 0

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order."""
        recorder = Recorder()
        for line, text, torn in log.lines():
            found = _SERIES.match(text)
            value = number(found[3]) if found else None
            if found is None or value is None:
                if text.strip():
                    log.problem("not a record of step, name and value", line)
            elif torn:
                log.problem("the last line is cut short; it is left out", line)
            else:
                recorder.add(int(found[1]), [(_NAMES[found[2]], value)], line)
            if recorder.full:
                yield from recorder.cut()
        yield from recorder.cut()


SOURCES.add(NANOGPT.name, NANOGPT, __name__)
SOURCES.add(BUILD.name, BUILD, __name__)
SOURCES.add(BuildNanoGPT.name, BuildNanoGPT(), __name__)
