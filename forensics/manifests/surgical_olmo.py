"""Surgery on the global indices of OLMo-core and old OLMo.

OLMo-core (3.0.0, tried) takes `<work_dir>/global_indices_[chunk<c>_]dataset_size<n>_epoch<e>_seed<s>_v1.npy` as it finds it: raw
uint32, no header, one entry per instance in the order read. Old OLMo writes `train_data/global_indices.npy` anew at every
start, so its code must be told to read the patched one. Never reached are the tail that fills no batch, and what comes after
the run's last step in its last epoch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from forensics.errors import ForensicsError, UsageError
from forensics.files import writing
from forensics.loaders.base import loader_of
from forensics.loaders.olmo import OlmoOrder
from forensics.loaders.olmo_core.loader import Epochs
from forensics.loaders.planned import Rows
from forensics.manifests.surgical import SURGEONS, Ids, Index, Swap, Target, Written, check_folder, link
from forensics.run import RunSpec
from forensics.schemas import DOC_BITS
from forensics.steps import MAX_STEP, StepRange

LEGACY = "train_data/global_indices.npy"
NAME = "global_indices_{chunk}dataset_size{n}_epoch{epoch}_seed{seed}_v1.npy"


@dataclass(frozen=True)
class PatchedEpochs(Epochs):
    """Epochs of which some are read from patched indices."""

    patched: Mapping[int, Any] | None = None

    def order(self, epoch: int) -> Any:
        """Instances of an epoch."""
        return self.patched[epoch] if self.patched and epoch in self.patched else super().order(epoch)


@dataclass
class PatchedOrder(OlmoOrder):
    """An old OLMo's order of which some epochs are read from patched indices."""

    patched: Mapping[int, Any] | None = None

    def _order(self, epoch: int) -> Any:
        return self.patched[epoch] if self.patched and epoch in self.patched else super()._order(epoch)


class CoreSurgeon:
    """Swaps entries of OLMo-core's global indices, an index per epoch."""

    name = "olmo-core"

    def steps(self, run: RunSpec, launch: int, after: int) -> StepRange:
        """Steps after `after` that the launch would still run."""
        return _steps(order_of(run, launch), launch, after)

    def indices(self, target: Target) -> list[Index]:
        """One index per epoch with guilty instances still to come."""
        order = order_of(target.run, target.launch)
        epochs = order.epochs
        if (
            epochs.curriculum is not None
            or len(epochs.groups) > 1
            or len(epochs.groups[0]) > 1
            or epochs.strategy != "inter_source"
            or "sources" in order.launch.args
        ):
            raise ForensicsError("only data sets of one fixed length read their order from a global-indices file that is known here", hint="use steps_to_skip")
        out = []
        for epoch, (ever, coming) in _core_used(order, target).items():
            entries = epochs.order(epoch)
            name = NAME.format(chunk=_chunk(epochs), n=epochs.length(epoch), epoch=epoch, seed=epochs.seed)
            self._kept(target.run, name, entries, _chunk(epochs))
            out.append(_index(order, target, name, entries, ever, coming, epoch - 1))
        return [x for x in out if len(x.guilty)]

    def _kept(self, run: RunSpec, name: str, entries: Any, chunk: str) -> None:
        """The run's own file must say the same as the order worked out here."""
        found = next((p for folder in _work(run) for p in [folder / name] if p.is_file()), None)
        if found is None:
            if chunk:
                raise ForensicsError(
                    f"{name} of the run is not here; with several windows a chunk the file's form was not read", hint="give the work_dir: `cache:`"
                )
            return
        if found.stat().st_size != entries.nbytes or not np.array_equal(np.fromfile(found, np.uint32), entries):
            raise ForensicsError(f"{found} is not the order that the description gives", hint="the description or the file belongs to another run")

    def write(self, target: Target, swaps: Sequence[Swap], folder: Path) -> Written:
        """Patched files, and whatever else lies in the run's work folder, linked."""
        work = _work(target.run)
        check_folder(folder, work)
        new = {s.index.file: s.patched() for s in swaps}
        linked = 0
        for source in work:
            for file in sorted(p for p in source.rglob("*") if p.is_file()):
                name = str(file.relative_to(source))
                if name not in new and not (folder / name).exists():
                    link(file, folder / name)
                    linked += 1
        _save(folder, new)
        warnings = ("epochs that were not reached yet and hold no guilty instance are built by the trainer as ever",)
        return Written(folder, tuple(new), linked, f"data_loader.work_dir={folder} (and dataset.work_dir), with everything else as it was", warnings)

    def rows(self, target: Target, steps: StepRange, folder: Path | None, swaps: Sequence[Swap]) -> Ids:
        """What steps read; the folder's files are read back as the trainer maps them."""
        order = order_of(target.run, target.launch)
        if folder is not None:
            patched = {int(re.findall(r"_epoch(\d+)_", s.index.file)[0]): np.fromfile(folder / s.index.file, np.uint32) for s in swaps}
            own = {name: getattr(order.epochs, name) for name in Epochs.__dataclass_fields__}
            order = replace(order, epochs=PatchedEpochs(**own, patched=patched))
            order._orders = type(order._orders)()
        return _rows(order, order.rows(steps))


