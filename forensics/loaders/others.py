"""Trainers whose order is not recomputed here: each says why, and what its run should have recorded.

Read for this: torchtitan (main, August 2026), nanotron (main, April 2026), litData, Levanter (`mixture.py`), DeepSpeed's
`data_sampler.py`, Megatron-Energon's documentation. `trainer: recorded` takes what is recorded, with the same data files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from forensics.errors import NotReplayable
from forensics.loaders.base import LOADERS, StepFacts
from forensics.run import RunSpec
from forensics.schemas import Blends, Consumed, Corpora, Launches
from forensics.steps import StepRange
from forensics.stores.base import TokenStore

COLUMNS = "step, sequence, seq_start, corpus, document, doc_start, doc_stop"
WHY = {
    "torchtitan": (
        "torchtitan shuffles and packs through Grain or torchdata with a token buffer, whose position is only in the `dataloader` entry of a checkpoint",
        "log the ids of the source rows of each batch",
    ),
    "nanotron": (
        "nanotron's Nanoset takes each folder in the order in which datatrove shuffled it, whose seed no file of the run holds",
        "log, per step, the folder and the sample number that Nanoset.__getitem__ was asked for and the document and place that datatrove returned",
    ),
    "litdata": (
        "litData deals chunks to ranks and workers and cuts them to the chunk intervals on disk, which is not modelled",
        "log the chunk number and the item number of each sample; the state of StreamingDataLoader alone names counts, not samples",
    ),
    "energon": (
        "Megatron-Energon reads through shuffle buffers of each worker, whose contents are only in its savable state",
        "log the `__key__` of each sample; `__restore_key__` finds it again in the data set",
    ),
    "levanter": (
        "Levanter permutes sources and mixture blocks with jax's generator and may ask for indices some steps early, which is not modelled",
        "log the source and the index of each example in the batch",
    ),
    "deepspeed-data-efficiency": (
        "DeepSpeed's curriculum sampler rewrites its cluster files whenever it shuffles them again, and older checkpoints hold the wrong generator's state",
        "log the sample ids that DeepSpeedDataSampler.get_next_global_batch returns",
    ),
}
WITHOUT_ORDER = frozenset(WHY)


class NoOrder:
    """A trainer that is known, and whose order is not.

    Args:
        name: as `trainer:` gives it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def _refuse(self) -> NoReturn:
        why, record = WHY[self.name]
        raise NotReplayable(
            f"the order of a run of {self.name} cannot be recomputed: {why}",
            hint=f"{record}, as a table with the columns {COLUMNS}, and give it with trainer: recorded and args.consumed",
        )

    def launches(self, run: RunSpec) -> Launches:
        """Refused."""
        self._refuse()

    def corpora(self, run: RunSpec) -> Corpora:
        """Refused."""
        self._refuse()

    def blends(self, run: RunSpec) -> Blends:
        """Refused."""
        self._refuse()

    def consumed(self, run: RunSpec, steps: StepRange, launch: int | None = None) -> Iterator[Consumed]:
        """Refused."""
        self._refuse()

    def trained(self, run: RunSpec, steps: StepRange, launch: int | None = None) -> StepFacts:
        """Refused."""
        self._refuse()

    def locate(self, run: RunSpec, doc_keys: NDArray[np.int64]) -> Iterator[Consumed]:
        """Refused."""
        self._refuse()

    def store(self, run: RunSpec) -> TokenStore:
        """Refused."""
        self._refuse()


for _name in WHY:
    LOADERS.add(_name, NoOrder(_name), __name__)
