"""Token passes over documents, block by block: what `replay` stores as parts and goes on from after a stop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.clustering.duplicates import joined, with_duplicates
from forensics.clustering.exact import content_hashes
from forensics.clustering.minhash import sign
from forensics.clustering.skeletons import skeletons
from forensics.clustering.templates import with_templates
from forensics.detectors.base import DETECTORS
from forensics.detectors.flagging import flag
from forensics.detectors.languages import language_findings
from forensics.detectors.length import length_findings
from forensics.detectors.measuring import measure
from forensics.detectors.scripts import Reader, script_findings, scripts_of
from forensics.detectors.thresholds import Thresholds
from forensics.documents.build import text_bytes
from forensics.loaders.base import loader_of, select
from forensics.run import RunSpec
from forensics.schemas import (
    CONSUMED,
    DOCUMENTS,
    FINDINGS,
    SCRIPTS,
    SIGNATURES,
    SKELETONS,
    Clusters,
    Consumed,
    Documents,
    Findings,
    Scripts,
    Signatures,
    Skeletons,
)
from forensics.stage import stage
from forensics.steps import StepRange
from forensics.stores.base import TokenStore
from forensics.stores.bigrams import IDS, Bigrams, bigrams_of


@stage(CONSUMED, version=1)
def read_steps(run: RunSpec, steps: StepRange, launch: int, every: int) -> Consumed:
    """What a block of steps read; of its sequences only each `every`-th, another one in every step.

    Args:
        run: the description; its fingerprint decides whether a stored block holds.
        steps, launch: which steps of which launch.
        every: 1 for all rows.
    """
    table = CONSUMED.concat(list(loader_of(run).consumed(run, steps, launch)))
    if every > 1:
        place = table["sequence"].to_numpy().astype(np.int64) + table["step"].to_numpy()
        table = select(table, place % every == 0)
    return Consumed(table)


@stage(DOCUMENTS, version=1)
def describe_documents(part: Documents, store: TokenStore) -> Documents:
    """Documents with the hash of their content and their length as text."""
    batch = store.documents(part["doc_key"].to_numpy())
    columns: dict[str, Any] = {name: part[name] for name in part.column_names}
    return Documents(DOCUMENTS.of({**columns, "content": content_hashes(batch), "bytes": text_bytes(batch)}))


@stage(FINDINGS, version=1)
def find_faults(keys: NDArray[np.int64], store: TokenStore, thresholds: Thresholds, bigrams: Bigrams | None = None) -> Findings:
    """Findings of some documents; what has no rules is not measured, since nothing but findings is kept."""
    named = [name for name in DETECTORS.names() if name in thresholds.rules]
    return flag(measure(replace(store.documents(keys), bigrams=bigrams), thresholds, named), thresholds)


def baseline_bigrams(documents: Documents, store: TokenStore, thresholds: Thresholds) -> Bigrams | None:
    """Pairs of ids in documents that the baseline read and the window did not, evenly spread; None where no rule asks for them, or they are too few."""
    if "bigrams" not in thresholds.rules:
        return None
    baseline, window = (np.nan_to_num(documents[f"used_{role}"].to_numpy()) for role in ("baseline", "window"))  # null: not read
    rows = np.flatnonzero((baseline > 0) & (window == 0))
    size = documents["tokens"].to_numpy()[rows]
    every = max(1, int(size.sum()) // IDS)
    return bigrams_of([store.documents(documents["doc_key"].to_numpy()[rows[::every]])])


@stage(SIGNATURES, version=1)
def sign_documents(keys: NDArray[np.int64], store: TokenStore) -> Signatures:
    """Signatures of some documents."""
    return sign(store.documents(keys))


@stage(SKELETONS, version=1)
def sample_wording(keys: NDArray[np.int64], store: TokenStore) -> Skeletons:
    """Samples of the wording of some documents."""
    return skeletons(store.documents(keys))


@stage(SCRIPTS, version=2)
def tell_scripts(keys: NDArray[np.int64], store: TokenStore) -> Scripts:
    """Scripts of some documents."""
    return scripts_of(store.documents(keys))


@stage(FINDINGS, version=3)
def with_corpus_findings(
    findings: Findings,
    clusters: Clusters,
    documents: Documents,
    scripts: Iterable[pa.Table],
    reader: Reader,
    jaccard: float,
    seq_length: int,
    texts: Sequence[int] = (),
) -> Findings:
    """The findings with what only all documents together show: templates, copies, scripts, languages and lengths that are not their source's.

    Args:
        findings, clusters, documents: of all documents.
        scripts: of all documents, in their order.
        reader: where documents can be read again.
        jaccard: from which copies are copies.
        seq_length: tokens of a training sequence.
        texts: data files whose documents are text.
    """
    found = with_duplicates(with_templates(findings, clusters), clusters, jaccard)
    found = joined(found, script_findings(scripts, documents, reader))
    found = joined(found, language_findings(scripts, documents))
    return joined(found, length_findings(documents, seq_length, texts))


def token_blocks(documents: Documents, tokens: int) -> list[tuple[int, int]]:
    """Rows [start, stop) of documents of at most so many tokens together, one document at least."""
    ends = np.cumsum(documents["tokens"].to_numpy())
    out, start = [], 0
    while start < len(ends):
        done = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + tokens, side="right")))
        out.append((start, stop))
        start = stop
    return out


def by_role(consumed: Consumed, roles: dict[str, StepRange]) -> dict[str, Consumed]:
    """The table's rows per role."""
    step = consumed["step"].to_numpy()
    return {role: Consumed(consumed.filter(pa.array((step >= r.start) & (step < r.stop)))) for role, r in roles.items()}
