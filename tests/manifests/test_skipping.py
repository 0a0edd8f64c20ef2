"""The batch sampler that runs inside trainers: by itself, and (opt-in, marker `real`) in torch, Accelerate and the Trainer."""

import ast
import json
import sys
from pathlib import Path

import pytest

from forensics.loaders.base import loader_of
from forensics.manifests import skipping as module
from forensics.manifests.base import EXPORTERS
from forensics.manifests.skipping import FORMAT, SkippingBatchSampler, skipping
from forensics.steps import StepRange


def listed(epochs, in_place="repeat", length=(1, 99)):
    return {"format": FORMAT, "in_place": in_place, "batches_per_epoch": list(length), "epochs": epochs}


class Batches:
    """Stands for a batch sampler: n batches of one number."""

    def __init__(self, n: int) -> None:
        self.n, self.sampler = n, "inner"

    def __len__(self) -> int:
        return self.n

    def __iter__(self):
        return iter([[i] for i in range(self.n)])


def read(sampler) -> list[int]:
    return [i for (i,) in sampler]


def test_listed_batches_are_replaced_by_clean_ones_and_nothing_moves() -> None:
    sampler = SkippingBatchSampler(Batches(8), listed({"1": [[2, 4], [7, 8]]}))
    assert read(sampler) == list(range(8))
    assert read(sampler) == [0, 1, 0, 1, 4, 5, 6, 4] and len(sampler) == 8
    assert read(sampler) == list(range(8))


def test_the_first_batches_are_replaced_by_later_ones() -> None:
    sampler = SkippingBatchSampler(Batches(5), listed({"0": [[0, 2]]}))
    assert read(sampler) == [2, 2, 2, 3, 4]


def test_dropping_shortens_the_epoch() -> None:
    sampler = SkippingBatchSampler(Batches(6), listed({"0": [[1, 3]]}, "drop"))
    assert len(sampler) == 4 and read(sampler) == [0, 3, 4, 5]
    assert len(sampler) == 6 and read(sampler) == list(range(6))


def test_set_epoch_names_the_epoch_and_the_sampler_is_handed_through() -> None:
    inner = Batches(4)
    sampler = SkippingBatchSampler(inner, listed({"3": [[1, 2]]}))
    sampler.set_epoch(3)
    assert read(sampler) == [0, 0, 2, 3]
    sampler.sampler = "other"
    assert inner.sampler == "other" and sampler.n == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [({"format": "x"}, "no skip list"), (listed({"0": [[0, 4]]}), "none is left"), (listed({"0": [[0, 1]]}, length=(5, 9)), "was made for 5 to 9")],
)
def test_a_list_that_cannot_be_meant_is_refused(text, message) -> None:
    with pytest.raises(ValueError, match=message):
        list(SkippingBatchSampler(Batches(4), text))


def test_the_module_needs_the_standard_library_alone() -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    names = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert names <= set(sys.stdlib_module_names)


def rows(run, first, stop) -> dict[int, list[int]]:
    found = loader_of(run).opened(run).orders[0].rows(StepRange(first, stop))
    return {s: found.sample[found.step == s].tolist() for s in range(first, stop)}


@pytest.fixture
def list_for(asked, tmp_path):
    """`list_for(run, steps)`: path of the exported file."""

    def make(run, steps) -> Path:
        text = EXPORTERS.get(run.trainer).export(asked(run, steps)).files["skip.json"]
        (tmp_path / "skip.json").write_text(text)
        return tmp_path / "skip.json"

    return make


