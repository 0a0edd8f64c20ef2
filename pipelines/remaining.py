"""Where the guilty documents come up again: in steps that were trained after the event, and in those still to come."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from forensics.pipelines.plan import Plan
from forensics.pipelines.seen import too_long
from numpy.typing import NDArray

from forensics.documents.build import label_counts
from forensics.errors import ForensicsError
from forensics.loaders.base import OPEN_END
from forensics.schemas import Consumed, Skips


@dataclass(frozen=True)
class Remaining:
    """What is still to come of the documents to leave out.

    Attributes:
        documents: how many were looked for.
        after: last step that the run has logged; known_to: last step whose order is known.
        trained: later steps than those read here, up to `after`, that hold some of them.
        steps: steps to come that do; first, last: of these; tokens: labels in them.
        why_not: why they were not looked for.
    """

    documents: int
    after: int
    known_to: int | None = None
    trained: int = 0
    steps: int = 0
    first: int | None = None
    last: int | None = None
    tokens: int = 0
    why_not: str = ""

    def plain(self) -> dict[str, Any]:
        """For `verdict.json`."""
        return asdict(self)

    def words(self, exporter: str) -> str:
        """What the action adds; empty where nothing was looked for."""
        if self.why_not:
            return f"where they come up again was not looked for ({self.why_not}): `forensics locate`"
        if self.known_to is None or self.known_to <= self.after:
            return f"what is read after step {self.after:,} is not known here"
        since = f"they came up again in {self.trained:,} steps trained since; " if self.trained else ""
        if not self.steps:
            return f"{since}none of them is still to come (to step {self.known_to:,})"
        found = f"{since}{self.steps:,} steps still to come hold some of them, {self.first:,} to {self.last:,} ({self.tokens:,} tokens)"
        return f"{found}: `forensics manifest CASE --for {exporter} --after {self.after}` leaves these out"


def remaining(plan: Plan, skips: Skips, logged: int | None, exporter: str) -> Remaining | None:
    """Look for the documents of a skip list in the rest of the run; None where it names none.

    Args:
        plan: the replay's.
        skips: its table; documents that are not advised to be left out are looked for too.
        logged: last step with a logged loss, None where nothing was logged.
        exporter: whose terms the list is written in.
    """
    keys = np.array(sorted({k for r in skips.to_pylist() if r["kind"] == "documents" for k in range(r["start"], r["stop"])}), np.int64)
    if not len(keys):
        return None
    launch = plan.launches.num_rows - 1
    end = int(plan.launches["stop_step"][launch].as_py()) - 1
    read = plan.ranges.whole.stop - 1
    after = logged if logged is not None else read
    if end >= OPEN_END - 1:
        return Remaining(len(keys), after, None, why_not="the run has no known end")
    if end <= read:
        return Remaining(len(keys), after, end)
    if why := too_long(plan):
        return Remaining(len(keys), after, end, why_not=why)
    try:
        found = _later(plan, keys, launch, read)
    except ForensicsError as error:
        return Remaining(len(keys), after, end, why_not=error.message)
    step, labels = found["step"].to_numpy(), label_counts(found)
    to_come = np.unique(step[step > after])
    return Remaining(
        len(keys), after, end, len(np.unique(step[step <= after])), len(to_come), int(to_come[0]) if len(to_come) else None,
        int(to_come[-1]) if len(to_come) else None, int(labels[step > after].sum()),
    )  # fmt: skip


def _later(plan: Plan, keys: NDArray[np.int64], launch: int, after: int) -> Consumed:
    """Segments of the documents in steps of the last launch after `after`."""
    from forensics.pipelines.locate import locate

    found = locate(plan.run, keys)
    keep = (found["launch"].to_numpy() == launch) & (found["step"].to_numpy() > after)
    return Consumed(found.filter(keep))
