"""Documents in a script that is unexpected for their source: a pass of its own, since one document alone has no usual script.

    parts = [scripts_of(batch) for batch in ...]                  # any split
    findings = script_findings(parts, documents, reader)

The script of every document is told by the first bytes of its characters, id by id, without decoding; which language it is, by `language.identify` on the
few that stand out. A language that shares its source's script is told by `languages`, from samples. Reported, never garbage.
"""

# mypy: disable-error-code="assignment, call-overload, index, no-any-return"
# numba types whole numbers as int64 throughout; numpy's stubs tell their kinds apart

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numba
import numpy as np
import pyarrow as pa

from forensics.detectors.language import SHOWN, identify
from forensics.detectors.languages import samples_of
from forensics.detectors.sampling import sampled
from forensics.schemas import FINDINGS, SCRIPTS, Documents, Findings, Scripts
from forensics.stage import stage
from forensics.stores.base import prepare

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.stores.batch import DocumentBatch
    from forensics.stores.vocab import Vocabulary

NAMES = ("latin", "greek", "cyrillic", "hebrew", "arabic", "indic", "other", "han", "hangul")
FIRST = {0xC3: 1, 0xCE: 2, 0xD0: 3, 0xD6: 4, 0xD8: 5, 0xDC: 7, 0xE0: 6, 0xE1: 7, 0xE3: 8, 0xEA: 9, 0xEE: 0}  # script from this first byte on, 1 + its place
MOST = 0.6  # of a document's letters are of its script
LETTERS = 100  # fewer say nothing
LOOKED_AT = 256  # ids at the beginning and in the middle of a document whose letters are counted
LEAST = 200  # documents of a source with a known script, from which it has usual ones
RARE = 0.01  # share of a source's documents below which their script is unexpected
IDENTIFIED = 256  # documents whose language is told


class Reader(Protocol):
    """Where documents can be had by key."""

    def documents(self, doc_keys: NDArray[np.int64]) -> DocumentBatch:
        """Whole documents in the order given."""
        ...


def script_of_bytes() -> NDArray[np.uint8]:
    """Script that a byte begins a letter of, 1 + its place in `NAMES`; 0 for others: uint8 [256]."""
    out = np.zeros(256, np.uint8)
    bounds = [*sorted(FIRST), 256]
    for a, b in zip(bounds, bounds[1:]):
        out[a:b] = FIRST[a]
    out[[*range(0x41, 0x5B), *range(0x61, 0x7B)]] = 1
    return out


@functools.lru_cache(maxsize=4)
def letters_of(vocabulary: Vocabulary) -> NDArray[np.uint8]:
    """Letters of each script that an id begins: uint8 [size + 1, scripts], the last row for ids beyond the vocabulary."""
    size = vocabulary.size
    owner = np.repeat(np.arange(size), vocabulary.lengths)
    script = script_of_bytes()[vocabulary.data]
    out = np.zeros((size + 1, len(NAMES)), np.uint8)
    for k in range(len(NAMES)):
        out[:size, k] = np.minimum(np.bincount(owner[script == k + 1], minlength=size) * ~vocabulary.special, 255)
    return out


@numba.njit(cache=True, nogil=True)
def _count(ids: NDArray[Any], offsets: NDArray[np.int64], main: NDArray[np.uint8], letters: NDArray[np.uint8], width: int) -> NDArray[np.int64]:
    last = len(main) - 1
    out = np.zeros((len(offsets) - 1, width), np.int64)
    for d in range(len(offsets) - 1):
        for part in range(2):
            for i in range(*sampled(offsets[d], offsets[d + 1], LOOKED_AT, part)):
                k = min(np.int64(ids[i]), last)
                out[d, main[k]] += letters[k]
    return out


