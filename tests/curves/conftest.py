"""Lets these tests import their curves from `tests.curves.make` under any way of starting pytest."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
