"""One launch, worked out: its data sets, its sampler, and the position of every step.

Order of a launch = arguments + version rule + data files. This module joins them: samples wanted per split
(`get_train_valid_test_num_samples` of `megatron/training/training.py`), the data set of each split
(`blended_megatron_dataset_builder.py`), and the steps of the launch. What the version leaves open is computed under
both rules, and only a difference stops.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forensics.errors import NotReplayable, RunError, StoreError
from forensics.files import digest
from forensics.loaders.megatron.batches import MOST_STEPS, BatchSchedule, parse_schedule
from forensics.loaders.megatron.blend import BlendOrder
from forensics.loaders.megatron.cache import CachedBlend, CachedIndex, CacheFolders, Wanted, tail
from forensics.loaders.megatron.corpus import CorpusOrder
from forensics.loaders.megatron.dataset import DataSet, check_enough
from forensics.loaders.megatron.indices import Bounds, Epochs, epochs_of, normalize, split_bounds, split_range
from forensics.loaders.megatron.options import SPLITS, Options, read_options
from forensics.loaders.megatron.sampler import Cyclic, Sampler, Single
from forensics.loaders.megatron.versions import Rules, rules_of, unread
from forensics.loaders.megatron.weights import Blend, Surplus, check_weights, targets
from forensics.run import Launch, RunSpec
from forensics.stores.megatron import MegatronStore

WEAK_MATCH = 1  # a cached index that agrees in the last part of the path alone may belong to another file


class _Unchecked(RunError):
    """An evaluation split that could not be built; training steps do not depend on it."""


@dataclass(frozen=True)
class Files:
    """The run's data files by number, opened once, and the folders with cached indices.

    Attributes:
        number: prefix as the run saw it -> run-wide number.
        open: number -> open file.
    """

    number: dict[str, int]
    open: Callable[[int], MegatronStore]
    caches: CacheFolders


@dataclass(frozen=True)
class Laid:
    """How one corpus of a split is laid out under one rule."""

    prefix: str
    weight: float | None
    sequences: tuple[int, int]
    epochs: Epochs


@dataclass(frozen=True)
class Split:
    """One split of a launch before any index is opened.

    Attributes:
        laid: by position in the blend.
        weights: handed to the blend; None where a single corpus is read by itself.
        length: samples in the data set.
        exhaustive: no size was wanted, every sample is used once.
        size: of the blend as its cached description holds it.
    """

    name: str
    laid: tuple[Laid, ...]
    weights: tuple[float, ...] | None
    length: int
    exhaustive: bool = False
    size: int | None = None

    @property
    def order(self) -> tuple[object, ...]:
        """Everything that decides which sample is where."""
        return tuple((x.prefix, x.sequences, x.epochs.epochs, x.epochs.separate, x.epochs.samples) for x in self.laid), self.weights, self.exhaustive


@dataclass
class Plan:
    """A launch with everything that follows from its arguments.

    Args:
        run: the description.
        launch: one of its launches.
        files: the run's data files.
        start: consumed samples at its start, where the description does not say.
        notes: what was assumed.
        newer: data files younger than the cached index they were read with.
    """

    run: RunSpec
    launch: Launch
    files: Files
    start: int | None = None
    notes: list[str] = field(default_factory=list)
    newer: list[str] = field(default_factory=list)
    _splits: dict[str, Split | None] = field(default_factory=dict)
    _data: dict[str, DataSet] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rules: Rules = rules_of(self.launch.version)
        self.options: Options = read_options(self.run, self.launch, self.rules)
        if later := unread(self.launch.version):
            self.notes.append(later)
        for name, value in self.options.assumed.items():
            self.notes.append(f"`{name}` is not given: the trainer's default {value} is assumed")
        if self.options.full_validation and self.options.eval_iters == 0:
            self.notes.append("full validation reads every sample, whatever eval_iters says")

    # ---- steps ----

    @cached_property
    def unit(self) -> int:
        """Sequences that all ranks read at once, 1 where not known."""
        return (self.options.micro_batch_size or 1) * (self.options.data_parallel_size or 1)

    @cached_property
    def schedule(self) -> BatchSchedule:
        """Batch size by consumed samples."""
        o = self.options
        steps = parse_schedule(o.schedule, o.seq_length) if o.schedule else ()
        schedule = BatchSchedule(o.global_batch_size, o.ramp, steps, self.unit if o.decrease else 1)
        if o.micro_batch_size and o.data_parallel_size and not o.decrease:
            for batch in [b for _, b in steps] or [o.global_batch_size, *([o.ramp[0]] if o.ramp else [])]:
                if batch % self.unit:
                    raise RunError(
                        f"a batch of {batch} is no multiple of {self.unit} (micro batch x data-parallel ranks), which the trainer refuses",
                        hint="check global_batch_size, micro_batch_size and data_parallel_size",
                    )
        return schedule

    @cached_property
    def last_planned(self) -> int:
        """Last step that the arguments allow."""
        o = self.options
        steps = o.train_iters if o.train_iters else self.schedule.count(o.train_samples or 0)
        if steps > MOST_STEPS:
            raise RunError(f"launch {self.launch.number} is planned for {steps} steps, more than {MOST_STEPS}", hint="check `train_iters` and `train_samples`")
        if o.transitions:
            later = [t for t in o.transitions if t > self.launch.after_step]
            return min([steps, *later[:1]])
        return steps

    @cached_property
    def last_ran(self) -> int:
        """Last step that the launch executed, as far as the description says."""
        last = self.launch.last_step
        if last is None:
            return self.last_planned
        if last > self.last_planned:
            raise RunError(
                f"launch {self.launch.number} is said to have run to step {last}, its arguments end it at step {self.last_planned}",
                hint="correct `last_step`, `train_iters` or `train_samples`: the number of samples enters the order of the data",
            )
        return last

    @cached_property
    def consumed_start(self) -> int:
        """The trainer's counter when the launch starts."""
        given = self.launch.consumed
        after = self.launch.after_step
        if (
            given is None
            and (arg := self.launch.args.get("consumed_train_samples")) is not None
            and not str(self.launch.origins.get("consumed_train_samples", "args")).startswith(("checkpoint", "log"))
        ):
            given = int(arg)
        if given:
            return given
        if not after:
            return given or 0
        if given is None and self.start is not None:
            return self.start
        if self.options.ramp or self.options.schedule or self.options.decrease:
            found = int(self.schedule.positions(0, after)[-1])
            self.notes.append(f"launch {self.launch.number}: `consumed` is not given; {found} follows from its own batch schedule over {after} steps")
            return found
        self.notes.append(f"launch {self.launch.number}: `consumed` is not given; the trainer takes {after} steps x {self.options.global_batch_size}")
        return after * self.options.global_batch_size

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """The trainer's counter before each planned step of the launch and after the last: int64 [steps + 1]."""
        return self.schedule.positions(self.consumed_start, max(0, self.last_planned - self.launch.after_step))

    @cached_property
    def skipped(self) -> frozenset[int]:
        """Steps that were read and dropped, as logged."""
        out = {self.rules.skipped_step(value) for value in self.options.to_skip}
        for steps in self.launch.skipped:
            out.update(steps)
        return frozenset(out)

    @cached_property
    def phase(self) -> tuple[int, int]:
        """First and stop sample of the phase that the launch runs in, counted over the whole run."""
        o = self.options
        total = o.train_samples
        if total is None:
            total = (o.train_iters or 0) * o.global_batch_size
            self.notes.append("phases are given with train_iters alone: the last phase is assumed to end at train_iters x global_batch_size")
        bounds = [0, *(t * o.global_batch_size for t in o.transitions), total]
        at = self.launch.after_step * o.global_batch_size
        return max(b for b in bounds if b <= at), min((b for b in bounds if b > at), default=total)

    @cached_property
    def sampler(self) -> Sampler:
        """Rows of its steps."""
        o = self.options
        if not o.cyclic:
            return Single(o.micro_batch_size, o.data_parallel_size, not o.hybrid_context)
        assert o.micro_batch_size and o.data_parallel_size
        return Cyclic(len(self.data("train")), self.consumed_start + self.shift, b=o.micro_batch_size, dp=o.data_parallel_size, sharding=o.sharding)

    @cached_property
    def shift(self) -> int:
        """What is added to the trainer's counter to get the sampler's: phases number their samples anew."""
        if not self.options.transitions:
            return 0
        last = max([t for t in self.options.transitions if t <= self.launch.after_step], default=0)
        return (self.launch.after_step - last) * self.options.global_batch_size - self.consumed_start

    # ---- data sets ----

    def wanted(self, split: str) -> int | None:
        """Samples asked of a split; None where one pass is read whatever it holds."""
        o = self.options
        if split == "train":
            if o.transitions:
                return self.phase[1] - self.phase[0]
            return o.train_samples or (o.train_iters or 0) * o.global_batch_size
        if split == "test":
            return o.eval_iters * o.eval_batch
        if o.full_validation:
            return None
        if o.skip_train:
            return o.eval_iters * o.eval_batch
        iters = o.train_iters if o.train_iters else self.schedule.count(o.train_samples or 0)
        return (iters // o.eval_interval + 1 if o.eval_interval else 1) * o.eval_iters * o.eval_batch

    def split(self, name: str) -> Split | None:
        """How a split is laid out; None where the run has none."""
        if name not in self._splits:
            self._splits[name] = self._split(name)
        return self._splits[name]

    def check(self) -> None:
        """Work out every split, so that what the trainer could not have run is refused."""
        for name in SPLITS:
            try:
                self.split(name)
            except StoreError:
                if name == "train":
                    raise
                self.notes.append(f"the {name} data are not here; that split is not checked")
            except _Unchecked as error:
                self.notes.append(error.message)

    def _split(self, name: str) -> Split | None:
        blend = self.options.blends[SPLITS.index(name)]
        if blend is None:
            return None
        bounds: Bounds | None = (0.0, 1.0)
        if self.options.split is not None:
            bounds = split_bounds(self.options.split)[SPLITS.index(name)]
        if bounds is None:
            return None
        candidates = [self._under(rule, name, blend, bounds) for rule in self.rules.surplus]
        first = candidates[0]
        if all(other.order == first.order and (other.length == first.length or not self.options.cyclic) for other in candidates):
            return min(candidates, key=lambda c: c.length)
        fitting = [c for c in candidates if self._in_cache(c)]
        if len(fitting) == 1:
            self.notes.append(f"the version is not given and would change the {name} order; the run's cached indices tell which rule holds")
            return fitting[0]
        raise NotReplayable(
            self._undecided(name, candidates),
            hint="give `version`: megatron-core up to 0.10 and from 0.11 on ask for another number of samples; `pip "
            "show megatron-core` where the run was made, or its log, tells",
        )

    def _undecided(self, name: str, candidates: Sequence[Split]) -> str:
        for a, b in zip(candidates[0].laid, candidates[1].laid):
            if a.epochs != b.epochs:
                return (
                    f"the version of megatron-core decides the {name} order and is not given: {a.prefix} is asked for "
                    f"{a.epochs.wanted} samples before 0.11 and {b.epochs.wanted} since, "
                    f"which makes {a.epochs.epochs} passes ({'last apart' if a.epochs.separate else 'all mixed'}) or "
                    f"{b.epochs.epochs} ({'last apart' if b.epochs.separate else 'all mixed'})"
                )
        return f"the version of megatron-core decides the length of the {name} blend ({candidates[0].length} or {candidates[1].length}) and is not given"

    def _under(self, rule: Surplus, name: str, blend: Blend, bounds: Bounds) -> Split:
        size = self.wanted(name)
        per_split = self.options.split is None
        if len(blend.prefixes) == 1 and (blend.weights is None or per_split):
            laid = self._lay(name, blend.prefixes[0], None, bounds, size)
            return Split(name, (laid,), None, laid.epochs.samples)
        if blend.weights is None:
            return self._unweighted(name, blend, bounds, size)
        if size is None:
            raise RunError(
                f"the {name} split mixes by weights without a number of samples, which the trainer refuses",
                hint="full validation takes prefixes without weights",
            )
        check_weights(blend.weights, blend.prefixes)
        weights = normalize(list(blend.weights))
        wanted, length = targets(weights, size, rule, self.options.surplus)
        laid_all = tuple(self._lay(name, p, w, bounds, n) for p, w, n in zip(blend.prefixes, weights, wanted))
        if self.options.renormalize:
            weights = [n / sum(wanted) for n in wanted]
        return Split(name, laid_all, tuple(weights), length, size=length)

    def _unweighted(self, name: str, blend: Blend, bounds: Bounds, size: int | None) -> Split:
        if not self.rules.unweighted:
            raise RunError("prefixes without weights are mixed from megatron-core 0.7 on only", hint="give the weights of the run or its version")
        if self.rules.version is None:
            self.notes.append("prefixes without weights: megatron-core 0.7 or later is assumed")
        laid = tuple(self._lay(name, p, None, bounds, None) for p in blend.prefixes)
        built = [x.epochs.samples for x in laid]
        if name != "train" and min(built) <= 0:
            raise _Unchecked(f"a prefix of the {name} split gives no whole sample; a trainer that mixes without weights refuses this")
        check_weights([float(k) for k in built], blend.prefixes)
        total = sum(built)
        if size is None:
            return Split(name, laid, tuple(float(k) for k in built), total, exhaustive=True)
        return Split(name, laid, tuple(float(k) for k in built), min(size, total), size=min(size, total))

    def _lay(self, name: str, prefix: str, weight: float | None, bounds: Bounds, wanted: int | None) -> Laid:
        store = self.files.open(self.files.number[prefix])
        start, stop = split_range(bounds, store.n_sequences)
        tokens = int(store.lengths[start:stop].sum(dtype=np.int64))
        if tokens <= 0 and wanted:
            raise NotReplayable(
                f"the {name} split of {prefix} holds {stop - start} sequences and no tokens, yet {wanted} "
                "samples are wanted: the trainer's library never returns from this",
                hint="a run that started cannot have had these arguments; check `split`, the prefixes and eval_iters",
            )
        drop_last = self.options.drop_last or name != "valid"
        return Laid(
            prefix, weight, (start, stop), epochs_of(wanted if tokens > 0 else None, tokens, self.options.seq_length, self.options.extra, drop_last=drop_last)
        )

    # ---- indices ----

    def _wanted_index(self, split: Split, laid: Laid) -> Wanted:
        o = self.options
        return Wanted((laid.prefix, str(self.run.path(laid.prefix))), split.name, o.seed, o.seq_length, o.split, laid.epochs.wanted)

    def _in_cache(self, split: Split) -> bool:
        return all(self.files.caches.corpora(self._wanted_index(split, x)) for x in split.laid)

    def data(self, name: str) -> DataSet:
        """The data set of a split.

        Raises:
            RunError: the run has no such split.
        """
        if name not in self._data:
            split = self.split(name)
            if split is None:
                raise RunError(f"launch {self.launch.number} has no {name} split")
            self._data[name] = self._open(split)
        return self._data[name]

    def _open(self, split: Split) -> DataSet:
        corpora = tuple(self._corpus(split, laid) for laid in split.laid)
        if split.weights is None:
            return DataSet(corpora, None, None, split.length)
        order = BlendOrder(split.weights, split.length, [x.epochs.samples for x in split.laid] if split.exhaustive else None)
        if not split.exhaustive and (self.rules.version or (0, 7)) >= (0, 7):
            check_enough(corpora, order, split.length)
        shown = tuple(float(w) for w in order.weights)
        cached = self._cached_blend(split, shown)
        if cached is None and platform.machine() in ("aarch64", "arm64"):
            self.notes.append(
                "blend order rebuilt on ARM: a fused multiply-add may break ties otherwise than on the "
                "training machine; the run's cached dataset_index is exact"
            )
        return DataSet(corpora, shown, cached or order, split.length)

    def _corpus(self, split: Split, laid: Laid) -> CorpusOrder:
        number = self.files.number[laid.prefix]
        store = self.files.open(number)
        cached = self._cached_corpus(split, laid, store)
        return CorpusOrder(
            number, store, laid.sequences, laid.epochs, seed=self.options.seed, length=self.options.seq_length, extra=self.options.extra, cached=cached
        )

    def _cached_corpus(self, split: Split, laid: Laid, store: MegatronStore) -> CachedIndex | None:
        caches, wanted = self.files.caches, self._wanted_index(split, laid)
        entries = (laid.sequences[1] - laid.sequences[0]) * laid.epochs.epochs
        wrong = ""
        found = caches.corpora(wanted)
        for description in found:
            index = CachedIndex(description)
            wrong = index.contradiction(entries, laid.epochs.samples)
            if not wrong:
                if _newest(store) > index.newest():
                    self.newer.append(store.path.name)
                return index
        if found and tail(description.path, wanted.paths) > WEAK_MATCH:
            raise RunError(
                f"the cached index {description.base.name.rstrip('-')} for {laid.prefix} does not fit the data files: {wrong}",
                hint="the corpus was tokenised again under the same name since the run; bring back its data, or "
                "leave `cache` out to rebuild from the files as they are",
            )
        if found:
            self.notes.append(f"{laid.prefix}: a cached index agrees in the last part of its path only and does not fit; rebuilt")
        elif sizes := caches.other_sizes(wanted):
            self.notes.append(
                f"{laid.prefix}: cached indices were built for "
                f"{', '.join('one pass' if n is None else str(n) for n in sizes)} samples, {laid.epochs.wanted} are wanted; rebuilt"
            )
        return None

    def _cached_blend(self, split: Split, weights: tuple[float, ...]) -> CachedBlend | None:
        wanted = [self._wanted_index(split, x) for x in split.laid]
        shown = split.weights if split.exhaustive and split.weights else weights
        for description in self.files.caches.blends(wanted, shown, split.size):
            found = CachedBlend(description)
            if found.length == split.length:
                return found
        return None

    # ---- summary ----

    @cached_property
    def order_hash(self) -> str:
        """Equal for launches in which a step with equal consumed samples reads equal data."""
        o, split = self.options, self.split("train")
        files = [self.files.open(self.files.number[x.prefix]).fingerprint for x in split.laid] if split else []
        cyclic = (o.micro_batch_size, o.data_parallel_size, o.sharding, split.length if split else 0) if o.cyclic else ()
        return digest(o.seed, o.seq_length, o.extra, split.order if split else (), files, cyclic, self.phase if o.transitions else ())


def _newest(store: MegatronStore) -> float:
    return max(p.stat().st_mtime for p in (store.idx, store.bin))


def cache_folders(run: RunSpec, launch: Launch, prefixes: Sequence[str]) -> list[Path]:
    """Where the run's cached indices may lie: as described, as its arguments say, beside the data."""
    out = list(run.cache)
    if (given := launch.args.get("data_cache_path")) is not None and str(given) != "None":
        out.append(run.path(str(given)))
    out += [run.path(prefix) / "cache" / "GPTDataset_indices" for prefix in prefixes]
    return [folder for folder in out if folder.is_dir()]
