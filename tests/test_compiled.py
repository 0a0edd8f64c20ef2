"""The list of kernels that helpers compile ahead: it holds what audits and replays call, and nothing that is no kernel.

`python tests/test_compiled.py` writes the list anew (from empty: delete it first).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from forensics.compiled import USES, listed, signature_of, types_of

ROOT = Path(__file__).parent.parent
QUICKSTART = ROOT / "configs" / "quickstart"
CALLED = """
import json, sys
from numba import typeof
from numba.core.dispatcher import Dispatcher
from forensics.cli import app
from forensics.compiled import signature_of

called, compile_for = {}, Dispatcher._compile_for_args

def seen(self, *args, **kws):
    f = self.py_func
    if f.__module__.startswith("forensics."):
        called[f.__module__ + "." + f.__qualname__ + "  " + signature_of([typeof(a) for a in args])] = None
    return compile_for(self, *args, **kws)

Dispatcher._compile_for_args = seen
try:
    app.main()
finally:
    open(OUT, "w").write(json.dumps(list(called)))
"""


def called(folder: Path, *arguments: str, cwd: Path | None = None) -> list[str]:
    """Kernels with their types, in the order in which a command first called them from Python."""
    out = folder / "called.json"
    code = CALLED.replace("OUT", repr(str(out)))
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [str(line) for line in json.loads(out.read_text())]


def documents() -> list[str]:
    """Ordinary and broken text, with copies and templates."""
    sys.path.insert(0, str(ROOT / "tests" / "detectors"))
    from documents import FRENCH, STORY, twenty
    from test_mojibake import PROSE

    modules = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-d]*.py"))
    texts = [text for text, _, _ in twenty().values()] + [f.read_text("utf-8", "replace") for f in modules] + [p * 3 for p in PROSE.values()]
    texts += [(p * 3).encode().decode("cp1251", "replace") for p in PROSE.values()] + [(FRENCH * 3).encode().decode("gbk", "replace")]
    pages = [
        f"Buy the {w} lamp, model {n}, today.\nIt has {n} watts and comes in {w}.\n{STORY[n * 9 : n * 9 + 400]}\nAll {w} lamps ship free.\n"
        for n, w in enumerate(STORY.split()[:60])
    ]
    return texts + pages + texts[:30] + [t.replace("the", "a") for t in texts[:30]]


def used(use: str, folder: Path) -> list[str]:
    """What a command of that use calls."""
    if use == "replay":
        shutil.copytree(QUICKSTART, folder / "run")
        return called(folder, "replay", "--steps", "41200:41240", "-o", str(folder / "case"), cwd=folder / "run")
    if use == "text":
        (folder / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in documents()))
        return called(folder, "audit", str(folder / "a.jsonl"), "-o", str(folder / "case"))
    from tokenizers import Tokenizer

    from forensics.stores.write import MegatronWriter

    tokenizer = Tokenizer.from_file(str(QUICKSTART / "tokenizer.json"))
    with MegatronWriter(folder / "a", np.dtype(np.uint16)) as writer:
        for encoding in tokenizer.encode_batch(documents(), add_special_tokens=False):
            writer.add(np.array(encoding.ids, np.uint16), np.array([len(encoding.ids)], np.int64))
    return called(folder, "audit", str(folder / "a.bin"), "--tokenizer", str(QUICKSTART / "tokenizer.json"), "-o", str(folder / "case"))


@pytest.mark.parametrize("use", USES)
def test_what_is_called_is_listed(use: str, tmp_path: Path) -> None:
    known = {f"{module}.{name}  {signature}" for module, name, signature in listed([use])}
    assert not [line for line in used(use, tmp_path) if line not in known], "write the list anew: python tests/test_compiled.py"


def test_what_is_listed_is_a_kernel_and_its_types_are_read() -> None:
    for module, name, signature in listed(USES):
        assert signature_of(types_of(signature)) == signature
        assert hasattr(getattr(import_module(module), name), "py_func")


def test_a_helper_compiles_its_share(tmp_path: Path) -> None:
    rows = listed(["replay"])
    with helper(tmp_path, len(rows) - 1, len(rows)) as process:
        assert process.wait() == 0
    assert [p.name.split(".")[1].rsplit("-", 1)[0] for p in tmp_path.rglob("*.nbi")] == [rows[0][1]]


def test_a_helper_ends_with_its_command(tmp_path: Path) -> None:
    with helper(tmp_path, 0, 1) as process:
        assert process.stdin
        process.stdin.close()
        assert process.wait() == 1


def helper(folder: Path, first: int, step: int) -> subprocess.Popen[bytes]:
    """One that compiles for replays, into a folder."""
    command = [sys.executable, "-P", "-m", "forensics.compiled", "replay", str(first), str(step)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "NUMBA_CACHE_DIR": str(folder)})


def write() -> None:
    """The list of what is listed and of what is called now."""
    import tempfile

    uses = {f"{m}.{n}  {s}": {u for u in USES if (m, n, s) in listed([u])} for m, n, s in listed(USES)}
    order = list(uses)
    for use in USES:
        with tempfile.TemporaryDirectory() as folder:
            before = -1
            for line in used(use, Path(folder)):
                if line not in uses:
                    order.insert(before + 1, line)
                uses.setdefault(line, set()).add(use)
                before = order.index(line)
    head = "# Kernels by what calls them, in the order of first use (see forensics/compiled.py); written by tests/test_compiled.py.\n"
    (ROOT / "forensics" / "kernels.txt").write_text(head + "".join(f"{','.join(u for u in USES if u in uses[x])}  {x}\n" for x in order))


if __name__ == "__main__":
    write()
