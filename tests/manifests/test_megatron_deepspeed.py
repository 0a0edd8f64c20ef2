from pathlib import Path

import pytest

from forensics.errors import ConfigError, ForensicsError
from forensics.manifests.base import EXPORTERS
from forensics.run import Launch, RunSpec

DEEPSPEED = EXPORTERS.get("megatron-deepspeed")


def run_of(**args) -> RunSpec:
    return RunSpec(
        "run", "megatron-deepspeed", Path(), (Launch(0, args={"global_batch_size": 16, "micro_batch_size": 2, "data_parallel_size": 8, **args}),), None
    )


def trained(loads: list[tuple[int, str | None]], items: int, until: int) -> list[int]:
    """Steps of data trained by a loop like the trainer's own: loads are (checkpoint, flag), each run to the next one's checkpoint."""
    data: list[int] = []
    for n, (loaded, flag) in enumerate(loads):
        at = loaded * items  # consumed samples never count what was passed over
        if flag:
            first, last = map(int, flag.split()[-1].split("-"))
            assert first == loaded + 1
            at += last - loaded
        stop = loads[n + 1][0] if n + 1 < len(loads) else until
        del data[loaded:]
        for _ in range(loaded, stop):
            assert at % items == 0
            data.append(at // items + 1)
            at += items
    return data


def test_a_range_is_inclusive_and_counted_from_one(asked) -> None:
    manifest = DEEPSPEED.export(asked(run_of(), list(range(8401, 8801))))
    assert manifest.files["megatron-deepspeed.txt"] == "after step 8400: --skip-train-iteration-range 8401-8800\n"
    assert any("S+1-S+400" in s for s in manifest.says)


@pytest.mark.parametrize("items", [1, 4])
def test_a_loop_like_the_trainers_trains_everything_but_what_was_dropped(items, asked) -> None:
    steps = [5, 6, 7, 12, 20, 21]
    manifest = DEEPSPEED.export(asked(run_of(global_batch_size=16 * items), steps))
    loads: list[tuple[int, str | None]] = [(0, None)]
    for line in manifest.files["megatron-deepspeed.txt"].splitlines():
        head, flag = line.split(": ")
        loads.append((int(head.split()[-1]), flag))
    loads.append((18, f"--skip-train-iteration-range 19-{18 + len(steps) * items}"))  # a later restart, as the words say
    assert trained(loads, items, 24) == [s for s in range(1, 31) if s not in steps]


def test_forgetting_the_flag_at_a_restart_trains_data_twice() -> None:
    assert trained([(0, None), (4, "--skip-train-iteration-range 5-7"), (6, None)], 1, 8) == [1, 2, 3, 4, 8, 9, 7, 8]


def test_the_micro_batches_of_a_step_are_asked_for(asked) -> None:
    with pytest.raises(ConfigError, match="micro batches of a step"):
        DEEPSPEED.export(asked(RunSpec("run", "x", Path(), (Launch(0, args={"global_batch_size": 16}),), None), [5]))
    with pytest.raises(ForensicsError, match="rampup"):
        DEEPSPEED.export(asked(run_of(rampup_batch_size=[16, 16, 100]), [5]))
