# ruff: noqa: E501 - records are as long as trainers print them
from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from forensics.curves.read import LogsRead, read_logs
from forensics.curves.sources import megatron_log
from forensics.curves.sources.megatron_log import value_of


def line(step: int, total: int = 1000, **fields: str) -> str:
    """A record of recent Megatron; a field given as an empty string is left out."""
    known = {
        "consumed samples": f"{step * 4:12d}",
        "elapsed time per iteration (ms)": "1500.0",
        "learning rate": "1.500E-04",
        "global batch size": "    4",
        "lm loss": f"{5 - step / 1000:.6E}",
        "loss scale": "1.0",
        "grad norm": f"{1 + step / 7:.3f}",
        "number of skipped iterations": "  0",
        "number of nan iterations": "  0",
    } | {k.replace("_", " "): v for k, v in fields.items()}
    return f" iteration {step:8d}/{total:8d} |" + "".join(f" {k}: {v} |" for k, v in known.items() if v)


def read(tmp_path: Path, *lines: str, end: str = "\n", **options: Any) -> LogsRead:
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + end)
    return read_logs([path], **options)


def curve(got: LogsRead, metric: str, *columns: str) -> list[tuple[Any, ...]]:
    part = got.metrics.filter(pc.equal(got.metrics.column("metric"), metric))
    return list(zip(*(part.column(c).to_pylist() for c in columns or ("step", "value"))))


def test_fields_units_and_axes(tmp_path: Path) -> None:
    got = read(tmp_path, "  seq_length ...................................... 2048", "[2026-05-28 22:26:20]" + line(10))
    values = dict(zip(got.metrics.column("metric").to_pylist(), got.metrics.column("value").to_pylist()))
    assert values == {
        "consumed_samples": 40.0,
        "step_time": 1.5,
        "learning_rate": 1.5e-4,
        "batch_size": 4.0,
        "train_loss": 4.99,
        "loss_scale": 1.0,
        "grad_norm": 2.429,
        "skipped_steps": 0.0,
        "nan_steps": 0.0,
    }
    assert curve(got, "train_loss", "tokens", "line") == [(40 * 2048, 2)]
    assert curve(got, "train_loss", "time")[0][0].isoformat() == "2026-05-28T22:26:20+00:00"


def test_the_blooms_lines(tmp_path: Path) -> None:
    text = "[default7]: iteration    31214/  115311 | consumed samples:     47768496 | consumed tokens:  97829879808 | elapsed time per iteration (s): 106.46 | learning rate: 5.279E-05 | global batch size:  2048 | lm loss: 2.198845E+00 | grad norm: 0.242 | num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: 19.238 | TFLOPs: 147.29 |"
    got = read(tmp_path, text, "[...]", text.replace("31214", "31215").replace("2.198845E+00", "2.220424E+00"))
    assert curve(got, "train_loss", "step", "value", "tokens", "rank") == [(31214, 2.198845, 97829879808, None), (31215, 2.220424, 97829879808, None)]
    assert curve(got, "step_time") == [(31214, 106.46), (31215, 106.46)] and curve(got, "tflops")[0] == (31214, 147.29)


@pytest.mark.parametrize("width", [60, 80, 97, 132])
def test_a_record_wrapped_by_a_terminal(tmp_path: Path, width: int) -> None:
    text = line(10)
    whole = read(tmp_path, text, line(11)).metrics
    wrapped = [text[i : i + width] for i in range(0, len(text), width)]
    got = read(tmp_path, *wrapped, line(11))
    assert curve(got, "train_loss") == [(10, 4.99), (11, 4.989)]
    assert got.metrics.column("value").to_pylist() == whole.column("value").to_pylist()


def test_a_record_wrapped_between_words(tmp_path: Path) -> None:
    text = line(10)
    at = text.index("samples:"), text.index("loss scale")
    got = read(tmp_path, text[: at[0]].rstrip(), text[at[0] : at[1]].rstrip(), text[at[1] :], "time (ms)", line(20))
    assert got.metrics.num_rows == 18 and curve(got, "consumed_samples") == [(10, 40.0), (20, 80.0)]


def test_a_loss_that_vanished_is_nan(tmp_path: Path) -> None:
    got = read(tmp_path, line(1), line(2, lm_loss=""), line(3))
    values = curve(got, "train_loss")
    assert [s for s, _ in values] == [1, 2, 3] and math.isnan(values[1][1])


def test_a_loss_that_never_was_there_is_nan_too(tmp_path: Path) -> None:
    got = read(tmp_path, line(1, lm_loss="", grad_norm="nan"), line(2, lm_loss="", grad_norm="nan"))
    assert all(math.isnan(v) for _, v in curve(got, "train_loss") + curve(got, "grad_norm")) and len(curve(got, "train_loss")) == 2


