"""The command `forensics replay`: words that it takes on the command line."""

from __future__ import annotations

import pytest

from forensics.cli.replay import causes_of
from forensics.errors import UsageError


def test_causes_to_fail_on_are_known_words() -> None:
    assert causes_of("data, loader") == {"data", "loader"}
    assert causes_of("") == set()
    with pytest.raises(UsageError, match="did you mean `data`"):
        causes_of("dada")