@pytest.mark.real
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_loader_with_a_distributed_sampler(workers, describe, examples, list_for) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, DistributedSampler

    run = describe("pytorch", {"loader": "DistributedSampler", "data": examples(61), "world_size": 2, "batch_size": 3, "seed": 4, "epochs": 9})
    path, before = list_for(run, [3, 14, 15]), rows(run, 1, 31)
    got: dict[int, list[int]] = {s: [] for s in before}
    for rank in range(2):
        sampler = DistributedSampler(torch.arange(61), num_replicas=2, rank=rank, seed=4)
        loader = skipping(DataLoader(torch.arange(61), batch_size=3, sampler=sampler, num_workers=workers), path)
        step = 0
        for epoch in range(3):
            sampler.set_epoch(epoch)
            loader.batch_sampler.set_epoch(epoch)
            for batch in loader:
                step += 1
                if step in got:
                    got[step] += batch.tolist()
    changed = [s for s in before if sorted(got[s]) != sorted(before[s])]
    assert changed == [3, 14, 15]


@pytest.mark.real
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("split", [False, True])
def test_accelerate(late, split, describe, examples, list_for) -> None:
    torch = pytest.importorskip("torch")
    prepare = pytest.importorskip("accelerate.data_loader").prepare_data_loader
    from torch.utils.data import DataLoader

    run = describe("pytorch", {"loader": "Accelerate", "data": examples(61), "world_size": 2, "batch_size": 4, "seed": 4, "epochs": 9, "split_batches": split})
    path, before = list_for(run, [2, 12, 13]), rows(run, 1, 21)
    got: dict[int, list[int]] = {s: [] for s in before}
    for rank in range(2):
        plain = DataLoader(torch.arange(61), batch_size=4, shuffle=True)
        loader = plain if late else skipping(plain, path)
        loader = prepare(loader, num_processes=2, process_index=rank, put_on_device=False, split_batches=split, use_seedable_sampler=True, data_seed=4)
        loader = skipping(loader, path) if late else loader
        step = 0
        for epoch in range(3):
            loader.set_epoch(epoch)
            for batch in loader:
                step += 1
                if step in got:
                    got[step] += batch.tolist()
    assert [s for s in before if sorted(got[s]) != sorted(before[s])] == [2, 12, 13]


@pytest.mark.real
@pytest.mark.parametrize("resume", [None, 7])
def test_the_trainer_and_its_resume(resume, describe, examples, list_for, tmp_path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    seen: list[list[int]] = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(1))

        def forward(self, i):
            if self.training:
                seen.append(i.tolist())
            return {"loss": (self.w * i.float()).sum() * 0}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            return skipping(super().get_train_dataloader(), path)

    args = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "num_train_epochs": 3, "seed": 9}
    run = describe("hf", {"data": examples(31), **args})
    path, before = list_for(run, [3, 8, 9]), rows(run, 1, 19)
    data = [{"i": n} for n in range(31)]

    def train(again, stop=-1):
        options = transformers.TrainingArguments(
            str(tmp_path / "out"), **args, save_strategy="steps", save_steps=7, report_to=[], use_cpu=True, remove_unused_columns=False, disable_tqdm=True,
            logging_strategy="no", dataloader_pin_memory=False,
        )  # fmt: skip
        Trainer(model=Model(), args=options, train_dataset=data).train(resume_from_checkpoint=again)

    train(None)
    if resume:
        seen.clear()
        train(str(tmp_path / "out" / f"checkpoint-{resume}"))
    done, at, got = resume or 0, 0, {}
    counts = {s: -(-len(before[s]) // 3) for s in before}
    for step in range(done + 1, 19):
        got[step] = [i for batch in seen[at : at + counts[step]] for i in batch]
        at += counts[step]
    assert at == len(seen)
    assert [s for s in got if sorted(got[s]) != sorted(before[s])] == [s for s in (3, 8, 9) if s > done]


def test_the_exported_file_is_plain_json(describe, examples, list_for) -> None:
    run = describe("pytorch", {"loader": "DistributedSampler", "data": examples(61), "world_size": 2, "batch_size": 3, "seed": 4, "epochs": 9})
    found = json.loads(list_for(run, [3, 14, 15]).read_text())
    assert found == {"format": FORMAT, "in_place": "repeat", "batches_per_epoch": [11, 11], "epochs": {"0": [[2, 3]], "1": [[2, 4]]}}
