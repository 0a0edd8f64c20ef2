# ruff: noqa: E501 - records are as long as trainers print them
"""Traps of single formats that the conformance suite does not know of."""

from __future__ import annotations

import importlib.util
import json
import math
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from forensics.curves.read import LogsRead, read_logs

_spec = importlib.util.spec_from_file_location("metric_source_samples", Path(__file__).parents[2] / "conformance" / "test_metric_sources.py")
assert _spec is not None and _spec.loader is not None
samples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(samples)


def read(tmp_path: Path, data: bytes | str, name: str = "log", **options: Any) -> LogsRead:
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_logs([path], **options)


def curve(got: LogsRead, metric: str, *columns: str) -> list[tuple[Any, ...]]:
    part = got.metrics.filter(pc.equal(got.metrics.column("metric"), metric))
    return list(zip(*(part.column(c).to_pylist() for c in columns or ("step", "value"))))


def errors(got: LogsRead) -> list[str]:
    return got.failures.column("error").to_pylist()


# --- W&B


def test_wandb_nothing_but_the_history_is_kept(tmp_path: Path) -> None:
    secret = b"user@example.org node-17.cluster /home/user/run.py"
    data = samples.wandb_file([{"_step": 1, "train/loss": 2.5, "_wandb": {"host": "node-17.cluster"}, "note": "node-17.cluster"}], junk=secret)
    got = read(tmp_path, data)
    sink = pa.BufferOutputStream()
    pq.write_table(got.metrics, sink)
    assert curve(got, "train_loss") == [(1, 2.5)] and got.metrics.num_rows == 1
    assert b"node-17" not in sink.getvalue().to_pybytes() and b"user@" not in sink.getvalue().to_pybytes()


def test_wandb_records_across_blocks_and_a_damaged_one(tmp_path: Path) -> None:
    records = [{"_step": i, "loss": 5.0 - i / 1000, "pad": "x" * 900} for i in range(120)]
    data = bytearray(samples.wandb_file(records))
    assert len(data) > 3 * 32768
    assert len(curve(read(tmp_path, bytes(data)), "train_loss")) == 120
    data[40_000] ^= 0xFF
    got = read(tmp_path, bytes(data))
    steps = [s for s, _ in curve(got, "train_loss")]
    assert 80 < len(steps) < 120 and steps[-1] == 119 and any("damaged record" in e for e in errors(got))
    values = dict(curve(got, "train_loss"))
    assert all(values[s] == 5.0 - s / 1000 for s in steps)


def test_wandb_web_export_has_a_run_per_column(tmp_path: Path) -> None:
    text = '"Step","calm-sea-1 - train/loss","calm-sea-1 - train/loss__MIN","calm-sea-1 - train/loss__MAX","wild-hill-2 - train/loss","wild-hill-2 - train/loss__MIN","wild-hill-2 - train/loss__MAX"\n"1","3.5","3.5","3.5","4.5","4.5","4.5"\n"2","3.25","3.25","3.25","","",""\n'
    got = read(tmp_path, text)
    assert curve(got, "train_loss", "run", "step", "value") == [("calm-sea-1", 1, 3.5), ("calm-sea-1", 2, 3.25), ("wild-hill-2", 1, 4.5)]


# --- TensorBoard


def test_tensorboard_times_and_records(tmp_path: Path) -> None:
    got = read(tmp_path, samples.event(1600000000.5, 7, lm_loss=3.5, grad_norm=1.25) + samples.event(1600000001.0, 8, lm_loss_vs_samples=1.0, lm_loss=2.5))
    assert curve(got, "train_loss", "step", "value", "line") == [(7, 3.5, 1), (8, 2.5, 2)]
    assert curve(got, "grad_norm", "time")[0][0].timestamp() == 1600000000.5
    assert set(got.metrics.column("metric").to_pylist()) == {"train_loss", "grad_norm"}


