"""The command `forensics manifest`: what it writes where."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.cli.manifest import write_files
from forensics.errors import UsageError
from forensics.manifests.base import Manifest


def test_another_readme_is_never_overwritten(tmp_path: Path) -> None:
    manifest = Manifest("plain", None, {"skip.json": "{}"}, "", ("says",))
    write_files(manifest, tmp_path / "new")
    write_files(manifest, tmp_path / "new")
    (tmp_path / "new" / "README.txt").write_text("skip list for megatron 0.16\n\n- of a replay\n")
    write_files(manifest, tmp_path / "new")
    (tmp_path / "README.txt").write_text("mine")
    with pytest.raises(UsageError, match="not written by this tool"):
        write_files(manifest, tmp_path)
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["README.txt"] and (tmp_path / "README.txt").read_text() == "mine"
