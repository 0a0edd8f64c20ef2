"""The loader's answers and refusals on small made runs."""

import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pytest

from forensics.errors import ConfigError, NotReplayable, RunError, StoreError
from forensics.loaders.base import loader_of
from forensics.steps import StepRange

DOCUMENTS = [[30], [5, 0, 7], [], [0], [60], [41], [16], [3], [90], [22]]


@pytest.fixture
def run(corpus, describe, base):
    corpus("web", DOCUMENTS, seed=3)
    corpus("code", [[25]] * 12, seed=4)
    return lambda args=(), **keys: describe(base | dict(args), **keys)


def read(run, start, stop, launch=None):
    return pa.concat_tables(loader_of(run).consumed(run, StepRange(start, stop), launch))


def blend(**args):
    return {"data_path": ["0.7", "data/web", "0.3", "data/code"], **args}


def test_pieces_equal_the_whole(run):
    described = run(blend(train_iters=20))
    whole = read(described, 1, 21)
    assert pa.concat_tables([read(described, s, s + 1) for s in range(1, 21)]).equals(whole)
    assert pa.concat_tables([read(described, 1, 8), read(described, 8, 21)]).equals(whole)


def test_blocks_do_not_change_what_comes(run, monkeypatch):
    described = run(blend(dataloader_type="cyclic"))
    whole = read(described, 1, 11)
    monkeypatch.setattr("forensics.loaders.base.BLOCK_ROWS", 8)
    tables = list(loader_of(described).consumed(described, StepRange(1, 11)))
    assert len(tables) == 10
    assert pa.concat_tables(tables).equals(whole)


def test_every_sequence_is_filled_exactly_once(run):
    table = read(run(blend(train_iters=20)), 1, 21)
    step, row, place = (table[n].to_numpy() for n in ("step", "sequence", "seq_start"))
    length = table["doc_stop"].to_numpy() - table["doc_start"].to_numpy()
    key = step * 8 + row
    assert np.all(np.bincount(key, weights=length)[8:] == 17)
    follows = (key[1:] == key[:-1]) & (place[1:] == (place + length)[:-1])
    opens = (key[1:] != key[:-1]) & (place[1:] == 0)
    assert np.all(follows | opens)
    assert np.all(length > 0)


def test_located_documents_are_all_their_segments(run):
    described = run(
        blend(train_iters=30), launches=[{"after_step": 0, "last_step": 12}, {"after_step": 8, "args": {"train_iters": 40, "global_batch_size": 16}}]
    )
    loader = loader_of(described)
    everything = pa.concat_tables([read(described, 1, 13, 0), read(described, 9, 41, 1)])
    for keys in ([4], [(1 << 40) | 3, 1], [3]):
        want = everything.filter(pa.array(np.isin(everything["doc_key"].to_numpy(), keys)))
        found = pa.concat_tables([*loader.locate(described, np.array(keys)), everything.slice(0, 0)])
        assert found.equals(want)
    with pytest.raises(RunError, match="has 12 documents"):
        list(loader.locate(described, np.array([(1 << 40) | 12])))
    with pytest.raises(RunError, match="no corpus 2"):
        list(loader.locate(described, np.array([2 << 40])))


@pytest.mark.parametrize("sharding", [True, False])
def test_located_documents_under_a_cyclic_loader(run, sharding):
    described = run(blend(dataloader_type="cyclic", data_sharding=sharding, train_iters=25), launches=[{"after_step": 5, "consumed": 40}])
    everything = read(described, 6, 26)
    found = pa.concat_tables(loader_of(described).locate(described, np.array([4, 8])))
    assert found.equals(everything.filter(pa.array(np.isin(everything["doc_key"].to_numpy(), [4, 8]))))


def test_a_counter_is_carried_from_the_launch_before(run):
    args = {"rampup_batch_size": [4, 4, 20], "train_iters": None, "train_samples": 200}
    described = run(args, launches=[{"after_step": 0}, {"after_step": 5, "args": {"global_batch_size": 16, "rampup_batch_size": None}}])
    facts = loader_of(described).trained(described, StepRange(4, 8))
    assert facts.consumed_after.tolist() == [16, 20, 36, 52]
    assert facts.launch.tolist() == [0, 0, 1, 1]


def test_a_lone_launch_in_the_middle_counts_as_the_trainer_does(run):
    described = run(launches=[{"after_step": 4}])
    assert loader_of(described).trained(described, StepRange(5, 6)).consumed_after.tolist() == [40]
    assert any("4 steps x 8" in note for note in loader_of(described).notes(described))


