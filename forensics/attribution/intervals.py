"""Few ranges of steps that hold most of what is dirty: at most so many ranges, under a price for ordinary tokens or a budget."""

from __future__ import annotations

import numpy as np

from forensics.losses.difficulty import BOOL, F64

ODD_WEIGHT = 6.0  # ordinary tokens that one is ready to lose for one dirty token
INTERVAL_COST = 0.5  # full batches


def covering(odd: F64, most: int, gap: int, cover: float) -> list[tuple[int, int]]:
    """At most `most` half-open index ranges that gain the most: dirty tokens weighed against ordinary ones and a price per range.

    Args:
        odd: share of dirty tokens per step.
        most: ranges.
        gap: ranges closer than this are merged.
        cover: share of the dirty tokens that must be covered; ranges grow by their cheapest steps until they do.
    """
    taken = best(ODD_WEIGHT * odd - (1 - odd), most, INTERVAL_COST)
    total = odd.sum()
    for j in np.argsort(-odd, kind="stable"):
        if total <= 0 or odd[taken].sum() >= cover * total:
            break
        taken[j] = True
    return ranges_of(taken, gap)


def affordable(harm: F64, tokens: F64, most: int, budget: float) -> list[tuple[int, int]]:
    """At most `most` half-open index ranges within a budget of tokens that take away the most harm (a knapsack, by a price per token).

    Args:
        harm: per step, what leaving it out removes.
        tokens: per step, what that costs.
        most: ranges.
        budget: tokens.
    """
    low, high = 0.0, float((harm / np.maximum(tokens, 1)).max(initial=0.0)) * 1.01 + 1e-12
    taken = np.zeros(len(harm), dtype=bool)
    for _ in range(30):
        price = (low + high) / 2
        found = best(harm - price * tokens, most, 0.0)
        if tokens[found].sum() <= budget:
            high, taken = price, found
        else:
            low = price
    left = budget - float(tokens[taken].sum())
    order = [int(t) for t in np.argsort(-harm / np.maximum(tokens, 1), kind="stable") if harm[t] > 0 and not taken[t]]
    for _ in range(len(order)):  # what is left of the budget goes to neighbours, which open no range of their own
        fits = [t for t in order if tokens[t] <= left and (not taken.any() or taken[max(t - 1, 0)] or taken[min(t + 1, len(taken) - 1)])]
        if not fits:
            break
        taken[fits[0]] = True
        left -= float(tokens[fits[0]])
        order.remove(fits[0])
    return ranges_of(taken, 0)


def best(gain: F64, most: int, cost: float) -> BOOL:
    """Steps of the at most `most` ranges with the largest sum of gains less the cost of each range: a dynamic programme over steps [n]."""
    n = len(gain)
    outside = np.full((most + 1, n + 1), -np.inf)
    inside = np.full((most + 1, n + 1), -np.inf)
    outside[0, 0] = 0.0
    from_in = np.zeros((most + 1, n + 1), dtype=bool)
    opened = np.zeros((most + 1, n + 1), dtype=bool)
    for i in range(n):
        before = np.concatenate([[-np.inf], np.maximum(outside[:-1, i], inside[:-1, i])])
        stay, start = inside[:, i] + gain[i], before + gain[i] - cost
        inside[:, i + 1] = np.maximum(stay, start)
        opened[:, i + 1] = start > stay
        outside[:, i + 1] = np.maximum(outside[:, i], inside[:, i])
        from_in[:, i + 1] = inside[:, i] > outside[:, i]
    k = int(np.argmax(np.maximum(outside[:, n], inside[:, n])))
    taken = np.zeros(n, dtype=bool)
    i, now = n, bool(inside[k, n] > outside[k, n])
    while i > 0:
        if now:
            taken[i - 1] = True
            if opened[k, i]:
                k -= 1
                now = bool(inside[k, i - 1] > outside[k, i - 1])
        else:
            now = bool(from_in[k, i])
        i -= 1
    return taken


def ranges_of(taken: BOOL, gap: int) -> list[tuple[int, int]]:
    """Half-open index ranges of True, those at most `gap` apart merged."""
    hits = np.flatnonzero(taken)
    if not len(hits):
        return []
    cut = np.flatnonzero(np.diff(hits) > max(gap, 1))
    begin = hits[np.concatenate([[0], cut + 1])]
    end = hits[np.concatenate([cut, [len(hits) - 1]])]
    return [(int(a), int(b) + 1) for a, b in zip(begin, end, strict=True)]
