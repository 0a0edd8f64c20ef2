"""Text for reports: evidence, whole characters, and personal data masked wherever pieces are cut."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.reports.excerpts import pieces, stretches, texts
from forensics.stores.batch import DocumentBatch
from forensics.text import redact

MAIL = "write to jane.doe@example.com today or call +49 170 1234 5678 90"


def shown(text: str, cuts: list[tuple[int, int]], mask: bool = True, edge: int = 96) -> list[str]:
    return [t for t, _ in texts(DocumentBatch.from_texts([text]), 0, cuts, mask, edge)]


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_pieces_add_up_to_the_whole(text: str, at: list[int]) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    bounds = sorted({0, len(raw), *(min(a, len(raw)) for a in at)})
    cuts = list(zip(bounds, bounds[1:], strict=False)) or [(0, 0)]
    assert "".join(shown(text, cuts, mask=False)) == raw.decode("utf-8", "replace")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, len(MAIL)), max_size=12))
def test_an_address_is_masked_however_it_is_cut(at: list[int]) -> None:
    bounds = sorted({0, len(MAIL), *at})
    found = "".join(shown(MAIL, list(zip(bounds, bounds[1:], strict=False))))
    assert found == redact(MAIL)[0]
    assert "jane" not in found


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(MAIL)), st.integers(0, len(MAIL)))
def test_the_edge_of_an_excerpt_shows_no_part_of_an_address(a: int, b: int) -> None:
    start, stop = min(a, b), max(a, b)
    found = "".join(shown(MAIL, [(start, stop)]))
    for secret in ("doe@", "example", "jane", "1234", "5678"):
        assert secret not in found


def test_every_piece_of_a_masked_stretch_is_known_as_such() -> None:
    found = texts(DocumentBatch.from_texts([MAIL]), 0, [(0, 5), (5, 14), (14, 24), (24, 30), (30, 40)], True, 96)
    assert [m for _, m in found] == [False, True, True, True, False]


def test_a_character_is_never_cut() -> None:
    text = "naïve 日本語"
    raw = text.encode()
    for k in range(1, len(raw)):
        first, second = shown(text, [(0, k), (k, len(raw))], mask=False)
        assert "\ufffd" not in first + second
        assert first + second == text
        assert "\ufffd" not in shown(text, [(k, len(raw))], mask=False)[0]


def test_spans_have_context_and_bounds() -> None:
    assert pieces(1000, [(100, 110)]) == [(60, 100), (100, 110), (110, 150)]
    assert pieces(1000, []) == [(0, 400)]
    assert pieces(0, []) == []
    assert pieces(5000, [(10, 4000)])[1] == (10, 310)
    assert pieces(5000, [(100, 110)], 4)[0] == (0, 100)


def test_pieces_that_touch_are_read_together() -> None:
    assert stretches([(0, 4), (4, 9), (12, 15)]) == [[(0, 4), (4, 9)], [(12, 15)]]
    assert np.sum([len(s) for s in stretches([(0, 1), (2, 3)])]) == 2
