"""Losses that a trainer wrote down, joined to what each step consumed.

A record names a step and a row (`sequence`, or the trainer's `sample`) and gives the losses of the row's labels, of its
documents, or of the row as a whole; records per microbatch, rank or step are kept as coarse as they are and never spread
over documents. Several origins (the trainer's own, a checkpoint's, a reference model's) stay side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from forensics.errors import ConfigError, RunError, StoreError, nearest
from forensics.files import open_binary
from forensics.schemas import DOC_MASK, LOSSES, Consumed, Corpora, Losses

KNOWN = (
    "step",
    "sample",
    "sequence",
    "launch",
    "rank",
    "microbatch",
    "seq_start",
    "corpus",
    "document",
    "predicted",
    "loss_sum",
    "loss",
    "token_losses",
    "origin",
    "doc_key",
)
NEGATIVE_MASK = -100.0  # what trainers write for a label that carries no loss
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


def read_losses(paths: Sequence[Path], consumed: Consumed, corpora: Corpora | None = None, sampled: bool = False) -> Losses:
    """All records of these files that belong to the consumed steps.

    Args:
        paths: Parquet, JSON Lines (may be compressed), npz, or a folder of them.
        consumed: segments of the steps in question.
        corpora: names of data files, where records say `corpus`.
        sampled: `consumed` lacks rows on purpose, so that records without a row are no sign of an error.

    Raises:
        ConfigError: columns missing or unknown; StoreError: a file does not read; RunError: records that contradict what was consumed.
    """
    rows = Rows.of(consumed)
    parts: list[pa.Table] = []
    for path in files_of(paths):
        table = read_file(path)
        parts += [_joined(part, rows, corpora, path, sampled) for part in _by_form(table, path)]
    found = [p for p in parts if p.num_rows]
    if not found:
        return Losses(LOSSES.empty())
    return Losses(LOSSES.sorted(LOSSES.concat(found)))


def files_of(paths: Iterable[Path]) -> list[Path]:
    """The files of losses among these, folders opened."""
    out: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and _format(p) and (p.suffix != ".npz" or p.name.startswith("losses")))
            if not inside:
                raise StoreError(f"{path} holds no file of losses", hint="Parquet, JSON Lines or npz; the recorder writes losses-*.npz")
            out += inside
        elif path.exists():
            out.append(path)
        else:
            raise StoreError(f"the file of losses {path} does not exist")
    return out


def _format(path: Path) -> str | None:
    names = path.name.split(".")
    for suffix, kind in (("parquet", "parquet"), ("npz", "npz"), ("jsonl", "jsonl"), ("ndjson", "jsonl"), ("json", "jsonl")):
        if suffix in names[1:]:
            return kind
    return None


def read_file(path: Path) -> pa.Table:
    """A file of losses as it is; StoreError where it does not read."""
    kind = _format(path)
    try:
        if kind == "parquet":
            return pq.read_table(path, partitioning=None)
        if kind == "npz":
            with np.load(path, allow_pickle=False) as z:
                return pa.table({k: _array(z[k]) for k in z.files if z[k].ndim >= 1})
        if kind == "jsonl":
            import pyarrow.json as pj

            return pj.read_json(cast("IO[Any]", pa.BufferReader(_bytes(path))))
    except (pa.ArrowInvalid, OSError, ValueError, KeyError) as error:
        raise StoreError(f"the losses in {path} do not read ({error})", hint="Parquet, JSON Lines or npz with the columns of a run description") from error
    raise StoreError(f"{path} is no format of losses", hint="Parquet, JSON Lines or npz")


def _bytes(path: Path) -> pa.Buffer:
    with open_binary(path) as stream:
        return pa.py_buffer(stream.read())


def _array(x: NDArray[Any]) -> Any:
    if x.ndim == 2:
        flat = pa.array(np.ascontiguousarray(x).reshape(-1))
        offsets: Any = pa.array(np.arange(0, x.size + 1, x.shape[1], dtype=np.int32))
        return pa.ListArray.from_arrays(offsets, flat)
    return pa.array(x)


def _by_form(table: pa.Table, path: Path) -> list[pa.Table]:
    """The table by the form of its records, its columns checked."""
    names = table.column_names
    if "step" not in names:
        raise ConfigError(f"the losses in {path} have no column `step`{nearest('step', names)}")
    values = [n for n in ("token_losses", "loss_sum", "loss") if n in names]
    if not values:
        raise ConfigError(f"the losses in {path} have none of the columns `token_losses`, `loss_sum`, `loss`", hint=f"they have: {', '.join(names)}")
    if unknown := [n for n in names if n not in KNOWN and nearest(n, KNOWN)]:
        raise ConfigError(f"the losses in {path} have an unknown column `{unknown[0]}`{nearest(unknown[0], KNOWN)}")
    if "loss_sum" in names and "predicted" not in names and "token_losses" not in names:
        raise ConfigError(f"the losses in {path} give `loss_sum` without `predicted`", hint="write how many labels are in each sum")
    return [table]


@dataclass(frozen=True)
class Rows:
    """Consumed segments in order of (step, sequence, seq_start), and where each row begins.

    Attributes:
        key: int64 [rows, 2], step and sequence of each row, ascending; first: index of its first segment; launch: of the row.
        sample: int64 [rows], -1 where unknown.
        rank, microbatch: int64 [rows], -1 where unknown.
        seq_start, labels, document, doc_key: per segment.
    """

    step: I64
    sequence: I64
    launch: I64
    sample: I64
    rank: I64
    microbatch: I64
    first: I64
    seq_start: I64
    labels: I64
    doc_key: I64

    @classmethod
    def of(cls, consumed: Consumed) -> Rows:
        """Rows of a consumed table; where two launches ran a step, the later one's."""
        get = {
            n: integers(consumed, n) for n in ("launch", "step", "sequence", "seq_start", "sample", "rank", "microbatch", "doc_key", "doc_start", "doc_stop")
        }
        steps, at = np.unique(get["step"], return_inverse=True)
        newest = np.full(len(steps), -1, dtype=np.int64)
        np.maximum.at(newest, at, get["launch"])
        keep = get["launch"] == newest[at]
        order = np.flatnonzero(keep)[np.lexsort((get["seq_start"][keep], get["sequence"][keep], get["step"][keep]))]
        g = {n: v[order] for n, v in get.items()}
        new = np.ones(len(order), dtype=bool)
        new[1:] = (np.diff(g["step"]) != 0) | (np.diff(g["sequence"]) != 0)
        first = np.flatnonzero(new)
        labels = g["doc_stop"] - g["doc_start"] - (g["seq_start"] == 0)
        return cls(
            g["step"][first],
            g["sequence"][first],
            g["launch"][first],
            g["sample"][first],
            g["rank"][first],
            g["microbatch"][first],
            first,
            g["seq_start"],
            labels,
            g["doc_key"],
        )

    def segments(self, row: int) -> slice:
        """Segments of a row."""
        stop = self.first[row + 1] if row + 1 < len(self.first) else len(self.seq_start)
        return slice(int(self.first[row]), int(stop))

    def find(self, step: I64, within: I64, by: str) -> I64:
        """Row of each (step, sequence or sample), -1 where none."""
        have = self.sequence if by == "sequence" else self.sample
        order = np.lexsort((have, self.step))
        s, h = self.step[order], have[order]
        lo, hi = np.searchsorted(s, step, "left"), np.searchsorted(s, step, "right")
        out = np.full(len(step), -1, dtype=np.int64)
        width = int((hi - lo).max(initial=0))
        for k in range(width):
            at = np.minimum(lo + k, len(s) - 1)
            hit = (lo + k < hi) & (h[at] == within) & (out < 0)
            out[hit] = order[at[hit]]
        return out


