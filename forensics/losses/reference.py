"""Losses of documents under a causal language model, through transformers.

Two ways of masking, because an unmasked pack is up to 1.5 nats a document away from the document alone:

- `document`: every segment is scored as if it stood alone. Segments of like length are packed into rows with a
  block-diagonal attention mask and positions that start again, which equals isolated scoring to 1e-4 nats.
- `row`: the row as the trainer fed it, attention across documents, for runs that train unmasked.

A segment's first token has no context in `document` mode and is not predicted; the sums say how many labels they hold.
Loads Hugging Face folders (safetensors) and GGUF files, from disk only. torch is the extra `model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.errors import ConfigError, ForensicsError, MissingDependency, StoreError
from forensics.files import digest, stamp
from forensics.schemas import LOSSES, TOKEN_LOSSES, Consumed, Losses, TokenLosses
from forensics.stage import stage

Mask = Literal["document", "row"]
MAX_BATCH_TOKENS = 1 << 14


class Gathering(Protocol):
    """The part of a token store that is needed here."""

    @property
    def fingerprint(self) -> str:
        """Changes when any file does."""
        ...

    def gather(self, consumed: pa.Table) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Tokens of segments end to end, and offsets."""
        ...


@dataclass
class Scorer:
    """A model ready to score token ids.

    Attributes:
        name: for `origin`: `reference:<name>`.
        context: longest row it takes, in tokens.
        vocabulary: number of ids it knows.
        batch_tokens: tokens per forward pass; halved when memory runs out.
    """

    name: str
    model: Any
    context: int
    vocabulary: int
    device: str
    batch_tokens: int
    fingerprint: str

    def token_losses(self, rows: NDArray[np.int64], positions: NDArray[np.int64], blocks: NDArray[np.int64]) -> NDArray[np.float32]:
        """Loss of every next token of each row, in nats.

        Args:
            rows: ids [n, length], padded with 0; positions: [n, length]; blocks: [n, length], which segment each
                token belongs to, -1 for padding; a token attends to earlier ones of its own block.

        Returns:
            [n, length - 1]; NaN where the next token belongs to another block or to padding.
        """
        import torch

        with torch.inference_mode():
            ids = torch.from_numpy(rows).to(self.device)
            block = torch.from_numpy(blocks).to(self.device)
            causal = torch.ones(rows.shape[1], rows.shape[1], dtype=torch.bool, device=self.device).tril()
            allowed = causal & (block[:, None, :] == block[:, :, None])
            dtype = next(self.model.parameters()).dtype
            bias = torch.zeros(allowed.shape, dtype=dtype, device=self.device).masked_fill(~allowed, torch.finfo(dtype).min)[:, None]
            logits = self.model(input_ids=ids, attention_mask=bias, position_ids=torch.from_numpy(positions).to(self.device), use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            out: NDArray[np.float32] = loss.view(len(rows), -1).cpu().numpy()
        inside = (blocks[:, 1:] == blocks[:, :-1]) & (blocks[:, 1:] >= 0)
        return np.where(inside, out, np.float32(np.nan))


def open_scorer(path: Path, dtype: Literal["float32", "bfloat16"] = "float32", device: str = "auto", batch_tokens: int = MAX_BATCH_TOKENS) -> Scorer:
    """A causal LM from a local folder or .gguf file.

    Raises:
        MissingDependency: torch is not installed.
        StoreError: the folder holds no causal model that transformers can load.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependency("torch", "model", "scoring documents with a model") from error
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    if not path.exists():
        raise StoreError(f"the model {path} does not exist", hint="give a folder with config.json and safetensors, or a .gguf file; nothing is downloaded")
    where, extra = (path.parent, {"gguf_file": path.name}) if path.suffix == ".gguf" else (path, {})
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        model = AutoModelForCausalLM.from_pretrained(where, dtype=getattr(torch, dtype), local_files_only=True, trust_remote_code=False, **extra)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise StoreError(f"{path} does not load as a causal model: {' '.join(str(error).split())[:300]}") from error
    model = model.eval().to(chosen)
    config = model.config
    context = int(getattr(config, "max_position_embeddings", 0) or getattr(config, "n_positions", 0) or 2048)
    files = sorted(path.glob("*.safetensors")) + [path / "config.json"] if path.is_dir() else [path]
    mark = digest([stamp(f) for f in files if f.exists()], dtype)
    return Scorer(path.stem if path.is_file() else path.name, model, context, int(config.vocab_size), chosen, batch_tokens, mark)


@dataclass(frozen=True)
class Packed:
    """Segments laid into rows.

    Attributes:
        rows, positions, blocks: [n, length]; segment: [n, length] index of the segment of each token, -1 padding.
    """

    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    blocks: NDArray[np.int64]


def pack(tokens: NDArray[Any], offsets: NDArray[np.int64], length: int) -> Iterator[Packed]:
    """Segments, cut to `length` at most, packed first-fit in decreasing length into rows of `length` tokens.

    Args:
        tokens, offsets: flat ids and [n + 1] bounds; length: tokens per row.

    Yields:
        One row at a time; `blocks` holds the number of the piece as `segment * 2**20 + piece`.
    """
    pieces = []
    for n in range(len(offsets) - 1):
        for k, start in enumerate(range(int(offsets[n]), int(offsets[n + 1]), length)):
            stop = min(start + length, int(offsets[n + 1]))
            if stop - start > 1:
                pieces.append((stop - start, n, k, start))
    pieces.sort(key=lambda p: (-p[0], p[1], p[2]))
    while pieces:
        free, row, left = length, [], []
        for piece in pieces:
            if piece[0] <= free:
                row.append(piece)
                free -= piece[0]
            else:
                left.append(piece)
        pieces = left
        yield _row(tokens, row)


def _row(tokens: NDArray[Any], row: list[tuple[int, int, int, int]]) -> Packed:
    ids = np.concatenate([np.asarray(tokens[start : start + size], np.int64) for size, _, _, start in row])
    positions = np.concatenate([np.arange(size) for size, _, _, _ in row])
    blocks = np.concatenate([np.full(size, n * (1 << 20) + k) for size, n, k, _ in row])
    return Packed(ids[None], positions[None], blocks[None])


def score_segments(
    scorer: Scorer, tokens: NDArray[Any], offsets: NDArray[np.int64], progress: Callable[[int], None] | None = None
) -> list[NDArray[np.float32]]:
    """Per-label losses of every segment as if it stood alone.

    A segment longer than the model's context is scored in pieces; the first token of each piece is not predicted.

    Returns:
        For each segment float32 [length - pieces], in order; empty for segments of fewer than two tokens.

    Raises:
        ConfigError: ids beyond the model's vocabulary.
    """
    if len(tokens) and int(tokens.max()) >= scorer.vocabulary:
        raise ConfigError(
            f"the data hold token id {int(tokens.max())}, the model `{scorer.name}` knows {scorer.vocabulary} ids",
            hint="give a model with the run's own tokenizer",
        )
    longest = int(np.diff(offsets).max()) if len(offsets) > 1 else 0
    length = max(2, min(scorer.context, longest))
    found: list[dict[int, NDArray[np.float32]]] = [{} for _ in range(len(offsets) - 1)]
    done = 0
    waiting: list[Packed] = []
    for row in pack(tokens, offsets, length):
        waiting.append(row)
        if (len(waiting) + 1) * length > scorer.batch_tokens:
            done += _flush(scorer, waiting, found)
            waiting = []
            if progress:
                progress(done)
    _flush(scorer, waiting, found)
    return [np.concatenate([f[k] for k in sorted(f)]) if f else np.zeros(0, np.float32) for f in found]


def _flush(scorer: Scorer, waiting: list[Packed], found: list[dict[int, NDArray[np.float32]]]) -> int:
    """Score the waiting rows and hand each piece its losses; on lack of memory in halves."""
    if not waiting:
        return 0
    width = max(p.rows.shape[1] for p in waiting)
    rows, positions, blocks = (np.full((len(waiting), width), fill, np.int64) for fill in (0, 0, -1))
    for n, p in enumerate(waiting):
        k = p.rows.shape[1]
        rows[n, :k], positions[n, :k], blocks[n, :k] = p.rows, p.positions, p.blocks
    try:
        losses = scorer.token_losses(rows, positions, blocks)
    except (RuntimeError, MemoryError) as error:
        if "memory" not in str(error).lower() and not isinstance(error, MemoryError):
            raise
        if len(waiting) == 1:
            raise ForensicsError("the model does not fit into memory with a single row", hint="use --dtype bfloat16, a smaller model, or a GPU") from error
        scorer.batch_tokens = max(width, scorer.batch_tokens // 2)
        half = len(waiting) // 2
        return _flush(scorer, waiting[:half], found) + _flush(scorer, waiting[half:], found)
    for n in range(len(waiting)):
        own = blocks[n]
        for block in np.unique(own[own >= 0]):
            at = np.flatnonzero(own == block)
            found[int(block) >> 20][int(block) & ((1 << 20) - 1)] = losses[n, at[0] : at[-1]]
    return int((blocks >= 0).sum())


def score_rows(scorer: Scorer, rows: NDArray[np.int64], progress: Callable[[int], None] | None = None) -> NDArray[np.float32]:
    """Per-label losses of whole rows, attention across documents: [n, width - 1].

    Raises:
        ConfigError: rows longer than the model's context, or ids beyond its vocabulary.
    """
    if rows.shape[1] - 1 > scorer.context:
        raise ConfigError(
            f"rows of {rows.shape[1] - 1} tokens do not fit the context of {scorer.context} of `{scorer.name}`", hint="score with document masks instead"
        )
    if rows.size and int(rows.max()) >= scorer.vocabulary:
        raise ConfigError(
            f"the data hold token id {int(rows.max())}, the model `{scorer.name}` knows {scorer.vocabulary} ids",
            hint="give a model with the run's own tokenizer",
        )
    out, at = [], 0
    while at < len(rows):
        some = np.ascontiguousarray(rows[at : at + max(1, scorer.batch_tokens // rows.shape[1])])
        positions = np.broadcast_to(np.arange(rows.shape[1]), some.shape).copy()
        try:
            out.append(scorer.token_losses(some, positions, np.zeros(some.shape, np.int64)))
        except (RuntimeError, MemoryError) as error:
            if len(some) == 1 or ("memory" not in str(error).lower() and not isinstance(error, MemoryError)):
                raise
            scorer.batch_tokens //= 2
            continue
        at += len(some)
        if progress:
            progress(at * rows.shape[1])
    return np.concatenate(out) if out else np.zeros((0, rows.shape[1] - 1), np.float32)


@stage(TOKEN_LOSSES, version=1)
def score_tokens(consumed: Consumed, store: Gathering, scorer: Scorer, masks: Mask, origin: str) -> TokenLosses:
    """Losses of the labels of segments.

    Args:
        consumed: segments to score; with masks `row` all segments of each row, in order.
        store: reads their tokens.
        scorer: the model.
        masks: `document`: each segment alone, its first token is not predicted; `row`: each row as one text.
        origin: as the table says it.

    Returns:
        A row per segment; where rows or segments exceed the model's context they are scored in pieces and the first label of each piece is NaN.
    """
    tokens, offsets = store.gather(consumed)
    size = np.diff(offsets)
    if masks == "document":
        found = score_segments(scorer, tokens, offsets)
        opens = (np.asarray(consumed["seq_start"].to_numpy()) == 0).tolist()  # whose first token is no label; elsewhere it is one without a context
        values = [_placed(v, n, scorer)[int(first) :] for v, n, first in zip(found, size.tolist(), opens, strict=True)]
    else:
        step, sequence, launch = (consumed[name].to_numpy() for name in ("step", "sequence", "launch"))
        new = np.ones(len(step), bool)
        new[1:] = (np.diff(step) != 0) | (np.diff(sequence) != 0) | (np.diff(launch) != 0)
        bounds = np.append(offsets[:-1][new], offsets[-1])
        rows = score_segments(scorer, tokens, bounds)
        flat = np.concatenate([np.zeros(0, np.float32), *(_placed(v, int(n), scorer) for v, n in zip(rows, np.diff(bounds).tolist(), strict=True))])
        values = [flat[a + first : b] for a, b, first in zip(offsets[:-1].tolist(), offsets[1:].tolist(), new.tolist(), strict=True)]
    return token_table(consumed, values, origin)


def _placed(values: NDArray[np.float32], length: int, scorer: Scorer) -> NDArray[np.float32]:
    """Losses by token [length]: NaN for the first token of each piece."""
    out = np.full(length, np.nan, np.float32)
    if len(values):
        out[np.arange(length) % min(scorer.context, length) != 0] = values
    return out


def losses_of_tokens(table: TokenLosses) -> Losses:
    """Sums and numbers of the known losses of each row."""
    lists: Any = table["values"].combine_chunks()
    flat = np.asarray(lists.flatten().to_numpy(zero_copy_only=False), np.float64)
    ends = np.cumsum(np.asarray(lists.value_lengths().to_numpy(zero_copy_only=False), np.int64))
    known = np.isfinite(flat)
    total, count = (np.concatenate([[0], np.cumsum(x)]) for x in (np.where(known, flat, 0.0), known.astype(np.int64)))
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    return Losses(
        LOSSES.of(
            {
                **{name: table[name] for name in ("launch", "step", "sequence", "seq_start", "doc_key", "origin")},
                "predicted": (count[ends] - count[starts]).astype(np.int32),
                "loss_sum": total[ends] - total[starts],
            }
        )
    )


def token_table(consumed: Consumed, values: list[NDArray[np.float32]], origin: str) -> TokenLosses:
    """Per-label losses of the segments as a table."""
    ends: Any = pa.array(np.cumsum([0, *(len(v) for v in values)], dtype=np.int32))
    flat: Any = pa.array(np.concatenate([np.zeros(0, np.float32), *values]))
    return TokenLosses(
        TOKEN_LOSSES.of(
            {
                **{name: consumed[name] for name in ("launch", "step", "sequence", "seq_start", "doc_key")},
                "values": pa.ListArray.from_arrays(ends, flat),
                "origin": [origin] * len(values),
            }
        )
    )
