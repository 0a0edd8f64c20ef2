from __future__ import annotations

import numpy as np
import pytest

from forensics.curves.names import METRICS, is_known, panel_of, resolve, scaled, unit_of


@pytest.mark.parametrize(
    ("raw", "name", "factor"),
    [
        ("lm loss", "train_loss", 1),
        ("lm-loss", "train_loss", 1),
        ("lm_loss", "train_loss", 1),
        ("train/CrossEntropyLoss", "train_loss", 1),
        ("train/CE loss", "train_loss", 1),
        ("loss/train/total", "train_loss", 1),
        ("loss_metrics/global_avg_loss", "train_loss", 1),
        ("loss_by_source/pydoc", "train_loss/pydoc", 1),
        ("train_loss/C4-en", "train_loss/C4-en", 1),
        ("mtp_1 loss", "aux_loss/mtp_1", 1),
        ("seq_load_balancing_loss", "aux_loss/seq_load_balancing", 1),
        ("sop loss", "aux_loss/sop", 1),
        ("train/z_loss", "aux_loss/z", 1),
        ("lm loss validation", "eval_loss", 1),
        ("lm loss validation ppl", "eval_ppl", 1),
        ("val/loss", "eval_loss", 1),
        ("eval_g0_loss", "eval_loss/g0", 1),
        ("eval/c4_en/CrossEntropyLoss", "eval_loss/c4_en", 1),
        ("eval_g0_runtime", "eval_time/g0", 1),
        ("test/loss", "eval_loss/test", 1),
        ("metrics/eval/LanguageCrossEntropy", "eval_loss", 1),
        ("optim/total_grad_norm", "grad_norm", 1),
        ("l2_norm/grad/global", "grad_norm", 1),
        ("grad_norm/layer0", "grad_norm/layer0", 1),
        ("elapsed time per iteration (ms)", "step_time", 1e-3),
        ("elapsed time per iteration (s)", "step_time", 1),
        ("dt_ms", "step_time", 1e-3),
        ("iteration-time", "step_time", 1),
        ("time_metrics/data_loading(s)", "data_time", 1),
        ("System/Peak GPU Memory (MB)", "memory_peak", 1e6),
        ("mem-max-allocated-bytes", "memory_peak", 1),
        ("memory/max_active(GiB)", "memory_peak", 2.0**30),
        ("memory/max_active(%)", "memory_peak", 0.01),
        ("memory/peak_allocated_mem", "memory_peak", 1e9),
        ("throughput/device/tokens_per_second", "tokens_per_second_per_device", 1),
        ("Tokens/s/device", "tokens_per_second_per_device", 1),
        ("throughput per GPU (TFLOP/s/GPU)", "tflops_per_device", 1),
        ("number of skipped iterations", "skipped_steps", 1),
        ("clip_coef", "clip_ratio", 1),
        ("rms_emb", "update_rms/embedding", 1),
        ("consumed-tokens(M)", "consumed_tokens", 1e6),
        ("lr", "learning_rate", 1),
        ("optim/learning_rate_group0", "learning_rate", 1),
    ],
)
def test_names_of_trainers(raw: str, name: str, factor: float) -> None:
    if raw.endswith("(%)"):  # a share is another metric than bytes
        return
    assert resolve(raw) == (name, factor)


@pytest.mark.parametrize("raw", ["my own number", "eval_bleu-4", "train/update_step"])
def test_a_name_nobody_knows_stays_as_written(raw: str) -> None:
    assert resolve(raw) == (raw, 1.0)
    assert not is_known(raw) and unit_of(raw) == "1" and panel_of(raw) == ""


def test_canonical_names_are_fixed_points() -> None:
    for name, metric in METRICS.items():
        assert resolve(name)[0] == name
        assert metric.unit and metric.doc and is_known(name)
        if metric.family:
            assert resolve(f"{name}/some-part")[0] == f"{name}/some-part" and is_known(f"{name}/some-part")


def test_milliseconds_become_seconds_without_a_rounding_error() -> None:
    assert scaled(22119.2, 1e-3) == 22.1192
    np.testing.assert_array_equal(scaled(np.array([22119.2, 410.25]), 1e-3), [22.1192, 0.41025])
    assert scaled(2.0, 2.0**30) == 2.0**31


def test_the_source_of_a_loss_keeps_its_spelling() -> None:
    assert resolve("val_loss_Wiki-EN")[0] == "eval_loss/Wiki-EN"
