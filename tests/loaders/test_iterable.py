"""What the loader of `datasets.IterableDataset` owes beside its oracles: refusals by name, whole passes, ranks that share, states that must fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from forensics.errors import ConfigError, ForensicsError, NotReplayable, RunError
from forensics.loaders.base import loader_of
from forensics.run import RunFile, RunSpec, resolve
from forensics.steps import StepRange

CASE = Path(__file__).parents[1] / "oracles" / "hf" / "datasets_iterable_interleave_state"
SIZES = (13, 8, 5)
FILES = [f"src{i}.jsonl" for i in range(len(SIZES))]
DRAWN = {"probabilities": [0.5, 0.3, 0.2], "seed": 4, "stopping_strategy": "all_exhausted_without_replacement"}
PLAIN: dict[str, Any] = {"data": FILES, "batch_size": 4, "pipeline": [{"interleave": DRAWN}]}


def described(folder: Path, launches: list[dict[str, Any]] | None = None, version: str | None = "5.2.0", **args: Any) -> RunSpec:
    content: dict[str, Any] = {"trainer": "datasets", "args": args, "version": version} | ({"launches": launches} if launches else {})
    return resolve(msgspec.convert({k: v for k, v in content.items() if v is not None}, RunFile), None, folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, size in enumerate(SIZES):
        (tmp_path / FILES[i]).write_text("".join(json.dumps({"input_ids": [i, k, 0]}) + "\n" for k in range(size)))
    return tmp_path


def table(run: RunSpec, start: int = 1, stop: int | None = None, launch: int | None = None) -> pa.Table:
    loader = loader_of(run)
    last = loader.launches(run)["stop_step"].to_pylist()[-1]
    return pa.concat_tables(list(loader.consumed(run, StepRange(start, stop or last), launch)))


def samples(run: RunSpec, start: int = 1, stop: int | None = None) -> list[int]:
    return table(run, start, stop)["sample"].to_pylist()


def without(name: str) -> dict[str, Any]:
    return {k: v for k, v in PLAIN.items() if k != name}


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (PLAIN | {"sampler": 1}, "sampler"),
        (PLAIN | {"num_workers": 2}, "num_workers"),
        (PLAIN | {"world_size": 2}, "split_dataset_by_node"),
        (PLAIN | {"gradient_accumulation_steps": 2}, "partial_accumulation"),
        (PLAIN | {"stopping_strategy": "first_exhausted"}, "pipeline"),
        (PLAIN | {"shards_per_source": 2, "shard_rule": "by hand"}, "by hand"),
        (PLAIN | {"pipeline": [{"interleave": DRAWN | {"stopping_strategy": "some"}}]}, "some"),
        (PLAIN | {"pipeline": [{"interleave": DRAWN | {"probabilities": [0.5, 0.5]}}]}, "probabilities"),
        (PLAIN | {"pipeline": [{"interleave": DRAWN | {"probabilities": [0.5, 0.5, 0.0]}}]}, "never ends"),
        (PLAIN | {"pipeline": [{"interleave": {k: v for k, v in DRAWN.items() if k != "seed"}}]}, "interleave_seed"),
        (PLAIN | {"pipeline": [{"interleave": 3}]}, "block of options"),
        (PLAIN | {"pipeline": [{"skip": 3}]}, "skip"),
        (PLAIN | {"pipeline": [{"interleave": DRAWN}, {"map": "tokenize"}]}, "map"),
        (PLAIN | {"pipeline": [{"interleave": DRAWN}, {"shuffle": {"seed": 1}}]}, "buffer_size: 1000"),
        (PLAIN | {"pipeline": [{"interleave": DRAWN}, {"shuffle": {"seed": 1, "buffer_size": 10}}]}, "buffer_size: 10"),
        (PLAIN | {"pipeline": [{"interleave": DRAWN}, {"shuffle": {"buffer_size": 1}}]}, "seed"),
        (PLAIN | {"pipeline": [{"interleave": DRAWN}, {"shuffle": {"seed": 1, "buffer_size": 1, "window": 3}}]}, "window"),
        (without("pipeline"), "put together"),
        (without("pipeline") | {"stopping_strategy": "first_exhausted", "skip": 1, "take": 2}, "pipeline"),
        (without("data"), "data"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(folder: Path, args: dict[str, Any], named: str) -> None:
    with pytest.raises((ConfigError, NotReplayable, RunError)) as caught:
        samples(described(folder, **args))
    assert named in caught.value.text()


def test_releases_that_shuffle_otherwise_are_refused(folder: Path) -> None:
    shuffle = PLAIN | {"pipeline": [*PLAIN["pipeline"], {"shuffle": {"seed": 1, "buffer_size": 1}}]}
    assert samples(described(folder, version=None, **PLAIN)) == samples(described(folder, version="3.6.0", **PLAIN))
    for version in (None, "3.6.0", "5.0.0"):
        for args in (shuffle, PLAIN | {"epoch": 1}):
            with pytest.raises(NotReplayable, match="version|older rules"):
                samples(described(folder, version=version, **args))


def test_a_pass_without_replacement_holds_every_example_once(folder: Path) -> None:
    for extra in ({}, {"epoch": 3}, {"shards_per_source": 4, "shard_rule": "modulo", "epoch": 2}):
        run = described(folder, **PLAIN | extra)
        assert sorted(samples(run)) == list(range(sum(SIZES)))
    shuffled = PLAIN | {"shards_per_source": 3, "pipeline": [*PLAIN["pipeline"], {"shuffle": {"seed": 9, "buffer_size": 1}}]}
    assert sorted(samples(described(folder, **shuffled))) == list(range(sum(SIZES)))
    assert samples(described(folder, **shuffled)) != samples(described(folder, **PLAIN))


def test_the_short_form_is_the_pipeline(folder: Path) -> None:
    short = (
        without("pipeline") | {f"interleave_{n}": DRAWN[n] for n in ("probabilities", "seed")} | {"stopping_strategy": DRAWN["stopping_strategy"], "skip": 5}
    )
    long = PLAIN | {"pipeline": [*PLAIN["pipeline"], {"skip": 5}]}
    assert samples(described(folder, **short)) == samples(described(folder, **long)) == samples(described(folder, **PLAIN))[5:]


@pytest.mark.parametrize("strategy", ["auto", "shards", "examples"])
def test_ranks_share_the_examples(folder: Path, strategy: str) -> None:
    split = [*PLAIN["pipeline"], {"split_dataset_by_node": {"strategy": strategy}}]
    run = described(folder, **PLAIN | {"pipeline": split, "world_size": 2, "shards_per_source": 2, "batch_size": 1})
    found = table(run)
    sample, rank = found["sample"].to_numpy(), found["rank"].to_numpy()
    assert len(np.unique(sample)) == len(sample)
    assert np.bincount(rank).tolist() == [len(sample) // 2] * 2
    if strategy == "examples":
        whole = samples(described(folder, **PLAIN | {"shards_per_source": 2}))
        assert [sample[rank == r].tolist() for r in range(2)] == [whole[r::2] for r in range(2)]


def test_what_remains_of_an_epoch(folder: Path) -> None:
    want = samples(described(folder, **PLAIN))  # 26 examples: 6 batches and 2 examples
    two = PLAIN | {"epochs": 2, "set_epoch_called": False, "gradient_accumulation_steps": 4}
    for partial, steps, length in (("dropped", 2, 32), ("kept", 4, 52), ("carried", 4, 52)):
        run = described(folder, **two | {"partial_accumulation": partial})
        found = table(run)
        assert found["step"].to_pylist()[-1] == steps
        assert found["sample"].to_pylist() == (want + want if length == 52 else want[:16] * 2)
    assert samples(described(folder, **PLAIN | {"drop_last": True})) == want[:24]
    assert samples(described(folder, **PLAIN | {"max_steps": 3})) == want[:12]
    with pytest.raises(RunError, match="ends before step 8"):
        samples(described(folder, **PLAIN | {"max_steps": 9}))


def test_what_never_ends_needs_no_end(folder: Path) -> None:
    once = samples(described(folder, **PLAIN))
    run = described(folder, **PLAIN | {"pipeline": [*PLAIN["pipeline"], {"repeat": None}]})
    assert samples(run, 1, 21) == (once * 4)[:80]
    with pytest.raises(RunError, match="no known end"):
        list(loader_of(run).locate(run, np.array([0])))


def resumed(folder: Path, edit: Callable[[dict[str, Any]], None] | None = None, **args: Any) -> RunSpec:
    for path in CASE.glob("src*.jsonl"):
        (folder / path.name).write_bytes(path.read_bytes())
    state = json.loads((CASE / "dataset_state_step9.json").read_text())
    if edit:
        edit(state)
    (folder / "state.json").write_text(json.dumps(state))
    run = json.loads((CASE / "run.json").read_text())
    names = (
        "interleave_probabilities",
        "interleave_seed",
        "stopping_strategy",
        "shuffle_seed",
        "shuffle_buffer_size",
        "shards_per_source",
        "batch_size",
        "epoch",
    )
    shared = {n: run[n] for n in names} | {"data": run["sources"], "shard_rule": "modulo"} | args
    shared = {k: v for k, v in shared.items() if v is not None}
    return described(folder, [{"after_step": 0, "last_step": 12}, {"after_step": 9, "args": {"state": "state.json"}}], **shared)


def test_a_state_goes_on_where_the_run_stood(folder: Path) -> None:
    run = resumed(folder)
    ours = [table(run, 10, 13, launch)["sample"].to_pylist() for launch in (0, 1)]
    assert ours[0] == ours[1]
    assert ours[0] != table(run, 1, 4, 0)["sample"].to_pylist()


def test_a_state_of_another_epoch_is_not_loaded(folder: Path) -> None:
    """As the library does: it begins the epoch anew."""
    run = resumed(folder, lambda s: s.update(epoch=2))
    assert table(run, 10, 13, 1)["sample"].to_pylist() == table(run, 1, 4, 0)["sample"].to_pylist()


def test_a_state_holds_the_generator_that_nobody_seeded(folder: Path) -> None:
    run = json.loads((CASE / "run.json").read_text())
    assert run["epoch"] == 1  # in later epochs the seed of the interleaving plays no part
    assert table(resumed(folder, interleave_seed=None), 10, 13, 1).equals(table(resumed(folder), 10, 13, 1))


def first(state: dict[str, Any]) -> dict[str, Any]:
    inner: dict[str, Any] = state["examples_iterable"]["previous_states"][1]
    return inner


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: s.update(examples_iterable=3),
        lambda s: s["examples_iterable"].update(type="MappedExamplesIterable"),
        lambda s: s["examples_iterable"].update(previous_states=[None]),
        lambda s: s["examples_iterable"].update(ex_iterable_idx=-1),
        lambda s: s["examples_iterable"].update(previous_states=[3, 3, 3, 3]),
        lambda s: first(s).pop("is_exhausted"),
        lambda s: first(s).update(bit_generator_state={"bit_generator": "MT19937", "state": {}}),
        lambda s: first(s)["bit_generator_state"].update(state={"state": "x", "inc": None}),
        lambda s: first(s)["previous_states"][0].update(shard_idx=77),
        lambda s: first(s)["previous_states"][0].update(shard_example_idx=1000),
    ],
)
def test_states_that_do_not_fit_are_refused(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises((RunError, NotReplayable)) as caught:
        table(resumed(folder, edit), 10, 13, 1)
    assert "state" in caught.value.text()


def test_a_resume_without_its_state_is_refused(folder: Path) -> None:
    run = described(folder, [{"after_step": 0, "last_step": 2}, {"after_step": 2}], **PLAIN)
    with pytest.raises(NotReplayable, match="state that is not given"):
        samples(run)
    again = described(folder, [{"after_step": 0, "last_step": 2}, {"after_step": 2, "args": {"skip_first_batches": 2}}], **PLAIN)
    assert samples(again) == samples(described(folder, **PLAIN))


def test_tables_of_unknown_sizes_are_refused(folder: Path) -> None:
    leaf = {"shard_idx": 0, "shard_example_idx": 0, "type": "ArrowExamplesIterable"}
    state = {"examples_iterable": leaf, "previous_state": leaf, "batch_idx": 3, "cropped_chunk_length": 0, "type": "RebatchedArrowExamplesIterable"}
    for chunks, cropped, left in ((3, 0, None), (0, 0, 0), (1, 2, 2)):
        content = {"examples_iterable": state | {"num_chunks_since_previous_state": chunks, "cropped_chunk_length": cropped}, "epoch": 0}
        (folder / f"state{chunks}.json").write_text(json.dumps(content))
        run = described(folder, [{"after_step": 3, "args": {"state": f"state{chunks}.json"}}], data=FILES[:1], batch_size=4)
        if left is None:
            with pytest.raises(NotReplayable, match="num_chunks_since_previous_state"):
                samples(run, 4)
        else:
            assert samples(run, 4) == list(range(left, SIZES[0]))


def test_files_that_hold_no_state(folder: Path) -> None:
    (folder / "text.json").write_text("not json")
    (folder / "other.json").write_text("[1, {}]")
    for name in ("text.json", "other.json", "missing.json"):
        with pytest.raises(ForensicsError, match=name):
            samples(described(folder, [{"after_step": 3, "args": {"state": name}}], **PLAIN), 4)
