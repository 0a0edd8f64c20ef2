"""Does the description fit the run's own files? Checks that go with every replay.

Each compares what the description implies with what the trainer itself wrote: counters and index sizes in its log,
counters in its checkpoints, shapes and times of its cached indices, sizes of its data files, ids against its vocabulary.
Agreement is one line, a contradiction stops with what differs, and what could not be checked is said. Evidence that only
touches decoded text (the tokenizer) is reported and does not stop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from forensics.errors import ForensicsError, RunError, StoreError
from forensics.loaders.megatron.log import Built, LoggedLaunch, read_logs
from forensics.loaders.megatron.options import SPLITS
from forensics.run import RunSpec
from forensics.schemas import IDENTITY, Identity

if TYPE_CHECKING:
    from forensics.loaders.megatron.history import History
    from forensics.loaders.megatron.plan import Plan

AGREES, CONTRADICTS, UNKNOWN = "agrees", "contradicts", "not_evaluated"
ADVISORY = frozenset(["tokenizer"])
SAMPLE_BLOCKS, BLOCK_TOKENS = 64, 1 << 14
MOST_CHECKPOINTS = 8
_LOGGED_SPLIT = {"train": "train", "validation": "valid", "test": "test"}


@dataclass(frozen=True)
class Check:
    """One comparison: its kind, what was compared, both sides in words, and the answer."""

    check: str
    subject: str
    expected: str
    found: str
    answer: str


def check_identity(run: RunSpec, history: History) -> Identity:
    """All checks that the run's files allow, as the table `identity`."""
    logs = run.logs or tuple(p for p in run.metrics if _is_log(p))
    logged = read_logs(logs) if logs else []
    found = [*_log(history, logged), *_checkpoints(run, history), *_caches(history), *_files(history), *_vocabulary(run, history)]
    names = [c.name for c in IDENTITY.columns]
    return Identity(IDENTITY.of({name: [getattr(x, name) for x in found] for name in names}))


def _is_log(path: Path) -> bool:
    """Whether a source of curves is the trainer's own text log."""
    try:
        with path.open("rb") as raw:
            return b"consumed samples:" in raw.read(1 << 18)
    except OSError:
        return False


def refuse_contradictions(table: Identity) -> None:
    """Stop where the run's own files contradict the description.

    Raises:
        RunError: naming everything that differs.
    """
    wrong = [r for r in table.to_pylist() if r["answer"] == CONTRADICTS and r["check"] not in ADVISORY]
    if wrong:
        error = RunError(
            f"the run's own files contradict the description in {len(wrong)} {'place' if len(wrong) == 1 else 'places'}",
            hint="correct the description (launches, consumed, version, arguments, data files); a replay of another order would be worse than none",
        )
        for row in wrong[:20]:
            error.add_note(f"{row['check'].replace('_', ' ')}, {row['subject']}: {row['expected']} expected, {row['found']} found")
        raise error


def sentence(table: Identity) -> str:
    """The result in one line."""
    rows = table.to_pylist()
    agreed = sorted({r["check"].replace("_", " ") for r in rows if r["answer"] == AGREES})
    open_ = sorted({r["check"].replace("_", " ") for r in rows if r["answer"] == UNKNOWN} - set(agreed))
    wrong = [f"{r['check']}: {r['found']}" for r in rows if r["answer"] == CONTRADICTS]
    parts = [f"identity: {', '.join(agreed)} agree" if agreed else "identity: nothing of the run's own could be compared"]
    if open_:
        parts.append(f"not checked: {', '.join(open_)}")
    return "; ".join([*parts, *wrong])


# ---- the log


def _log(history: History, logged: Sequence[LoggedLaunch]) -> Iterator[Check]:
    if not logged:
        yield Check("consumed_samples", "log", "", "the description names no log, or it shows no start of the program", UNKNOWN)
    for one in logged:
        plan, counters = _match(history, one)
        if counters is not None:
            yield counters
        if plan is None:
            continue
        for name, size in one.targets.items():
            wanted = plan.wanted(_LOGGED_SPLIT[name])
            if name == "train" or (wanted is not None and plan.split(_LOGGED_SPLIT[name]) is not None):
                yield _compare("target_samples", f"launch {plan.launch.number}, {name} ({one.file.name})", wanted, size)
        yield from _built(plan, one)


