"""Control experiments: one change at a time, each with what every hypothesis predicts.

A successful skip is no proof of dirty data: spikes belong to pairs of a batch and a state, and removing any batch can
remove them. Only the comparison with a control removal tells the two apart. What finished experiments say is worked out
in `experiments`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forensics.steps import StepRange

HYPOTHESES = ("data", "numerics", "hardware", "loader", "composition", "interaction")
BACK, GONE = "the event comes back", "no event"
TRANSIENT = frozenset({"gradient_fault", "state_corruption", "optimizer_state"})  # of numerics: a fault that does not repeat itself

# experiment -> hypothesis -> whether the event comes back (None: nothing follows), and words where the plain ones do not do
PREDICTIONS: Mapping[str, Mapping[str, tuple[bool | None, str]]] = {
    "replay": {
        "data": (True, ""),
        "numerics": (None, "it comes back where a setting is at fault, not after a transient fault"),
        "hardware": (False, "no event, on other devices at the latest"),
        "loader": (True, ""),
        "composition": (True, ""),
        "interaction": (True, ""),
    },
    "removal": {
        "data": (False, ""),
        "numerics": (True, ""),
        "hardware": (None, "nothing follows: a transient fault does not come back either way"),
        "loader": (True, ""),
        "composition": (None, "smaller by what the removed documents weigh"),
        "interaction": (False, ""),
    },
    "control": {
        "data": (True, ""),
        "numerics": (True, ""),
        "hardware": (None, "nothing follows: a transient fault does not come back either way"),
        "loader": (True, ""),
        "composition": (True, ""),
        "interaction": (False, "no event: any change of the batch removes it"),
    },
    "order": {
        "data": (None, "nothing follows: other documents are read"),
        "numerics": (True, ""),
        "hardware": (None, "nothing follows"),
        "loader": (False, ""),
        "composition": (None, "nothing follows"),
        "interaction": (False, ""),
    },
    "lr": {
        "data": (None, "smaller, not gone"),
        "numerics": (False, "gone where the learning rate is too high"),
        "hardware": (None, "nothing follows"),
        "loader": (None, "smaller, not gone"),
        "composition": (None, "smaller, not gone"),
        "interaction": (False, ""),
    },
    "clip": {
        "data": (None, "smaller, not gone"),
        "numerics": (None, "gone where single updates are too large"),
        "hardware": (None, "nothing follows"),
        "loader": (None, "smaller, not gone"),
        "composition": (None, "smaller, not gone"),
        "interaction": (None, "smaller or gone"),
    },
    "fixed_length": {
        "data": (True, ""),
        "numerics": (None, "gone where long rows or a kernel for them are at fault"),
        "hardware": (None, "nothing follows"),
        "loader": (None, "gone where batches were sorted by length"),
        "composition": (True, ""),
        "interaction": (None, "gone: the batches differ"),
    },
    "fixed_subset": {
        "data": (False, ""),
        "numerics": (True, ""),
        "hardware": (None, "nothing follows"),
        "loader": (False, ""),
        "composition": (False, ""),
        "interaction": (False, ""),
    },
}
NAMES = tuple(PREDICTIONS)


def predicted(experiment: str, cause: str, subcause: str = "") -> bool | None:
    """Whether a hypothesis says that the event comes back in an experiment; None where it does not say."""
    if experiment == "replay" and cause == "numerics" and subcause:
        return subcause not in TRANSIENT
    return PREDICTIONS[experiment][cause][0] if cause in HYPOTHESES else None


@dataclass(frozen=True)
class Experiment:
    """One rerun to make.

    Attributes:
        name: what to call its log when it is given back (`--experiment NAME=LOG`).
        change: the one thing that differs.
        command: shell lines that make its inputs; empty where a setting of the trainer changes.
        predicts: hypothesis -> outcome, in words.
    """

    name: str
    change: str
    command: str
    predicts: Mapping[str, str]


def experiments(
    run: str,
    checkpoint: int | None,
    window: StepRange,
    cause: str,
    documents: int,
    ordinary: StepRange | None = None,
    optimizer: Mapping[str, Any] | None = None,
) -> list[Experiment]:
    """The plan for one verdict, most telling first.

    Args:
        run: how the command line names it.
        checkpoint: to start from.
        window: steps of the event.
        cause: of the verdict, which decides the order.
        documents: how many are suspected.
        ordinary: steps without an event.
        optimizer: of the run description: `lr` and `clip` as they were.
    """
    start = f"the checkpoint of step {checkpoint}" if checkpoint is not None else "the last checkpoint before the event"
    length = len(window)
    shifted = StepRange(window.stop, window.stop + length)
    clean = StepRange(ordinary.start, min(ordinary.stop, ordinary.start + 8)) if ordinary is not None else None
    settings = optimizer or {}

    def dump(steps: StepRange, folder: str) -> str:
        return f"forensics dump {run} --steps {steps} -o {folder}/"

    changes = {
        "replay": (f"nothing: {start}, the same batches", dump(window, "replay")),
        "removal": (
            f"{start}, the suspect {'documents' if documents else 'steps'} left out: skipped or replaced, not masked where they fill the batches",
            "forensics manifest CASE --for TRAINER",
        ),
        "control": (
            f"{start}, as many ordinary documents left out, or the data of steps {shifted} read there",
            dump(shifted, "control"),
        ),
        "order": (f"{start}, the rows that were due", dump(window, "order")),
        "lr": (f"{start}, learning rate halved{_half(settings.get('lr'))}", ""),
        "clip": (f"{start}, gradient clip halved{_half(settings.get('clip'))}", ""),
        "fixed_length": (f"{start}, the same rows cut to half their length", dump(window, "fixed_length") + "   # cut `tokens` of sequences.npz"),
        "fixed_subset": (
            f"{start}, the batches of {f'steps {clean}' if clean else 'some ordinary steps'} over and over",
            dump(clean, "fixed_subset") if clean else "",
        ),
    }
    first = {"numerics": ("replay", "lr", "clip"), "loader": ("replay", "order")}.get(cause, ("replay", "removal", "control"))
    order = [*first, *(n for n in NAMES if n not in first and (n != "order" or cause == "loader"))]
    return [Experiment(n, *changes[n], {h: _words(*PREDICTIONS[n][h]) for h in HYPOTHESES}) for n in order]


def _words(back: bool | None, words: str) -> str:
    return words or ("nothing follows" if back is None else BACK if back else GONE)


def _half(value: Any) -> str:
    return f" to {value / 2:g}" if isinstance(value, (int, float)) and value > 0 else ""
