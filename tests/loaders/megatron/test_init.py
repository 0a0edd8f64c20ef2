"""`forensics init`: what checkpoints, logs and launch scripts tell becomes a description that reads back."""

from __future__ import annotations

import pickle
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

from forensics.errors import UsageError
from forensics.loaders.megatron.init import draft
from forensics.loaders.megatron.script import read_script
from forensics.run import FILE, open_run

BASE = {
    "seq_length": 64, "seed": 1234, "split": "949,51,0", "data_path": ["0.5", "/cluster/tok/web", "0.5", "/cluster/tok/code"], "global_batch_size": 8,
    "micro_batch_size": 2, "data_parallel_size": 2, "world_size": 8, "tensor_model_parallel_size": 4, "train_iters": 60, "train_samples": None,
    "eval_interval": 20, "eval_iters": 2, "dataloader_type": "single", "mock_data": False, "num_layers": 12, "lr": 0.001, "iterations_to_skip": [],
}  # fmt: skip


def checkpoint(folder: Path, step: int, **args: Any) -> Path:
    file = folder / f"iter_{step:07d}" / "mp_rank_00" / "model_optim_rng.pt"
    file.parent.mkdir(parents=True)
    state = {"args": Namespace(**{**BASE, "iteration": step, "consumed_train_samples": step * 8, **args}), "iteration": step}
    with zipfile.ZipFile(file, "w") as box:
        box.writestr("model_optim_rng/data.pkl", pickle.dumps(state, 2))
    return folder


def log(path: Path, *launches: tuple[int, int, int, dict[str, Any]]) -> Path:
    """A log of launches (first step, last step, counter before, arguments)."""
    text = ""
    for first, last, before, args in launches:
        given = {**BASE, **args}
        lines = [f"  {k} {'.' * (48 - len(k))} {v}" for k, v in given.items()]
        text += "\n".join(
            ["------------------------ arguments ------------------------", *lines, "-------------------- end of arguments ---------------------", ""]
        )
        text += f" loading checkpoint from c at iteration {first - 1}\n" if first > 1 else "    will not load any checkpoints and will start from random\n"
        batch = given["global_batch_size"]
        for n, s in enumerate(range(first, last + 1)):
            text += f" iteration {s:8d}/{60:8d} | consumed samples: {before + (n + 1) * batch:12d} | global batch size: {batch:5d} |\n"
    path.write_text(text)
    return path


def data(tmp_path: Path) -> None:
    for name in ("web", "code"):
        for suffix in ("idx", "bin"):
            (tmp_path / "here").mkdir(exist_ok=True)
            (tmp_path / "here" / f"{name}.{suffix}").write_bytes(b"")


def written(tmp_path: Path, *paths: Path) -> tuple[dict[str, Any], Any]:
    found = draft(paths, tmp_path)
    (tmp_path / FILE).write_text(found.text)
    return yaml.safe_load(found.text), found


def test_launches_of_a_log_with_restart_and_rollback(tmp_path: Path) -> None:
    data(tmp_path)
    none = {"eval_iters": 0}
    second, third = {"global_batch_size": 16, "iterations_to_skip": [29], **none}, {"global_batch_size": 16, "seed": 5, **none}
    path = log(tmp_path / "train.log", (1, 34, 0, none), (25, 42, 192, second), (41, 50, 448, third))
    spec, found = written(tmp_path, path)
    assert [(x["after_step"], x["consumed"], x.get("last_step")) for x in spec["launches"]] == [(0, 0, 34), (24, 192, 42), (40, 448, None)]
    assert [x.get("args") for x in spec["launches"]] == [
        {"global_batch_size": 8, "seed": 1234}, {"global_batch_size": 16, "iterations_to_skip": [29], "seed": 1234}, {"global_batch_size": 16, "seed": 5},
    ]  # fmt: skip
    assert spec["args"]["data_path"] == BASE["data_path"]
    assert spec["args"]["eval_iters"] == 0, "nought is a value"
    assert not {"lr", "mock_data", "world_size", "dataloader_type"} & set(spec["args"])
    assert "needed: iterations_to_skip" in found.text
    assert spec["moved"] == {"/cluster/tok/": "here/"}
    run = open_run(tmp_path)
    assert [(x.after_step, x.consumed, x.args["global_batch_size"]) for x in run.launches] == [(0, 0, 8), (24, 192, 16), (40, 448, 16)]
    assert run.path("/cluster/tok/web") == tmp_path / "here" / "web"


def test_launches_of_checkpoints_that_changed_arguments(tmp_path: Path) -> None:
    data(tmp_path)
    for step in (10, 20):
        checkpoint(tmp_path / "ckpt", step)
    checkpoint(tmp_path / "ckpt", 30, seed=9)
    spec, found = written(tmp_path, tmp_path / "ckpt")
    assert [(x["after_step"], x["consumed"], x["args"]) for x in spec["launches"]] == [(0, 0, {"seed": 1234}), (20, 160, {"seed": 9})]
    assert "began after step 20 or later, before 30: seed changed" in found.text
    assert any("launch 1 began after step 20" in note for note in found.notes)
    assert open_run(tmp_path).checkpoints == (10, 20, 30)


