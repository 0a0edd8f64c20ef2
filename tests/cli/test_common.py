"""What commands share on the terminal."""

from __future__ import annotations

import importlib
import io
import sys
import threading
import time

import pyarrow as pa
import pytest

from forensics.cli.common import Format, Pulse, _compiling, answer, print_table, say


def test_silence_is_broken_and_each_pause_is_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", err := io.StringIO())
    pulse = Pulse(first_s=0.02, every_s=0.005)
    pulse.at("clusters: 3 rows")
    pulse.begin()
    for _ in range(400):
        time.sleep(0.005)
        if err.getvalue().count("\n") >= 2:
            break
    grown, pulse.wait = pulse.wait, float("inf")
    err_lines = err.getvalue().splitlines()
    assert err_lines[0].startswith("at work, 0 s so far") and err_lines[0].endswith("last done: clusters")
    assert grown >= 0.08


def test_a_compiling_thread_is_seen() -> None:
    numba_lock = importlib.import_module("numba.core.compiler_lock").global_compiler_lock
    assert not _compiling()
    held, go = threading.Event(), threading.Event()

    def compile_something() -> None:
        with numba_lock:
            held.set()
            go.wait(10)

    thread = threading.Thread(target=compile_something)
    thread.start()
    held.wait(10)
    seen = _compiling()
    go.set()
    thread.join()
    assert seen and not _compiling()


def test_a_strangers_name_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    answer("run \x1b[31mred\x1b]0;title\x07 \u202eabc\ttab\nline")
    say("\x9b31m")
    answer("\x1b[1mours\x1b[0m", coloured=True)
    out, err = capsys.readouterr()
    assert not set("\x07\u202e\x9b") & set(out + err) and out.count("\x1b") in (0, 2) and "red" in out and "\ttab\nline" in out


def test_a_kernel_that_compiles_is_said_once_and_starts_helpers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from types import SimpleNamespace

    from forensics.compiled import Ahead

    started: list[list[str]] = []

    class Process:
        def __init__(self, command: list[str], **_: object) -> None:
            started.append(command)

        def kill(self) -> None:
            started.pop()

        def wait(self) -> None: ...

    monkeypatch.setattr("forensics.compiled.subprocess.Popen", Process)
    ahead = Ahead(("ids", "text"), 2, lambda seconds: say(f"compiling {seconds:.0f}"))
    ahead.begin()
    theirs, ours = (SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=SimpleNamespace(__module__=m))}) for m in ("numba.np", "forensics.matching"))
    ahead.on_start(theirs)
    assert not started
    ahead.on_start(ours)
    ahead.on_start(ours)
    assert [c[-3:] for c in started] == [["ids,text", "0", "2"], ["ids,text", "1", "2"]] and capsys.readouterr().err == "compiling 15\n"
    ahead.close()
    assert not started


@pytest.mark.parametrize("form", list(Format))
def test_a_hash_is_printed_in_hexadecimal(form: Format, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(pa.table({"content": [b"\x00\xffA"]}), form)
    assert "00ff41" in capsys.readouterr().out
