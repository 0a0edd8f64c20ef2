"""Console of OLMo and OLMo-core: a header `[step=N/M,epoch=E]`, then one `key=value` a line.

Follows `olmo/train.py` (log_metrics_to_console, 2023 to 2025) and OLMo-core's console logger callback. Numbers carry
thousands separators; metrics are missing on some steps. OLMo's MB is 1e6 bytes. Steps as printed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from forensics.curves.names import resolve, scaled
from forensics.curves.sources.base import SOURCES, Block, Head, Log, Recorder
from forensics.curves.sources.console import DATE
from forensics.curves.sources.roles import clock, number

_HEADER = re.compile(r"\[step=(?P<step>[\d,]+)/[\d,?]+(?:,[^\]]*)?\]")
_PAIR = re.compile(r"^\s+(?P<key>\S[^=]*)=(?P<value>\S+)\s*$")


class Olmo:
    """OLMo's console."""

    name = "olmo"
    doc = "console of OLMo and OLMo-core: [step=N/M,...] and key=value lines"

    def sniff(self, head: Head) -> int:
        """A header with a pair behind it."""
        rows = head.rows
        return 92 if any(_HEADER.search(a) and _PAIR.match(b) for a, b in zip(rows, rows[1:])) else 0

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order."""
        recorder = Recorder()
        step, at, first = 0, math.nan, 0
        values: list[tuple[str, float]] | None = None
        tokens = -1
        for line, text, torn in log.lines():
            pair = _PAIR.match(text) if values is not None else None
            if values is not None and pair is not None:
                if torn:
                    log.problem("the last line lacks its line feed; its value may be cut short and is left out", line)
                    continue
                found = number(pair["value"])
                name, factor = resolve(pair["key"].strip())
                if found is None:
                    log.problem(f"`{pair['key'].strip()[:40]}` holds no number", line)
                elif name == "consumed_tokens":
                    tokens = int(found) if math.isfinite(found) else -1
                else:
                    values.append((name, scaled(found, factor)))
                continue
            if values:
                recorder.add(step, values, first, time=at, tokens=tokens)
            values = None
            header = _HEADER.search(text)
            if header is not None:
                date = DATE.search(text)
                step, first, values, tokens = int(header["step"].replace(",", "")), line, [], -1
                at = clock(date[1] or date[2]) if date else math.nan
            if recorder.full:
                yield from recorder.cut()
        if values:
            recorder.add(step, values, first, time=at, tokens=tokens)
        yield from recorder.cut()


SOURCES.add("olmo", Olmo(), __name__)
