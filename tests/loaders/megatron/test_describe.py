"""A description completed from logs and checkpoints: precedence, origins, launches, rollback points."""

from __future__ import annotations

import pickle
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from forensics.errors import ConfigError
from forensics.run import FILE, RunSpec, open_run

BASE = {
    "seq_length": 64, "seed": 1234, "split": "949,51,0", "data_path": ["data/web"], "global_batch_size": 8, "micro_batch_size": 2, "data_parallel_size": 2,
    "train_iters": 60, "train_samples": None, "lr": 0.001, "min_lr": 0.0001, "optimizer": "adam", "adam_beta1": 0.9, "adam_beta2": 0.95, "clip_grad": 1.0,
    "lr_decay_style": "cosine", "lr_warmup_iters": 5, "lr_decay_iters": None, "lr_decay_samples": 400, "log_interval": 1, "iterations_to_skip": [],
}  # fmt: skip


def checkpoint(folder: Path, step: int, **args: Any) -> None:
    file = folder / f"iter_{step:07d}" / "mp_rank_00" / "model_optim_rng.pt"
    file.parent.mkdir(parents=True)
    state = {"args": Namespace(**{**BASE, "iteration": step, "consumed_train_samples": step * 8, **args}), "iteration": step}
    with zipfile.ZipFile(file, "w") as box:
        box.writestr("model_optim_rng/data.pkl", pickle.dumps(state, 2))


def block(**args: Any) -> str:
    given = {**BASE, **args}
    lines = [f"  {k} {'.' * (48 - len(k))} {v}" for k, v in given.items()]
    return "\n".join(["------------------------ arguments ------------------------", *lines, "-------------------- end of arguments ---------------------", ""])


def steps(first: int, last: int, batch: int = 8, before: int = 0) -> str:
    """Iteration lines of steps first to last; `before` is the counter when the launch started."""
    return "".join(
        f" iteration {s:8d}/{60:8d} | consumed samples: {before + (s - first + 1) * batch:12d} | global batch size: {batch:5d} | lm loss: 1.0E+00 |\n"
        for s in range(first, last + 1)
    )


def run(tmp_path: Path, text: str, log: str = "", settings: tuple[str, ...] = ()) -> RunSpec:
    (tmp_path / "data").mkdir(exist_ok=True)
    for name in ("web.idx", "web.bin", "new.idx", "new.bin"):
        (tmp_path / "data" / name).write_bytes(b"")
    if log:
        (tmp_path / "train.log").write_text(log)
    (tmp_path / FILE).write_text("trainer: megatron\n" + text)
    return open_run(tmp_path, settings)


def test_the_stronger_source_wins_and_each_argument_keeps_its_origin(tmp_path: Path) -> None:
    checkpoint(tmp_path / "ckpt", 40, seed=1, split="1,0,0", eval_iters=7)
    got = run(tmp_path, "checkpoint: ckpt\nlog: train.log\nargs: {seed: 3}\n", block(seed=2, split="2,0,0") + steps(1, 60), ("args.seq_length=32",))
    (launch,) = got.launches
    assert {k: launch.args[k] for k in ("seq_length", "seed", "split", "eval_iters")} == {"seq_length": 32, "seed": 3, "split": "2,0,0", "eval_iters": 7}
    assert {k: launch.origins[k] for k in ("seq_length", "seed", "split", "eval_iters")} == {
        "seq_length": "--set", "seed": "args", "split": "log train.log:1", "eval_iters": "checkpoint iter_0000040",
    }  # fmt: skip
    assert got.checkpoints == (40,)
    assert "iteration" not in launch.args
    assert "clip_grad" not in launch.args, "what does not decide the order is left where it is"
    assert "launch 0: `seed` is 3 (args), log train.log:1 says 2" in got.notes
    assert "launch 0: `split` is 2,0,0 (log train.log:1), checkpoint iter_0000040 says 1,0,0" in got.notes
    assert "from --set: seq_length" in got.notes
    assert any(note.startswith("from checkpoint iter_0000040: eval_iters") for note in got.notes)


