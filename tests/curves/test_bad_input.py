"""Damaged, odd and mixed logs through the command: exit code, a message with file and place, good records kept."""

from __future__ import annotations

import json
import math
import re
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from forensics.cli.app import main
from forensics.curves.read import read_logs
from forensics.errors import ForensicsError
from tests.curves.make import loss


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """`forensics curves ... -o case`: exit code, standard error, (step, value) of the training loss."""

    def call(*words: str | Path) -> tuple[int, str, list[tuple[int, float]]]:
        case = tmp_path / "case"
        monkeypatch.setattr(sys, "argv", ["forensics", "curves", *map(str, words), "-o", str(case)])
        with pytest.raises(SystemExit) as end:
            main()
        table = case / "tables" / "metrics.parquet"
        rows = pq.read_table(table).to_pylist() if table.exists() else []
        return int(end.value.code or 0), capsys.readouterr().err, [(r["step"], r["value"]) for r in rows if r["metric"] == "train_loss"]

    return call


def lines(y: np.ndarray, first: int = 1) -> str:
    return "".join(json.dumps({"step": first + i, "loss": float(v)}) + "\n" for i, v in enumerate(y))


def put(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("empty.log", b"", "is empty"),
        ("junk.log", bytes(range(256)) * 40, "is binary and no known log"),
        ("prose.txt", b"it was a dark and stormy night\n" * 30, "no known log format"),
        ("head.csv", b"step,loss\n", "holds no record"),
    ],
)
def test_what_is_no_log_is_refused_by_name(tmp_path: Path, command, name: str, data: bytes, says: str) -> None:  # type: ignore[no-untyped-def]
    code, said, rows = command(put(tmp_path / name, data))
    assert code == 1 and says in said and name in said and not rows


def test_one_point_is_a_run_of_which_nothing_can_be_said(tmp_path: Path, command) -> None:  # type: ignore[no-untyped-def]
    code, _, rows = command(put(tmp_path / "a.jsonl", lines(np.array([2.5]))))
    assert code == 0 and rows == [(1, 2.5)]


def test_a_wrong_extension_does_not_matter(tmp_path: Path, command) -> None:  # type: ignore[no-untyped-def]
    code, said, rows = command(put(tmp_path / "a.parquet", lines(loss(50))))
    assert code == 0 and "jsonl" in said and len(rows) == 50


def test_steps_that_come_late_or_twice_are_put_in_order_and_counted(tmp_path: Path, command) -> None:  # type: ignore[no-untyped-def]
    rows = [(s, 3 - s / 100) for s in range(1, 31)]
    rows[10], rows[11] = rows[11], rows[10]
    text = "".join(json.dumps({"step": s, "loss": v}) + "\n" for s, v in [*rows[:20], (20, 9.0), *rows[20:]])
    code, said, got = command(put(tmp_path / "a.jsonl", text))
    assert code == 0 and [s for s, _ in got] == list(range(1, 31)) and dict(got)[20] == 9.0 and "logged more than once" in said


def test_nan_and_infinity_are_kept_as_logged(tmp_path: Path, command) -> None:  # type: ignore[no-untyped-def]
    y = loss(200)
    y[100], y[150] = math.nan, math.inf
    code, _, got = command(put(tmp_path / "a.jsonl", lines(y)), "--fail-on", "nonfinite")
    assert code == 3 and math.isnan(dict(got)[101]) and dict(got)[151] == math.inf


def test_cells_that_hold_no_number_are_counted_with_their_place(tmp_path: Path, command) -> None:  # type: ignore[no-untyped-def]
    body = [f"{i},{3 - i / 100:.3f},1.0,warm" for i in range(1, 41)]
    body[4], body[5], body[9] = "5,n/a,1.0,cold", "6,broken,1.0,cold", "ten,2.9,1.0,cold"
    path = put(tmp_path / "a.csv", "step,loss,grad_norm,phase\n" + "\n".join(body) + "\n")
    code, said, got = command(path)
    assert code == 0 and [s for s, _ in got] == [s for s in range(1, 41) if s not in (5, 6, 10)]
    assert "a.csv:6: column `loss` holds no number here, but 'n/a'; it is left out (2 times)" in said
    assert "a.csv:11: column `step` holds no number here, but 'ten'; its record is left out (1 times)" in said
    assert "phase" not in said


def test_a_column_whose_first_cell_is_no_number_is_read_all_the_same(tmp_path: Path, command) -> None:  # type: ignore[no-untyped-def]
    code, said, got = command(put(tmp_path / "a.csv", "step,loss\n1,n/a\n" + "".join(f"{i},{3 - i / 100}\n" for i in range(2, 40))))
    assert code == 0 and len(got) == 38 and "a.csv:2: column `loss`" in said


