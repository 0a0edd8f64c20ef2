"""Pages looked up in an audited corpus of text and of ids."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from forensics.pipelines.audit import audit, plan, read_settings
from forensics.pipelines.lookup import look_up, read_pages
from typer.testing import CliRunner

from forensics.case import Case
from forensics.cli.lookup import command
from forensics.engines.local import Inline
from forensics.errors import StoreError, UsageError
from forensics.stores.records import ReadOptions
from forensics.stores.write import MegatronWriter

NAMES = "amber basin cedar delta ember fjord grove haven islet jetty knoll lagoon marsh nook oasis prairie quarry ridge"
WORDS = NAMES.split()


def page(seed: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, 150))


def audited(paths: list[Path], folder: Path, tokenizer: Path | None = None) -> Case:
    chosen, case = read_settings(), Case(folder)
    audit(case, plan(paths, folder, ReadOptions(tokenizer=tokenizer), chosen), chosen, Inline())
    return case


def test_pages_of_text(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"id": f"d{i}", "text": page(i), "source": "web"}) + "\n" for i in range(20)))
    case = audited([tmp_path / "c.jsonl"], tmp_path / "case")
    (tmp_path / "a.txt").write_text(page(3) + " and a new ending")
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"id": n, "text": t}) + "\n" for n, t in (("same", page(7)), ("other", page(99)))))
    rows = look_up(case, [tmp_path / "a.txt", tmp_path / "b.jsonl"], 0.5)
    assert [(r["page"], r["name"], r["source"]) for r in rows] == [(str(tmp_path / "a.txt"), "d3", "web"), ("same", "d7", "web")]
    assert rows[1]["jaccard"] == 1.0 and 0.8 < rows[0]["jaccard"] < 1.0
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, [str(tmp_path / "case"), str(tmp_path / "a.txt"), "--format", "json"])
    assert done.exit_code == 0 and json.loads(done.stdout)[0]["name"] == "d3"
    none = CliRunner().invoke(app, [str(tmp_path / "case"), str(tmp_path / "c.jsonl"), "--least", "1.5"])
    assert isinstance(none.exception, UsageError)


def test_pages_against_ids(tmp_path: Path) -> None:
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
        "decoder": None, "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate([*WORDS, "[UNK]"])}, "unk_token": "[UNK]"},
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with MegatronWriter(tmp_path / "c", np.dtype(np.uint16)) as writer:
        for i in range(10):
            ids = np.array([WORDS.index(w) for w in page(i).split()])
            writer.add(ids, np.array([len(ids)]))
    case = audited([tmp_path / "c.idx"], tmp_path / "case")
    (tmp_path / "a.txt").write_text(page(4))
    with pytest.raises(UsageError, match="token ids"):
        look_up(case, [tmp_path / "a.txt"], 0.5)
    assert [(r["doc_key"], r["jaccard"]) for r in look_up(case, [tmp_path / "a.txt"], 0.5, tmp_path)] == [(4, 1.0)]
    with pytest.raises(StoreError, match="does not exist"):
        look_up(case, [tmp_path / "a.txt"], 0.5, tmp_path / "nothing")
    named = audited([tmp_path / "c.idx"], tmp_path / "named", tmp_path)
    assert [(r["doc_key"], r["jaccard"]) for r in look_up(named, [tmp_path / "a.txt"], 0.5)] == [(4, 1.0)]


def test_bad_pages(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        read_pages([tmp_path / "x.txt"])
    (tmp_path / "x.jsonl").write_text("{")
    with pytest.raises(StoreError, match="no JSON"):
        read_pages([tmp_path / "x.jsonl"])