def test_tensorboard_scalars_stored_as_tensors(tmp_path: Path) -> None:
    part = samples.part
    forms = [
        b"\x08\x01" + part(5, struct.pack("<f", 1.5)),
        b"\x08\x01" + part(4, struct.pack("<f", 2.5)),
        b"\x08\x02" + part(6, struct.pack("<d", 3.5)),
        b"\x08\x0e" + part(4, b"\x90\x40"),
    ]
    data = b""
    for step, tensor in enumerate(forms):
        payload = b"\x09" + struct.pack("<d", 1.6e9 + step) + b"\x10" + bytes([step]) + part(5, part(1, part(1, b"loss") + part(8, tensor)))
        head = struct.pack("<Q", len(payload))
        data += head + struct.pack("<I", samples.crc32c(head)) + payload + struct.pack("<I", samples.crc32c(payload))
    assert curve(read(tmp_path, data), "train_loss") == [(0, 1.5), (1, 2.5), (2, 3.5), (3, 4.5)]


def test_tensorboard_damage_is_found(tmp_path: Path) -> None:
    events = [samples.event(1.6e9 + i, i, lm_loss=float(i)) for i in range(5)]
    broken = bytearray(events[2])
    broken[25] ^= 0xFF
    got = read(tmp_path, events[0] + events[1] + bytes(broken) + events[3])
    assert [s for s, _ in curve(got, "train_loss")] == [0, 1, 3] and any("checksum" in e for e in errors(got))
    broken = bytearray(events[2])
    broken[1] ^= 0xFF
    got = read(tmp_path, events[0] + events[1] + bytes(broken) + events[3])
    assert [s for s, _ in curve(got, "train_loss")] == [0, 1] and any("nothing behind it" in e for e in errors(got))


def test_tensorboard_as_its_own_writer_writes(tmp_path: Path) -> None:
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    out = writer.EventFileWriter(str(tmp_path / "tb"))
    for step in range(300):
        out.add_event(Event(wall_time=1.6e9 + step, step=step, summary=Summary(value=[Summary.Value(tag="lm loss", simple_value=4.0 - step / 100)])))
    out.close()
    got = read_logs([tmp_path / "tb"])
    assert [s for s, _ in curve(got, "train_loss")] == list(range(300))
    assert all(abs(v - (4.0 - s / 100)) < 1e-6 for s, v in curve(got, "train_loss"))


def test_tensorboards_csv_download_takes_the_tag_from_its_name(tmp_path: Path) -> None:
    got = read(tmp_path, "Wall time,Step,Value\n1600000000.5,10,3.5\n1600000001.5,20,3.25\n", "run-base-tag-lm_loss.csv")
    assert curve(got, "train_loss") == [(10, 3.5), (20, 3.25)] and curve(got, "train_loss", "time")[0][0].timestamp() == 1600000000.5


# --- tables


def test_long_tables_and_our_own(tmp_path: Path) -> None:
    got = read(tmp_path, "metric,step,value\nloss,1,3.5\nlr,1,0.5\nloss,2,3.25\n")
    assert curve(got, "train_loss") == [(1, 3.5), (2, 3.25)] and curve(got, "learning_rate") == [(1, 0.5)]
    lines = read(tmp_path, '{"tag": "loss", "step": 1, "value": 3.5}\n{"tag": "val/loss", "step": 1, "value": 3.25}\n')
    assert curve(lines, "train_loss") == [(1, 3.5)] and curve(lines, "eval_loss") == [(1, 3.25)]
    pq.write_table(got.metrics, tmp_path / "metrics.parquet")
    again = read_logs([tmp_path / "metrics.parquet"])
    columns = ["metric", "step", "value"]
    assert again.metrics.select(columns).to_pylist() == got.metrics.select(columns).to_pylist()


def test_csv_dialects_and_bad_rows(tmp_path: Path) -> None:
    got = read(tmp_path, "\ufeffiteration;loss;note\n1;3.5;a\n2;3.25\n3;oops;b\n4;3.0;c\n")
    assert curve(got, "train_loss") == [(1, 3.5), (4, 3.0)]
    assert any("another number of cells" in e for e in errors(got)) and any(item.endswith(":3") for item in got.failures.column("item").to_pylist())
    tabs = read(tmp_path, "step\tloss\tgrad_norm\n1\t3.5\tnan\n2\t\tinf\n")
    assert curve(tabs, "train_loss") == [(1, 3.5)]
    norms = curve(tabs, "grad_norm")
    assert math.isnan(norms[0][1]) and norms[1][1] == math.inf


