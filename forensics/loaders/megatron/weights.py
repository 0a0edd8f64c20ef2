"""Lists of data prefixes with weights, and how many samples each corpus is asked for.

Follows `megatron/core/datasets/utils.py` (`get_blend_from_list`) and `blended_megatron_dataset_builder.py`
(`_get_size_per_split_per_dataset`), megatron-core 0.5 to 0.19.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from forensics.errors import RunError

Surplus = Literal["once", "twice"]


@dataclass(frozen=True)
class Blend:
    """Prefixes of data files and their weights as given, None without any."""

    prefixes: tuple[str, ...]
    weights: tuple[float, ...] | None


def parse_blend(items: Sequence[str | float | int]) -> Blend:
    """What a `--data-path` list means.

    An odd number of items is prefixes; an even one is weight, prefix, ... unless a weight does not read as a number.

    Raises:
        RunError: for an empty list.
    """
    words = [str(item).strip() for item in items]
    if not words:
        raise RunError("the list of data prefixes is empty")
    if len(words) % 2 == 1:
        return Blend(tuple(words), None)
    weights = []
    for word in words[::2]:
        try:
            weights.append(float(word))
        except ValueError:
            return Blend(tuple(words), None)
    return Blend(tuple(words[1::2]), tuple(weights))


def check_weights(weights: Sequence[float], prefixes: Sequence[str]) -> None:
    """Refuse what the library's blend refuses: weights that are not above zero.

    Raises:
        RunError: naming the first such prefix.
    """
    for weight, prefix in zip(weights, prefixes):
        if not (weight > 0 and math.isfinite(weight)):
            raise RunError(
                f"the weight {weight:g} of {prefix} is not above 0, which the trainer's blend refuses",
                hint="leave the prefix out, or give the weight of the run",
            )


def targets(weights: Sequence[float], size: int, rule: Surplus, surplus: float) -> tuple[list[int], int]:
    """Samples asked of each corpus, and the length of the blend.

    Args:
        weights: normalised once.
        size: samples the split wants.
        rule: `once`: `ceil(N * w * 1.005)`, and the blend is as long as their sum (0.10 and before);
            `twice`: `ceil(ceil(N * w) * 1.005)`, and the blend is as long as the sum of `ceil(N * w)` (from 0.11).
        surplus: the share asked for on top, 0.005 unless the run changed it.
    """
    if rule == "once":
        wanted = [math.ceil(size * weight * (1 + surplus)) for weight in weights]
        return wanted, sum(wanted)
    plain = [math.ceil(size * weight) for weight in weights]
    return [math.ceil(count * (1 + surplus)) for count in plain], sum(plain)
