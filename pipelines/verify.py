"""Is the description the run that was trained? Identity checks, then the loss curve's own proof; unknown options by trial.

run -> order -> rows sampled under a token budget -> difficulty -> residuals beside the logged loss -> answer
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.attribution.answer import proof_table
from forensics.attribution.baseline import SETTLE, alarms
from forensics.attribution.parts import Parts, Scored, examine, score
from forensics.attribution.runs import RUN, Runs, runs_of
from forensics.attribution.signals import Series, signals
from forensics.attribution.verified import LEAST_COVERED, Checked, Verified, summary
from forensics.attribution.verify import Correlation, compare, duel, interval, rank
from forensics.case import Case
from forensics.curves.events import find_events
from forensics.curves.read import read_logs
from forensics.errors import ConfigError, NotReplayable, RunError, UsageError
from forensics.files import digest
from forensics.loaders.base import Loader, loader_of, path_of
from forensics.run import RunSpec, open_run
from forensics.schemas import DOC_BITS, DOC_MASK, PROOF, Consumed, Metrics
from forensics.steps import StepRange, ranges_of

TOKENS = (1 << 22, 1 << 25)  # read for the proof; the second where the first do not decide: some two and ten seconds
MOST_STEPS, LEAST_STEPS = 2048, 384  # steps looked at: more than the least only where their rows are whole
Logged = tuple[Series, list[StepRange]]  # the training loss, and the steps of events on it
BLOCK = 96  # steps of one stretch, so that each has neighbours
RIVAL, MOST_RIVALS = 2.5, 6  # standard errors by which a rival must be ahead; launches that are turned one by one
LONG = 64  # steps of an event that are left out; a level that stays is taken off by the curve


def verify(
    run: Path | None,
    settings: Sequence[str] = (),
    metrics: Sequence[Path] = (),
    candidates: Sequence[str] = (),
    steps: StepRange | None = None,
    tokens: int | None = None,
    case: Case | None = None,
) -> Verified:
    """Check a run description, and candidates of what it leaves open.

    Args:
        run: the description, as `open_run` takes it.
        settings: `--set` overrides.
        metrics: logs to use in place of the description's own.
        candidates: `key=value,value` each; several keys are combined.
        steps: only these.
        tokens: budget of tokens read per candidate; by default few, and more where these do not decide.
        case: where the tables go.

    Raises:
        ConfigError: no training loss is logged; the error tells what the identity checks say.
    """
    opened = open_run(run, settings)
    names = trials_of(candidates)
    try:
        log = read_log(metrics or opened.metrics or opened.logs)
    except ConfigError as error:
        error.add_note(identities(loader_of(opened), opened)[0])
        raise
    try:
        checked, tokens = _enough("this description", opened, log, steps, tokens)
        checked = with_rival(checked, opened, log, steps, tokens)
    except (NotReplayable, RunError) as error:
        if not names:
            raise
        checked, tokens = Checked("this description", "", None, why=error.message), tokens or TOKENS[0]
    trials = [_trial(run, [*settings, *extra], name, log, steps, tokens) for name, extra in names]
    done = replace(_ranked(checked, trials, log[0]), notes=tuple(_notes(opened)))
    if case is not None:
        _store(case, done)
    return done


def _notes(run: RunSpec) -> list[str]:
    """What the loader assumed; nothing where it cannot work the run out, which the answer says."""
    try:
        return list(getattr(loader_of(run), "notes", lambda _: [])(run))
    except (NotReplayable, RunError):
        return []


def _enough(name: str, run: RunSpec, log: Logged, steps: StepRange | None, tokens: int | None) -> tuple[Checked, int]:
    """The check with as many tokens as it takes, and how many these are."""
    budgets = TOKENS if tokens is None else (tokens,)
    for budget in budgets:
        checked = check(name, run, log, steps, budget)
        if checked.answer != "inconclusive" or checked.holding is None or checked.holding.whole.reliability == 1:
            break
    return checked, budget


def _trial(run: Path | None, settings: Sequence[str], name: str, log: Logged, steps: StepRange | None, tokens: int) -> Checked:
    try:
        return check(name, open_run(run, settings), log, steps, tokens)
    except (NotReplayable, RunError) as error:  # the trainer would refuse this value too
        return Checked(name, "", None, why=error.message)


def trials_of(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Names and `--set` overrides of every combination of `key=value,value`.

    `version` is the description's own key; any other name without a dot is an argument of the trainer.

    Raises:
        UsageError: no `=`, or no value.
    """
    options = []
    for word in words:
        key, equal, values = word.partition("=")
        listed = [v.strip() for v in (values.split(";") if ";" in values else values.split(",")) if v.strip()]
        if not equal or not key or not listed:
            raise UsageError(
                f"`--candidates {word}` is not KEY=VALUE,VALUE", hint="for example --candidates version=0.8.0,0.16.1 or --candidates 'split=969,30,1;100,0,0'"
            )
        path = key if "." in key or key == "version" else f"args.{key}"
        options.append([(f"{key}={v}", f"{path}='{v}'" if key == "version" or ";" in values else f"{path}={v}") for v in listed])
    return [(" ".join(n for n, _ in picked), [s for _, s in picked]) for picked in itertools.product(*options)] if options else []


