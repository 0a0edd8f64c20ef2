import gzip
import io
import os
import threading
from pathlib import Path

import pytest
import zstandard

from forensics.errors import ForensicsError, StoreError
from forensics.files import lines, open_binary, read_text, write_text, writing


def test_a_failed_write_leaves_the_old_file_and_no_part(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(ValueError, match="stop"), writing(path) as part:
        part.write_text("half")
        raise ValueError("stop")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ForensicsError, match="cannot be written") as error:
        write_text(tmp_path / "file" / "b.txt", "x")
    assert error.value.hint


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_compression_is_recognised_by_content(tmp_path: Path, pack) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "x.txt"
    path.write_bytes(pack("über\n".encode()))
    assert read_text(path) == "über\n"


def test_lines_split_on_the_line_feed_alone() -> None:
    text = "a\u2028b\r\x0cc\nsecond\n\nlast".encode()
    assert list(lines(io.BytesIO(text), size=3)) == text.split(b"\n")


def test_limits_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1" * 100)
    with pytest.raises(StoreError, match="larger"):
        read_text(tmp_path / "x", limit_bytes=10)
    with pytest.raises(StoreError, match="cannot be read"):
        open_binary(tmp_path / "none")


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(gzip.compress(b"one\ntwo"),), daemon=True).start()
    assert read_text(tmp_path / "pipe") == "one\ntwo"
