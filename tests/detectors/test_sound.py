"""Sound documents are not called garbage: the standard library, hard negatives by hand; and what the rules leave alone."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from forensics.detectors.flagging import flag
from forensics.detectors.measuring import measure
from forensics.detectors.thresholds import read_thresholds
from forensics.stores.batch import DocumentBatch

CONFIG = read_thresholds()
# pages of HTML and style sheets kept as string constants: left-overs in a text, page templates in a program; the preset `code` lets them pass
ARGUED = {"difflib.py", "pydoc.py"}


def garbage(texts: list[str], preset: str = "default") -> dict[int, set[str]]:
    config = CONFIG if preset == "default" else read_thresholds(preset)
    out: dict[int, set[str]] = {}
    for r in flag(measure(DocumentBatch.from_texts(texts), config), config).to_pylist():
        if r["garbage"]:
            out.setdefault(r["doc_key"], set()).add(r["cause"])
    return out


def modules() -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo"}
    return [f for f in sorted(root.rglob("*.py")) if not left_out & set(f.parts)]


def test_no_module_of_the_standard_library_is_garbage() -> None:
    files = [(f, t) for f in modules() if (t := f.read_text("utf-8", "replace")).count("\n") > 50]
    found = garbage([t for _, t in files])
    assert {files[i][0].name for i in found} <= ARGUED
    assert not garbage([t for f, t in files if f.name in ARGUED], "code")


NEGATIVES = {
    "ruler": "Chapter one\n" + "=" * 79 + "\n" + "The text of the chapter is here, and it goes on for a while.\n" * 3 + "-" * 200 + "\n",
    "zeros in an array": "static const int t[] = {\n" + "    0x00, 0x00, 0x00, 0x00,\n" * 12 + "};\n",
    "credits": "".join(f"{n} Some Person <person{n}@example.org>\n" for n in range(40)),
    "checksums": "".join(f"{n:02d} file-{n}.tar.gz  {hash((n, 1)) & 0xFFFFFFFF:08x}\n" for n in range(40)),
    "generics": "std::map<std::string, std::vector<int>> a; if (a < b && c > d) { f<T>(x); }\n" * 3 + "int main() { return 0; }\n",
    "long path": "/usr/lib/x86_64-linux-gnu/some-package-name/very/long/path/to/a/file/that/has/no/spaces/at/all/in/it.so.1.2.3\n" * 2,
    "list of headers": "".join(
        f"#include <{name}/{name}_types.h>\n" for name in ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
    ),
    "short": "ok",
    "empty": "",
}


@pytest.mark.parametrize("name", NEGATIVES)
def test_hard_negatives_pass(name: str) -> None:
    assert not garbage([NEGATIVES[name]])


def test_bad_input_is_measured_without_a_complaint() -> None:
    texts = ["", "\x00", "\ud800", "a", "\n" * 5, "\u2028\u2029", "\udcff" * 30, "x" * 3000000]
    found = garbage(texts)
    assert found.get(7) == {"repetition"} and 0 not in found and 3 not in found
