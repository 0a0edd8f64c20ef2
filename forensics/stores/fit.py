"""Whether a tokenizer is the one that a file of ids was made with: the ways in which a wrong one shows.

Ids beyond its vocabulary prove it wrong. Ids that stay far below the end of the vocabulary over a million tokens, and decoded text full of
bytes that are no UTF-8, make it unlikely: training sets use nearly all ids, and text is cut into tokens and put together without loss. A tokenizer
without bytes to fall back on loses the characters that it lacks: many unknown ids mean that it was not made for these documents.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from forensics.schemas import DOC_MASK
from forensics.stores.batch import DocumentBatch

ENOUGH = 1_000_000  # tokens after which the largest id says something
USED = 0.9  # of the vocabulary, by its largest id met
SAMPLED = 256  # documents decoded: the first so many of a file, and one in so many after them: by their numbers, so that no cut of the file matters
SHOWN_BYTES = 1 << 14  # of each of them
LOST = 0.01  # share of ids that may be the unknown one: emoji and rare ideographs among text in the tokenizer's languages are fewer
BROKEN = 0.02  # share of decoded characters that may be U+FFFD: legacy files decoded badly before tokenizing have less over a corpus


@dataclass
class Fit:
    """Counts over batches of ids; they add up.

    Attributes:
        size: ids of the vocabulary.
        tokens, beyond: ids met, and those outside of the vocabulary.
        largest: id inside it, -1 before any.
        characters, broken: decoded in the samples, and those that are U+FFFD.
        lost: ids that are the unknown one; -1 where the vocabulary has none.
    """

    size: int = 0
    tokens: int = 0
    beyond: int = 0
    largest: int = -1
    characters: int = 0
    broken: int = 0
    lost: int = -1

    def add(self, batch: DocumentBatch) -> None:
        """Count a batch; texts and batches without a vocabulary say nothing."""
        if batch.vocabulary is None or batch.is_text or not len(batch.tokens):
            return
        self.size = batch.vocabulary.size
        self.tokens += len(batch.tokens)
        top = int(batch.tokens.max())
        inside = batch.tokens if top < self.size else batch.tokens[batch.tokens < self.size]
        self.beyond += len(batch.tokens) - len(inside)
        self.largest = max(self.largest, int(inside.max()) if len(inside) else -1)
        if batch.vocabulary.unknown >= 0:
            self.lost = max(self.lost, 0) + int(np.count_nonzero(batch.tokens == batch.vocabulary.unknown))
        number = np.asarray(batch.doc_key, np.int64) & DOC_MASK
        for i in np.flatnonzero((number < SAMPLED) | (number % SAMPLED == 0)).tolist():
            text = batch.vocabulary.raw(batch.tokens_of(i)[: SHOWN_BYTES // 4], special=False).tobytes()[:SHOWN_BYTES].decode("utf-8", "replace")[:-1]
            self.characters += len(text)
            self.broken += text.count("\ufffd")

    def merge(self, other: dict[str, Any]) -> None:
        """Add what another process counted, as `asdict` gives it."""
        self.size, self.largest = max(self.size, other["size"]), max(self.largest, other["largest"])
        for name in ("tokens", "beyond", "characters", "broken"):
            setattr(self, name, getattr(self, name) + other[name])
        self.lost = max(self.lost, 0) + other["lost"] if other["lost"] >= 0 else self.lost

    def checks(self, subject: str) -> list[dict[str, str]]:
        """Rows of the table `identity`; none where nothing was counted."""
        if not self.size:
            return []
        rows = [
            (
                "ids within the tokenizer's vocabulary",
                f"ids below {self.size:,}",
                f"{self.beyond:,} of {self.tokens:,} beyond it",
                "contradicts" if self.beyond else "agrees",
            )
        ]
        if self.tokens >= ENOUGH:
            answer = "agrees" if self.largest >= USED * self.size else "contradicts"
            rows.append(("vocabulary used to its end", f"largest id near {self.size - 1:,}", f"largest id {self.largest:,}", answer))
        if self.characters:
            answer = "agrees" if self.broken <= BROKEN * self.characters else "contradicts"
            rows.append(
                ("decoded text is UTF-8", f"at most {100 * BROKEN:.0f} % of the characters U+FFFD", f"{100 * self.broken / self.characters:.2f} %", answer)
            )
        if self.lost >= 0:
            answer = "agrees" if self.lost <= LOST * self.tokens else "contradicts"
            rows.append(("it has all characters", f"at most {100 * LOST:.0f} % of the ids the unknown one", f"{100 * self.lost / self.tokens:.2f} %", answer))
        return [
            {"check": f"tokenizer: {check}", "subject": subject, "expected": expected, "found": found, "answer": answer}
            for check, expected, found, answer in rows
        ]


def plain(fit: Fit) -> dict[str, int]:
    """Counts that another process can merge."""
    return asdict(fit)


def merged(parts: Iterable[dict[str, Any]]) -> Fit:
    """One from several."""
    out = Fit()
    for part in parts:
        out.merge(part)
    return out
