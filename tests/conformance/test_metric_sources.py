# ruff: noqa: E501 - records are as long as trainers print them
"""What every metric source must do, one sample per registered source."""

from __future__ import annotations

import gzip
import io
import json
import math
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from forensics.curves.names import is_known
from forensics.curves.read import read_logs
from forensics.curves.sources.base import SOURCES, head_of, sniff
from forensics.errors import ForensicsError
from forensics.schemas import METRICS

MEGATRON = """\
 iteration       10/     100 | consumed samples:           40 | elapsed time per iteration (ms): 2000.0 | learning rate: 1.500E-04 | global batch size:     4 | lm loss: 1.210588E+01 | loss scale: 32768.0 | grad norm: 67.033 | number of skipped iterations:   0 | number of nan iterations:   0 |
time (ms) | forward-compute: 144.40 | batch-generator: 2.62
 iteration       20/     100 | consumed samples:           80 | elapsed time per iteration (ms): 1500.0 | learning rate: 1.400E-04 | global batch size:     4 | lm loss: 1.110588E+01 | loss scale: 32768.0 | grad norm: 7.033 | number of skipped iterations:   0 | number of nan iterations:   0 |
-----------------------------------------------------------------------------------------------
 validation loss at iteration 20 | lm loss value: 8.095942E+00 | lm loss PPL: 3.281128E+03 |
-----------------------------------------------------------------------------------------------
"""
OLMO = """\
2024-08-06 09:59:26.181 host:0  olmo.train:908  INFO    [step=1/739328,epoch=0]
    optim/total_grad_norm=231.7
    train/CrossEntropyLoss=12.18
    throughput/total_tokens=1,048,576
    System/Peak GPU Memory (MB)=46,911
2024-08-06 10:00:05.520 host:0  olmo.train:908  INFO    [step=2/739328,epoch=0]
    optim/total_grad_norm=12.5
    train/CrossEntropyLoss=11.5
    throughput/total_tokens=2,097,152
"""
HF = """\
 14%|█▍        | 378/2724 [13:58:09<86:18:35, 132.44s/it][2023-06-07 22:16:00,018] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, reducing to 32

 14%|█▍        | 380/2724 [14:02:33<86:01:24, 132.12s/it]
{'loss': 2.0491, 'grad_norm': 1.25, 'learning_rate': 0.0001961913563176343, 'epoch': 0.28}
"""
DEEPSPEED = """\
[2023-01-02 03:04:05,678] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=1, lr=[0.0001, 0.0001], mom=[(0.9, 0.95)]
steps: 10 loss: 2.3456 iter time (s): 1.250 samples/sec: 20.300
[2023-01-02 03:04:09,678] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=1, lr=[0.0002, 0.0002], mom=[(0.9, 0.95)]
steps: 20 loss: 2.2456 iter time (s): 1.150 samples/sec: 21.300
"""
NANOTRON = "\n".join(
    f"10/17/2025 16:31:5{i} [INFO|DP=0|PP=0|TP=0]: iteration: {327281 + i} / 378950 | consumed_tokens: 85.8G | elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 22.8K | lm_loss: 2.3{i} | lr: 1e-05 | grad_norm: 1.25"
    for i in range(3)
) + "\n"
MLLOG = "".join(
    ':::MLLOG {"namespace": "", "time_ms": %d, "event_type": "POINT_IN_TIME", "key": "%s", "value": %s, "metadata": %s}\n' % row
    for row in (
        (1745958062692, "global_batch_size", "1152", "{}"),
        (1745958062693, "max_sequence_length", "8192", "{}"),
        (1745958397759, "tracked_stats", '{"train_step_time": 14.5, "reduced_train_loss": 7.75}', '{"step": 1152.0}'),
        (1745958413605, "tracked_stats", '{"train_step_time": 14.25, "reduced_train_loss": 7.5}', '{"step": 2304.0}'),
        (1745958986672, "eval_accuracy", "7.25", '{"samples_count": 2304}'),
    )
)
GOLDEN = json.dumps({
    "lm loss": {"start_step": 1, "end_step": 10, "step_interval": 5, "values": {"1": 10.5, "5": 10.25, "10": "nan"}},
    "iteration-time": {"start_step": 1, "end_step": 10, "step_interval": 5, "values": {"1": "nan", "5": 12.5, "10": "nan"}},
})
STATE = json.dumps({"epoch": 1.0, "global_step": 20, "total_flos": 1.5, "log_history": [
    {"loss": 4.5, "grad_norm": 2.5, "learning_rate": 1e-4, "epoch": 0.5, "step": 10}, {"eval_c4_loss": 4.25, "epoch": 0.5, "step": 10},
    {"loss": 4.0, "learning_rate": 5e-5, "epoch": 1.0, "step": 20}, {"train_runtime": 10.0, "train_loss": 4.3, "total_flos": 1.5, "epoch": 1.0, "step": 20},
]}, indent=1)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def part(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def event(wall: float, step: int, **scalars: float) -> bytes:
    summary = b"".join(part(1, part(1, tag.replace("_", " ").encode()) + b"\x15" + struct.pack("<f", v)) for tag, v in scalars.items())
    payload = b"\x09" + struct.pack("<d", wall) + b"\x10" + varint(step) + part(5, summary)
    head = struct.pack("<Q", len(payload))
    return head + struct.pack("<I", crc32c(head)) + payload + struct.pack("<I", crc32c(payload))


def wandb_file(records: list[dict[str, object]], junk: bytes = b"") -> bytes:
    """A file in W&B's framing; `junk` stands for the records about host and user."""
    out = bytearray(b":W&B\xe1\xbe\x00")
    payloads = [part(17, junk)] if junk else []
    for i, record in enumerate(records):
        items = b"".join(part(1, part(2, k.encode()) + part(16, json.dumps(v).encode())) for k, v in record.items())
        payloads.append(b"\x08" + varint(i) + part(2, items))
    for payload in payloads:
        rest, kind = payload, 1
        while True:
            left = 32768 - len(out) % 32768
            if left < 7:
                out += bytes(left)
                continue
            piece, rest = rest[: left - 7], rest[left - 7 :]
            kind = (1 if kind == 1 else 4) if not rest else (2 if kind == 1 else 3)
            out += struct.pack("<IHB", zlib.crc32(piece, zlib.crc32(bytes([kind]))), len(piece), kind) + piece
            if not rest:
                break
    return bytes(out)


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"step": [1, 2, 3], "loss": [3.0, None, 2.5], "grad_norm": [1.0, math.nan, 0.5]}), sink)
    return sink.getvalue()


