"""All launches of a Megatron run worked out together: one numbering of data files, counters carried from launch to launch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from forensics.errors import ForensicsError
from forensics.files import stamp
from forensics.loaders.base import Span
from forensics.loaders.megatron.cache import CacheFolders
from forensics.loaders.megatron.options import SPLITS, read_blends
from forensics.loaders.megatron.plan import Files, Plan, cache_folders
from forensics.run import Launch, RunSpec
from forensics.stores.base import RunStore
from forensics.stores.megatron import MegatronStore


class History:
    """A run's launches.

    Args:
        run: the description.
    """

    def __init__(self, run: RunSpec) -> None:
        self.run = run
        self.numbers: dict[str, int] = {}
        self.paths: list[str] = []
        places: dict[str, int] = {}
        for prefix in _prefixes(run):
            place = str(run.path(prefix).resolve())
            if place not in places:
                places[place] = len(places)
                self.paths.append(prefix)
            self.numbers[prefix] = places[place]
        self._stores: dict[int, MegatronStore] = {}
        self.files = Files(self.numbers, self.open, CacheFolders(f for launch in run.launches for f in cache_folders(run, launch, list(self.numbers))))

    def open(self, number: int) -> MegatronStore:
        """A data file by its number, opened once."""
        if number not in self._stores:
            self._stores[number] = MegatronStore(self.run.path(self.paths[number]))
        return self._stores[number]

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        """Every launch, worked out."""
        out: list[Plan] = []
        for launch in self.run.launches:
            try:
                out.append(Plan(self.run, launch, self.files, _carried(out, launch)))
            except ForensicsError as error:
                if len(self.run.launches) > 1:
                    error.add_note(f"launch {launch.number}, after step {launch.after_step}")
                raise
        return tuple(out)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Steps of every launch."""
        out = []
        for i, plan in enumerate(self.plans):
            start, planned = plan.launch.after_step + 1, plan.last_planned + 1
            stop = plan.last_ran + 1
            last = i == len(self.plans) - 1
            if plan.launch.last_step is None and not last and self.plans[i + 1].launch.after_step >= plan.launch.after_step:
                stop = min(stop, self.plans[i + 1].launch.after_step + 1)
            out.append(Span(i, start, stop, planned if last or plan.launch.last_step is None else stop))
        return tuple(out)

    @cached_property
    def store(self) -> RunStore:
        """All data files behind one numbering."""
        return RunStore({n: self.open(n) for n in range(len(self.paths))}, names=dict(enumerate(self.paths)), vocabulary=lambda: _vocabulary(self.run))

    def notes(self) -> list[str]:
        """Everything that was assumed, each once."""
        notes = [*self.run.notes, *(note for plan in self.plans for note in plan.notes)]
        if newer := sorted({name for plan in self.plans for name in plan.newer}):
            notes.append(
                f"{', '.join(newer)}: the files are newer than the run's cached indices, whose sizes they fit; every row read is "
                "checked against them, but not whether the tokens were changed since"
            )
        return list(dict.fromkeys(notes))


def _vocabulary(run: RunSpec):  # type: ignore[no-untyped-def]
    from forensics.stores.vocab import open_vocabulary

    return open_vocabulary(run.tokenizer) if run.tokenizer else None


def _prefixes(run: RunSpec) -> Iterator[str]:
    """Every prefix of the run: launch by launch, train before valid before test."""
    for launch in run.launches:
        _, blends = read_blends(run, launch)
        for blend in blends[: len(SPLITS)]:
            yield from blend.prefixes if blend else ()


def _carried(before: list[Plan], launch: Launch) -> int | None:
    """The trainer's counter after `launch.after_step`, from the latest launch that ran that step."""
    for plan in reversed(before):
        if plan.launch.after_step <= launch.after_step <= plan.last_planned:
            return int(plan.positions[launch.after_step - plan.launch.after_step])
    return None


class Histories:
    """The last few runs worked out, so that several questions to one run open its files once."""

    def __init__(self, keep: int = 2) -> None:
        self._keep = keep
        self._known: dict[tuple[object, ...], History] = {}

    def of(self, run: RunSpec) -> History:
        """The run's history; worked out anew when the description or a file has changed."""
        key = (run.fingerprint, tuple(sorted(_stamps(run))))
        if key not in self._known:
            while len(self._known) >= self._keep:
                self._known.pop(next(iter(self._known)))
            self._known[key] = History(run)
        return self._known[key]


def _stamps(run: RunSpec) -> Iterator[tuple[str, int, int]]:
    prefixes = set(_prefixes(run))
    for prefix in prefixes:
        base = run.path(prefix)
        for suffix in (".idx", ".bin"):
            path = base.with_name(base.name + suffix)
            if path.is_file():
                yield stamp(path)
    for launch in run.launches:
        for folder in cache_folders(run, launch, list(prefixes)):
            yield stamp(folder)
