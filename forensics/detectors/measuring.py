"""Every detector over a batch, in one place: screens on ids first, text decoded once per suspect and given up after it.

The result is the same for any split of the documents into batches: no detector looks across documents here.
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


def measure(batch: DocumentBatch, config: Thresholds | None = None, only: Iterable[str] | None = None) -> Measures:
    """Measures of all detectors (or of those named) with evidence for what stands out.

    Args:
        batch: n documents; empty ones are allowed.
        config: decides nothing here; detectors without rules in it are still measured.
        only: names of detectors.
    """
    chosen = sorted(only) if only is not None else DETECTORS.names()
    detectors = [DETECTORS.get(name) for name in chosen]
    columns: dict[str, Columns] = {}
    evidence: dict[str, dict[int, Evidence]] = {}
    skipped: dict[str, str] = {}
    nobody = np.zeros(len(batch), np.bool_)
    for d in detectors:
        if d.reads == "text" and batch.vocabulary is None:
            skipped[d.name] = NO_TEXT
            continue
        if d.reads == "ids" and batch.is_text:
            skipped[d.name] = NO_IDS
            continue
        found = d.run(batch, nobody, []) if d.reads != "text" else Found({m.name: np.zeros(len(batch), np.float32) for m in d.measures})
        columns[d.name], evidence[d.name] = found.columns, dict(found.evidence)
    textual = [d for d in detectors if d.reads == "text" and d.name in columns]
    if textual:
        _measure_texts(batch, textual, columns, evidence)
    return Measures(batch.doc_key, columns, evidence, skipped)


def _measure_texts(batch: DocumentBatch, detectors: Sequence[Detector], columns: dict[str, Columns], evidence: dict[str, dict[int, Evidence]]) -> None:
    """Look at the suspects, document by document: its text is made once, and as much of it as its detectors ask for."""
    suspects = screened(batch, [d.screen for d in detectors])
    for i in np.flatnonzero(np.logical_or.reduce(list(suspects.values()))).tolist():
        asked = [d for d in detectors if suspects[d.screen][i]]
        for d, found in zip(asked, _look(batch.part(i, i + 1), asked)):
            for name, values in found.columns.items():
                columns[d.name][name][i] = values[0]
            if 0 in found.evidence:
                evidence[d.name][i] = found.evidence[0]


def _look(alone: DocumentBatch, detectors: Sequence[Detector]) -> list[Found]:
    """What each detector finds in a batch of one document; in a huge one, piece by piece."""
    parts = huge.pieces(alone, huge.PIECE)
    found: list[list[Found]] = []
    for _, part in parts:
        texts = [Text.of(part)]
        found.append([d.run(part, np.ones(1, np.bool_), texts) for d in detectors])
    if len(parts) == 1:
        return found[0]
    starts, lengths = [a for a, _ in parts], [len(p.tokens) for _, p in parts]
    return [huge.join(d, [f[k] for f in found], starts, lengths) for k, d in enumerate(detectors)]


def screened(batch: DocumentBatch, names: Iterable[str | None]) -> dict[str | None, NDArray[np.bool_]]:
    """Which documents each screen lets through: bool [n] per screen."""
    from forensics.detectors.screen import screen

    chosen = screen(batch)
    everything = np.ones(len(batch), np.bool_)
    return {name: chosen[name] if name is not None else everything for name in names}
