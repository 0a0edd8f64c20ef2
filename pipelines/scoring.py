"""Scoring documents with a model during a replay: what is chosen, how it is stored, and under which origin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from forensics.pipelines.plan import Plan
from forensics.pipelines.sampling import chance
from numpy.typing import NDArray

from forensics.case import Case
from forensics.documents.lengths import source_codes
from forensics.errors import ConfigError, UsageError
from forensics.files import digest, stamp
from forensics.losses.reference import Mask, Scorer, losses_of_tokens, open_scorer, score_tokens
from forensics.losses.sampling import Chosen, blocks, choose, described, strata
from forensics.schemas import LOSSES, Consumed, Documents, Findings, Losses
from forensics.stores.base import TokenStore
from forensics.stores.vocab import open_vocabulary

SCORE_TOKENS = 1 << 21  # by default; some minutes of a small model on a CPU
BLOCK_TOKENS = 1 << 16  # scored between two saves
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Scoring:
    """A model to score with.

    Attributes:
        model: folder or .gguf file; dtype: of its weights.
        tokens: budget.
        masks: `document`, each part of a document alone, or `row`, as a run without masks saw it.
        scored_at: step of the run's own checkpoint that the model is, if it is one.
        device: cpu, cuda or auto.
    """

    model: Path
    dtype: Literal["float32", "bfloat16"] = "float32"
    tokens: int = SCORE_TOKENS
    masks: Mask = "document"
    scored_at: int | None = None
    device: str = "auto"

    @property
    def fingerprint(self) -> str:
        """Changes with the model's files and every setting."""
        files = sorted(self.model.glob("*")) if self.model.is_dir() else [self.model]
        return digest([stamp(f) for f in files if f.is_file()], self.dtype, self.tokens, self.masks, self.scored_at)


def score_losses(
    case: Case,
    plan: Plan,
    scoring: Scoring,
    consumed: Consumed,
    documents: Documents,
    findings: Findings,
    recorded: Losses | None,
    store: TokenStore,
    progress: Progress,
) -> Losses:
    """Losses under the model beside those recorded; `token_losses` holds them label by label, `case.json` what was chosen and how likely.

    Raises:
        UsageError: a checkpoint that was trained on the window; ConfigError: a model of another vocabulary.
    """
    if scoring.scored_at is not None and scoring.scored_at >= plan.window.start:
        raise UsageError(
            f"the checkpoint of step {scoring.scored_at} was trained on steps that are asked about ({plan.window})",
            hint="give one from before the event: what was learned since is what it is to show",
        )
    scorer = open_scorer(scoring.model, scoring.dtype, scoring.device)
    refuse_other_vocabulary(scorer, scoring.model, store)
    origin = f"checkpoint:{scoring.scored_at}" if scoring.scored_at is not None else f"reference:{scorer.name}"
    chosen, units, size = select(plan, scoring, consumed, documents, findings)
    rows = np.flatnonzero(np.isin(units, chosen.rows)).astype(np.int64) if scoring.masks == "row" else chosen.rows
    lengths = (consumed["doc_stop"].to_numpy() - consumed["doc_start"].to_numpy()).astype(np.int64)
    parts = []
    pieces = row_blocks(lengths, rows, units) if scoring.masks == "row" else blocks(lengths, rows, BLOCK_TOKENS)
    for n, block in enumerate(pieces):
        parts.append((f"{n:06d}", (Consumed(consumed.take(block)), store, scorer, scoring.masks, origin)))
    table = case.run_parts(score_tokens, parts, lambda n: progress("scoring", n, len(parts)))
    found = losses_of_tokens(table)
    case.info["scored"] = {
        "origin": origin, "masks": scoring.masks, "budget_tokens": scoring.tokens, "tokens": chosen.tokens, "of_tokens": int(lengths.sum()),
        "context": scorer.context, "mean_nats": _mean(found), "chosen": described(chosen, size),
    }  # fmt: skip
    both = [found] if recorded is None else [recorded, found]
    return Losses(case.put(LOSSES, LOSSES.sorted(LOSSES.concat([t.replace_schema_metadata(LOSSES.schema.metadata) for t in both]))))


def select(plan: Plan, scoring: Scoring, consumed: Consumed, documents: Documents, findings: Findings) -> tuple[Chosen, NDArray[np.int64], NDArray[np.int64]]:
    """What to score: segments, or whole rows where documents see each other.

    Returns:
        The choice; the row number of each segment; the size of what was chosen from.
    """
    step, key, start = (consumed[name].to_numpy() for name in ("step", "doc_key", "doc_start"))
    size = (consumed["doc_stop"].to_numpy() - start).astype(np.int64)
    new = np.ones(len(step), bool)
    new[1:] = (np.diff(step) != 0) | (np.diff(consumed["sequence"].to_numpy()) != 0) | (np.diff(consumed["launch"].to_numpy()) != 0)
    first, row = np.flatnonzero(new), np.cumsum(new) - 1
    luck = chance(key[first], start[first])
    flagged = findings.filter(findings["primary"])["doc_key"].to_numpy()
    begin = plan.ranges.lookback.start if plan.ranges.lookback is not None else plan.window.start
    suspect = np.isin(key, flagged) & (step >= begin) & (step < plan.window.stop)
    at = np.searchsorted(documents["doc_key"].to_numpy(), key)
    source, _ = source_codes(documents)
    stratum, control = strata(source[at], size), (step < begin) & ~np.isin(key, flagged)
    if scoring.masks == "document":
        return choose(size, luck[row], suspect, stratum, control, scoring.tokens), row, size
    total, dirty = np.bincount(row, size).astype(np.int64), np.bincount(row, suspect) > 0
    return choose(total, luck, dirty, stratum[first], np.bincount(row, ~control) == 0, scoring.tokens), row, total


def row_blocks(lengths: NDArray[np.int64], rows: NDArray[np.int64], units: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Segments cut into blocks between rows."""
    numbers, place = np.unique(units[rows], return_inverse=True)
    total = np.bincount(place, lengths[rows]).astype(np.int64)
    return [rows[np.isin(place, block)] for block in blocks(total, np.arange(len(numbers)), BLOCK_TOKENS)]


def refuse_other_vocabulary(scorer: Scorer, model: Path, store: TokenStore) -> None:
    """Stop where the model's ids do not mean what the run's do, as far as both say.

    Raises:
        ConfigError: they do not.
    """
    own = getattr(store, "vocabulary", None)
    if own is None or own.kind == "byte":
        return
    if scorer.vocabulary < own.size:
        raise ConfigError(
            f"the model `{scorer.name}` knows {scorer.vocabulary} ids, the run's tokenizer {own.size}", hint="give a model with the run's own tokenizer"
        )
    path = model / "tokenizer.json"
    if model.is_dir() and path.exists():
        other = open_vocabulary(path)
        ids = np.arange(min(own.size, other.size, 4096), dtype=np.int64)
        same = sum(own.bytes_of(i) == other.bytes_of(i) for i in ids.tolist())
        if same < 0.99 * len(ids):
            raise ConfigError(
                f"the tokenizer of the model `{scorer.name}` is not the run's: {same} of the first {len(ids)} ids stand for the same bytes",
                hint="give a model with the run's own tokenizer",
            )


def _mean(losses: Losses) -> float | None:
    predicted = int(np.asarray(losses["predicted"].to_numpy()).sum())
    return round(float(np.asarray(losses["loss_sum"].to_numpy()).sum()) / predicted, 4) if predicted else None
