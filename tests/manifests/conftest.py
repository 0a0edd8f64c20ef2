"""Small runs of other trainers, made of plain files, for exporters and surgery."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from forensics.manifests.base import Request
from forensics.run import RunFile, RunSpec, resolve


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests inside real trainers run when they are asked for: `pytest -m real`."""
    if "real" not in config.option.markexpr:
        real = [i for i in items if i.get_closest_marker("real") and Path(__file__).parent in i.path.parents]
        items[:] = [i for i in items if i not in real]
        config.hook.pytest_deselected(items=real)


@pytest.fixture
def describe(tmp_path: Path) -> Callable[..., RunSpec]:
    """`describe(trainer, args, **keys)`: the run, paths counted from the test's folder."""

    def make(trainer: str, args: dict[str, Any], **keys: Any) -> RunSpec:
        return resolve(msgspec.convert({"run": "test", "trainer": trainer, "args": args, **keys}, RunFile), None, tmp_path)

    return make


@pytest.fixture
def flat(tmp_path: Path) -> Callable[..., str]:
    """`flat(name, tokens)`: a raw uint16 file with a document end (0) every 23 tokens."""

    def make(name: str, tokens: int, seed: int = 0) -> str:
        found = np.random.default_rng(seed).integers(1, 900, tokens).astype("<u2")
        found[22::23] = 0
        found.tofile(tmp_path / name)
        return name

    return make


@pytest.fixture
def olmo(describe: Callable[..., RunSpec], flat: Callable[..., str]) -> RunSpec:
    """Old OLMo: 170 instances of 16 tokens, batches of 8 on 4 ranks, 21 steps an epoch."""
    args = {
        "data": {"paths": [flat("a.npy", 16 * 90), flat("b.npy", 16 * 80, 1)], "memmap_dtype": "uint16", "seed": 5, "drop_last": True},
        "model": {"max_sequence_length": 16, "eos_token_id": 0}, "global_train_batch_size": 8, "world_size": 4, "max_duration": 60,
    }  # fmt: skip
    return describe("olmo", args)


@pytest.fixture
def olmo_core(describe: Callable[..., RunSpec], flat: Callable[..., str]) -> RunSpec:
    """OLMo-core, fixed lengths: 170 instances of 16 tokens, batches of 8, 21 steps an epoch."""
    dataset = {"type": "fsl", "paths": [flat("a.npy", 16 * 90), flat("b.npy", 16 * 80, 1)], "sequence_length": 16, "eos_token_id": 0, "dtype": "uint16"}
    args = {
        "dataset": dataset,
        "data_loader": {"seed": 3, "global_batch_size": 128},
        "dp_world_size": 2,
        "trainer": {"max_duration": {"value": 40, "unit": "steps"}},
    }
    return describe("olmo-core", args)


@pytest.fixture
def examples(tmp_path: Path) -> Callable[[int], str]:
    """`examples(n)`: JSON lines with token ids."""

    def make(n: int) -> str:
        rng = np.random.default_rng(2)
        lines = [json.dumps({"input_ids": rng.integers(1, 99, int(rng.integers(3, 9))).tolist()}) for _ in range(n)]
        (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")
        return "data.jsonl"

    return make


@pytest.fixture
def asked() -> Callable[..., Request]:
    """`asked(run, steps, **keys)`: a request for these steps of the last launch."""

    def make(run: RunSpec, steps: list[int], **keys: Any) -> Request:
        return Request(run, run.launches[-1], tuple(steps), **keys)

    return make
