"""Tasks over processes: results in order, errors as results, a killed worker costs nobody else anything."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from forensics.engines.base import EngineSettings, TaskError
from forensics.engines.local import Inline, Processes, _run, local_engine
from forensics.errors import MissingDependency, PluginError
from forensics.registry import load_plugin

TASKS = """
import os, signal, time
from pathlib import Path
from forensics.errors import StoreError

def work(item):
    time.sleep(0.02 * (item % 3))
    if item == 4:
        raise StoreError("four is bad")
    return item * item

def die(item):
    number, folder = item
    if number == 5 or (number == 2 and not (Path(folder) / "died").exists()):
        (Path(folder) / "died").touch()
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    return number

def kernel(item):
    try:
        slow(item)
    except SystemExit as told:
        raise SystemError("a result with an exception set") from told

def broken(item):
    raise KeyError(item)

def slow(item):
    folder, number = item
    if number:
        try:
            (folder / "begun").touch()
            time.sleep(600)
        finally:
            (folder / "given up").touch()
    while not (folder / "begun").exists():
        time.sleep(0.01)

def deaf(item):
    folder, number = item
    if number:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / "begun").touch()
        time.sleep(600)
    while not (folder / "begun").exists():
        time.sleep(0.01)

def parents(item):
    folder, number = item
    (folder / str(os.getpid())).touch()
    time.sleep(600)

def with_acme(item):
    return acme(item)
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that other processes can import; item 2 kills its process once, item 5 always."""
    (tmp_path / "engine_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("engine_tasks")


@pytest.mark.parametrize("engine", [Inline(), Processes(2)])
def test_results_are_in_order_and_errors_are_results(engine: Inline | Processes, tasks: Any) -> None:
    seen: list[int] = []
    got = list(engine.map(tasks.work, range(6), lambda index, _: seen.append(index)))
    assert got == [0, 1, 4, 9, TaskError(4, "four is bad"), 25] and sorted(seen) == list(range(6))
    assert list(engine.map(tasks.work, [])) == []


@pytest.mark.parametrize("raised", [KeyError("boom"), MissingDependency("torch", "model", "scoring")])
def test_processes_know_the_plug_ins_of_their_parent_and_name_those_that_fail(
    raised: Exception, tmp_path: Path, tasks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forensics.registry._FILES", [])
    monkeypatch.setattr("forensics.registry._PLUGINS", {})
    given = "KeyError('boom')" if isinstance(raised, KeyError) else "MissingDependency('torch', 'model', 'scoring')"
    (tmp_path / "acme.py").write_text(
        f"import os\nimport engine_tasks\nfrom forensics.errors import *\n\ndef doubled(item):\n    if item == 3:\n        raise {given}\n"
        "    return 2 * item, os.getpid()\n\nengine_tasks.acme = doubled\n"
    )
    load_plugin(tmp_path / "acme.py")
    got = [r[0] for r in Processes(2).map(tasks.with_acme, [0, 1, 2]) if r[1] != os.getpid()]  # type: ignore[index]
    assert got == [0, 2, 4]
    if isinstance(raised, KeyError):
        with pytest.raises(PluginError, match=r"the plug-in .*acme\.py failed: KeyError: 'boom'\n  at .*acme\.py line 7"):
            list(Processes(2).map(tasks.with_acme, [3, 1]))
    else:
        assert list(Processes(2).map(tasks.with_acme, [3])) == [TaskError(0, "scoring needs the package `torch`, which is not installed")]


def test_tasks_that_are_out_are_given_up_at_ctrl_c(tmp_path: Path, tasks: Any) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(Processes(2).map(tasks.slow, [(tmp_path, 0), (tmp_path, 1)], interrupt))
    assert (tmp_path / "given up").exists()


def test_a_task_that_does_not_hear_is_killed(tmp_path: Path, tasks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("forensics.engines.local.GRACE_S", 0.2)
    with pytest.raises(KeyboardInterrupt):
        list(Processes(2).map(tasks.deaf, [(tmp_path, 0), (tmp_path, 1)], interrupt))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("task", ["slow", "kernel"])
def test_a_worker_that_is_told_to_end_amid_a_task_ends(tmp_path: Path, tasks: Any, task: str) -> None:
    """A pool tells its workers when one of them was killed, and waits for them; a kernel wraps what it is told."""
    with Processes(1)._pool(1) as pool:
        pool.submit(_run, getattr(tasks, task), (tmp_path, 1), [])
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        (worker,) = multiprocessing.active_children()
        worker.terminate()
        worker.join(30)
        assert worker.exitcode == 1 and (tmp_path / "given up").exists()


def test_workers_end_when_their_parent_is_killed(tmp_path: Path, tasks: Any) -> None:
    """Else they would wait for tasks for ever, or go on writing beside the next run of the same command."""
    (tmp_path / "seen").mkdir()
    (tmp_path / "parent.py").write_text(
        "from pathlib import Path\nimport engine_tasks\nfrom forensics.engines.local import Processes\n"
        f"if __name__ == '__main__':\n    list(Processes(2).map(engine_tasks.parents, [(Path({str(tmp_path / 'seen')!r}), k) for k in range(2)]))\n"
    )
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py")])
    end = time.monotonic() + 60
    while len(list((tmp_path / "seen").iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    workers = [int(p.name) for p in (tmp_path / "seen").iterdir()]
    parent.kill()
    parent.wait()
    while any(map(_runs, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    assert len(workers) == 2 and not any(map(_runs, workers))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


def test_workers_end_by_themselves_when_all_is_done(tasks: Any) -> None:
    """Whoever asks for the results may stop at the last one."""
    results = Processes(3).map(tasks.work, [1, 2, 3, 5, 6])
    assert [r for r, _ in zip(results, range(5), strict=True)] == [1, 4, 9, 25, 36]
    results = Processes(3).map(tasks.work, [1, 2, 3, 5, 6])
    assert [next(results) for _ in range(5)] == [1, 4, 9, 25, 36]
    workers = multiprocessing.active_children()
    results.close()  # type: ignore[attr-defined]
    assert len(workers) == 3 and {w.exitcode for w in workers} == {0}


def test_a_killed_worker_is_tried_again_alone(tmp_path: Path, tasks: Any) -> None:
    got = list(Processes(2).map(tasks.die, [(i, str(tmp_path)) for i in range(8)]))
    assert [r for r in got if not isinstance(r, TaskError)] == [0, 1, 2, 3, 4, 6, 7]
    lost = got[5]
    assert isinstance(lost, TaskError) and lost.index == 5 and "want of memory" in lost.error


@pytest.mark.parametrize("engine", [Inline(), Processes(2)])
def test_a_bug_keeps_its_traceback(engine: Inline | Processes, tasks: Any) -> None:
    with pytest.raises(KeyError):
        list(engine.map(tasks.broken, [1, 2]))


def test_little_work_stays_in_this_process() -> None:
    settings = EngineSettings(workers=4, inline_mb=1)
    assert isinstance(local_engine(settings, 1 << 19, 9), Inline) and isinstance(local_engine(settings, 1 << 30, 1), Inline)
    found = local_engine(settings, 1 << 30, 3)
    assert isinstance(found, Processes) and found.workers == 3
