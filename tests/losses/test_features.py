"""Features: plain definitions, edge cases, and independence between documents."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from forensics.losses.features import best_period, bytes_of, coded, describe, in_words, misread, shared_runs, signatures, twins


def flat(docs: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([t for d in docs for t in d], dtype=np.int64), np.concatenate([[0], np.cumsum([len(d) for d in docs])]).astype(np.int64)


def test_best_period_is_the_share_of_repeats_at_the_best_distance() -> None:
    rng = np.random.default_rng(0)
    docs = [[1, 2, 3] * 20, rng.permutation(200).tolist(), [7] * 9, [1, 2], []]
    got = best_period(*flat(docs))
    assert got[0] == 1.0 and got[2] == 1.0
    assert got[1] == 0.0 and got[3] == 0.0 and got[4] == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_best_period_equals_a_plain_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    docs = [rng.integers(0, 4, int(rng.integers(0, 60))).tolist() for _ in range(8)]
    want = [max([float(np.mean(np.array(d[p:]) == np.array(d[:-p]))) for p in range(1, 33) if len(d) >= 3 * p], default=0.0) for d in docs]
    np.testing.assert_allclose(best_period(*flat(docs)), want)


def test_runs_are_shared_when_three_other_documents_hold_them() -> None:
    common = list(range(100, 120))
    docs = [[*common, i, i + 1] for i in range(4)] + [[*common[:10], *range(50, 60)]] + [list(range(30))] + [[1, 2]]
    got = shared_runs(*flat(docs))
    assert got[0] == pytest.approx(15 / 17)
    assert got[5] == 0.0 and got[6] == 0.0
    assert shared_runs(*flat(docs[:3])).tolist() == [0.0, 0.0, 0.0]


def test_misread_text_is_told_from_accents_and_other_scripts() -> None:
    french = "les éléments déjà présentés à l'élève sont très utiles"
    garbled = french.encode("utf-8").decode("cp1252")
    assert misread(french) == 0.0
    assert misread(garbled) > 0.1
    assert misread("простой текст без ошибок 这是一个句子") == 0.0
    assert misread("这是一个句子".encode().decode("latin-1")) > 0.9
    assert misread("") == 0.0


def test_classes_of_bytes_are_shares() -> None:
    letters, digits, spaces, control, foreign, broken, garbled, entropy, _words = bytes_of(b"abc 123\x01\xff")
    assert (letters, digits, spaces, control, foreign) == pytest.approx((3 / 9, 3 / 9, 1 / 9, 1 / 9, 1 / 9))
    assert broken == pytest.approx(1 / 9) and garbled == 0.0 and entropy > 1.5
    assert bytes_of(b"") == (0.0,) * 9
    assert in_words(b"plain words here") == 1.0
    assert in_words(b"zzzz 0x1f") < 0.1


def test_similar_documents_find_their_twins() -> None:
    rng = np.random.default_rng(1)
    base = rng.integers(0, 500, 300)
    near = [np.where(rng.random(300) < 0.05, rng.integers(0, 500, 300), base) for _ in range(5)]
    far = [rng.integers(0, 500, 300) for _ in range(5)]
    tokens, offsets = flat([d.tolist() for d in (*near, *far)] + [[1, 2]])
    many, most = twins(signatures(tokens, offsets, np.arange(11)))
    assert (many[:5] == 4).all() and (many[5:] == 0).all()
    assert most[:5].min() > 0.3


def test_a_document_is_described_the_same_beside_others() -> None:
    rng = np.random.default_rng(2)
    docs = [rng.integers(0, 50, 80).tolist() for _ in range(6)]
    tokens, offsets = flat(docs)
    whole = describe(SimpleNamespace(tokens=tokens, offsets=offsets, doc_key=np.arange(6)))
    part = describe(SimpleNamespace(tokens=tokens[offsets[2] : offsets[4]], offsets=offsets[2:5] - offsets[2], doc_key=np.arange(2)))
    for name in ("length", "compressed", "distinct", "period"):
        np.testing.assert_array_equal(getattr(whole, name)[2:4], getattr(part, name))
    assert np.isnan(whole.letters).all()
    filled, per_token = coded(whole, SimpleNamespace(tokens=tokens, offsets=offsets, doc_key=np.arange(6)), np.ones(6, dtype=bool))
    assert (filled.after > 0).all() and len(per_token) == len(tokens)