def read_log(paths: Sequence[Path]) -> Logged:
    """The logged training loss, and the steps of alarms on it.

    Raises:
        ConfigError: no log.
    """
    if not paths:
        raise ConfigError("the proof needs the run's logged loss", hint="give `metrics:` in the description, or --metrics LOG")
    metrics = read_logs(paths).metrics
    loss = signals(metrics).get("train_loss")
    if not len(loss):
        raise ConfigError(
            f"{paths[0]} holds no training loss", hint="`forensics curves` shows what it does hold; name the column with --metrics of another file"
        )
    return loss, events_of(metrics, int(loss.steps[-1]))


def events_of(metrics: Metrics, last: int) -> list[StepRange]:
    """Steps of events on the training loss, with some on both sides."""
    found = alarms(find_events(metrics), finite=True)
    return [StepRange(max(0, start - 2), min(last + 1 if stop is None else stop, start + LONG) + SETTLE) for start, stop in found]


def check(name: str, run: RunSpec, log: Logged, steps: StepRange | None = None, tokens: int = TOKENS[0]) -> Checked:
    """One description against its own files and the logged loss."""
    loader = loader_of(run)
    identity, agrees = identities(loader, run)
    loss, events = log
    pieces = chosen_steps(loader, run, loss, steps, tokens)
    if not pieces:
        return Checked(name, identity, agrees, why="no step of the description has a logged loss")
    scored, trained, data = _scored(loader, run, pieces, tokens)
    at, difficulty = scored.per_step()
    free = np.isin(at, trained)
    for event in events:
        free &= ~((at >= event.start) & (at < event.stop))
    parts = examine(scored, loss, free) if interval(loss) == 1 else Parts(why_not="the loss is not logged every step")
    unseen, share = _unseen(pieces, at[free & np.isfinite(loss.at(at))])
    holding = compare(at, difficulty, loss, free, scored.reliability(free))
    return Checked(name, identity, agrees, holding, parts, "", data, (at, difficulty, free), unseen=unseen, unseen_share=share)


def _unseen(pieces: Sequence[tuple[int, StepRange]], used: NDArray[np.int64]) -> tuple[tuple[int, ...], float]:
    """Launches of which too few steps were compared, and their share of all steps."""
    size: dict[int, int] = {}
    seen: dict[int, int] = {}
    for launch, part in pieces:
        size[launch] = size.get(launch, 0) + len(part)
        seen[launch] = seen.get(launch, 0) + int(((used >= part.start) & (used < part.stop)).sum())
    few = tuple(n for n in size if seen[n] < LEAST_COVERED)
    return few, sum(size[n] for n in few) / max(1, sum(size.values()))


def with_rival(checked: Checked, run: RunSpec, log: Logged, steps: StepRange | None, tokens: int) -> Checked:
    """The description beside itself with blends named backwards, in all launches or in one, which breaks ties of the greedy order the other way."""
    if checked.holding is None or checked.answer != "proven":
        return checked
    for other, where in backwards(run):
        try:
            rival = check("backwards", other, log, steps, tokens)
        except (NotReplayable, RunError):
            continue
        if rival.data == checked.data:
            continue
        z = _between(log[0], rival, checked)
        name = f"the same blend with its corpora in another order{where}, which breaks ties the other way"
        if z >= RIVAL:
            return replace(checked, rival=name)
        if z > -RIVAL and not checked.untold:
            checked = replace(checked, untold=name)
    return checked