class OlmoSurgeon:
    """Swaps entries of old OLMo's global indices, of the epoch that the run is in."""

    name = "olmo"

    def steps(self, run: RunSpec, launch: int, after: int) -> StepRange:
        """Steps after `after` that the launch would still run."""
        return _steps(order_of(run, launch), launch, after)

    def indices(self, target: Target) -> list[Index]:
        """An index per epoch with guilty instances still to come."""
        order = order_of(target.run, target.launch)
        if order.recorded is not None:
            raise ForensicsError(
                "the run wrote down indices that are used in place of its order; what comes cannot be taken from them", hint="leave data_indices out"
            )
        out: list[Index] = []
        for epoch, (ever, coming) in _olmo_used(order, target).items():
            name = LEGACY if len(out) == 0 else f"train_data/global_indices_epoch{epoch}.npy"
            found = _index(order, target, name, order._order(epoch), ever, coming, epoch)
            if len(found.guilty):
                out.append(replace(found, label=f"epoch {epoch} (launch {target.launch})"))
        return out

    def write(self, target: Target, swaps: Sequence[Swap], folder: Path) -> Written:
        """The patched files."""
        check_folder(folder, _work(target.run))
        new = {s.index.file: s.patched() for s in swaps}
        _save(folder, new)
        epochs = ", ".join(s.index.label for s in swaps)
        use = (
            f"old OLMo writes global_indices.npy anew at every start: let `IterableDataset._build_global_indices` return "
            f"`np.fromfile('{folder}/...', dtype=np.uint32)` in the epochs concerned ({epochs}), with everything else as it was"
        )
        return Written(folder, tuple(new), 0, use, ("the change to the trainer's code was not run",))

    def rows(self, target: Target, steps: StepRange, folder: Path | None, swaps: Sequence[Swap]) -> Ids:
        """What steps read; the folder's files are read back."""
        order = order_of(target.run, target.launch)
        if folder is not None:
            patched = {_epoch_of(s): np.fromfile(folder / s.index.file, np.uint32) for s in swaps}
            own = {name: getattr(order, name) for name in OlmoOrder.__dataclass_fields__ if name != "_epochs"}
            order = PatchedOrder(**own, patched=patched)
        return _rows(order, order.rows(steps))


def _epoch_of(swap: Swap) -> int:
    return int(swap.index.label.split()[1])


def order_of(run: RunSpec, launch: int) -> Any:
    """The order of one launch."""
    loader: Any = loader_of(run)
    orders = loader.opened(run).orders
    if not 0 <= launch < len(orders):
        raise UsageError(f"the run has {len(orders)} launches (0 to {len(orders) - 1}), not a launch {launch}")
    return orders[launch]


