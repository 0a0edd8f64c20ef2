"""Broken, odd and empty input through the commands: what is read is told from what is not, and the exit code says so."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import zstandard
from typer.testing import CliRunner

from forensics.cli import audit, show
from forensics.errors import ForensicsError, UsageError
from forensics.stores.write import MegatronWriter

APP = typer.Typer()
APP.command("audit")(audit.command)
APP.command("show")(show.command)
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards", "boil", "potions", "in", "old", "kettles"]


def run(*words: Any) -> Any:
    return CliRunner().invoke(APP, [str(w) for w in words])


def text(seed: int, n: int = 60) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, n)) + f" {seed}."


def lines(n: int) -> bytes:
    return "".join(json.dumps({"id": f"d{i}", "text": text(i)}) + "\n" for i in range(n)).encode()


def audited(folder: Path, name: str, content: bytes, *words: Any) -> Any:
    path = folder / name
    path.write_bytes(content)
    return run("audit", path, "-o", folder / "case", *words)


def tokenizer(folder: Path, vocab: list[str]) -> Path:
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None, "decoder": None, "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(vocab)}, "unk_token": vocab[-1]},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def tokens(folder: Path, documents: list[np.ndarray], dtype: str = "uint16") -> Path:
    with MegatronWriter(folder / "c", np.dtype(dtype)) as writer:
        for d in documents:
            writer.add(d, np.array([len(d)]))
    return folder / "c.idx"


@pytest.mark.parametrize("content", [b"", b"   \n{}\n"])
def test_a_file_without_documents_is_no_success(tmp_path: Path, content: bytes) -> None:
    got = audited(tmp_path, "a.jsonl", content)
    assert got.exit_code == 1 and "error: no document was found" in got.stderr and "0 documents" in got.stdout
    assert ("the files hold none" in got.stderr) == (not content)


@pytest.mark.parametrize(("content", "documents"), [(b'{"text": ""}\n', 1), (b'{"text": "a"}\n', 1), (b'{"text": ""}\n{"text": "\\n"}\n', 2)])
def test_empty_documents_are_documents(tmp_path: Path, content: bytes, documents: int) -> None:
    got = audited(tmp_path, "a.jsonl", content)
    assert got.exit_code == 0, got.output
    assert got.stdout.startswith(f"{documents} documents")


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_torn_file_is_read_as_far_as_it_goes_and_fails(tmp_path: Path, kind: str) -> None:
    noise = "".join(json.dumps({"text": text(i) + np.random.default_rng(i).bytes(400).hex()}) + "\n" for i in range(600)).encode()
    packed = gzip.compress(noise) if kind == "gz" else zstandard.ZstdCompressor().compress(noise)
    got = audited(tmp_path, f"a.jsonl.{kind}", packed[: len(packed) * 2 // 3])
    assert got.exit_code == 1
    assert "the compressed file ends too early" in got.stdout and "could be read in part only" in got.stderr
    assert 100 < int(got.stdout.split()[0].replace(",", "")) < 600
    assert run("audit", tmp_path / f"a.jsonl.{kind}", "-o", tmp_path / "case", "--set", "max_failed_share=1").exit_code == 0
    assert audited(tmp_path, f"b.jsonl.{kind}", packed[:9]).exit_code == 1


def test_odd_characters_stay_what_they_are(tmp_path: Path) -> None:
    records = [{"id": "separators", "text": "a\u2028b\u2029c\u0085d\x0ce " + text(1)}, {"id": "surrogates", "text": "x \ud800 y \udfff " + text(2)}]
    odd = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records).encode("utf-8", "surrogatepass") + b'{"id": "escaped", "text": "\\ud800 z"}\n'
    got = audited(tmp_path, "a.jsonl", odd + lines(40))
    assert got.exit_code == 0 and got.stdout.startswith("43 documents") and "not read" not in got.stdout
    shown = run("show", tmp_path / "case", "--doc", "0")
    assert "a⟨U+2028⟩b⟨U+2029⟩c⟨U+0085⟩d" in shown.stdout


def test_lines_that_are_no_records_are_named(tmp_path: Path) -> None:
    got = audited(tmp_path, "a.jsonl", lines(300) + b'{"torn\n["list"]\n{"no": "text"}\n{"text": null}\n')
    assert got.exit_code == 0 and "hint: `--text KEY` names the key that holds the text" in got.stderr
    for line in ("a.jsonl:301: no JSON", "a.jsonl:302: JSON, but a list, not an object", "a.jsonl:303: no text: the keys are no", "`text` holds null"):
        assert line in got.stdout, line


def test_one_reason_is_given_once(tmp_path: Path) -> None:
    path = tokens(tmp_path, [np.arange(200) % 90 for _ in range(3)])
    got = run("audit", path, "-o", tmp_path / "case")
    assert got.exit_code == 0
    (line,) = [x for x in got.stdout.splitlines() if "no tokenizer" in x]
    assert "mojibake" in line and "language" in line and line.endswith("no tokenizer: the ids cannot be turned into text")
    assert "hint: `--tokenizer FOLDER` gives token files their text" in got.stderr
    assert run("show", tmp_path / "case", "--doc", "0:1").exit_code == 0


def test_bytes_of_another_encoding_are_read_in_part(tmp_path: Path) -> None:
    got = audited(tmp_path, "a.jsonl", '{"text": "Où ça?"}\n'.encode("latin-1") + lines(9))
    assert got.exit_code == 0 and "read in part: " in got.stdout and "a.jsonl:1: bytes that are no UTF-8" in got.stdout
    assert "hint: a file in another encoding is turned into UTF-8 by `iconv" in got.stderr
    with pytest.raises(ForensicsError, match="is UTF-16") as refused:
        (tmp_path / "b.jsonl").write_bytes(lines(9).decode().encode("utf-16"))
        CliRunner().invoke(APP, ["audit", str(tmp_path / "b.jsonl"), "-o", str(tmp_path / "x")], catch_exceptions=False)
    assert "iconv -f UTF-16" in str(refused.value.hint)


@pytest.mark.parametrize("dtype", ["uint16", "int32", "uint32", "int64", "uint64"])
def test_raw_arrays_of_any_integer(tmp_path: Path, dtype: str) -> None:
    ids = np.random.default_rng(0).integers(1, 500, 4000).astype(dtype)
    ids[[999, 1000, 3999]] = 0
    ids.tofile(tmp_path / "raw.bin")
    got = run("audit", tmp_path / "raw.bin", "--dtype", dtype, "--eos", 0, "-o", tmp_path / "case")
    assert got.exit_code == 0, got.output
    assert got.stdout.startswith("3 documents, 4,000 tokens") and "occurs nowhere" not in got.stderr
    other = run("audit", tmp_path / "raw.bin", "--dtype", dtype, "--eos", 600, "-o", tmp_path / "other")
    assert "one document, since the id 600 that ends one occurs nowhere in it" in other.stderr
    with pytest.raises(UsageError, match="where documents of .* end"):
        CliRunner().invoke(APP, ["audit", str(tmp_path / "raw.bin"), "-o", str(tmp_path / "x")], catch_exceptions=False)


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
def test_ids_beyond_the_vocabulary_are_told(tmp_path: Path, dtype: str) -> None:
    path = tokens(tmp_path, [np.arange(100) % 15, np.full(50, 30_000), np.zeros(0, np.int64), np.array([3])], dtype)
    got = run("audit", path, "--tokenizer", tokenizer(tmp_path / "t", WORDS), "-o", tmp_path / "case")
    assert got.exit_code == 0
    assert "expected ids below 17, found 50 of 151 beyond it: what is said of the text may mean nothing" in got.stdout
    assert "hint: `--tokenizer FOLDER` must name the tokenizer that the ids were made with" in got.stderr
    assert run("show", tmp_path / "case", "--doc", "0:1").exit_code == 0


def test_another_tokenizer_shows_by_broken_characters_and_unused_ids(tmp_path: Path) -> None:
    """A wrong tokenizer of the same size shows where it has bytes of its own; the same words in another order cannot show."""
    content = {
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "post_processor": None,
        "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(_alphabet())}, "merges": []},
    }  # fmt: skip
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "tokenizer.json").write_text(json.dumps(content))
    path = tokens(tmp_path, [np.random.default_rng(i).integers(120, 250, 400) for i in range(20)])
    got = run("audit", path, "--tokenizer", tmp_path / "bytes", "-o", tmp_path / "case")
    assert "tokenizer: decoded text is UTF-8: expected at most 2 % of the characters U+FFFD" in got.stdout


def _alphabet() -> str:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return "".join(map(chr, printable)) + "".join(chr(256 + n) for n in range(256 - len(printable)))


def test_only_special_tokens_are_empty_text(tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "t", WORDS)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"] = [{"id": 14, "content": WORDS[14], "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    got = run("audit", tokens(tmp_path, [np.full(40 + i, 14) for i in range(4)]), "--tokenizer", folder, "-o", tmp_path / "case")
    assert got.exit_code == 0, got.output
    assert json.loads(run("show", tmp_path / "case", "documents", "--format", "json").stdout)[0]["bytes"] == 0


def test_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    path = tokens(tmp_path, [np.arange(9)])
    with pytest.raises(ForensicsError, match="cannot be read"):
        CliRunner().invoke(APP, ["audit", str(path), "--tokenizer", str(tmp_path / "no"), "-o", str(tmp_path / "x")], catch_exceptions=False)
    with pytest.raises(UsageError, match="does not exist"):
        CliRunner().invoke(APP, ["audit", str(tmp_path / "no.jsonl"), "-o", str(tmp_path / "x")], catch_exceptions=False)


def test_documents_of_an_audit_are_shown_with_their_text(tmp_path: Path) -> None:
    other = tmp_path / "b.jsonl.zst"
    other.write_bytes(zstandard.ZstdCompressor().compress(lines(5)))
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(30) + json.dumps({"id": "mail", "text": "write to jane.doe@example.org " + text(99, 2000)}).encode() + b"\n")
    assert run("audit", path, other, "-o", tmp_path / "case").exit_code == 0
    seventh = run("show", tmp_path / "case", "--doc", "0:7").stdout
    assert text(7) in seventh
    assert "nats/id" in seventh and "entropy" in seventh and "mojibake" not in seventh
    assert text(4) in run("show", tmp_path / "case", "--doc", "1:4").stdout
    masked = run("show", tmp_path / "case", "--doc", "0:30")
    assert "‹e-mail›" in masked.stdout and "jane" not in masked.stdout and "bytes …⟩" in masked.stdout
    assert "jane.doe@example.org" in run("show", tmp_path / "case", "--doc", "0:30", "--no-redact").stdout
    path.write_bytes(lines(31).replace(b"fox", b"cat"))
    changed = run("show", tmp_path / "case", "--doc", "0:7")
    assert changed.exit_code == 0 and "holds another document there" in changed.stderr and "cat" not in changed.stdout
    path.unlink()
    assert "does not exist any more" in run("show", tmp_path / "case", "--doc", "0:7").stderr


def test_a_case_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    (tmp_path / "a.jsonl").write_bytes(lines(3))
    with pytest.raises(ForensicsError, match="taken/tables cannot be written") as refused:
        CliRunner().invoke(APP, ["audit", str(tmp_path / "a.jsonl"), "-o", str(tmp_path / "taken")], catch_exceptions=False)
    assert "-o" in str(refused.value.hint)


def test_a_negative_limit_is_refused(tmp_path: Path) -> None:
    audited(tmp_path, "a.jsonl", lines(3))
    assert run("show", tmp_path / "case", "documents", "--limit", "-1").exit_code == 2
    assert len(json.loads(run("show", tmp_path / "case", "documents", "--limit", "0", "--format", "json").stdout)) == 3