def backwards(run: RunSpec) -> list[tuple[RunSpec, str]]:
    """The run with the corpora of its weighted blends in reverse, in all launches that have one and, where these are several, in each; and where that is."""
    turned = {}
    for n, launch in enumerate(run.launches):
        blend = launch.args.get("data_path")
        if isinstance(blend, (list, tuple)) and len(blend) > 2 and len(blend) % 2 == 0:
            pairs = [blend[i : i + 2] for i in range(0, len(blend), 2)]
            turned[n] = replace(launch, args={**launch.args, "data_path": [x for pair in reversed(pairs) for x in pair]})
    sets = [([*turned], "")] + [([n], f" in launch {n}") for n in [*turned][:MOST_RIVALS] if len(turned) > 1] if turned else []
    return [(replace(run, launches=tuple(turned[n] if n in chosen else x for n, x in enumerate(run.launches))), where) for chosen, where in sets]


def _between(loss: Series, one: Checked, other: Checked) -> float:
    """Z of two descriptions where they differ, positive for the first; 0 where they have no steps in common."""
    if one.curve is None or other.curve is None:
        return 0.0
    steps = np.intersect1d(one.curve[0], other.curve[0])
    a, b = (np.isin(c.curve[0], steps) for c in (one, other) if c.curve is not None)
    return duel(steps, one.curve[1][a], other.curve[1][b], loss, one.curve[2][a] & other.curve[2][b])


def identities(loader: Loader, run: RunSpec) -> tuple[str, bool | None]:
    """The identity checks in words, and whether they agree."""
    found = getattr(loader, "identity", None)
    if found is None:
        return "identity: this loader has no checks beside the data files themselves", None
    try:
        table = found(run)
    except RunError as error:
        return "identity: " + "; ".join([error.message, *getattr(error, "__notes__", [])]), False
    answers = table["answer"].to_pylist()
    agree, open_ = answers.count("agrees"), answers.count("not_evaluated")
    return f"identity: {agree} checks agree, {open_} could not be made", True if agree else None