def test_a_step_that_was_skipped_has_no_loss_and_no_norm_of_its_own(tmp_path: Path) -> None:
    skipped = {"lm_loss": "", "number_of_skipped_iterations": "  1", "grad_norm": "1.143"}
    got = read(tmp_path, line(1), line(2, **skipped), line(3))
    assert [s for s, _ in curve(got, "train_loss")] == [1, 3]
    assert [s for s, _ in curve(got, "grad_norm")] == [1, 3]
    assert curve(got, "skipped_steps") == [(1, 0.0), (2, 1.0), (3, 0.0)]


def test_in_an_interval_of_ten_some_skipped_updates_do_not_explain_a_missing_loss(tmp_path: Path) -> None:
    got = read(tmp_path, line(10), line(20, lm_loss="", number_of_skipped_iterations="  3"), line(30, lm_loss="", number_of_skipped_iterations=" 10"))
    assert [s for s, _ in curve(got, "train_loss")] == [10, 20] and math.isnan(curve(got, "train_loss")[1][1])


def test_the_torn_last_record_of_a_live_log(tmp_path: Path) -> None:
    text = line(2)
    got = read(tmp_path, line(1), text[: text.index("grad norm") + 12], end="")
    assert curve(got, "train_loss") == [(1, 4.999), (2, 4.998)] and [s for s, _ in curve(got, "grad_norm")] == [1]
    assert "cut short" in got.failures.column("error")[0].as_py() and got.failures.column("item")[0].as_py().endswith(":2")
    early = read(tmp_path, line(1), text[: text.index("lm loss") + 9], end="")
    assert [s for s, _ in curve(early, "train_loss")] == [1]  # torn before the loss: not known, not NaN


def test_a_loss_scale_that_is_not_used(tmp_path: Path) -> None:
    assert curve(read(tmp_path, line(1, loss_scale="-1.0")), "loss_scale") == []


def test_timers_memory_and_validation(tmp_path: Path) -> None:
    got = read(
        tmp_path,
        line(10),
        "time (ms) | forward-compute: 144.40 | batch-generator: 2.62",
        "[Rank 3] (after 10 iterations) memory (MB) | allocated: 2.0 | max allocated: 4.0 | reserved: 8.0 | max reserved: 16.0",
        line(20),
        "    (min, max) time across ranks (ms):",
        "    save-checkpoint ................................: (1000.5, 1250.0)",
        "-----",
        " validation loss at iteration 20 | lm loss value: 8.095942E+00 | lm loss PPL: 3.281128E+03 |",
        "-----",
        " validation loss at iteration 20 on test set | lm loss value: 8.5E+00 | lm loss PPL: 4.9E+03 |",
        "valid loss at the end of training for val data | lm loss value: 7.5E+00 |",
    )
    assert curve(got, "data_time") == [(10, 0.00262)] and curve(got, "save_time") == [(20, 1.25)]
    assert curve(got, "memory_peak") == [(10, 4.0 * 2**20)]
    assert curve(got, "eval_loss/test") == [(20, 8.5)] and curve(got, "eval_ppl/test") == [(20, 4900.0)]
    assert curve(got, "eval_loss") == [(20, 7.5)]


def test_neox_prints_its_rate_before_the_step(tmp_path: Path) -> None:
    text = "[2023-01-02 03:04:05,678] [INFO] samples/sec: 32.151 | iteration      100/  320000 | elapsed time per iteration (ms): 3000.0 | learning rate: 6.000E-05 | approx flops per GPU: 50.3TFLOPS | lm_loss: 2.345E+00 | loss scale: 65536.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    got = read(tmp_path, text, " validation results at iteration 100 | lm_loss value: 2.5E+00 | lm_loss_ppl value: 1.2E+01 | ")
    assert (
        curve(got, "samples_per_second") == [(100, 32.151)] and curve(got, "tflops_per_device") == [(100, 50.3)] and curve(got, "train_loss") == [(100, 2.345)]
    )
    assert curve(got, "eval_loss") == [(100, 2.5)] and curve(got, "eval_ppl") == [(100, 12.0)]
    assert curve(got, "train_loss", "time")[0][0].microsecond == 678000


def test_other_losses_and_a_forks_own_name(tmp_path: Path) -> None:
    got = read(tmp_path, line(1, mtp_1_loss="1.25E+00", seq_load_balancing_loss="1.5E+00"))
    assert curve(got, "aux_loss/mtp 1") == [(1, 1.25)] and curve(got, "aux_loss/seq load balancing") == [(1, 1.5)]
    own = read(tmp_path, line(1, lm_loss="", sft_loss="2.5E+00"), line(2, lm_loss="", sft_loss="2.25E+00"))
    assert curve(own, "train_loss") == [(1, 2.5), (2, 2.25)]


