"""Documents in a language that is not their source's, of the same script: told from texts and ids alike, silent on mixed sources and without the library."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import zstandard

from forensics.detectors import language
from forensics.detectors.languages import LEAST, NEAR, OFTEN, SELDOM, language_findings, samples_of
from forensics.detectors.scripts import scripts_of
from forensics.schemas import DOCUMENTS, Documents
from forensics.stores.batch import DocumentBatch

GERMAN = "Der Müller erzählte später, er habe während der Nacht Geräusche gehört, die er sich nicht erklären könne, und sei vor die Tür gegangen. "
FRENCH = "Le café était fermé depuis l'été, mais la patronne y préparait encore des crêpes pour les élèves du collège, qui venaient le soir. "
ENGLISH = "The morning train was late again, and the platform filled with people who had long stopped looking at the clock above the door. "
POLISH = "Młynarz opowiadał potem, że w nocy słyszał odgłosy, których nie potrafił sobie wytłumaczyć, i wyszedł przed dom ze starą latarnią. "
CODE = "    for key, value in sorted(items.items()):\n        out[key] = [int(x) for x in value.split()] if value else None\n"
RUSSIAN = "Вчера вечером поезд опоздал на двадцать минут, и никто на станции не удивился, потому что так бывало каждый день. "
SIZE = 2000
TEXTS = Path(os.environ.get("FORENSICS_TEXTS", Path(__file__).parents[3] / "shared" / "data" / "text" / "docs.jsonl.zst"))


def table_of(batch: DocumentBatch, source: list[str]) -> Documents:
    n = len(batch)
    return Documents(
        DOCUMENTS.of({"doc_key": batch.doc_key, "corpus_id": np.zeros(n, np.int32), "doc": batch.doc_key, "source": source, "tokens": batch.lengths})
    )


def corpus(usual: str, others: dict[str, float], n: int = SIZE) -> tuple[DocumentBatch, list[str]]:
    rng = np.random.default_rng(0)
    kinds = rng.choice([usual, *others], n, p=[1 - sum(others.values()), *others.values()]).tolist()
    words = {k: k.split(" ") for k in {usual, *others}}
    return DocumentBatch.from_texts([" ".join(words[k] * int(rng.integers(6, 9))) for k in kinds]), kinds


pytestmark = pytest.mark.skipif(language._model() is None, reason="py3langid is not installed")


def test_english_pages_of_a_french_source_are_named() -> None:
    batch, kinds = corpus(FRENCH, {ENGLISH: 0.04, POLISH: 0.01})
    documents = table_of(batch, ["web"] * SIZE)
    parts = [scripts_of(batch)]
    found = language_findings(parts, documents)
    sampled = [i for i, s in enumerate(samples_of(batch, np.ones(SIZE, np.bool_))) if s is not None]
    assert SIZE / OFTEN * 0.8 < len(sampled) < SIZE / OFTEN * 1.2
    assert found["doc_key"].to_pylist() == [i for i in sampled if kinds[i] != FRENCH]
    assert not any(found["garbage"].to_pylist()) and set(found["cause"].to_pylist()) == {"language"}
    (first, *_) = [r for r in found.to_pylist() if kinds[r["doc_key"]] == ENGLISH]
    share = sum(kinds[i] == ENGLISH for i in sampled) / len(sampled)
    assert first["value"] == pytest.approx(share)
    assert first["detail"].startswith("language en in a source of which 9") and first["detail"].endswith(f"documents are fr, {share:.1%} en")
    again = [scripts_of(batch.part(a, b)) for a, b in ((0, 7), (7, 1500), (1500, SIZE))]
    assert language_findings(again, documents).equals(found)


@pytest.mark.parametrize(
    ("usual", "others"),
    [(FRENCH, {ENGLISH: 0.2}), (FRENCH, {ENGLISH: 0.3, GERMAN: 0.3}), (ENGLISH, {CODE: 0.05}), (FRENCH, {RUSSIAN: 0.05}), (FRENCH, {})],
    ids=["mixed", "three languages", "code is no language", "another script is told elsewhere", "one language"],
)
def test_nothing_is_said_of(usual: str, others: dict[str, float]) -> None:
    batch, _ = corpus(usual, others)
    assert language_findings([scripts_of(batch)], table_of(batch, ["web"] * SIZE)).num_rows == 0


def test_every_source_has_its_own_language() -> None:
    french, _ = corpus(FRENCH, {})
    german, _ = corpus(GERMAN, {})
    texts = [french.text(i) if i % 2 else german.text(i) for i in range(SIZE)]
    batch = DocumentBatch.from_texts(texts)
    parts = [scripts_of(batch)]
    assert language_findings(parts, table_of(batch, ["f" if i % 2 else "g" for i in range(SIZE)])).num_rows == 0
    assert language_findings(parts, table_of(batch, ["f"] * SIZE)).num_rows == 0


def test_few_documents_have_no_usual_language() -> None:
    n = OFTEN * LEAST // 2
    batch, _ = corpus(FRENCH, {ENGLISH: 0.05}, n)
    assert language_findings([scripts_of(batch)], table_of(batch, ["web"] * n)).num_rows == 0
    assert language_findings([], table_of(batch, ["web"] * n)).num_rows == 0


def test_samples_are_bounded_and_redacted() -> None:
    text = (ENGLISH + "Write to jane.doe@example.org today. ") * 4
    batch = DocumentBatch.from_texts([text] * 20, np.arange(NEAR, NEAR + 20))
    assert sum(s is not None for s in samples_of(batch, np.ones(20, np.bool_))) <= 20 / SELDOM * 8
    near = DocumentBatch.from_texts([text] * 200)
    kept = [s for s in samples_of(near, np.ones(200, np.bool_)) if s]
    assert kept and all(len(p) <= 200 and "jane" not in p for s in kept for p in s)
    assert samples_of(DocumentBatch.from_texts(["short"] * 200), np.ones(200, np.bool_)) == [None] * 200


def test_without_the_library_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "_model", lambda: None)
    batch, _ = corpus(FRENCH, {ENGLISH: 0.04})
    assert language_findings([scripts_of(batch)], table_of(batch, ["web"] * SIZE)).num_rows == 0


@pytest.mark.skipif(not TEXTS.exists(), reason="the shared texts are not at hand")
@pytest.mark.parametrize(("usual", "least"), [("fr", 3), ("de", 5), ("es", 5)])
def test_english_among_real_pages(usual: str, least: int) -> None:
    raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(TEXTS.read_bytes())).read().decode("utf-8", "surrogatepass")
    docs = [json.loads(line) for line in raw.split("\n") if line]

    def pieces(source: str, language: str) -> list[str]:
        return [
            d["text"][i : i + 1200]
            for d in docs
            if (d["source"], d["lang"], d["labels"]) == (source, language, [])
            for i in range(0, len(d["text"]) - 1199, 1200)
        ]

    mine, english = pieces(f"man-{usual}", usual), pieces("docs", "en")
    rng = np.random.default_rng(0)
    texts, planted = [mine[i % len(mine)] for i in range(SIZE)], rng.random(SIZE) < 0.03
    for i in np.flatnonzero(planted).tolist():
        texts[i] = english[int(rng.integers(len(english)))]
    batch = DocumentBatch.from_texts(texts)
    parts = [scripts_of(batch)]
    sampled = [k for k, s in zip(batch.doc_key.tolist(), parts[0]["sample"].to_pylist()) if s and planted[k]]
    found = language_findings(parts, table_of(batch, ["web"] * SIZE))
    assert len(sampled) >= least and len(set(sampled) & set(found["doc_key"].to_pylist())) >= 0.8 * len(sampled)
    others = set(found["doc_key"].to_pylist()) - set(sampled)
    assert len(others) <= 0.04 * SIZE / OFTEN  # sections of manual pages that nobody translated
    assert all(d.startswith("language en") for d in found["detail"].to_pylist())