SAMPLES: dict[str, bytes] = {
    "megatron": MEGATRON.encode(),
    "olmo": OLMO.encode(),
    "hf_console": HF.encode(),
    "deepspeed": DEEPSPEED.encode(),
    "nanotron": NANOTRON.encode(),
    "mllog": MLLOG.encode(),
    "megatron_golden": GOLDEN.encode(),
    "trainer_state": STATE.encode(),
    "jsonl": b'{"step": 1, "loss": 3.5, "lr": 0.001, "tokens": 1024}\n{"step": 2, "loss": 3.25, "lr": 0.001, "tokens": 2048}\n{"step": 3, "loss": NaN, "lr": null, "tokens": 3072}\n',
    "json": json.dumps({"lm loss": [[1, 11.5], [2, 11.25], [3, 11.0]], "grad-norm": [[1, 2.5], [2, 2.25]]}).encode(),
    "csv": b"step,loss,lr,grad_norm,dt_ms\n0,10.955010,8.3916e-07,15.3421,23547.83\n1,10.902707,1.6783e-06,14.8630,410.25\n2,,1.7e-06,nan,410.25\n",
    "parquet": parquet(),
    "modded_nanogpt": b"import torch\nprint(f'step:{step}')\nstep:0/19073 val_loss:10.8258 train_time:386ms step_avg:nanms\nstep:1/19073 train_loss:10.8258 train_time:18811ms step_avg:nanms\nstep:2/19073 train_loss:10.4321 train_time:18917ms step_avg:nanms\n",
    "nanogpt": b"step 0: train loss 4.2874, val loss 4.2823\niter 0: loss 4.2654, time 561.94ms, mfu -100.00%\niter 10: loss 3.7441, time 563.15ms, mfu 5.12%\n",
    "build_nanogpt": b"0 val 10.9506\n0 hella 0.2463\n0 train 10.955010\n1 train 10.902707\n",
    "build_nanogpt_console": b"step     0 | loss: 10.955010 | lr 8.3916e-07 | norm: 15.3421 | dt: 23547.83ms | tok/sec: 22265.00\nstep     1 | loss: 10.902707 | lr 1.6783e-06 | norm: 14.8630 | dt: 410.25ms | tok/sec: 1277967.00\n",
    "maxtext": b"completed step: 9, seconds: 5.667, TFLOP/s/device: 134.924, Tokens/s/device: 8672.758, total_weights: 196608, loss: 10.374\ncompleted step: 10, seconds: 5.567, TFLOP/s/device: 134.924, Tokens/s/device: 8672.758, total_weights: 196608, loss: 10.274\n",
    "mlx": b"Iter 70: Train loss 2.786, Learning Rate 1.000e-05, It/sec 17.598, Tokens/sec 1728.137, Trained Tokens 6521, Peak mem 1.437 GB\nIter 80: Val loss 2.686, Val took 3.125s\n",
    "torchtitan": b"[rank0]:[titan] 2025-01-08 21:55:57 - root - INFO - step:  1  loss: 12.2713  grad_norm:  4.5000  memory: 50.25GiB(52.89%)  tps: 1,310  tflops: 77.65  mfu: 7.85%\n[rank0]:[titan] 2025-01-08 21:56:57 - root - INFO - step: 10  loss: 10.2713  grad_norm:  3.5000  memory: 50.25GiB(52.89%)  tps: 1,510  tflops: 87.65  mfu: 8.85%\n",
    "tensorboard": event(1600000000.0, 1, lm_loss=3.5, grad_norm=1.25) + event(1600000001.0, 2, lm_loss=3.25) + event(1600000001.5, 2, grad_norm=1.5),
    "wandb": wandb_file([{"_step": i, "train/loss": 5.0 - i / 8, "train/lr": 1e-3, "_timestamp": 1.77e9 + i} for i in range(6)]),
}
SAMPLES["composer"] = b"[batch=1/10]:\n\t Train time/batch: 0\n\t Train loss/train/total: 11.25\n\t Train throughput/tokens_per_sec: 1200.5\n[batch=2/10]:\n\t Train loss/train/total: 11.0\n\t Eval metrics/eval/LanguageCrossEntropy: 10.5\n"
SAMPLES["fairseq"] = b"".join(
    b'2021-11-05 10:0%d:00 | INFO | train_inner | {"epoch": 1, "update": 0.001, "loss": "%s", "ppl": "%s", "wps": "100000", "num_updates": "%d00", "lr": "6e-06", "gnorm": "2.5"}\n' % row
    for row in ((1, b"12.5", b"5792.6", 1), (2, b"11.5", b"2896.31", 2))
)
TEXTS = sorted(set(SAMPLES) - {"parquet", "tensorboard", "wandb", "megatron_golden", "trainer_state", "json"})


