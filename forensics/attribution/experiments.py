"""What finished control experiments say, and how they change a verdict.

Held-out losses and the training loss of the run and of the rerun are taken over the line that the run followed before the
event, each by its noise; the regression of the rerun's excess on the run's is 1 where the event came back and 0 where
it did not. In 17 reruns of small real trainings it was within 0.12 of these for every replay, skip or shift of the data.
Where all labels of a batch were masked nothing follows: hardly any tokens under updates of full size do the same harm
(0.86 of it in one of these), so such a rerun does not show that the documents are innocent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from forensics.attribution.decide import Claim, Decision, first_event
from forensics.attribution.evidence import Evidence
from forensics.attribution.plan import NAMES, predicted
from forensics.attribution.signals import Series, Signals, signals
from forensics.curves.lines import expected_line
from forensics.losses.difficulty import F64

GONE, BACK = 0.35, 0.65  # of the event's height: below the one it is gone, above the other it came back
SEEN = 5.0  # standard deviations by which the run's own event must stand out
SAME_BATCHES = frozenset({"replay", "removal", "control"})  # experiments that read the run's own batches until the suspect steps
SHARED, FOLLOWS = 8, 0.3  # logged steps before those, and the least correlation of what is left over the line there: reruns of the same batches have 0.9


@dataclass(frozen=True)
class Outcome:
    """Whether the event came back in one experiment.

    Attributes:
        name: of the experiment.
        back: None where the rerun does not tell; why_not says why.
        ratio: its height there by the run's own; error: of that.
    """

    name: str
    back: bool | None
    ratio: float
    error: float
    why_not: str = ""

    @property
    def words(self) -> str:
        """For the verdict."""
        if self.back is None:
            return f"experiment {self.name}: does not tell: {self.why_not}"
        return f"experiment {self.name}: {'the event came back' if self.back else 'no event'} ({self.ratio:.2f} +- {self.error:.2f} of its height)"


def outcome(name: str, run: Signals, other: Signals, onset: int, stop: int, first: int | None = None) -> Outcome:
    """Compare the excess over the line before the onset in both curves.

    Args:
        name: of the experiment.
        run, other: curves of the run and of the rerun.
        onset, stop: steps of the event; held-out losses are compared for 60 steps more.
        first: first suspect step, where it lies before the onset.
    """
    unknown = Outcome(name, None, float("nan"), float("nan"))
    theirs = other.get("train_loss")
    inside = (theirs.steps >= onset) & (theirs.steps < stop)
    foreign = _foreign(name, run.get("train_loss"), theirs, min(onset, onset if first is None else first))
    if foreign:
        return replace(unknown, why_not=foreign)
    pairs = [_excess(run.get("train_loss"), theirs, onset, stop, 200), _excess(*_held_out(run, other), onset, stop + 60, 400)]
    x, y = (np.concatenate([p[k] for p in pairs]) for k in (0, 1))
    if len(x) < 2:
        return replace(unknown, why_not=f"its log shares {len(x)} steps from {onset} on with the run's; the event lies in steps {onset} to {stop - 1}")
    power = float((x * x).sum())
    if power < len(x) + SEEN * np.sqrt(2 * len(x)):
        return replace(unknown, why_not="the run's own event does not stand out on the steps that both logged")
    ratio, error = float((x * y).sum() / power), float(1 / np.sqrt(power))
    if ratio > GONE and inside.any() and np.isnan(theirs.values[inside]).any():
        return Outcome(name, None, ratio, error, "whole batches were masked in it (a loss of NaN): skip or replace them instead")
    if GONE < ratio < BACK:
        return Outcome(name, None, ratio, error, f"the event came back at {ratio:.2f} +- {error:.2f} of its height")
    return Outcome(name, ratio >= BACK, ratio, error)


def _foreign(name: str, mine: Series, theirs: Series, first: int) -> str:
    """Why a log cannot be that of a rerun of this run; empty where it can."""
    known = theirs.values[np.isfinite(theirs.values)]
    if len(known) >= SHARED and np.ptp(known) == 0:
        return f"its loss is {known[0]:g} at all of its {len(known)} steps: no training"
    before = theirs.steps < first
    a, b = mine.at(theirs.steps[before]), theirs.values[before]
    both = np.isfinite(a) & np.isfinite(b)
    if name not in SAME_BATCHES or both.sum() < SHARED:
        return ""
    steps = theirs.steps[before][both].astype(float)
    left = [v[both] - np.polyval(np.polyfit(steps - steps[0], v[both], 1), steps - steps[0]) for v in (a, b)]
    spread = float(left[0].std() * left[1].std())
    r = float((left[0] * left[1]).mean()) / spread if spread > 0 else 0.0
    if r >= FOLLOWS:
        return ""
    return (
        f"before step {first} its loss does not follow the run's (r {r:.2f} over {both.sum()} steps that read the same batches): is it the log of another run?"
    )


def _excess(series: Series, other: Series, onset: int, stop: int, before: int) -> tuple[F64, F64]:
    """Both curves over the line before the onset, by its noise, at steps that both have."""
    ok = np.isfinite(series.values)
    steps, values = series.steps[ok], series.values[ok]
    use = (steps < onset) & (steps >= onset - before)
    here = (steps >= onset) & (steps < stop)
    theirs = other.at(steps[here])
    both = np.isfinite(theirs)
    if use.sum() < 4 or not both.any():
        return np.zeros(0), np.zeros(0)
    line, error, sd = expected_line(steps, values, use, steps[here][both])
    scale = np.maximum(np.sqrt(sd**2 + error**2), 1e-9)
    return (values[here][both] - line) / scale, (theirs[both] - line) / scale


def _held_out(run: Signals, other: Signals) -> tuple[Series, Series]:
    """Mean held-out loss of both over the sets that both evaluated."""
    mine, theirs = run.family("eval_loss"), other.family("eval_loss")
    names = sorted(mine.keys() & theirs.keys())
    if not names:
        return run.get("eval_loss"), other.get("eval_loss")
    return _mean([mine[n] for n in names]), _mean([theirs[n] for n in names])


def _mean(sets: Sequence[Series]) -> Series:
    steps = sets[0].steps
    table = np.stack([s.at(steps) for s in sets])
    full = np.isfinite(table).all(axis=0)
    return Series(steps[full], table[:, full].mean(axis=0))


def reading(outcomes: Mapping[str, Outcome]) -> tuple[str, str] | None:
    """The cause that finished experiments show by themselves, and why; None where they do not settle it."""
    back = {n: o.back for n, o in outcomes.items()}
    removal, control = back.get("removal"), back.get("control")
    if back.get("replay") is False:
        return "hardware", "the same batches from the same checkpoint gave no event: a transient fault"
    if removal is True:
        return "numerics", "the event stays without the suspect documents"
    if control is False:
        return "interaction", "the event goes when ordinary documents are removed: this batch with this state, not dirty data"
    if removal is False and control is True:
        return "data", "the event goes with the suspect documents and stays when as many ordinary ones are removed"
    if back.get("fixed_subset") is True:
        return "numerics", "the event comes on ordinary batches that had done no harm"
    if back.get("order") is False and removal is not False:
        return "loader", "the event goes when the rows that were due are read"
    return None


def experimented(e: Evidence, d: Decision) -> tuple[list[Outcome], Decision]:
    """Outcomes of the experiments that were given, and the decision they leave."""
    if not e.inputs.experiments:
        return [], d
    event, _ = first_event(e)
    if d.primary is None and event is None:
        return [Outcome(n, None, float("nan"), float("nan"), "no event was found that could come back") for n in sorted(e.inputs.experiments)], d
    onset = d.primary.onset if d.primary else event.start if event else 0
    stop = d.primary.stop if d.primary and d.primary.stop is not None else onset + 40
    done = {
        n: outcome(n, e.log, signals(m), onset, max(stop, onset + 4), d.primary.start if d.primary else None) for n, m in sorted(e.inputs.experiments.items())
    }
    if d.primary is None:
        d = replace(d, primary=Claim("undetermined", "", onset, onset, stop, 0))
    return list(done.values()), overruled(d, done)


def overruled(d: Decision, outcomes: Mapping[str, Outcome]) -> Decision:
    """Experiments go before every rule.

    A cause that they settle comes first; a first claim that they contradict gives way to the next one that they do not,
    and, where there is none, to `undetermined`.
    """
    assert d.primary is not None
    said = reading(outcomes)
    known = {n: o for n, o in outcomes.items() if o.back is not None and n in NAMES}
    if said is not None:
        return _first(d, *said, known)
    against = _contradictions(d.primary, known)
    if not against:
        return d
    other = next((c for c in d.secondary if c.strength >= 2 and not _contradictions(c, known)), None)
    other = other or Claim("undetermined", "", d.primary.onset, d.primary.start, d.primary.stop, 0)
    other = replace(other, contra=(*other.contra, *against))
    rest = (d.primary, *(c for c in d.secondary if c.cause != other.cause))
    return replace(d, primary=other, secondary=rest, confidence="low", guilty=d.guilty if other.cause == "data" else ())


def _first(d: Decision, cause: str, why: str, known: Mapping[str, Outcome]) -> Decision:
    """The decision with this cause first: the claim that is made of it, the next claim that fits, or a new one."""
    assert d.primary is not None
    fits = [c for c in (d.primary, *d.secondary) if c.cause == cause]
    if cause in {"hardware", "numerics"}:  # a logged setting that the rerun did not repeat, or another cause that no removal touches
        fits += [c for c in (d.primary, *d.secondary) if c.cause not in {"data", "interaction", "undetermined"} and _stays(c, cause, known)]
    first = fits[0] if fits else Claim(cause, "by_experiment", d.primary.onset, d.primary.start, d.primary.stop, 3)
    rest = tuple(c for c in (d.primary, *d.secondary) if c is not first and c.cause != "undetermined")
    if cause == "hardware" and first.cause != "hardware":
        why = f"no event in a rerun from the same checkpoint: it did not repeat the {first.subcause.replace('_', ' ')} that is seen here"
    first = replace(first, strength=3, pro=(why, *first.pro))
    return replace(d, primary=first, secondary=rest, confidence="high", guilty=d.guilty if cause == "data" else ())


def _stays(claim: Claim, cause: str, known: Mapping[str, Outcome]) -> bool:
    """Whether a claim of another cause is a better word for what the experiments show."""
    if cause == "hardware":  # a rerun leaves out a wrong setting as it leaves out a blip
        return claim.cause in {"numerics", "loader"} and claim.strength >= 2
    return not _contradictions(claim, known)


def contradicted(claim: Claim | None, found: Outcome) -> bool:
    """Whether a claim predicts another outcome."""
    return claim is not None and found.back is not None and bool(_contradictions(claim, {found.name: found}))


def not_made(e: Evidence, d: Decision, outcomes: Sequence[Outcome]) -> list[dict[str, str]]:
    """Experiments that say nothing, or that were not made, as `not_evaluated` has it."""
    if not e.inputs.experiments:
        return [{"what": "replay, removal and control (E1 to E3)", "why": "they need reruns; the plan lists them"}]
    out = [{"what": f"experiment {o.name}", "why": o.why_not} for o in outcomes if o.back is None]
    rest = [n for n in NAMES if n not in e.inputs.experiments]
    if d.primary is not None and d.primary.cause == "data" and {o.name: o.back for o in outcomes}.get("removal") is False and "control" in rest:
        rest.remove("control")
        out.append({"what": "experiment control", "why": "not made; a removal that helps is no proof of dirty data: any change of the batches may have helped"})
    return [*out, {"what": f"experiments {', '.join(rest)}", "why": "not made"}] if rest else out


def _contradictions(claim: Claim, known: Mapping[str, Outcome]) -> list[str]:
    """What a claim predicts otherwise."""
    out = []
    for name, found in known.items():
        want = predicted(name, claim.cause, claim.subcause)
        if want is not None and want is not found.back:
            says = "that the event comes back" if want else "no event"
            out.append(f"{claim.cause} predicts {says} in the experiment {name}, where it {'did not' if want else 'did'}")
    return out
