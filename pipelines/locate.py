"""Documents to steps: everywhere they come up in a run, past and future, and the skip list that leaves the future ones out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forensics.documents.build import label_counts
from forensics.documents.provenance import corpus_numbers, read_sidecar
from forensics.errors import UsageError, nearest
from forensics.files import read_text
from forensics.loaders.base import Loader, loader_of
from forensics.manifests.base import EXPORTERS, Manifest, Request, RoundTrip, round_trip
from forensics.run import RunSpec
from forensics.schemas import CONSUMED, DOC_BITS, DOC_MASK, Consumed, Corpora
from forensics.text import one_line

COLUMNS = {"url": "url", "crawl": "crawl", "id": "id", "source": "source", "file": "file"}


@dataclass(frozen=True)
class Wanted:
    """Documents asked for, and what of the list was not found."""

    doc_keys: NDArray[np.int64]
    unknown: tuple[str, ...]


def documents_of(run: RunSpec, words: Sequence[str]) -> Wanted:
    """Documents by key, `CORPUS:NUMBER`, or a value of the sidecar's url, id, crawl, source or file.

    Args:
        run: with its sidecar where words are looked up.
        words: one document or group each; `source=web` or `crawl=07` names the column.

    Raises:
        UsageError: no word names a document.
    """
    corpora = loader_of(run).corpora(run)
    sidecar = read_sidecar(run.documents) if run.documents else None
    keys: list[NDArray[np.int64]] = []
    unknown = []
    for word in words:
        found = _one(word, corpora, sidecar)
        if len(found):
            keys.append(found)
        else:
            unknown.append(word)
    if not keys:
        raise UsageError(
            f"none of {len(words)} entries names a document of this run, the first is `{one_line(words[0]) if words else ''}`",
            hint="write CORPUS:NUMBER, or values of the sidecar's url, id, crawl, source or file"
            + ("" if sidecar is not None else " (this run names no sidecar: `documents:`)"),
        )
    return Wanted(np.unique(np.concatenate(keys)), tuple(unknown))


def keys_in(run: RunSpec, doc_keys: NDArray[np.int64], theirs: Corpora) -> NDArray[np.int64]:
    """Keys of documents of a case as the run numbers them: each corpus is found again by its path, else its name, and its number of documents.

    Raises:
        UsageError: a corpus that the run does not read.
    """
    mine = loader_of(run).corpora(run)
    counts = dict(zip(mine["corpus_id"].to_pylist(), mine["documents"].to_pylist(), strict=True))
    out = doc_keys.copy()
    for row in theirs.to_pylist():
        at = doc_keys >> DOC_BITS == row["corpus_id"]
        if not at.any():
            continue
        fits = corpus_numbers([row["path"]], mine) or corpus_numbers([row["name"]], mine)
        number = next(iter(fits.values()), None)
        if number is None or counts[number] != row["documents"]:
            raise UsageError(
                f"the cluster holds documents of {row['path']}, which this run does not read",
                hint="give a case of the run itself, or an audit of the files that it reads",
            )
        out[at] = (number << DOC_BITS) | (doc_keys[at] & DOC_MASK)
    return out


def read_words(path: Path) -> list[str]:
    """Entries of a list, one a line; empty lines and those that begin with `#` are left out."""
    found = [line.strip() for line in read_text(path).split("\n")]
    return [line for line in found if line and not line.startswith("#")]


def _one(word: str, corpora: Corpora, sidecar: pa.Table | None) -> NDArray[np.int64]:
    counts = dict(zip(corpora["corpus_id"].to_numpy().tolist(), corpora["documents"].to_numpy().tolist(), strict=True))
    corpus, colon, number = word.rpartition(":")
    if number.isdigit() and len(number) < 19:
        if colon and corpus:
            at = {int(corpus)} if corpus.isdigit() else set(corpus_numbers([corpus], corpora).values())
            return np.array([(c << DOC_BITS) | int(number) for c in at if int(number) < (counts.get(c) or 0)], np.int64)
        key = int(number)
        return np.array([key] if (key & ((1 << DOC_BITS) - 1)) < (counts.get(key >> DOC_BITS) or 0) else [], np.int64)
    if sidecar is None:
        return np.empty(0, np.int64)
    name, equal, value = word.partition("=")
    columns = [COLUMNS[name]] if equal and name in COLUMNS else [c for c in COLUMNS.values() if c in sidecar.column_names]
    if equal and name in COLUMNS and COLUMNS[name] not in sidecar.column_names:
        raise UsageError(f"the sidecar has no column `{name}`{nearest(name, sidecar.column_names)}")
    wanted = value if equal and name in COLUMNS else word
    keep: Any = None
    for column in columns:
        text: Any = sidecar[column].cast(pa.string())
        hit: Any = pc.fill_null(pc.equal(text, pa.scalar(wanted)), False)
        keep = hit if keep is None else pc.or_(keep, hit)
    if keep is None:
        return np.empty(0, np.int64)
    rows = sidecar.filter(keep)
    names = [str(c) for c in rows["corpus"].to_pylist()]
    numbers = corpus_numbers(sorted(set(names)), corpora)
    at_corpus = np.array([numbers.get(c, -1) for c in names], np.int64)
    keys = (at_corpus << DOC_BITS) | rows["document"].to_numpy().astype(np.int64)
    return np.asarray(keys[at_corpus >= 0], np.int64)


def locate(run: RunSpec, doc_keys: NDArray[np.int64]) -> Consumed:
    """Every segment of these documents in all launches, those still to come included."""
    return Consumed(CONSUMED.sorted(CONSUMED.concat(list(loader_of(run).locate(run, np.unique(doc_keys))))))


@dataclass(frozen=True)
class Future:
    """The skip list for the steps after `after` that hold the documents."""

    request: Request
    manifest: Manifest
    trip: RoundTrip
    steps_before: int


def leave_out(run: RunSpec, doc_keys: NDArray[np.int64], exporter: str, after: int, launch: int | None = None, target: str | None = None) -> Future:
    """Steps of the last (or given) launch from `after` + 1 on that hold any of the documents, in a trainer's terms.

    Args:
        run: the run.
        doc_keys: the documents.
        exporter: whose terms.
        after: last step that is not left out.
        launch: whose order holds.
        target: version or date of the trainer that will read the list, where it is not the run's.

    Raises:
        UsageError: no such step.
    """
    number = launch if launch is not None else len(run.launches) - 1
    found = locate(run, doc_keys)
    mine = found.filter(pc.and_(pc.equal(found["launch"], pa.scalar(number, pa.int16())), pc.greater(found["step"], pa.scalar(after, pa.int64()))))
    steps = np.unique(mine["step"].to_numpy())
    if not len(steps):
        raise UsageError(
            f"no step after {after} of launch {number} holds any of these {len(doc_keys):,} documents",
            hint=f"they come up in {found.num_rows:,} segments before: forensics locate",
        )
    loader = loader_of(run)
    labels = int(label_counts(Consumed(mine)).sum())
    facts = loader.trained(run, _around(steps), number)
    whole = int(facts.sequences[np.isin(facts.step, steps)].sum()) * _labels_per_row(loader, run, number)
    chosen = run.launch(number)
    request = Request(
        run,
        replace(chosen, version=chosen.version or run.version),
        tuple(int(s) for s in steps),
        tuple(int(k) for k in doc_keys),
        whole,
        max(0, whole - labels),
        run.checkpoints,
        target,
    )
    writer = EXPORTERS.get(exporter)
    manifest = writer.export(request)
    return Future(request, manifest, round_trip(manifest, writer, request, Consumed(mine)), int((np.unique(found["step"].to_numpy()) <= after).sum()))


def _labels_per_row(loader: Loader, run: RunSpec, launch: int) -> int:
    width = loader.launches(run)["row_width"][launch].as_py()
    return max(0, int(width or 1) - 1)


def _around(steps: NDArray[np.int64]) -> Any:
    from forensics.steps import StepRange

    return StepRange(int(steps[0]), int(steps[-1]) + 1)
