"""Is this page in there? Pages against the signatures of a case.

pages -> ids or words, as the case's corpus -> signatures -> the case's documents that resemble them
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forensics.case import Case
from forensics.clustering.lookup import open_index
from forensics.errors import ForensicsError, StoreError, UsageError
from forensics.files import read_text
from forensics.run import open_run
from forensics.schemas import CORPORA, DOCUMENTS
from forensics.stores.batch import DocumentBatch
from forensics.stores.encode import encode
from forensics.stores.jsonl import JsonlFile, Tally, labels_of
from forensics.stores.records import ReadOptions

TEXT_FORMATS = ("jsonl", "parquet", "arrow")


def look_up(case: Case, pages: Sequence[Path], least: float, tokenizer: Path | None = None) -> list[dict[str, Any]]:
    """Documents that resemble the pages.

    Args:
        case: of an audit or a replay.
        pages: text files, or JSON Lines with a text each.
        least: estimated similarity from which a document counts.
        tokenizer: of the case's corpus, where that holds token ids; by default the one that the run or the audit named.

    Returns:
        One row per page and document, pages in order, the most alike first: page, doc_key, jaccard, source, name.
    """
    if not case.has("signatures"):
        raise UsageError(f"{case.path} holds no documents to compare with", hint="give the case of an audit or a replay")
    names, texts = read_pages(pages)
    formats = set(case.get(CORPORA).column("format").to_pylist()) if case.has("corpora") else set()
    if tokenizer is None and not (formats and formats <= set(TEXT_FORMATS)):
        tokenizer = tokenizer_of(case)
    if formats and formats <= set(TEXT_FORMATS) and tokenizer is None:
        batch = DocumentBatch.from_texts(texts)
    elif tokenizer is None:
        raise UsageError("the case's corpus holds token ids", hint="give the tokenizer that made them with `--tokenizer`")
    else:
        batch = encode(texts, tokenizer)
    path = case.path / "tables" / "signatures"
    index = open_index(path if path.is_dir() else path.with_suffix(".parquet"))
    documents = case.get(DOCUMENTS)
    keys = documents.column("doc_key").to_numpy()
    rows = []
    for name, hits in zip(names, index.ask(batch, least)):
        for hit in hits:
            at = int(np.searchsorted(keys, hit.doc_key))
            found = documents.slice(at, 1).select(["source", "name"]).to_pylist()[0] if at < len(keys) and keys[at] == hit.doc_key else {}
            rows.append({"page": name, "doc_key": hit.doc_key, "jaccard": round(hit.jaccard, 3), "source": found.get("source"), "name": found.get("name")})
    return rows


def tokenizer_of(case: Case) -> Path | None:
    """The tokenizer that the audit was given or the run's description names, where it is still there."""
    named = (case.info.get("options") or {}).get("tokenizer")
    if named is None and isinstance(run := case.info.get("run"), str):
        try:
            named = open_run(Path(run), case.info.get("set") or ()).tokenizer
        except ForensicsError:  # moved or changed since: the user is asked for it
            return None
    return Path(named) if named is not None and Path(named).exists() else None


def read_pages(paths: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Names and texts of pages: a whole text file is one page, JSON Lines hold one per line.

    Raises:
        StoreError: a file that does not read, or JSON Lines without any text.
    """
    names, texts = [], []
    for path in paths:
        if not path.is_file():
            raise StoreError(f"{path} is a folder", hint="give its files") if path.is_dir() else StoreError(f"{path} does not exist")
        if path.name.removesuffix(".gz").removesuffix(".zst").endswith((".jsonl", ".ndjson")):
            tally = Tally(path)
            for line, _, text, record in JsonlFile(path).records(tally):
                names.append(labels_of(record, ReadOptions())[0] or f"{path}:{line + 1}")
                texts.append(text.decode("utf-8", "replace"))
            if failures := tally.all():
                raise StoreError(f"{failures[0].item}: {failures[0].error}")
        else:
            names.append(str(path))
            texts.append(read_text(path))
    return names, texts
