"""Whether a flat loss has met the size of the model: L(N, D) = E + A/N^a + B/D^b, from own smaller runs where they are given.

With own runs the law predicts a loss, and a plateau at the prediction whose data term is small against its size term is capacity. Without them
only the ratio of the two terms is known, by published constants that were fitted to another tokenizer and other data: then the word is said with
low confidence and no loss is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forensics.curves.event import Context, Event
from forensics.curves.plateaus import plateau
from forensics.curves.settings import Model, SmallRun
from forensics.curves.trend import Floats
from forensics.curves.whole import tokens_at

LEAST = 7  # runs that five constants and a scatter are fitted to


@dataclass(frozen=True)
class SizeLaw:
    """Loss by parameters and tokens.

    Attributes:
        floor, a_factor, a_exponent, b_factor, b_exponent: E, A, a, B, b.
        sd: scatter of the runs about the law [nats/token]; None where the constants were not fitted here.
        spread: covariance of E, A, B, a, b in units of sd squared, None likewise.
    """

    floor: float
    a_factor: float
    a_exponent: float
    b_factor: float
    b_exponent: float
    sd: float | None = None
    spread: Floats | None = None

    def terms(self, n: float, d: float) -> tuple[float, float]:
        """What the size and what the data leave over the floor."""
        return self.a_factor * n**-self.a_exponent, self.b_factor * d**-self.b_exponent

    def at(self, n: float, d: float) -> float:
        """Expected loss."""
        return self.floor + sum(self.terms(n, d))

    def error(self, n: float, d: float) -> float:
        """Standard error of the expected loss of one more run."""
        if self.sd is None or self.spread is None:
            return float("nan")
        g = _gradient(self, np.array([n]), np.array([d]))[0]
        return float(self.sd * np.sqrt(1.0 + max(0.0, g @ self.spread @ g)))


def published(model: Model) -> SizeLaw:
    """The law of the configured constants."""
    return SizeLaw(model.floor, model.a_factor, model.a_exponent, model.b_factor, model.b_exponent)


def fit(runs: Sequence[SmallRun]) -> SizeLaw | str:
    """Fit the law to finished runs, or say why it cannot be fitted.

    The exponents are searched on a grid, twice, the second time around the best of the first; the other three follow by least squares and must not be negative.
    """
    n, d, y = (np.array([getattr(r, k) for r in runs], dtype=np.float64) for k in ("parameters", "tokens", "loss"))
    if len(runs) < LEAST or len(np.unique(n)) < 3 or len(np.unique(d)) < 3:
        return f"{len(runs)} smaller runs of {len(np.unique(n))} sizes and {len(np.unique(d))} token counts; at least {LEAST} of 3 and 3 are needed"
    best: tuple[float, SizeLaw] | None = None
    grid = np.arange(0.05, 1.01, 0.05)
    a_grid, b_grid = grid, grid
    for width in (0.05, 0.005):
        for a in a_grid:
            for b in b_grid:
                design = np.stack([np.ones(len(y)), (n / n.min()) ** -a, (d / d.min()) ** -b], axis=1)
                coef, *_ = np.linalg.lstsq(design, y, rcond=None)
                cost = float(((y - design @ coef) ** 2).sum())
                if bool((coef >= 0).all()) and (best is None or cost < best[0]):
                    best = cost, SizeLaw(float(coef[0]), float(coef[1] * n.min() ** a), float(a), float(coef[2] * d.min() ** b), float(b))
        if best is None:
            return "the losses of the smaller runs do not fall with size and tokens as such a law does"
        around = np.arange(-10, 11) * width / 10
        a_grid, b_grid = best[1].a_exponent + around, best[1].b_exponent + around
        a_grid, b_grid = a_grid[a_grid > 0.01], b_grid[b_grid > 0.01]
    assert best is not None
    cost, law = best
    g = _gradient(law, n, d)
    scale = np.maximum(np.abs(g).max(axis=0), 1e-300)
    spread = np.linalg.pinv((g / scale).T @ (g / scale)) / np.outer(scale, scale)
    return SizeLaw(law.floor, law.a_factor, law.a_exponent, law.b_factor, law.b_exponent, float(np.sqrt(max(cost, 1e-12) / (len(y) - 5))), spread)


def _gradient(law: SizeLaw, n: Floats, d: Floats) -> Floats:
    """Derivatives of the loss by E, A, B, a, b; float64 [runs, 5]."""
    na, db = n**-law.a_exponent, d**-law.b_exponent
    return np.stack([np.ones(len(n)), na, db, -law.a_factor * na * np.log(n), -law.b_factor * db * np.log(d)], axis=1)


def plateau_capacity(ctx: Context, metric: str = "train_loss") -> list[Event] | str:
    """A flat stretch that the size of the model explains (rule 12)."""
    model = ctx.settings.model
    if model.parameters is None:
        return "the number of parameters is not known: --set model.parameters=1.3e9"
    flat = plateau(ctx, metric)
    if isinstance(flat, str) or not flat:
        return flat
    e, scan = flat[0], ctx.scan(metric)
    d = tokens_at(ctx, e.last)
    if d is None or scan is None:
        return "the tokens consumed are not known: neither they nor the size of a batch were logged"
    law = fit(model.runs) if model.runs else published(model)
    if isinstance(law, str):
        return law
    size, data = law.terms(model.parameters, d)
    evidence = {"size_term": size, "data_term": data, "capacity_ratio": size / max(data, 1e-12), "parameters": model.parameters, "tokens": d}
    holds = data < model.share * size
    if law.sd is not None:
        late = scan.y[(scan.step >= e.start) & (scan.step <= e.last) & (scan.event == 0)]
        seen, expected, error = float(np.median(late[-max(20, len(late) // 4) :])), law.at(model.parameters, d), law.error(model.parameters, d)
        evidence |= {"observed_loss": seen, "expected_loss": expected, "expected_error": error}
        holds = holds and seen - expected <= 2 * error
    if not holds:
        return []
    e.level, e.severity, e.subcause, e.confidence = "notice", "none", "plateau_capacity", "medium" if law.sd is not None else "low"
    e.evidence |= evidence
    return [e]
