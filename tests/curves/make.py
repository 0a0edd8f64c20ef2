"""Small curves with a known shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from forensics.curves.event import Context
from forensics.curves.series import Curves, Series
from forensics.curves.settings import settings
from forensics.schemas import METRICS, Metrics


def steps(n: int, first: int = 1, every: int = 1) -> np.ndarray:
    return first + every * np.arange(n, dtype=np.int64)


def loss(n: int = 2000, sd: float = 0.015, seed: int = 0) -> np.ndarray:
    """A healthy loss: a power law with normal noise."""
    s = np.arange(1, n + 1)
    return 1.7 + 6 * (s + 20.0) ** -0.35 + np.random.default_rng(seed).normal(0, sd, n)


def norm(n: int = 2000, seed: int = 1) -> np.ndarray:
    return 0.25 + np.exp(np.random.default_rng(seed).normal(np.log(0.15), 0.5, n))


def curves(run: str = "run", ranks: dict[str, dict[int, np.ndarray]] | None = None, step: np.ndarray | None = None, **metrics: Any) -> Curves:
    """Curves over steps from 1, or over the steps given; a pair (steps, values) brings its own. `__` in a name stands for `/`."""
    out = {}
    for name, value in metrics.items():
        s, v = value if isinstance(value, tuple) else (steps(len(value)) if step is None else step[: len(value)], value)
        out[name.replace("__", "/")] = Series(name.replace("__", "/"), np.asarray(s, dtype=np.int64), np.asarray(v, dtype=np.float64))
    by_rank = {k: {r: Series(k, steps(len(v)), v) for r, v in rows.items()} for k, rows in (ranks or {}).items()}
    return Curves(run, out, by_rank)


def context(over: dict[str, Any] | None = None, beside: dict[str, Any] | None = None, **metrics: Any) -> Context:
    return Context(curves(**metrics), settings(over), **(beside or {}))


def table(step: np.ndarray, launch: np.ndarray | None = None, run: str = "run", **metrics: np.ndarray) -> Metrics:
    """The long form of some curves."""
    parts = []
    for name, value in metrics.items():
        n = len(value)
        parts.append(METRICS.of({
            "run": [run] * n, "launch": pa.array(np.zeros(n, np.int16) if launch is None else launch.astype(np.int16)), "metric": [name] * n,
            "step": np.asarray(step, np.int64), "value": np.asarray(value, np.float64),
        }))  # fmt: skip
    return Metrics(METRICS.concat(parts))