def _steps(order: Any, launch: int, after: int) -> StepRange:
    first = max(after, order.launch.after_step) + 1
    if order.limit is None or order.limit >= MAX_STEP:
        raise ForensicsError("the run has no known end, so which instances it never reaches is not known", hint="give max_duration, as the trainer takes it")
    if first >= order.limit:
        raise UsageError(f"nothing comes after step {after} of launch {launch}")
    return StepRange(first, order.limit)


def _core_used(order: Any, target: Target) -> dict[int, tuple[Any, Any]]:
    """Epoch -> places of its order that are read at all, and by a step still to come; an epoch's earlier places count as read."""
    out: dict[int, tuple[Any, Any]] = {}
    width = order.epochs.groups[0][0].width
    at = target.steps.start
    while at < target.steps.stop:
        epoch, batch, tokens, last = order.walk.place(at)
        size = tokens // width
        stop = min(last + 1, target.steps.stop)
        ever, coming = out.setdefault(epoch, _blank(order.epochs.length(epoch)))
        ever[: (batch + stop - at) * size] = True  # from the start: earlier steps or launches read them
        coming[batch * size : (batch + stop - at) * size] = True
        at = stop
    return out


def _olmo_used(order: Any, target: Target) -> dict[int, tuple[Any, Any]]:
    out: dict[int, tuple[Any, Any]] = {}
    at = target.steps.start
    while at < target.steps.stop:
        epoch, index, left = order.place(at)
        stop = min(at + left, target.steps.stop)
        ever, coming = out.setdefault(epoch, _blank(len(order._order(epoch))))
        ever[: index + (stop - at) * order.batch] = True
        coming[index : index + (stop - at) * order.batch] = True
        at = stop
    return out


def _blank(n: int) -> tuple[Any, Any]:
    return np.zeros(n, np.bool_), np.zeros(n, np.bool_)


def _chunk(epochs: Epochs) -> str:
    chunk = epochs.groups[0][0].chunk
    return f"chunk{chunk}_" if chunk > 1 else ""


def _index(order: Any, target: Target, name: str, entries: Any, ever: Any, coming: Any, epoch: int) -> Index:
    behind = _behind(order, entries, epoch)
    places = np.flatnonzero(coming).astype(np.int64)
    guilty = [np.empty(0, np.int64)]
    for start in range(0, len(places), 1 << 16):
        part = places[start : start + (1 << 16)]
        which, keys = behind(part)
        guilty.append(part[np.unique(which[np.isin(keys, target.documents)])])
    label = f"epoch {epoch + 1} (launch {target.launch})"
    return Index(name, entries, np.concatenate(guilty), np.flatnonzero(~ever).astype(np.int64), behind, label)


def _behind(order: Any, entries: Any, epoch: int) -> Callable[[Ids], tuple[Ids, Ids]]:
    def behind(places: Ids) -> tuple[Ids, Ids]:
        blank = np.zeros(len(places), np.int64)
        found = order.segments(Rows(blank, np.asarray(entries[places], np.int64), blank, blank, np.full(len(places), epoch)))
        return found.row, found.corpus << DOC_BITS | found.document

    return behind


def _rows(order: Any, rows: Rows) -> Ids:
    found = order.segments(rows)
    at = found.row
    return np.stack([rows.step[at], rows.sequence[at], found.corpus << DOC_BITS | found.document, found.start, found.stop], axis=1)


def _work(run: RunSpec) -> list[Path]:
    """The run's work folders, as far as named."""
    named = [
        str(b["work_dir"]) for x in run.launches for b in (x.args.get("data_loader"), x.args.get("dataset")) if isinstance(b, Mapping) and b.get("work_dir")
    ]
    return [p for p in dict.fromkeys([*run.cache, *(run.path(n) for n in named)]) if p.is_dir()]


def _save(folder: Path, arrays: Mapping[str, Any]) -> None:
    for name, array in arrays.items():
        with writing(folder / name) as part:
            np.asarray(array, np.uint32).tofile(part)


SURGEONS.add("olmo-core", CoreSurgeon(), __name__)
SURGEONS.add("olmo", OlmoSurgeon(), __name__)
