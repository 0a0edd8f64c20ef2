"""What holds for every exporter: its text, read the trainer's way, drops exactly the steps asked for, and its terms are all stated."""

import pytest

from forensics.errors import ForensicsError
from forensics.manifests.base import EXPORTERS, Request, starts_of
from forensics.run import Launch, RunSpec

STEPS = [[5], [4, 5, 6], [3, 4, 9, 10, 14], [1], [20, 21, 22, 23], [19, 20, 21, 22, 30]]
MEGATRON = {"global_batch_size": 32, "micro_batch_size": 2, "data_parallel_size": 4}


@pytest.fixture
def runs(describe, olmo, olmo_core, examples):
    from pathlib import Path

    shared = {"data": examples(61), "seed": 3, "gradient_accumulation_steps": 2}
    bare = {
        name: RunSpec("run", name, Path(), (Launch(0, version=version, args=MEGATRON),), version)
        for name, version in (("megatron", "0.16.1"), ("megatron-deepspeed", None), ("megatron-bridge", "0.16.1"), ("nemo", "0.16.1"), ("plain", None))
    }
    return {
        **bare,
        "olmo": olmo,
        "olmo-core": olmo_core,
        "pytorch": describe(
            "pytorch", {"loader": "DistributedSampler", "batch_size": 2, "partial_accumulation": "kept", "epochs": 9, "world_size": 2, **shared}
        ),
        "hf": describe("hf", {"per_device_train_batch_size": 1, "num_train_epochs": 9, "world_size": 4, **shared}),
    }


@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("name", ["megatron", "megatron-bridge", "nemo", "megatron-deepspeed", "olmo", "olmo-core", "pytorch", "hf", "plain"])
def test_the_exported_text_drops_exactly_the_steps_asked_for(name, steps, runs, asked) -> None:
    exporter = EXPORTERS.get(name)
    wanted = asked(runs[name], steps, target="2026-05-01" if name in ("megatron-bridge", "nemo") else None)
    manifest = exporter.export(wanted)
    assert exporter.parse(manifest, wanted) == steps
    assert manifest.dropped == tuple(steps) and manifest.files
    if name != "plain":
        terms = manifest.terms
        assert terms is not None and all([terms.numbering, terms.closure, terms.counters, terms.schedule, terms.later, terms.restarts, terms.unchanged])
        assert set(terms.sentences()) <= set(manifest.says) or name == "megatron"


@pytest.mark.parametrize("name", ["megatron", "megatron-bridge", "megatron-deepspeed", "olmo", "olmo-core", "pytorch", "hf"])
def test_documents_without_steps_give_no_list_and_name_the_ways_out(name, runs, asked) -> None:
    exporter = EXPORTERS.get(name)
    wanted = asked(runs[name], [], documents=(7, 8))
    manifest = exporter.export(wanted)
    assert not manifest.files and not manifest.flags and exporter.parse(manifest, wanted) == []
    assert any("2 documents" in s for s in manifest.says) and any("forensics apply" in s for s in manifest.says)


def test_every_registered_exporter_is_covered_here() -> None:
    named = "megatron megatron-bridge nemo megatron-deepspeed neox olmo olmo-core streaming pytorch hf plain"
    assert set(EXPORTERS.names()) == set(named.split())


def test_gpt_neox_is_refused_and_the_ways_out_are_named(runs, asked) -> None:
    with pytest.raises(ForensicsError, match="no option that leaves steps out") as caught:
        EXPORTERS.get("neox").export(asked(runs["plain"], [5]))
    assert "forensics apply" in str(caught.value.hint)


def test_starts_count_in_the_numbers_of_the_changed_run() -> None:
    found = starts_of([3, 4, 9, 10, 14])
    assert [(s.after, s.first, s.last, s.count, s.before) for s in found] == [(2, 3, 4, 2, 0), (6, 9, 10, 2, 2), (9, 14, 14, 1, 4)]


def test_the_target_outranks_the_version_of_the_run(asked, runs) -> None:
    run = runs["megatron"]
    old, new = asked(run, [7]), asked(run, [7], target="0.17.0")
    assert isinstance(old, Request)
    assert EXPORTERS.get("megatron").export(old).flags.endswith(" 6")
    assert EXPORTERS.get("megatron").export(new).flags.endswith(" 7")
