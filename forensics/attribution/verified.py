"""What a check of a run description came to, as data and in words: the answer of `pipelines.verify`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.attribution.answer import curve_line, offset_line, split_line
from forensics.attribution.parts import Parts
from forensics.attribution.verify import Correlation, Holding

COVER, LEAST_COVERED = 0.25, 40  # share of the steps in launches with fewer event-free steps than this from which nothing is proven


@dataclass(frozen=True)
class Checked:
    """One description, or one candidate of it.

    Attributes:
        name: which.
        identity: the identity checks in one line; contradictions with their places.
        agrees: whether they do; None where there are none.
        holding: what the curve says; None where it could not be asked.
        parts: what it says of each launch and corpus.
        why: why not.
        data: hash of what the checked rows hold: equal for candidates that read the same.
        curve: steps, difficulty and which have no event.
        rival: a neighbouring description that the loss follows instead, in words.
        untold: one that reads a few other rows and that the loss does not tell from this one.
        unseen: launches with too few event-free steps to say anything of them; unseen_share: of the steps looked at.
    """

    name: str
    identity: str
    agrees: bool | None
    holding: Holding | None = None
    parts: Parts | None = None
    why: str = ""
    data: str = ""
    curve: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]] | None = None
    rival: str = ""
    untold: str = ""
    unseen: tuple[int, ...] = ()
    unseen_share: float = 0.0

    @property
    def answer(self) -> str:
        """Contradicted where the run's own files or a part of the curve contradict it, else what the curve says."""
        return self._judged[0]

    @property
    def reason(self) -> str:
        """Why that is the answer, where the curve as a whole says something else or was not asked; else empty."""
        return self._judged[1]

    @property
    def _judged(self) -> tuple[str, str]:
        if self.agrees is False:
            return "contradicted", "the run's own files contradict it"
        if self.holding is None:
            return "inconclusive", self.why
        parts = self.parts or Parts()
        if self.holding.answer != "proven":
            return self.holding.answer, ""
        if self.rival:
            return "contradicted", f"the loss follows {self.rival}, better than this description"
        if parts.failed or parts.slips:
            return "contradicted", f"the loss follows it as a whole, but not {', '.join(parts.failed) or 'at the edges of batches'}"
        if parts.open:
            return "inconclusive", f"the loss follows it as a whole, but is not seen to follow {', '.join(parts.open)}"
        if self.unseen_share > COVER:
            every, few = self.holding.whole.every, ", ".join(map(str, self.unseen[:8])) + (", ..." if len(self.unseen) > 8 else "")
            long = f" (with values of every {every} steps, a launch of {every * LEAST_COVERED})" if every > 1 else ""
            return "inconclusive", f"followed as a whole, but launch {few} alone cannot be checked: fewer than {LEAST_COVERED} event-free logged steps{long}"
        return "proven", ""


@dataclass(frozen=True)
class Verified:
    """The answer.

    Attributes:
        checked: the description itself, None where it does not decide an order.
        candidates: by trial, the best first.
        chosen: name of the candidate that the curve singles out.
        same: candidates that read the same rows as another one in the steps checked: name -> that one.
        notes: what the description leaves to assumption.
    """

    checked: Checked | None
    candidates: tuple[Checked, ...] = ()
    chosen: str | None = None
    same: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def answer(self) -> str:
        """Of the description."""
        return self.checked.answer if self.checked else "inconclusive"


def summary(done: Verified) -> dict[str, Any]:
    """Everything as plain data."""

    def one(c: Checked) -> dict[str, Any]:
        h = c.holding
        parts = None if h is None else {"whole": _numbers(h.whole), "split": h.split, "before": _numbers(h.before), "after": _numbers(h.after)}
        slopes = [] if c.parts is None else [asdict(x) for x in c.parts.slopes]
        slips = None if c.parts is None else {"before": c.parts.slip_before, "after": c.parts.slip_after}
        return {
            "name": c.name,
            "answer": c.answer,
            "identity": c.identity,
            "why": c.reason or None,
            "rival": c.rival or None,
            "untold": c.untold or None,
            "curve": parts,
            "parts": slopes,
            "slips": slips,
        }

    return {
        "answer": done.answer,
        "notes": list(done.notes),
        "checked": one(done.checked) if done.checked else None,
        "candidates": [one(c) for c in done.candidates],
        "chosen": done.chosen,
        "same": dict(done.same),
    }


def _numbers(c: Correlation | None) -> dict[str, Any] | None:
    if c is None:
        return None
    return {
        **asdict(c),
        "r": {str(k): None if not np.isfinite(v) else round(v, 4) for k, v in c.r.items()},
        "error": round(c.error, 4) if np.isfinite(c.error) else None,
    }


def sentence(c: Checked) -> list[str]:
    """The answer in words, with its numbers."""
    lines = [c.identity] if c.identity else []
    if c.holding is None:
        return [*lines, f"loss curve: not asked: {c.why}"]
    lines += [line for line in (curve_line(c.holding, c.answer), offset_line(c.holding)) if line]
    if c.unseen and len(c.unseen) < 9 and c.unseen_share <= COVER:
        lines.append(f"not compared: launch {', '.join(map(str, c.unseen))}: fewer than {LEAST_COVERED} event-free logged steps")
    lines += [f"not told apart by the loss: {c.untold}; a few rows at the edges of steps may differ"] if c.untold else []
    lines += part_sentences(c.parts) if c.parts is not None and c.holding.whole.answer == "proven" else []
    split = split_line(c.holding)
    return [*lines, split] if split else lines


def part_sentences(parts: Parts) -> list[str]:
    """What the curve says of launches and corpora."""
    if parts.why_not:
        return [f"by launch and corpus: not evaluated: {parts.why_not}"]
    shown = ", ".join(f"{s.name} {s.ratio:.2f} +- {s.error:.2f}" for s in parts.slopes[:8])
    out = [f"by launch and corpus, slope by the common one: {shown}"]
    out += [f"{name}: the loss follows the rest, but not what the description gives to this part: other rows of it were read" for name in parts.failed]
    if parts.slips:
        which = "before" if parts.slip_before > parts.slip_after else "after"
        z = max(parts.slip_before, parts.slip_after)
        out.append(f"rows at the edge of a batch belong to the step {which} it ({z:.1f} standard errors): the order of the blend differs")
    out += [f"{name}: enough steps hold it, yet the loss is not seen to follow it: not decided" for name in parts.open]
    small = [s.name for s in parts.slopes if not s.holds and not s.fails and not s.open]
    return [*out, f"not decided for {', '.join(small[:6])}: too few logged steps hold enough of it"] if small else out
