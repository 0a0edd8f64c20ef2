"""A batch sampler that leaves listed batches out: runs inside a trainer, standard library alone; may be copied there.

    from forensics.manifests.skipping import skipping
    loader = skipping(DataLoader(...), "skip.json")              # torch; before accelerator.prepare(loader)
    class MyTrainer(Trainer):                                    # transformers
        def get_train_dataloader(self):
            return skipping(super().get_train_dataloader(), "skip.json")

In place of a listed batch an earlier clean one of the same epoch is read again, so that batches per epoch, steps, the
learning rate and the place of all other data stay as they were and a resume finds its place. With `"in_place": "drop"` in
the file they are left out instead: the epoch gets shorter and later data move to earlier steps.

Batches are counted from 0 in each epoch, epochs from 0, before any sharding to ranks; with a DistributedSampler each
rank wraps its own sampler with the same file.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from typing import Any

FORMAT = "forensics-skip-1"


class SkippingBatchSampler:
    """Wraps a batch sampler.

    Args:
        batch_sampler: any iterable of lists of indices with a length.
        listed: the skip file, or its content.
        epoch: epoch of the first iteration, where nobody calls `set_epoch`.
    """

    def __init__(self, batch_sampler: Any, listed: str | os.PathLike[str] | dict[str, Any], epoch: int = 0) -> None:
        content: dict[str, Any]
        if isinstance(listed, dict):
            content = listed
        else:
            with open(listed, encoding="utf-8") as file:  # noqa: PTH123 - no pathlib needed where this is copied to
                content = json.load(file)
        if content.get("format") != FORMAT or content.get("in_place") not in ("repeat", "drop"):
            raise ValueError("no skip list of the format %s with in_place `repeat` or `drop`" % FORMAT)
        self._inner = batch_sampler
        self._repeat = content["in_place"] == "repeat"
        self._length: tuple[int, int] = tuple(content["batches_per_epoch"])
        self._epochs: dict[int, list[tuple[int, int]]] = {int(e): [(int(a), int(b)) for a, b in r] for e, r in content["epochs"].items()}
        self._epoch = epoch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def sampler(self) -> Any:
        """The sampler of the wrapped one; accelerate puts its own in its place."""
        return self._inner.sampler

    @sampler.setter
    def sampler(self, value: Any) -> None:
        self._inner.sampler = value

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is."""
        self._epoch = epoch
        if hasattr(self._inner, "set_epoch"):
            self._inner.set_epoch(epoch)

    def __len__(self) -> int:
        n = len(self._inner)
        return n if self._repeat else n - sum(min(b, n) - min(a, n) for a, b in self._epochs.get(self._epoch, []))

    def __iter__(self) -> Iterator[Any]:
        epoch = self._epoch
        ranges = self._epochs.get(epoch, [])
        n = len(self._inner)
        if ranges and not self._length[0] <= n <= self._length[1]:
            raise ValueError(
                "the skip list was made for %d to %d batches per epoch, this sampler has %d: batch size, data or ranks differ, or it wraps a loader "
                "that is already sharded" % (self._length[0], self._length[1], n)
            )
        yield from self._leave_out(ranges) if ranges else self._inner
        if self._epoch == epoch:
            self._epoch = epoch + 1

    def _leave_out(self, ranges: list[tuple[int, int]]) -> Iterator[Any]:
        """The batches, those of the ranges replaced or dropped."""
        source = enumerate(self._inner)
        ahead: deque[tuple[int, Any]] = deque()
        clean: list[Any] = []
        wanted = sum(b - a for a, b in ranges)
        replaced = 0
        while True:
            pair = ahead.popleft() if ahead else next(source, None)
            if pair is None:
                return
            if not any(a <= pair[0] < b for a, b in ranges):
                if len(clean) < wanted:
                    clean.append(pair[1])
                yield pair[1]
                continue
            if not self._repeat:
                continue
            if not clean:
                for later in source:
                    ahead.append(later)
                    if not any(a <= later[0] < b for a, b in ranges):
                        clean.append(later[1])
                        break
                else:
                    raise ValueError("every batch of the epoch is listed, none is left to read in their place")
            yield clean[replaced % len(clean)]
            replaced += 1


def skipping(loader: Any, listed: str | os.PathLike[str] | dict[str, Any]) -> Any:
    """Put the skip list into a DataLoader, before or after accelerate prepared it; returns the loader.

    Args:
        loader: a torch DataLoader with a batch sampler, or what accelerate made of one.
        listed: the skip file, or its content.
    """
    outer = getattr(loader, "batch_sampler", None)
    if outer is None:
        raise ValueError("the loader has no batch sampler (an iterable data set, or batch_size None): batches cannot be left out of it")
    if hasattr(outer, "batch_sampler") and hasattr(outer, "num_processes"):
        outer.batch_sampler = SkippingBatchSampler(outer.batch_sampler, listed)  # accelerate deals whole batches to ranks
        return loader
    wrapped = SkippingBatchSampler(outer, listed)
    for target in (loader, getattr(loader, "base_dataloader", None)):
        if target is not None:
            object.__setattr__(target, "batch_sampler", wrapped)  # torch forbids it by name, though nothing has read it yet
    return loader