def test_csv_without_steps_is_numbered(tmp_path: Path) -> None:
    got = read(tmp_path, "loss,lr\n3.5,0.5\n3.25,0.5\n")
    assert curve(got, "train_loss") == [(1, 3.5), (2, 3.25)] and "numbered from 1" in errors(got)[0]


def test_large_jsonl_with_odd_lines_equals_small_pieces(tmp_path: Path) -> None:
    lines = [json.dumps({"step": s, "loss": 3 + s / 1e6, "n": s % 7}) for s in range(1, 60_001)]
    lines[40_000] = '{"step": 40001, "loss": NaN, "n": 1}'
    lines[50_000] = '{"step": 50001, "lo'
    lines[50_001] = "WARNING: something"
    got = read(tmp_path, "\n".join(lines) + "\n")
    values = curve(got, "train_loss", "step", "value", "line")
    assert len(values) == 59_998 and math.isnan(values[40_000][1]) and values[-1] == (60_000, 3.06, 60_000)
    assert [(e, n) for e, n in zip(errors(got), got.failures.column("count").to_pylist())] == [("not a JSON record", 2)]


# --- documents


def test_golden_values_that_were_not_recorded_are_absent_but_named(tmp_path: Path) -> None:
    got = read(tmp_path, samples.GOLDEN)
    assert curve(got, "train_loss") == [(1, 10.5), (5, 10.25)] and curve(got, "step_time") == [(5, 12.5)]
    assert curve(got, "recorded") == [(1, 1.0), (5, 1.0), (10, 0.0)]
    old = read(tmp_path, json.dumps({"lm loss": {"start_step": 0, "end_step": 10, "step_interval": 5, "values": [10.5, 10.25]}}))
    assert curve(old, "train_loss") == [(0, 10.5), (5, 10.25)] and curve(old, "recorded") == []


def test_trainer_state_rows_and_its_closing_summary(tmp_path: Path) -> None:
    got = read(tmp_path, samples.STATE)
    assert curve(got, "train_loss") == [(10, 4.5), (20, 4.0)] and curve(got, "eval_loss/c4") == [(10, 4.25)]


@pytest.mark.parametrize(
    "document",
    [
        [{"step": 1, "loss": 3.5}, {"step": 2, "loss": 3.25}],
        {"loss": [[1, 3.5], [2, 3.25]]},
        {"loss": [[1.6e9, 1, 3.5], [1.6e9, 2, 3.25]]},
        {"loss": {"steps": [1, 2], "values": [3.5, 3.25]}},
        {"step": [1, 2], "loss": [3.5, 3.25]},
        {"1": {"loss": 3.5}, "2": {"loss": 3.25}},
    ],
)
def test_json_documents(tmp_path: Path, document: Any) -> None:
    assert curve(read(tmp_path, json.dumps(document)), "train_loss") == [(1, 3.5), (2, 3.25)]


# --- consoles


def test_olmo_numbers_and_missing_metrics(tmp_path: Path) -> None:
    got = read(tmp_path, samples.OLMO)
    assert curve(got, "train_loss", "step", "value", "tokens") == [(1, 12.18, 1048576), (2, 11.5, 2097152)]
    assert curve(got, "memory_peak") == [(1, 46911e6)] and curve(got, "grad_norm")[0] == (1, 231.7)


def test_hf_steps_come_from_the_training_bar(tmp_path: Path) -> None:
    text = "  1%| | 1/200 [00:01<1:00, 1s/it]\r  1%| | 2/200 [00:02<1:00, 1s/it]{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': 0.1}\n 50%| | 1/2 [00:01<00:01]\n{'eval_loss': '2.25', 'eval_runtime': '3.5', 'epoch': 0.1}\n  2%| | 4/200 [00:02<1:00, 1s/it]\n{'loss': nan, 'grad_norm': inf, 'epoch': 0.2}\n{'train_runtime': 9.0, 'train_loss': 2.4, 'epoch': 0.2}\n"
    got = read(tmp_path, text)
    losses = curve(got, "train_loss")
    assert losses[0] == (2, 2.5) and losses[1][0] == 4 and math.isnan(losses[1][1]) and len(losses) == 2
    assert curve(got, "eval_loss") == [(2, 2.25)] and curve(got, "eval_time") == [(2, 3.5)] and curve(got, "grad_norm") == [(4, math.inf)]


