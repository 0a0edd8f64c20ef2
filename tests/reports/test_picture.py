"""The picture in the README is there and small."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_readme_shows_a_small_picture_of_the_quickstart() -> None:
    picture = ROOT / "configs/quickstart/report.png"
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) <= 300_000
    assert "(configs/quickstart/report.png)" in (ROOT / "README.md").read_text()
