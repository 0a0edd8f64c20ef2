"""What the command line does with troubles of the machine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from forensics.cli import app
from forensics.errors import ConfigError, UsageError
from forensics.registry import Registry, load_plugin


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


def inside_a_kernel():
    raise SystemError("a result with an exception set") from KeyboardInterrupt()


def where_a_kernel_is_left():
    try:
        inside_a_kernel()
    except SystemError as error:
        raise SystemError("another result with an exception set") from error


def while_a_kernel_compiles():
    try:
        raise KeyboardInterrupt
    finally:
        raise RuntimeError("no compiled object yet")


def anywhere_else():
    raise KeyboardInterrupt


@pytest.mark.parametrize("place", [inside_a_kernel, where_a_kernel_is_left, while_a_kernel_compiles, anywhere_else])
def test_ctrl_c_stops_with_a_word_about_what_is_kept(place, monkeypatch, capsys):
    stopped = typer.Typer()
    stopped.command()(place)
    monkeypatch.setattr(sys, "argv", ["forensics"])
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


BROKEN = """from forensics.detectors.base import text_detector

@text_detector("acme", version=1)
def acme(text):
    return {}["nothing"]
"""


@pytest.mark.parametrize("installed", [False, True])
def test_a_plug_in_that_fails_in_use_is_named_with_its_place(tmp_path, installed):
    (tmp_path / "acme.py").write_text(BROKEN)
    (tmp_path / "docs.jsonl").write_text('{"text": "some words of a page"}\n')
    (tmp_path / "acme-1.2.dist-info").mkdir()
    (tmp_path / "acme-1.2.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.2\n")
    (tmp_path / "acme-1.2.dist-info/entry_points.txt").write_text("[forensics.detectors]\nacme = acme\n")
    given, env = ([], {"PYTHONPATH": str(tmp_path)}) if installed else (["--plugin", str(tmp_path / "acme.py")], {})
    words = ("audit", str(tmp_path / "docs.jsonl"), "-o", str(tmp_path / "case"))
    done = forensics(*given, *words, **env)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    name = "the detector `acme` of acme 1.2" if installed else f"the plug-in {tmp_path / 'acme.py'}"
    assert f"error: {name} failed: KeyError: 'nothing'" in done.stderr
    assert f"at {tmp_path / 'acme.py'} line 5\nhint: mend it there" in done.stderr
    told = forensics("--debug", *given, *words, **env).stderr
    assert "Traceback" in told and told.endswith(done.stderr[done.stderr.index("error: ") :])


def test_an_installed_plug_in_that_does_not_load_is_named_with_its_place(tmp_path, monkeypatch):
    (tmp_path / "acme_loads.py").write_text("x = 1\n1 / 0\n")
    (tmp_path / "acme-1.2.dist-info").mkdir()
    (tmp_path / "acme-1.2.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.2\n")
    (tmp_path / "acme-1.2.dist-info/entry_points.txt").write_text("[forensics.manifests]\nacme = acme_loads\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"`acme` could not be loaded: ZeroDivisionError: .*the exporter `acme` of acme 1\.2, .*acme_loads\.py line 2"):
        Registry("exporter", "forensics.manifests").get("acme")