def test_skipped_steps_of_both_kinds(run):
    described = run({"iterations_to_skip": [3]}, launches=[{"after_step": 0, "skipped": ["6:8"]}])
    facts = loader_of(described).trained(described, StepRange(1, 11))
    assert facts.step[~facts.trained].tolist() == [4, 6, 7]
    described = run({"iterations_to_skip": [3]}, version="0.17.0")
    facts = loader_of(described).trained(described, StepRange(1, 11))
    assert facts.step[~facts.trained].tolist() == [3]


def test_the_tables_say_what_the_trainer_prints(run):
    described = run(blend())
    launch = loader_of(described).launches(described).to_pylist()[0]
    assert (launch["first_step"], launch["stop_step"], launch["target_samples"], launch["row_width"]) == (1, 11, 80, 17)
    rows = loader_of(described).blends(described).to_pylist()
    assert [(r["split"], r["corpus_id"], r["wanted_samples"]) for r in rows] == [("train", 0, 57), ("train", 1, 25)]
    assert [r["tokens_per_epoch"] for r in rows] == [274, 300]


def test_equal_orders_have_equal_hashes(run):
    one = loader_of(run()).launches(run())["order_hash"].to_pylist()
    assert loader_of(run({"lr": 1e-3})).launches(run({"lr": 1e-3}))["order_hash"].to_pylist() == one
    for change in ({"seed": 1}, {"seq_length": 17}, {"train_iters": 400}, {"dataloader_type": "cyclic"}):
        described = run(change)
        assert loader_of(described).launches(described)["order_hash"].to_pylist() != one


# ---- what is refused ----


def refused(error, run, start=1, stop=2, launch=None):
    with pytest.raises(error) as caught:
        read(run, start, stop, launch)
    return caught.value


def test_missing_arguments_are_listed_at_once(describe):
    message = refused(ConfigError, describe({"seed": 1})).message
    assert all(name in message for name in ("seq_length", "global_batch_size", "train_iters", "data_path"))


def test_a_misspelt_argument_gets_a_suggestion(run):
    assert "did you mean `global_batch_size`" in refused(ConfigError, run({"global_batchsize": 4})).message
    read(run({"lr": 1e-4, "hidden_size": 64}), 1, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", "x"), ("train_iters", 1.5), ("global_batch_size", 0), ("seq_length", -4), ("data_sharding", "perhaps"), ("iterations_to_skip", ["a"]),
        ("rampup_batch_size", [1, 2]), ("seed", 2**32), ("seed", -1), ("seq_length", 2**31),
    ],
)  # fmt: skip
def test_values_of_the_wrong_type_are_named(run, name, value):
    assert f"`{name}` is" in refused(ConfigError, run({name: value})).message


def test_steps_beyond_the_run(run):
    error = refused(RunError, run(), 5, 12)
    assert "no launch ran step 11" in error.message
    assert "train_iters" in error.hint


@pytest.mark.parametrize("plan", [{"train_iters": 10**15}, {"train_iters": None, "train_samples": 10**18}])
def test_a_plan_that_no_run_can_have(run, plan):
    error = refused(RunError, run(plan))
    assert "steps, more than" in error.message
    assert "train_samples" in error.hint


def test_a_tokenizer_that_is_not_there_costs_the_text_alone(run, tmp_path):
    described = run(tokenizer="gone.json")
    store = loader_of(described).store(described)
    assert store.vocabulary is None
    assert len(store.notes) == 1 and "gone.json" in store.notes[0]
    assert len(store.documents(read(described, 1, 2)["doc_key"].to_numpy()))


def test_a_last_step_that_the_arguments_do_not_allow(run):
    assert "its arguments end it at step 10" in refused(RunError, run(launches=[{"after_step": 0, "last_step": 11}])).message


def test_data_that_end_before_the_step(run):
    described = run({"data_path": ["data/web", "data/code", "data/web"], "split": "100,0,0", "train_iters": 40})
    assert "beyond the end of the data" in refused(RunError, described, 39, 40).message


def test_a_split_without_tokens_while_samples_are_wanted(run, corpus):
    assert "never returns" in refused(NotReplayable, run({"split": "949,50,1", "eval_iters": 2})).message
    corpus("empty", [[0]] * 20)
    assert "never returns" in refused(NotReplayable, run({"data_path": ["data/empty"]})).message


