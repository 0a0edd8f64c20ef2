"""What every loader owes, whatever its trainer: run on every case that ships and on a recorded run.

A loader is enrolled by having a case under tests/oracles; the list at the end holds those that cannot have one.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forensics.errors import ConfigError, ForensicsError, RunError
from forensics.loaders.base import LOADERS, loader_of
from forensics.loaders.others import WITHOUT_ORDER
from forensics.run import RunFile, RunSpec, resolve
from forensics.schemas import CONSUMED, CORPORA, DOC_BITS, LAUNCHES
from forensics.steps import StepRange

ORACLES = Path(__file__).parents[1] / "oracles"


@functools.cache
def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def described(case: Path) -> RunSpec | None:
    """A case's run as the oracle tests describe it; None where nobody does."""
    run = json.loads((case / "run.json").read_text())
    name = str(run.get("framework")).replace("-", "_")
    others = load(ORACLES / "test_others.py").DESCRIBE
    if (path := ORACLES / f"trainer_{name}.py").exists() and hasattr(module := load(path), "describe"):
        content = module.describe(run, case)
    elif run.get("framework") in others:
        content = {k: v for k, v in others[run["framework"]](case, run).items() if v is not None}
    else:
        return None
    return resolve(msgspec.convert(content, RunFile), None, case)


def recorded(folder: Path) -> RunSpec:
    """A Megatron case as the run itself would have recorded it."""
    case = ORACLES / "megatron" / "single_epoch_uint16"
    truth = described(case)
    assert truth
    table = pa.concat_tables(loader_of(truth).consumed(truth, StepRange(1, 13)))
    shutil.copytree(case / "data", folder / "data")
    columns = {n: table[n] for n in ("step", "sequence", "seq_start", "doc_start", "doc_stop", "sample", "rank", "microbatch")}
    pq.write_table(pa.table(columns | {"document": table["doc_key"], "corpus": pa.array(["web_text_document"] * table.num_rows)}), folder / "consumed.parquet")
    args = {"data_path": ["data/web_text_document"], "consumed": "consumed.parquet", "seq_length": 64, "global_batch_size": 8}
    return resolve(RunFile(trainer="recorded", args=args), None, folder)


def params() -> list[Any]:
    out = [pytest.param(recorded, id="recorded")]
    for path in sorted(ORACLES.glob("*/*/run.json")):
        case = path.parent
        if not (case / "expected.npz").exists():
            continue
        run = described(case)
        if run is not None:
            out.append(pytest.param(lambda folder, run=run: run, id=f"{run.trainer}-{case.name}"))
    return out


@pytest.fixture(params=params())
def run(request: pytest.FixtureRequest, tmp_path: Path) -> RunSpec:
    made: Callable[[Path], RunSpec] = request.param
    return made(tmp_path)


def window(run: RunSpec, most: int = 12) -> tuple[int, StepRange]:
    """The first steps of the last launch, as its own table gives them."""
    last = loader_of(run).launches(run).to_pylist()[-1]
    stop = min(last["stop_step"], last["first_step"] + most)
    while stop > last["first_step"] + 1:  # a last launch may be planned beyond the end of its data
        try:
            list(loader_of(run).consumed(run, StepRange(last["first_step"], stop), last["launch"]))
            break
        except ForensicsError:
            stop -= 1
    return last["launch"], StepRange(last["first_step"], stop)


def read(run: RunSpec, steps: StepRange, launch: int) -> pa.Table:
    return pa.concat_tables(list(loader_of(run).consumed(run, steps, launch)))


