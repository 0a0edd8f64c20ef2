"""What real trainers consumed, token by token: one test per case, named after it.

The cases that ship lie in `<trainer>/<case>/` beside this file; `FORENSICS_ORACLES=FOLDER pytest tests/oracles` runs those of
any folder of the same layout instead (several folders: separated as in PATH). A case's `run.json` names its framework; a file
`trainer_<framework>.py` beside this one turns it into a run description with `describe(run, case)`, and may replace
the whole comparison with `check(case, tmp_path)`; frameworks that `test_others.py` describes are left to it. Cases of a
framework that nobody describes must fail.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from forensics.loaders.base import loader_of
from forensics.loaders.rows import rows_of
from forensics.run import RunSpec, open_run
from forensics.schemas import DOC_BITS, DOC_MASK
from forensics.steps import StepRange

HERE = Path(__file__).parent


def folders() -> list[Path]:
    given = os.environ.get("FORENSICS_ORACLES")
    return [Path(p).resolve() for p in given.split(os.pathsep) if p] if given else sorted(p for p in HERE.iterdir() if p.is_dir())


def cases() -> list[Path]:
    found = [path.parent for folder in folders() for path in sorted([*folder.glob("run.json"), *folder.glob("*/run.json"), *folder.glob("*/*/run.json")])]
    return [case for case in dict.fromkeys(found) if (case / "expected.npz").exists()]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def framework(case: Path) -> str:
    return str(json.loads((case / "run.json").read_text()).get("framework"))


def trainer(case: Path) -> ModuleType | None:
    path = HERE / f"trainer_{framework(case).replace('-', '_').replace('.', '_')}.py"
    return load(path) if path.exists() else None


def params() -> list[Any]:
    elsewhere = load(HERE / "test_others.py").DESCRIBE if (HERE / "test_others.py").exists() else {}
    out = []
    for case in cases():
        known = trainer(case) is not None
        if known or framework(case) not in elsewhere:
            marks = () if known else pytest.mark.xfail(strict=True, reason="no loader for this framework")
            out.append(pytest.param(case, id=case.name, marks=marks))
    return out


@dataclass(frozen=True)
class Truth:
    """What was read; arrays per row, segments as (row, place in reading order, corpus, stored sequence or -1, document, start, stop)."""

    step: np.ndarray
    launch: np.ndarray
    tokens: np.ndarray
    segments: np.ndarray
    corpora: list[str]
    in_sequence: bool  # whether start and stop count from the stored sequence instead of the document
    sample: np.ndarray | None = None
    rank: np.ndarray | None = None
    micro: np.ndarray | None = None
    steps: dict[str, np.ndarray] = field(default_factory=dict)  # step, launch, trained, consumed_after


def read_truth(case: Path, name: str = "expected.npz") -> Truth:
    e = dict(np.load(case / name))
    run = json.loads((case / "run.json").read_text())
    return _by_rows(e, case) if "row_step" in e else _by_pointers(e, run)


def _by_rows(e: dict[str, np.ndarray], case: Path) -> Truth:
    """The layout of the Megatron folder."""
    launch = e.get("row_launch", np.zeros(len(e["row_step"]), np.int64))
    segments = np.insert(e["segments"].astype(np.int64), 1, np.arange(len(e["segments"])), axis=1)
    facts = json.loads((case / "expected.json").read_text())
    steps = {"step": e["steps"], "launch": e.get("step_launch", np.zeros(len(e["steps"]), np.int64)), "trained": e["trained"]}
    steps |= {"consumed_after": e["consumed_after"]} if "consumed_after" in e else {}
    return Truth(e["row_step"], launch, e["tokens"], segments, facts["corpora"], True, e["row_sample"], e["row_rank"], e["row_micro"], steps)


def _by_pointers(e: dict[str, np.ndarray], run: dict[str, Any]) -> Truth:
    """The layout of all other folders."""
    step = np.repeat(e["steps"], np.diff(e["row_ptr"]))
    row = np.repeat(np.arange(len(step)), np.diff(e["seg_ptr"]))
    none = np.full(len(row), -1)
    segments = np.stack([row, np.arange(len(row)), e["seg_source"], none, e["seg_doc"], e["seg_start"], e["seg_end"]], axis=1)
    sources = [s if isinstance(s, str) else s.get("path", str(s)) for s in run.get("sources", [])]
    return Truth(
        step,
        np.zeros(len(step), np.int64),
        e["tokens"],
        segments,
        sources,
        False,
        e.get("sample_ids"),
        e.get("rank"),
        e.get("micro"),
        {"step": e["steps"], "launch": np.zeros(len(e["steps"]), np.int64)},
    )


def prepare(case: Path, out: Path, description: dict[str, Any]) -> RunSpec:
    """The case without its truth, described."""
    shutil.copytree(case, out, ignore=shutil.ignore_patterns("expected*", "run.json"), dirs_exist_ok=True)
    (out / "forensics.yaml").write_text(yaml.safe_dump(description, sort_keys=False))
    return open_run(out)


def compare(tables: list[pa.Table], run: RunSpec, width: int, truth: Truth, rows: np.ndarray) -> None:
    """Rows, tokens and segments of one launch."""
    loader = loader_of(run)
    table = pa.concat_tables(tables)
    blocks = list(rows_of(table, loader.store(run), width))
    got = {name: np.concatenate([getattr(b, name) for b in blocks]) for name in ("step", "sample", "rank", "microbatch", "sequence", "tokens")}
    np.testing.assert_array_equal(got["step"], truth.step[rows])
    for name, want in (("sample", truth.sample), ("rank", truth.rank), ("microbatch", truth.micro)):
        if want is not None:
            np.testing.assert_array_equal(got[name], want[rows], name)
    np.testing.assert_array_equal(got["tokens"][:, : truth.tokens.shape[1]], truth.tokens[rows])
    assert np.all(got["tokens"][:, truth.tokens.shape[1] :] == -1)
    compare_segments(table, run, truth, rows, got)


def compare_segments(table: pa.Table, run: RunSpec, truth: Truth, rows: np.ndarray, got: dict[str, np.ndarray]) -> None:
    corpora = loader_of(run).corpora(run)
    paths = {n: Path(p) for n, p in zip(corpora.column("corpus_id").to_pylist(), corpora.column("path").to_pylist())}
    number = {n: i for n, p in paths.items() for i, c in enumerate(truth.corpora) if p.parts[-len(Path(c).parts) :] == Path(c).parts}
    at = {int(row): i for i, row in enumerate(rows)}
    want = [(at[int(s[0])], *map(int, s[2:])) for s in truth.segments if int(s[0]) in at]
    place = {(int(s), int(q)): i for i, (s, q) in enumerate(zip(got["step"], got["sequence"]))}
    store: Any = loader_of(run).store(run)
    mine = []
    for r in table.to_pylist():
        corpus, document, sequence = r["doc_key"] >> DOC_BITS, r["doc_key"] & DOC_MASK, r["stored_seq"]
        shift = 0
        if truth.in_sequence and sequence is not None:
            file = store.file(corpus)
            shift = int(file.lengths[file.bounds[document] : sequence].sum())
        stored = sequence if truth.in_sequence and sequence is not None else -1
        mine.append((place[(r["step"], r["sequence"])], number[corpus], stored, document, r["doc_start"] - shift, r["doc_stop"] - shift))
    if mine and mine[0][2] == -1:
        want = [(row, c, -1, d, a, b) for row, c, _, d, a, b in want]
    assert mine == [w for w in want if w[5] > w[4]]


def check(case: Path, tmp_path: Path, description: dict[str, Any]) -> None:
    """Every launch of a case: rows, tokens, segments, ranks, trained steps, counters."""
    run = prepare(case, tmp_path, description)
    loader: Any = loader_of(run)
    truth = read_truth(case)
    widths = loader.launches(run).column("row_width").to_pylist()
    for number in np.unique(truth.launch).tolist():
        rows = np.flatnonzero(truth.launch == number)
        steps = StepRange(int(truth.step[rows].min()), int(truth.step[rows].max()) + 1)
        compare(list(loader.consumed(run, steps, number)), run, widths[number], truth, rows)
        facts = loader.trained(run, steps, number)
        mine = truth.steps["launch"] == number
        np.testing.assert_array_equal(facts.step, truth.steps["step"][mine])
        for name in ("trained", "consumed_after"):
            if name in truth.steps:
                np.testing.assert_array_equal(getattr(facts, name), truth.steps[name][mine], name)


def check_validation(case: Path, run: RunSpec) -> None:
    loader: Any = loader_of(run)
    truth = read_truth(case, "expected_valid.npz")
    batches = StepRange(int(truth.step.min()), int(truth.step.max()) + 1)
    width = loader.launches(run).column("row_width")[0].as_py()
    compare(list(loader.validation(run, batches)), run, width, truth, np.arange(len(truth.step)))
    assert loader.validation_batches(run) == batches.last


def check_facts(case: Path, run: RunSpec, description: dict[str, Any]) -> None:
    """What the library decided per corpus: samples asked for, passes, samples built."""
    facts = json.loads((case / "expected.json").read_text())
    loader: Any = loader_of(run)
    blends = loader.blends(run).to_pylist()
    history = loader.history(run)
    for number, launch in enumerate(facts["train"]):
        mine = [b for b in blends if b["launch"] == number and b["split"] == "train"]
        names = ("wanted_samples", "tokens_per_epoch", "epochs", "built_samples")
        assert [tuple(b[n] for n in names) for b in mine] == [
            tuple(c[n] for n in ("num_samples", "tokens_per_epoch", "num_epochs", "built_samples")) for c in launch["corpora"]
        ]
        split = history.plans[number].split("train")
        assert len(history.plans[number].data("train")) == launch["length"]
        assert [x.sequences for x in split.laid] == [(c["first_document"], c["last_document"] + 1) for c in launch["corpora"]]
        if "weights" in launch:
            assert [b["weight"] for b in mine] == launch["weights"]
    last = description["launches"][-1]
    if "last_step" not in last:  # the library ran as far as its own count of steps allows
        assert loader.launches(run)["stop_step"].to_pylist()[-1] == int(np.load(case / "expected.npz")["steps"][-1]) + 1
    if facts.get("valid"):
        mine = [b for b in blends if b["launch"] == 0 and b["split"] == "valid"]
        assert [b["built_samples"] for b in mine] == [c["built_samples"] for c in facts["valid"]["corpora"]]


@pytest.mark.parametrize("case", params())
def test_case(case: Path, tmp_path: Path) -> None:
    module = trainer(case)
    assert module is not None, "no loader for this framework"
    if hasattr(module, "check"):
        module.check(case, tmp_path)
        return
    description = module.describe(json.loads((case / "run.json").read_text()), case)
    check(case, tmp_path / "run", description)
    run = open_run(tmp_path / "run")
    if (case / "expected_valid.npz").exists():
        check_validation(case, run)
    if "launches" in description and (case / "expected.json").exists() and hasattr(loader_of(run), "history"):
        check_facts(case, run, description)
    if "cache" in description:
        origins = set(loader_of(run).blends(run).column("origin").to_pylist())
        assert "cached_index" in origins, "the run's own index files were not used"
        rebuilt = {k: v for k, v in description.items() if k != "cache"}
        shutil.rmtree(tmp_path / "run" / str(description["cache"]))
        check(case, tmp_path / "run", rebuilt)


def test_a_token_that_differs_is_noticed(tmp_path: Path) -> None:
    case = HERE / "megatron" / "single_epoch_uint16"
    module = trainer(case)
    assert module is not None
    run = prepare(case, tmp_path, module.describe(json.loads((case / "run.json").read_text()), case))
    truth = read_truth(case)
    tables = list(loader_of(run).consumed(run, StepRange(1, 2), 0))
    rows = np.flatnonzero(truth.step == 1)
    compare(tables, run, truth.tokens.shape[1], truth, rows)
    tokens = truth.tokens.copy()
    tokens[rows[-1], -1] += 1
    with pytest.raises(AssertionError):
        compare(tables, run, truth.tokens.shape[1], replace(truth, tokens=tokens), rows)
