"""Old OLMo and OLMo-core: the exported starts and ranges against the loaders' own orders."""

import re

import numpy as np
import pytest

from forensics.errors import ForensicsError
from forensics.loaders.base import loader_of
from forensics.manifests.base import EXPORTERS, Manifest
from forensics.steps import StepRange

OLMO, CORE = EXPORTERS.get("olmo"), EXPORTERS.get("olmo-core")


def ids(run, launch, steps) -> list[frozenset]:
    rows = loader_of(run).opened(run).orders[launch].rows(StepRange(steps[0], steps[1]))
    return [frozenset(zip(rows.epoch[rows.step == s].tolist(), rows.sample[rows.step == s].tolist())) for s in range(*steps)]


@pytest.mark.parametrize("steps", [[6, 7], [20, 21, 22], [21, 22, 23, 24], [42, 43], [5, 6, 12]])
def test_a_run_started_as_exported_reads_everything_but_the_dropped_batches(steps, olmo, describe, asked) -> None:
    """The loader, given `fast_forward_batches` as launches of their own, is the judge."""
    text = OLMO.export(asked(olmo, steps)).files["olmo.txt"]
    launches = [{"after_step": 0, "args": {}}]
    for line in text.splitlines():
        given = dict(re.findall(r"--(\w+)=(\S+)", line))
        after = int(given.pop("load_path").rpartition("step")[2])
        launches.append({"after_step": after, "args": {k: int(v) for k, v in given.items()}})
        launches[-2]["last_step"] = after
    changed = describe("olmo", dict(olmo.launches[0].args), launches=launches)
    read = []
    for n, launch in enumerate(launches):
        first, stop = launch["after_step"] + 1, launch.get("last_step", 50) + 1
        if stop > first:
            read += ids(changed, n, (first, stop))
    before = ids(olmo, 0, (1, 51 + len(steps)))
    assert read == [b for s, b in enumerate(before, 1) if s not in steps][: len(read)] and len(read) == 50


def test_fast_forwarding_beyond_an_epoch_is_no_exact_skip(olmo, asked) -> None:
    wanted = asked(olmo, [20, 21, 22])
    text = {"olmo.txt": "--load_path=x/step19 --fast_forward_batches=3\n"}
    with pytest.raises(ForensicsError, match="beyond the end of epoch 0"):
        OLMO.parse(Manifest("olmo", None, text, "", ()), wanted)


def test_core_ranges_leave_the_stop_trained(olmo_core, asked) -> None:
    manifest = CORE.export(asked(olmo_core, [5, 6, 9], checkpoints=(2, 4, 5)))
    assert "StepSkipRange(start=5, stop=7)" in manifest.files["olmo-core.py.txt"]
    assert any("checkpoint of step 4" in s for s in manifest.says)


def test_core_loader_marks_the_exported_steps_as_dropped_and_moves_nothing(olmo_core, describe, asked) -> None:
    import yaml

    text = yaml.safe_load(CORE.export(asked(olmo_core, [5, 6, 9])).files["olmo-core.yaml"])
    args = dict(olmo_core.launches[0].args)
    changed = describe("olmo-core", {**args, "trainer": {**args["trainer"], **text["trainer"]}})
    facts = loader_of(changed).trained(changed, StepRange(1, 41))
    assert np.flatnonzero(~facts.trained).tolist() == [4, 5, 8]
    assert ids(changed, 0, (1, 41)) == ids(olmo_core, 0, (1, 41))
