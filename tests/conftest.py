"""Benches measure ratios on a quiet machine: they run when named (`pytest tests/bench`), not with the suite."""

import sys

collect_ignore = [] if any("bench" in word for word in sys.argv[1:]) else ["bench"]
