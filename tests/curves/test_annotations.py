
from __future__ import annotations

from pathlib import Path

import pytest

from forensics.curves.annotations import read_annotations
from forensics.errors import ConfigError


def test_annotations_of_all_forms(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('step,kind,text\n200,LR,halved\n100,mix,"more code, from here"\n\n150,party,cake\n')
    (tmp_path / "b.jsonl").write_text('{"time": "2024-05-01T10:00:00Z", "kind": "hardware", "note": "node 3"}\n')
    (tmp_path / "c.tsv").write_text("time\tkind\ttext\n2024-05-01 09:00:00\trestart\t\n")
    got = read_annotations([tmp_path / "a.csv", tmp_path / "b.jsonl", tmp_path / "c.tsv"]).to_pylist()
    assert [(r["step"], r["kind"], r["text"]) for r in got] == [
        (100, "mix", "more code, from here"),
        (150, "other", "party: cake"),
        (200, "lr", "halved"),
        (None, "restart", ""),
        (None, "hardware", "node 3"),
    ]
    assert got[3]["time"].hour == 9 and got[0]["time"] is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("step,kind,text\n1,mix,x\n,lr,y\n", ":3: an annotation needs a step or a time"),
        ("stepp,kind\n1,mix\n", "did you mean `step`"),
        ('{"step": 1}\n{"step"\n', ":2: not a JSON record"),
        ("", "no column"),
    ],
)
def test_a_bad_annotation_is_named_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_annotations([tmp_path / "a.csv"])
