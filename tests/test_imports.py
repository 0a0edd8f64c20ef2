"""The import rule: packages import downwards only, and never a neighbour on their own line."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINES = [
    {"cli"},
    {"pipelines"},
    {"engines", "reports", "manifests", "live"},
    {"attribution"},
    {"documents", "losses", "detectors", "clustering"},
    {"loaders", "curves"},
    {"stores"},
    {"base"},
]
LEVEL = {name: n for n, line in enumerate(LINES) for name in line}
HEAVY = ("pandas", "sklearn", "torch", "transformers", "ray", "datasketch", "numba", "pyarrow", "ftfy", "tensorboard", "scipy")
FILES = sorted([*(ROOT / "forensics").rglob("*.py"), *(ROOT / "pipelines").rglob("*.py")])


def package_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LEVEL else "base"


def imported(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append(node.module or "")
            found += [f"{node.module}.{a.name}" for a in node.names if node.module == "forensics"]
    return [m for m in found if m == "forensics" or m.startswith("forensics.")]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    top = path.relative_to(ROOT).parts[0]
    mine = "pipelines" if top == "pipelines" else package_of(".".join(("forensics", *path.relative_to(ROOT / "forensics").with_suffix("").parts)))
    if path.relative_to(ROOT).as_posix() in ("forensics/__main__.py",):
        mine = "cli"
    for module in imported(path):
        theirs = package_of(module)
        if theirs != mine:
            assert LEVEL[theirs] > LEVEL[mine], f"{path.relative_to(ROOT)} ({mine}) imports {module} ({theirs})"


def test_the_recorder_stands_alone() -> None:
    for path in (ROOT / "forensics/live").rglob("*.py"):
        if path.name in ("recorder.py",) or path.parent.name == "hooks":
            assert all(m in ("forensics.live.recorder", "forensics.live") for m in imported(path)), path


def test_the_command_line_starts_without_heavy_packages() -> None:
    code = "import sys, forensics.cli.app as a; a._register(); print([m for m in %r if m in sys.modules])" % (HEAVY,)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
