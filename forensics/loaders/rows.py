"""Whole sequences as the model saw them: tokens, loss mask and position ids of the rows of a `consumed` table.

Follows `_get_ltor_masks_and_position_ids` and `__getitem__` of `megatron/core/datasets/gpt_dataset.py` (0.5 to 0.19),
which most trainers share in this part: the model gets a row without its last token, its labels are the row without its
first one, and options silence or restart positions at the end-of-document token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.errors import RunError
from forensics.run import RunSpec
from forensics.stores.base import RunStore, TokenStore
from forensics.stores.vocab import Vocabulary

PAD = -1
END_NAMES = (b"<|endoftext|>", b"<|end_of_text|>", b"</s>", b"<eod>", b"<|eod|>", b"<eos>", b"<|eos|>", b"<EOD>", b"<|im_end|>")
TOKENS_AT_ONCE = 1 << 22  # larger blocks spend their time in page faults


@dataclass(frozen=True)
class View:
    """How a launch shows its rows to the model.

    Attributes:
        width: tokens read per row.
        extra: 1 where the last token of a row is a label only, else 0.
        eod: end-of-document id, None where not known.
        pad: id that is shown as 0 and not scored; -1 where only padding is.
        eod_mask_loss: whether labels after an end of document do not count.
        reset_position_ids: whether positions restart after an end of document.
        other_positions: whether positions follow a rule that is not reproduced.
        notes: what is not reproduced, and why.
    """

    width: int
    extra: int = 1
    eod: int | None = None
    pad: int = PAD
    eod_mask_loss: bool = False
    reset_position_ids: bool = False
    other_positions: bool = False
    notes: tuple[str, ...] = ()


def end_of_document(vocabulary: Vocabulary | None) -> int | None:
    """The id that ends a document, where the tokenizer has exactly one that is called so."""
    if vocabulary is None:
        return None
    named = {vocabulary.bytes_of(int(token)): int(token) for token in np.flatnonzero(vocabulary.special)}
    return next((named[name] for name in END_NAMES if name in named), None)


def view_of(run: RunSpec, launch: int, store: TokenStore, row_width: int | None) -> View:
    """How a launch of any trainer shows its rows, from its arguments.

    Args:
        run: the description.
        launch: which launch.
        store: the run's data, for the tokenizer.
        row_width: tokens read per row, as the table `launches` gives it.

    Raises:
        RunError: the width of a row is not known.
    """
    args = run.launches[launch].args
    length = args.get("seq_length")
    given = row_width if row_width is not None else length
    if given is None:
        raise RunError("the length of a sequence is not known", hint="give `args.seq_length`")
    width = int(given)
    extra = int(length is not None and width == int(length) + 1)
    wanted = {name: _on(args.get(name)) for name in ("eod_mask_loss", "reset_position_ids", "inter_document_masking")}
    notes = []
    eod = args.get("eod_token_id")
    if eod is None and any(wanted.values()):
        eod = end_of_document(getattr(store, "vocabulary", None))
        if eod is None:
            notes.append("the end-of-document id is not known (no tokenizer, no `args.eod_token_id`): what depends on it is left out")
    if wanted["inter_document_masking"]:
        notes.append("inter_document_masking lays positions out by a rule that is not reproduced: position ids are left out")
    pad = args.get("pad_token_id")
    return View(
        width=width,
        extra=extra,
        eod=None if eod is None else int(eod),
        pad=PAD if pad is None else int(pad),
        eod_mask_loss=wanted["eod_mask_loss"],
        reset_position_ids=wanted["reset_position_ids"],
        other_positions=wanted["inter_document_masking"],
        notes=tuple(notes),
    )


def _on(value: object) -> bool:
    return value is True or str(value).strip().lower() in ("true", "1")


@dataclass(frozen=True)
class RowBlock:
    """Some sequences, whole; arrays of `n` rows.

    Attributes:
        segments: the `consumed` rows they are made of.
        first: int64 [n], row of `segments` with which each sequence begins.
        launch, step, sequence: int64 [n].
        sample, rank, microbatch: int64 [n], -1 where not known.
        tokens: int32 or int64 [n, width], padded with -1.
        lengths: int64 [n], tokens read.
    """

    segments: pa.Table
    first: NDArray[np.int64]
    launch: NDArray[np.int64]
    step: NDArray[np.int64]
    sequence: NDArray[np.int64]
    sample: NDArray[np.int64]
    rank: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    tokens: NDArray[Any]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.first)


def row_starts(consumed: pa.Table) -> NDArray[np.int64]:
    """Rows of a `consumed` table with which a sequence begins: int64."""
    keys = [consumed.column(name).to_numpy() for name in ("launch", "step", "sequence")]
    change = np.ones(consumed.num_rows, np.bool_)
    change[1:] = False
    for key in keys:
        change[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(change)


def rows_of(consumed: pa.Table, store: RunStore, width: int) -> Iterator[RowBlock]:
    """The sequences of a `consumed` table, some at a time.

    Args:
        consumed: in its own order.
        store: the run's data.
        width: tokens per row; a row never holds more.
    """
    starts = row_starts(consumed)
    per_block = max(1, TOKENS_AT_ONCE // max(1, width))
    for begin in range(0, len(starts), per_block):
        first = starts[begin : begin + per_block]
        stop = int(starts[begin + per_block]) if begin + per_block < len(starts) else consumed.num_rows
        yield _block(consumed.slice(int(first[0]), stop - int(first[0])), first - first[0], store, width)


def _block(segments: pa.Table, first: NDArray[np.int64], store: RunStore, width: int) -> RowBlock:
    place = segments.column("seq_start").to_numpy().astype(np.int64)
    length = segments.column("doc_stop").to_numpy() - segments.column("doc_start").to_numpy()
    row = np.zeros(segments.num_rows, np.int64)
    row[first[1:]] = 1
    row = np.cumsum(row)
    if segments.num_rows and int((place + length).max()) > width:
        bad = int(np.argmax(place + length))
        raise RunError(
            f"step {segments.column('step')[bad]}, row {segments.column('sequence')[bad]} holds {int((place + length)[bad])} tokens, a row has {width}"
        )
    dtype = np.int64 if store.dtype_of(segments).itemsize > 4 else np.int32
    lengths = np.bincount(row, weights=length, minlength=len(first)).astype(np.int64)
    full = int(lengths.min(initial=width)) == width and bool(np.all(place[first] == 0))
    tokens = np.empty((len(first), width), dtype) if full else np.full((len(first), width), PAD, dtype)
    store.gather_into(segments, tokens.reshape(-1), row * width + place)
    columns = {name: _column(segments, name)[first] for name in ("launch", "step", "sequence", "sample", "rank", "microbatch")}
    return RowBlock(segments, first, tokens=tokens, lengths=lengths, **columns)


def _column(table: pa.Table, name: str) -> NDArray[np.int64]:
    column: Any = table.column(name)
    return np.asarray((column.fill_null(-1) if column.null_count else column).to_numpy(), np.int64)


def loss_mask(tokens: NDArray[Any], view: View) -> NDArray[np.uint8] | None:
    """1 where the label of a position counts, uint8 [n, positions]; None where that is not known."""
    if view.eod_mask_loss and view.eod is None:
        return None
    shown, labels = _cut(tokens, view)
    keep = np.asarray((labels != PAD) & (labels != view.pad))
    if view.eod_mask_loss:
        keep &= shown != view.eod
    return keep.astype(np.uint8)


def _cut(tokens: NDArray[Any], view: View) -> tuple[NDArray[Any], NDArray[Any]]:
    """What the model gets and what it has to predict; without an extra token the last position has no label."""
    if view.extra:
        return tokens[:, :-1], tokens[:, 1:]
    labels = np.roll(tokens, -1, axis=1)
    labels[:, -1] = PAD
    return tokens, labels


def position_ids(tokens: NDArray[Any], view: View) -> NDArray[np.int32] | None:
    """Position of each token as the model counts, int32 [n, positions]; None where that is not known."""
    if view.other_positions or (view.reset_position_ids and view.eod is None):
        return None
    shown, _ = _cut(tokens, view)
    plain = np.broadcast_to(np.arange(shown.shape[1], dtype=np.int32), shown.shape)
    if not view.reset_position_ids:
        return plain.copy()
    begin = np.zeros(shown.shape, np.int32)
    begin[:, 1:] = np.where(shown[:, :-1] == view.eod, plain[:, 1:], 0)
    return np.asarray(plain - np.maximum.accumulate(begin, axis=1), np.int32)
