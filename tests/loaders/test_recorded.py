import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forensics.errors import ConfigError, RunError, StoreError
from forensics.loaders.base import loader_of
from forensics.steps import StepRange

ARGS = {"data_path": ["data/web", "data/code"], "consumed": "consumed.parquet", "seq_length": 4, "global_batch_size": 2}
ROWS = [  # step, sequence, seq_start, corpus, document, doc_start, doc_stop, sample
    (1, 0, 0, "web", 0, 0, 5, 7), (1, 1, 0, "code", 1, 2, 4, 3), (1, 1, 2, "web", 2, 0, 3, 3), (2, 0, 0, "web", 1, 0, 5, 9), (2, 1, 0, "code", 0, 1, 6, 1),
    (3, 0, 0, "web", 0, 5, 8, 2), (3, 0, 3, "web", 1, 0, 2, 2), (3, 1, 0, "web", 2, 3, 8, 4),
]  # fmt: skip
NAMES = ("step", "sequence", "seq_start", "corpus", "document", "doc_start", "doc_stop", "sample")


@pytest.fixture
def record(tmp_path, corpus, describe):
    corpus("web", [[8]] * 3, seed=1)
    corpus("code", [[6]] * 2, seed=2)

    def write(rows=ROWS, names=NAMES, args=(), extra=(), **keys):
        table = {n: [r[i] for r in rows] for i, n in enumerate(names)} | dict(extra)
        pq.write_table(pa.table(table), tmp_path / "consumed.parquet")
        return describe(ARGS | dict(args), trainer="recorded", version=None, **keys)

    return write


def read(run, start, stop, launch=None):
    return pa.concat_tables(loader_of(run).consumed(run, StepRange(start, stop), launch))


def test_a_record_is_handed_on_in_order(record):
    run = record(rows=ROWS[::-1])
    table = read(run, 1, 4)
    assert table["sample"].to_pylist() == [7, 3, 3, 9, 1, 2, 2, 4]
    assert table["doc_key"].to_pylist() == [0, (1 << 40) | 1, 2, 1, 1 << 40, 0, 1, 2]
    assert table["doc_stop"].to_pylist() == [5, 4, 3, 5, 6, 8, 2, 8]
    assert table["rank"].null_count == 8
    assert table.schema.metadata[b"origin"] == b"recorded"


def test_pieces_equal_the_whole(record):
    run = record()
    assert pa.concat_tables([read(run, s, s + 1) for s in (1, 2, 3)]).equals(read(run, 1, 4))


def test_tokens_are_those_of_the_files(record, tmp_path):
    run = record()
    store = loader_of(run).store(run)
    tokens, offsets = store.gather(read(run, 1, 2))
    web, code = (np.frombuffer((tmp_path / f"data/{n}.bin").read_bytes(), np.int32) for n in ("web", "code"))
    assert tokens.tolist() == [*web[0:5], *code[8:10], *web[16:19]]
    assert offsets.tolist() == [0, 5, 7, 10]


def test_json_lines_serve_as_well(record, tmp_path):
    run = record()
    want = read(run, 1, 4)
    lines = "\n".join(json.dumps(dict(zip(NAMES, row))) for row in ROWS)
    (tmp_path / "consumed.jsonl").write_text(lines + "\n")
    run = record(args={"consumed": "consumed.jsonl"})
    assert read(run, 1, 4).equals(want)


def test_a_corpus_may_be_named_by_path_tail_or_number(record):
    want = read(record(), 1, 4)
    for names in (("data/web", "data/code"), ("/cluster/data/web.bin", "/cluster/data/code.idx"), (0, 1)):
        rows = [(*r[:3], names[r[3] == "code"], *r[4:]) for r in ROWS]
        assert read(record(rows=rows), 1, 4).equals(want)


def test_a_corpus_that_is_none_of_them_is_refused(record):
    with pytest.raises(RunError, match="names the corpus `books`"):
        read(record(rows=[(*ROWS[0][:3], "books", *ROWS[0][4:])]), 1, 2)
    with pytest.raises(RunError, match="no column `corpus`"):
        read(record(rows=[(*r[:3], *r[4:]) for r in ROWS], names=[n for n in NAMES if n != "corpus"]), 1, 2)


def test_launches_follow_the_description(record):
    run = record(launches=[{"after_step": 0}, {"after_step": 2}])
    assert read(run, 1, 4)["launch"].to_pylist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert [tuple(r[k] for k in ("first_step", "stop_step")) for r in loader_of(run).launches(run).to_pylist()] == [(1, 3), (3, 4)]


