"""The recorder: what it writes reads back, and nothing it meets reaches the training."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

import forensics.live.recorder as module
from forensics.errors import StoreError
from forensics.live.recorder import Recorder, Spike
from forensics.loaders.base import loader_of
from forensics.losses.recorded import read_losses
from forensics.records import read_records, record_shards
from forensics.run import open_run
from forensics.schemas import CONSUMED
from forensics.steps import StepRange

EOD = 9


def batch(rng: np.random.Generator, rows: int = 4, width: int = 33) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens [rows, width], losses and mask of the labels [rows, width - 1]."""
    return rng.integers(0, 12, (rows, width)), rng.gamma(2.0, 1.0, (rows, width - 1)), (rng.random((rows, width - 1)) > 0.2).astype(float)


def by_hand(tokens: np.ndarray, loss: np.ndarray, mask: np.ndarray) -> list[tuple[int, int, int, float]]:
    """(row, seq_start, labels, sum) per document part, label by label."""
    out = []
    for r in range(len(tokens)):
        start, count, total = 0, 0, 0.0
        for j in range(loss.shape[1]):
            if tokens[r, j] == EOD:  # label j is token j + 1, the first of the next document
                out.append((r, start, count, total))
                start, count, total = j + 1, 0, 0.0
            if mask[r, j]:
                count, total = count + 1, total + loss[r, j]
        out.append((r, start, count, total))
    return [x for x in out if x[2]]


