"""A corpus audited: the same for any cut and any number of workers, resumable, and honest about what it could not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from forensics.pipelines.audit import audit, plan, read_settings
from typer.testing import CliRunner

from forensics.case import Case
from forensics.engines.local import Inline, Processes
from forensics.errors import StoreError
from forensics.stores.records import ReadOptions
from forensics.stores.write import MegatronWriter

SENTENCE = "the quick brown fox jumps over a lazy dog while seven wizards boil potions in old kettles near rivers"
WORDS = SENTENCE.split()


def text(seed: int, n: int = 120) -> str:
    rng = np.random.default_rng(seed)
    return " ".join(rng.choice(WORDS, n)) + f" {seed}."


def corpus(folder: Path) -> Path:
    """Texts, an exact copy, a near copy, a repetition, U+FFFD, an empty one, and two lines that are none."""
    records = [{"id": f"doc{i}", "text": text(i), "source": "web" if i % 2 else "books"} for i in range(40)]
    records += [{"id": "copy", "text": text(3)}, {"id": "near", "text": text(4) + " and one more thing"}, {"id": "backslashes", "text": "\\" * 6000}]
    records += [{"id": "lost", "text": text(70).replace("o", "\ufffd")}, {"id": "empty", "text": ""}]
    path = folder / "docs.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records) + '{"broken\n["a list"]\n')
    return path


def run(paths: list[Path], case: Path, *settings: str, engine: Any = None, **options: Any) -> dict[str, Any]:
    chosen = read_settings(settings)
    return audit(Case(case), plan(paths, case, ReadOptions(**options), chosen), chosen, engine or Inline())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("audit")
    path = corpus(folder)
    return path, folder / "case", run([path], folder / "case")


def test_what_is_found(small: tuple[Path, Path, dict[str, Any]]) -> None:
    _, case, result = small
    documents = {r["doc_key"]: r for r in pq.read_table(case / "tables" / "documents.parquet").to_pylist()}
    assert [r["name"] for r in documents.values()][:2] == ["doc0", "doc1"] and len(documents) == 45
    assert {r["source"] for r in documents.values()} == {"web", "books", "docs"}
    primary = {documents[r["doc_key"]]["name"]: r["cause"] for r in pq.read_table(case / "tables" / "findings.parquet").to_pylist() if r["primary"]}
    assert primary["backslashes"] == "repetition" and primary["lost"] == "mojibake" and primary["copy"] == "duplicate"
    assert not any(name.startswith("doc") and cause != "duplicate" for name, cause in primary.items())
    dedup = {(r["kind"], r["members"]) for r in result["dedup"].to_pylist()}
    assert dedup == {("exact", 2), ("near", 2)}
    near = {documents[r["doc_key"]]["name"] for r in result["clusters"].to_pylist() if r["kind"] == "near"}
    assert near == {"doc3", "copy", "doc4", "near"}
    failures = result["failures"].to_pylist()
    assert [f["item"].rsplit(":", 1)[1] for f in failures] == ["46", "47"]
    assert set(Case(case).tables()) >= {
        "documents",
        "findings",
        "clusters",
        "dedup",
        "buckets",
        "sources",
        "lengths",
        "failures",
        "corpora",
        "measures/repetition",
        "source_matrix",
    }
    assert json.loads((case / "case.json").read_text())["bands"].startswith("18 bands of 7 rows")


def tables(case: Path) -> dict[str, pa.Table]:
    of_all = ("documents", "findings", "clusters", "dedup", "sources", "lengths", "buckets", "failures", "not_evaluated", "identity")
    names = (*of_all, "measures/repetition", "measures/distribution", "measures/bigrams")
    return {name: pq.read_table(case / "tables" / f"{name}.parquet").replace_schema_metadata(None) for name in names}


@pytest.mark.parametrize(("settings", "engine"), [(["engine.batch_mb=0"], Inline()), (["engine.shard_mb=0"], Inline())])
def test_any_cut_gives_the_same(
    small: tuple[Path, Path, dict[str, Any]], tmp_path: Path, settings: list[str], engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, case, _ = small
    import forensics.stores.jsonl as jsonl

    if "shard" in settings[0]:
        monkeypatch.setattr(jsonl.JsonlFile, "shards", _many_shards(jsonl.JsonlFile.shards))
    run([path], tmp_path / "case", *settings, engine=engine)
    for name, table in tables(case).items():
        assert tables(tmp_path / "case")[name].equals(table), name


def _many_shards(plain: Any) -> Any:
    return lambda self, size: plain(self, 1500)


def test_processes_give_the_same(small: tuple[Path, Path, dict[str, Any]], tmp_path: Path) -> None:
    path, case, _ = small
    other = tmp_path / "two.jsonl.zst"
    other.write_bytes(zstandard.ZstdCompressor().compress(path.read_bytes()))
    run([path, other], tmp_path / "one")
    run([path, other], tmp_path / "many", engine=Processes(2))
    for name, table in tables(tmp_path / "one").items():
        assert tables(tmp_path / "many")[name].equals(table), name
    assert tables(tmp_path / "one")["documents"].num_rows == 2 * tables(case)["documents"].num_rows


def test_only_what_is_missing_is_done_again(small: tuple[Path, Path, dict[str, Any]], tmp_path: Path) -> None:
    path, _, _ = small
    copy = tmp_path / "more.jsonl"
    copy.write_text(json.dumps({"text": text(99)}) + "\n")
    case = tmp_path / "case"
    run([path, copy], case)
    parts = {p: p.stat().st_mtime_ns for p in (case / "parts" / "documents").glob("*")}
    clusters = (case / "tables" / "clusters.parquet").stat().st_mtime_ns
    assert len(parts) == 2
    chosen = read_settings()
    assert plan([path, copy], case, ReadOptions(), chosen).done == 2
    run([path, copy], case)
    assert {p: p.stat().st_mtime_ns for p in (case / "parts" / "documents").glob("*")} == parts
    assert (case / "tables" / "clusters.parquet").stat().st_mtime_ns == clusters
    (case / "parts" / "part-00001-000000.json").unlink()
    assert plan([path, copy], case, ReadOptions(), chosen).done == 1
    run([path, copy], case)
    changed = [p.name for p in (case / "parts" / "documents").glob("*") if p.stat().st_mtime_ns != parts[p]]
    assert changed == ["part-00001-000000.parquet"]
    run([path], case)
    assert [p.name for p in (case / "parts" / "documents").glob("*")] == ["part-00000-000000.parquet"]
    assert Case(case).read("documents").num_rows == 45


def test_token_corpora_without_a_tokenizer(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    docs = [rng.integers(0, 60_000, n) for n in (300, 1, 0, 500)] + [np.full(2000, 7)]
    docs.append(docs[0])
    with MegatronWriter(tmp_path / "c", np.dtype(np.uint16)) as writer:
        for d in docs:
            writer.add(d, np.array([len(d)]))
    result = run([tmp_path / "c.idx"], tmp_path / "case")
    assert result["documents"].column("tokens").to_pylist() == [300, 1, 0, 500, 2000, 300]
    assert result["documents"].column("bytes").null_count == 6
    causes = {(r["doc_key"], r["cause"]) for r in result["findings"].to_pylist()}
    assert (5, "duplicate") in causes
    assert any("no tokenizer" in r["why"] for r in result["not_evaluated"].to_pylist())
    raw = np.concatenate([np.append(d, 65_000) for d in docs]).astype(np.uint16)
    raw.tofile(tmp_path / "raw.bin")
    again = run([tmp_path / "raw.bin"], tmp_path / "case2", dtype="uint16", eos=65_000)
    assert again["documents"].column("tokens").to_pylist() == [301, 2, 1, 501, 2001, 301]


def test_a_file_that_does_not_read_is_a_failure_among_others(tmp_path: Path) -> None:
    good = tmp_path / "a.jsonl"
    good.write_text('{"text": "fine"}\n')
    (tmp_path / "b.json").write_text("[1]")
    result = run([tmp_path], tmp_path / "case")
    assert result["failures"].column("stage").to_pylist() == ["open"] and result["documents"].num_rows == 1
    with pytest.raises(StoreError, match="one JSON list"):
        run([tmp_path / "b.json"], tmp_path / "case")


def test_the_command(small: tuple[Path, Path, dict[str, Any]], tmp_path: Path) -> None:
    import typer

    from forensics.cli.audit import command

    app = typer.Typer()
    app.command()(command)
    path, case, _ = small
    done = CliRunner().invoke(app, [str(path), "-o", str(case)])
    assert done.exit_code == 0, done.output
    assert "45 documents" in done.stdout and "repetition" in done.stdout and "1 of them done before" in done.stderr
    as_json = CliRunner().invoke(app, [str(path), "-o", str(case), "--format", "json"])
    found = json.loads(as_json.stdout)
    assert found["documents"] == 45 and found["failures"] == 2 and found["dedup"]["exact"]["clusters"] == 1
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a"}\n' + "x\n" * 9)
    failed = CliRunner().invoke(app, [str(bad), "-o", str(tmp_path / "case")])
    assert failed.exit_code == 1 and "90.0 % of the records" in failed.stderr
    allowed = CliRunner().invoke(app, [str(bad), "-o", str(tmp_path / "case"), "--set", "max_failed_share=0.95"])
    assert allowed.exit_code == 0


def test_what_is_counted_in_tokens_is_not_told_of_texts(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.jsonl").write_text(json.dumps({"text": text(1, 9000)}) + "\n")
    with MegatronWriter(data / "b", np.dtype(np.uint16)) as writer:
        writer.add(np.arange(40000, dtype=np.uint16), np.array([36000, 4000]))
    wanted = [r for r in run([data / "b"], tmp_path / "tokens")["buckets"].to_pylist() if r["scheme"] == "as_is"]
    mixed = run([data], tmp_path / "mixed")
    assert mixed["unit"] == "tokens or bytes" and mixed["corpora"].column("unit").to_pylist() == ["byte", "token"]
    assert [r for r in mixed["buckets"].to_pylist() if r["scheme"] == "as_is"] == wanted
    assert "batching" in mixed["not_evaluated"].column("what").to_pylist()
    found = mixed["findings"].filter(mixed["findings"].column("cause").cast(pa.string()).to_numpy(zero_copy_only=False) == "length").to_pylist()
    assert [(r["doc_key"] >> 40 > 0, r["detail"]) for r in found] == [(True, "36,000 tokens fill 9 sequences in a row")]
    texts = run([data / "a.jsonl"], tmp_path / "texts")
    assert texts["unit"] == "bytes" and texts["buckets"].num_rows == 0 and int(texts["documents"].column("tokens")[0].as_py()) > 8 * 4096
