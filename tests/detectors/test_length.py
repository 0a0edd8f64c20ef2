"""Lengths far from a source's, and documents that fill whole rows of sequences; the same for any split."""

from __future__ import annotations

import numpy as np

from forensics.detectors.length import length_count, length_flag, length_merge
from forensics.stores.batch import DocumentBatch


def test_lengths_far_from_the_source_and_whole_rows_of_sequences() -> None:
    r = np.random.default_rng(0)
    lengths = [*r.integers(80, 600, 3000).tolist(), 50000]
    batch = DocumentBatch.of_documents([np.zeros(n, np.uint16) for n in lengths], source=["web"] * len(lengths))
    counts = length_merge([length_count(p) for p in batch.parts(5000)])
    assert counts["web"].tolist() == length_count(batch)["web"].tolist()
    plain = length_flag(batch, counts)
    assert plain.num_rows == 0  # one in three thousand says nothing below one in ten thousand
    (row,) = length_flag(batch, counts, seq_length=2048).to_pylist()
    assert row["doc_key"] == 3000 and row["measure"] == "sequences" and not row["garbage"]
