"""The hooks: a plain PyTorch loop, and Megatron's loss function, driven as their trainers drive them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from forensics.live.hooks.for_megatron import MegatronRecorder
from forensics.live.hooks.for_pytorch import Numbered
from forensics.records import read_records


@pytest.fixture
def megatron(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The parts of Megatron that the hook asks: arguments, ranks, tokenizer."""
    args = SimpleNamespace(consumed_train_samples=16, curr_iteration=2, dataloader_type="single", iteration=2)
    state = {"tensor": 0, "last": True, "rank": 1, "size": 2, "context": 1}
    parallel = ModuleType("megatron.core.parallel_state")
    parallel.get_tensor_model_parallel_rank = lambda: state["tensor"]  # type: ignore[attr-defined]
    parallel.is_pipeline_last_stage = lambda: state["last"]  # type: ignore[attr-defined]
    parallel.get_data_parallel_rank = lambda: state["rank"]  # type: ignore[attr-defined]
    parallel.get_data_parallel_world_size = lambda: state["size"]  # type: ignore[attr-defined]
    parallel.get_context_parallel_world_size = lambda: state["context"]  # type: ignore[attr-defined]
    parallel.get_context_parallel_rank = lambda: 0  # type: ignore[attr-defined]
    training = ModuleType("megatron.training")
    training.get_args = lambda: args  # type: ignore[attr-defined]
    training.get_tokenizer = lambda: SimpleNamespace(eod=9)  # type: ignore[attr-defined]
    for name, what in (
        ("megatron", ModuleType("megatron")),
        ("megatron.core", ModuleType("megatron.core")),
        ("megatron.core.parallel_state", parallel),
        ("megatron.training", training),
    ):
        monkeypatch.setitem(sys.modules, name, what)
    return SimpleNamespace(args=args, state=state)


def step(recorder: MegatronRecorder, micro: int = 2) -> None:
    for m in range(micro):
        tokens = np.array([[1, 2, 9, 3], [4, 5, 6, 7]])
        recorder.batch(tokens)
        recorder.loss(np.ones((2, 4)), np.full((2, 4), 1.0 + m))


@pytest.mark.parametrize("has_iteration", [True, False])
def test_megatron_steps_rows_and_samples(megatron: SimpleNamespace, has_iteration: bool, tmp_path: Path) -> None:
    if not has_iteration:
        del megatron.args.curr_iteration
    recorder = MegatronRecorder(tmp_path)
    for _ in range(2):
        step(recorder)
        megatron.args.consumed_train_samples += 8
        if has_iteration:
            megatron.args.curr_iteration += 1
    recorder.close()
    assert recorder.error == ""
    got = read_records(tmp_path, "losses").to_pylist()
    assert [(r["step"], r["microbatch"], r["sequence"], r["sample"], r["seq_start"], r["predicted"], r["loss_sum"]) for r in got[:6]] == [
        (3, 0, 2, 18, 0, 2, 2.0), (3, 0, 2, 18, 3, 2, 2.0), (3, 0, 3, 19, 0, 4, 4.0),
        (3, 1, 6, 22, 0, 2, 4.0), (3, 1, 6, 22, 3, 2, 4.0), (3, 1, 7, 23, 0, 4, 8.0),
    ]  # fmt: skip
    assert {r["step"] for r in got} == {3, 4}
    assert {r["sample"] for r in got if r["step"] == 4} == {26, 27, 30, 31}


def test_megatron_is_silent_where_it_should_be(megatron: SimpleNamespace, tmp_path: Path) -> None:
    recorder = MegatronRecorder(tmp_path)
    evaluation = np.ones((2, 4)).view(Evaluated)
    recorder.loss(np.ones((2, 4)), evaluation)
    megatron.state["tensor"] = 1
    step(recorder)
    megatron.state.update(tensor=0, last=False)
    step(recorder)
    assert not any(tmp_path.iterdir())
    megatron.state.update(last=True, context=2)
    megatron.args.dataloader_type = "cyclic"
    step(recorder)
    recorder.close()
    got = read_records(tmp_path, "losses").to_pylist()
    assert [r["predicted"] for r in got] == [4, 4, 4, 4], "pieces of rows are summed per row, they add up over ranks"
    assert "sample" not in got[0]


class Evaluated(np.ndarray):
    """An output without a gradient."""

    requires_grad = False


def test_megatron_that_is_not_there_never_reaches_the_training(tmp_path: Path) -> None:
    recorder = MegatronRecorder(tmp_path)
    step(recorder)
    assert "ModuleNotFoundError" in recorder.error


def test_items_carry_their_number() -> None:
    data = Numbered(["a", "b"])
    assert (len(data), data[1]) == (2, (1, "b"))