def test_hf_without_bars_is_numbered_and_says_so(tmp_path: Path) -> None:
    got = read(tmp_path, "{'loss': 2.5, 'epoch': 0.1}\n{'loss': 2.25, 'epoch': 0.2}\n")
    assert curve(got, "train_loss") == [(1, 2.5), (2, 2.25)] and "numbered from 1" in errors(got)[0]


def test_hf_overflow_belongs_to_the_step_under_way(tmp_path: Path) -> None:
    got = read(tmp_path, samples.HF)
    assert curve(got, "loss_scale") == [(379, 32.0)] and curve(got, "skipped_steps") == [(379, 1.0)] and curve(got, "train_loss") == [(380, 2.0491)]


def test_fairseq_losses_are_turned_into_nats(tmp_path: Path) -> None:
    got = read(tmp_path, samples.SAMPLES["fairseq"])
    assert curve(got, "train_loss") == [(100, 12.5 * math.log(2)), (200, 11.5 * math.log(2))] and curve(got, "train_loss", "time")[0][0].minute == 1
    natural = read(tmp_path, 'x | {"num_updates": 1, "loss": 2.0, "ppl": 7.389}\n')
    assert curve(natural, "train_loss") == [(1, 2.0)]


def test_composer_names(tmp_path: Path) -> None:
    got = read(tmp_path, samples.SAMPLES["composer"])
    assert curve(got, "train_loss") == [(1, 11.25), (2, 11.0)] and curve(got, "eval_loss") == [(2, 10.5)] and curve(got, "tokens_per_second") == [(1, 1200.5)]


def test_modded_nanogpt_source_text_is_no_record_and_time_is_per_step(tmp_path: Path) -> None:
    got = read(tmp_path, samples.SAMPLES["modded_nanogpt"])
    assert curve(got, "train_loss") == [(1, 10.8258), (2, 10.4321)] and curve(got, "eval_loss") == [(0, 10.8258)]
    assert curve(got, "step_time") == [(1, 18.425), (2, 0.106)] and curve(got, "elapsed_time")[0] == (0, 0.386)


def test_nanotron_shortened_numbers(tmp_path: Path) -> None:
    got = read(tmp_path, samples.NANOTRON)
    assert curve(got, "step_time")[0] == (327281, 11.5) and curve(got, "tokens_per_second")[0] == (327281, 22800.0)
    assert curve(got, "train_loss", "step", "tokens")[0] == (327281, 85_800_000_000)


def test_mllog_counts_in_samples(tmp_path: Path) -> None:
    got = read(tmp_path, samples.MLLOG)
    assert curve(got, "train_loss", "step", "value", "tokens") == [(1, 7.75, 1152 * 8192), (2, 7.5, 2304 * 8192)]
    assert curve(got, "eval_loss") == [(2, 7.25)] and curve(got, "consumed_samples") == [(1, 1152.0), (2, 2304.0)]


def test_torchtitan_and_mlx_units(tmp_path: Path) -> None:
    titan = read(tmp_path, samples.SAMPLES["torchtitan"])
    assert (
        curve(titan, "memory_peak")[0] == (1, 50.25 * 2**30)
        and curve(titan, "mfu")[0] == (1, 0.0785)
        and curve(titan, "tokens_per_second_per_device")[0] == (1, 1310.0)
    )
    mlx = read(tmp_path, samples.SAMPLES["mlx"])
    assert curve(mlx, "memory_peak") == [(70, 1.437e9)] and curve(mlx, "eval_loss") == [(80, 2.686)] and curve(mlx, "train_loss", "tokens") == [(6521,)]


def test_deepspeed_counts_skipped_steps_since_the_last_line(tmp_path: Path) -> None:
    got = read(tmp_path, samples.DEEPSPEED)
    assert curve(got, "skipped_steps") == [(10, 1.0), (20, 0.0)] and curve(got, "train_loss") == [(10, 2.3456), (20, 2.2456)]
    assert curve(got, "step_time")[0] == (10, 1.25) and curve(got, "learning_rate")[1] == (20, 0.0002)
