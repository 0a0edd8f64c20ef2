"""Levels of two runs: comparable, not comparable, not known; bits per byte instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forensics.curves.perplexity import identity, levels
from forensics.curves.settings import Ruler
from tests.curves.make import curves, loss, steps

EVAL = steps(20, 100, 100)
SAME = {"tokenizer": "llama", "validation": "c4-val", "loss": "mean over tokens"}
A = curves("a", train_loss=loss(2000), eval_loss=(EVAL, np.full(20, 2.0)))
B = curves("b", train_loss=loss(2000), eval_loss=(EVAL, np.full(20, 2.2)))


def test_equal_rulers_compare() -> None:
    got = levels(A, B, Ruler(**SAME), Ruler(**SAME))
    assert got.answer == "comparable" and not got.refused
    assert [(x.step, x.a, x.b) for x in got.levels] == [(2000, 2.0, 2.2)] and "2.0000 against 2.2000" in got.sentence


@pytest.mark.parametrize(("key", "refused"), [("tokenizer", True), ("loss", True), ("validation", False)])
def test_a_difference_is_refused(key: str, refused: bool) -> None:
    got = levels(A, B, Ruler(**SAME), Ruler(**{**SAME, key: "another"}))
    assert got.answer == "ppl_not_comparable" and got.refused is refused and not got.levels
    assert ("bits per byte would" in got.sentence) is (key == "tokenizer") and "another" in got.sentence


def test_bits_per_byte_are_offered_where_only_tokenizers_differ() -> None:
    other = {**SAME, "tokenizer": "gpt2"}
    got = levels(A, B, Ruler(**SAME, bytes_per_token=4.0), Ruler(**other, bytes_per_token=4.4))
    (x,) = got.levels
    assert x.unit == "bit/byte" and x.a == pytest.approx(2.0 / np.log(2) / 4.0) and x.b == pytest.approx(2.2 / np.log(2) / 4.4)
    logged = levels(curves("a", eval_bpb=(EVAL, np.full(20, 0.7))), curves("b", eval_bpb=(EVAL, np.full(20, 0.8))), Ruler(**SAME), Ruler(**other))
    assert [(x.a, x.b) for x in logged.levels] == [(0.7, 0.8)]
    third = levels(A, B, Ruler(**SAME, bytes_per_token=4.0), Ruler(**{**other, "validation": "pile"}, bytes_per_token=4.4))
    assert not third.levels and "no unit" in third.sentence


def test_what_is_not_known_is_said() -> None:
    got = levels(A, B, Ruler(tokenizer="llama"), Ruler())
    assert got.answer == "not_evaluated" and got.unknown == ("tokenizer", "loss", "validation") and not got.refused
    assert "--set ruler.tokenizer=" in got.sentence


def test_files_are_compared_by_content(tmp_path: Path) -> None:
    for name, text in (("one", "{}"), ("two", "{}"), ("three", "{ }")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(text)
    one, two, three = (identity(str(tmp_path / n)) for n in ("one", "two", "three"))
    assert one == two != three and identity(str(tmp_path / "one" / "tokenizer.json")) == one
    assert identity("mean over tokens") == "mean over tokens" and identity("x" * 5000) == "x" * 5000 and identity(None) is None
