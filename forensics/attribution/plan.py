"""Control experiments: one change at a time, with what each hypothesis predicts, and how their results change the verdict.

A successful skip is no proof of dirty data: spikes belong to pairs of a batch and a state, and removing any batch can
remove them. Only the comparison with a control removal tells the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from forensics.attribution.signals import Signals, robust_line
from forensics.steps import StepRange


@dataclass(frozen=True)
class Experiment:
    """One rerun to make.

    Attributes:
        name: what to call its log when it is given back (`--experiment NAME=LOG`).
        change: the one thing that differs.
        command: shell lines that make its inputs.
        predicts: hypothesis -> outcome.
    """

    name: str
    change: str
    command: str
    predicts: Mapping[str, str]


def experiments(run: str, checkpoint: int | None, window: StepRange, cause: str, documents: int) -> list[Experiment]:
    """The plan for one verdict, most telling first."""
    start = f"the checkpoint of step {checkpoint}" if checkpoint is not None else "the last checkpoint before the event"
    steps = f"{window.start}:{window.stop}"
    shifted = f"{window.start + len(window)}:{window.stop + len(window)}"
    plan = [
        Experiment(
            "replay",
            f"nothing: {start}, the same batches",
            f"forensics dump {run} --steps {steps} -o replay/",
            {
                "data": "the event comes back",
                "numerics": "it comes back when a setting is at fault, not after a transient fault",
                "hardware": "it does not come back on other devices",
                "interaction": "it comes back",
                "loader": "it comes back",
            },
        ),
        Experiment(
            "removal",
            f"{start}, the suspect {'documents' if documents else 'steps'} left out",
            "forensics manifest CASE --for TRAINER",
            {"data": "no event", "numerics": "the event stays", "hardware": "no statement", "interaction": "no event", "loader": "the event stays"},
        ),
        Experiment(
            "control",
            f"{start}, as many ordinary documents left out, or the data shifted to {shifted}",
            f"forensics dump {run} --steps {shifted} -o control/",
            {
                "data": "the event stays when ordinary documents go",
                "numerics": "the event stays",
                "hardware": "no statement",
                "interaction": "no event: any change of the batch removes it",
                "loader": "the event stays",
            },
        ),
    ]
    settings = Experiment(
        "settings",
        f"{start}, learning rate halved; then, apart, the clip halved",
        "",
        {"data": "smaller, not gone", "numerics": "gone", "interaction": "gone", "hardware": "no statement", "loader": "no statement"},
    )
    return [plan[0], settings, *plan[1:]] if cause == "numerics" else [*plan, settings]


@dataclass(frozen=True)
class Outcome:
    """Whether the event came back in one experiment: its height there against the run's own, and the noise of that ratio."""

    name: str
    back: bool | None
    ratio: float
    error: float


def outcome(name: str, run: Signals, other: Signals, onset: int, stop: int) -> Outcome:
    """Compare the excess over the line before the onset in both curves; None where the rerun does not cover the event."""
    base, again = run.get("train_loss"), other.get("train_loss")
    before = (base.steps < onset) & (base.steps >= onset - 200)
    level, slope, sd = robust_line(base.steps, base.values, before)
    here = (base.steps >= onset) & (base.steps < stop)
    steps = base.steps[here]
    theirs = again.at(steps)
    ok = np.isfinite(theirs) & np.isfinite(base.values[here])
    if ok.sum() < 2 or sd <= 0:
        return Outcome(name, None, float("nan"), float("nan"))
    line = level + slope * steps[ok]
    x, y = base.values[here][ok] - line, theirs[ok] - line
    ratio = float((x * y).sum() / max((x * x).sum(), 1e-12))
    error = float(sd / max(np.sqrt((x * x).sum()), 1e-12))
    if float(np.sqrt((x * x).mean())) < 1.5 * sd and abs(float(x.mean())) < 4 * sd / np.sqrt(ok.sum()):
        return Outcome(name, None, ratio, error)
    return Outcome(name, ratio > 0.5, ratio, error)


def reading(outcomes: Mapping[str, Outcome]) -> tuple[str, str] | None:
    """The cause that finished experiments show, and why; None where they do not settle it."""
    replay, removal, control = (outcomes.get(n) for n in ("replay", "removal", "control"))
    if replay is not None and replay.back is False:
        return "hardware", "the same batches from the same checkpoint gave no event: a transient fault"
    if removal is not None and removal.back is False and control is not None:
        if control.back is False:
            return "interaction", "the event goes whichever documents are removed: this batch with this state, not dirty data"
        if control.back is True:
            return "data", "the event goes with the suspect documents and stays when as many ordinary ones are removed"
    if removal is not None and removal.back is True:
        return "numerics", "the event stays without the suspect documents"
    return None
