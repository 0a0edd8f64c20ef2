"""The shipped run and variants of it: another seed, kind and step must be found; clean windows must not be called data."""

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import zstandard
from forensics.pipelines.lookup import look_up
from forensics.pipelines.replay import Outcome, ReplayConfig, plan_replay, replay

from forensics.case import Case
from forensics.errors import RunError
from forensics.loaders.base import loader_of, open_store
from forensics.run import open_run
from forensics.schemas import DOC_MASK, SKIPS
from forensics.steps import StepRange

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart"


def ask(run: Path, case: Path, start: int, stop: int) -> Outcome:
    opened = open_run(run)
    return replay(Case(case), plan_replay(opened, StepRange(start, stop), ReplayConfig()), ReplayConfig())


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    sys.path.insert(0, str(QUICKSTART))
    try:
        spec = importlib.util.spec_from_file_location("quickstart_make", QUICKSTART / "make.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["quickstart_make"] = module
        spec.loader.exec_module(module)
        import training  # noqa: F401
    finally:
        sys.path.remove(str(QUICKSTART))
    return module


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clean documents of the shipped run as raw records."""
    store = open_store(open_run(QUICKSTART))
    lines = []
    for corpus, name in zip(store.corpora["corpus_id"].to_pylist(), store.corpora["name"].to_pylist(), strict=True):
        if name.startswith("crawl-03"):
            continue
        source = {"crawl": "docs", "code": "code-x", "refer": "licences"}[name[:5] if name[:5] in ("crawl", "refer") else "code"]
        for batch in store.batches(corpus, 1 << 22):
            lines += [json.dumps({"id": f"{name}-{i}", "text": batch.text(i), "source": source, "lang": "xx", "labels": []}) for i in range(len(batch))]
    path = tmp_path_factory.mktemp("text") / "docs.jsonl.zst"
    path.write_bytes(zstandard.ZstdCompressor(1).compress(("\n".join(lines) + "\n").encode()))
    return path


def copies_are_counted(case: Path) -> None:
    """The table `seen` against everything that the run read: launch 0 to step 41039, 1 to 41199, then 2."""
    run = open_run(QUICKSTART)
    loader = loader_of(run)
    read: Counter[tuple[str, int]] = Counter()
    for launch, steps in ((0, StepRange(40701, 41040)), (1, StepRange(41040, 41200)), (2, StepRange(41200, 41401))):
        for table in loader.consumed(run, steps, launch):
            for key, step, start, stop in zip(*(table[c].to_pylist() for c in ("doc_key", "step", "doc_start", "doc_stop")), strict=True):
                read["run", key] += stop - start
                read["so_far", key] += (stop - start) * (step < 41240)
                read["window", key] += (stop - start) * (41200 <= step < 41240)
    lengths = dict(zip(*(Case(case).read("documents")[c].to_pylist() for c in ("doc_key", "tokens")), strict=True))
    seen = Case(case).read("seen").to_pylist()
    copies = {r["doc_key"] for r in Case(case).read("clusters").to_pylist() if r["kind"] in ("exact", "near")}
    assert {r["doc_key"] for r in seen} == copies and len(copies) > 4
    for row in seen:
        key = row.pop("doc_key")
        assert {period: -(-read[period, key] // lengths[key]) for period in row} == row
    dedup = Case(case).read("dedup").to_pylist()
    assert sum(r["times_seen"] for r in dedup if r["kind"] == "near") == sum(r["run"] for r in Case(case).read("seen").to_pylist())


def documents_are_found_again(case: Path) -> None:
    """Pages with the text of documents that the replay read, looked up by the tokenizer that the run names."""
    store = open_store(open_run(QUICKSTART))
    documents = Case(case).read("documents")
    keys = documents["doc_key"].to_numpy()[documents["tokens"].to_numpy() > 300][:3]
    pages = [case / f"page-{k}.txt" for k in keys]
    for page, key in zip(pages, keys):
        page.write_text(store.documents(np.array([key])).text(0))
    found = {(r["page"], r["doc_key"]) for r in look_up(Case(case), pages, 0.9)}  # not 1: the stored document ends with a token of its own
    assert found >= {(str(p), k) for p, k in zip(pages, keys.tolist(), strict=True)}


def test_the_shipped_run_is_answered(tmp_path: Path) -> None:
    outcome = ask(QUICKSTART, tmp_path, 41200, 41240)
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert (verdict["cause"], verdict["subcause"], verdict["onset"]) == ("data", "mojibake", 41200)
    assert verdict["rollback"]["step"] == 41100
    assert verdict["proof"]["answer"] == "proven"
    assert verdict["skip"]["documents"] >= 50
    assert outcome.manifest is not None
    assert (tmp_path / "report.html").stat().st_size < 3 << 20
    assert "agree" in outcome.identity
    copies_are_counted(tmp_path)
    documents_are_found_again(tmp_path)
    readme = " ".join((QUICKSTART.parents[1] / "README.md").read_text().split())
    for line in (verdict["sentence"], verdict["proof"]["sentence"], outcome.identity, verdict["action"], *verdict["evidence_for"][:3]):
        assert line in readme, "the README shows another answer than the command gives"


def test_a_clean_window_of_the_shipped_run_is_not(tmp_path: Path) -> None:
    outcome = ask(QUICKSTART, tmp_path, 41045, 41085)
    assert outcome.verdict["cause"] != "data"
    assert outcome.verdict["skip"]["documents"] == 0
    assert not [r for r in Case(tmp_path).get(SKIPS).to_pylist() if r["recommended"]]


@pytest.mark.parametrize(("seed", "kind", "step"), [(11, "template", 5200), (12, "encoded", 730)])
def test_other_accidents_are_found(seed: int, kind: str, step: int, maker: ModuleType, text: Path, tmp_path: Path) -> None:
    truth = maker.make(text, tmp_path / "run", maker.Plan(seed, kind, step), "ngram")
    verdict = ask(tmp_path / "run", tmp_path / "case", step, step + 40).verdict
    assert verdict["cause"] == "data"
    assert abs(verdict["onset"] - step) <= 2
    skips = Case(tmp_path / "case").get(SKIPS).to_pylist()
    named = np.array([k & DOC_MASK for r in skips if r["kind"] == "documents" for k in range(r["start"], r["stop"])])
    guilty = np.array(truth["documents"])
    assert np.isin(named, guilty).mean() >= 0.9


def test_a_run_without_accident_has_none(maker: ModuleType, text: Path, tmp_path: Path) -> None:
    maker.make(text, tmp_path / "run", maker.Plan(13, "none", 2000), "ngram")
    assert ask(tmp_path / "run", tmp_path / "case", 2000, 2040).verdict["cause"] != "data"


def test_steps_that_were_never_run_are_refused() -> None:
    opened = open_run(QUICKSTART)
    with pytest.raises(RunError, match="never run") as error:
        plan_replay(opened, StepRange(41395, 41410), ReplayConfig())
    assert "launch 2: 41200 to 41400" in str(error.value.hint)
