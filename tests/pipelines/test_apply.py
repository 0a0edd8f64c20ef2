"""Surgery on index files: exactly the intended rows change, spares are counted and clean, nothing of the run is touched."""

import hashlib
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from forensics.pipelines.apply import Wanted, apply, from_list, sentences

from forensics.errors import ForensicsError, UsageError
from forensics.loaders.base import loader_of
from forensics.run import RunFile, resolve
from forensics.steps import StepRange

S, BATCH, STEPS = 16, 4, 12
NONE = np.empty(0, np.int64)


def words(rng, n: int) -> np.ndarray:
    """Text-like ids: a Zipf draw, ended by 0."""
    return np.append(np.minimum(rng.zipf(1.3, n - 1), 900), 0).astype("<u2")


def write_corpus(prefix: Path, documents: list[np.ndarray]) -> None:
    import struct

    lengths = np.array([len(d) for d in documents], "<i4")
    np.concatenate(documents).tofile(prefix.with_suffix(".bin"))
    offsets = np.r_[0, np.cumsum(lengths[:-1], dtype="<i8") * 2].astype("<i8")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(documents), len(documents) + 1)
    prefix.with_suffix(".idx").write_bytes(head + lengths.tobytes() + offsets.tobytes() + np.arange(len(documents) + 1, dtype="<i8").tobytes())


def cache_of(run, folder: Path) -> None:
    """The index files that megatron-core would have kept, from this package's own order; the hash in the name is any."""
    plan = loader_of(run).history(run).plans[-1]
    folder.mkdir()
    for n, (laid, corpus) in enumerate(zip(plan.split("train").laid, plan.data("train").corpora)):
        base = folder / f"{hashlib.md5(str(n).encode()).hexdigest()}-GPTDataset-train-"
        description = {"class": "GPTDataset", "dataset_path": laid.prefix, "num_samples": laid.epochs.wanted, "index_split": "train",
                       "random_seed": plan.options.seed, "sequence_length": S, "split": plan.options.split}  # fmt: skip
        Path(f"{base}description.txt").write_text(json.dumps(description, indent=4))
        lengths = np.cumsum(np.r_[0, corpus.store.lengths[corpus.documents].astype(np.int64)])
        at = np.arange(len(corpus) + 1) * S
        entry = np.searchsorted(lengths, at, side="right") - 1
        np.save(f"{base}document_index.npy", np.asarray(corpus.documents))
        np.save(f"{base}sample_index.npy", np.stack([entry, at - lengths[entry]], 1).astype(np.int32))
        np.save(f"{base}shuffle_index.npy", np.asarray(corpus.shuffle))


def cached(folder: Path, data_path: list):
    """A run with its cache."""
    args = {"data_path": data_path, "split": "100,0,0", "seq_length": S, "seed": 11, "global_batch_size": BATCH, "micro_batch_size": 2,
            "data_parallel_size": 2, "train_iters": STEPS, "eval_interval": 100, "eval_iters": 0}  # fmt: skip
    content = {"run": "t", "trainer": "megatron", "version": "0.16.1", "args": args, "checkpoints": [2, 4], "cache": "cache"}
    cache_of(resolve(msgspec.convert({k: v for k, v in content.items() if k != "cache"}, RunFile), None, folder), folder / "cache")
    return resolve(msgspec.convert(content, RunFile), None, folder)


@pytest.fixture
def megatron(tmp_path):
    """A blend of two corpora."""
    rng = np.random.default_rng(3)
    (tmp_path / "data").mkdir()
    for name, n in (("web", 40), ("code", 25)):
        write_corpus(tmp_path / "data" / name, [words(rng, int(rng.integers(5, 30))) for _ in range(n)])
    return cached(tmp_path, [0.6, "data/web", 0.4, "data/code"])


