"""A run with one incident in its log: found on the curve, replayed, summed up."""

import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from forensics.pipelines.postmortem import Incident, chosen, lines, postmortem, recurring
from forensics.pipelines.replay import ReplayConfig

from forensics.curves.settings import settings
from forensics.curves.verdicts import Verdict
from forensics.errors import UsageError
from forensics.loaders.base import loader_of
from forensics.run import open_run
from forensics.schemas import DOC_MASK
from forensics.steps import StepRange

S, BATCH, STEPS = 32, 4, 600


def write_run(out: Path, docs: list[np.ndarray], **columns: np.ndarray) -> Path:
    """A Megatron run over these documents, and its log."""
    lengths = np.array([len(d) for d in docs], "<i4")
    (out / "data").mkdir(exist_ok=True)
    np.concatenate(docs).astype("<u2").tofile(out / "data" / "web.bin")
    offsets = np.r_[0, np.cumsum(lengths[:-1], dtype="<i8") * 2].astype("<i8")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(docs), len(docs) + 1)
    (out / "data" / "web.idx").write_bytes(head + lengths.tobytes() + offsets.tobytes() + np.arange(len(docs) + 1, dtype="<i8").tobytes())
    log = [{"step": n, **{name: float(x[n - 1]) for name, x in columns.items()}} for n in range(1, STEPS + 1)]
    (out / "log.jsonl").write_text("".join(json.dumps(x) + "\n" for x in log))
    args = {"data_path": ["data/web"], "split": "100,0,0", "seq_length": S, "seed": 11, "global_batch_size": BATCH, "micro_batch_size": 2,
            "data_parallel_size": 2, "train_iters": STEPS, "eval_interval": 1000, "eval_iters": 0}  # fmt: skip
    content = {"run": "t", "trainer": "megatron", "version": "0.16.1", "args": args, "metrics": "log.jsonl", "checkpoints": [100, 200, 290]}
    (out / "forensics.yaml").write_text(yaml.safe_dump(content))
    return out


def falling(rng: np.random.Generator) -> np.ndarray:
    """The loss of a run without an event."""
    return 2 + 2 * np.arange(20, STEPS + 20.0) ** -0.4 + 0.01 * rng.standard_normal(STEPS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    rng = np.random.default_rng(1)
    docs = [np.append(1 + np.minimum(rng.zipf(1.5, int(rng.integers(30, 120))), 400), 0) for _ in range(1200)]
    loss = falling(rng)
    loss[300:330] += np.linspace(1.5, 0.1, 30)
    return write_run(tmp_path_factory.mktemp("run"), docs, loss=loss)


def test_the_incident_is_replayed_and_summed_up(folder, tmp_path) -> None:
    done = postmortem(tmp_path / "pm", (), open_run(folder), settings({}, []), ReplayConfig())
    assert len(done.incidents) == 1
    (incident,) = done.incidents
    assert 298 <= incident.start <= 303 and incident.case is not None and incident.why_not is None
    verdict = json.loads((tmp_path / "pm" / incident.case / "verdict.json").read_text())
    assert incident.sentence == verdict["sentence"]
    stored = json.loads((tmp_path / "pm" / "postmortem.json").read_text())
    assert stored["incidents"][0]["steps"] == incident.steps and stored["passed_over"] == 0
    assert (tmp_path / "pm" / "README.txt").read_text().splitlines() == lines(done)
    assert (tmp_path / "pm" / "curves" / "tables" / "events.parquet").exists()


def test_of_two_incidents_only_the_one_with_dirty_documents_is_the_data(tmp_path) -> None:
    rng = np.random.default_rng(2)
    docs = [np.append(1 + np.minimum(rng.zipf(1.5, S - 1), 400), 0) for _ in range(BATCH * STEPS + 8)]  # one document a sequence
    loss, rate = falling(rng), np.full(STEPS, 1e-3)
    loss[329:349] += np.linspace(1.5, 0.1, 20)
    loss[500:520] += np.linspace(1.5, 0.1, 20)
    rate[499:510] *= 8
    run = open_run(write_run(tmp_path, docs, loss=loss, learning_rate=rate))
    read = pa.concat_tables(loader_of(run).consumed(run, StepRange(330, 350)))
    dirty = read.filter(pc.greater(pc.subtract(read["doc_stop"], read["doc_start"]), 1))["doc_key"].unique().to_pylist()
    for key in dirty:
        docs[key & DOC_MASK] = np.append(np.full(S - 1, 7), 0)
    done = postmortem(tmp_path / "pm", (), open_run(write_run(tmp_path, docs, loss=loss, learning_rate=rate)), settings({}, []), ReplayConfig())
    assert [(i.cause, i.skip is not None) for i in done.incidents] == [("data", True), ("numerics", False)]
    assert [abs(i.start - at) <= 2 for i, at in zip(done.incidents, (330, 501), strict=True)] == [True, True]
    named = {
        r["start"] & DOC_MASK
        for r in pq.read_table(tmp_path / "pm" / str(done.incidents[0].case) / "tables/skips.parquet").to_pylist()
        if r["kind"] == "documents"
    }
    assert len(named & {k & DOC_MASK for k in dirty}) >= 0.9 * len(dirty) and named <= {k & DOC_MASK for k in dirty}
    assert recurring(done.incidents) == []


def test_an_incident_that_cannot_be_replayed_says_why(folder, tmp_path) -> None:
    run = open_run(folder, ["launches=[{after_step: 0, last_step: 200}]", "args.train_iters=200"])
    done = postmortem(tmp_path / "pm", (), run, settings({}, []), ReplayConfig())
    assert done.incidents[0].why_not and any("not replayed" in line for line in lines(done))


def test_a_run_without_logs_is_refused(folder, tmp_path) -> None:
    with pytest.raises(UsageError, match="needs the run's logs"):
        postmortem(tmp_path / "pm", (), open_run(folder, ["metrics=[]"]), settings({}, []), ReplayConfig())


def verdict(start: int, stop: int, cost: float | None, metric: str = "train_loss", level: str = "alarm") -> Verdict:
    return Verdict(0, start, stop, "spike", metric, level, None, None, None, None, (), None, "s", None, "replay", None, cost, None)


def test_the_costliest_alarms_on_the_loss_come_first_and_overlaps_once() -> None:
    found = [
        verdict(10, 20, 5),
        verdict(15, 30, 50),
        verdict(100, 110, 1),
        verdict(200, 220, 9),
        verdict(300, 301, 99, "grad_norm"),
        verdict(1, 2, 9, level="notice"),
    ]
    assert [(v.start, v.cost) for v in chosen(found, 2)] == [(15, 50), (200, 9)]
    assert [v.start for v in chosen(found[4:], 3)] == [300]


def incident(cause: str | None, case: str | None = "steps-1-9") -> Incident:
    return Incident(1, 9, "spike", "train_loss", "returned", None, None, cause, "low", "s.", None, case=case)


def test_settings_are_advised_only_where_spikes_recur_without_dirty_data() -> None:
    assert "lower the learning rate" in recurring([incident("numerics"), incident("undetermined"), incident(None)])[0]
    assert recurring([incident("numerics")]) == [] == recurring([incident("numerics"), incident("data")])
    assert recurring([incident("numerics"), incident("numerics", None)]) == []  # one was not looked at
