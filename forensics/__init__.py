"""forensics: from a loss spike to the documents that were consumed, a verdict and a skip list."""

from __future__ import annotations

__version__ = "0.1.0"
