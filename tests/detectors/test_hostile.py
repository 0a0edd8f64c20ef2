"""Lines that patterns could take very long for: time grows with a text's length, whatever it holds."""

from __future__ import annotations

import time

import numpy as np
import pytest

from forensics.detectors.base import Text
from forensics.detectors.markup import markup
from forensics.detectors.template import template


@pytest.mark.parametrize("long", ["aA", "a", "a.", "Aa.", "://", "](", "\v", "<a ", "<!--", "&amp", " margin:", "{{a|", "'\"", "a-"])
@pytest.mark.parametrize("detector", [template, markup])
def test_long_words_in_rows_take_no_longer(detector: object, long: str) -> None:
    """Where a pattern may begin at every byte of a word and end at any, the time goes with the square of its length, or the cube."""
    rows = "".join(f"the row number {k} of many such rows says {long * (1900 // len(long))} so\n" for k in range(100))
    text = Text(np.frombuffer(bytearray(rows.encode()), np.uint8))
    start = time.process_time()
    detector(text)  # type: ignore[operator]
    assert time.process_time() - start < 10  # 0.2 MB; the first one compiles
