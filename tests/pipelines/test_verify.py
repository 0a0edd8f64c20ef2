"""Descriptions of a small Megatron run against the loss of the rows it really read."""

import json
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import typer
import yaml
from click.testing import Result
from forensics.pipelines.verify import backwards, trials_of, verify
from typer.testing import CliRunner

from forensics.attribution.verified import sentence
from forensics.errors import ConfigError, NotReplayable, UsageError
from forensics.loaders.base import loader_of
from forensics.run import open_run
from forensics.steps import StepRange

S, BATCH, STEPS = 48, 4, 260


def write_corpus(prefix: Path, seed: int, documents: int) -> None:
    """Documents that differ in difficulty: each draws its words more or less evenly."""
    rng = np.random.default_rng(seed)
    flat = [np.append(1 + np.minimum(rng.zipf(rng.uniform(1.1, 3.0), int(rng.integers(30, 120))), 400), 0).astype("<u2") for _ in range(documents)]
    lengths = np.array([len(d) for d in flat], "<i4")
    np.concatenate(flat).tofile(prefix.with_suffix(".bin"))
    offsets = np.r_[0, np.cumsum(lengths[:-1], dtype="<i8") * 2].astype("<i8")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(flat), len(flat) + 1)
    prefix.with_suffix(".idx").write_bytes(head + lengths.tobytes() + offsets.tobytes() + np.arange(len(flat) + 1, dtype="<i8").tobytes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run whose logged loss is the surprise of a table of words at its rows, and noise."""
    out = tmp_path_factory.mktemp("run")
    (out / "data").mkdir()
    write_corpus(out / "data" / "web", 1, 700)
    write_corpus(out / "data" / "code", 2, 500)
    args = {"data_path": [0.6, "data/web", 0.4, "data/code"], "split": "100,0,0", "seq_length": S, "seed": 11, "global_batch_size": BATCH,
            "micro_batch_size": 2, "data_parallel_size": 2, "train_iters": STEPS, "eval_interval": 1000, "eval_iters": 0}  # fmt: skip
    content = {"run": "t", "trainer": "megatron", "version": "0.16.1", "args": args}
    (out / "forensics.yaml").write_text(yaml.safe_dump(content))
    run = open_run(out)
    table = pa.concat_tables(list(loader_of(run).consumed(run, StepRange(1, STEPS + 1)))).combine_chunks()
    tokens, offsets = loader_of(run).store(run).gather(table)
    cost = -np.log((np.bincount(tokens, minlength=1000) + 1) / len(tokens))
    step = np.repeat(table["step"].to_numpy(), np.diff(offsets))
    mean = np.bincount(step, cost[tokens])[1:] / np.bincount(step)[1:]
    rng = np.random.default_rng(0)
    loss = 1 + mean + 2 * np.arange(20, STEPS + 20.0) ** -0.4 + 0.3 * mean.std() * rng.standard_normal(STEPS)
    (out / "log.jsonl").write_text("\n".join(json.dumps({"step": n, "loss": float(x)}) for n, x in enumerate(loss, 1)) + "\n")
    (out / "forensics.yaml").write_text(yaml.safe_dump({**content, "metrics": "log.jsonl"}))
    return out


def test_the_right_description_is_proven_part_by_part(folder) -> None:
    done = verify(folder)
    assert done.answer == "proven" and done.checked is not None
    assert done.checked.parts is not None and {s.name for s in done.checked.parts.slopes} == {"web", "code"} and not done.checked.parts.failed
    assert any("proven" in line for line in sentence(done.checked))


@pytest.mark.parametrize("setting", ["args.seed=12", "args.split='90,10,0'", "args.train_iters=2000"])
def test_other_options_are_contradicted(setting, folder) -> None:
    assert verify(folder, [setting]).answer == "contradicted"


@pytest.mark.parametrize("k", [-2, 1, 3])
def test_a_wrong_counter_is_named_by_its_steps(k, folder) -> None:
    done = verify(folder, [f"launches=[{{after_step: 10, consumed: {(10 + k) * BATCH}, last_step: 250}}]"])
    assert done.checked is not None and done.checked.holding is not None
    assert (done.answer, done.checked.holding.whole.lag) == ("off_by_k", k)
    assert any(f"t{k:+d}" in line for line in sentence(done.checked))


def test_candidates_are_ranked_and_equal_ones_are_named(folder, tmp_path) -> None:
    from forensics.case import Case, open_case
    from forensics.schemas import PROOF

    done = verify(folder, ["args.seed=1"], candidates=["seed=1,11,12"], case=Case(tmp_path / "case"))
    assert done.answer == "contradicted" and done.chosen == "seed=11"
    assert done.candidates[0].name == "seed=11"
    table = open_case(tmp_path / "case").get(PROOF)
    assert set(table["subject"].to_pylist()) == {"this description", "seed=1", "seed=11", "seed=12"}
    again = verify(folder, candidates=["version=0.12.3,0.19.2"])
    assert again.same == {"version=0.19.2": "version=0.12.3"}


def test_only_some_steps_and_a_small_budget(folder) -> None:
    done = verify(folder, steps=StepRange(50, 200), tokens=1 << 14)
    assert done.checked is not None and done.checked.holding is not None
    assert done.answer == "proven" and done.checked.holding.whole.first >= 50 and done.checked.holding.whole.last < 200


def test_what_cannot_be_meant_is_refused(folder, tmp_path) -> None:
    with pytest.raises(UsageError, match="KEY=VALUE"):
        trials_of(["seed"])
    with pytest.raises(ConfigError, match="logged loss") as caught:
        verify(folder, ["metrics=[]"])
    assert "identity: 2 checks agree" in caught.value.text()
    (tmp_path / "other.jsonl").write_text('{"step": 1, "lr": 0.1}\n{"step": 2, "lr": 0.1}\n')
    with pytest.raises(ConfigError, match="no training loss"):
        verify(folder, metrics=[tmp_path / "other.jsonl"])
    with pytest.raises(NotReplayable, match="0.5 to 0.19"):
        verify(folder, ["version='0.3.0'"])


def test_a_version_that_was_not_read_is_named_and_may_still_be_proven(folder) -> None:
    done = verify(folder, ["version='0.21.0'"])
    assert done.answer == "proven" and any(note.startswith("unverified: megatron-core 0.21.0") for note in done.notes)


def test_rivals_turn_the_blends_of_all_launches_and_of_each() -> None:
    run = open_run(Path(__file__).parents[2] / "configs" / "quickstart")
    found = backwards(run)
    assert [where for _, where in found] == ["", " in launch 0", " in launch 1", " in launch 2"]
    first = [[x.args["data_path"][1].split("/")[1][:5] for x in other.launches] for other, _ in found]
    assert first == [["refer"] * 3, ["refer", "crawl", "crawl"], ["crawl", "refer", "crawl"], ["crawl", "crawl", "refer"]]


def test_a_blend_turned_in_one_launch_is_contradicted(tmp_path) -> None:
    out = tmp_path / "run"
    shutil.copytree(Path(__file__).parents[2] / "configs" / "quickstart", out, ignore=shutil.ignore_patterns("cache"))
    given = yaml.safe_load((out / "forensics.yaml").read_text())
    del given["cache"]
    blend = given["launches"][1]["args"]["data_path"]
    given["launches"][1]["args"]["data_path"] = [*blend[4:], *blend[2:4], *blend[:2]]
    (out / "forensics.yaml").write_text(yaml.safe_dump(given))
    done = verify(out)
    assert done.answer == "contradicted" and done.checked is not None and done.checked.rival.startswith("the same blend with its corpora in another order")


def test_combinations_of_candidates() -> None:
    assert [n for n, _ in trials_of(["seed=1,2", "version=0.8.0"])] == ["seed=1 version=0.8.0", "seed=2 version=0.8.0"]
    assert trials_of(["split=969,30,1;100,0,0"])[1] == ("split=100,0,0", ["args.split='100,0,0'"])


def invoke(*words: object) -> Result:
    from forensics.cli.verify import command

    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(w) for w in words])


def test_the_command_exits_with_one_where_the_curve_contradicts(folder) -> None:
    done = invoke(folder, "--set", "args.seed=12")
    assert done.exit_code == 1 and "answer: contradicted" in done.stdout


def test_a_sparse_log_gets_one_answer_with_its_reason(tmp_path) -> None:
    """Every 10th step of the quickstart: as a whole the loss follows, yet no launch has the steps to be checked by itself."""
    run = Path(__file__).parents[2] / "configs" / "quickstart"
    words = []
    for path in sorted((run / "logs").glob("*.log")):
        kept = [line for line in path.read_text().splitlines() if not (m := re.search(r"iteration\s+(\d+)/", line)) or int(m[1]) % 10 == 0]
        (tmp_path / path.name).write_text("\n".join(kept) + "\n")
        words += ["--metrics", tmp_path / path.name]
    said = invoke(run, *words).stdout
    assert "loss curve: the logged loss follows the reconstructed steps (r 0.8" in said and "proven" not in said
    few = "launch 0, 1, 2 alone cannot be checked: fewer than 40 event-free logged steps (with values of every 10 steps, a launch of 400)"
    assert said.endswith(f"answer: inconclusive: followed as a whole, but {few}\n")


def rewritten(folder: Path, out: Path, change) -> Path:
    """The run with its log changed record by record; `change` gives None for one that was not written."""
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    kept = [r for r in map(change, records) if r is not None]
    out.write_text("".join(json.dumps(r) + "\n" for r in kept))
    return out


HOSTILE = {
    "rounded to two decimals": (lambda r: {**r, "loss": round(r["loss"], 2)}, {"proven"}),
    "a third are NaN": (lambda r: {**r, "loss": float("nan")} if r["step"] % 3 == 0 else r, {"proven"}),
    "every second step": (lambda r: r if r["step"] % 2 == 0 else None, {"proven"}),
    "every fifth step": (lambda r: r if r["step"] % 5 == 0 else None, {"proven", "inconclusive"}),
    "twelve steps": (lambda r: r if r["step"] <= 12 else None, {"inconclusive"}),
    "nothing but NaN": (lambda r: {**r, "loss": float("nan")}, {"inconclusive"}),
    "one value": (lambda r: {**r, "loss": 2.5}, {"inconclusive"}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_poor_log_never_contradicts_the_right_description(name, folder, tmp_path) -> None:
    change, answers = HOSTILE[name]
    done = verify(folder, ["metrics=[]"], [rewritten(folder, tmp_path / "log.jsonl", change)])
    assert done.answer in answers, sentence(done.checked)


@pytest.mark.parametrize("name", ["rounded to two decimals", "a third are NaN", "every second step", "every fifth step"])
def test_a_poor_log_never_proves_a_wrong_description(name, folder, tmp_path) -> None:
    log = rewritten(folder, tmp_path / "log.jsonl", HOSTILE[name][0])
    assert verify(folder, ["metrics=[]", "args.seed=12"], [log]).answer in ("contradicted", "inconclusive")
