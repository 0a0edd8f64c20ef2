"""What the lengths of these documents cost at one sequence length, by ways to batch them.

- `as_is`: one document a row, padded; what exceeds the row is dropped.
- `concat_and_cut`: documents end to end, cut into rows: no padding, but pieces that begin inside a document. How many depends
  on the order; counted is what a random order gives on average.
- `best_fit`: whole documents, longest first, each into the fullest row with room (best-fit decreasing).
- `buckets_k`: each document padded to the longest of its bucket, bounds placed where padding is least.

Except as is, documents longer than a row are cut into full rows and a rest. `truncated_tokens` are those that are dropped or read
without their document's beginning; `waste` is padding by computed positions. Everything is computed from the histogram of
lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from forensics.documents.lengths import roles_of
from forensics.schemas import BUCKETS, Buckets, Documents
from forensics.stage import stage

if TYPE_CHECKING:
    from numpy.typing import NDArray

KS = (2, 4, 8, 16)
CORNERS = 512
GAIN = 0.02  # more buckets, or buckets instead of packing, must save this share of all positions
TOLERABLE = 0.10  # padding above which cutting documents is the lesser evil


@stage(BUCKETS, version=1)
def buckets(documents: Documents, seq_length: int = 4096, batch: int = 1, ks: Sequence[int] = KS) -> Buckets:
    """Waste of every way to batch the documents; those of the window where there is one, else all.

    Args:
        documents: their lengths count; empty ones need no room.
        seq_length: tokens of a row.
        batch: rows of a batch at full length; a bucket's batch holds as many tokens.
        ks: numbers of buckets to try.
    """
    roles = roles_of(documents)
    tokens = documents.column("tokens").to_numpy()[roles.get("window", roles.get("corpus", np.ones(len(documents), bool)))]
    tokens = tokens[tokens > 0]
    rows = schemes(np.asarray(tokens, np.int64), seq_length, batch, ks) if len(tokens) else []
    chosen = recommend(rows)
    for row in rows:
        row["recommended"] = row["scheme"] == chosen
    return Buckets(BUCKETS.sorted(BUCKETS.of({c.name: [r.get(c.name) for r in rows] for c in BUCKETS.columns})))


def schemes(tokens: NDArray[np.int64], seq_length: int, batch: int, ks: Sequence[int]) -> list[dict[str, Any]]:
    """One row per scheme and bucket.

    Args:
        tokens: lengths of documents, all positive, int64 [n].
        seq_length: tokens of a row.
        batch: rows of a batch.
        ks: numbers of buckets.
    """
    from forensics.documents.packing import best_fit_rows

    total = int(tokens.sum())
    full, rest = tokens // seq_length, tokens % seq_length
    pieces = np.bincount(rest, minlength=seq_length + 1).astype(np.int64)
    pieces[0] = 0
    beyond = int(np.maximum(tokens - seq_length, 0).sum())
    whole_rows = int(full.sum())
    pieces[seq_length] += whole_rows
    as_is = len(tokens) * seq_length - (total - beyond)
    cut = -(-total // seq_length) * seq_length - total
    fitted = best_fit_rows(pieces) * seq_length - total
    base = {"bucket": 0, "start": int(tokens.min()), "stop": int(tokens.max()) + 1, "documents": len(tokens), "tokens": total, "batch": batch}
    out = [
        {**base, "scheme": "as_is", "padding_tokens": as_is, "truncated_tokens": beyond, "waste": as_is / (len(tokens) * seq_length)},
        {**base, "scheme": "concat_and_cut", "padding_tokens": cut, "truncated_tokens": expected_cut(tokens, seq_length), "waste": cut / (cut + total)},
        {**base, "scheme": "best_fit", "padding_tokens": fitted, "truncated_tokens": beyond, "waste": fitted / (fitted + total)},
    ]
    for k in ks:
        out += _bucket_rows(tokens, pieces, seq_length, batch, k)
    return out


def expected_cut(tokens: NDArray[np.int64], seq_length: int) -> int:
    """Tokens that lie behind the first row boundary inside their document, averaged over all positions of its first token."""
    length = tokens.astype(np.float64)
    inside = length * (length - 1) / (2 * seq_length)
    beyond = length - (seq_length + 1) / 2
    return round(float(np.where(tokens <= seq_length, inside, beyond).sum()))


def _bucket_rows(tokens: NDArray[np.int64], pieces: NDArray[np.int64], seq_length: int, batch: int, k: int) -> list[dict[str, Any]]:
    """Rows of the scheme with k buckets: pieces by bucket, documents and dropped beginnings by the bucket of their last piece."""
    from forensics.documents.packing import bucket_bounds

    lengths, counts = corners(pieces)
    if len(lengths) < k:
        return []
    bounds = bucket_bounds(lengths, counts, k)
    index = np.arange(len(pieces))
    place = np.searchsorted(bounds, index)
    place[place == len(bounds)] = len(bounds) - 1
    own = np.searchsorted(bounds, np.where(tokens % seq_length == 0, seq_length, tokens % seq_length))
    own = np.minimum(own, len(bounds) - 1)
    out = []
    for b, bound in enumerate(bounds.tolist()):
        n = int(pieces[place == b].sum())
        held = int((pieces * index)[place == b].sum())
        computed = n * bound
        out.append({
            "scheme": f"buckets_{k}", "bucket": b, "start": (int(bounds[b - 1]) if b else 0) + 1, "stop": bound + 1,
            "documents": int((own == b).sum()), "tokens": held,
            "batch": max(1, seq_length * batch // bound), "padding_tokens": computed - held,
            "truncated_tokens": int(np.maximum(tokens[own == b] - seq_length, 0).sum()), "waste": (computed - held) / computed if computed else 0.0,
        })  # fmt: skip
    return out


def corners(pieces: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Candidate bounds of buckets: all lengths that occur, or about `CORNERS` of them that hold like shares of the tokens.

    Returns:
        Lengths int64 [m] and pieces up to each, beyond the one before, int64 [m].
    """
    present = np.flatnonzero(pieces)
    if len(present) > CORNERS:
        weight = np.cumsum(pieces[present] * present)
        wanted = np.searchsorted(weight, np.linspace(0, weight[-1], CORNERS // 2 + 1)[1:])
        evenly = np.searchsorted(present, np.linspace(present[0], present[-1], CORNERS // 2))
        present = present[np.unique(np.clip(np.concatenate([wanted, evenly, [len(present) - 1]]), 0, len(present) - 1))]
    upto = np.cumsum(pieces)[present]
    return present.astype(np.int64), np.diff(np.concatenate([[0], upto])).astype(np.int64)


def waste_of(rows: Sequence[dict[str, Any]], scheme: str) -> float:
    """Padding by computed positions over all buckets of a scheme."""
    padding = sum(r["padding_tokens"] for r in rows if r["scheme"] == scheme)
    held = sum(r["tokens"] - (r["truncated_tokens"] if scheme == "as_is" else 0) for r in rows if r["scheme"] == scheme)
    return padding / (padding + held) if padding + held else 0.0


def cut_of(rows: Sequence[dict[str, Any]], scheme: str) -> float:
    """Tokens that a scheme drops (as is) or reads without their document's beginning (the others), by all tokens."""
    mine = [r for r in rows if r["scheme"] == scheme]
    return float(sum(r["truncated_tokens"] for r in mine) / max(1, sum(r["tokens"] for r in mine)))


def recommend(rows: Sequence[dict[str, Any]]) -> str:
    """The scheme to use: packing whole documents, unless buckets save `GAIN` more; cutting only where both pad beyond `TOLERABLE`."""
    if not rows:
        return ""
    best = "best_fit"
    for scheme in sorted({r["scheme"] for r in rows if r["scheme"].startswith("buckets_")}, key=lambda s: int(s.split("_")[1])):
        if waste_of(rows, scheme) < waste_of(rows, best) - GAIN:
            best = scheme
    return "concat_and_cut" if waste_of(rows, best) > TOLERABLE else best
