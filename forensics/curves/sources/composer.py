"""Console of Composer and LLM Foundry: `[batch=10/100]:`, then `Train loss/train/total: 5.25` a line.

Follows `composer/loggers/console_logger.py` (0.11 to 0.30). The batch counts from 1; `time/token` is the running total.
"""

from __future__ import annotations

import re

from forensics.curves.sources.base import SOURCES
from forensics.curves.sources.console import PairLines

COMPOSER = PairLines(
    name="composer",
    doc="console of Composer and LLM Foundry: [batch=N/M]: and lines of Train key: value",
    header=re.compile(r"\[batch=(?P<step>\d+)/\d+\]:\s*$"),
    pair=re.compile(r"^\s+(?:Train|Eval) (?P<key>\S[^:]*): (?P<value>\S+)\s*$"),
)
SOURCES.add("composer", COMPOSER, __name__)
