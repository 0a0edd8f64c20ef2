"""What is wrong with a document: measures, thresholds, one primary cause.

    measures = measure(batch, config)      # numbers per document, evidence for what stands out
    findings = flag(measures, config)      # a table: what exceeds its threshold, and the one primary cause

Names are resolved on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "DETECTORS": "base",
    "Detector": "base",
    "Evidence": "base",
    "Measure": "base",
    "Measures": "base",
    "Thresholds": "thresholds",
    "read_thresholds": "thresholds",
    "flag": "flagging",
    "measure": "measuring",
    "length_count": "length",
    "length_merge": "length",
    "length_flag": "length",
    "length_findings": "length",
    "language_findings": "languages",
    "scripts_of": "scripts",
    "script_findings": "scripts",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
