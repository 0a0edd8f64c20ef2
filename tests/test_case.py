from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forensics.case import Case, open_case
from forensics.errors import ForensicsError, SchemaError, StoreError
from forensics.schemas import FAILURES, NOT_EVALUATED, SUSPECTS, Failures
from forensics.stage import fingerprint, stage

CALLS: list[int] = []


@stage(FAILURES, version=1)
def count_to(n: int) -> Failures:
    CALLS.append(n)
    return Failures(FAILURES.of({"stage": ["s"] * n, "item": [str(i) for i in range(n)], "error": ["e"] * n, "count": list(range(n))}))


def test_a_stage_runs_once_for_the_same_arguments(tmp_path: Path) -> None:
    CALLS.clear()
    case = Case(tmp_path / "case")
    first = case.run(count_to, 3)
    again = Case(tmp_path / "case").run(count_to, 3)
    assert CALLS == [3]
    assert first.to_pylist() == again.to_pylist()
    assert Case(tmp_path / "case").run(count_to, 4).num_rows == 4
    assert CALLS == [3, 4]


def test_what_follows_from_a_stored_table_is_known_by_its_mark(tmp_path: Path) -> None:
    case = Case(tmp_path)
    one = case.run(count_to, 2)
    assert fingerprint(one) == fingerprint(Case(tmp_path).get(FAILURES))


def test_parts_are_kept_when_a_later_one_fails(tmp_path: Path) -> None:
    CALLS.clear()
    case = Case(tmp_path)
    with pytest.raises(TypeError):
        case.run_parts(count_to, [("0000", (2,)), ("0001", (None,))])
    table = Case(tmp_path).run_parts(count_to, [("0000", (2,)), ("0001", (1,))])
    assert table.num_rows == 3
    assert CALLS == [2, None, 1]
    assert Case(tmp_path).get(FAILURES).num_rows == 3


def test_parts_of_an_older_request_go(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.run_parts(count_to, [("0000", (2,)), ("0001", (1,))])
    assert case.run_parts(count_to, [("0000", (2,))]).num_rows == 2
    assert case.get(FAILURES).num_rows == 2


def test_a_table_put_again_is_the_same_file(tmp_path: Path) -> None:
    def put(error: str) -> bytes:
        Case(tmp_path).put(FAILURES, pa.table({"stage": ["read"], "item": ["a"], "error": [error], "count": [1]}))
        return (tmp_path / "tables/failures.parquet").read_bytes()

    assert put("torn") == put("torn") != put("worn")


def test_nothing_half_written_remains(tmp_path: Path) -> None:
    with pytest.raises(SchemaError):
        Case(tmp_path).put(FAILURES, pa.table({"stage": ["a"]}))
    assert not list(tmp_path.rglob("*.part"))


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.run(count_to, 1)
    path = tmp_path / "tables/failures.parquet"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(StoreError, match="failures.parquet"):
        case.get(FAILURES)
    assert case.run(count_to, 1).num_rows == 1


def test_a_damaged_answer_is_named(tmp_path: Path) -> None:
    (tmp_path / "verdict.json").write_text("{")
    with pytest.raises(StoreError, match="verdict.json cannot be read"):
        Case(tmp_path).json("verdict.json")


@pytest.mark.parametrize(("name", "text"), [
    ("case.json", "[1]"), ("case.json", '{"run": 5}'), ("case.json", '{"seconds": [1]}'), ("case.json", "[" * 100_000),
    ("verdict.json", "[1]"), ("verdict.json", '{"evidence_for": 7}'), ("verdict.json", '{"rollback": "x"}'), ("verdicts.json", "[]"),
])  # fmt: skip
def test_a_file_of_another_shape_is_named_not_used(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / name).write_text(text)
    with pytest.raises(StoreError, match=name) as caught:
        open_case(tmp_path).json(name)
    assert caught.value.hint


def test_a_case_of_no_run_says_so(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.close(command="curves")
    with pytest.raises(StoreError, match="which run"):
        open_case(tmp_path).described()
    case.close(run="there/forensics.yaml", set=["a=1"])
    assert open_case(tmp_path).described() == (Path("there/forensics.yaml"), ["a=1"])


def test_a_table_with_other_columns_is_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "tables/failures.parquet")
    with pytest.raises(SchemaError) as caught:
        Case(tmp_path).get(FAILURES)
    assert "failures.parquet" in caught.value.text()


def test_a_folder_that_is_no_case_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForensicsError, match="no case folder"):
        open_case(tmp_path)
    with pytest.raises(StoreError, match="no table"):
        Case(tmp_path).get(NOT_EVALUATED)


def test_tables_refuse_unknown_and_missing_columns_and_nulls() -> None:
    with pytest.raises(SchemaError, match="did you mean `item`"):
        FAILURES.of({"stage": ["a"], "itme": ["b"], "error": ["c"], "count": [1]})
    with pytest.raises(SchemaError, match="lacks"):
        FAILURES.of({"stage": ["a"]})
    with pytest.raises(SchemaError, match="may not be null"):
        FAILURES.of({"stage": ["a"], "item": [None], "error": ["c"], "count": [1]})
    assert SUSPECTS.of({"rank": [1], "level": ["document"], "label": ["x"], "tokens_window": [1], "tokens_baseline": [0], "reasons": [["a"]]})[
        "excess"
    ].to_pylist() == [None]
