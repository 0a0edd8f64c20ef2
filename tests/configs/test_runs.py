"""The example descriptions are strict YAML of the run description, for trainers that exist, with options they know."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from forensics.config import build, read_yaml
from forensics.loaders.base import LOADERS
from forensics.loaders.megatron.options import check_names
from forensics.run import RunFile, resolve

EXAMPLES = sorted(Path(str(resources.files("forensics.configs"))).joinpath("runs").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_is_a_description(path: Path, tmp_path: Path) -> None:
    data = build(RunFile, read_yaml(path), str(path))
    for value in (data.checkpoint, data.log, data.metrics, data.losses, data.annotations, data.documents):
        for text in [value] if isinstance(value, str) else value:
            place = tmp_path / text.replace("*", "1")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir(exist_ok=True)
    run = resolve(data, None, tmp_path)
    assert run.trainer in LOADERS.names()
    assert run.name != tmp_path.name
    if run.trainer == "megatron":
        for launch in run.launches:
            check_names(launch)


def test_there_is_one_for_every_kind_of_trainer() -> None:
    assert {p.stem for p in EXAMPLES} >= {"megatron", "neox", "olmo_core", "streaming", "hf_trainer", "recorded"}
