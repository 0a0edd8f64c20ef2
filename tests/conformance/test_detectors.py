"""What every detector owes: one finite number per document and measure, no influence between documents, the same for any split, spans inside."""

from __future__ import annotations

import base64
import random
from dataclasses import replace

import numpy as np
import pytest

from forensics.detectors.base import DETECTORS
from forensics.detectors.flagging import flag
from forensics.detectors.measuring import measure
from forensics.detectors.thresholds import read_thresholds
from forensics.schemas import FINDINGS
from forensics.stores.batch import DocumentBatch
from forensics.stores.bigrams import bigrams_of
from forensics.stores.vocab import byte_vocabulary

CONFIG = read_thresholds()


def texts() -> list[str]:
    r = random.Random(3)
    prose = "It rained for a week, and then the river took the bridge. Nobody had expected it, least of all the miller.\n"
    return [
        "",
        "a",
        prose * 3,
        "".join(prose.replace("miller", r.choice(["miller", "priest", "baker"])).replace("week", str(n)) for n in range(20)),
        base64.b64encode(r.randbytes(900)).decode(),
        prose + "x" * 900 + prose,
        ("Déjà vu, où ça? " * 40).encode().decode("latin-1"),
        "<div class='a'><br/>&nbsp;</div>\n" * 3 + "<td><p>x</p></td>\n" * 40,
        "\x00\x01\x02abc" * 300,
        "\n".join(" ".join(str(r.randrange(1000)) for _ in range(9)) for _ in range(50)),
        "2024-01-01 10:00:00 INFO started worker 1\n" * 3 + "".join(f"2024-01-01 10:00:{n:02d} INFO step {n} done\n" for n in range(40)),
        "\ud800\udfff\ufffd" * 20,
    ]


def same(a: object, b: object) -> bool:
    return repr(a) == repr(b)


@pytest.mark.parametrize("name", DETECTORS.names())
def test_numbers_are_finite_and_do_not_depend_on_the_batch(name: str) -> None:
    batch = DocumentBatch.from_texts(texts())
    if DETECTORS.get(name).reads in ("ids", "vocabulary"):
        r = np.random.default_rng(1)
        batch = DocumentBatch.of_documents([r.integers(0, 3, n) for n in (0, 1, 400, 50, 33)] + [np.full(40, 5), np.tile([1, 2, 3], 40)])
    if DETECTORS.get(name).reads == "vocabulary":
        batch = replace(batch, vocabulary=replace(byte_vocabulary(), kind="sentencepiece", unknown=1))
    if DETECTORS.get(name).reads == "bigrams":
        batch = replace(batch, bigrams=bigrams_of([DocumentBatch.from_texts([str(k) * 5000 for k in range(2)])]))
    whole = measure(batch, CONFIG, only=[name])
    assert set(whole.columns[name]) == {m.name for m in DETECTORS.get(name).measures}
    for column in whole.columns[name].values():
        assert column.dtype == np.float32 and len(column) == len(batch) and np.isfinite(column).all()
    order = list(range(len(batch)))
    random.Random(2).shuffle(order)
    for i in order:
        alone = measure(batch.part(i, i + 1), CONFIG, only=[name])
        assert {k: v[0] for k, v in alone.columns[name].items()} == {k: v[i] for k, v in whole.columns[name].items()}
        assert same(alone.evidence[name].get(0), whole.evidence[name].get(i))


@pytest.mark.parametrize("name", DETECTORS.names())
def test_spans_lie_inside_the_document(name: str) -> None:
    batch = DocumentBatch.from_texts(texts())
    found = measure(batch, CONFIG, only=[name])
    for i, evidence in found.evidence.get(name, {}).items():
        assert all(0 <= a < b <= batch.lengths[i] for a, b in evidence.spans)
        assert evidence.detail


@pytest.mark.parametrize("name", DETECTORS.names())
def test_an_empty_batch_gives_empty_columns(name: str) -> None:
    found = measure(DocumentBatch.from_texts([]), CONFIG, only=[name])
    assert all(len(c) == 0 for c in found.columns.get(name, {}).values())
    assert flag(found, CONFIG).num_rows == 0


def test_findings_are_a_table_with_one_primary_cause_at_most() -> None:
    batch = DocumentBatch.from_texts(texts())
    found = flag(measure(batch, CONFIG), CONFIG)
    assert found.schema.equals(FINDINGS.schema) and found.num_rows >= 6
    primary = [r["doc_key"] for r in found.to_pylist() if r["primary"]]
    assert len(primary) == len(set(primary))


def test_without_a_tokenizer_ids_are_still_measured_and_the_rest_is_said() -> None:
    batch = DocumentBatch.of_documents([[7] * 500, list(range(500)), [], [10**9, 1, -5]])
    found = measure(batch, CONFIG)
    assert {"mojibake", "encoded", "repetition"} <= set(found.not_evaluated) and "periods" in found.columns
    (row,) = flag(found, CONFIG).to_pylist()
    assert row["doc_key"] == 0 and row["cause"] == "repetition" and row["primary"] and row["garbage"]
    tables = found.tables()
    assert tables["mojibake"].column("damaged").null_count == 4 and tables["periods"].column("times").to_pylist() == [500.0, 0.0, 0.0, 0.0]


def test_every_rule_names_a_measure_that_exists() -> None:
    for preset in ("default", "strict", "code"):
        for name, rules in read_thresholds(preset).rules.items():
            known = {m.name for m in DETECTORS.get(name).measures}
            for measure_name, rule in rules.items():
                assert {measure_name, *rule.floor, *rule.garbage_floor} <= known
