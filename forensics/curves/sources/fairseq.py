"""Text logs whose lines end in a JSON record: fairseq and metaseq (`| train_inner | {"loss": "5.3", "num_updates": "100"}`), and like ones.

Follows `fairseq/logging/progress_bar.py` (JsonProgressBar; fairseq 0.9 to 0.12, metaseq). Numbers stand in strings.
fairseq prints losses to base 2: where a record's perplexity is 2 to the power of its loss, losses are turned into nats.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from forensics.curves.names import resolve
from forensics.curves.sources.base import SOURCES, Block, Head, Log, head_of
from forensics.curves.sources.console import DATE
from forensics.curves.sources.jsonl import roles_of
from forensics.curves.sources.roles import Pairs, clock, number

_NAMES = {
    "wps": "tokens_per_second",
    "ups": "steps_per_second",
    "wall": "elapsed_time",
    "train_wall": "",
    "clip": "clip_share",
    "bsz": "batch_size",
    "wpb": "batch_tokens",
    "update": "",
    "train_num_updates": "",
    "valid_num_updates": "",
}
_RECORD = re.compile(r"\{.*\}\s*$")


def _record(text: str) -> dict[str, Any] | None:
    """The JSON object at a line's end, as long as something stands before it."""
    at = text.find("{")
    if at <= 0 or not _RECORD.search(text, at) or not text[:at].strip():
        return None
    try:
        record = json.loads(text[at:])
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


class JsonConsole:
    """Lines with a JSON record at their end."""

    name = "fairseq"
    doc = "text lines that end in a JSON record: fairseq, metaseq"

    def sniff(self, head: Head) -> int:
        """A record with a loss behind some text."""
        if head.binary:
            return 0
        found = (_record(row) for row in head.rows[:3000] if "{" in row and '"' in row)
        return (
            58 if any(r is not None and any(resolve(k)[0] in ("train_loss", "eval_loss") and number(v) is not None for k, v in r.items()) for r in found) else 0
        )

    def read(self, log: Log) -> Iterator[Block]:
        """Blocks in file order."""
        first = [r for r in map(_record, head_of(log.path).rows) if r is not None]
        roles = roles_of(first, log)
        pairs = Pairs(roles)
        for line, text, torn in log.lines():
            record = _record(text) if "{" in text else None
            if record is None:
                if torn and "{" in text:
                    log.problem("the last record is cut short; it is left out", line)
                continue
            record = _nats({_NAMES.get(key, key): value for key, value in record.items() if _NAMES.get(key, key)})
            date = DATE.search(text[: text.find("{")])
            if roles.time is None and date is not None:
                roles.time = "_line_time"
            if date is not None and roles.time == "_line_time":
                record["_line_time"] = clock(date[1] or date[2])
            pairs.add(record, line)
            if pairs.full:
                yield from pairs.cut()
        yield from pairs.cut()


def _nats(record: dict[str, Any]) -> dict[str, Any]:
    """Losses to base 2 turned into nats, where the perplexity beside them says so."""
    changed = dict(record)
    for key, value in record.items():
        if key.endswith("loss") and (loss := number(value)) is not None:
            ppl = number(record.get(key[: -len("loss")] + "ppl"))
            if ppl is not None and 0 < loss < 60 and abs(2**loss - ppl) <= 0.02 * ppl and abs(math.exp(loss) - ppl) > 0.02 * ppl:
                changed[key] = loss * math.log(2)
    return changed


SOURCES.add("fairseq", JsonConsole(), __name__)