def test_nemo_counts_steps_globally(tmp_path: Path) -> None:
    text = (
        "Training epoch {}, iteration {}/99 | lr: 1.5e-07 | global_batch_size: 4 | global_step: {} | reduced_train_loss: 11.0{} | train_step_timing in s: 7.5"
    )
    got = read(tmp_path, text.format(0, 98, 98, 1), text.format(0, 99, 99, 2), text.format(1, 0, 100, 3), text.format(1, 1, 101, 4))
    assert curve(got, "train_loss", "launch", "step", "value") == [(0, 98, 11.01), (0, 99, 11.02), (0, 100, 11.03), (0, 101, 11.04)]
    assert curve(got, "step_time")[-1] == (101, 7.5)


def test_a_restart_in_one_file(tmp_path: Path) -> None:
    got = read(tmp_path, *(line(s) for s in range(1, 11)), *(line(s, lm_loss="3.5E+00") for s in range(6, 12)))
    assert curve(got, "train_loss", "launch", "step") == [(0, s) for s in range(1, 11)] + [(1, s) for s in range(6, 12)]
    assert got.failures.num_rows == 0
    two = read(tmp_path, *(line(s) for s in range(1, 11)), *(line(s, total=5000) for s in range(1, 12)))
    assert "another run in the same file" in two.failures.column("error")[0].as_py() and max(curve(two, "train_loss", "launch")) == (1,)


def test_ranks_that_all_print(tmp_path: Path) -> None:
    got = read(tmp_path, *(f"[default{r}]:{line(s, grad_norm=f'{r + 1}.000')}" for s in (1, 2) for r in (0, 7)))
    assert curve(got, "grad_norm", "step", "rank", "value") == [(1, 0, 1.0), (1, 7, 8.0), (2, 0, 1.0), (2, 7, 8.0)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 1.5E+00 ", 1.5),
        (" 50.3TFLOPS", 50.3),
        (" 12", 12.0),
        (" .5", 0.5),
        ("-1.0", -1.0),
        ("INF", math.inf),
        ("1 2", None),
        ("abc", None),
        ("", None),
        ("1.2.3", None),
    ],
)
def test_values(text: str, value: float | None) -> None:
    assert value_of(text) == value


def odd_log(seed: int) -> str:
    """A log with everything that the compiled scan must leave to the careful reader."""
    rng = random.Random(seed)
    lines, step, total = [], 0, 1000
    while step < 700:
        step += 1
        kind = rng.random()
        text = line(
            step,
            total,
            grad_norm=f"{rng.lognormvariate(0, 3):.3f}",
            lm_loss=f"{rng.lognormvariate(0, 8):.6E}",
            learning_rate=f"{rng.random() * 10 ** rng.randint(-30, 3):.6E}",
        )
        if kind < 0.02:
            text = line(step, total, lm_loss="", number_of_skipped_iterations=str(rng.randint(0, 1)))
        elif kind < 0.04:
            text = line(step, total, grad_norm=rng.choice(["nan", "inf", "1e400", "123456789012345678.5", "1_000", "0.00000000000000000000000001", "-0.0"]))
        elif kind < 0.06:
            text = "\n".join([text[:90], text[90:200], text[200:]])
        elif kind < 0.08:
            text = line(step, total, **{rng.choice(["extra", "mtp 1 loss"]): "1.25"})
        elif kind < 0.10:
            text = rng.choice(["[default7]:", "[2026-05-28 22:26:20]", "[2026-05-28 22:26:20,123] ", "[rank12]:", "  7: ", " samples/sec: 3.5 |"]) + text
        elif kind < 0.11:
            text = text.replace(" |", "|")
        elif kind < 0.12:
            step, total = max(1, step - rng.randint(1, 40)), rng.choice([1000, 2000])
            text = line(step, total)
        lines.append(text)
        if rng.random() < 0.3:
            lines.append(
                rng.choice(
                    [
                        "time (ms) | forward-compute: 1.40 | batch-generator: 2.62",
                        "time (ms)",
                        "some text (with | bars)",
                        "",
                        f" validation loss at iteration {step} | lm loss value: 2.5E+00 |",
                        "    batch-generator ....: (1.5, 2.5)",
                        "  seq_length ........ 128",
                        "\x00\x00",
                        "x" * 50 + " iteration 5",
                    ]
                )
            )
    return "\n".join(lines) + rng.choice(["", "\n"])


@pytest.mark.parametrize("seed", range(6))
def test_the_compiled_scan_equals_the_careful_reader(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.log"
    path.write_text(odd_log(seed))
    careful = read_logs([path])
    monkeypatch.setattr(megatron_log, "FAST_BYTES", 0)
    monkeypatch.setattr(megatron_log, "LEARN_LINES", 5)
    monkeypatch.setattr(megatron_log.Scanner, "CAPACITY", 64)
    fast = read_logs([path])
    assert repr(fast.metrics.to_pylist()) == repr(careful.metrics.to_pylist())
    assert fast.failures.to_pylist() == careful.failures.to_pylist()
    assert careful.metrics.num_rows > 5000
