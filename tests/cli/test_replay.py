"""The command `forensics replay`: words that it takes on the command line."""

from __future__ import annotations

import pytest

from forensics.cli.replay import causes_of, experiments_of
from forensics.errors import UsageError


def test_causes_to_fail_on_are_known_words() -> None:
    assert causes_of("data, loader") == {"data", "loader"}
    assert causes_of("") == set()
    with pytest.raises(UsageError, match="did you mean `data`"):
        causes_of("dada")


@pytest.mark.parametrize("text", ["replay", "replay=", "replay=missing.jsonl"])
def test_a_rerun_without_its_log_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names no file"):
        experiments_of([text])