def test_sums_per_document_part_are_those_added_label_by_label(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    want = []
    with Recorder(tmp_path, rank=1, world_size=3) as recorder:
        for step in range(1, 6):
            for micro in range(2):
                tokens, loss, mask = batch(rng)
                recorder.record(step, sample=np.arange(4) + 100 * step, microbatch=micro, tokens=tokens, loss=loss, mask=mask, eod=EOD)
                want += [(step, (micro * 3 + 1) * 4 + r, 100 * step + r, micro, start, n, total) for r, start, n, total in by_hand(tokens, loss, mask)]
    got = read_records(tmp_path, "losses").to_pydict()
    rows = list(zip(*(got[c] for c in ("step", "sequence", "sample", "microbatch", "seq_start", "predicted")), strict=True))
    assert rows == [w[:6] for w in want]
    np.testing.assert_allclose(got["loss_sum"], [w[6] for w in want], rtol=1e-12)
    assert set(got["rank"]) == {1}
    assert recorder.errors == recorder.dropped == 0


def test_a_loss_that_is_not_finite_stays_in_its_document(tmp_path: Path) -> None:
    tokens = np.array([[1, 2, EOD, 3, 4, 5]])
    loss = np.array([[1.0, 1.0, np.nan, 1.0, 1.0]])
    with Recorder(tmp_path) as recorder:
        recorder.record(1, tokens=tokens, loss=loss, eod=EOD)
        recorder.record(2, tokens=tokens, loss=np.array([[1.0, np.inf, 1.0, 1.0, 1.0]]), mask=np.array([[1, 0, 1, 1, 1]]), eod=EOD)
    got = read_records(tmp_path, "losses").to_pydict()
    np.testing.assert_array_equal(got["loss_sum"], [2.0, np.nan, 1.0, 3.0])
    assert got["predicted"] == [2, 3, 1, 3]


def test_known_documents_are_consumed_rows_and_the_replay_reads_them(tmp_path: Path) -> None:
    """Rows of six tokens over documents of a data file, with the overlap of one token that a trainer reads."""
    data = tmp_path / "data"
    data.mkdir()
    lengths = [4, 0, 7, 3, 9]
    tokens = np.concatenate([np.full(n, 10 + d) for d, n in enumerate(lengths)]).astype("<i4")
    write_pair(data / "text_document", lengths, tokens)
    starts = np.cumsum([0, *lengths])
    with Recorder(tmp_path / "records", corpora=["text_document"]) as recorder:
        for step in (1, 2):
            parts = []
            for row in range(2):
                at = ((step - 1) * 2 + row) * 5
                for d, n in enumerate(lengths):
                    a, b = max(at, starts[d]), min(at + 6, starts[d] + n)
                    if a < b:
                        parts.append((row, a - at, d, a - starts[d], b - starts[d]))
            cols = dict(zip(("row", "seq_start", "document", "doc_start", "doc_stop"), np.array(parts).T, strict=True))
            recorder.record(step, sample=[2 * step - 2, 2 * step - 1], documents={**cols, "corpus": np.zeros(len(parts))}, loss=np.ones((2, 5)))
    spec = {
        "trainer": "recorded",
        "args": {"data_path": ["data/text_document"], "consumed": "records", "seq_length": 5, "global_batch_size": 2},
        "losses": "records",
    }
    (tmp_path / "forensics.yaml").write_text(yaml.safe_dump(spec))
    run = open_run(tmp_path)
    loader = loader_of(run)
    (table,) = list(loader.consumed(run, StepRange(1, 3)))
    flat, offsets = loader.store(run).gather(table)
    rows: dict[tuple[int, int], list[int]] = {}
    for i, (step, seq) in enumerate(zip(table.column("step").to_pylist(), table.column("sequence").to_pylist(), strict=True)):
        rows.setdefault((step, seq), []).extend(flat[offsets[i] : offsets[i + 1]].tolist())
    assert rows == {(s, r): tokens[(2 * s - 2 + r) * 5 :][:6].tolist() for s in (1, 2) for r in (0, 1)}
    losses = read_records(tmp_path / "records", "losses").to_pydict()
    assert sum(losses["predicted"]) == 2 * 2 * 5, "every label belongs to one document"
    assert losses["corpus"] == ["text_document"] * len(losses["corpus"])
    joined = read_losses(run.losses, table, loader.corpora(run))
    assert sum(joined["predicted"].to_pylist()) == 2 * 2 * 5
    assert sum(joined["loss_sum"].to_pylist()) == 2 * 2 * 5
    assert joined["doc_key"].null_count == 0


def test_losses_split_at_document_ends_join_the_order_of_a_replay(tmp_path: Path) -> None:
    """The trainer knows no documents, only tokens; the replay knows which document begins where. Row 1 has one that does not end with the id."""
    tokens = np.array([[1, 2, EOD, 3, 4, 5, 6], [1, 2, 3, EOD, 4, 5, EOD]])
    parts = [(0, 0, 3, 0), (0, 3, 4, 1), (1, 0, 2, 2), (1, 2, 2, 3), (1, 4, 3, 4)]
    consumed = CONSUMED.of({
        "launch": [0] * 5, "step": [1] * 5, "sequence": [p[0] for p in parts], "seq_start": [p[1] for p in parts], "sample": [p[0] for p in parts],
        "doc_key": [p[3] for p in parts], "doc_start": [0] * 5, "doc_stop": [p[2] for p in parts],
    })  # fmt: skip
    with Recorder(tmp_path) as recorder:
        recorder.record(1, tokens=tokens, loss=np.arange(12.0).reshape(2, 6), eod=EOD)
    got = read_losses([tmp_path], consumed).to_pylist()
    assert [(r["sequence"], r["seq_start"], r["doc_key"], r["predicted"], r["loss_sum"]) for r in got] == [
        (0, 0, 0, 2, 1.0), (0, 3, 1, 4, 14.0), (1, None, None, 6, 51.0),
    ]  # fmt: skip


def write_pair(prefix: Path, lengths: list[int], tokens: np.ndarray) -> None:
    """A Megatron .bin/.idx pair."""
    n = len(lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]]) * 4
    head = b"MMIDIDX\0\0" + np.array([1], "<u8").tobytes() + b"\x04" + np.array([n, n + 1], "<u8").tobytes()
    body = np.array(lengths, "<i4").tobytes() + offsets.astype("<i8").tobytes() + np.arange(n + 1, dtype="<i8").tobytes()
    prefix.with_name(prefix.name + ".idx").write_bytes(head + body)
    prefix.with_name(prefix.name + ".bin").write_bytes(tokens.tobytes())