def test_weights_that_are_not_above_zero(run):
    assert "the weight 0 of data/code" in refused(RunError, run({"data_path": [1, "data/web", 0, "data/code"]})).message
    assert "the weight -1" in refused(RunError, run({"data_path": [1, "data/web", "-1", "data/code"]})).message


def test_a_blend_that_draws_more_than_there_is(run):
    described = run({"data_path": ["data/web", "data/code", "data/code"], "train_iters": 3, "split": "100,0,0"})
    read(described, 1, 4)
    assert "draws" in refused(RunError, run(blend(mid_level_dataset_surplus=-0.5, train_iters=60))).message


def test_trainers_that_read_otherwise_are_sent_to_recording(run):
    for args in ({"dataloader_type": "external"}, {"fim_data": True}, {"mock_data": "True"}, {"sft": True}):
        assert "recorded" in refused(NotReplayable, run(args)).hint
    assert "recorded" in refused(NotReplayable, run(version="0.4.0")).hint


def test_arguments_that_exclude_each_other(run):
    for args, words in (
        ({"train_samples": 80}, "exactly one"),
        ({"global_batch_size": 9}, "no multiple of 4"),
        ({"train_data_path": ["data/web"]}, "exclude `data_path`"),
        ({"rampup_batch_size": [4, 4, 20], "phase_transition_iterations": [5], "train_iters": None, "train_samples": 80}, "excludes"),
    ):
        assert words in refused(RunError, run(args)).message
    assert "may not be given beside" in refused(RunError, run({"step_batch_size_schedule": "0:8"}, version="0.18.0")).message
    assert "micro_batch_size" in refused(ConfigError, run({"dataloader_type": "cyclic", "micro_batch_size": None})).message


def test_a_cyclic_start_within_a_batch(run):
    described = run({"dataloader_type": "cyclic"}, launches=[{"after_step": 1, "consumed": 9}])
    assert "no multiple of 4" in refused(RunError, described, 2, 3).message


def test_an_unknown_version_stops_only_where_it_matters(run, corpus):
    table = read(run(blend(), version=None), 1, 11)
    assert table.equals(read(run(blend(), version="0.8.0"), 1, 11))
    # 202 samples in a pass; 401 of two halves: 202 are asked for before 0.11, 203 since
    corpus("edge", [[16 * 101], [16 * 101 + 1]], seed=5)
    edge = {"data_path": ["0.5", "data/edge", "0.5", "data/edge"], "train_iters": None, "train_samples": 401, "global_batch_size": 4, "seed": 7}
    error = refused(NotReplayable, run(edge, version=None))
    assert "202 samples before 0.11 and 203 since" in error.message
    assert "version" in error.hint
    assert not read(run(edge, version="0.8.0"), 1, 40).equals(read(run(edge, version="0.12.0"), 1, 40))


def test_a_skip_list_needs_the_version(run):
    described = run({"iterations_to_skip": [3]}, version=None)
    with pytest.raises(RunError, match="other steps before"):
        loader_of(described).trained(described, StepRange(1, 2))


def test_files_that_are_not_there_or_broken(run, tmp_path):
    assert "does not exist" in refused(StoreError, run({"data_path": ["data/nothing"]})).message
    path = tmp_path / "data/web.bin"
    path.write_bytes(path.read_bytes()[:-8])
    assert "shorter than its index" in refused(StoreError, run()).message


def test_steps_that_two_launches_ran_are_named(run):
    described = run(launches=[{"after_step": 0, "last_step": 7}, {"after_step": 4}])
    assert [(r.start, r.stop, who) for r, who in loader_of(described).ran_twice(described, StepRange(1, 11))] == [(5, 8, (0, 1))]
    assert read(described, 5, 6)["launch"].to_pylist()[0] == 1
    assert read(described, 5, 6, 0)["launch"].to_pylist()[0] == 0


# ---- cached indices ----


