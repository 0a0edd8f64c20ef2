"""`trainer_state.json` of Hugging Face's Trainer, which every checkpoint carries.

Follows `src/transformers/trainer_callback.py` (TrainerState, 2020 to 2026). `log_history` mixes training rows (loss,
grad_norm since 2024, learning_rate), evaluation rows (`eval_loss`, or `eval_<set>_loss` per set) and a closing summary
row (`train_loss` is the mean over the whole run there, and must not be taken for the last step's loss). The loss is the
mean since the last row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forensics.curves.sources.base import SOURCES, Block, Head, Log
from forensics.curves.sources.documents import begins_document, load
from forensics.curves.sources.roles import Pairs, Roles

SUMMARY = frozenset({"train_loss", "train_runtime", "train_samples_per_second", "train_steps_per_second", "train_tokens_per_second", "total_flos"})


def without_summary(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the history; of the closing summary nothing stays."""
    if "train_runtime" in row:
        return {k: v for k, v in row.items() if k not in SUMMARY}
    return row


class TrainerState:
    """trainer_state.json."""

    name = "trainer_state"
    doc = "trainer_state.json of Hugging Face's Trainer"

    def sniff(self, head: Head) -> int:
        """An object with a log_history."""
        return (
            96
            if begins_document(head) and b'"log_history"' in head.data
            else (50 if begins_document(head) and b'"total_flos"' in head.data and b'"global_step"' in head.data else 0)
        )

    def read(self, log: Log) -> Iterator[Block]:
        """One block per piece of the history."""
        document = load(log)
        history = document.get("log_history") if isinstance(document, dict) else None
        if not isinstance(history, list):
            log.problem("no log_history")
            return
        rows = [without_summary(row) for row in history if isinstance(row, dict) and "step" in row]
        if len(rows) < len(history):
            log.problem("an entry of log_history that is no record", count=len(history) - len(rows))
        sample: dict[str, Any] = {}
        for row in rows:
            for key, value in row.items():
                sample.setdefault(key, value)
        pairs = Pairs(Roles(sample, sample, log.options))
        for row in rows:
            pairs.add(row, -1)
            if pairs.full:
                yield from pairs.cut()
        yield from pairs.cut()


SOURCES.add("trainer_state", TrainerState(), __name__)