def test_options_that_exclude_one_another_come_from_one_source(tmp_path: Path) -> None:
    checkpoint(tmp_path / "ckpt", 40, train_samples=480, train_data_path=["data/new"])
    (launch,) = run(tmp_path, "checkpoint: ckpt\nargs: {train_iters: 70, data_path: [data/web]}\n").launches
    assert (launch.args["train_iters"], launch.args["data_path"]) == (70, ["data/web"])
    assert "train_samples" not in launch.args
    assert "train_data_path" not in launch.args


def test_steps_worked_out_from_samples_are_not_taken_for_an_argument(tmp_path: Path) -> None:
    checkpoint(tmp_path / "ckpt", 40, train_samples=480, train_iters=60)
    (launch,) = run(tmp_path, "checkpoint: ckpt\n").launches
    assert launch.args["train_samples"] == 480
    assert "train_iters" not in launch.args


def test_launches_come_from_the_log_where_the_description_lists_none(tmp_path: Path) -> None:
    log = (
        block() + steps(1, 34)
        + block(global_batch_size=16) + " loading checkpoint from c at iteration 24\n" + steps(25, 42, 16, 192)
        + block(seed=9) + " loading checkpoint from c at iteration 40\n"
    )  # fmt: skip
    got = run(tmp_path, "log: train.log\n", log)
    assert [(x.after_step, x.last_step, x.consumed, x.args["global_batch_size"]) for x in got.launches] == [(0, 34, 0, 8), (24, None, 192, 16)]
    assert any("launches are those that the log shows" in note for note in got.notes)


def test_many_launches_are_summed_up_in_one_note(tmp_path: Path) -> None:
    log = block() + steps(1, 4)
    for n in range(1, 12):
        log += block() + f" loading checkpoint from c at iteration {4 * n}\n" + steps(4 * n + 1, 4 * n + 4, 8, 32 * n)
    got = run(tmp_path, "log: train.log\n", log)
    assert len(got.launches) == 12
    assert "arguments of 12 launches come from log too; `case.json` lists each with its place" in got.notes
    assert len(got.notes) == 2


def test_the_tail_of_a_log_gives_arguments_to_no_one(tmp_path: Path) -> None:
    """A log that begins in mid-run does not say where its launch started, so the one launch stays."""
    got = run(tmp_path, f"log: train.log\nargs: {{{', '.join(f'{k}: {v!r}' for k, v in BASE.items() if v is not None)}}}\n", steps(41, 60, 8, 320))
    assert [(x.after_step, x.consumed) for x in got.launches] == [(0, None)]


def test_a_block_belongs_to_the_launch_that_starts_where_its_log_does(tmp_path: Path) -> None:
    log = block(seed=1) + steps(1, 34) + block(seed=2) + " loading checkpoint from c at iteration 24\n" + steps(25, 42, 8, 192)
    got = run(tmp_path, "log: train.log\nlaunches: [{after_step: 0}, {after_step: 24}]\n", log)
    assert [x.args["seed"] for x in got.launches] == [1, 2]
    with pytest.raises(ConfigError, match="lacks"):
        run(tmp_path, "log: train.log\nlaunches: [{after_step: 0}, {after_step: 10}]\n", log)


def test_a_checkpoint_describes_the_launch_that_saved_it(tmp_path: Path) -> None:
    for step, batch in ((10, 8), (20, 8), (30, 16)):
        checkpoint(tmp_path / "ckpt", step, global_batch_size=batch, consumed_train_samples=160 + (step - 20) * batch)
    got = run(tmp_path, "checkpoint: ckpt\nlaunches: [{after_step: 0}, {after_step: 20}]\n")
    assert [(x.args["global_batch_size"], x.consumed, x.origins["seed"]) for x in got.launches] == [
        (8, None, "checkpoint iter_0000020"),
        (16, 160, "checkpoint iter_0000030"),
    ]
    assert got.checkpoints == (10, 20, 30)
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, "checkpoint: ckpt\nlaunches: [{after_step: 0}, {after_step: 30}]\n")
    assert "(launch 1)" in caught.value.text()


