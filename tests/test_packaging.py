"""What is declared is what is there."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_package_list_is_the_tree() -> None:
    declared = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    there = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "forensics").rglob("__init__.py")}
    assert declared == there | {"forensics.pipelines", "forensics.configs"}


def test_presets_are_found_in_the_installed_package() -> None:
    from importlib import resources

    assert resources.files("forensics.configs").joinpath("__init__.py").is_file()
    assert resources.files("forensics.pipelines").joinpath("__init__.py").is_file()


def test_no_file_of_ours_is_longer_than_500_lines() -> None:
    long = [
        (str(p.relative_to(ROOT)), n)
        for tree in ("forensics", "pipelines")
        for p in (ROOT / tree).rglob("*.py")
        if (n := len(p.read_text().splitlines())) > 500
    ]
    assert not long
