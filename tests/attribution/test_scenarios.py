"""Twelve situations that runs are known for, each beside a twin in which the cause is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from incidents import BASE, judged

from forensics.attribution import attribute
from forensics.schemas import METRICS

QUIET = {"window": (BASE + 50, BASE + 90)}
BLOOM = (2.199, 2.220, 2.595, 2.242, 2.345, 5.098, 3.492, 3.213, 2.805)  # as the run printed them


def cause(name: str, seed: int, **more: Any) -> tuple[str, str | None, dict[str, Any]]:
    _, got = judged(name, seed, **more)
    return got.verdict["cause"], got.verdict["subcause"], got.verdict


def with_curve(values: dict[str, np.ndarray], drop: tuple[str, ...] = ()) -> dict[str, Any]:
    """The verdict on a quiet run whose curves are replaced from the first recorded step on; no losses per document."""
    made, _ = judged("clean", 21, **QUIET)
    steps = np.arange(1, BASE + 129)
    rows = [r for r in made.inputs.metrics.select(["metric", "step", "value"]).to_pylist() if r["metric"] not in values and not r["metric"].startswith(drop)]
    rows += [{"metric": k, "step": int(s), "value": float(v)} for k, x in values.items() for s, v in zip(steps, x, strict=True)]
    table = METRICS.of(pa.table({"run": ["r"] * len(rows), **{k: [r[k] for r in rows] for k in ("metric", "step", "value")}}))
    return attribute(replace(made.inputs, metrics=table, losses=None)).verdict


def test_a_backslash_window() -> None:
    said, sub, _ = cause("A", 20, slab="backslashes", slab_share=0.9, slab_steps=16)
    assert (said, sub) == ("data", "repetition")
    assert cause("clean", 21, **QUIET)[0] != "data"


def test_b_false_low_after_a_resume() -> None:
    said, sub, v = cause("B", 22, loader="stale", loader_steps=18)
    assert (said, sub) == ("loader", "stale_position") and "restart" in " ".join(v["evidence_for"])
    assert cause("clean", 21, **QUIET)[0] != "loader"


def test_c_level_shift() -> None:
    said, _, v = cause("C", 23, fault="lr_high", after=110)
    assert said == "numerics" and v["severity"] in {"level_shift", "slow"}
    assert cause("C twin", 23, fault="gradient", harmless=True)[2]["severity"] in {"none", "returned"}


def test_d_a_large_spike_that_returns() -> None:
    rng = np.random.default_rng(0)
    loss = 2.216 + 2 * ((np.arange(1, BASE + 129) + 50) / (BASE + 50)) ** -0.3 - 2 + rng.normal(0, 0.02, BASE + 128)
    spiked = loss.copy()
    spiked[BASE + 60 : BASE + 60 + len(BLOOM)] = BLOOM
    spiked[BASE + 69 : BASE + 90] = 2.216 + 0.55 * np.exp(-np.arange(21) / 6)
    v = with_curve({"train_loss": spiked}, drop=("eval_loss", "train_loss"))
    assert v["severity"] in {"returned", "slow"} and v["cause"] != "data" and v["skip"]["steps"] == [] and abs(v["onset"] - (BASE + 63)) <= 3
    assert with_curve({"train_loss": loss}, drop=("eval_loss", "train_loss"))["severity"] == "none"


def test_e_mixture_switch() -> None:
    assert cause("E", 24, mix=(0.05, 0.05, 0.1, 0.8))[0] == "composition"
    assert cause("clean", 21, **QUIET)[0] != "composition"


def test_f_correlated_shuffle() -> None:
    assert cause("F", 25, loader="sorted", loader_steps=14, event=56)[:2] == ("loader", "correlated_order")
    assert cause("clean", 21, **QUIET)[0] != "loader"


def test_g_learning_rate_state_lost() -> None:
    said, sub, v = cause("G", 26, fault="rewarm")
    assert (said, sub) == ("numerics", "schedule_reset") and "declared schedule" in " ".join(v["evidence_for"])
    assert cause("clean", 21, **QUIET)[0] != "numerics"


def test_h_a_single_source_spikes() -> None:
    made, got = judged("H", 27, slab="scrambled", slab_share=0.5, slab_steps=24, slab_label="scicode")
    assert got.verdict["cause"] == "data"
    named = [r for r in got.suspects.to_pylist() if r["level"] == "source" and r["label"] == "scicode"]
    assert named and named[0]["log_odds"] > 0
    assert cause("H twin", 27, mix=(0.13, 0.13, 0.12, 0.62))[0] == "composition"
    assert made.guilty_docs


def test_i_loss_scale_collapse() -> None:
    assert cause("I", 28, fault="fp16")[:2] == ("numerics", "fp16_scale_collapse")
    assert cause("clean", 21, **QUIET)[1] != "fp16_scale_collapse"


def test_j_throughput_alone_is_no_event_of_the_loss() -> None:
    made, _ = judged("clean", 21, **QUIET)
    old = made.inputs.metrics
    steps = np.arange(1, BASE + 129)
    slow = METRICS.of(
        pa.table(
            {"run": ["simulated"] * len(steps), "metric": ["tokens_per_second"] * len(steps), "step": steps, "value": np.where(steps > BASE + 60, 6e4, 1e5)}
        )
    )
    got = attribute(replace(made.inputs, metrics=METRICS.concat([old, slow]))).verdict
    assert (got["cause"], got["severity"]) == ("undetermined", "none")


def test_k_slow_creep() -> None:
    said, _, v = cause("K", 29, fault="creep", after=110)
    assert said in {"numerics", "undetermined"} and v["severity"] in {"slow", "level_shift", "diverging"}
    assert cause("clean", 21, **QUIET)[2]["severity"] == "none"


def test_l_the_same_data_without_a_spike_from_another_state() -> None:
    made, got = judged("L", 30, slab="scrambled", slab_share=0.8, slab_steps=16)
    assert got.verdict["cause"] == "data"
    rows = [r for r in made.inputs.metrics.select(["metric", "step", "value"]).to_pylist() if r["metric"] == "train_loss"]
    flat = [r["value"] if r["step"] < made.onset else 4.6 + 0.1 * np.sin(r["step"]) for r in rows]
    shared = {"run": ["r"] * len(rows), "metric": ["train_loss"] * len(rows), "step": [r["step"] for r in rows]}
    gone, same = METRICS.of(pa.table({**shared, "value": flat})), METRICS.of(pa.table({**shared, "value": [r["value"] for r in rows]}))
    both = attribute(replace(made.inputs, experiments={"removal": gone, "control": gone}))
    assert both.verdict["cause"] == "interaction" and both.skips.num_rows == 0
    data = attribute(replace(made.inputs, experiments={"removal": gone, "control": same}))
    assert data.verdict["cause"] == "data" and data.verdict["confidence"] == "high"
