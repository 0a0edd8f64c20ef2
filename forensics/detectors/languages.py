"""Documents in a language that is unexpected for their source though its script is not: English pages in a French source.

    scripts_of(batch)                                   # keeps two places of some documents' text, by `samples_of`
    findings = language_findings(parts, documents)      # a pass over all of them, since one document alone has no usual language

A language counts as told where two places of a document, a third and two thirds in, give the same one clearly: so read, 1,050 modules of Python's standard
library are English or nothing, and manual pages in nine languages are named right or not at all but for pages that quote English. A source where no language
has nine in ten of them is mixed, and nothing is said. Reported, never garbage, and of the sampled documents only: the share says how many more there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from forensics.detectors.language import SHOWN, clearly
from forensics.schemas import DOC_MASK, FINDINGS, Documents, Findings
from forensics.text import redact

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.stores.batch import DocumentBatch

NEAR, OFTEN, SELDOM = 2048, 8, 256  # of a file's first documents one in eight is sampled, of others one in 256, by a hash of its number
PLACE = 2 * SHOWN  # characters of either place
MOST = 512  # samples of a source that are looked at, evenly spread: 0.15 ms each
LEAST = 48  # documents of a source whose language is told, from which it has a usual one
SETTLED = 0.9  # of them are in the usual language, or the source is mixed
KIN = (
    {"zh", "yue", "wuu"},
    {"da", "no", "nn"},
    {"bs", "hr", "sr"},
    {"id", "ms"},
    {"gl", "pt"},
    {"ca", "oc"},
    {"af", "nl"},
    {"be", "ru", "uk"},
    {"bg", "mk"},
    {"cs", "sk"},
)


def samples_of(batch: DocumentBatch, known: NDArray[np.bool_]) -> list[list[str] | None]:
    """Two places of the text of sampled documents, redacted; None for others, and where they are too short.

    Args:
        batch: n documents with a vocabulary.
        known: bool [n], those whose script is known.
    """
    number = batch.doc_key & DOC_MASK
    mixed = (number * 0x9E3779B1 & 0xFFFFFFFF) >> 16
    picked = known & (mixed % np.where(number < NEAR, OFTEN, SELDOM) == 0)
    out: list[list[str] | None] = [None] * len(batch)
    reach = 4 * PLACE if batch.is_text else PLACE
    for i in np.flatnonzero(picked).tolist():
        n = int(batch.lengths[i])
        whole = (batch.text(i, n * k // 3, min(n * k // 3 + reach, n * (k + 1) // 3)).strip("\ufffd") for k in (1, 2))
        places = [redact(p[: 2 * PLACE])[0][:PLACE] for p in whole]
        if min(map(len, places)) >= SHOWN:
            out[i] = places
    return out


def language_findings(parts: Iterable[pa.Table], documents: Documents) -> Findings:
    """Sampled documents in another language than nearly all of their source, of the same script.

    Args:
        parts: `scripts` of all documents, in their order.
        documents: with sources.
    """
    tables = [p.select(["doc_key", "script", "sample"]).filter(p["sample"].is_valid()) for p in parts]
    rows = [row for t in tables for row in t.to_pylist()]
    keys = np.array([r["doc_key"] for r in rows], np.int64)
    at = np.searchsorted(documents["doc_key"].to_numpy(), keys)
    by_source: dict[str, list[dict[str, Any]]] = {}
    for row, source in zip(rows, documents["source"].cast(pa.string()).take(at).to_pylist(), strict=True):
        by_source.setdefault(source or "", []).append(row)
    found = [f for samples in by_source.values() for f in _unexpected(samples)]
    found.sort(key=lambda r: r["doc_key"])
    fixed = {
        "detector": "languages",
        "measure": "share",
        "cause": "language",
        "primary": False,
        "garbage": False,
        "version": 1,
        "threshold": 1 - SETTLED,
        "spans": None,
    }
    full = [{**fixed, **r} for r in found]
    return Findings(FINDINGS.of({c.name: [r[c.name] for r in full] for c in FINDINGS.columns}) if full else FINDINGS.empty())


def _unexpected(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of one source, with the share of their language and a sentence."""
    scripts = [s["script"] for s in samples]
    usual_script = max(sorted(set(scripts)), key=scripts.count)
    mine = [s for s in samples if s["script"] == usual_script]
    if len(mine) < LEAST:
        return []
    mine = [mine[i] for i in np.unique(np.linspace(0, len(mine) - 1, MOST).astype(np.int64)).tolist()]
    told = [(s["doc_key"], language) for s in mine if (language := _told(s["sample"])) is not None]
    names = [language for _, language in told]
    if len(told) < LEAST:
        return []
    usual = max(sorted(set(names)), key=names.count)
    share = {name: names.count(name) / len(names) for name in set(names)}
    if share[usual] < SETTLED:
        return []
    detail = f"in a source of which {share[usual]:.1%} of {len(names):,} sampled documents are {usual}"
    return [
        {"doc_key": key, "value": share[name], "detail": f"language {name} {detail}, {share[name]:.1%} {name}"}
        for key, name in told
        if name != usual and not any({name, usual} <= kin for kin in KIN)
    ]


def _told(places: list[str]) -> str | None:
    first, second = map(clearly, places)
    return first if first == second else None
