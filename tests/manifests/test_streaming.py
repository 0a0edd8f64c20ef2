"""Edited states of MosaicML Streaming: the loader, started from them, reads what follows the dropped steps."""

import json
from pathlib import Path

import msgspec
import pytest

from forensics.errors import ForensicsError
from forensics.loaders.base import loader_of
from forensics.manifests.base import EXPORTERS, Request
from forensics.run import RunFile, resolve
from forensics.steps import StepRange

CASE = Path(__file__).parents[1] / "oracles" / "streaming" / "py1s_absolute_ws4_elastic"
STREAMING = EXPORTERS.get("streaming")


def describe(launches, **args):
    told = json.loads((CASE / "run.json").read_text())
    streams = [{"local": s, **w} for s, w in zip(told["sources"], told.get("stream_weights") or [{}] * 3)]
    shared = {**told["dataset_args"], "streams": streams, "drop_last": True, "eos_token_id": told["eos_token_id"], "world_size": 4,
              "column": told.get("token_column"),
              "ranks_per_node": 2, "batch_size": 3, "num_workers": 0, **args}  # fmt: skip
    return resolve(msgspec.convert({"run": "t", "trainer": "streaming", "args": shared, "launches": launches}, RunFile), None, CASE)


def batches(run, launch, start, stop):
    rows = loader_of(run).opened(run).orders[launch].rows(StepRange(start, stop))
    return [tuple(zip(rows.epoch[rows.step == s].tolist(), rows.sample[rows.step == s].tolist())) for s in range(start, stop)]


def request(run, steps) -> Request:
    return Request(run, run.launches[0], tuple(steps))


@pytest.mark.parametrize("steps", [[4, 5], [6], [12, 13, 14, 15, 16], [3, 4, 9]])
def test_a_loader_started_from_the_exported_states_reads_everything_else(steps) -> None:
    run = describe([{"after_step": 0}])
    manifest = STREAMING.export(request(run, steps))
    assert STREAMING.parse(manifest, request(run, steps)) == steps
    launches = [{"after_step": 0}]
    for name, text in sorted(manifest.files.items(), key=lambda x: int(x[0].rpartition("step")[2].split(".")[0])):
        after = int(name.rpartition("step")[2].split(".")[0])
        launches[-1]["last_step"] = after
        launches.append({"after_step": after, "args": {"state": json.loads(text)}})
    changed = describe(launches)
    read = []
    for n, launch in enumerate(launches):
        read += batches(changed, n, launch["after_step"] + 1, launch.get("last_step", 24) + 1)
    before = batches(run, 0, 1, 25 + len(steps))
    assert [frozenset(b) for b in read] == [frozenset(b) for s, b in enumerate(before, 1) if s not in steps]


def test_a_state_inside_a_global_batch_or_between_steps_is_refused() -> None:
    run = describe([{"after_step": 0}])
    wanted = request(run, [4, 5])
    manifest = STREAMING.export(wanted)
    (name,) = manifest.files
    state = json.loads(manifest.files[name])
    for sample, message in ((state["sample_in_epoch"] + 1, "inside a global batch"), (10**6 * 12, "no step of the run begins")):
        broken = type(manifest)(**{**manifest.__dict__, "files": {name: json.dumps({**state, "sample_in_epoch": sample, "epoch": 0})}})
        with pytest.raises(ForensicsError, match=message):
            STREAMING.parse(broken, wanted)