def test_a_log_without_arguments_takes_those_of_the_checkpoint_it_saved(tmp_path: Path) -> None:
    data(tmp_path)
    checkpoint(tmp_path / "ckpt", 30, seed=9)
    path = tmp_path / "train.log"
    path.write_text(
        " loading checkpoint from c at iteration 20\n"
        + "".join(f" iteration {s:8d}/ 60 | consumed samples: {s * 8:12d} | global batch size:     8 |\n" for s in range(21, 40))
    )
    spec, found = written(tmp_path, tmp_path / "ckpt", path)
    assert [(x["after_step"], x["consumed"]) for x in spec["launches"]] == [(20, 160)]
    assert spec["args"]["seed"] == 9
    assert found.launches[0].origin == "checkpoint iter_0000030"


SCRIPT = r"""#!/bin/bash
#SBATCH --nodes=2
GPUS=8; NODES=2
BATCH=$((GPUS*NODES/2))
SEQ=64          # tokens
TRAIN_ARGS="--seq-length ${SEQ} --global-batch-size $BATCH \
  --micro-batch-size $MB --seed ${SEED:-77}"
DATA=(
    --data-path 0.5 /cluster/tok/web 0.5 /cluster/tok/code   # the blend
    --split "970, 30, 0"
)
# --train-iters 1
torchrun --nproc_per_node 8 pretrain_gpt.py ${DATA[@]} $TRAIN_ARGS --train-iters=72 --data-cache-path $(mktemp -d) 2>&1 | tee log.txt
touch PWNED
"""


def test_a_launch_script_is_read_without_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = read_script(SCRIPT)
    assert {k: found.args.get(k) for k in ("seq_length", "global_batch_size", "seed", "split", "train_iters", "data_path")} == {
        "seq_length": 64, "global_batch_size": 8, "seed": 77, "split": "970, 30, 0", "train_iters": 72,
        "data_path": ["0.5", "/cluster/tok/web", "0.5", "/cluster/tok/code"],
    }  # fmt: skip
    assert found.unknown["micro_batch_size"] == "$MB"
    assert "data_cache_path" in found.unknown
    assert "nodes" not in found.args
    assert not (tmp_path / "PWNED").exists()
    data(tmp_path)
    (tmp_path / "go.sh").write_text(SCRIPT)
    spec, drafted = written(tmp_path, tmp_path / "go.sh")
    assert spec["args"]["global_batch_size"] == 8
    assert "# micro_batch_size:   # not found: --micro-batch-size; for ranks and microbatches; the script has `$MB`" in drafted.text
    assert open_run(tmp_path).launches[0].args["train_iters"] == 72


def test_a_script_that_differs_from_what_ran_does_not_override_it(tmp_path: Path) -> None:
    data(tmp_path)
    (tmp_path / "go.sh").write_text(SCRIPT)
    spec, found = written(tmp_path, log(tmp_path / "t.log", (1, 9, 0, {})), tmp_path / "go.sh")
    assert (spec["args"]["seed"], spec["args"]["train_iters"]) == (1234, 60)
    assert any("differs from the last launch in seed, split, train_iters" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("A='--seed 3'\nA+=' --split 1,0,0'\npython x $A", {"seed": 3, "split": "1,0,0"}),
        ("python x --seed 3\npython x --seed 4", {"seed": 4}),
        ("python x --seed '3' --fim-data", {"seed": 3, "fim_data": True}),
        ('X="--seed 3\n  --eval-iters 4"\nrun $X', {"seed": 3, "eval_iters": 4}),
        ("python x --rampup-batch-size 4 4 96 --seed -1", {"rampup_batch_size": ["4", "4", "96"], "seed": -1}),
        ("A=$A\nB=$B$A\npython --seed $B", {}),
        ("python --seed 'unbalanced", {"seed": "'unbalanced"}),
        ("", {}),
    ],
)
def test_forms_of_shell(text: str, want: dict[str, Any]) -> None:
    assert read_script(text).args == want


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "no", tmp_path, tmp_path / "x.txt"):
        (tmp_path / "x.txt").write_text("hello")
        with pytest.raises(UsageError):
            draft([path], tmp_path)
    with pytest.raises(UsageError, match="nothing to describe"):
        draft([], tmp_path)
    (tmp_path / "x.txt").write_text(" iteration 1/ 2 | consumed samples: 8 | global batch size: 8 |\n")
    with pytest.raises(UsageError, match="neither an arguments block"):
        draft([tmp_path / "x.txt"], tmp_path)


def test_data_that_is_not_found_is_named_in_one_line(tmp_path: Path) -> None:
    found = draft([log(tmp_path / "train.log", (1, 30, 0, {}))], tmp_path)
    lines = [line for line in found.text.splitlines() if "moved:" in line]
    assert len(lines) == 1 and lines[0].startswith("# moved: {/cluster/tok: .}") and "web.idx, code.idx were not found" in lines[0]
