"""A replay of a synthetic run: samples, groups carried over, stops in the middle, unchanged inputs, scored losses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forensics.pipelines.plan as plan_module
import forensics.pipelines.replay as replay_module
import numpy as np
import pytest
from blend_run import Size, make_run
from forensics.pipelines.plan import ReplayConfig, budgets, plan_replay, read_rules
from forensics.pipelines.replay import Outcome, replay
from forensics.pipelines.sampling import chance, looked_at

from forensics.attribution.baseline import ranges
from forensics.case import Case
from forensics.errors import ForensicsError, UsageError
from forensics.loaders.base import StepFacts
from forensics.run import open_run
from forensics.schemas import CONSUMED, DOC_BITS, DOC_MASK, SKIPS
from forensics.steps import StepRange

SIZE = Size(batch=16, width=512, before=80, after=60)
WINDOW = StepRange(SIZE.event, SIZE.event + 40)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("blend"), SIZE)


@pytest.fixture(scope="module")
def whole(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """The case of a replay that looks at every row."""
    case = tmp_path_factory.mktemp("whole")
    return case, ask(run, case)


def ask(run: Path, case: Path) -> Outcome:
    return replay(Case(case), plan_replay(open_run(run), WINDOW, ReplayConfig()), ReplayConfig())


def guilty(case: Path) -> set[int]:
    return {r["start"] for r in Case(case).get(SKIPS).to_pylist() if r["kind"] == "documents"}


def truth(run: Path, case: Path) -> set[int]:
    """Bad documents that the window read, at least 32 tokens of each."""
    bad = np.load(run / "data" / "part-00-next.bad.npy")
    table = Case(case).get(CONSUMED)
    corpora = Case(case).read("corpora").to_pylist()
    number = next(c["corpus_id"] for c in corpora if c["name"] == "part-00-next")
    key, step, size = table["doc_key"].to_numpy(), table["step"].to_numpy(), (table["doc_stop"].to_numpy() - table["doc_start"].to_numpy())
    use = (key >> DOC_BITS == number) & (step >= WINDOW.start) & (step < WINDOW.stop) & (size >= 32)
    return {int(k) for k in key[use] if int(k) & DOC_MASK in set(bad.tolist())}


def test_the_bad_documents_are_named(run: Path, whole: tuple[Path, Outcome]) -> None:
    case, outcome = whole
    found, want = guilty(case), truth(run, case)
    assert (outcome.verdict["cause"], outcome.verdict["onset"]) == ("data", SIZE.event)
    assert len(found & want) >= 0.9 * len(want) and len(want) > 100
    assert not outcome.unchanged


def test_a_sample_of_rows_names_the_documents_outside_it_too(run: Path, whole: tuple[Path, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "MOST_TOKENS", 300_000)
    outcome = ask(run, tmp_path)
    case = Case(tmp_path)
    found, want = guilty(tmp_path), truth(run, tmp_path)
    assert case.info["rows_looked_at"] < 0.5
    assert outcome.verdict["cause"] == "data"
    assert len(found & want) >= 0.9 * len(want)
    assert len(found - guilty(whole[0])) <= 0.05 * len(found)
    assert outcome.verdict["skip"]["documents"] == len(found)
    assert outcome.verdict["skip"]["tokens"] == pytest.approx(whole[1].verdict["skip"]["tokens"], rel=0.1)
    assert any("chosen by their content" in note for note in outcome.verdict["notes"])


@pytest.mark.parametrize(("exporter", "match"), [("olmo", "would drop other data"), ("nonsense", "there is no exporter")])
def test_terms_that_do_not_fit_are_refused_before_anything_is_read(run: Path, exporter: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        plan_replay(open_run(run), WINDOW, ReplayConfig(exporter=exporter))


def test_the_log_of_a_rerun_that_is_none_leaves_no_case_behind(run: Path, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\x7fELF\0\0\0\0")
    with pytest.raises(ForensicsError, match="no known log"):
        replay(Case(tmp_path / "case"), plan_replay(open_run(run), WINDOW, ReplayConfig()), ReplayConfig(), experiments={"replay": tmp_path / "log"})
    assert not (tmp_path / "case").exists()


def test_an_unchanged_case_is_read_back(run: Path, whole: tuple[Path, Outcome]) -> None:
    case, first = whole
    again = ask(run, case)
    assert again.unchanged and again.verdict == json.loads((case / "verdict.json").read_text()) == json.loads(json.dumps(first.verdict))
    assert again.manifest is not None and first.manifest is not None and again.manifest.files == first.manifest.files
    (run / "run.log").touch()
    assert not ask(run, case).unchanged


KILLED = """
import sys
from pathlib import Path
import forensics.pipelines.plan, forensics.pipelines.replay as R
from forensics.case import Case
from forensics.run import open_run
from forensics.steps import parse_steps
R.BLOCK_TOKENS, R.BLOCK_ROWS = 1 << 16, 256
R.replay(Case(Path(sys.argv[2])), R.plan_replay(open_run(Path(sys.argv[1])), parse_steps(sys.argv[3]), R.ReplayConfig()), R.ReplayConfig())
"""


def test_a_killed_replay_goes_on_where_it_stopped(run: Path, tmp_path: Path, whole: tuple[Path, Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(run), str(tmp_path), str(WINDOW)], stderr=subprocess.DEVNULL)
    folder, deadline = tmp_path / "tables" / "findings", time.monotonic() + 100
    while len(list(folder.glob("part-*.parquet"))) < 3 and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    left = {p: p.stat().st_mtime_ns for p in sorted((tmp_path / "tables").rglob("part-*.parquet"))}
    assert len(left) > 6 and not (tmp_path / "verdict.json").exists()
    monkeypatch.setattr(replay_module, "BLOCK_TOKENS", 1 << 16)
    monkeypatch.setattr(replay_module, "BLOCK_ROWS", 256)
    outcome = ask(run, tmp_path)
    assert {p: p.stat().st_mtime_ns for p in left} == left
    assert outcome.verdict["cause"] == "data" and guilty(tmp_path) == guilty(whole[0])


def facts(steps: int, sequences: int) -> StepFacts:
    n = np.arange(1, steps + 1)
    return StepFacts(np.zeros(steps, np.int16), n, np.full(steps, sequences), n * sequences, np.ones(steps, np.bool_))


@pytest.mark.parametrize(
    ("window", "sequences", "width"), [((2000, 2300), 256, 4096), ((2000, 2003), 1024, 4096), ((2000, 2040), 4, 128), ((2000, 3000), 8, 2048)]
)
def test_the_passes_stay_within_the_budget(window: tuple[int, int], sequences: int, width: int) -> None:
    rules = read_rules(ReplayConfig())
    found = ranges(StepRange(*window), 1, 4000, rules)
    reach = [r for r in (found.baseline, found.lookback, found.window, found.after) if r is not None]
    known = facts(4000, sequences)
    use = np.logical_or.reduce([(known.step >= r.start) & (known.step < r.stop) for r in reach])
    known = StepFacts(*(getattr(known, name)[use] for name in ("launch", "step", "sequences", "consumed_after", "trained")))
    whole, every, share = budgets(known, found, rules, width)
    row = sequences * width
    inside = int(((known.step >= whole.start) & (known.step < whole.stop)).sum())
    read = inside * row + (len(known) - inside) * row / every
    assert whole.start <= window[0] and whole.stop == window[1]
    assert read <= max(rules.budget * len(found.window) * row, len(found.window) * row + plan_module.LEAST_TOKENS) * 1.001
    assert 0 < share <= 1
    looked = inside * row * share + min((len(known) - inside) * row / every, (len(known) - inside) * row * share)
    assert looked <= plan_module.MOST_TOKENS * 1.001


def test_a_row_read_twice_is_in_the_sample_twice_or_not_at_all() -> None:
    class Half:
        share, every, whole = 0.5, 1, StepRange(0, 100)

    key = np.repeat(np.random.default_rng(0).integers(0, 1 << 40, 200), 2)
    n = len(key)
    first = np.arange(n) % 2 == 0
    columns = {
        "launch": np.zeros(2 * n, np.int16), "step": np.repeat([3, 9], n), "sequence": np.tile(np.arange(n) // 2, 2).astype(np.int32),
        "seq_start": np.where(np.tile(first, 2), 0, 7).astype(np.int32), "doc_key": np.tile(key + ~first, 2),
        "doc_start": np.zeros(2 * n, np.int64), "doc_stop": np.full(2 * n, 7),
    }  # fmt: skip
    got = looked_at(Half(), CONSUMED.of(columns))  # type: ignore[arg-type]
    by_step = [got.filter(got["step"].to_numpy() == s).drop_columns(["step"]) for s in (3, 9)]
    assert by_step[0].equals(by_step[1])
    assert 120 < by_step[0].num_rows < 280 and by_step[0].num_rows % 2 == 0
    luck = chance(np.arange(100_000), np.zeros(100_000, np.int64))
    assert abs(luck.mean() - 0.5) < 0.01 and luck.min() >= 0 and luck.max() < 1
