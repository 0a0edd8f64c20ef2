"""Texts that detectors could stumble over or take very long for: time grows with a text's length, whatever it holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from forensics.detectors.base import Text
from forensics.detectors.markup import markup
from forensics.detectors.template import template

DETECTORS: tuple[Callable[[Text], Any], ...] = (template, markup)


def text_of(content: bytes) -> Text:
    return Text(np.frombuffer(bytearray(content), np.uint8))


def cpu_s(detector: Callable[[Text], Any], rows: list[str]) -> float:
    """CPU time of a detector on rows [s], compiling apart."""
    detector(text_of("\n".join(rows[:50]).encode()))
    text = text_of("\n".join(rows).encode())
    start = time.process_time()
    detector(text)
    return time.process_time() - start


@pytest.mark.parametrize("long", ["aA", "a", "a.", "Aa.", "://", "](", "\v", "<a ", "<!--", "&amp", " margin:", "{{a|", "'\"", "a-"])
@pytest.mark.parametrize("detector", DETECTORS)
def test_long_words_in_rows_take_no_longer(detector: Callable[[Text], Any], long: str) -> None:
    """Where a pattern may begin at every byte of a word and end at any, the time goes with the square of its length, or the cube."""
    assert cpu_s(detector, [f"the row number {k} of many such rows says {long * (1900 // len(long))} so" for k in range(100)]) < 5


def test_many_lists_take_no_longer() -> None:
    rows = [
        f"* the river of {k // 12:x} {'abcdefghijkl'[k % 12] * 5} and its stones are known for {k // 12:o}" if k % 12 < 6 else f"- {k:o} {k:x}"
        for k in range(40_000)
    ]
    assert cpu_s(template, rows) < 10


@pytest.mark.parametrize("detector", DETECTORS)
def test_bytes_that_are_no_text_are_read(detector: Callable[[Text], Any]) -> None:
    assert not detector(text_of(b"margin:\n\x80\x80\x80\x80\n" * 9))