@stage(SCRIPTS, version=3)
def scripts_of(batch: DocumentBatch) -> Scripts:
    """The script of every document's beginning and middle, null where these have few letters or several scripts; two places of some documents' text."""
    codes = np.zeros(len(batch), np.int64)
    samples: list[list[str] | None] = [None] * len(batch)
    if batch.vocabulary is not None and len(batch):
        table = letters_of(batch.vocabulary)
        main = table.argmax(1).astype(np.uint8)  # an id is of one script but for a few
        count = _count(np.ascontiguousarray(batch.tokens), np.ascontiguousarray(batch.offsets, np.int64), main, table.max(1), len(NAMES))
        total = count.sum(1)
        codes = np.where((total >= LETTERS) & (count.max(1, initial=0) >= MOST * total), count.argmax(1) + 1, 0)
        samples = samples_of(batch, codes > 0)
    places: Any = pa.array(np.maximum(codes - 1, 0).astype(np.int32), mask=codes == 0)
    script = pa.DictionaryArray.from_arrays(places, pa.array(NAMES))
    return Scripts(SCRIPTS.of({"doc_key": np.asarray(batch.doc_key, np.int64), "script": script, "sample": pa.array(samples, pa.list_(pa.string()))}))


def script_findings(parts: Iterable[pa.Table], documents: Documents, reader: Reader | None = None) -> Findings:
    """Documents whose script few others of their source have.

    Args:
        parts: scripts of all documents, in their order.
        documents: with sources.
        reader: where the text of those that stand out can be read, to tell its language.
    """
    codes, words = _numbered(pa.concat_tables([p.select(["script"]) for p in parts] or [SCRIPTS.empty().select(["script"])])["script"])
    script = np.array([*map(NAMES.index, words), -1], np.int64)[codes]
    source, names = _numbered(documents["source"])
    known = np.flatnonzero(script >= 0)
    cells = np.bincount(source[known] * len(NAMES) + script[known], minlength=len(names) * len(NAMES)).reshape(-1, len(NAMES))
    total, usual = cells.sum(axis=1), cells.argmax(axis=1)
    share = cells / np.maximum(total, 1)[:, None]
    odd = known[(total[source[known]] >= LEAST) & (cells[source[known], script[known]] <= RARE * total[source[known]])]
    rows: list[dict[str, Any]] = []
    for key, s, k in zip(documents["doc_key"].to_numpy()[odd].tolist(), source[odd].tolist(), script[odd].tolist(), strict=True):
        detail = f"{NAMES[k]} in a source of which {share[s, usual[s]]:.1%} is {NAMES[usual[s]]}"
        rows.append({"doc_key": key, "value": share[s, k], "detail": detail})
    rows.sort(key=lambda r: r["doc_key"])
    said = languages([r["doc_key"] for r in rows[:IDENTIFIED]], reader)
    fixed = {"detector": "script", "measure": "others", "cause": "language", "primary": False, "garbage": False, "version": 1, "threshold": RARE, "spans": None}
    full = [{**fixed, **r, "detail": r["detail"] + (f"; language {said[r['doc_key']]}" if r["doc_key"] in said else "")} for r in rows]
    return Findings(FINDINGS.of({c.name: [r[c.name] for r in full] for c in FINDINGS.columns}) if full else FINDINGS.empty())


def _numbered(column: Any) -> tuple[NDArray[np.int64], list[str]]:
    """A number per row for its word, -1 where it is null, and the words."""
    encoded: Any = pa.chunked_array([c.cast(pa.string()) for c in column.chunks], pa.string()).combine_chunks()
    encoded = (encoded if isinstance(encoded, pa.Array) else pa.concat_arrays(encoded.chunks)).dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()


def languages(keys: list[int], reader: Reader | None) -> dict[int, str]:
    """Language of documents as far as it can be told."""
    if reader is None or not keys:
        return {}
    prepare(reader, np.array(keys, np.int64))
    out = {}
    for key in keys:
        batch = reader.documents(np.array([key], np.int64))
        if (name := identify(batch.text(0, 0, 4 * SHOWN)[: 2 * SHOWN])) is not None:
            out[key] = name
    return out
