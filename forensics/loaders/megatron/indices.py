"""Which documents an epoch holds and how they are shuffled: Megatron's document, sample and shuffle index.

Follows `megatron/core/datasets/gpt_dataset.py` (`_build_document_sample_shuffle_indices`, `_build_document_index`,
`_build_shuffle_index`), `blended_megatron_dataset_config.py` (splits) and `helpers.cpp` (`build_sample_idx`) of
megatron-core 0.5 to 0.19. The stored sample index is only the (document, offset) form of the flat token position
`k * S`; it is never built here.

Names: `T` tokens per epoch, `S` sequence length, `x` the extra token per sample (1 or 0), `N` samples wanted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.errors import NotReplayable, RunError

Bounds = tuple[float, float]


def normalize(weights: list[float]) -> list[float]:
    """Weights divided by their numpy sum, in float64: the library's own rounding."""
    values = np.array(weights, dtype=np.float64)
    return [float(value) for value in values / np.sum(values)]


def split_bounds(split: str) -> list[Bounds | None]:
    """Shares of the train, valid and test part of a split string, as (from, to); None for a part of no width.

    Raises:
        RunError: for a string the library refuses too.
    """
    try:
        parts = [float(found) for found in re.findall(r"[.0-9]+", split)]
    except ValueError as error:
        raise RunError(f"the split `{split}` holds something that is no number") from error
    if len(parts) > 3 or not sum(parts) > 0:
        raise RunError(f"the split `{split}` is not one the trainer accepts", hint="give up to three parts, as in 969,30,1")
    shares = normalize(parts + [0.0] * (3 - len(parts)))
    ends: list[float] = [0]
    for share in shares:
        ends.append(ends[-1] + share)
    return [(start, stop) if stop > start else None for start, stop in zip(ends, ends[1:])]


def split_range(bounds: Bounds, n_sequences: int) -> tuple[int, int]:
    """First and stop sequence of a part, rounded half to even as Python's `round` does."""
    return round(bounds[0] * float(n_sequences)), round(bounds[1] * float(n_sequences))


@dataclass(frozen=True)
class Epochs:
    """How often one corpus is passed, and what follows from it.

    Attributes:
        wanted: samples asked for (N), None where one pass is built whatever it holds.
        tokens: tokens of one pass (T).
        epochs: passes (E).
        separate: whether the last pass is shuffled apart from the others.
        samples: samples built (K).
        first: samples before the last pass begins (K0 of the shuffle); `samples` unless `separate`.
        total: tokens of all passes.
    """

    wanted: int | None
    tokens: int
    epochs: int
    separate: bool
    samples: int
    first: int

    @property
    def total(self) -> int:
        """Tokens of all passes together."""
        return self.tokens * self.epochs


def epochs_of(wanted: int | None, tokens: int, length: int, extra: int, *, drop_last: bool = True) -> Epochs:
    """Passes over a corpus of `tokens` tokens and whether the last one is kept apart.

    The last pass is shuffled apart when less than 80 % of it is needed (`int(0.8 * per)`, both cut to integers).

    Args:
        wanted: samples asked for; None builds one pass.
        tokens: tokens of one pass.
        length: sequence length.
        extra: 1 where a sample holds one token more than its length, else 0.
        drop_last: whether a last sample that is not full is left out.

    Raises:
        NotReplayable: without tokens; the library then counts epochs for ever.
    """
    epochs = 1
    if wanted is not None and (need := wanted * length + extra) > tokens:
        if tokens <= 0:
            raise NotReplayable(
                f"{wanted} samples are wanted from a part without tokens: the library itself never returns from this",
                hint="check `split`, the prefix and the data files",
            )
        epochs = -(-need // tokens)
    first = ((epochs - 1) * tokens - extra) // length
    separate = False
    if epochs > 1 and wanted is not None:
        separate = wanted - first < int(0.80 * ((tokens - extra) // length))
    samples = samples_of(epochs * tokens, length, extra, drop_last=drop_last)
    return Epochs(wanted, tokens, epochs, separate, samples, first if separate else samples)


def samples_of(total: int, length: int, extra: int, *, drop_last: bool = True) -> int:
    """Samples that fit into `total` tokens; with the last one not full, the C++ code divides in float32."""
    if drop_last:
        return max(0, (total - extra) // length)
    return max(0, int(np.ceil(np.float32(total - extra) / np.float32(length))))


def document_index(start: int, stop: int, epochs: Epochs, state: np.random.RandomState) -> NDArray[np.int32]:
    """Stored sequences in the order they are read, all passes; advances the generator.

    Args:
        start: first sequence of the split.
        stop: its stop.
        epochs: passes over it.
        state: the corpus's own generator, as fresh.

    Returns:
        int32 [passes * sequences].
    """
    n = stop - start
    order = np.empty(epochs.epochs * n, dtype=np.int32)
    order.reshape(epochs.epochs, n)[:] = np.arange(start, stop, dtype=np.int32)
    if not epochs.separate:
        state.shuffle(order)
        return order
    border = (epochs.epochs - 1) * n
    state.shuffle(order[:border])
    state.shuffle(order[border:])
    return order


def shuffle_index(epochs: Epochs, state: np.random.RandomState) -> NDArray[Any]:
    """Sample built for each sample number; advances the generator.

    The second part starts with the sample that straddles the border of the last pass.

    Returns:
        uint32 [samples], int64 from 2**32 - 2 samples.
    """
    dtype = np.int64 if epochs.samples >= np.iinfo(np.uint32).max - 1 else np.uint32
    order: NDArray[Any] = np.arange(epochs.samples, dtype=dtype)
    state.shuffle(order[: epochs.first])
    if epochs.first < epochs.samples:
        state.shuffle(order[epochs.first :])
    return order
