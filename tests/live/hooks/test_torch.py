"""The hooks inside real loops: a small PyTorch model, and the Hugging Face Trainer with accumulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forensics.live.recorder import Recorder
from forensics.records import read_records

pytest.importorskip("torch")
pytestmark = pytest.mark.model


def test_a_plain_loop_records_the_losses_it_trains_on(tmp_path: Path) -> None:
    import torch
    from torch.utils.data import DataLoader

    from forensics.live.hooks.for_pytorch import Numbered, token_losses

    torch.manual_seed(0)
    data = torch.randint(0, 10, (12, 9))
    model = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    want = {}
    with Recorder(tmp_path) as recorder:
        for step, (sample, tokens) in enumerate(DataLoader(Numbered(data), batch_size=4, shuffle=True), 1):
            losses = token_losses(model(tokens[:, :-1]), tokens[:, 1:])
            recorder.record(step, sample=sample, tokens=tokens, loss=losses)
            want.update({(step, int(s)): float(x) for s, x in zip(sample, losses.detach().sum(1))})
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    got = {(r["step"], r["sample"]): r["loss_sum"] for r in read_records(tmp_path, "losses").to_pylist()}
    assert sorted(s for _, s in got) == list(range(12))
    assert got == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("per_token", [True, False])
def test_the_trainer_records_every_row_once_an_epoch(per_token: bool, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate (the extra `model`)")
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from forensics.live.hooks.for_hf import record_trainer

    rng = np.random.default_rng(0)

    class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 16

        def __getitem__(self, i: int) -> dict[str, Any]:
            row = np.random.default_rng(i).integers(0, 20, 12).tolist()
            return {"input_ids": row, "labels": row, "unused": "x"}

    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=12, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=3))
    args = TrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=2, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, seed=int(rng.integers(100)),
    )  # fmt: skip
    trainer = Trainer(model=model, args=args, train_dataset=Rows())
    recorder = record_trainer(trainer, tmp_path / "records", eod=3, per_token=per_token)
    trainer.train()
    recorder.close()
    assert recorder.errors == 0, recorder.last_error
    losses = read_records(tmp_path / "records", "losses").to_pylist()
    assert {r["step"] for r in losses} == set(range(1, 9))
    assert sum(r["predicted"] for r in losses) == 2 * 16 * 11
    rows = losses if per_token else read_records(tmp_path / "records", "consumed").to_pylist()
    seen = sorted({(r["step"], r["microbatch"], r["sample"]) for r in rows})
    assert len(seen) == 32
    assert sorted(s for _, _, s in seen) == sorted(2 * list(range(16)))
