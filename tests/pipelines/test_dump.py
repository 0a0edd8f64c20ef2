"""`forensics dump`: what it writes is what the run read."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from forensics.pipelines.dump import plan_dump, write_dump

from forensics.errors import ForensicsError, RunError, UsageError
from forensics.run import open_run
from forensics.schemas import CONSUMED
from forensics.steps import StepRange
from forensics.stores.megatron import MegatronStore

CASES = Path(__file__).parents[1] / "oracles" / "megatron"


def described(tmp_path, case, **args):
    run = json.loads((CASES / case / "run.json").read_text())
    own = {"about", "framework", "mcore_version", "launches", "data_moved", "data_cache_path"}
    content = {
        "trainer": "megatron",
        "version": run["mcore_version"],
        "moved": {"data/": f"{CASES / case}/data/"},
        "args": {k: v for k, v in run.items() if k not in own} | args,
    }
    (tmp_path / "forensics.yaml").write_text(yaml.safe_dump(content))
    return open_run(tmp_path)


def test_a_dump_holds_the_batches_in_every_form(tmp_path):
    run = described(tmp_path, "blend3_weights")
    done = []
    counts = write_dump(plan_dump(run, StepRange(11, 14)), tmp_path / "out", progress=done.append)
    want = np.load(CASES / "blend3_weights" / "expected.npz")
    rows = np.flatnonzero((want["row_step"] >= 11) & (want["row_step"] < 14))
    got = np.load(tmp_path / "out" / "sequences.npz", allow_pickle=False)
    np.testing.assert_array_equal(got["tokens"], want["tokens"][rows])
    for mine, theirs in (("step", "row_step"), ("sample", "row_sample"), ("rank", "row_rank"), ("microbatch", "row_micro")):
        np.testing.assert_array_equal(got[mine], want[theirs][rows])
    assert got["sequence"].tolist() == [*range(8)] * 3
    assert got["steps"].tolist() == [11, 12, 13]
    assert got["consumed_after"].tolist() == [88, 96, 104]
    assert np.all(got["loss_mask"] == 1)
    assert np.all(got["position_ids"] == np.arange(64))
    store = MegatronStore(tmp_path / "out" / "sequences")
    assert np.array_equal(np.stack([store[i] for i in range(24)]), want["tokens"][rows])
    table = CONSUMED.of(pq.read_table(tmp_path / "out" / "consumed.parquet"))
    assert counts == {"sequences": 24, "segments": table.num_rows, "tokens": 24 * 65}
    lines = [json.loads(line) for line in (tmp_path / "out" / "sequences.jsonl").read_text().splitlines()]
    assert sum(len(line["segments"]) for line in lines) == table.num_rows
    assert lines[0]["step"] == 11
    assert lines[0]["segments"][0]["text"] is None
    about = json.loads((tmp_path / "out" / "dump.json").read_text())
    assert about["steps"] == [11, 14]
    assert done[-1] == 24
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "consumed.parquet",
        "dump.json",
        "sequences.bin",
        "sequences.idx",
        "sequences.jsonl",
        "sequences.npz",
    ]


def test_small_blocks_write_the_same_dump(tmp_path, monkeypatch):
    run = described(tmp_path, "single_epoch_uint16")
    write_dump(plan_dump(run, StepRange(1, 9)), tmp_path / "a", text=False)
    monkeypatch.setattr("forensics.loaders.rows.TOKENS_AT_ONCE", 65 * 3)
    monkeypatch.setattr("forensics.loaders.base.BLOCK_ROWS", 20)
    write_dump(plan_dump(run, StepRange(1, 9)), tmp_path / "b", text=False)
    a, b = (np.load(tmp_path / d / "sequences.npz") for d in "ab")
    assert sorted(a) == sorted(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])
    assert (tmp_path / "a/sequences.idx").read_bytes() == (tmp_path / "b/sequences.idx").read_bytes()
    assert (tmp_path / "a/sequences.bin").read_bytes() == (tmp_path / "b/sequences.bin").read_bytes()
    assert pq.read_table(tmp_path / "a/consumed.parquet").equals(pq.read_table(tmp_path / "b/consumed.parquet"))


def test_validation_batches_with_padding(tmp_path):
    run = described(tmp_path, "no_extra_token_validation")
    counts = write_dump(plan_dump(run, StepRange(1, 5), split="valid"), tmp_path / "out", text=False)
    want = np.load(CASES / "no_extra_token_validation" / "expected_valid.npz")
    got = np.load(tmp_path / "out" / "sequences.npz")
    np.testing.assert_array_equal(got["tokens"], want["tokens"])
    assert counts["tokens"] == int((want["tokens"] != -1).sum())
    labels = np.roll(want["tokens"], -1, axis=1)
    labels[:, -1] = -1
    np.testing.assert_array_equal(got["loss_mask"], labels != -1)
    with pytest.raises(RunError, match="the launch has 1 to 4"):
        write_dump(plan_dump(run, StepRange(4, 6), split="valid"), tmp_path / "more")


def test_masks_follow_the_options(tmp_path):
    run = described(tmp_path, "single_epoch_uint16", eod_mask_loss=True, reset_position_ids=True)
    dump = plan_dump(run, StepRange(1, 3))
    assert any("end-of-document id is not known" in note for note in dump.view.notes)
    write_dump(dump, tmp_path / "a", text=False)
    assert not {"loss_mask", "position_ids"} & set(np.load(tmp_path / "a" / "sequences.npz"))
    run = described(tmp_path, "single_epoch_uint16", eod_mask_loss=True, reset_position_ids=True, eod_token_id=50256)
    write_dump(plan_dump(run, StepRange(1, 3)), tmp_path / "b", text=False)
    got = np.load(tmp_path / "b" / "sequences.npz")
    shown = got["tokens"][:, :-1]
    np.testing.assert_array_equal(got["loss_mask"], shown != 50256)
    row, at = np.argwhere(shown[:, :-1] == 50256)[0]
    assert got["position_ids"][row, at + 1] == 0
    assert np.all(got["position_ids"][:, 0] == 0)


def test_requests_that_cannot_be_met(tmp_path):
    run = described(tmp_path, "single_epoch_uint16")
    with pytest.raises(RunError, match="no launch ran step 61"):
        plan_dump(run, StepRange(55, 65))
    with pytest.raises(UsageError, match="1 launches"):
        plan_dump(run, StepRange(1, 2), 4)
    (tmp_path / "file").write_text("")
    with pytest.raises(ForensicsError, match="cannot be written"):
        write_dump(plan_dump(run, StepRange(1, 2)), tmp_path / "file" / "x")


def test_a_folder_with_something_else_in_it_is_not_written_to(tmp_path):
    run = described(tmp_path, "single_epoch_uint16")
    dump = plan_dump(run, StepRange(1, 2))
    with pytest.raises(UsageError, match="own data"):
        write_dump(dump, CASES / "single_epoch_uint16" / "data")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "sequences.bin").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        write_dump(dump, tmp_path / "full")
    assert (tmp_path / "full" / "sequences.bin").read_text() == "mine"
    first = write_dump(dump, tmp_path / "out")
    assert write_dump(dump, tmp_path / "out") == first  # an earlier dump is written over


def test_steps_that_were_never_run_are_said_to_be_so(tmp_path):
    described(tmp_path, "single_epoch_uint16")
    content = yaml.safe_load((tmp_path / "forensics.yaml").read_text()) | {"launches": [{"after_step": 0, "last_step": 3}]}
    (tmp_path / "forensics.yaml").write_text(yaml.safe_dump(content))
    run = open_run(tmp_path)
    assert plan_dump(run, StepRange(2, 4)).notes() == []
    assert "steps 4 to 5 were never run: the last one of the description is 3" in plan_dump(run, StepRange(2, 6)).notes()[0]
