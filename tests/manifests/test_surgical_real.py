"""The real megatron-core, reading a patched cache: the rows asked for change, no others. Opt-in: `pytest -m real`."""

import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest

from forensics.run import RunFile, resolve

pytestmark = pytest.mark.real
S, BATCH, STEPS, SEED = 32, 4, 20, 77


def write_corpus(prefix: Path, seed: int, documents: int) -> None:
    rng = np.random.default_rng(seed)
    flat = [np.append(1 + np.minimum(rng.zipf(1.4, int(rng.integers(10, 80))), 900), 0).astype("<u2") for _ in range(documents)]
    lengths = np.array([len(d) for d in flat], "<i4")
    np.concatenate(flat).tofile(prefix.with_suffix(".bin"))
    offsets = np.r_[0, np.cumsum(lengths[:-1], dtype="<i8") * 2].astype("<i8")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(flat), len(flat) + 1)
    prefix.with_suffix(".idx").write_bytes(head + lengths.tobytes() + offsets.tobytes() + np.arange(len(flat) + 1, dtype="<i8").tobytes())


class Tokenizer:
    """What the library asks of one."""

    eod, vocab_size, pad, unique_identifiers = 0, 1000, -1, {"class": "none"}

    @property
    def _pad_id(self) -> int:
        return -1


def read(prefixes: list[tuple[float, str]], cache: Path) -> list[np.ndarray]:
    """Every training row of the blend, by the library itself."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    config = GPTDatasetConfig(
        random_seed=SEED, sequence_length=S, blend=([p for _, p in prefixes], [w for w, _ in prefixes]), split="100,0,0", path_to_cache=str(cache),
        tokenizer=Tokenizer(), reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False,
    )  # fmt: skip
    train, *_ = BlendedMegatronDatasetBuilder(GPTDataset, [STEPS * BATCH, 0, 0], lambda: True, config).build()
    return [np.append(train[i]["tokens"].numpy(), train[i]["labels"].numpy()[-1]) for i in range(STEPS * BATCH)]


@pytest.fixture
def one_process(tmp_path):
    """torch.distributed of one process, which the library asks for when it writes a cache."""
    distributed = pytest.importorskip("torch").distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_megatron_core_reads_the_patched_cache(tmp_path, one_process) -> None:
    pytest.importorskip("megatron.core.datasets.gpt_dataset", exc_type=ImportError)
    from importlib.metadata import version

    from forensics.pipelines.apply import Wanted, apply

    (tmp_path / "data").mkdir()
    write_corpus(tmp_path / "data" / "web", 1, 60)
    write_corpus(tmp_path / "data" / "code", 2, 40)
    blend = [(0.6, str(tmp_path / "data" / "web")), (0.4, str(tmp_path / "data" / "code"))]
    before = read(blend, tmp_path / "cache")
    args = {"data_path": [*blend[0], *blend[1]], "split": "100,0,0", "seq_length": S, "seed": SEED, "global_batch_size": BATCH, "micro_batch_size": 1,
            "data_parallel_size": 4, "train_iters": STEPS, "eval_interval": 100, "eval_iters": 0}  # fmt: skip
    content = {"run": "t", "trainer": "megatron", "version": version("megatron-core"), "args": args, "cache": "cache"}
    run = resolve(msgspec.convert(content, RunFile), None, tmp_path)
    done = apply(Wanted(run, np.array([3, 11], np.int64), np.empty(0, np.int64), None), tmp_path / "patched", after=6)
    after = read(blend, tmp_path / "patched")
    changed = [(i // BATCH + 1, i % BATCH) for i in range(len(before)) if not np.array_equal(before[i], after[i])]
    assert changed == sorted(done.proven.changed) and changed
    assert all(step > 6 for step, _ in changed)
