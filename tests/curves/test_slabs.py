"""Logs that are larger than memory: the same table, the same events, whatever the size of a slab."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from forensics.pipelines.curves import curves

from forensics.case import Case
from forensics.curves import slabs
from forensics.curves.read import read_logs
from forensics.curves.settings import settings
from forensics.curves.sources.base import Block, Column
from forensics.errors import ForensicsError
from forensics.schemas import METRICS
from tests.curves.make import loss, norm


def write(path: Path, records: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def records(steps: range, seed: int = 0, every: int = 10, **more: object) -> list[dict[str, object]]:
    r = np.random.default_rng(seed)
    held = [{"step": s, "val_loss": 5 - s / 1000} for s in steps if s % every == 0]
    rows: list[dict[str, object]] = [{"step": s, "loss": float(r.normal(3, 0.1)), "grad_norm": float(r.normal(1, 0.1)), **more} for s in steps]
    return sorted([*rows, *held], key=lambda x: int(str(x["step"])))


LOGS: dict[str, list[list[dict[str, object]]]] = {
    "one": [records(range(1, 3001))],
    "restart": [records(range(1, 2001)) + records(range(1500, 3001), 1)],
    "restarted twice": [records(range(1, 2001)) + records(range(1500, 2001), 1) + records(range(1800, 3001), 2)],
    "another run": [records(range(1, 1501)) + records(range(1, 1801), 1)],
    "two files": [records(range(1, 2001)), records(range(1800, 3001), 1)],
    "a companion": [records(range(1, 3001)), [{"step": s, "lr": 1e-3} for s in range(1, 3001)]],
    "late": [[r for i in range(1, 3001, 2) for r in records(range(i, i + 2))[::-1]]],
    "shuffled": [[records(range(1, 3001))[i] for i in np.random.default_rng(0).permutation(3000).tolist()]],
    "twice": [[r for r in records(range(1, 2001)) for _ in range(2)]],
    "tokens": [records(range(1, 3001), tokens_seen=5, timestamp=1.7e9)],
    "ranks": [[{"step": s, "loss": 3.0 + s % 7, "rank": k} for s in range(1, 1501) for k in (0, 1)]],
    "named": [[{"step": s, "loss": 3.0 + s % 7, "run": name} for s in range(1, 1501) for name in ("a", "b")]],
}


@pytest.mark.parametrize("after", [17, 20, 23])
def test_records_after_a_late_step_at_the_end_are_kept(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = np.concatenate([np.arange(1, 451), [900], np.arange(451, 451 + after)])
    block = lambda x: Block(x, {"train_loss": Column(np.ones(len(x)), None)}, x)  # noqa: E731
    monkeypatch.setattr(slabs, "SLAB", 500)
    (long,) = slabs.gather([block(steps[:260]), block(steps[260:])], "a", "jsonl", tmp_path / "scratch")
    assert isinstance(long, slabs.Long) and len(long) == len(steps)


@pytest.mark.parametrize("name", LOGS)
def test_a_log_on_disk_gives_the_table_of_a_log_in_memory(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path / f"{i}.jsonl", rows) for i, rows in enumerate(LOGS[name])]
    whole = read_logs(paths)
    monkeypatch.setattr(slabs, "SLAB", 900)
    monkeypatch.setattr(slabs, "OUTLINE", 1 << 20)
    read = read_logs(paths, scratch=tmp_path / "scratch")
    assert read.long
    got = pa.concat_tables(list(read.pieces())).unify_dictionaries()
    names = [n for n in METRICS.schema.names if n not in ("tokens", "time")] if name == "a companion" else METRICS.schema.names
    assert [plain(got.select([n])) for n in names] == [plain(whole.metrics.select([n])) for n in names]


def plain(table: pa.Table) -> list[dict[str, object]]:
    return table.to_pylist()


def test_the_overview_holds_every_kth_step_of_what_is_frequent_and_all_of_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", records(range(1, 3001)))
    monkeypatch.setattr(slabs, "SLAB", 900)
    monkeypatch.setattr(slabs, "OVERVIEW", 400)
    read = read_logs([path], scratch=tmp_path / "scratch")
    table = read.metrics.to_pydict()
    steps = {m: [s for s, x in zip(table["step"], table["metric"], strict=True) if x == m] for m in set(table["metric"])}
    every = read.long["run"].every
    assert every == 8 and steps["train_loss"] == steps["grad_norm"] == list(range(8, 3001, 8)) and steps["eval_loss"] == list(range(10, 3001, 10))


def test_events_of_a_long_log_are_those_of_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 60_000
    y, g = loss(n), norm(n)
    y[20_000:20_008] += 0.6
    y[41_000:] += 0.04
    y[50_000:50_400] -= 0.5
    y[55_555] = np.nan
    g[30_000] *= 60
    path = tmp_path / "a.csv"
    path.write_text("step,loss,grad_norm\n" + "".join(f"{i + 1},{a},{b}\n" for i, (a, b) in enumerate(zip(y, g, strict=True))))
    short = curves(Case(tmp_path / "short"), [path], settings())
    monkeypatch.setattr(slabs, "SLAB", 45_000)
    monkeypatch.setattr(slabs, "OVERVIEW", 6000)
    monkeypatch.setattr(slabs, "OVERLAP", 2000)
    long = curves(Case(tmp_path / "long"), [path], settings())
    (a,), (b,) = short.readings, long.readings
    assert a.reading is None and b.reading is not None and "60,000 records" in b.reading
    seen = [[(e.metric, e.shape, e.start, e.severity) for e in r.events if e.level == "alarm"] for r in (a, b)]
    assert seen[0] == seen[1] and len(seen[0]) == 4
    stored = [Case(tmp_path / name).get(METRICS) for name in ("short", "long")]
    assert stored[0].select(["metric", "step", "line"]).equals(stored[1].select(["metric", "step", "line"]))
    np.testing.assert_array_equal(stored[0]["value"].to_numpy(), stored[1]["value"].to_numpy())
    assert not (tmp_path / "long" / ".slabs").exists() and long.numbers == 2 * n


def test_a_full_disk_or_a_case_that_is_a_file_is_said_and_leaves_no_slabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", records(range(1, 3001)))
    monkeypatch.setattr(slabs, "SLAB", 900)
    (tmp_path / "file").touch()
    with pytest.raises(ForensicsError, match="cannot hold the records"):
        curves(Case(tmp_path / "file"), [path], settings())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(ForensicsError, match=r"case/\.slabs/logs/000000\.slab cannot hold the records .*\(File too large, at byte 2,000\)"):
            curves(Case(tmp_path / "case"), [path], settings())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not (tmp_path / "case" / ".slabs").exists()