def points(path: Path) -> set[tuple[str, int, object]]:
    """(metric, step, value) of a file; NaN as text so that it equals itself. Times between records change when one is cut."""
    table = read_logs([path]).metrics
    return {(m, s, "nan" if math.isnan(v) else v) for m, s, v in zip(table.column("metric").to_pylist(), table.column("step").to_pylist(), table.column("value").to_pylist())}


def test_every_source_has_a_sample() -> None:
    assert set(SOURCES.names()) == set(SAMPLES)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_recognised_by_content_whatever_the_name(name: str, tmp_path: Path) -> None:
    for file in ("log.txt", "a.json", "noextension", "metrics.csv"):
        path = tmp_path / file
        path.write_bytes(SAMPLES[name])
        found = sniff(head_of(path))
        assert found is not None and found[0] == name
        assert SOURCES.get(name).name == name and SOURCES.get(name).doc


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_metrics_are_canonical_and_the_table_is_valid(name: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(SAMPLES[name])
    table = read_logs([path]).metrics
    assert table.schema.equals(METRICS.schema) and table.num_rows
    metrics = set(table.column("metric").to_pylist())
    assert "train_loss" in metrics or "eval_loss" in metrics
    assert all(is_known(m) for m in metrics), metrics
    keys = list(zip(*(table.column(name).to_pylist() for name in ("run", "metric", "launch", "step"))))
    assert keys == sorted(keys)
    assert all(v is None or str(path) == v for v in table.column("file").to_pylist())


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_compression_does_not_matter(name: str, tmp_path: Path) -> None:
    plain = tmp_path / "log"
    plain.write_bytes(SAMPLES[name])
    if name == "parquet":
        return
    for suffix, packed in (("gz", gzip.compress(SAMPLES[name])), ("zst", zstandard.ZstdCompressor().compress(SAMPLES[name]))):
        other = tmp_path / f"log.{suffix}"
        other.write_bytes(packed)
        assert points(other) == points(plain)


@pytest.mark.parametrize("name", TEXTS)
def test_carriage_returns_do_not_matter(name: str, tmp_path: Path) -> None:
    (tmp_path / "unix").write_bytes(SAMPLES[name])
    (tmp_path / "dos").write_bytes(SAMPLES[name].replace(b"\n", b"\r\n"))
    assert points(tmp_path / "dos") == points(tmp_path / "unix")


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_cut_file_gives_no_number_that_the_whole_one_does_not(name: str, tmp_path: Path) -> None:
    data, path = SAMPLES[name], tmp_path / "log"
    path.write_bytes(data)
    whole = points(path)
    exempt = {"recorded", "step_time"}  # derived from what else was logged
    cuts = sorted({*range(max(0, len(data) - 45), len(data)), *range(0, len(data), max(1, len(data) // 25))})
    some = 0
    for cut in cuts:
        path.write_bytes(data[:cut])
        try:
            left = points(path)
        except ForensicsError as error:
            assert error.message
            continue
        assert {p for p in left if p[0] not in exempt} <= whole, (cut, left - whole)
        some += bool(left)
    assert some or name == "parquet"


@pytest.mark.parametrize("name", TEXTS)
def test_junk_between_lines_costs_no_record(name: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(SAMPLES[name])
    whole = points(path)
    lines = SAMPLES[name].split(b"\n")
    at = len(lines) - 2 if name not in ("csv", "olmo", "composer") else len(lines) - 1
    if name in ("olmo", "composer"):  # a line that is no pair ends their record
        return
    path.write_bytes(b"\n".join([*lines[:at], b"\xff\xfe\x00 not | a : record {", *lines[at:]]))
    got = read_logs([path], format=name)
    values = {(m, s, "nan" if math.isnan(v) else v) for m, s, v in zip(*(got.metrics.column(c).to_pylist() for c in ("metric", "step", "value")))}
    assert values == whole


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_reading_twice_gives_the_same_table(name: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(SAMPLES[name])
    assert repr(read_logs([path]).metrics.to_pylist()) == repr(read_logs([path]).metrics.to_pylist())