def test_a_mapped_name_that_no_log_holds_is_an_error_with_the_nearest(tmp_path: Path, command) -> None:  # type: ignore[no-untyped-def]
    path = put(tmp_path / "a.csv", "step,train/ce\n" + "".join(f"{i},{3 - i / 100}\n" for i in range(1, 40)))
    code, said, _ = command(path, "--column", "train/cee=train_loss")
    assert code == 2 and "no log holds a column `train/cee`; did you mean `train/ce`?" in said
    code, _, got = command(path, "--column", "train/ce=train_loss")
    assert code == 0 and len(got) == 39


def test_a_format_that_the_file_has_not_is_said_with_the_one_it_looks_like(tmp_path: Path, command) -> None:  # type: ignore[no-untyped-def]
    path = put(tmp_path / "a.csv", "step,loss\n" + "".join(f"{i},{3 - i / 100}\n" for i in range(1, 40)))
    code, said, _ = command(path, "--source", "wandb")
    assert code == 1 and "a.csv was to be read as wandb, but looks like csv" in said


def test_two_runs_in_one_file_are_told_apart_and_one_can_be_picked(tmp_path: Path, command) -> None:  # type: ignore[no-untyped-def]
    path = put(tmp_path / "a.jsonl", lines(loss(400, seed=1)) + lines(loss(300, seed=2) + 0.2))
    code, said, got = command(path)
    assert code == 0 and len(got) == 700 and "a.jsonl:401: the steps start over from 1 with other losses" in said
    code, _, got = command(path, "--only", "run-2")
    assert code == 0 and len(got) == 300
    code, said, _ = command(path, "--only", "run2")
    assert code == 2 and "did you mean `run-2`?" in said


def test_a_run_that_starts_over_with_the_same_losses_is_one_run(tmp_path: Path, command) -> None:  # type: ignore[no-untyped-def]
    y = loss(400)
    code, said, got = command(put(tmp_path / "a.jsonl", lines(y[:100]) + lines(y)))
    assert code == 0 and len(got) == 500 and "another run" not in said
    code, said, got = command(put(tmp_path / "b.jsonl", lines(y[:300]) + lines(y[200:] + 0.1, 201)))
    assert code == 0 and "another run" not in said


def test_a_truncated_event_file_keeps_its_whole_records(tmp_path: Path, command) -> None:  # type: ignore[no-untyped-def]
    from tests.conformance.test_metric_sources import event

    whole = b"".join(event(1.6e9 + i, i, loss=3.0 - i / 100) for i in range(1, 30))
    code, said, got = command(put(tmp_path / "events.out.tfevents.1", whole[:-9]))
    assert code == 0 and len(got) == 28 and "the last record is cut short" in said


def test_statistics_of_the_machine_are_read_and_nothing_that_names_it(tmp_path: Path, command) -> None:  # type: ignore[no-untyped-def]
    from tests.conformance.test_metric_sources import part, varint

    def framed(payload: bytes) -> bytes:
        return struct.pack("<IHB", zlib.crc32(payload, zlib.crc32(b"\x01")), len(payload), 1) + payload

    def history(step: int) -> bytes:
        return b"\x08\x01" + part(2, part(1, part(2, b"_step") + part(16, str(step).encode())) + part(1, part(2, b"loss") + part(16, b"2.5")))

    keys = {"gpu.0.memoryAllocatedBytes": 3e9, "gpu.1.memoryAllocatedBytes": 4e9, "gpu.0.gpu": 90.0, "gpu.1.gpu": 50.0, "disk./home/user.usage": 7.0}
    items = b"".join(part(3, part(1, k.encode()) + part(16, json.dumps(v).encode())) for k, v in keys.items())
    stats = b"\x08\x02" + part(7, part(2, b"\x08" + varint(1_600_000_000)) + items)
    code, _, _ = command(put(tmp_path / "run.wandb", b":W&B\xe1\xbe\x00" + b"".join(framed(p) for p in (history(1), stats, history(2), stats))))
    table = tmp_path / "case" / "tables" / "metrics.parquet"
    rows = [(r["metric"], r["step"], r["value"]) for r in pq.read_table(table).to_pylist() if r["metric"] != "train_loss"]
    assert code == 0 and b"/home" not in table.read_bytes()
    assert rows == [(m, s, v) for m, v in (("gpu_utilization", 0.5), ("memory_allocated", 4e9)) for s in (1, 2)]


@pytest.mark.parametrize("name", ["deep.jsonl", "wandb-summary.json", "train.log"])
@pytest.mark.parametrize("before", ["", ":::MLLOG ", "2026-01-01 | INFO | train | "])
def test_records_nested_beyond_reason_are_no_log(tmp_path: Path, name: str, before: str) -> None:
    (tmp_path / name).write_text((before + '{"a":' * 100_000 + "1" + "}" * 100_000 + "\n") * 2)
    with pytest.raises(ForensicsError, match=re.escape(name)):
        read_logs([tmp_path / name])
