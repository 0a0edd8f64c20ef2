"""What a detector is: a name, its measures, and a function from documents to one number each, with evidence.

A detector measures and never decides: thresholds are configuration (`configs/thresholds`), and `flag` compares. Text detectors are
written as a function from one text to the regions they recognise; `text_detector` turns that into the measures `longest` (characters of the longest
region) and `share` (of the document's bytes). Adding one is adding a file to this package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.registry import Registry
from forensics.stores.batch import DocumentBatch

Reads = Literal["tokens", "ids", "vocabulary", "text", "bigrams"]  # ids: of a tokenizer, not bytes of text; vocabulary: the same where it is at hand
Columns = dict[str, NDArray[np.float32]]
SPANS_KEPT = 32  # evidence kept per document and detector: the longest regions


@dataclass(frozen=True)
class Measure:
    """One number per document: its name, unit and meaning."""

    name: str
    unit: str
    doc: str


@dataclass(frozen=True)
class Region:
    """Bytes start..stop of a text that are of one kind; `detail` says it in words. `part` is the share of them that counts."""

    start: int
    stop: int
    detail: str
    part: float = 1.0


@dataclass(frozen=True)
class Evidence:
    """Where in a document: ranges of ids (bytes in text corpora), and what was found."""

    spans: Sequence[tuple[int, int]]
    detail: str


class Text:
    """One document's text: its bytes, and the tables that several detectors share, each made at first use.

    Args:
        raw: its bytes, uint8 [bytes].
        ids: what it was decoded from, with the bytes of every id; None where ids are bytes.
    """

    def __init__(self, raw: NDArray[np.uint8], ids: NDArray[Any] | None = None, lengths: NDArray[np.int32] | None = None) -> None:
        self.raw = raw
        self._ids, self._lengths = ids, lengths

    def __len__(self) -> int:
        return len(self.raw)

    def piece(self, start: int, stop: int) -> bytes:
        """Some of its bytes."""
        return self.raw[start:stop].tobytes()

    def place(self, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Ranges of bytes as ranges of ids: those that hold any of these bytes."""
        if self._ids is None or not spans:
            return [(int(a), int(b)) for a, b in spans]
        begins = np.searchsorted(self._starts, [a for a, _ in spans], "right") - 1
        stops = np.searchsorted(self._starts, [b for _, b in spans], "left")
        return [(a, max(a + 1, b)) for a, b in zip(begins.tolist(), stops.tolist())]

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        from forensics.stores.decode import byte_offsets

        return byte_offsets(self._ids, self._lengths)  # type: ignore[no-any-return]

    @cached_property
    def bytes(self) -> bytes:
        """The bytes as such."""
        return self.raw.tobytes()

    @cached_property
    def _decoded(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        from forensics.detectors.lines import characters_of

        return characters_of(self.raw)  # type: ignore[no-any-return]

    @property
    def codes(self) -> NDArray[np.uint32]:
        """uint32 [characters]; each byte that is no UTF-8 is one U+FFFD."""
        return self._decoded[0]

    @property
    def places(self) -> NDArray[np.int64]:
        """int64 [characters + 1]: where each character begins in the bytes."""
        return self._decoded[1]

    @cached_property
    def string(self) -> str:
        """The characters as such."""
        return self.codes.tobytes().decode("utf-32-le")

    @cached_property
    def lines(self) -> NDArray[np.int64]:
        """`lines.line_table` of it."""
        from forensics.detectors.lines import lines_of

        return lines_of(self.raw)

    @cached_property
    def words(self) -> NDArray[np.int64]:
        """`lines.word_table` of its words of 40 bytes and more."""
        from forensics.detectors.lines import words_of

        return words_of(self.raw, 40)

    def characters(self, start: int, stop: int) -> int:
        """Characters in a range of bytes."""
        from forensics.detectors.lines import characters

        return int(characters(self.raw, start, stop))


@dataclass
class Found:
    """Columns and evidence of one detector over a batch; evidence only for documents that have any."""

    columns: Columns
    evidence: dict[int, Evidence] = field(default_factory=dict)


@dataclass(frozen=True)
class Detector:
    """A named detector.

    Attributes:
        name: also the cause of its findings.
        measures: what it measures.
        version: raised when its numbers change.
        reads: `tokens` any ids, `ids` those of a tokenizer only, `vocabulary` besides what they stand for, `text` needs a vocabulary,
            `bigrams` how other documents go on.
        run: documents and which of them are worth a look (bool [n]) -> numbers; others are zero.
        find: for text detectors, the function of one text.
        screen: name of the id-level screen that chooses its suspects, None where every document is looked at.
    """

    name: str
    measures: tuple[Measure, ...]
    version: int
    reads: Reads
    run: Callable[[DocumentBatch, NDArray[np.bool_], Sequence[Text | None]], Found]
    find: Callable[[Text], list[Region]] | None = None
    screen: str | None = None


DETECTORS: Registry[Detector] = Registry("detector", "forensics.detectors")
TEXT_MEASURES = (Measure("longest", "character", "characters of the longest region"), Measure("share", "1", "bytes in regions / bytes of the document"))


def token_detector(
    name: str, *measures: Measure, version: int, reads: Reads = "tokens"
) -> Callable[[Callable[[DocumentBatch], Found]], Callable[[DocumentBatch], Found]]:
    """Register a detector that works on ids alone, also without a tokenizer."""

    def wrap(function: Callable[[DocumentBatch], Found]) -> Callable[[DocumentBatch], Found]:
        DETECTORS.add(name, Detector(name, measures, version, reads, lambda docs, _chosen, _texts: function(docs)), function.__module__)
        return function

    return wrap


def text_detector(
    name: str, *, version: int, screen: str | None = None, extra: tuple[Measure, ...] = ()
) -> Callable[[Callable[[Text], list[Region]]], Callable[[Text], list[Region]]]:
    """Register a detector that recognises regions of a text."""

    def wrap(find: Callable[[Text], list[Region]]) -> Callable[[Text], list[Region]]:
        def run(docs: DocumentBatch, chosen: NDArray[np.bool_], texts: Sequence[Text | None]) -> Found:
            found = Found({m.name: np.zeros(len(docs), np.float32) for m in TEXT_MEASURES})
            for i in np.flatnonzero(chosen).tolist():
                text = texts[i]
                if text is not None and len(text):
                    summarise(i, text, merge_regions(find(text)), found)
            return found

        DETECTORS.add(name, Detector(name, TEXT_MEASURES + extra, version, "text", run, find, screen), find.__module__)
        return find

    return wrap


def summarise(i: int, text: Text, regions: Sequence[Region], found: Found) -> None:
    """Put one document's regions into columns and evidence."""
    if not regions:
        return
    sizes = [text.characters(r.start, r.stop) * r.part for r in regions]
    found.columns["longest"][i] = max(sizes)
    found.columns["share"][i] = min(1.0, sum((r.stop - r.start) * r.part for r in regions) / len(text))
    order = sorted(range(len(regions)), key=lambda k: -sizes[k])[:SPANS_KEPT]
    kept = [regions[k] for k in sorted(order)]
    details = list(dict.fromkeys(regions[k].detail for k in order))
    found.evidence[i] = Evidence(text.place([(r.start, r.stop) for r in kept]), "; ".join(details[:3]))


def merge_regions(regions: Sequence[Region], gap: int = 0) -> list[Region]:
    """Regions in order, those that overlap or lie within `gap` bytes joined; the longer one's words are kept."""
    out: list[Region] = []
    for r in sorted(regions, key=lambda r: (r.start, r.stop)):
        if out and r.start <= out[-1].stop + gap:
            last = out[-1]
            longer = last if last.stop - last.start >= r.stop - r.start else r
            out[-1] = Region(last.start, max(last.stop, r.stop), longer.detail, longer.part)
        else:
            out.append(r)
    return out


@dataclass(frozen=True)
class Measures:
    """Every number of a batch.

    Attributes:
        doc_key: int64 [n].
        columns: detector -> measure -> float32 [n].
        evidence: detector -> document's place in the batch -> where and what.
        not_evaluated: detector -> why it could not run.
    """

    doc_key: NDArray[np.int64]
    columns: Mapping[str, Columns]
    evidence: Mapping[str, Mapping[int, Evidence]]
    not_evaluated: Mapping[str, str]

    def tables(self) -> dict[str, pa.Table]:
        """One Arrow table per detector: `doc_key` and a float32 column per measure; null where it could not be evaluated."""
        out = {}
        for name, detector in DETECTORS.items():
            fields: list[Any] = [pa.field("doc_key", pa.int64(), False)]
            arrays: list[Any] = [pa.array(self.doc_key)]
            for m in detector.measures:
                fields.append(pa.field(m.name, pa.float32(), True, metadata={"unit": m.unit, "doc": m.doc, "version": str(detector.version)}))
                column: Any = self.columns.get(name, {}).get(m.name)
                arrays.append(pa.nulls(len(self.doc_key), pa.float32()) if column is None else pa.array(column, pa.float32()))
            out[name] = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        return out
