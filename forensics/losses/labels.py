"""Recorded losses label by label, of the documents that a report shows: what its heat map of a text is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from forensics.losses.difficulty import I64
from forensics.losses.recorded import NEGATIVE_MASK, Rows, files_of, integers, label_lists, read_file
from forensics.schemas import TOKEN_LOSSES, Consumed, TokenLosses

MOST_SEGMENTS = 2000


def recorded_labels(paths: Sequence[Path], consumed: Consumed, doc_keys: I64, most: int = MOST_SEGMENTS) -> TokenLosses:
    """Losses of the labels of some documents, where the records hold them; of each document the first segments count.

    Args:
        paths: files of losses; those without `token_losses` are passed over.
        consumed: segments of the steps in question.
        doc_keys: the documents.
        most: segments.

    Returns:
        A row per segment; NaN where a label carried no loss.
    """
    rows = Rows.of(consumed)
    owner = np.repeat(np.arange(len(rows.first)), np.diff(np.append(rows.first, len(rows.seq_start))))
    wanted = np.flatnonzero(np.isin(rows.doc_key, doc_keys) & (rows.labels > 0))[:most]
    parts = []
    for path in files_of(paths) if len(wanted) else []:
        if path.suffix == ".parquet" and "token_losses" not in pq.read_schema(path).names:
            continue
        table = read_file(path)
        by = next((n for n in ("sequence", "sample") if n in table.column_names), None)
        if "token_losses" in table.column_names and by is not None:
            parts += _labels(table, by, rows, owner, wanted)
    return TokenLosses(TOKEN_LOSSES.sorted(TOKEN_LOSSES.concat(parts)) if parts else TOKEN_LOSSES.empty())


def _labels(table: pa.Table, by: str, rows: Rows, owner: I64, wanted: I64) -> list[TokenLosses]:
    table = table.filter(pa.array(np.isin(integers(table, "step"), rows.step[owner[wanted]])))
    record = rows.find(integers(table, "step"), integers(table, by), by)
    origin = np.array(table["origin"].to_pylist() if "origin" in table.column_names else ["recorded"] * table.num_rows, dtype=object)
    found, begin = label_lists(table)
    flat = np.where(found == NEGATIVE_MASK, np.nan, found).astype(np.float32)
    out = []
    for name in sorted(set(origin.tolist())):
        at = np.full(len(rows.first), -1, np.int64)
        mine = (origin == name) & (record >= 0)
        at[record[mine]] = np.flatnonzero(mine)
        have = wanted[at[owner[wanted]] >= 0]
        low = begin[at[owner[have]]] + np.maximum(rows.seq_start[have] - 1, 0)
        values = [flat[a : a + n] for a, n in zip(low.tolist(), rows.labels[have].tolist(), strict=True)]
        out.append(_table(rows, owner[have], have, values, str(name)))
    return out


def _table(rows: Rows, row: I64, segment: I64, values: list[NDArray[np.float32]], origin: str) -> TokenLosses:
    ends: Any = pa.array(np.cumsum([0, *(len(v) for v in values)], dtype=np.int32))
    columns: dict[str, Any] = {
        "launch": rows.launch[row].astype(np.int16),
        "step": rows.step[row],
        "sequence": rows.sequence[row].astype(np.int32),
        "seq_start": rows.seq_start[segment].astype(np.int32),
        "doc_key": rows.doc_key[segment],
        "values": pa.ListArray.from_arrays(ends, pa.array(np.concatenate([np.zeros(0, np.float32), *values]))),
        "origin": [origin] * len(values),
    }
    return TokenLosses(TOKEN_LOSSES.of(columns))
