"""Console of OLMo and OLMo-core: a header `[step=N/M,epoch=E]`, then one `key=value` a line.

Follows `olmo/train.py` (log_metrics_to_console, 2023 to 2025) and OLMo-core's console logger callback. Numbers carry
thousands separators; metrics are missing on some steps. OLMo's MB is 1e6 bytes. Steps as printed.
"""

from __future__ import annotations

import re

from forensics.curves.sources.base import SOURCES
from forensics.curves.sources.console import PairLines

OLMO = PairLines(
    name="olmo",
    doc="console of OLMo and OLMo-core: [step=N/M,...] and key=value lines",
    header=re.compile(r"\[step=(?P<step>[\d,]+)/[\d,?]+(?:,[^\]]*)?\]"),
    pair=re.compile(r"^\s+(?P<key>\S[^=]*)=(?P<value>\S+)\s*$"),
)
SOURCES.add("olmo", OLMO, __name__)
