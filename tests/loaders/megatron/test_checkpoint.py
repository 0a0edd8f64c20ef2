"""Four checkpoint layouts, written by the real save code (the YAML of Bridge by hand), read without torch."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from forensics.errors import RunError, StoreError
from forensics.loaders.megatron.checkpoint import latest, read_saved, saved_steps, sniff, unfinished

FIXTURES = Path(__file__).parent / "checkpoints"
LAYOUTS = sorted(p.name for p in FIXTURES.iterdir())


def legacy(folder: Path, step: int, args: dict[str, Any], **more: Any) -> Path:
    """A checkpoint of the legacy layout with these arguments; `argparse.Namespace` as the trainer pickles it."""
    from argparse import Namespace

    file = folder / f"iter_{step:07d}" / "mp_rank_00" / "model_optim_rng.pt"
    file.parent.mkdir(parents=True)
    with zipfile.ZipFile(file, "w") as box:
        box.writestr("model_optim_rng/data.pkl", pickle.dumps({"args": Namespace(**args), "iteration": step, **more}, 2))
    return file


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_gives_step_counters_and_arguments(layout: str) -> None:
    folder = FIXTURES / layout
    want = json.loads((folder / "expected.json").read_text())
    assert sniff(folder)
    assert saved_steps(folder) == [want["iteration"]]
    (saved,) = read_saved(folder)
    assert (saved.step, saved.consumed, saved.skipped) == (want["iteration"], want["consumed_train_samples"], 0)
    given = {
        "seq_length": 64, "seed": 1234, "split": "949,51,0", "micro_batch_size": 2, "global_batch_size": 8, "train_iters": 60, "eval_iters": 2,
        "dataloader_type": "single", "data_path": ["0.55", "data/web_text_document", "0.3", "data/code_text_document", "0.15", "data/wiki_text_sentence"],
        "data_cache_path": "cache",
    }  # fmt: skip
    assert {k: saved.args.get(k) for k in given} == given
    if saved.layout != "bridge":
        assert latest(folder) == 40
        assert saved.args["data_parallel_size"] == 2
        assert "train_samples" not in saved.args, "an argument that is None was not given"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_folder_of_one_checkpoint_stands_for_itself(layout: str, tmp_path: Path) -> None:
    assert [s.step for s in read_saved(FIXTURES / layout / "iter_0000040")] == [40]
    shutil.copytree(FIXTURES / layout / "iter_0000040", tmp_path / "renamed")
    assert sniff(tmp_path / "renamed")
    assert [s.consumed for s in read_saved(tmp_path / "renamed")] == [320]


def test_other_folders_are_not_checkpoints(tmp_path: Path) -> None:
    assert not sniff(tmp_path)
    assert not sniff(FIXTURES)
    (tmp_path / "step40").mkdir()
    assert not sniff(tmp_path)


def test_an_unfinished_save_is_no_rollback_point(tmp_path: Path) -> None:
    legacy(tmp_path, 10, {"seed": 1})
    (tmp_path / "iter_0000020").mkdir()
    (tmp_path / "iter_0000020" / "__0_0.distcp").write_bytes(b"")
    assert saved_steps(tmp_path) == [10]
    assert [p.name for p in unfinished(tmp_path)] == ["iter_0000020"]
    assert [s.step for s in read_saved(tmp_path)] == [10]


def test_only_the_steps_asked_for_are_opened(tmp_path: Path) -> None:
    legacy(tmp_path, 10, {"seed": 1})
    legacy(tmp_path, 20, {"seed": 2}).write_bytes(b"damaged")
    assert [s.args["seed"] for s in read_saved(tmp_path, [10])] == [1]
    with pytest.raises(StoreError, match="cannot be read as a checkpoint"):
        read_saved(tmp_path)


def test_a_renamed_checkpoint_is_a_contradiction(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "torch_legacy_v0.19.2" / "iter_0000040", tmp_path / "iter_0000050")
    with pytest.raises(RunError, match="after step 40, its name says 50"):
        read_saved(tmp_path)


def test_samples_counted_as_nought_are_those_of_an_old_trainer(tmp_path: Path) -> None:
    legacy(tmp_path, 10, {"consumed_train_samples": 0, "global_batch_size": 16})
    legacy(tmp_path, 20, {"consumed_train_samples": 0, "global_batch_size": 16, "train_samples": 1000})
    assert [s.consumed for s in read_saved(tmp_path)] == [160, None]


def test_a_part_outside_the_folder_is_refused(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "torch_dist_v0.19.2", tmp_path / "c")
    meta = tmp_path / "c" / "iter_0000040" / ".metadata"
    meta.write_bytes(meta.read_bytes().replace(b"__0_0.distcp", b"../0_0.distc"))
    with pytest.raises(StoreError, match="outside the checkpoint's folder"):
        read_saved(tmp_path / "c")


def test_weights_alone_are_not_enough(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "torch_dist_v0.16.1", tmp_path / "c")
    (tmp_path / "c" / "iter_0000040" / "common.pt").unlink()
    with pytest.raises(StoreError, match="lists no `common_state`"):
        read_saved(tmp_path / "c")


@pytest.mark.parametrize(
    ("layout", "name"), [("torch_dist_v0.19.2", "__0_0.distcp"), ("torch_dist_v0.19.2", ".metadata"), ("megatron_bridge", "train_state.pt")]
)
def test_a_truncated_file_is_named(layout: str, name: str, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / layout, tmp_path / "c")
    file = tmp_path / "c" / "iter_0000040" / name
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(StoreError, match=name.replace(".", r"\.")):
        read_saved(tmp_path / "c")


def test_bridge_yaml_of_every_form_and_with_python_tags(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "megatron_bridge", tmp_path / "c")
    config = tmp_path / "c" / "iter_0000040" / "run_config.yaml"
    config.write_text(
        "dataset:\n  _target_: megatron.bridge.training.config.GPTFIMDatasetConfig\n  seq_length: 64\n  random_seed: 7\n"
        "  blend_per_split:\n  - - [a, b]\n    - null\n  - - [c]\n    - [2.0]\n  - null\n"
        "  tokenizer: !!python/object/apply:os.system ['touch PWNED']\n"
        "model:\n  params_dtype: !!python/name:torch.bfloat16 ''\n  tensor_model_parallel_size: 2\n"
        "train: {rampup_batch_size: [4, 4, 96], global_batch_size: 16}\n"
    )
    (saved,) = read_saved(tmp_path / "c")
    assert saved.args["train_data_path"] == ["a", "b"]
    assert saved.args["valid_data_path"] == ["2.0", "c"]
    assert "test_data_path" not in saved.args
    assert (saved.args["fim_data"], saved.args["rampup_batch_size"], saved.args["tensor_model_parallel_size"]) == (True, [4, 4, 96], 2)
    assert not Path("PWNED").exists()
    config.write_text("dataset: [")
    with pytest.raises(StoreError, match="not valid YAML"):
        read_saved(tmp_path / "c")


def test_names_of_nemo_checkpoints_are_rollback_points(tmp_path: Path) -> None:
    for name in ("megatron_gpt--val_loss=2.10-step=200-consumed_samples=1600.0", "megatron_gpt--val_loss=2.30-step=100-consumed_samples=800.0.ckpt", "notes"):
        (tmp_path / name).mkdir()
    assert sniff(tmp_path)
    assert saved_steps(tmp_path) == [100, 200]
    assert [(s.step, s.consumed, s.layout) for s in read_saved(tmp_path)] == [(100, 800, "nemo"), (200, 1600, "nemo")]


def test_a_yaml_that_grows_through_aliases_stays_small(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "megatron_bridge", tmp_path / "c")
    layers = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    text = f"a0: &a0 [x, x]\n{layers}dataset:\n  seq_length: 64\n  split: *a11\n  blend: [*a11, null]\n"
    (tmp_path / "c" / "iter_0000040" / "run_config.yaml").write_text(text)
    assert dict(read_saved(tmp_path / "c")[0].args) == {"seq_length": 64}


def test_a_large_index_need_not_be_read_for_the_common_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forensics.loaders.megatron import checkpoint

    shutil.copytree(FIXTURES / "torch_dist_v0.19.2", tmp_path / "c")
    (tmp_path / "c" / "iter_0000040" / ".metadata").write_bytes(b"\x80\x04 not read at all")
    monkeypatch.setattr(checkpoint, "LARGE_INDEX", 10)
    assert [s.consumed for s in read_saved(tmp_path / "c")] == [320]
    part = tmp_path / "c" / "iter_0000040" / "__0_0.distcp"
    part.write_bytes(b"PK\x03\x04" + part.read_bytes()[4:2000])
    with pytest.raises(StoreError, match=r"\.metadata"):
        read_saved(tmp_path / "c")
