"""Losses that a run wrote down while it trained, joined to what it consumed.

Formats (Parquet, JSON Lines, npz): `step`, one of `sample` or `sequence`, and one of

- `token_losses`: the losses of the row's labels;
- `document` (with `predicted` and `loss_sum` or `loss`), several rows a sequence in reading order; `seq_start` or
  `corpus` make it unambiguous where a document comes twice in a row;
- `predicted` and `loss_sum`, or `loss`, per row, or without `sample` and `sequence` per microbatch, rank or step.

A record that is coarser than a document stays what it is: its `doc_key` is null, never spread as if known. Numbers are
nats; NaN and infinity are kept as recorded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.errors import RunError, StoreError, nearest
from forensics.files import lines, open_binary
from forensics.schemas import DOC_BITS, DOC_MASK, LOSSES, TOKEN_LOSSES, Consumed, Corpora, Losses, TokenLosses

KNOWN = (
    "step",
    "sample",
    "sequence",
    "launch",
    "rank",
    "microbatch",
    "token_losses",
    "document",
    "predicted",
    "loss_sum",
    "loss",
    "origin",
    "corpus",
    "seq_start",
)
NOT_NATS = ("loss_bits", "bits_per_byte", "bpb", "bits", "ppl", "perplexity")
MOST_NATS = 40.0  # a mean above this is no loss in nats of any vocabulary in use


@dataclass(frozen=True)
class Recorded:
    """Loss sums, per-label losses where they were recorded, and what did not fit."""

    losses: Losses
    token_losses: TokenLosses | None
    notes: tuple[str, ...]


def read_recorded(paths: Sequence[Path], consumed: Consumed, corpora: Corpora, sampled: bool = False) -> Recorded:
    """All files' losses of the steps in `consumed`.

    Args:
        paths: files as described above; several origins may lie side by side.
        consumed: what the steps read, whole rows, CONSUMED order.
        corpora: to find a corpus by name.
        sampled: whether some rows of the steps are left out of `consumed`: their losses then fit nothing and are no sign of a fault.

    Raises:
        StoreError: a file that does not read, lacks its columns, or holds bits or perplexities.
        RunError: losses that do not fit the rows these steps read.
    """
    place = _Place(consumed, corpora)
    found: list[pa.Table] = []
    tokens: list[pa.Table] = []
    notes: list[str] = []
    for path in paths:
        table = _checked(_read(path), path)
        table = table.filter(pa.array(np.isin(table["step"].to_numpy(), place.steps)))
        if not table.num_rows:
            notes.append(f"{path.name} holds no losses of these steps")
            continue
        rows, labels, lost = _join(table, place, path)
        if lost and not sampled:
            notes.append(f"{lost:,} of {table.num_rows:,} losses of {path.name} fit no segment of these steps")
        if lost * 2 > table.num_rows and not sampled:
            raise RunError(
                f"{path}: {lost:,} of {table.num_rows:,} recorded losses fit no row that these steps read",
                hint="the losses may be of other steps, another launch or another order; `forensics verify` compares the order with the curve",
            )
        found.append(rows)
        if labels is not None:
            tokens.append(labels)
    table = LOSSES.sorted(LOSSES.concat(found))
    _check_unit(table, paths)
    return Recorded(Losses(table), TokenLosses(TOKEN_LOSSES.concat(tokens)) if tokens else None, tuple(notes))


def read_losses(paths: Sequence[Path], consumed: Consumed, corpora: Corpora, sampled: bool = False) -> Losses:
    """As `read_recorded`, the sums alone."""
    return read_recorded(paths, consumed, corpora, sampled).losses


class _Place:
    """Look-ups into `consumed`: rows by (step, sequence), segments by (row, document)."""

    def __init__(self, consumed: Consumed, corpora: Corpora) -> None:
        self.table = consumed
        self.launch = consumed["launch"].to_numpy().astype(np.int64)
        self.step = consumed["step"].to_numpy()
        self.sequence = consumed["sequence"].to_numpy().astype(np.int64)
        self.start = consumed["seq_start"].to_numpy().astype(np.int64)
        self.doc_key = consumed["doc_key"].to_numpy()
        self.length = consumed["doc_stop"].to_numpy() - consumed["doc_start"].to_numpy()
        self.steps = np.unique(self.step)
        first = np.ones(len(self.step), bool)
        first[1:] = (np.diff(self.step) != 0) | (np.diff(self.sequence) != 0) | (np.diff(self.launch) != 0)
        self.row_first = np.flatnonzero(first)
        self.row_of = np.cumsum(first) - 1
        self.row_key = _key(self.step[self.row_first], self.sequence[self.row_first])
        self.order = np.argsort(self.row_key, kind="stable")
        sample: Any = consumed["sample"]
        known = sample.null_count < len(sample)
        samples = sample.fill_null(-1).to_numpy()[self.row_first] if known else np.full(len(self.row_first), -1)
        self.sample_key = _key(self.step[self.row_first], samples)
        self.sample_order = np.argsort(self.sample_key, kind="stable")
        self.width = int((self.start + self.length).max(initial=1))
        self.corpora = {
            str(n).removesuffix(".bin").removesuffix(".idx"): i for i, n in zip(corpora["corpus_id"].to_pylist(), corpora["name"].to_pylist(), strict=True)
        }

    def rows(self, step: NDArray[np.int64], number: NDArray[np.int64], by_sample: bool) -> NDArray[np.int64]:
        """Row of each (step, sequence or sample); -1 where there is none. Where two launches read a step, the later one."""
        keys, order = (self.sample_key, self.sample_order) if by_sample else (self.row_key, self.order)
        ordered = keys[order]
        at = np.searchsorted(ordered, _key(step, number), "right") - 1
        hit = (at >= 0) & (ordered[np.maximum(at, 0)] == _key(step, number)) & (number >= 0)
        return np.where(hit, order[np.maximum(at, 0)] if len(order) else -1, -1)


def _key(step: NDArray[Any], number: NDArray[Any]) -> NDArray[np.int64]:
    return (step.astype(np.int64) << 31) | (number.astype(np.int64) & 0x7FFFFFFF)


def _join(table: pa.Table, place: _Place, path: Path) -> tuple[pa.Table, pa.Table | None, int]:
    """Rows of `losses`, rows of `token_losses` where there are, and how many records fit nothing."""
    names = table.column_names
    step = table["step"].to_numpy()
    origin = table["origin"] if "origin" in names else pa.array(["recorded"] * table.num_rows)
    if "sequence" not in names and "sample" not in names:
        return _coarse(table, place, step, origin), None, 0
    by_sample = "sequence" not in names
    number = table["sample" if by_sample else "sequence"].to_numpy().astype(np.int64)
    row = place.rows(step, number, by_sample)
    if "token_losses" in names:
        return _labels(table, place, row, origin, path)
    if "document" in names:
        return _documents(table, place, row, origin)
    ok = row >= 0
    return _whole_rows(table.filter(pa.array(ok)), place, row[ok], origin.filter(pa.array(ok))), None, int((~ok).sum())


def _sums(table: pa.Table, predicted: NDArray[np.int64]) -> NDArray[np.float64]:
    if "loss_sum" in table.column_names:
        return np.asarray(table["loss_sum"].to_numpy(), np.float64)
    return np.asarray(table["loss"].to_numpy(), np.float64) * predicted


def _table(place: _Place, segment: NDArray[np.int64], predicted: NDArray[np.int64], sums: NDArray[np.float64], origin: Any, **none: bool) -> pa.Table:
    rows = len(segment)
    return LOSSES.of({
        "launch": place.launch[segment].astype(np.int16), "step": place.step[segment], "sequence": place.sequence[segment].astype(np.int32),
        "seq_start": pa.nulls(rows, pa.int32()) if none.get("row") else place.start[segment].astype(np.int32),
        "doc_key": pa.nulls(rows, pa.int64()) if none.get("row") else place.doc_key[segment],
        "predicted": predicted.astype(np.int32), "loss_sum": sums, "origin": origin,
    })  # fmt: skip


def _whole_rows(table: pa.Table, place: _Place, row: NDArray[np.int64], origin: Any) -> pa.Table:
    segment = place.row_first[row]
    predicted = table["predicted"].to_numpy().astype(np.int64) if "predicted" in table.column_names else np.full(len(row), place.width - 1)
    return _table(place, segment, predicted, _sums(table, predicted), origin, row=True)


def _coarse(table: pa.Table, place: _Place, step: NDArray[np.int64], origin: Any) -> pa.Table:
    """Per microbatch, rank or step: summed up per step and origin."""
    first = (
        np.searchsorted(place.step, step) if (np.diff(place.step) >= 0).all() else np.array([int(np.flatnonzero(place.step == s)[0]) for s in step], np.int64)
    )
    predicted = table["predicted"].to_numpy().astype(np.int64) if "predicted" in table.column_names else np.ones(len(step), np.int64)
    launch, sums = place.launch[first].astype(np.int16), _sums(table, predicted)
    return LOSSES.of({"launch": launch, "step": step, "predicted": predicted.astype(np.int32), "loss_sum": sums, "origin": origin})


def _documents(table: pa.Table, place: _Place, row: NDArray[np.int64], origin: Any) -> tuple[pa.Table, None, int]:
    """Per document of a row: matched by document, and by place where it comes more than once in the row."""
    document = table["document"].to_numpy().astype(np.int64)
    corpus = _corpus(table, place)
    segment_doc = place.doc_key & DOC_MASK if corpus is None else place.doc_key
    wanted = document if corpus is None else (corpus << DOC_BITS) | document
    if "seq_start" in table.column_names:
        tie, segment_tie = table["seq_start"].to_numpy().astype(np.int64), place.start
    else:
        tie, segment_tie = _nth(row, wanted), _nth(place.row_of, segment_doc)
    left = np.lexsort((segment_tie, segment_doc, place.row_of))
    both = np.stack([place.row_of[left], segment_doc[left], segment_tie[left]], 1)
    segment = _lookup(both, np.stack([row, wanted, tie], 1))
    ok = (segment >= 0) & (row >= 0)
    segment = left[segment[ok]]
    kept = table.filter(pa.array(ok))
    predicted = (
        kept["predicted"].to_numpy().astype(np.int64)
        if "predicted" in table.column_names
        else np.maximum(place.length[segment] - (place.start[segment] == 0), 1)
    )
    return _table(place, segment, predicted, _sums(kept, predicted), origin.filter(pa.array(ok))), None, int((~ok).sum())


def _corpus(table: pa.Table, place: _Place) -> NDArray[np.int64] | None:
    if "corpus" not in table.column_names:
        return None
    names = [str(n).split("/")[-1].removesuffix(".bin").removesuffix(".idx") for n in table["corpus"].cast(pa.string()).to_pylist()]
    return np.array([place.corpora.get(n, int(n) if n.isdigit() else -1) for n in names], np.int64)


def _nth(row: NDArray[np.int64], value: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many earlier entries share row and value: int64 [n]."""
    order = np.lexsort((np.arange(len(row)), value, row))
    new = np.ones(len(row), bool)
    new[1:] = (np.diff(row[order]) != 0) | (np.diff(value[order]) != 0)
    start = np.maximum.accumulate(np.where(new, np.arange(len(row)), 0))
    out = np.empty(len(row), np.int64)
    out[order] = np.arange(len(row)) - start
    return out


