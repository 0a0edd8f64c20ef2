"""Every detector over a batch, in one place: screens on ids first, text decoded once per suspect and given up after it.

Documents are gone through some million ids at a time: fewer take longer, since each pass brings its own tables into the processor's cache. The result is the
same for any split of the documents into batches: no detector looks across documents here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from forensics.detectors import huge
from forensics.detectors.base import DETECTORS, Columns, Detector, Evidence, Found, Measures, Text
from forensics.detectors.thresholds import Thresholds
from forensics.stores.batch import DocumentBatch

NO_IDS = "a rule about tokens; these are texts"
NO_TEXT = "no tokenizer: the ids cannot be turned into text"
NO_BIGRAMS = "too few other documents to compare with"
AT_A_TIME, BYTES_AT_A_TIME = 1 << 22, 1 << 22  # ids, bytes of texts; a text's tables take about a hundred bytes for each id that is looked at


def measure(batch: DocumentBatch, config: Thresholds | None = None, only: Iterable[str] | None = None) -> Measures:
    """Measures of all detectors (or of those named) with evidence for what stands out.

    Args:
        batch: n documents; empty ones are allowed.
        config: decides nothing here; detectors without rules in it are still measured.
        only: names of detectors.
    """
    chosen = sorted(only) if only is not None else DETECTORS.names()
    skipped: dict[str, str] = {}
    detectors: list[Detector] = []
    for d in (DETECTORS.get(name) for name in chosen):
        if d.reads in ("text", "vocabulary") and batch.vocabulary is None:
            skipped[d.name] = NO_TEXT
        elif d.reads in ("ids", "vocabulary") and batch.is_text:
            skipped[d.name] = NO_IDS
        elif d.reads == "bigrams" and batch.bigrams is None:
            skipped[d.name] = NO_BIGRAMS
        else:
            detectors.append(d)
    columns: dict[str, Columns] = {d.name: {m.name: np.zeros(len(batch), np.float32) for m in d.measures} for d in detectors}
    evidence: dict[str, dict[int, Evidence]] = {d.name: {} for d in detectors}
    at = 0
    for part in batch.parts(BYTES_AT_A_TIME if batch.is_text else AT_A_TIME):
        for name, found in _measure_part(part, detectors):
            for measured, values in found.columns.items():
                columns[name][measured][at : at + len(part)] = values
            evidence[name].update((at + i, e) for i, e in found.evidence.items())
        at += len(part)
    return Measures(batch.doc_key, columns, evidence, skipped)


def _measure_part(part: DocumentBatch, detectors: Sequence[Detector]) -> list[tuple[str, Found]]:
    """What each detector finds; of those that read text, only where a screen names suspects."""
    nobody = np.zeros(len(part), np.bool_)
    out = [(d.name, d.run(part, nobody, [])) for d in detectors if d.reads != "text"]
    textual = [d for d in detectors if d.reads == "text"]
    if not textual:
        return out
    suspects = screened(part, [d.screen for d in textual])
    asked = [d for d in textual if suspects[d.screen].any()]
    if len(part) == 1 and len(part.tokens) > huge.PIECE:
        return out + [(d.name, found) for d, found in zip(asked, _look_in_pieces(part, asked))]
    texts = texts_of(part, np.logical_or.reduce([suspects[d.screen] for d in asked])) if asked else []
    return out + [(d.name, d.run(part, suspects[d.screen], texts)) for d in asked]


def _look_in_pieces(alone: DocumentBatch, detectors: Sequence[Detector]) -> list[Found]:
    """What each detector finds in a batch of one huge document."""
    parts = huge.pieces(alone, huge.PIECE)
    found: list[list[Found]] = []
    everybody = np.ones(1, np.bool_)
    for _, part in parts:
        texts = texts_of(part, everybody)
        found.append([d.run(part, everybody, texts) for d in detectors])
    starts, lengths = [a for a, _ in parts], [len(p.tokens) for _, p in parts]
    return [huge.join(d, [f[k] for f in found], starts, lengths) for k, d in enumerate(detectors)]


def texts_of(batch: DocumentBatch, chosen: NDArray[np.bool_]) -> list[Text | None]:
    """The texts of chosen documents, decoded together: the table of ids is read while it is at hand."""
    out: list[Text | None] = [None] * len(batch)
    rows = np.flatnonzero(chosen).tolist()
    if batch.is_text or not rows:
        for i in rows:
            out[i] = Text(batch.tokens_of(i))
        return out
    from forensics.stores.decode import copy_documents, places

    v = batch.vocabulary
    assert v is not None
    raw, at = copy_documents(batch.tokens, batch.offsets, chosen, places(v), v.data)
    for i in rows:
        out[i] = Text(raw[at[i] : at[i + 1]], batch.tokens_of(i), v.plain_lengths)
    return out


def screened(batch: DocumentBatch, names: Iterable[str | None]) -> dict[str | None, NDArray[np.bool_]]:
    """Which documents each screen lets through: bool [n] per screen."""
    from forensics.detectors.screen import screen

    chosen = screen(batch)
    everything = np.ones(len(batch), np.bool_)
    return {name: chosen[name] if name is not None else everything for name in names}
