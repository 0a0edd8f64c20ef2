"""The data set of one split of one launch: a corpus or a blend, and what every sample number in it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forensics.errors import RunError
from forensics.loaders.megatron.blend import BlendOrder
from forensics.loaders.megatron.cache import CachedBlend
from forensics.loaders.megatron.corpus import CorpusOrder, Parts


@dataclass(frozen=True)
class DataSet:
    """What the sampler numbers.

    Attributes:
        corpora: by position in the blend; one where there is none.
        weights: normalised as the trainer's log prints them; None without a blend.
        order: None where a single corpus is read by itself.
        length: samples in it.
    """

    corpora: tuple[CorpusOrder, ...]
    weights: tuple[float, ...] | None
    order: BlendOrder | CachedBlend | None
    length: int

    def __len__(self) -> int:
        return self.length

    def parts(self, samples: NDArray[np.int64]) -> Parts:
        """What samples are made of, rows in the order asked for.

        Args:
            samples: int64 [n], numbers in this data set.

        Raises:
            RunError: a sample beyond the data set's end.
        """
        if len(samples) and (int(samples.max()) >= self.length or int(samples.min()) < 0):
            raise RunError(
                f"sample {int(samples.max())} lies beyond the end of the data ({self.length} samples)",
                hint="a run with the `single` loader ends there; check train_iters, batch size and the steps asked for",
            )
        if self.order is None:
            return self.corpora[0].parts(samples)
        position, inner = self.order.pick(samples)
        found = []
        for number in np.unique(position):
            rows = np.flatnonzero(position == number)
            mine = self.corpora[int(number)].parts(inner[rows])
            found.append(Parts(rows[mine.row], mine.corpus, mine.sequence, mine.start, mine.stop, mine.place, mine.epoch))
        if not found:
            return self.corpora[0].parts(samples)
        parts = Parts.concat(found)
        return parts.take(np.argsort(parts.row, kind="stable")) if len(found) > 1 else parts

    def find(self, sequences: dict[int, NDArray[np.int64]]) -> NDArray[np.int64]:
        """Sample numbers that hold any token of these stored sequences, ascending.

        Args:
            sequences: corpus number -> stored sequences.
        """
        position, inner = [], []
        for number, corpus in enumerate(self.corpora):
            if corpus.corpus_id in sequences:
                mine = corpus.find(sequences[corpus.corpus_id])
                position.append(np.full(len(mine), number, np.int64))
                inner.append(mine)
        if not inner:
            return np.empty(0, np.int64)
        if self.order is None:
            return np.sort(inner[0])
        found = self.order.seek(np.concatenate(position), np.concatenate(inner))
        return np.sort(found[found >= 0])


def check_enough(corpora: Sequence[CorpusOrder], order: BlendOrder, length: int) -> None:
    """Refuse a blend that would draw more samples than a corpus has, as the library does from 0.7 on.

    The greedy order never draws more than `w * n + 1`, so most blends need no counting.

    Raises:
        RunError: naming the corpus.
    """
    if all(len(corpus) >= weight * length + 1 for corpus, weight in zip(corpora, order.weights)):
        return
    for corpus, drawn in zip(corpora, order.counts()):
        if drawn > len(corpus):
            raise RunError(
                f"the blend draws {int(drawn)} samples from {corpus.store.path.name}, which has {len(corpus)}; the trainer refuses this",
                hint="check weights, train_iters and batch size",
            )
