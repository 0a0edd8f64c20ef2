"""Characters that the tokenizer lacks: where it has no bytes to fall back on, each became the unknown id, and the model never sees them.

Nothing of them is left in the ids, so that the text reads as if they had not been there; only their share tells. Reported, never garbage.
"""

from __future__ import annotations

import numpy as np

from forensics.detectors.base import Evidence, Found, Measure, token_detector
from forensics.stores.batch import DocumentBatch

WORTH_A_WORD = 0.01  # share from which the evidence is written


@token_detector("unknown", Measure("share", "1", "ids that are the tokenizer's unknown id / ids; 0 where it has none"), version=1, reads="vocabulary")
def unknown(docs: DocumentBatch) -> Found:
    """Share of the unknown id."""
    found = Found({"share": np.zeros(len(docs), np.float32)})
    assert docs.vocabulary is not None
    if docs.vocabulary.unknown < 0 or not len(docs.tokens):
        return found
    at = np.flatnonzero(docs.tokens[docs.offsets[0] : docs.offsets[-1]] == docs.vocabulary.unknown) + docs.offsets[0]
    count = np.diff(np.searchsorted(at, docs.offsets))
    share = found.columns["share"]
    share[:] = count / np.maximum(docs.lengths, 1)
    for i in np.flatnonzero(share >= WORTH_A_WORD).tolist():
        found.evidence[i] = Evidence([], f"{share[i]:.1%} of its ids stand for characters that the tokenizer lacks")
    return found
