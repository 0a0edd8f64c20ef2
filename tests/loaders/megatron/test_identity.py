"""The run's own files against its description: agreement is a line, every contradiction stops.

Truth: what the real trainer counted and its library built, of a run of three launches with two rollbacks.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from forensics.errors import RunError
from forensics.loaders.base import loader_of
from forensics.loaders.megatron.identity import check_identity, sentence
from forensics.run import FILE, open_run

CASE = Path(__file__).parents[2] / "oracles" / "megatron" / "launches_rollback_skips_v0_16"
OWN = {"about", "framework", "mcore_version", "launches", "data_moved", "data_cache_path", "start_iteration", "stop_iteration", "consumed_train_samples"}


def log_of(truth: Any, built: dict[str, Any], launch: int, start: int) -> str:
    """The log that this launch printed, in the trainer's format, from what was recorded of it."""
    steps = truth["steps"][truth["step_launch"] == launch]
    consumed = truth["consumed_after"][truth["step_launch"] == launch]
    train = built["train"][launch]
    size = {0: 384, 1: 960, 2: 1152}[launch]
    out = [
        "------------------------ arguments ------------------------",
        "  seed ............................................ 77",
        "-------------------- end of arguments ---------------------",
        f" loading distributed checkpoint from ckpt at iteration {start}" if start else "    will not load any checkpoints and will start from random",
        " > datasets target sizes (minimum size):",
        f"    train:      {size}",
    ]
    for corpus, name in zip(train["corpora"], built["corpora"], strict=True):
        out += [
            f"INFO:x:Load the _IndexReader from /anywhere/{Path(name).name}.idx",
            "INFO:x:Build and save the GPTDataset train indices",
            f"INFO:x:> total number of samples: {corpus['built_samples']}",
            f"INFO:x:> total number of epochs: {corpus['num_epochs']}",
        ]
    batch = 8 if launch == 0 else 16
    out += [f" iteration {s:8d}/      99 | consumed samples: {c:12d} | global batch size: {batch:5d} | lm loss: 2.0E+00 |" for s, c in zip(steps, consumed)]
    return "\n".join(out) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "run"
    shutil.copytree(CASE, out, ignore=shutil.ignore_patterns("expected*"))
    given = json.loads((CASE / "run.json").read_text())
    truth, built = np.load(CASE / "expected.npz"), json.loads((CASE / "expected.json").read_text())
    launches = []
    for n, x in enumerate(given["launches"]):
        (out / f"train-{n}.log").write_text(log_of(truth, built, n, x["start_iteration"]))
        launches.append({"after_step": x["start_iteration"], "last_step": x["stop_iteration"], "args": {k: v for k, v in x.items() if k not in OWN}})
        launches[-1]["consumed"] = x["consumed_train_samples"]
    spec = {
        "trainer": "megatron", "version": given["mcore_version"], "args": {k: v for k, v in given.items() if k not in OWN}, "moved": given["data_moved"],
        "cache": given["data_cache_path"], "launches": launches, "log": "train-*.log",
    }  # fmt: skip
    (out / FILE).write_text(yaml.safe_dump(spec, sort_keys=False))
    return out


def change(folder: Path, how: Callable[[dict[str, Any]], None]) -> Path:
    spec = yaml.safe_load((folder / FILE).read_text())
    how(spec)
    (folder / FILE).write_text(yaml.safe_dump(spec, sort_keys=False))
    return folder


def checks(folder: Path) -> list[dict[str, Any]]:
    run = open_run(folder)
    return check_identity(run, loader_of(run).history(run)).to_pylist()  # type: ignore[attr-defined]


def stops(folder: Path) -> str:
    run = open_run(folder)
    with pytest.raises(RunError, match="contradict the description") as caught:
        loader_of(run).identity(run)  # type: ignore[attr-defined]
    return caught.value.text()


def test_everything_that_the_real_run_wrote_agrees(folder: Path) -> None:
    rows = checks(folder)
    answers = {(r["check"], r["answer"]) for r in rows}
    for check in ("consumed_samples", "sample_and_epoch_counts", "target_samples", "cached_index_shapes", "file_sizes", "vocabulary"):
        assert (check, "agrees") in answers
    assert "contradicts" not in {answer for _, answer in answers}
    counters = [r for r in rows if r["check"] == "consumed_samples"]
    assert [r["found"] for r in counters] == ["34 lines agree", "18 lines agree", "14 lines agree"]
    run = open_run(folder)
    table = loader_of(run).identity(run)  # type: ignore[attr-defined]
    assert "\n" not in sentence(table)
    assert sentence(table).startswith("identity: cached index shapes, consumed samples, file sizes")


