
from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from forensics.curves.read import files_of, read_logs, read_metrics
from forensics.errors import StoreError, UsageError


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def losses(steps: range, offset: float = 0.0, **more: Any) -> list[dict[str, Any]]:
    return [{"step": s, "loss": 5 + offset - s / 100, **more} for s in steps]


def rows(table: pa.Table, metric: str = "train_loss", *columns: str) -> list[tuple[Any, ...]]:
    part = table.filter(pc.equal(table.column("metric"), metric))
    return list(zip(*(part.column(c).to_pylist() for c in columns or ("launch", "step", "value"))))


def test_files_that_overlap_are_launches_and_the_overwritten_part_is_kept(tmp_path: Path) -> None:
    first = write(tmp_path / "log-9.jsonl", losses(range(1, 11)))
    second = write(tmp_path / "log-10.jsonl", losses(range(6, 16), 1.0))
    for order in ([second, first], [first, second]):
        got = rows(read_metrics(sorted(order)))
        assert [(launch, step) for launch, step, _ in got] == [(0, s) for s in range(1, 11)] + [(1, s) for s in range(6, 16)]
        assert got[0][2] == 4.99 and got[10][2] == 5.94


def test_a_launch_that_goes_on_where_the_other_ended_is_a_launch_of_its_own(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", losses(range(1, 4))), write(tmp_path / "b.jsonl", losses(range(4, 7)))]
    assert [r[0] for r in rows(read_metrics(files))] == [0, 0, 0, 1, 1, 1]


def test_clocks_decide_the_order_of_files(tmp_path: Path) -> None:
    late = write(tmp_path / "a.jsonl", [{**r, "time": 1.7e9 + 1000 + r["step"]} for r in losses(range(3, 6), 1.0)])
    early = write(tmp_path / "b.jsonl", [{**r, "time": 1.7e9 + r["step"]} for r in losses(range(1, 5))])
    got = rows(read_metrics([late, early]))
    assert [(r[0], r[1]) for r in got] == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 3), (1, 4), (1, 5)]


def test_two_records_of_one_launch_are_one(tmp_path: Path) -> None:
    log = write(tmp_path / "a.jsonl", losses(range(1, 6)))
    table = tmp_path / "b.csv"
    table.write_text("step,loss,lr\n" + "".join(f"{s},{5 - s / 100:.3f},0.5\n" for s in range(2, 8)))
    got = read_metrics([log, table])
    assert [(r[0], r[1]) for r in rows(got)] == [(0, s) for s in range(1, 8)]
    assert rows(got)[1][2] == 4.98 and {r[0] for r in rows(got, "learning_rate")} == {0}
    assert rows(got, "train_loss", "file")[1][0].endswith("a.jsonl")


def test_a_file_of_evaluations_takes_the_launch_that_covers_the_step(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", losses(range(1, 11)) + losses(range(6, 16), 1.0))
    held = write(tmp_path / "val.jsonl", [{"step": s, "val_loss": 4.5} for s in (2, 4, 8, 12)])
    assert [(r[0], r[1]) for r in rows(read_metrics([train, held]), "eval_loss")] == [(0, 2), (0, 4), (1, 8), (1, 12)]


def test_tokens_and_time_spread_to_other_records_of_the_step(tmp_path: Path) -> None:
    train = write(tmp_path / "a.jsonl", [{**r, "tokens_seen": 1000 * r["step"], "timestamp": 1.7e9 + r["step"]} for r in losses(range(1, 6))])
    held = write(tmp_path / "b.jsonl", [{"step": 4, "val_loss": 4.5}, {"step": 9, "val_loss": 4.0}])
    got = rows(read_metrics([train, held]), "eval_loss", "step", "tokens", "time")
    assert got[0][:2] == (4, 4000) and got[0][2].timestamp() == 1.7e9 + 4
    assert got[1] == (9, None, None)


def test_tokens_of_a_step_are_not_taken_for_a_running_total(tmp_path: Path) -> None:
    table = read_metrics([write(tmp_path / "a.jsonl", [{**r, "tokens": 1024 + r["step"] % 3} for r in losses(range(1, 40))])])
    assert table.column("tokens").null_count == table.num_rows
    assert rows(table, "batch_tokens", "value")[0] == (1025.0,)


def test_null_is_not_nan(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": null}\n{"step": 3, "loss": NaN}\n{"step": 4, "loss": -Infinity}\n{"step": 5, "loss": "nan"}\n'
    )
    got = rows(read_metrics([path]))
    assert [r[1] for r in got] == [1, 3, 4, 5]
    assert math.isnan(got[1][2]) and got[2][2] == -math.inf and math.isnan(got[3][2])


def test_runs_mixed_in_one_file_are_kept_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"run": name, **r} for r in losses(range(1, 4)) for name in ("base", "wide")])
    table = read_metrics([path])
    assert sorted(set(table.column("run").to_pylist())) == ["base", "wide"]
    assert [r[1] for r in rows(table)] == [1, 2, 3, 1, 2, 3] and {r[0] for r in rows(table)} == {0}
    assert set(read_metrics([path], run="x").column("run").to_pylist()) == {"x/base", "x/wide"}