def write_cache(tmp_path, described, path="/cluster/tok/web", **change):
    """The cache that the library would have left, from the rebuilt indices."""
    order = loader_of(described).history(described).plans[0].data("train").corpora[0]
    folder = tmp_path / "cache"
    folder.mkdir(exist_ok=True)
    lengths = np.asarray(order.store.lengths)
    starts = np.concatenate([[0], np.cumsum(lengths[np.asarray(order.documents)].astype(np.int64))])
    flat = np.arange(len(order) + 1) * order.length
    entry = np.searchsorted(starts, flat, side="right") - 1
    content = {
        "class": "GPTDataset",
        "dataset_path": path,
        "num_samples": order.epochs.wanted,
        "index_split": "train",
        "random_seed": 1234,
        "sequence_length": 16,
        "split": "100,0,0",
    }
    base = folder / "0123-GPTDataset-train-"
    (folder / f"{base.name}description.txt").write_text(json.dumps(content | change, indent=4))
    np.save(f"{base}document_index.npy", order.documents)
    np.save(f"{base}sample_index.npy", np.stack([entry, flat - starts[entry]], axis=1).astype(np.int32))
    np.save(f"{base}shuffle_index.npy", order.shuffle)
    return base


def origin(described):
    return loader_of(described).blends(described)["origin"].to_pylist()


def test_both_routes_agree(run, tmp_path):
    described = run({"train_iters": 12})
    rebuilt = read(described, 1, 13)
    write_cache(tmp_path, described)
    described = run({"train_iters": 12}, cache="cache")
    assert origin(described) == ["cached_index"]
    assert read(described, 1, 13).equals(rebuilt)
    found = pa.concat_tables(loader_of(described).locate(described, np.array([4])))
    assert found.equals(rebuilt.filter(pa.array(rebuilt["doc_key"].to_numpy() == 4)))


def test_another_number_of_samples_is_another_index_and_is_said(run, tmp_path):
    write_cache(tmp_path, run())
    described = run({"train_iters": 11}, cache="cache")
    assert origin(described) == ["recomputed"]
    assert any("were built for 80 samples, 88 are wanted" in note for note in loader_of(described).notes(described))


def test_a_corpus_tokenised_again_under_the_same_name_is_noticed(run, tmp_path, corpus):
    write_cache(tmp_path, run(), path="data/web")
    corpus("web", [*DOCUMENTS, [12]], seed=9)
    described = run(cache="cache")
    with pytest.raises(RunError, match="does not fit the data files"):
        read(described, 1, 2)
    assert "tokenised again" in refused(RunError, described).hint


def test_a_corpus_of_the_same_size_with_other_lengths_is_noticed(run, tmp_path, corpus):
    write_cache(tmp_path, run(), path="data/web")
    corpus("web", [[31], [4, 0, 7], *DOCUMENTS[2:]], seed=9)
    assert "does not fit" in refused(StoreError, run(cache="cache"), 1, 11).message


def test_files_newer_than_the_cache_are_said(run, tmp_path):
    write_cache(tmp_path, run())
    described = run(cache="cache")
    read(described, 1, 2)
    assert not any("newer" in note for note in loader_of(described).notes(described))
    later = (tmp_path / "cache/0123-GPTDataset-train-shuffle_index.npy").stat().st_mtime + 100
    os.utime(tmp_path / "data/web.idx", (later, later))
    described = run(cache="cache")
    read(described, 1, 2)
    assert any("web: the files are newer" in note for note in loader_of(described).notes(described))


def test_a_namesake_from_elsewhere_is_passed_over(run, tmp_path, corpus):
    corpus("other/web", [[50]] * 9, seed=1)
    write_cache(tmp_path, run({"data_path": ["data/other/web"]}), path="/elsewhere/web")
    described = run(cache="cache")
    assert origin(described) == ["recomputed"]
    assert any("last part of its path only" in note for note in loader_of(described).notes(described))


def test_broken_cache_files_are_named(run, tmp_path):
    base = write_cache(tmp_path, run())
    path = base.with_name(f"{base.name}sample_index.npy")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert "no readable index array" in refused(StoreError, run(cache="cache")).message
    path.unlink()
    assert "missing beside its description" in refused(StoreError, run(cache="cache")).message
    np.save(path, np.zeros((3, 3)))
    assert "not an index" in refused(StoreError, run(cache="cache")).message


def test_foreign_descriptions_do_no_harm(run, tmp_path):
    want = read(run(), 1, 11)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    (tmp_path / "cache").mkdir()
    near = {"index_split": "train", "random_seed": 1234, "sequence_length": 16, "num_samples": 80, "split": {}, "dataset_path": 7}
    for i, text in enumerate(["[1, 2]", "{", "\xff", json.dumps(near)]):
        (tmp_path / f"cache/{i}-description.txt").write_text(text, encoding="latin-1")
    assert read(run(cache="cache"), 1, 11).equals(want)