def chosen_steps(loader: Loader, run: RunSpec, loss: Series, wanted: StepRange | None, tokens: int) -> list[tuple[int, StepRange]]:
    """Stretches of the history that led to the last launch, spread evenly over the logged steps.

    Returns:
        (launch, steps), ascending.
    """
    launches = loader.launches(run)
    reach = StepRange(int(loss.steps[0]), int(loss.steps[-1]) + 1)
    reach = reach if wanted is None else (wanted.overlap(reach) or StepRange(wanted.start, wanted.stop))
    history = path_of(launches, reach, launches.num_rows - 1)
    total = sum(len(r) for _, r in history)
    if not total:
        return []
    width = next((w for w in launches["row_width"].to_pylist() if w), None) or 1
    first = history[0]
    rows = int(loader.trained(run, StepRange(first[1].start, first[1].start + 1), first[0]).sequences[0])
    count = min(total, MOST_STEPS, max(LEAST_STEPS, tokens // max(1, rows * width)))
    if count >= total:
        return history
    n = max(1, count // BLOCK)
    edges = np.cumsum([0, *(len(r) for _, r in history)])
    starts = np.unique(np.linspace(0, total - BLOCK, n).astype(np.int64))
    keep = np.zeros(total, np.bool_)
    for a in starts.tolist():
        keep[a : a + BLOCK] = True
    out = []
    for (launch, r), a in zip(history, edges.tolist()):
        mine = np.flatnonzero(keep[a : a + len(r)]) + r.start
        out += [(launch, part) for part in ranges_of(mine.tolist())]
    return out


def _scored(loader: Loader, run: RunSpec, pieces: Sequence[tuple[int, StepRange]], tokens: int) -> tuple[Scored, NDArray[np.int64], str]:
    """A sample of the steps' tokens with their code lengths, the steps that were trained, and a hash of what was read."""
    facts = [loader.trained(run, part, launch) for launch, part in pieces]
    width = next((w for w in loader.launches(run)["row_width"].to_pylist() if w), None) or 1
    whole = sum(int(f.sequences.sum()) for f in facts) * width
    every = max(1, -(-whole // tokens))
    tables, halves, opens = [], [], []
    for launch, part in pieces:
        for table in loader.consumed(run, part, launch):
            runs = _runs(table, every)
            tables.append(_cut(table, runs))
            halves.append(runs.half)
            opens.append(runs.opens)
    rows = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    flat, offsets = loader.store(run).gather(rows)
    corpora = loader.corpora(run)
    labels: dict[int, str] = {int(r["corpus_id"]): str(r["name"]) for r in corpora.to_pylist()}
    paths: dict[int, str] = {int(r["corpus_id"]): str(r["path"]) for r in corpora.to_pylist()}
    corpus = rows["doc_key"].to_numpy() >> DOC_BITS
    pairs, part_of = np.unique(np.stack([rows["launch"].to_numpy().astype(np.int64), corpus]), axis=1, return_inverse=True)
    several = len(set(pairs[0].tolist())) > 1
    names = [(f"launch {n}, " if several else "") + labels[c] for n, c in pairs.T.tolist()]
    step, row = rows["step"].to_numpy(), rows["sequence"].to_numpy().astype(np.int64)
    every_row = every * RUN <= width
    scored = score(flat, offsets, step, row, part_of.reshape(-1), names, np.concatenate(opens), every == 1 or every_row, np.concatenate(halves), every)
    by_path = {c: n for n, c in enumerate(sorted(paths, key=lambda c: paths[c]))}  # numbers follow the description's order, the files do not
    content = [step, np.array([by_path[c] for c in corpus.tolist()], np.int64), *(rows[n].to_numpy() for n in ("doc_key", "doc_start", "doc_stop"))]
    content[2] = content[2] & DOC_MASK
    order = np.lexsort(content[::-1])
    return (
        scored,
        np.concatenate([f.step[f.trained] for f in facts]),
        digest([c[order].tobytes() for c in content], [paths[c] for c in sorted(by_path, key=lambda c: by_path[c])]),
    )


def _runs(table: Consumed, every: int) -> Runs:
    start, stop, place = (table[n].to_numpy().astype(np.int64) for n in ("doc_start", "doc_stop", "seq_start"))
    return runs_of(table["sequence"].to_numpy().astype(np.int64), place, stop - start, every)


def _cut(table: Consumed, runs: Runs) -> pa.Table:
    """The runs as rows of the table."""
    out: pa.Table = table.take(runs.segment)
    begin = out["doc_start"].to_numpy()
    for name, values in (("doc_start", begin + runs.start), ("doc_stop", begin + runs.stop)):
        out = out.set_column(out.schema.get_field_index(name), out.schema.field(name), pa.array(values, out.schema.field(name).type))
    return out


def _ranked(checked: Checked | None, trials: Sequence[Checked], loss: Series) -> Verified:
    """Candidates by the curve; those that read the same rows as an earlier one count once."""
    same: dict[str, str] = {}
    first: dict[str, str] = {}
    for trial in trials:
        if trial.data and trial.data in first:
            same[trial.name] = first[trial.data]
        elif trial.data:
            first[trial.data] = trial.name
    judged: dict[str, Correlation] = {t.name: t.holding.whole for t in trials if t.holding and t.name not in same and t.agrees is not False}
    by_name = {t.name: t for t in trials}
    order, clear = rank(judged, lambda a, b: _between(loss, by_name[a], by_name[b]))
    listed = [by_name[n] for n in order] + [t for t in trials if t.name not in judged]
    return Verified(checked, tuple(listed), order[0] if clear and by_name[order[0]].answer == "proven" else None, same)


def _store(case: Case, done: Verified) -> None:
    tables = [proof_table(c.name, c.holding.whole) for c in (done.checked, *done.candidates) if c is not None and c.holding]
    case.put(PROOF, PROOF.concat(tables))
    case.write_json("verify.json", summary(done))
    case.close(command="verify")