def test_a_step_recorded_twice_needs_the_launch(record):
    again = [r for r in ROWS if r[0] == 3]
    launches = [{"after_step": 0, "last_step": 3}, {"after_step": 2}]
    with pytest.raises(RunError, match="recorded twice") as caught:
        read(record(rows=ROWS + again, launches=launches), 3, 4)
    assert "launch" in caught.value.hint
    run = record(rows=ROWS + again, launches=launches, extra={"launch": [0] * len(ROWS) + [1] * len(again)})
    assert read(run, 3, 4, 0)["launch"].to_pylist() == [0, 0, 0]
    assert read(run, 3, 4)["launch"].to_pylist() == [1, 1, 1]
    assert [who for _, who in loader_of(run).ran_twice(run, StepRange(1, 4))] == [(0, 1)]


def test_a_record_that_tells_launches_apart_says_how_far_each_ran(record):
    launches = [{"after_step": 0}, {"after_step": 1}]
    run = record(launches=launches, extra={"launch": [0, 0, 0, 0, 0, 1, 1, 1]})
    assert [(s.start, s.stop) for s in loader_of(run).spans(run)] == [(1, 3), (3, 4)]
    assert read(run, 2, 3, 0)["launch"].to_pylist() == [0, 0]
    with pytest.raises(RunError, match="launches 0 to 1, the description lists 1"):
        read(record(extra={"launch": [0, 0, 0, 0, 0, 1, 1, 1]}), 1, 2)


def test_steps_that_nobody_recorded_are_refused(record):
    with pytest.raises(RunError, match="no launch ran step 4"):
        read(record(), 3, 5)
    with pytest.raises(RunError, match="holds no rows of steps 2:3"):
        read(record(rows=[r for r in ROWS if r[0] != 2]), 1, 4)


def test_parts_that_the_files_do_not_hold_are_refused(record):
    with pytest.raises(RunError, match="does not hold"):
        read(record(rows=[(*ROWS[0][:6], 9, 7)]), 1, 2)
    with pytest.raises(RunError, match="does not hold"):
        read(record(rows=[(*ROWS[0][:4], 3, 0, 5, 7)]), 1, 2)
    with pytest.raises(RunError, match="ends before it begins"):
        read(record(rows=[(*ROWS[0][:5], 4, 2, 7)]), 1, 2)


def test_a_record_without_its_columns_is_refused(record, tmp_path):
    with pytest.raises(StoreError, match="lacks the column `doc_start`"):
        read(record(names=[n.replace("doc_start", "doc_begin") for n in NAMES]), 1, 2)
    run = record()
    (tmp_path / "consumed.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(StoreError, match="no readable record"):
        read(run, 1, 2)
    (tmp_path / "consumed.parquet").unlink()
    with pytest.raises(StoreError, match="does not exist"):
        read(run, 1, 2)


def test_arguments_are_checked(describe, record):
    with pytest.raises(ConfigError, match=r"`args\.consumed` is not given"):
        read(describe({"data_path": ["data/web"]}, trainer="recorded"), 1, 2)
    with pytest.raises(ConfigError, match="did you mean `consumed`"):
        read(record(args={"consumd": "x"}), 1, 2)


def test_a_record_is_worth_reading_without_the_data(record, tmp_path):
    run = record()
    want = read(run, 1, 4)
    for path in (tmp_path / "data").iterdir():
        path.unlink()
    run = record()
    assert read(run, 1, 4).equals(want)
    with pytest.raises(StoreError, match="does not exist"):
        loader_of(run).store(run)


def test_facts_of_steps(record):
    run = record(launches=[{"after_step": 0, "skipped": ["2:3"]}])
    facts = loader_of(run).trained(run, StepRange(1, 4))
    assert facts.trained.tolist() == [True, False, True]
    assert facts.sequences.tolist() == [2, 2, 2]
    assert facts.consumed_after.tolist() == [2, 4, 6]
    run = record(launches=[{"after_step": 1}])
    assert loader_of(run).trained(run, StepRange(2, 4)).consumed_after.tolist() == [-1, -1]


def test_documents_are_located(record):
    run = record()
    found = pa.concat_tables(loader_of(run).locate(run, np.array([1, 1 << 40])))
    assert list(zip(found["step"].to_pylist(), found["sequence"].to_pylist(), found["seq_start"].to_pylist())) == [(2, 0, 0), (2, 1, 0), (3, 0, 3)]