def _match(history: History, one: LoggedLaunch) -> tuple[Plan | None, Check | None]:
    """The launch that a part of the log belongs to, and how its counters compare."""
    steps = np.array([s for s, c in zip(one.points.step, one.points.consumed) if c is not None], np.int64)
    seen = np.array([c for c in one.points.consumed if c is not None], np.int64)
    start, said = one.after_step()
    able = [p for p in history.plans if not len(steps) or (p.launch.after_step < steps[0] <= p.last_planned)]
    if len(steps):  # a launch that is said to have ended before cannot vouch for them, although its counters may go on alike
        able = [p for p in able if p.launch.last_step is None or steps[0] <= p.launch.last_step] or able
    exact = [p for p in able if p.launch.after_step == start]
    subject = f"{one.file.name}:{one.line}" + (f", steps {steps[0]} to {steps[-1]}" if len(steps) else "")
    if not len(steps):
        return (exact[-1] if said and exact else None), None
    if not able:
        return None, Check("consumed_samples", subject, "", "no launch of the description ran these steps", UNKNOWN)
    compared = [(_differ(p, steps, seen), p is not x, -p.launch.number, p) for p in able for x in [exact[-1] if exact else None]]
    wrong, _, _, plan = min(compared, key=lambda c: (len(c[0]), c[1], c[2]))
    subject = f"launch {plan.launch.number}, {subject}"
    if not len(wrong):
        return plan, Check("consumed_samples", subject, f"{seen[-1]} after step {steps[-1]}", f"{len(steps)} lines agree", AGREES)
    first = int(wrong[0])
    expected = _consumed(plan, int(steps[first]))
    text = f"{seen[first]} in line {one.points.line[first]}, {len(wrong)} of {len(steps)} lines differ"
    return plan, Check("consumed_samples", subject, f"{expected if expected is not None else 'no such step'} after step {steps[first]}", text, CONTRADICTS)


def _consumed(plan: Plan, step: int) -> int | None:
    """The trainer's counter after a step of a launch; None beyond its end."""
    at = step - plan.launch.after_step
    return int(plan.positions[at]) if 0 <= at < len(plan.positions) else None


