"""Recorded losses in all their forms, joined to what was consumed, and refused where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forensics.errors import ConfigError, RunError, StoreError
from forensics.losses.fit import follows, in_bits, unit_of
from forensics.losses.labels import recorded_labels
from forensics.losses.recorded import read_losses
from forensics.schemas import CONSUMED, CORPORA, Consumed


def consumed() -> Consumed:
    """Two steps of two rows of nine tokens (eight labels); document 7 lies in row 1 of step 5 twice."""
    rows = [
        (0, 4, 0, 0, 40, 0, 3, 0),
        (0, 4, 0, 3, 41, 0, 6, 0),
        (0, 4, 1, 0, 42, 0, 9, 1),
        (0, 5, 0, 0, 43, 2, 11, 2),
        (0, 5, 1, 0, 7, 0, 4, 3),
        (0, 5, 1, 4, 8, 0, 1, 3),
        (0, 5, 1, 5, 7, 0, 4, 3),
    ]
    cols = list(zip(*rows, strict=True))
    return Consumed(
        CONSUMED.of(
            pa.table(
                {
                    "launch": pa.array(cols[0], pa.int16()),
                    "step": cols[1],
                    "sequence": pa.array(cols[2], pa.int32()),
                    "seq_start": pa.array(cols[3], pa.int32()),
                    "doc_key": cols[4],
                    "doc_start": cols[5],
                    "doc_stop": cols[6],
                    "sample": cols[7],
                    "rank": pa.array(cols[2], pa.int32()),
                }
            )
        )
    )


def write(path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_losses_per_document_take_their_place_in_the_row(tmp_path: Path) -> None:
    file = write(tmp_path / "l.parquet", step=[4, 4, 5, 5], sequence=[0, 0, 1, 1], document=[41, 40, 7, 7], predicted=[6, 2, 3, 4], loss=[2.0, 1.0, 3.0, 5.0])
    got = read_losses([file], consumed()).to_pylist()
    assert [(r["step"], r["sequence"], r["seq_start"], r["doc_key"], r["predicted"], r["loss_sum"]) for r in got] == [
        (4, 0, 0, 40, 2, 2.0),
        (4, 0, 3, 41, 6, 12.0),
        (5, 1, 0, 7, 3, 9.0),
        (5, 1, 5, 7, 4, 20.0),
    ]
    assert {r["origin"] for r in got} == {"recorded"}


def test_losses_per_label_are_summed_over_documents_and_masked_labels_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"
    values = [1.0, 2.0, 3.0, -100.0, 5.0, 6.0, 7.0, 8.0]
    file.write_text(
        json.dumps({"step": 4, "sample": 0, "token_losses": values}) + "\n" + json.dumps({"step": 5, "sample": 3, "token_losses": [1.0] * 8}) + "\n"
    )
    got = read_losses([file], consumed()).to_pylist()
    assert [(r["doc_key"], r["predicted"], r["loss_sum"]) for r in got] == [(40, 2, 3.0), (41, 5, 29.0), (7, 3, 3.0), (8, 1, 1.0), (7, 4, 4.0)]


def test_npz_of_rows_stays_as_coarse_as_it_is(tmp_path: Path) -> None:
    np.savez(tmp_path / "losses-0.npz", step=np.array([4, 4, 9]), sequence=np.array([0, 1, 0]), loss=np.array([2.0, 3.0, 1.0]))
    got = read_losses([tmp_path], consumed()).to_pylist()
    assert [(r["sequence"], r["seq_start"], r["doc_key"], r["predicted"], r["loss_sum"]) for r in got] == [(0, None, None, 8, 16.0), (1, 0, 42, 8, 24.0)]


def test_ranks_and_steps_are_never_spread_over_documents(tmp_path: Path) -> None:
    file = write(tmp_path / "l.parquet", step=[4, 4, 5], rank=[0, 1, 0], loss=[2.0, 3.0, 4.0])
    got = read_losses([file], consumed()).to_pylist()
    assert [(r["step"], r["sequence"], r["doc_key"], r["predicted"]) for r in got] == [(4, None, None, 8), (4, None, None, 8), (5, None, None, 8)]
    assert sum(r["loss_sum"] for r in got) == 8 * 9.0


def test_several_origins_stay_side_by_side(tmp_path: Path) -> None:
    a = write(tmp_path / "a.parquet", step=[4], sequence=[1], document=[42], predicted=[8], loss=[2.0])
    b = write(tmp_path / "b.parquet", step=[4], sequence=[1], document=[42], predicted=[8], loss=[3.0], origin=["checkpoint:3"])
    got = read_losses([a, b], consumed()).to_pylist()
    assert [(r["origin"], r["loss_sum"]) for r in got] == [("checkpoint:3", 24.0), ("recorded", 16.0)]


def test_nan_and_infinity_are_kept(tmp_path: Path) -> None:
    file = write(tmp_path / "l.parquet", step=[4, 4], sequence=[0, 0], document=[40, 41], predicted=[2, 6], loss_sum=[float("nan"), float("inf")])
    got = read_losses([file], consumed()).column("loss_sum").to_numpy()
    assert np.isnan(got[0]) and np.isinf(got[1])


def test_data_files_are_found_by_name(tmp_path: Path) -> None:
    names = CORPORA.of(
        pa.table(
            {
                "corpus_id": pa.array([0, 1], pa.int32()),
                "name": ["a_text", "b_text"],
                "path": ["data/a_text", "data/b_text"],
                "format": ["m", "m"],
                "source": ["a", "b"],
                "documents": [50, 50],
            }
        )
    )
    file = write(tmp_path / "l.parquet", step=[4], sequence=[1], corpus=["data/a_text"], document=[42], predicted=[8], loss=[2.0])
    assert read_losses([file], consumed(), names).num_rows == 1
    wrong = write(tmp_path / "w.parquet", step=[4], sequence=[1], corpus=["c_text"], document=[42], predicted=[8], loss=[2.0])
    with pytest.raises(RunError, match="c_text"):
        read_losses([wrong], consumed(), names)


def test_documents_that_a_row_did_not_hold_are_refused_unless_rows_were_sampled(tmp_path: Path) -> None:
    file = write(tmp_path / "l.parquet", step=[4, 4], sequence=[0, 1], document=[99, 98], predicted=[8, 8], loss=[2.0, 2.0])
    with pytest.raises(RunError, match="not held by"):
        read_losses([file], consumed())
    assert read_losses([file], consumed(), sampled=True).num_rows == 0
    rows = write(tmp_path / "r.parquet", step=[4], sequence=[77], loss=[2.0])
    with pytest.raises(RunError, match="did not read"):
        read_losses([rows], consumed())


def test_too_few_labels_for_a_row_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"
    file.write_text(json.dumps({"step": 4, "sequence": 0, "token_losses": [1.0] * 5}) + "\n")
    with pytest.raises(RunError, match="5 labels"):
        read_losses([file], consumed())


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"stp": [1], "loss": [1.0]}, "step"),
        ({"step": [4]}, "loss"),
        ({"step": [4], "sequence": [0], "loss_sum": [2.0]}, "predicted"),
        ({"step": [4], "sequense": [0], "loss": [2.0]}, "sequence"),
    ],
)
def test_missing_and_misspelt_columns_are_named(tmp_path: Path, columns: dict[str, list[float]], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        read_losses([write(tmp_path / "l.parquet", **columns)], consumed())


def test_files_that_do_not_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        read_losses([tmp_path / "none.parquet"], consumed())
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(StoreError, match=r"bad\.parquet"):
        read_losses([tmp_path / "bad.parquet"], consumed())
    np.savez(tmp_path / "losses-1.npz", step=np.array([object()], dtype=object), loss=np.array([1.0]))
    with pytest.raises(StoreError, match=r"losses-1\.npz"):
        read_losses([tmp_path / "losses-1.npz"], consumed())


def test_labels_of_some_documents_keep_their_places(tmp_path: Path) -> None:
    values = [float(v) for v in range(8)]
    values[3] = -100.0
    file = write(tmp_path / "l.parquet", step=[4, 5, 4], sequence=[0, 1, 1], token_losses=[values, [v + 10.0 for v in range(8)], [1.0] * 8])
    other = write(tmp_path / "m.parquet", step=[4], sequence=[0], loss=[1.0])
    got = recorded_labels([file, other], consumed(), np.array([41, 7])).to_pylist()
    assert [(r["step"], r["sequence"], r["seq_start"], r["doc_key"]) for r in got] == [(4, 0, 3, 41), (5, 1, 0, 7), (5, 1, 5, 7)]
    assert got[0]["values"][0] == 2.0 and np.isnan(got[0]["values"][1]) and got[0]["values"][2:] == [4.0, 5.0, 6.0, 7.0]
    assert got[1]["values"] == [10.0, 11.0, 12.0] and got[2]["values"] == [14.0, 15.0, 16.0, 17.0]
    assert recorded_labels([file], consumed(), np.array([41, 7]), most=1).num_rows == 1
    assert recorded_labels([file], consumed(), np.array([99])).num_rows == 0 == recorded_labels([other], consumed(), np.array([41])).num_rows
    sums = {(r["step"], r["sequence"], r["seq_start"]): r["loss_sum"] for r in read_losses([file], consumed()).to_pylist()}
    assert all(sums[r["step"], r["sequence"], r["seq_start"]] == np.nansum(r["values"]) for r in got)


def test_bits_and_perplexities_give_themselves_away() -> None:
    logged = np.linspace(4.5, 4.0, 30) + np.sin(np.arange(30))
    assert unit_of(logged * 1.001, logged) == "nats"
    assert unit_of(logged / np.log(2), logged) == "bits"
    assert unit_of(np.exp(logged), logged) == "perplexity"
    assert unit_of(logged[:3], logged[:3]) == "nats"


def test_bits_are_told_from_a_worse_checkpoint() -> None:
    rng = np.random.default_rng(1)
    run = rng.normal(4, 0.8, 400)
    noise = rng.normal(0, 0.1, 400)
    assert in_bits((run + noise) / np.log(2), run)
    assert not in_bits(run + noise, run) and not in_bits(run + 0.4427 * 4, run)  # 44 % dearer, but not wider
    assert not in_bits((run / np.log(2))[:50], run[:50])


def test_losses_of_other_rows_do_not_follow_their_difficulty() -> None:
    rng = np.random.default_rng(0)
    difficulty, at = rng.normal(5, 1, 600), np.repeat(np.arange(60), 10)
    loss = 0.6 * difficulty + rng.normal(0, 0.5, 600)
    assert follows(loss, difficulty, at)[0] > 0.6
    assert abs(follows(rng.permutation(loss), difficulty, at)[0]) < 0.15
    assert follows(loss[:10], difficulty[:10], at[:10])[1] == 10


def test_a_record_without_labels_shifts_no_other(tmp_path: Path) -> None:
    file = write(tmp_path / "l.parquet", step=[4, 5], sequence=[0, 1], token_losses=[None, [v + 10.0 for v in range(8)]])
    with pytest.raises(RunError, match="give 0 labels for row 0 of step 4"):
        read_losses([file], consumed())
    (first, second) = recorded_labels([file], consumed(), np.array([7])).to_pylist()
    assert first["values"] == [10.0, 11.0, 12.0] and second["values"] == [14.0, 15.0, 16.0, 17.0]