def integers(table: pa.Table, name: str, fill: int = -1) -> I64:
    """A column as int64, nulls and a missing column as `fill`."""
    if name not in table.column_names:
        return np.full(table.num_rows, fill, dtype=np.int64)
    found: Any = table.column(name).cast(pa.int64(), safe=False)
    return np.asarray(found.fill_null(fill).to_numpy(), dtype=np.int64)


def _floats(table: pa.Table, name: str) -> F64:
    return np.asarray(pc.cast(table.column(name), pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


def _joined(table: pa.Table, rows: Rows, corpora: Corpora | None, path: Path, sampled: bool) -> pa.Table:
    if not len(rows.step):
        return LOSSES.empty()
    step = integers(table, "step")
    inside = np.isin(step, rows.step)
    if "launch" in table.column_names:
        launch_of = dict(zip(rows.step.tolist(), rows.launch.tolist(), strict=False))
        launch = integers(table, "launch")
        inside &= (launch < 0) | (launch == np.array([launch_of.get(s, -2) for s in step.tolist()], dtype=np.int64))
    table = table.filter(pa.array(inside))
    if not table.num_rows:
        return LOSSES.empty()
    step = integers(table, "step")
    by = "sequence" if "sequence" in table.column_names else "sample" if "sample" in table.column_names else None
    if by is None:
        return _coarse(table, rows)
    named = integers(table, by)
    row = rows.find(step, named, by)
    lost = (row < 0) & (named >= 0)
    if lost.any() and not sampled:
        k = int(np.flatnonzero(lost)[0])
        if lost.mean() > 0.05:
            raise RunError(
                f"the losses in {path} name {by} {named[k]} in step {step[k]}, which that step did not read ({100 * lost.mean():.0f} % of the records)",
                hint="check the numbering of steps and rows against `forensics dump`",
            )
    table = table.filter(pa.array(row >= 0))
    row = row[row >= 0]
    if not len(row):
        return LOSSES.empty()
    if "token_losses" in table.column_names:
        return _tokens(table, row, rows, path)
    if "document" in table.column_names or "doc_key" in table.column_names:
        return _documents(table, row, rows, corpora, path, sampled)
    if "seq_start" in table.column_names and "predicted" in table.column_names:
        return _placed(table, row, rows)
    return _whole_rows(table, row, rows)


def _origins(table: pa.Table) -> list[str]:
    if "origin" not in table.column_names:
        return ["recorded"] * table.num_rows
    return ["recorded" if v is None else str(v) for v in table.column("origin").cast(pa.string()).to_pylist()]


def _table(
    launch: I64, step: I64, sequence: I64 | None, seq_start: I64 | None, doc_key: I64 | None, predicted: I64, loss_sum: F64, origin: Sequence[str]
) -> pa.Table:
    n = len(step)
    return LOSSES.of(
        pa.table(
            {
                "launch": pa.array(launch, pa.int64()).cast(pa.int16()),
                "step": pa.array(step, pa.int64()),
                "sequence": pa.nulls(n, pa.int32()) if sequence is None else pa.array(sequence, pa.int64(), mask=sequence < 0).cast(pa.int32()),
                "seq_start": pa.nulls(n, pa.int32()) if seq_start is None else pa.array(seq_start, pa.int64()).cast(pa.int32()),
                "doc_key": pa.nulls(n, pa.int64()) if doc_key is None else pa.array(doc_key, pa.int64()),
                "predicted": pa.array(predicted, pa.int64()).cast(pa.int32()),
                "loss_sum": pa.array(loss_sum, pa.float64()),
                "origin": pa.array(list(origin), pa.string()),
            }
        )
    )


def _coarse(table: pa.Table, rows: Rows) -> pa.Table:
    """Records per microbatch, rank or step: sums where they are given, else means times the labels they cover."""
    step, rank, micro = integers(table, "step"), integers(table, "rank"), integers(table, "microbatch")
    labels = np.add.reduceat(rows.labels, rows.first)
    launch, count = np.zeros(len(step), dtype=np.int64), np.zeros(len(step), dtype=np.int64)
    for i in range(len(step)):
        use = rows.step == step[i]
        if rank[i] >= 0 and (rows.rank >= 0).any():
            use &= rows.rank == rank[i]
        if micro[i] >= 0 and (rows.microbatch >= 0).any():
            use &= rows.microbatch == micro[i]
        count[i], launch[i] = labels[use].sum(), rows.launch[use].max(initial=0)
    predicted = np.maximum(integers(table, "predicted"), 0) if "predicted" in table.column_names else count
    total = _floats(table, "loss_sum") if "loss_sum" in table.column_names else _floats(table, "loss") * predicted
    return _table(launch, step, None, None, None, predicted, total, _origins(table))


def _whole_rows(table: pa.Table, row: I64, rows: Rows) -> pa.Table:
    labels = np.add.reduceat(rows.labels, rows.first)[row]
    predicted = np.maximum(integers(table, "predicted"), 0) if "predicted" in table.column_names else labels
    total = _floats(table, "loss_sum") if "loss_sum" in table.column_names else _floats(table, "loss") * predicted
    single = np.diff(np.append(rows.first, len(rows.seq_start)))[row] == 1
    origin = _origins(table)
    at = rows.first[row]
    whole = _table(
        rows.launch[row][~single],
        rows.step[row][~single],
        rows.sequence[row][~single],
        None,
        None,
        predicted[~single],
        total[~single],
        [o for o, s in zip(origin, single, strict=True) if not s],
    )
    one = _table(
        rows.launch[row][single],
        rows.step[row][single],
        rows.sequence[row][single],
        rows.seq_start[at][single],
        rows.doc_key[at][single],
        predicted[single],
        total[single],
        [o for o, s in zip(origin, single, strict=True) if s],
    )
    return LOSSES.concat([whole, one])


def _placed(table: pa.Table, row: I64, rows: Rows) -> pa.Table:
    """Records that name the place in the row alone: the segment that begins there, where every record of the row fits one.

    A recorder splits rows at end-of-document ids; rows whose documents end otherwise are summed up and stay as coarse as a row.
    """
    owner = np.repeat(np.arange(len(rows.first)), np.diff(np.append(rows.first, len(rows.seq_start))))
    place, predicted = np.maximum(integers(table, "seq_start"), 0), np.maximum(integers(table, "predicted"), 0)
    span = int(max(rows.seq_start.max(initial=0), place.max(initial=0))) + 1
    have, asked = owner * span + rows.seq_start, row * span + place
    segment = np.maximum(np.searchsorted(have, asked, side="right") - 1, 0)
    fits = (have[segment] == asked) & (predicted <= rows.labels[segment])
    whole = np.bincount(row[~fits], minlength=len(rows.first))[row] > 0
    total = _floats(table, "loss_sum") if "loss_sum" in table.column_names else _floats(table, "loss") * predicted
    origin = np.array(_origins(table), dtype=object)
    at = segment[~whole]
    mine, kept = owner[at], ~whole
    fine = _table(
        rows.launch[mine], rows.step[mine], rows.sequence[mine], rows.seq_start[at], rows.doc_key[at], predicted[kept], total[kept], origin[kept].tolist()
    )
    if not whole.any():
        return fine
    groups, inverse = np.unique(row[whole], return_inverse=True)
    count = np.bincount(inverse, predicted[whole]).astype(np.int64)
    words = [str(origin[whole][np.flatnonzero(inverse == g)[0]]) for g in range(len(groups))]
    coarse = _table(
        rows.launch[groups], rows.step[groups], rows.sequence[groups], None, None, count, np.bincount(inverse, total[whole]).astype(np.float64), words
    )
    return LOSSES.concat([fine, coarse])


def _documents(table: pa.Table, row: I64, rows: Rows, corpora: Corpora | None, path: Path, sampled: bool) -> pa.Table:
    """Records per document of a row; a document that lies in a row twice takes its records in order, or by `seq_start`."""
    whole = "doc_key" in table.column_names
    document = integers(table, "doc_key" if whole else "document")
    if not whole and "corpus" in table.column_names and corpora is not None:
        document = document + (_corpus(table, corpora, path) << 40)
        whole = True
    place = integers(table, "seq_start")
    predicted = integers(table, "predicted")
    segment = np.full(len(row), -1, dtype=np.int64)
    for k in range(int(np.diff(np.append(rows.first, len(rows.seq_start))).max())):
        at = rows.first[row] + k
        last = np.append(rows.first, len(rows.seq_start))[row + 1]
        ok = (at < last) & (segment < 0)
        at = np.minimum(at, len(rows.seq_start) - 1)
        same = (rows.doc_key[at] if whole else rows.doc_key[at] & DOC_MASK) == document
        hit = ok & same & ((place < 0) | (place == rows.seq_start[at]))
        taken = _taken(segment, at, hit)
        segment[hit & ~taken] = at[hit & ~taken]
    missing = (segment < 0) & (predicted != 0)
    if missing.mean() > 0.05 and not sampled:
        k = int(np.flatnonzero(missing)[0])
        where = f"step {rows.step[row[k]]}, row {rows.sequence[row[k]]}"
        raise RunError(
            f"the losses in {path} name document {document[k] & DOC_MASK} in {where}, not held by that row ({100 * missing.mean():.0f} % of the records)",
            hint="check the numbering of documents, steps and rows against `forensics dump`",
        )
    use = segment >= 0
    segment, row, table = segment[use], row[use], table.filter(pa.array(use))
    count = np.where(predicted[use] >= 0, predicted[use], rows.labels[segment])
    total = _floats(table, "loss_sum") if "loss_sum" in table.column_names else _floats(table, "loss") * count
    return _table(rows.launch[row], rows.step[row], rows.sequence[row], rows.seq_start[segment], rows.doc_key[segment], count, total, _origins(table))


def _taken(segment: I64, at: I64, hit: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Candidates whose segment an earlier record of the same call already has, so that repeated documents are filled in order."""
    out = np.zeros(len(at), dtype=bool)
    where = np.flatnonzero(hit)
    if len(where):
        _, first = np.unique(at[where], return_index=True)
        late = np.ones(len(where), dtype=bool)
        late[first] = False
        out[where] = late | np.isin(at[where], segment[segment >= 0])
    return out


def _corpus(table: pa.Table, corpora: Corpora, path: Path) -> I64:
    column = table.column("corpus")
    if pa.types.is_integer(column.type):
        return integers(table, "corpus")
    numbers: dict[str, int] = {}
    for number, name, where in zip(
        corpora.column("corpus_id").to_pylist(), corpora.column("name").to_pylist(), corpora.column("path").to_pylist(), strict=True
    ):
        numbers |= dict.fromkeys((str(name), str(where), Path(str(where)).name, Path(str(where)).stem), int(number or 0))
    given = [str(v) for v in column.cast(pa.string()).to_pylist()]
    for value in sorted(set(given)):
        if value not in numbers and Path(value).name not in numbers:
            raise RunError(f"the losses in {path} name the data file `{value}`, which the run does not have{nearest(value, numbers)}")
    return np.array([numbers.get(v, numbers.get(Path(v).name, 0)) for v in given], dtype=np.int64)


def label_lists(table: pa.Table) -> tuple[F64, I64]:
    """All `token_losses` one behind the other, and where those of each record begin: float64 [labels], int64 [records + 1]; a null list holds none."""
    lists: Any = table.column("token_losses").combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    flat = pc.cast(pc.list_flatten(lists), pa.float64()).to_numpy(zero_copy_only=False)
    return np.asarray(flat, np.float64), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _tokens(table: pa.Table, row: I64, rows: Rows, path: Path) -> pa.Table:
    """Records per label, summed over the segments of their row; masked labels (-100) do not count."""
    flat, begin = label_lists(table)
    lengths = np.diff(begin)
    real = flat != NEGATIVE_MASK
    total = np.concatenate([[0.0], np.cumsum(np.where(real & np.isfinite(flat), flat, 0.0))])
    bad = np.concatenate([[0], np.cumsum(real & ~np.isfinite(flat))])
    count = np.concatenate([[0], np.cumsum(real)])
    parts = np.diff(np.append(rows.first, len(rows.seq_start)))[row]
    record = np.repeat(np.arange(len(row)), parts)
    segment = rows.first[row][record] + (np.arange(len(record)) - np.repeat(np.concatenate([[0], np.cumsum(parts)[:-1]]), parts))
    lo = np.maximum(rows.seq_start[segment] - 1, 0)
    hi = lo + rows.labels[segment]
    width = lengths[record]
    needed = np.zeros(len(row), dtype=np.int64)
    np.maximum.at(needed, record, hi)
    if (needed > lengths).any():
        k = int(np.flatnonzero(needed > lengths)[0])
        raise RunError(
            f"the losses in {path} give {lengths[k]} labels for row {rows.sequence[row[k]]} of step {rows.step[row[k]]}, which has {needed[k]}",
            hint="token_losses holds one number per label, -100 where masked",
        )
    hi = np.minimum(hi, width)
    a, b = begin[record] + lo, begin[record] + hi
    sums = np.where(bad[b] > bad[a], np.nan, total[b] - total[a])
    owner = row[record]
    origin = _origins(table)
    return _table(
        rows.launch[owner],
        rows.step[owner],
        rows.sequence[owner],
        rows.seq_start[segment],
        rows.doc_key[segment],
        count[b] - count[a],
        sums,
        [origin[i] for i in record],
    )