def test_a_log_in_one_file_and_without_the_first_launch_still_fits(folder: Path) -> None:
    joined = (folder / "train-1.log").read_text() + (folder / "train-2.log").read_text()
    for n in range(3):
        (folder / f"train-{n}.log").unlink()
    (folder / "train-all.log").write_text(joined)
    assert {r["answer"] for r in checks(folder) if r["check"] in ("consumed_samples", "sample_and_epoch_counts")} == {"agrees"}


def test_a_launch_that_the_description_forgets_is_seen_by_its_counters(folder: Path) -> None:
    said = stops(change(folder, lambda d: (d["launches"].pop(2), d["launches"][1].pop("last_step"))[0]))
    assert "consumed samples, launch 1, train-2.log" not in said, "the batch did not change there, so the counters agree"
    assert "sample and epoch counts, launch 1, train (train-2.log)" in said
    assert "target samples" in said


def test_a_wrong_start_or_batch_is_seen_by_the_counters(folder: Path) -> None:
    def wrong(d: dict[str, Any]) -> None:
        d["launches"][1]["consumed"] = 200

    said = stops(change(folder, wrong))
    assert "216 after step 25 expected, 208 in line" in said
    assert "18 of 18 lines differ" in said


def test_a_launch_that_ended_does_not_vouch_for_a_later_one(folder: Path) -> None:
    def wrong(d: dict[str, Any]) -> None:
        d["launches"][1]["last_step"] = d["launches"][2]["after_step"]
        d["launches"][2]["consumed"] += 16

    said = stops(change(folder, wrong))
    assert "consumed samples, launch 2, train-2.log" in said


def test_a_changed_target_is_seen_by_the_sizes(folder: Path) -> None:
    def wrong(d: dict[str, Any]) -> None:
        d["launches"][0]["args"]["train_iters"] = 90
        d.pop("cache")

    said = stops(change(folder, wrong))
    assert "target samples, launch 0, train (train-0.log): 720 expected, 384 found" in said
    assert "sample and epoch counts, launch 0" in said


def test_ids_beyond_the_vocabulary_stop(folder: Path) -> None:
    def wrong(d: dict[str, Any]) -> None:
        d["args"]["vocab_size"] = 1000

    assert "vocabulary, web_text_document: ids below 1001 (vocab_size) expected, ids up to" in stops(change(folder, wrong))


def test_a_cache_of_other_data_stops(folder: Path) -> None:
    for name in sorted((folder / "cache").glob("*-GPTDataset-train-document_index.npy")):
        np.save(name, np.load(name)[:-1])
    assert "does not fit the data files" in stops(folder)


def test_files_newer_than_the_cache_are_said_not_stopped(folder: Path) -> None:
    data = [*(folder / "data").iterdir(), *(folder / "more").iterdir()]
    for when, answer in ((1, "agrees"), (1 << 32, "not_evaluated")):
        for path in data:
            os.utime(path, (when, when))
        assert {r["answer"] for r in checks(folder) if r["check"] == "file_times"} == {answer}


def test_counters_of_checkpoints(folder: Path) -> None:
    def save(step: int, consumed: int) -> None:
        file = folder / "ckpt" / f"iter_{step:07d}" / "mp_rank_00" / "model_optim_rng.pt"
        file.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(file, "w") as box:
            box.writestr("x/data.pkl", pickle.dumps({"args": Namespace(consumed_train_samples=consumed), "iteration": step}, 2))

    change(folder, lambda d: d.update(checkpoint="ckpt"))
    save(24, 192)
    save(40, 448)
    rows = [r for r in checks(folder) if r["check"] == "checkpoint_counter"]
    assert [(r["subject"], r["answer"]) for r in rows] == [("iter_0000024", "agrees"), ("iter_0000040", "agrees")]
    save(40, 440)
    assert "checkpoint counter, iter_0000040: 448 samples (launch 1) expected, 440 samples found" in stops(folder)


def test_without_a_log_nothing_is_claimed_of_it(folder: Path) -> None:
    change(folder, lambda d: d.pop("log"))
    assert [r["answer"] for r in checks(folder) if r["check"] == "consumed_samples"] == ["not_evaluated"]
