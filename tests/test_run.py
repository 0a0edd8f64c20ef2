"""Run descriptions: found, strict, with the origin of every argument; what is missing is named all at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forensics.errors import ConfigError, UsageError
from forensics.run import FILE, Missing, open_run, refuse_missing
from forensics.steps import StepRange

ARGS = "seq_length: 8, seed: 1, global_batch_size: 2, micro_batch_size: 1, data_parallel_size: 2, train_iters: 5, data_path: [data/a_document]"


def folder(tmp_path: Path, text: str = f"trainer: megatron\nargs: {{{ARGS}}}\n", name: str = "run") -> Path:
    """A run folder with a data file that looks like one; nothing here opens it."""
    out = tmp_path / name
    (out / "data").mkdir(parents=True)
    for suffix in ("idx", "bin"):
        (out / "data" / f"a_document.{suffix}").write_bytes(np.zeros(4, np.uint8).tobytes())
    (out / FILE).write_text(text)
    return out


def test_the_description_is_found_as_file_folder_upwards_or_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = folder(tmp_path)
    assert open_run(run / FILE).folder == run
    assert open_run(run).name == "run"
    (run / "deep" / "down").mkdir(parents=True)
    monkeypatch.chdir(run / "deep" / "down")
    assert open_run().folder == run
    other = folder(tmp_path, name="other")
    monkeypatch.setenv("FORENSICS_RUN", str(other))
    assert open_run().folder == run, "the nearest description counts before the environment"
    monkeypatch.chdir(tmp_path)
    assert open_run().folder == other
    monkeypatch.delenv("FORENSICS_RUN")
    with pytest.raises(ConfigError, match="no `forensics.yaml` here"):
        open_run()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trainer: megatron\nchekpoint: x\n", "unknown key `chekpoint`; did you mean `checkpoint`"),
        ("trainer: megatron\nlaunches: [{aftr_step: 3}]\n", r"unknown key `launches\[0\].aftr_step`; did you mean `after_step`"),
        ("trainer: megatron\nlaunches: {after_step: 3}\n", "`launches` is a dict, expected a list"),
        ("trainer: megatron\nversion: 0.10\n", "`version` is the number 0.1, expected text"),
        ("trainer: megatron\nlaunches: [{version: 0.16}]\n", r"`launches\[0\].version` is the number 0.16"),
        ("run: x\n", "`trainer` is missing"),
        ("trainer: megatron\nlaunches: [{after_step: ten}]\n", "after_step"),
        ("trainer: megatron\nlaunches: [{after_step: -1}]\n", "`launches\\[0\\].after_step` is -1"),
        ("trainer: megatron\nlaunches: [{after_step: 9, last_step: 4}]\n", "ends with step 4, before it starts after step 9"),
        ("trainer: megatron\nlaunches: [{skipped: ['9:4']}]\n", r"`launches\[0\].skipped`: the step range 9:4 is empty"),
        ("trainer: megatron\nlog: [a.log, logs/*.txt]\nlosses: l.parquet\n", r"`log: a.log`, `log: logs/\*.txt` \(matches nothing\), `losses: l.parquet`"),
        ("trainer: [megatron\n", "not valid YAML"),
        ("- trainer\n", "holds a list, not a mapping"),
        ("trainer: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
        (f"trainer: megatron\nargs: {{{ARGS}, train_itres: 5}}\n", "unknown argument `train_itres`; did you mean `train_iters`"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_run(folder(tmp_path, text))
    assert caught.value.exit_code == 2


def test_a_folder_without_a_description_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds neither"):
        open_run(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        open_run(tmp_path / "no")


def test_everything_missing_is_listed_at_once(tmp_path: Path) -> None:
    text = "trainer: megatron\nargs: {dataloader_type: cyclic, data_path: [data/gone, data/a_document]}\n"
    text += "launches: [{after_step: 0}, {after_step: 9, args: {seq_length: 8}}]\n"
    with pytest.raises(ConfigError) as caught:
        open_run(folder(tmp_path, text))
    said = caught.value.text()
    for part in (
        "args.seq_length`: tokens per sequence: --seq-length (launch 0)",
        "`args.train_iters`: steps or samples that the launch was started for: --train-iters or --train-samples (launch 0)",
        "--train-iters or --train-samples (launch 1)",
        "`args.global_batch_size`",
        "`args.micro_batch_size`",
        "`args.data_parallel_size`",
        "`data/gone.idx|.bin`: looked for at",
        "hint: arguments are in the launch script",
    ):
        assert part in said
    assert "seq_length`: tokens per sequence: --seq-length (launch 1)" not in said
    assert "data/a_document" not in said


def test_missing_things_are_a_request_error_with_one_line_each() -> None:
    refuse_missing("x", [])
    with pytest.raises(ConfigError, match="the run lacks 2 things") as caught:
        refuse_missing("the run", [Missing("a", "in b"), Missing("c", "in d")], "look")
    with pytest.raises(ConfigError, match="lacks 1 thing that decides"):
        refuse_missing("the run", [Missing("a", "in b")])
    assert caught.value.text().split("\n") == ["error: the run lacks 2 things that decide the data order", "  `a`: in b", "  `c`: in d", "hint: look"]


def test_a_cache_that_is_not_there_is_said(tmp_path: Path) -> None:
    run = open_run(folder(tmp_path, f"trainer: megatron\nargs: {{{ARGS}}}\ncache: gone\n"))
    assert any("gone" in note and "not there" in note for note in run.notes)


def test_arguments_keep_where_they_came_from(tmp_path: Path) -> None:
    text = f"trainer: megatron\nargs: {{{ARGS}}}\nlaunches:\n- {{}}\n- {{after_step: 3, args: {{seed: 7, train_iters: 9}}}}\n"
    run = open_run(folder(tmp_path, text), ["args.train_iters=20", "launches.1.args.seq_length=16", "launches.1.last_step=12"])
    first, second = run.launches
    assert (first.args["train_iters"], second.args["train_iters"]) == (20, 20), "the command line is stronger than the file, launch by launch"
    assert (first.args["seed"], second.args["seed"], first.args["seq_length"], second.args["seq_length"]) == (1, 7, 8, 16)
    assert [second.origins[k] for k in ("train_iters", "seed", "seq_length", "global_batch_size")] == ["--set", "launches[1].args", "--set", "args"]
    assert second.last_step == 12
    rows = {(r["launch"], r["argument"]): (r["value"], r["origin"]) for r in run.rows()}
    assert rows[1, "seed"] == (7, "launches[1].args")
    assert json.loads(json.dumps(run.rows(), allow_nan=False)) == run.rows()
    with pytest.raises(ConfigError, match="has 2 launches, numbered from 0"):
        open_run(run.folder, ["launches.2.after_step=4"])


def test_launches_and_skips_are_numbered_and_half_open(tmp_path: Path) -> None:
    text = f"trainer: megatron\nversion: '0.16.1'\nargs: {{{ARGS}}}\n"
    text += "launches: [{last_step: 4, skipped: ['2:4', 3]}, {after_step: 3, consumed: 6, version: '0.17.0'}]\n"
    first, second = open_run(folder(tmp_path, text)).launches
    assert first.skipped == (StepRange(2, 4), StepRange(3, 4))
    assert (first.version, second.version, second.consumed, second.number) == ("0.16.1", "0.17.0", 6, 1)
    with pytest.raises(UsageError, match="2 launches"):
        open_run(tmp_path / "run").launch(2)


def test_paths_count_from_the_file_and_follow_moves_longest_first(tmp_path: Path) -> None:
    text = f"trainer: megatron\nargs: {{{ARGS}}}\nlog: [logs/t-*.txt]\nmoved: {{/big: x, /big/part/: y/, /cluster: /elsewhere}}\n"
    path = folder(tmp_path, text)
    (path / "logs").mkdir()
    for n in (10, 9, 1):
        (path / "logs" / f"t-{n}.txt").write_text("")
    run = open_run(path)
    assert [p.name for p in run.logs] == ["t-1.txt", "t-9.txt", "t-10.txt"]
    assert run.path("/big/part/a") == path / "y" / "a"
    assert run.path("/big/other") == path / "x" / "other"
    assert run.path("/cluster/a") == Path("/elsewhere/a")
    assert run.path("data/a") == path / "data" / "a"


def test_empty_keys_count_as_absent(tmp_path: Path) -> None:
    run = open_run(folder(tmp_path, f"trainer: megatron\nlog:\nlaunches:\nargs: {{{ARGS}}}\n"))
    assert run.logs == ()
    assert not run.launches_given
    assert len(run.launches) == 1


def test_the_fingerprint_follows_what_decides_the_order(tmp_path: Path) -> None:
    path = folder(tmp_path, f"trainer: megatron\nlog: t.log\nargs: {{{ARGS}}}\n")
    (path / "t.log").write_text("")
    before = open_run(path)
    assert open_run(path).fingerprint == before.fingerprint
    assert open_run(path, ["args.seed=2"]).fingerprint != before.fingerprint
    (path / "t.log").write_text("one more line\n")
    assert open_run(path).fingerprint == before.fingerprint, "a log that grows recomputes nothing"


def test_checkpoints_are_found_by_the_names_that_trainers_give_them(tmp_path: Path) -> None:
    for name in ("checkpoint-500", "checkpoint-1000", "step250", "checkpoint-last", "runs"):
        (tmp_path / "out" / name).mkdir(parents=True)
    (tmp_path / "forensics.yaml").write_text("trainer: hf\ncheckpoint: out\n")
    run = open_run(tmp_path)
    assert run.checkpoints == (250, 500, 1000)
    assert run.checkpoint_at(500) == tmp_path / "out" / "checkpoint-500"
    assert run.checkpoint_at(501) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [("log: /dev/zero", "is a device, not a file"), ("optimizer: {lr: .nan}", "optimizer.lr` is nan"), ("checkpoints: [-1]", "holds -1")],
)
def test_values_that_no_run_has_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "forensics.yaml").write_text(f"trainer: hf\n{text}\n")
    with pytest.raises(ConfigError, match=message):
        open_run(tmp_path)
