"""mlx-lm's console: `Iter 70: Train loss 2.786, Learning Rate 1.000e-05, It/sec 17.598, Tokens/sec 1728.137, Trained Tokens 6521, Peak mem 1.437 GB`.

Follows `mlx_lm/tuner/trainer.py` of ml-explore/mlx-lm (2024 to 2025); its GB is 1e9 bytes since 2025 and was 2^30 before.
"""

from __future__ import annotations

import re

from forensics.curves.sources.base import SOURCES
from forensics.curves.sources.console import LineFormat

MLX = LineFormat(
    name="mlx",
    doc="mlx-lm's console: Iter N: Train loss X, Learning Rate Y, ...",
    record=re.compile(r"^Iter (?P<step>\d+): (?=Train loss|Val loss)"),
    pairs=re.compile(
        r"(?P<key>Train loss|Val loss|Val took|Learning Rate|It/sec|Tokens/sec|Trained Tokens|Peak mem)\s+"
        r"(?P<value>[-\d.,]*\d(?:[eE][-+]?\d+)?\s*(?:[KMG]B|s)?|nan|inf)"
    ),
    names={"Val took": "eval_time", "Val loss": "eval_loss"},
    sure=95,
)
SOURCES.add("mlx", MLX, __name__)
