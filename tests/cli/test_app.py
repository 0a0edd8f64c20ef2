"""What the command line does with troubles of the machine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from forensics.cli import app
from forensics.errors import UsageError
from forensics.registry import load_plugin


def forensics(*words, **env):
    return subprocess.run([sys.executable, "-m", "forensics.cli.app", *words], capture_output=True, text=True, timeout=120, env={**os.environ, **env})


def test_a_path_that_the_disk_refuses_is_no_traceback():
    done = forensics("dump", "x" * 400, "--steps", "1:2", "-o", "out")
    assert done.returncode == 1
    assert "error: xxx" in done.stderr and "hint:" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_message_quotes_cannot_steer_the_terminal(tmp_path):
    done = forensics("dump", str(tmp_path / "\x1b[31mred"), "--steps", "1:2", "-o", "out")
    assert done.returncode == 2
    assert "red does not exist" in done.stderr and "\x1b" not in done.stderr


def test_a_terminal_without_unicode_gets_its_answer(tmp_path):
    done = forensics("show", str(tmp_path / "größe"), LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 1 and "is no case folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_output_is_no_traceback(tmp_path):
    (tmp_path / "tables").mkdir()
    words = f'"{sys.executable}" -m forensics.cli.app show "{tmp_path}" >&-'
    done = subprocess.run(words, shell=True, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr and done.returncode == 0


def test_help_lists_every_command_with_its_whole_sentence():
    said = forensics("--help", COLUMNS="80").stdout
    names = re.findall(r"^  ([a-z]+)  ", said.partition("Commands:")[2], re.MULTILINE)
    assert names[:3] == ["init", "replay", "dump"] and "show" in names
    assert "..." not in said.partition("Commands:")[2]


def test_a_form_that_a_command_cannot_print_is_refused():
    done = forensics("verify", "--format", "csv")
    assert done.returncode == 2
    assert "'csv' is not one of 'table', 'json'" in done.stderr


def test_a_stop_inside_a_compiled_kernel_is_a_stop(monkeypatch, capsys):
    def stopped(**_):
        raise SystemError("a result with an exception set") from KeyboardInterrupt()

    monkeypatch.setattr(app, "_register", lambda: None)
    monkeypatch.setattr(app.PULSE, "begin", lambda: None)
    monkeypatch.setattr(app, "app", stopped)
    with pytest.raises(SystemExit, match="130"):
        app.main()
    assert "stopped; finished blocks are kept" in capsys.readouterr().err


def test_kernels_that_can_be_kept_nowhere_are_said_with_a_remedy(monkeypatch, capsys):
    def refused(**_):
        raise RuntimeError("cannot cache function 'find': no locator available for file 'components.py'")

    monkeypatch.setattr(app, "_register", lambda: None)
    monkeypatch.setattr(app.PULSE, "begin", lambda: None)
    monkeypatch.setattr(app, "app", refused)
    with pytest.raises(SystemExit, match="2"):
        app.main()
    assert "set NUMBA_CACHE_DIR" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "line"), [("x = 1\nraise ValueError('no')\n", 2), ("import sys\n\nsys.exit(0)\n", 3), ("def x(:\n", 1)])
def test_a_plugin_that_fails_is_named_with_its_line(tmp_path, monkeypatch, text, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(UsageError, match=r"mine\.py does not import") as found:
        load_plugin(Path("mine.py"))
    assert found.value.hint == f"mend it, near line {line}"