def stamps(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def rows(run, first, stop):
    import pyarrow as pa

    table = pa.concat_tables(list(loader_of(run).consumed(run, StepRange(first, stop))))
    out: dict[tuple[int, int], list] = {}
    for r in table.to_pylist():
        out.setdefault((r["step"], r["sequence"]), []).append((r["doc_key"], r["doc_start"], r["doc_stop"]))
    return out


def holding(found, keys, after):
    return {at for at, parts in found.items() if at[0] > after and any(p[0] in keys for p in parts)}


def test_megatron_exactly_the_intended_rows_change(megatron, tmp_path) -> None:
    before, files = rows(megatron, 1, STEPS + 1), stamps(tmp_path / "cache")
    guilty = np.array(sorted({before[(7, 1)][0][0]}), np.int64)
    intended = holding(before, set(guilty.tolist()), 4)
    done = apply(Wanted(megatron, guilty, NONE, None), tmp_path / "patched", after=4)
    content = {"run": "t", "trainer": "megatron", "version": "0.16.1", "args": dict(megatron.launches[0].args), "cache": "patched"}
    after = rows(resolve(msgspec.convert(content, RunFile), None, tmp_path), 1, STEPS + 1)
    assert {at for at in before if before[at] != after[at]} == intended == set(done.proven.changed) and intended
    assert not holding(after, set(guilty.tolist()), 4)
    assert holding(after, set(guilty.tolist()), 0) == holding(before, set(guilty.tolist()), 0) - intended
    assert stamps(tmp_path / "cache") == files
    new = stamps(tmp_path / "patched")
    assert [n for n in files if new[n] != files[n]] == [s.index.file for s in done.swaps]
    assert any("exactly" in line for line in sentences(done))


def test_spares_are_never_read_by_any_step_and_hold_no_guilty_document(megatron, tmp_path) -> None:
    before = rows(megatron, 1, STEPS + 1)
    guilty = np.array([before[(9, 0)][0][0]], np.int64)
    done = apply(Wanted(megatron, guilty, NONE, None), tmp_path / "patched", after=0)
    plan = loader_of(megatron).history(megatron).plans[0]
    data = plan.data("train")
    position, inner = data.order.pick(np.arange(STEPS * BATCH))
    for swap in done.swaps:
        number = next(i for i, c in enumerate(data.corpora) if c.cached.description.file("shuffle_index").name == swap.index.file)
        assert not set(swap.spare.tolist()) & set(inner[position == number].tolist())
        assert set(swap.out.tolist()) <= set(inner[position == number].tolist())


def test_too_few_spares_are_counted_and_nothing_is_written(megatron, tmp_path) -> None:
    everything = np.array(sorted({p[0] for parts in rows(megatron, 1, STEPS + 1).values() for p in parts}), np.int64)
    with pytest.raises(ForensicsError, match="too few spare") as caught:
        apply(Wanted(megatron, everything, NONE, None), tmp_path / "patched", after=0)
    assert "guilty sequences to come" in " ".join(caught.value.__notes__)
    assert not (tmp_path / "patched").exists()


def test_known_copies_of_the_guilty_do_not_come_in(megatron, tmp_path) -> None:
    before = rows(megatron, 1, STEPS + 1)
    guilty = np.array([before[(9, 0)][0][0]], np.int64)
    free = apply(Wanted(megatron, guilty, NONE, None), tmp_path / "one", after=4)
    _, keys = free.swaps[0].index.behind(free.swaps[0].spare[:1])
    kept_out = np.setdiff1d(keys, guilty)
    again = apply(Wanted(megatron, guilty, kept_out, None), tmp_path / "two", after=4)
    for swap in again.swaps:
        assert not np.isin(swap.index.behind(swap.spare)[1], kept_out).any()


def test_the_runs_own_folder_and_a_full_one_are_refused(megatron, tmp_path) -> None:
    guilty = np.array([rows(megatron, 9, 10)[(9, 0)][0][0]], np.int64)
    with pytest.raises(UsageError, match="never changed"):
        apply(Wanted(megatron, guilty, NONE, None), tmp_path / "cache", after=4)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(UsageError, match="not empty"):
        apply(Wanted(megatron, guilty, NONE, None), tmp_path / "full", after=4)


def test_without_the_kept_cache_the_name_is_not_known(megatron, tmp_path) -> None:
    import dataclasses

    bare = dataclasses.replace(megatron, cache=())
    guilty = np.array([rows(megatron, 9, 10)[(9, 0)][0][0]], np.int64)
    with pytest.raises(ForensicsError, match="name under which the trainer would look"):
        apply(Wanted(bare, guilty, NONE, None), tmp_path / "patched", after=4)


def test_index_files_are_rebuilt_under_the_names_of_kept_descriptions(megatron, tmp_path) -> None:
    import dataclasses
    import shutil

    (tmp_path / "told").mkdir()
    for file in (tmp_path / "cache").glob("*-description.txt"):
        shutil.copy(file, tmp_path / "told")
    bare = dataclasses.replace(megatron, cache=())
    before = rows(bare, 1, STEPS + 1)
    guilty = np.array([before[(9, 0)][0][0]], np.int64)
    done = apply(Wanted(bare, guilty, NONE, None), tmp_path / "patched", after=4, descriptions=tmp_path / "told")
    after = rows(dataclasses.replace(bare, cache=(tmp_path / "patched",)), 1, STEPS + 1)
    assert {at for at in before if before[at] != after[at]} == set(done.proven.changed) == holding(before, set(guilty.tolist()), 4)
    for name in (p.name for p in (tmp_path / "patched").glob("*.npy") if "shuffle" not in p.name):
        np.testing.assert_array_equal(np.load(tmp_path / "patched" / name), np.load(tmp_path / "cache" / name))
    named = dataclasses.replace(megatron, cache=(tmp_path / "told",))  # descriptions in the run's own cache folder serve as well
    assert apply(Wanted(named, guilty, NONE, None), tmp_path / "other", after=4).proven == done.proven
    for file in (tmp_path / "patched").glob("*.npy"):
        np.testing.assert_array_equal(np.load(file), np.load(tmp_path / "other" / file.name))
    with pytest.raises(ForensicsError, match="0 descriptions"):
        apply(Wanted(bare, guilty, NONE, None), tmp_path / "again", after=4, descriptions=tmp_path / "data")


def test_the_checkpoint_to_start_from_is_one_that_was_saved(megatron, tmp_path) -> None:
    import dataclasses

    from forensics.pipelines.apply import sentences

    run = dataclasses.replace(megatron, checkpoints=(2, 5))
    guilty = np.array([rows(run, 9, 10)[(9, 0)][0][0]], np.int64)
    text = "\n".join(sentences(apply(Wanted(run, guilty, NONE, None), tmp_path / "patched", after=6)))
    assert "start from the checkpoint of step 5 (what is read before step 7 is unchanged)" in text


def test_documents_that_do_not_come_again_need_nothing(megatron, tmp_path) -> None:
    before = rows(megatron, 1, STEPS + 1)
    early = {p[0] for at, parts in before.items() if at[0] <= 3 for p in parts} - {p[0] for at, parts in before.items() if at[0] > 11 for p in parts}
    with pytest.raises(UsageError, match="no step from 12 on"):
        apply(Wanted(megatron, np.array(sorted(early)[:1], np.int64), NONE, None), tmp_path / "patched", after=11)


def test_faulty_spares_are_passed_over(tmp_path) -> None:
    """Half of the documents repeat one phrase: their rows do not come in."""
    rng = np.random.default_rng(6)
    (tmp_path / "data").mkdir()
    phrase = words(rng, 6)[:5]
    documents = [words(rng, 400) if n % 2 else np.append(np.tile(phrase, 100), 0).astype("<u2") for n in range(60)]
    write_corpus(tmp_path / "data" / "web", documents)
    run = cached(tmp_path, ["data/web"])
    before = rows(run, 1, STEPS + 1)
    guilty = next(p[0] for at, parts in before.items() if at[0] > 4 and len(parts) > 1 for p in parts if p[0] % 2)
    done = apply(Wanted(run, np.array([guilty], np.int64), NONE, None), tmp_path / "patched", after=4)
    for swap in done.swaps:
        assert (swap.index.behind(swap.spare)[1] % 2 == 1).all()
        assert (swap.index.behind(swap.index.spare)[1] % 2 == 0).any()


ORACLES = Path(__file__).parents[1] / "oracles"


def test_neox_reads_the_patched_files_beside_linked_data(tmp_path) -> None:
    case = ORACLES / "neox" / "split_multiepoch"
    args = {k: v for k, v in json.loads((case / "run.json").read_text())["neox_args"].items() if v is not None} | {"data_parallel_size": 1}
    content = {"run": "t", "trainer": "neox", "args": args}
    run = resolve(msgspec.convert(content, RunFile), None, case)
    files, before = stamps(case), rows(run, 1, 121)
    guilty = np.array([before[(100, 2)][0][0]], np.int64)
    done = apply(Wanted(run, guilty, NONE, None), tmp_path / "patched", after=90)
    after = rows(resolve(msgspec.convert(content, RunFile), None, tmp_path / "patched"), 1, 121)
    intended = holding(before, set(guilty.tolist()), 90)
    assert {at for at in before if before[at] != after[at]} == intended == set(done.proven.changed)
    assert not holding(after, set(guilty.tolist()), 90)
    assert stamps(case) == files and done.written.warnings


def core_run(tmp_path, steps: int):
    rng = np.random.default_rng(4)
    for n, tokens in enumerate((16 * 90 + 5, 16 * 80)):
        found = np.minimum(rng.zipf(1.3, tokens), 900).astype("<u2")
        found[22::23] = 0
        found.tofile(tmp_path / f"{n}.npy")
    dataset = {"type": "fsl", "paths": ["0.npy", "1.npy"], "sequence_length": 16, "eos_token_id": 0, "dtype": "uint16"}
    args = {"dataset": dataset, "data_loader": {"seed": 3, "global_batch_size": 128}, "dp_world_size": 2}
    args["trainer"] = {"max_duration": {"value": steps, "unit": "steps"}}
    return resolve(msgspec.convert({"run": "t", "trainer": "olmo-core", "args": args}, RunFile), None, tmp_path)


@pytest.mark.parametrize("steps", [30, 40])
def test_olmo_core_indices_of_every_epoch_concerned(steps, tmp_path) -> None:
    run = core_run(tmp_path, steps)
    before = rows(run, 1, steps + 1)
    guilty = np.array([before[(10, 0)][0][0]], np.int64)
    intended = holding(before, set(guilty.tolist()), 4)
    done = apply(Wanted(run, guilty, NONE, None), tmp_path / "work", after=4)
    assert set(done.proven.changed) == intended
    order = loader_of(run).opened(run).orders[0]
    for swap in done.swaps:
        raw = np.fromfile(tmp_path / "work" / swap.index.file, np.uint32)
        assert raw.size == order.epochs.length(1) == np.unique(raw).size
        assert np.flatnonzero(raw != swap.index.entries).tolist() == sorted([*swap.out.tolist(), *swap.spare.tolist()])
    assert {s.index.file for s in done.swaps} == {f"global_indices_dataset_size170_epoch{1 + (s - 1) // 21}_seed3_v1.npy" for s, _ in intended}


def test_olmo_core_refuses_a_kept_file_of_another_run(tmp_path) -> None:
    import dataclasses

    run = core_run(tmp_path, 30)
    (tmp_path / "kept").mkdir()
    np.arange(170, dtype=np.uint32).tofile(tmp_path / "kept" / "global_indices_dataset_size170_epoch1_seed3_v1.npy")
    guilty = np.array([rows(run, 10, 11)[(10, 0)][0][0]], np.int64)
    with pytest.raises(ForensicsError, match="not the order that the description gives"):
        apply(Wanted(dataclasses.replace(run, cache=(tmp_path / "kept",)), guilty, NONE, None), tmp_path / "work", after=4)


def test_old_olmo_indices(tmp_path) -> None:
    rng = np.random.default_rng(4)
    found = np.minimum(rng.zipf(1.3, 16 * 170), 900).astype("<u2")
    found[22::23] = 0
    found.tofile(tmp_path / "0.npy")
    args = {"data": {"paths": ["0.npy"], "memmap_dtype": "uint16", "seed": 5, "drop_last": True}, "model": {"max_sequence_length": 16, "eos_token_id": 0},
            "global_train_batch_size": 8, "world_size": 4, "max_duration": 18}  # fmt: skip
    run = resolve(msgspec.convert({"run": "t", "trainer": "olmo", "args": args}, RunFile), None, tmp_path)
    before = rows(run, 1, 19)
    guilty = np.array([before[(10, 0)][0][0]], np.int64)
    done = apply(Wanted(run, guilty, NONE, None), tmp_path / "work", after=4)
    assert set(done.proven.changed) == holding(before, set(guilty.tolist()), 4)
    assert np.fromfile(tmp_path / "work" / "train_data" / "global_indices.npy", np.uint32).size == 168
    assert "anew at every start" in done.written.use


def test_a_run_without_an_end_and_a_trainer_without_index_files_are_refused(tmp_path) -> None:
    run = core_run(tmp_path, 30)
    args = {k: v for k, v in run.launches[0].args.items() if k != "trainer"}
    endless = resolve(msgspec.convert({"run": "t", "trainer": "olmo-core", "args": args}, RunFile), None, tmp_path)
    with pytest.raises(ForensicsError, match="no known end"):
        apply(Wanted(endless, np.array([3], np.int64), NONE, None), tmp_path / "work", after=4)
    other = resolve(msgspec.convert({"run": "t", "trainer": "hf", "args": {}}, RunFile), None, tmp_path)
    with pytest.raises(UsageError, match="nothing to patch"):
        apply(Wanted(other, np.array([3], np.int64), NONE, None), tmp_path / "work", after=4)


def test_a_list_names_its_documents(megatron, tmp_path) -> None:
    import yaml

    content = {"run": "t", "trainer": "megatron", "version": "0.16.1", "args": dict(megatron.launches[0].args), "cache": "cache"}
    (tmp_path / "forensics.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "bad.txt").write_text("web:3\nweb:999\n")
    wanted = from_list(tmp_path / "bad.txt", tmp_path)
    assert wanted.guilty.tolist() == [3] and wanted.unknown == ("web:999",)
