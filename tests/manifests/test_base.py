"""Whose terms a list is written in."""

from __future__ import annotations

import pytest

from forensics.errors import UsageError
from forensics.manifests.base import exporter_for


@pytest.mark.parametrize(("trainer", "wanted", "got"), [
    ("megatron", None, "megatron"), ("recorded", None, "plain"), ("datasets", None, "plain"), ("megatron", "nemo", "nemo"), ("hf", "pytorch", "pytorch"),
    ("hf", "plain", "plain"), ("recorded", "megatron", "megatron"), ("megatron", "somebody's", "somebody's"),
])  # fmt: skip
def test_terms_are_the_trainers_own_unless_asked_otherwise(trainer: str, wanted: str | None, got: str) -> None:
    assert exporter_for(trainer, wanted) == got


@pytest.mark.parametrize(("trainer", "wanted"), [("hf", "megatron"), ("olmo-core", "olmo"), ("megatron", "neox")])
def test_terms_of_another_order_are_refused(trainer: str, wanted: str) -> None:
    with pytest.raises(UsageError, match="would drop other data"):
        exporter_for(trainer, wanted)