def _differ(plan: Plan, steps: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Indices of the logged steps whose counter is not the plan's."""
    at = steps - plan.launch.after_step
    inside = at < len(plan.positions)
    expected = plan.positions[np.minimum(at, len(plan.positions) - 1)]
    return np.flatnonzero(~inside | (expected != seen))


def _built(plan: Plan, one: LoggedLaunch) -> Iterator[Check]:
    """Samples and epochs that the data sets printed, by corpus where the log names it."""
    for name in SPLITS:
        entries = [b for b in one.built if b.split == name]
        split = plan.split(name) if entries else None
        if split is None:
            continue
        known = [(laid.prefix, laid.epochs.samples, laid.epochs.epochs) for laid in split.laid]
        wrong = [b for b in entries if not any(_fits(b, prefix, k, e) for prefix, k, e in known)]
        subject = f"launch {plan.launch.number}, {name} ({one.file.name})"
        if not wrong:
            yield Check("sample_and_epoch_counts", subject, f"{len(known)} corpora", f"{len(entries)} printed counts agree", AGREES)
        for b in wrong:
            here = [(k, e) for prefix, k, e in known if b.prefix is None or _tail(prefix) == _tail(b.prefix)] or [(k, e) for _, k, e in known]
            expected = ", ".join(f"{k} samples in {e} passes" for k, e in here[:3])
            yield Check(
                "sample_and_epoch_counts",
                f"{subject} {b.prefix or ''}".rstrip(),
                expected,
                f"{b.samples} samples in {b.epochs or '?'} passes (line {b.line})",
                CONTRADICTS,
            )


def _fits(b: Built, prefix: str, samples: int, epochs: int) -> bool:
    """Whether a printed size is that of this corpus; several builder threads mix the names, so a full match of sizes under another name counts too."""
    same = b.samples == samples and b.epochs in (None, epochs)
    return same and (b.prefix is None or _tail(prefix) == _tail(b.prefix) or b.epochs is not None)


def _tail(prefix: str) -> str:
    return PurePosixPath(prefix).name


def _compare(check: str, subject: str, expected: object, found: object) -> Check:
    return Check(check, subject, str(expected), str(found), AGREES if expected == found else CONTRADICTS)


# ---- checkpoints, caches, data files


def _checkpoints(run: RunSpec, history: History) -> Iterator[Check]:
    from forensics.loaders.megatron.checkpoint import read_saved, saved_steps

    for folder in run.checkpoint_folders:
        steps = saved_steps(folder)
        if len(steps) > MOST_CHECKPOINTS:
            steps = sorted({steps[i] for i in np.linspace(0, len(steps) - 1, MOST_CHECKPOINTS).astype(int)})
        for step in steps:
            try:
                (saved,) = read_saved(folder, [step])
            except StoreError as error:
                yield Check("checkpoint_counter", f"step {step}", "a readable checkpoint", error.message, UNKNOWN)
                continue
            able = [p for p in history.plans if p.launch.after_step < saved.step <= p.last_planned and saved.step <= (p.launch.last_step or saved.step)]
            if saved.consumed is None or not able:
                yield Check("checkpoint_counter", saved.path.name, "", "no counter" if able else "no launch of the description reached it", UNKNOWN)
                continue
            counts = [_consumed(p, saved.step) for p in able]
            found = f"{saved.consumed} samples"
            if saved.consumed in counts:
                yield Check("checkpoint_counter", saved.path.name, f"{saved.consumed} samples", found, AGREES)
            else:
                yield Check("checkpoint_counter", saved.path.name, f"{counts[-1]} samples (launch {able[-1].launch.number})", found, CONTRADICTS)


def _caches(history: History) -> Iterator[Check]:
    """Shapes and times of the cached indices that belong to each launch."""
    for plan in history.plans:
        split = plan.split("train")
        if split is None or not any(d.held for d in plan.files.caches.descriptions):
            continue
        try:
            data = plan.data("train")
        except ForensicsError as error:
            yield Check("cached_index_shapes", f"launch {plan.launch.number}", "indices that fit the data files", error.message, CONTRADICTS)
            continue
        used = [c for c in data.corpora if c.cached is not None]
        subject = f"launch {plan.launch.number}, train"
        if not used:
            yield Check("cached_index_shapes", subject, f"{len(data.corpora)} corpora", "no cached index was built with these arguments", UNKNOWN)
            continue
        yield Check(
            "cached_index_shapes", subject, f"{len(data.corpora)} corpora", f"{len(used)} read from the run's own index files, whose shapes fit", AGREES
        )
        newer = sorted(set(plan.newer))
        text = f"{', '.join(newer)}: the data files are newer than the run's cached index" if newer else "no data file is newer than its cached index"
        yield Check("file_times", subject, "data no newer than their index", text, UNKNOWN if newer else AGREES)


def _files(history: History) -> Iterator[Check]:
    for number in _train_corpora(history):
        store = history.open(number)
        need, has = int(store.lengths.sum(dtype=np.int64)) * store.dtype.itemsize, store.bin.stat().st_size
        yield Check("file_sizes", store.path.name, f"{need} bytes of tokens in the index", f"{has} bytes, which hold every sequence", AGREES)


def _train_corpora(history: History) -> list[int]:
    splits = [plan.split("train") for plan in history.plans]
    return sorted({history.numbers[laid.prefix] for split in splits if split for laid in split.laid})


def _vocabulary(run: RunSpec, history: History) -> Iterator[Check]:
    """The largest id of a sample of every corpus against the vocabulary of the arguments, and of the tokenizer."""
    bound, where = _bound(run)
    size = None
    if run.tokenizer is not None and run.tokenizer.exists():
        from forensics.stores.vocab import open_vocabulary

        try:
            size = open_vocabulary(run.tokenizer).size
        except ForensicsError as error:
            yield Check("tokenizer", run.tokenizer.name, "a vocabulary", error.message, UNKNOWN)
    if bound is None and size is None:
        yield Check("vocabulary", "all corpora", "", "neither vocab_size nor a tokenizer is known", UNKNOWN)
        return
    for number in _train_corpora(history):
        store = history.open(number)
        highest = _highest(store.tokens)
        if bound is not None:
            yield Check(
                "vocabulary", store.path.name, f"ids below {bound} ({where})", f"ids up to {highest} in a sample", AGREES if highest < bound else CONTRADICTS
            )
        if size is not None:
            yield Check("tokenizer", store.path.name, f"ids below {size}", f"ids up to {highest} in a sample", AGREES if highest < size else CONTRADICTS)


def _bound(run: RunSpec) -> tuple[int | None, str]:
    """Ids that the model had room for: the larger of the padded and the plain vocabulary (some tokenizers add one id to it), over all launches."""
    known = [
        (value + (name == "vocab_size"), name)
        for x in run.launches
        for name in ("padded_vocab_size", "vocab_size")
        if isinstance(value := x.args.get(name), int) and value > 0
    ]
    return max(known) if known else (None, "")


def _highest(tokens: np.ndarray) -> int:
    """The largest id in evenly spread blocks of a data file; -1 where it is empty."""
    if len(tokens) <= SAMPLE_BLOCKS * BLOCK_TOKENS:
        return int(tokens.max()) if len(tokens) else -1
    starts = np.linspace(0, len(tokens) - BLOCK_TOKENS, SAMPLE_BLOCKS).astype(np.int64)
    return max(int(tokens[s : s + BLOCK_TOKENS].max()) for s in starts)