def test_one_run_takes_the_name_it_is_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", losses(range(1, 4), run="from the file"))
    assert set(read_metrics([path], run="mine").column("run").to_pylist()) == {"mine"}


def test_ranks_are_kept_where_several_speak(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"step": s, "rank": r, "step_time": 1.0 + r} for s in (1, 2) for r in (0, 1)])
    assert rows(read_metrics([path]), "step_time", "step", "rank", "value") == [(1, 0, 1.0), (1, 1, 2.0), (2, 0, 1.0), (2, 1, 2.0)]
    alone = write(tmp_path / "b.jsonl", [{"step": s, "rank": 3, "step_time": 1.0} for s in (1, 2)])
    assert rows(read_metrics([alone]), "step_time", "rank") == [(None,), (None,)]
    lists = write(tmp_path / "c.jsonl", [{"step": s, "loss": 2.0, "step_time": [1.0, 1.5]} for s in (1, 2)])
    assert rows(read_metrics([lists]), "step_time", "step", "rank", "value") == [(1, 0, 1.0), (1, 1, 1.5), (2, 0, 1.0), (2, 1, 1.5)]


def test_a_step_logged_twice_keeps_the_last_record_and_says_so(tmp_path: Path) -> None:
    got = read_logs([write(tmp_path / "a.jsonl", [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "loss": 2.5}, {"step": 3, "loss": 1.0}])])
    assert [r[2] for r in rows(got.metrics)] == [3.0, 2.5, 1.0]
    assert got.failures.column("count").to_pylist() == [1] and "more than once" in got.failures.column("error")[0].as_py()


def test_records_that_come_late_are_sorted_in(tmp_path: Path) -> None:
    got = rows(read_metrics([write(tmp_path / "a.jsonl", [{"step": s, "loss": float(s)} for s in (1, 2, 5, 3, 4, 6)])]))
    assert [r[1] for r in got] == [1, 2, 3, 4, 5, 6] and {r[0] for r in got} == {0}


def test_steps_that_no_run_has_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,loss,lr\n1,3.0,\n99999999999999999999999,9.0,1\n-7,8.0,\n2,2.5,0.1\n")
    read = read_logs([path])
    assert rows(read.metrics) == [(0, 1, 3.0), (0, 2, 2.5)]
    (failure,) = read.failures.to_pylist()
    assert failure["item"] == f"{path}:3" and "a step below 0" in failure["error"] and failure["count"] == 2


def test_one_point_is_a_curve(tmp_path: Path) -> None:
    assert rows(read_metrics([write(tmp_path / "a.jsonl", losses(range(7, 8)))])) == [(0, 7, 4.93)]


def test_a_column_map_overrides_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"it": s, "step": 7, "foo": 2.0, "bar": 1.0} for s in (1, 2)])
    table = read_metrics([path], columns={"it": "step", "foo": "train_loss", "bar": ""})
    assert rows(table) == [(0, 1, 2.0), (0, 2, 2.0)] and set(table.column("metric").to_pylist()) == {"train_loss"}


def test_the_optimizer_step_wins_over_the_loggers_counter(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"_step": 8 * s, "train/global_step": s, "train/loss": 2.0} for s in (1, 2)] + [{"_step": 17, "val/loss": 1.5}])
    table = read_metrics([path])
    assert [r[1] for r in rows(table)] == [1, 2] and [r[1] for r in rows(table, "eval_loss")] == [2]


