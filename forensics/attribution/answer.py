"""The answer of a proof in words and as a table: one way for a replay and for `forensics verify`."""

from __future__ import annotations

from typing import Any

import numpy as np

from forensics.attribution.verify import Correlation, Holding
from forensics.schemas import PROOF, Proof

WORDS = {
    "proven": "the logged loss follows the reconstructed steps",
    "contradicted": "the logged loss does not follow the reconstructed steps",
    "off_by_k": "the logged loss follows the reconstructed steps at another step number",
    "inconclusive": "the curve does not decide",
}


def curve_line(holding: Holding, answer: str | None = None) -> str:
    """What the curve says with its numbers, in a line; opened by its answer, but where `answer`, that of all that is known, is another."""
    w = holding.whole
    opening = "" if answer not in (None, holding.answer) else f"{holding.answer.replace('_', ' ')}: "
    if not np.isfinite(w.r.get(0, float("nan"))):
        return f"loss curve: {opening}nothing to correlate in {w.points} logged losses without events (too few, or all alike)"
    other = max((v for k, v in w.r.items() if k != 0 and np.isfinite(v)), default=float("nan"))
    unit = "" if w.every == 1 else f" ({'means' if w.averaged else 'values'} of every {w.every} steps)"
    numbers = f"r {w.r.get(0, float('nan')):.2f} at lag 0, at most {other:.2f} at the others, standard error {w.error:.3f}, {w.points} points{unit}"
    part = f"; the tokens read carry {w.reliability:.2f} of the difficulty's variance" if w.reliability < 1 else ""
    why = "; it follows steps nearby as well: some rows may belong to another step" if w.strays else ""
    return f"loss curve: {opening}{WORDS[holding.answer]}{why} ({numbers}{part}; steps {w.first} to {w.last})"


def offset_line(holding: Holding) -> str:
    """What to correct where the description is off by some steps; empty where it is not."""
    w = holding.whole
    if w.answer != "off_by_k":
        return ""
    return f"what the description gives to step t was read at step t{w.lag * w.every:+d}: correct `consumed`, `after_step` or the log's numbering"


def split_line(holding: Holding) -> str:
    """Where the description ceases to hold; empty where it holds throughout or nowhere."""
    if holding.split is None or holding.before is None or holding.after is None:
        return ""
    sides = ((f"up to step {holding.split - 1}", holding.before), (f"from step {holding.split} on", holding.after))
    said = "; ".join(f"{where}: {s.answer.replace('_', ' ')}{f' by {s.lag:+d}' if s.lag else ''} (r {s.r.get(0, float('nan')):.2f})" for where, s in sides)
    return f"the description does not hold throughout: {said}; look for a restart, a changed blend or batch size there"


def proof_table(name: str, found: Correlation) -> Proof:
    """One row per lag."""
    lags = sorted(found.r)
    n = len(lags)
    known = [None if not np.isfinite(found.r[k]) else found.r[k] for k in lags]
    columns = {"subject": [name] * n, "lag": lags, "r": known, "standard_error": [found.error if np.isfinite(found.error) else None] * n}
    return Proof(PROOF.of({**columns, "steps": [found.points] * n, "answer": [found.answer] * n}))


def plain(holding: Holding) -> dict[str, Any]:
    """For `verdict.json`."""
    w = holding.whole
    at_zero = w.r.get(0, float("nan"))
    return {
        "answer": holding.answer,
        "lag": w.lag,
        "r": round(at_zero, 4) if np.isfinite(at_zero) else None,
        "standard_error": round(w.error, 4) if np.isfinite(w.error) else None,
        "steps": w.points,
        "split": holding.split,
        "sentence": "; ".join(line for line in (curve_line(holding), offset_line(holding), split_line(holding)) if line),
    }
