"""What every exporter must do: its text, read the trainer's way, drops exactly the steps asked for, or it refuses in words."""

from pathlib import Path

import pytest

from forensics.errors import ForensicsError
from forensics.manifests.base import EXPORTERS, Manifest, Request
from forensics.run import Launch, RunSpec

STEPS = (7, 8, 9, 40)
BARE = {"megatron", "megatron-bridge", "nemo", "olmo-core", "plain"}  # need no more of a run than a version
ARGS = {"global_batch_size": 8, "micro_batch_size": 2, "data_parallel_size": 2}


def export(name: str, steps: tuple[int, ...]) -> tuple[Manifest, Request] | ForensicsError:
    launch = Launch(0, args=ARGS)
    request = Request(RunSpec("run", name, Path("run"), (launch,)), launch, steps, (3,), 1000, 400, (5, 30), "0.16.1")
    try:
        return EXPORTERS.get(name).export(request), request
    except ForensicsError as error:
        return error


@pytest.mark.parametrize("name", EXPORTERS.names())
def test_the_text_drops_what_was_asked_for(name: str) -> None:
    got = export(name, STEPS)
    if isinstance(got, ForensicsError):
        assert name not in BARE and got.message
        return
    manifest, request = got
    assert EXPORTERS.get(name).parse(manifest, request) == list(STEPS)
    assert manifest.dropped == STEPS
    assert manifest.says and manifest.trainer


@pytest.mark.parametrize("name", EXPORTERS.names())
def test_without_steps_nothing_is_dropped(name: str) -> None:
    got = export(name, ())
    if isinstance(got, ForensicsError):
        assert name not in BARE and got.message
        return
    manifest, request = got
    assert manifest.dropped == ()
    assert not manifest.flags or EXPORTERS.get(name).parse(manifest, request) == []


@pytest.mark.parametrize("name", sorted(BARE))
def test_files_stay_in_their_folder_and_hold_text(name: str) -> None:
    got = export(name, STEPS)
    assert not isinstance(got, ForensicsError)
    assert got[0].files
    for file, text in got[0].files.items():
        assert Path(file).name == file and text.endswith("\n")