def _lookup(known: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index of each wanted row among known ones (sorted); -1 where it is not."""
    kind = np.dtype([("a", np.int64), ("b", np.int64), ("c", np.int64)])
    left, right = (np.ascontiguousarray(x).view(kind).ravel() for x in (known, wanted))
    at = np.searchsorted(left, right)
    inside = np.minimum(at, max(len(left) - 1, 0))
    return np.where((at < len(left)) & (left[inside] == right), at, -1) if len(left) else np.full(len(right), -1)


def _labels(table: pa.Table, place: _Place, row: NDArray[np.int64], origin: Any, path: Path) -> tuple[pa.Table, pa.Table, int]:
    """Per label: cut into the row's segments; label i is the row's token i + 1."""
    lists: Any = table["token_losses"].combine_chunks()
    lists = pa.concat_arrays(lists.chunks) if isinstance(lists, pa.ChunkedArray) else lists
    bounds = lists.offsets.to_numpy().astype(np.int64)
    flat = lists.values.to_numpy(zero_copy_only=False).astype(np.float64)
    ends = np.append(place.row_first[1:], len(place.step))
    parts: list[tuple[int, int, int, int]] = []
    for i in np.flatnonzero(row >= 0).tolist():
        a, n = int(bounds[i]), int(bounds[i + 1] - bounds[i])
        for s in range(int(place.row_first[row[i]]), int(ends[row[i]])):
            start, stop = max(int(place.start[s]) - 1, 0), min(int(place.start[s] + place.length[s]) - 1, n)
            if stop > start:
                parts.append((s, a + start, a + stop, i))
    if not parts:
        raise StoreError(f"{path} holds no losses of any row these steps read")
    segment, begin, stop_at, record = (np.array(x, np.int64) for x in zip(*parts, strict=True))
    values = [flat[b:e] for b, e in zip(begin, stop_at, strict=True)]
    sums = np.array([float(v.sum()) for v in values])
    who = origin.take(pa.array(record))
    rows = _table(place, segment, stop_at - begin, sums, who)
    columns: dict[str, Any] = {name: rows[name] for name in ("launch", "step", "sequence", "seq_start", "doc_key", "origin")}
    labels = TOKEN_LOSSES.of({**columns, "values": pa.array([v.astype(np.float32) for v in values], pa.list_(pa.float32()))})
    return rows, labels, int((row < 0).sum())


def _read(path: Path) -> pa.Table:
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror or error})") from error
    try:
        if head == b"PAR1":
            import pyarrow.parquet as pq

            return pq.read_table(path, partitioning=None)
        if head[:2] == b"PK":
            with np.load(path, allow_pickle=False) as archive:
                return pa.table({k: archive[k] if archive[k].ndim == 1 else pa.array(list(archive[k])) for k in archive.files})
        with open_binary(path) as stream:
            return _json_lines(path, stream)
    except (pa.ArrowInvalid, OSError, ValueError, EOFError) as error:
        raise StoreError(
            f"{path} holds no losses that can be read: {' '.join(str(error).split())[:200]}",
            hint="Parquet, JSON Lines or npz with `step`, `sequence` or `sample`, and losses",
        ) from error


def _json_lines(path: Path, stream: Any) -> pa.Table:
    records = []
    for number, line in enumerate(lines(stream), 1):
        if line.strip():
            try:
                records.append(json.loads(line))
            except ValueError as error:
                raise StoreError(f"{path}, line {number}: no JSON ({error})") from error
    return pa.Table.from_pylist(records)


def _checked(table: pa.Table, path: Path) -> pa.Table:
    """Columns known, at least one kind of loss, steps whole numbers.

    Raises:
        StoreError: what is missing, with the nearest column.
    """
    names = table.column_names
    if wrong := [n for n in names if n.lower() in NOT_NATS]:
        raise StoreError(
            f"{path} holds `{wrong[0]}`, not a loss in nats", hint="convert: nats = bits x ln 2, or ln(perplexity); name the column `loss` or `loss_sum`"
        )
    if "step" not in names:
        raise StoreError(f"{path} lacks the column `step`{nearest('step', names)}")
    if not {"token_losses", "loss_sum", "loss"} & set(names):
        raise StoreError(f"{path} lacks a loss{nearest('loss', names)}", hint="one of `token_losses`, `loss_sum` with `predicted`, or `loss`")
    if "loss_sum" in names and "predicted" not in names:
        raise StoreError(f"{path} has `loss_sum` but not `predicted`, the number of labels in it")
    try:
        columns: dict[str, Any] = {n: table[n] for n in names if n in KNOWN}
        for n in ("step", "sample", "sequence", "document", "predicted", "seq_start"):
            if n in columns:
                columns[n] = columns[n].cast(pa.int64())
                if columns[n].null_count:
                    raise StoreError(f"{path}: the column `{n}` has {columns[n].null_count:,} empty values")
        for n in ("loss", "loss_sum"):
            if n in columns:
                columns[n] = columns[n].cast(pa.float64()).fill_null(float("nan"))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StoreError(f"{path}: {error}") from error
    return pa.table(columns)


def _check_unit(table: pa.Table, paths: Sequence[Path]) -> None:
    sums, predicted = table["loss_sum"].to_numpy(), table["predicted"].to_numpy()
    ok = np.isfinite(sums) & (predicted > 0)
    if ok.any() and (mean := float(sums[ok].sum() / predicted[ok].sum())) > MOST_NATS:
        raise StoreError(
            f"the recorded losses average {mean:.1f} a token, more than any vocabulary allows",
            hint=f"{paths[0].name}: are `loss` values sums, or perplexities? nats per token are expected",
        )
