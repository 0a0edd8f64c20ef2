"""Documents in a script that is not their source's: told from ids as from text, the same for any split."""

from __future__ import annotations

import importlib.util
import random

import numpy as np
import pytest

from forensics.detectors.scripts import NAMES, script_findings, scripts_of
from forensics.schemas import DOCUMENTS, SCRIPTS, Documents
from forensics.stores.batch import DocumentBatch

TEXTS = {
    "latin": "Der Müller erzählte später, er habe während der Nacht Geräusche gehört, die er sich nicht erklären könne. ",
    "greek": "Ο μυλωνάς είπε αργότερα ότι άκουσε θορύβους τη νύχτα που δεν μπορούσε να εξηγήσει. ",
    "cyrillic": "Вчера вечером поезд опоздал на двадцать минут, и никто на станции не удивился. ",
    "hebrew": "הטוחן סיפר אחר כך ששמע בלילה רעשים שלא ידע להסביר אותם לאיש בכפר. ",
    "arabic": "قال الطحان فيما بعد إنه سمع أصواتا في الليل لم يستطع أن يفسرها لأحد. ",
    "indic": "चक्कीवाले ने बाद में बताया कि उसने रात में ऐसी आवाज़ें सुनीं जिन्हें वह समझ नहीं सका। ",
    "han": "昨日の夜、列車は二十分遅れたが、駅では誰も驚かなかった。运转士后来告诉我们有一只天鹅。",
    "hangul": "방앗간 주인은 나중에 밤에 설명할 수 없는 소리를 들었다고 말했다. ",
}


class Kept:
    """A batch as a reader."""

    def __init__(self, batch: DocumentBatch) -> None:
        self.batch = batch

    def documents(self, keys: np.ndarray) -> DocumentBatch:
        return self.batch.part(int(keys[0]), int(keys[0]) + 1)


def table_of(batch: DocumentBatch, sources: list[str]) -> Documents:
    n = len(batch)
    return Documents(
        DOCUMENTS.of({"doc_key": batch.doc_key, "corpus_id": np.zeros(n, np.int32), "doc": batch.doc_key, "source": sources, "tokens": batch.lengths})
    )


def test_the_script_of_a_document_is_that_of_its_letters() -> None:
    batch = DocumentBatch.from_texts([*(t * 4 for t in TEXTS.values()), "", "short", "0123 + 456 " * 90, TEXTS["latin"] * 2 + TEXTS["cyrillic"] * 2])
    got = scripts_of(batch)
    assert got.schema.equals(SCRIPTS.schema)
    assert got["script"].to_pylist() == [*TEXTS, None, None, None, None]
    assert set(TEXTS) <= set(NAMES)
    assert scripts_of(DocumentBatch.of_documents([[1, 2, 3]]))["script"].to_pylist() == [None]


def test_unexpected_documents_of_a_source_are_named() -> None:
    r = random.Random(1)
    names = ["latin"] * 500 + ["cyrillic"] * 3 + ["han"] * 400 + ["latin"] * 100 + ["hangul"]
    sources = ["web"] * 503 + ["asia"] * 501
    batch = DocumentBatch.from_texts([TEXTS[n] * r.randrange(4, 7) for n in names])
    documents = table_of(batch, sources)
    got = script_findings([scripts_of(batch)], documents, Kept(batch))
    assert got["doc_key"].to_pylist() == [500, 501, 502, 1003]
    details = got["detail"].to_pylist()
    assert details[0].startswith("cyrillic in a source of which 99.4% is latin") and details[3].startswith("hangul in a source of which 79.8% is han")
    assert set(got["cause"].to_pylist()) == {"language"} and not any(got["garbage"].to_pylist())
    if importlib.util.find_spec("py3langid"):
        assert details[0].endswith("language ru") and details[3].endswith("language ko")
    parts = [scripts_of(batch.part(a, b)) for a, b in ((0, 1), (1, 501), (501, 1004))]
    assert script_findings(parts, documents, Kept(batch)).equals(got)


@pytest.mark.parametrize("n", [0, 50])
def test_few_documents_have_no_usual_script(n: int) -> None:
    batch = DocumentBatch.from_texts([TEXTS["latin"] * 4] * n + [TEXTS["han"] * 4] * (n > 0))
    assert script_findings([scripts_of(batch)] if n else [], table_of(batch, ["web"] * len(batch))).num_rows == 0


def test_every_name_of_the_package_is_there() -> None:
    import forensics.detectors as package

    assert all(getattr(package, name) is not None for name in package._WHERE)