def test_after_a_rollback_the_later_launch_saved_the_step_both_reached(tmp_path: Path) -> None:
    for step, seed in ((10, 1), (20, 2)):
        checkpoint(tmp_path / "ckpt", step, seed=seed)
    got = run(tmp_path, "checkpoint: ckpt\nlaunches: [{after_step: 0, last_step: 25}, {after_step: 10}]\n")
    assert [x.args["seed"] for x in got.launches] == [1, 2]


def test_a_checkpoint_that_was_saved_over_is_not_the_one_that_was_loaded(tmp_path: Path) -> None:
    checkpoint(tmp_path / "ckpt", 10, consumed_train_samples=80)
    checkpoint(tmp_path / "ckpt", 20, consumed_train_samples=999)
    args = ", ".join(f"{k}: {v!r}" for k, v in BASE.items() if v is not None)
    got = run(tmp_path, f"checkpoint: ckpt\nargs: {{{args}}}\nlaunches: [{{last_step: 25}}, {{after_step: 20, last_step: 22}}, {{after_step: 10}}]\n")
    assert [x.consumed for x in got.launches] == [None, None, 80]


def test_checkpoints_that_disagree_ask_for_launches(tmp_path: Path) -> None:
    checkpoint(tmp_path / "ckpt", 10)
    checkpoint(tmp_path / "ckpt", 20, data_path=["data/new"], seed=5)
    with pytest.raises(ConfigError, match=r"different arguments \(data_path, seed\)"):
        run(tmp_path, "checkpoint: ckpt\n")
    assert run(tmp_path, "checkpoint: ckpt\nargs: {seed: 5, data_path: [data/new]}\n").launches[0].args["seed"] == 5


def test_a_run_folder_with_checkpoints_and_data_alone_describes_itself(tmp_path: Path) -> None:
    checkpoint(tmp_path / "ckpt", 40)
    run(tmp_path, "checkpoint: ckpt\n")
    (tmp_path / FILE).unlink()
    for given in (tmp_path, tmp_path / "ckpt", tmp_path / "ckpt" / "iter_0000040"):
        got = open_run(given)
        assert (got.folder, got.trainer, got.checkpoints) == (tmp_path, "megatron", (40,))
        assert got.launches[0].args["data_path"] == ["data/web"]
    checkpoint(tmp_path / "other", 40)
    with pytest.raises(ConfigError, match=r"several checkpoint folders \(ckpt, other\)"):
        open_run(tmp_path)


def test_a_damaged_checkpoint_is_said_and_nothing_else_is_lost(tmp_path: Path) -> None:
    checkpoint(tmp_path / "ckpt", 10)
    checkpoint(tmp_path / "ckpt", 20)
    file = tmp_path / "ckpt" / "iter_0000020" / "mp_rank_00" / "model_optim_rng.pt"
    file.write_bytes(file.read_bytes()[:100])
    args = ", ".join(f"{k}: {v!r}" for k, v in BASE.items() if v is not None)
    got = run(tmp_path, f"checkpoint: ckpt\nargs: {{{args}}}\n")
    assert got.checkpoints == (10,)
    assert any(note.startswith("not used: ") and "iter_0000020" in note for note in got.notes)
    assert run(tmp_path, "checkpoint: ckpt\n").launches[0].origins["seed"] == "checkpoint iter_0000010", "the one before serves"
    (tmp_path / "empty").mkdir()
    assert any("holds no checkpoint of a known layout" in n for n in run(tmp_path, f"checkpoint: empty\nargs: {{{args}}}\n").notes)


def test_the_optimizer_is_read_from_the_arguments_block(tmp_path: Path) -> None:
    got = run(tmp_path, "log: train.log\n", block() + steps(1, 60))
    assert dict(got.optimizer) == {"name": "adam", "lr": 0.001, "clip": 1.0, "betas": [0.9, 0.95], "warmup": 5, "decay_steps": 50, "schedule": "cosine to 10%"}
    assert dict(run(tmp_path, "log: train.log\noptimizer: {lr: 5}\n", block() + steps(1, 60)).optimizer) == {"lr": 5}