def test_what_every_loader_owes(run: RunSpec) -> None:
    launch, steps = window(run)
    whole = read(run, steps, launch)
    loader = loader_of(run)
    store = loader.store(run)

    # tables are what their names promise, rows in their order
    assert CONSUMED.of(whole).num_rows > 0
    assert LAUNCHES.of(loader.launches(run)).num_rows == len(run.launches)
    corpora = CORPORA.of(loader.corpora(run))
    keys = [whole[n].to_numpy() for n in ("step", "sequence", "seq_start")]
    assert np.all(np.diff(np.lexsort(keys[::-1])) == 1)
    assert set(whole["launch"].to_pylist()) == {launch}

    # steps in one call equal the same in pieces
    cut = steps.start + max(1, len(steps) // 3)
    pieces = [StepRange(steps.start, cut), *([StepRange(cut, steps.stop)] if cut < steps.stop else [])]
    assert pa.concat_tables([read(run, p, launch) for p in pieces]).equals(whole)

    # every step asked for is there, and no token of a row twice
    assert np.unique(keys[0]).tolist() == list(steps)
    length = whole["doc_stop"].to_numpy() - whole["doc_start"].to_numpy()
    assert np.all(length >= 0)
    same = (keys[0][1:] == keys[0][:-1]) & (keys[1][1:] == keys[1][:-1])
    assert np.all(keys[2][1:][same] >= (keys[2] + length)[:-1][same])

    # parts lie inside documents of corpora that exist
    doc_key = whole["doc_key"].to_numpy()
    assert set((doc_key >> DOC_BITS).tolist()) <= set(corpora["corpus_id"].to_pylist())
    assert np.all(whole["doc_stop"].to_numpy() <= store.document_lengths(doc_key))
    tokens, offsets = store.gather(whole)
    assert offsets[-1] == len(tokens) == length.sum()

    # facts of the steps fit the rows
    facts = loader.trained(run, steps, launch)
    assert facts.step.tolist() == list(steps)
    for step, n in zip(facts.step.tolist(), facts.sequences.tolist()):
        assert n >= len(np.unique(keys[1][keys[0] == step]))

    # whatever is located is what was consumed
    some = np.unique(doc_key[length > 0])[:: max(1, len(np.unique(doc_key)) // 3)]
    try:
        found = list(loader.locate(run, some))
    except RunError as error:
        assert "no known end" in error.message  # future steps cannot be listed; the remedy is named
        assert error.hint
        return
    located = pa.concat_tables(found).filter(pa.array(np.concatenate([_inside(t, launch, steps) for t in found])))
    want = whole.filter(pa.array(np.isin(doc_key, some) & (length > 0)))
    names = ("step", "sequence", "seq_start", "doc_key", "doc_start", "doc_stop")
    assert sorted(zip(*(located[n].to_pylist() for n in names))) == sorted(zip(*(want[n].to_pylist() for n in names)))


def _inside(table: pa.Table, launch: int, steps: StepRange) -> np.ndarray:
    step, length = table["step"].to_numpy(), table["doc_stop"].to_numpy() - table["doc_start"].to_numpy()
    return (table["launch"].to_numpy() == launch) & (step >= steps.start) & (step < steps.stop) & (length > 0)


def test_steps_that_cannot_be_are_refused(run: RunSpec) -> None:
    launch, steps = window(run, 1)
    for wrong in (StepRange(0, 1), StepRange(10**12, 10**12 + 1)):
        with pytest.raises(ForensicsError):
            read(run, wrong, launch)
    with pytest.raises(ForensicsError):
        read(run, steps, len(run.launches))


def test_an_argument_that_no_trainer_has_is_refused(run: RunSpec) -> None:
    launches = tuple(type(x)(**{**{f: getattr(x, f) for f in x.__dataclass_fields__}, "args": {**x.args, "no_such_option_at_all": 1}}) for x in run.launches)
    wrong = type(run)(**{**{f: getattr(run, f) for f in run.__dataclass_fields__}, "launches": launches})
    with pytest.raises(ForensicsError) as caught:
        list(loader_of(wrong).consumed(wrong, StepRange(1, 2)))
    assert isinstance(caught.value, ConfigError) or "no_such_option_at_all" in caught.value.text()


WITHOUT_CASE = set(WITHOUT_ORDER)


def test_every_loader_is_enrolled() -> None:
    names = {described(p.parent).trainer for p in ORACLES.glob("*/*/run.json") if (p.parent / "expected.npz").exists() and described(p.parent) is not None}  # type: ignore[union-attr]
    missing = set(LOADERS.names()) - names - {"recorded"}
    assert missing == WITHOUT_CASE, f"loaders without a case: {sorted(missing)}"