def test_the_spike_labs_records(tmp_path: Path) -> None:
    record = {
        "step": 1013,
        "tokens": 1037312,
        "lr": 0.0028,
        "rms_emb": 1.5,
        "loss": 4.0,
        "grad_norm": 2.0,
        "clip_coef": 0.5,
        "step_time": 0.25,
        "src": {"code": [1000, 3.5], "web": [24, 4.5]},
        "val": {"code": 3.25, "web": 4.25},
    }
    table = read_metrics([write(tmp_path / "metrics.jsonl", [record])])
    got = dict(zip(table.column("metric").to_pylist(), table.column("value").to_pylist()))
    assert got == {
        "train_loss": 4.0,
        "train_loss/code": 3.5,
        "train_loss/web": 4.5,
        "source_tokens/code": 1000.0,
        "source_tokens/web": 24.0,
        "eval_loss/code": 3.25,
        "eval_loss/web": 4.25,
        "learning_rate": 0.0028,
        "update_rms/embedding": 1.5,
        "grad_norm": 2.0,
        "clip_ratio": 0.5,
        "step_time": 0.25,
    }
    assert set(table.column("tokens").to_pylist()) == {1037312}


def test_folders_give_the_logs_in_them(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    write(tmp_path / "logs" / "b-10.txt", losses(range(3, 5)))
    write(tmp_path / "logs" / "b-9.txt", losses(range(1, 3)))
    (tmp_path / "logs" / "notes.md").write_text("nothing here\n")
    (tmp_path / "logs" / ".hidden").write_text('{"step": 1, "loss": 1}\n')
    assert [p.name for p in files_of([tmp_path])] == ["b-9.txt", "b-10.txt"]
    assert [r[1] for r in rows(read_metrics([tmp_path]))] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (bytes(range(256)) * 40, "binary"),
        (b"hello\nworld\n", "no known log format; its first line reads 'hello'"),
        (b" iteration       10/     100 | consum", "holds no record"),
        (b"\x1f\x8b\x08\x00broken", "empty"),
    ],
)
def test_what_is_no_log_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(content)
    with pytest.raises(StoreError) as error:
        read_metrics([path])
    assert words in error.value.text() and str(path) in error.value.text() and error.value.hint


def test_a_bad_file_among_good_ones_is_a_failure_not_the_end(tmp_path: Path) -> None:
    good = write(tmp_path / "a.jsonl", losses(range(1, 4)))
    (tmp_path / "b.log").write_bytes(b"\x00" * 5000)
    got = read_logs([good, tmp_path / "b.log"])
    assert len(rows(got.metrics)) == 3 and got.failures.num_rows == 1 and "b.log" in got.failures.column("item")[0].as_py()


def test_requests_that_cannot_be_meant(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read_metrics([])
    with pytest.raises(StoreError, match="does not exist"):
        read_metrics([tmp_path / "nothing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="no file below"):
        read_metrics([tmp_path / "empty"])
    with pytest.raises(UsageError, match="there is no metric source"):
        read_logs([write(tmp_path / "a.jsonl", losses(range(1, 3)))], format="megatrom")


def test_axes_are_shared_between_metrics_logged_together(tmp_path: Path) -> None:
    table = read_metrics([write(tmp_path / "a.jsonl", [{"step": s, "loss": 1.0, "grad_norm": 2.0, "lr": 3.0} for s in range(1000)])])
    chunks = table.column("step").chunks
    assert len(chunks) == 3 and len({c.buffers()[1].address for c in chunks}) == 1


def test_our_own_table_of_several_launches_is_read_back_as_it_was(tmp_path: Path) -> None:
    steps = [*range(1, 41), *range(31, 61), *range(51, 81)]
    launch = [0] * 40 + [1] * 30 + [2] * 30
    rows = [{"step": s, "loss": 3.0 + n + s / 1000, "grad_norm": 0.2 + n} for s, n in zip(steps, launch, strict=True)]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(r) + "\n" for r in rows))
    first = read_metrics([log])
    assert first.column("launch").to_pylist() == launch * 2
    for name in ("metrics.parquet", "metrics.csv", "metrics.jsonl"):
        path = tmp_path / name
        if name.endswith("parquet"):
            pq.write_table(first, path)
        elif name.endswith("csv"):
            names = {c: first.column(c).cast(pa.string()) for c in ("run", "metric", "file")}
            pa_csv.write_csv(pa.table({c: names.get(c, first.column(c)) for c in first.column_names}), path)
        else:
            path.write_text("".join(json.dumps(r) + "\n" for r in first.select(["run", "launch", "metric", "step", "value"]).to_pylist()))
        again = read_metrics([path])
        for column in ("launch", "metric", "step", "value"):
            assert again.column(column).to_pylist() == first.column(column).to_pylist(), (name, column)


def test_a_launch_column_that_holds_times_is_no_number_of_a_launch(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"step": s, "loss": 3.0, "launch": 1.7e9}) + "\n" for s in range(1, 20)))
    assert set(read_metrics([log]).column("launch").to_pylist()) == {0}