def test_rows_without_documents_and_means_are_kept_as_what_they_are(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.record(1, sample=[5, 6], loss=[3.0, 4.0], predicted=[2, 2])
        recorder.record(2, sample=[7, 8], loss=np.ones((2, 3)))
        recorder.record(3, sample=[9, 10], loss=1.5, predicted=8)
        recorder.record(4, sample=[11, 12])
    losses = read_records(tmp_path, "losses").to_pydict()
    assert list(zip(losses["step"], losses["sample"], losses["predicted"], losses["loss_sum"], strict=True)) == [
        (1, 5, 2, 3.0), (1, 6, 2, 4.0), (2, 7, 3, 3.0), (2, 8, 3, 3.0), (3, None, 8, 12.0),
    ]  # fmt: skip
    consumed = read_records(tmp_path, "consumed").to_pydict()
    assert list(zip(consumed["step"], consumed["sample"], strict=True)) == [(3, 9), (3, 10), (4, 11), (4, 12)]


def test_restarts_are_numbered_and_become_launches(tmp_path: Path) -> None:
    for first, last in ((1, 4), (3, 6)):
        with Recorder(tmp_path / "records") as recorder:
            for step in range(first, last + 1):
                recorder.record(step, documents={"row": [0], "seq_start": [0], "document": [step], "doc_start": [0], "doc_stop": [5]})
        assert recorder.launch == (0 if first == 1 else 1)
    (tmp_path / "forensics.yaml").write_text("trainer: recorded\nargs: {data_path: [text], consumed: records, global_batch_size: 1}\n")
    run = open_run(tmp_path)
    assert [(x.number, x.after_step, x.last_step) for x in run.launches] == [(0, 0, 4), (1, 2, 6)]
    assert any("launches are those of the record" in n for n in run.notes)


def test_an_alarm_keeps_the_tokens_of_the_step_and_the_one_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    with Recorder(tmp_path, keep=2) as recorder:
        for step in range(1, 41):
            for micro in range(2):
                tokens = np.full((2, 9), step * 10 + micro)
                recorder.record(step, microbatch=micro, tokens=tokens, loss=rng.normal(2.0, 0.01, (2, 8)) + 5.0 * (step == 30))
    kept = sorted(tmp_path.glob("alarm-*.npz"))
    assert [p.name for p in kept] == ["alarm-0-0-29-0.npz", "alarm-0-0-29-1.npz", "alarm-0-0-30-0.npz", "alarm-0-0-30-1.npz"]
    with np.load(kept[3]) as box:
        assert set(box["tokens"].ravel()) == {301}
        assert str(box["reason"]).startswith("loss ")
        assert box["loss"].shape == (2, 8)


def test_an_alarm_from_outside_is_served_in_order(tmp_path: Path) -> None:
    with Recorder(tmp_path, alarm=False) as recorder:
        for step in range(1, 4):
            recorder.record(step, tokens=np.full((1, 4), step), loss=np.ones((1, 3)))
        recorder.keep_batch(3, "grad norm")
    assert [p.name for p in sorted(tmp_path.glob("alarm-*"))] == ["alarm-0-0-2-0.npz", "alarm-0-0-3-0.npz"]


def test_the_built_in_alarm_is_quiet_on_noise_and_loud_on_spikes() -> None:
    rng = np.random.default_rng(2)
    alarm = Spike()
    assert [alarm(s, x) for s, x in enumerate(rng.normal(2.0, 0.05, 2000)) if alarm(s, x)] == []
    assert "over" in str(alarm(2001, 3.0))
    assert alarm(2002, float("nan")) == "loss is not finite"
    flat = Spike()
    assert not any(flat(s, 2.0 + 0.01 * (s % 7 == 0)) for s in range(100)), "rounded losses have no spread, which is no alarm"


@pytest.mark.parametrize(
    "bad",
    [
        {"loss": "text"}, {"loss": np.ones((2, 3)), "mask": np.ones((9, 9))}, {"sample": [1, 2], "loss": np.ones((5, 2))}, {"tokens": object(), "eod": 1},
        {"documents": {"row": [0]}}, {"documents": 5}, {"loss": lambda: 1 / 0}, {"loss": np.ones((2, 2)), "sequence": [[1]]}, {"sample": [2**70]},
    ],
)  # fmt: skip
def test_nothing_is_ever_raised_into_the_training(bad: dict[str, object], tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.record(1, **bad)  # type: ignore[arg-type]
        recorder.record(2, sample=[1], loss=[1.0])
    assert recorder.errors == 1
    assert recorder.last_error
    assert read_records(tmp_path, "losses").column("step").to_pylist() == [2], "the next batch is recorded all the same"


def test_a_folder_that_cannot_be_written_does_not_stop_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Recorder(tmp_path / "file" / "records") as recorder:
        recorder.record(1, loss=[1.0])
    assert recorder.errors > 0


def test_a_full_queue_drops_and_counts_and_never_waits(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, pending=2)
    started = time.perf_counter()
    for step in range(50):
        recorder.record(step, loss=(lambda: time.sleep(0.05) or [1.0]))
    assert time.perf_counter() - started < 0.05 * 20
    recorder.close()
    assert recorder.dropped > 0
    steps = read_records(tmp_path, "losses").column("step").to_pylist()
    assert len(steps) + recorder.dropped == 50
    assert f'"dropped_batches": {recorder.dropped}' in (tmp_path / "start-0-0.info").read_text()


def test_a_kill_loses_what_was_not_written_and_nothing_else(tmp_path: Path) -> None:
    code = (
        "import sys, time, numpy as np\nfrom forensics.live.recorder import Recorder\n"
        "r = Recorder(sys.argv[1], rows=100)\n"
        "for s in range(1, 10**6):\n    r.record(s, loss=np.ones(10)); time.sleep(0.001)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    try:
        limit = time.monotonic() + 60
        while len(record_shards(tmp_path, "losses")) < 3 and time.monotonic() < limit:
            time.sleep(0.05)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    steps = read_records(tmp_path, "losses").column("step").to_numpy()
    assert len(steps) >= 300
    np.testing.assert_array_equal(np.unique(steps), np.arange(1, steps.max() + 1))


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.record(1, loss=[1.0])
    (shard,) = record_shards(tmp_path, "losses")
    shard.write_bytes(shard.read_bytes()[:50])
    with pytest.raises(StoreError, match="no readable shard"):
        read_records(tmp_path, "losses")
    np.savez(shard, step=np.arange(3), sequence=np.arange(4))
    with pytest.raises(StoreError, match="different lengths or types"):
        read_records(tmp_path, "losses")
    with pytest.raises(StoreError, match="holds no `losses"):
        read_records(tmp_path / "no", "losses")


def test_a_corpus_that_the_recorder_was_not_told_of_is_an_error_of_the_batch(tmp_path: Path) -> None:
    with Recorder(tmp_path, corpora=["a"]) as recorder:
        for corpus in (3, 0):
            recorder.record(1, documents={"row": [0], "seq_start": [0], "document": [1], "doc_start": [0], "doc_stop": [5], "corpus": [corpus]})
    assert recorder.errors == 1
    assert read_records(tmp_path, "consumed").column("corpus").to_pylist() == ["a"]


def test_it_is_python_3_9_and_imports_nothing_of_ours() -> None:
    folder = Path(module.__file__).parent
    for path in [Path(module.__file__), *sorted((folder / "hooks").glob("for_*.py"))]:
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        names = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)} | {
            a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names
        }
        ours = {n for n in names if n.startswith("forensics")}
        assert ours <= {"forensics.live.recorder"}
        others = {n.split(".")[0] for n in names - ours} - {"__future__", "numpy"}
        assert others <= set(sys.stdlib_module_names)
