"""Train a tiny model on 256 x 1024 tokens a step, as a Megatron run would: the proof's case with large batches.

    python tests/bench/large_batch.py OUT [--steps 140] [--seed 0]

Writes OUT/data (two corpora of Python sources and their docstrings in Megatron's format), OUT/forensics.yaml and OUT/log.txt in
Megatron-LM's format; rows come in the order of the product's own replay, which the oracles hold against megatron-core.

Work per token: four mixes of 2 x 64 to 64 numbers and a head of 64 x 512, 33 k weights each; six operations a weight and
token, forward and backward, make 0.39 MFLOP, and 140 steps of 262,144 tokens 14 TFLOP: some eight minutes of one core.
The context is 16 tokens: enough for words and names, so that the loss is not the pair table that the proof counts.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import yaml
from lab.texts import LIB, SITE
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from forensics.loaders.base import loader_of
from forensics.run import open_run
from forensics.steps import StepRange
from forensics.stores.write import MegatronWriter

VOCABULARY, WIDTH, REACH = 512, 64, (1, 2, 4, 8)
BATCH, LENGTH, MICRO = 256, 1024, 4
CORPORA = {"library": 9_000_000, "tests": 4_000_000}  # tokens at most
WARMUP, RATE = 20, 4e-3


def files(corpus: str, rng: np.random.Generator) -> list[Path]:
    """Sources of one corpus in random order: the interpreter's tests, or its library and what is installed beside it."""
    tests = sorted((LIB / "test").rglob("*.py"))
    rest = [*(p for p in sorted(LIB.rglob("*.py")) if "site-packages" not in p.parts and "test" not in p.parts)]
    rest += [p for name in ("numpy", "scipy", "sympy", "networkx", "pandas", "torch") for p in sorted((SITE / name).rglob("*.py"))]
    found = [p for p in (tests if corpus == "tests" else rest) if p.is_file() and p.stat().st_size < 300_000]
    return [found[k] for k in rng.permutation(len(found))]


def texts(corpus: str, seed: int) -> Iterator[str]:
    """Documents of 300 to 8,000 characters, cut at lines, most of them short."""
    rng = np.random.default_rng([seed, len(corpus)])
    for path in files(corpus, rng):
        lines = path.read_text("utf-8", "ignore").splitlines(keepends=True)
        part, size, limit = [], 0, int(np.exp(rng.uniform(np.log(300), np.log(8000))))
        for line in lines:
            part.append(line[:2000])
            size += len(part[-1])
            if size >= limit:
                yield "".join(part)
                part, size, limit = [], 0, int(np.exp(rng.uniform(np.log(300), np.log(8000))))


def write_data(out: Path, seed: int) -> None:
    """Both corpora, and the tokenizer that they were cut with; id 0 ends a document."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    learn = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    some = [text for corpus in CORPORA for text, _ in zip(texts(corpus, seed), range(1500), strict=False)]
    tokenizer.train_from_iterator(some, learn)
    (out / "data").mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    for corpus, most in CORPORA.items():
        with MegatronWriter(out / "data" / f"{corpus}_text_document", np.dtype(np.uint16)) as writer:
            written, block = 0, []
            for text in texts(corpus, seed):
                block.append(text)
                if len(block) == 512:
                    parts = [np.array([*e.ids, 0], np.uint16) for e in tokenizer.encode_batch(block)]
                    writer.add(np.concatenate(parts), np.array([len(p) for p in parts]))
                    written, block = written + sum(map(len, parts)), []
                if written >= most:
                    break


def description(steps: int, seed: int) -> dict[str, object]:
    """The run, as a user would describe it."""
    blend = [0.7, "data/library_text_document", 0.3, "data/tests_text_document"]
    args = {"data_path": blend, "split": "990,10,0", "seq_length": LENGTH, "seed": 1234 + seed, "global_batch_size": BATCH, "micro_batch_size": MICRO,
            "data_parallel_size": 4, "train_iters": steps, "eval_interval": 1000, "eval_iters": 0, "dataloader_type": "single"}  # fmt: skip
    return {"run": "large-batch", "trainer": "megatron", "version": "0.16.1", "args": args, "tokenizer": "tokenizer.json", "log": "log.txt"}


class Model(nn.Module):
    """Mixes of a token's state with the one 1, 2, 4 and 8 places before it, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.mixes = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in REACH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(len(REACH) + 1))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.token(x)
        for reach, mix, norm in zip(REACH, self.mixes, self.norms, strict=False):
            n = norm(h)
            h = h + F.relu(mix(torch.cat([n, F.pad(n, (0, 0, reach, 0))[:, :-reach]], dim=-1)))
        return self.head(self.norms[-1](h))


def rows_of(out: Path, steps: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Steps and their rows [BATCH, LENGTH + 1] in the replay's order."""
    run = open_run(out)
    loader = loader_of(run)
    for step in range(1, steps + 1):
        flat = np.concatenate([loader.store(run).gather(table)[0] for table in loader.consumed(run, StepRange(step, step + 1))])
        yield step, flat.astype(np.int64).reshape(BATCH, LENGTH + 1)


def train(out: Path, steps: int, seed: int) -> None:
    """Train and log as Megatron-LM logs."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    start = time.process_time()
    with (out / "log.txt").open("w") as log:
        for step, rows in rows_of(out, steps):
            rate = RATE * min(1.0, step / WARMUP) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / steps)))
            optimizer.param_groups[0]["lr"] = rate
            total = 0.0
            optimizer.zero_grad()
            for k in range(0, BATCH, MICRO):
                x = torch.from_numpy(rows[k : k + MICRO])
                loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
                (loss * (MICRO / BATCH)).backward()
                total += loss.item() * MICRO / BATCH
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            log.write(
                f" iteration {step:8d}/{steps:8d} | consumed samples: {step * BATCH:12d} | elapsed time per iteration (ms): "
                f"{1000 * (time.process_time() - start) / step:.1f} | learning rate: {rate:.6E} | global batch size: {BATCH:5d} | lm loss: {total:.6E} | "
                f"loss scale: 1.0 | grad norm: {norm:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
            )
            log.flush()


def make(out: Path, steps: int = 140, seed: int = 0) -> Path:
    """The whole case."""
    write_data(out, seed)
    (out / "log.txt").touch()
    (out / "forensics.yaml").write_text(yaml.safe_dump(description(steps, seed)))
    train(out, steps, seed)
    return out


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=Path)
    p.add_argument("--steps", type=int, default=140)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    make(args.out, args.steps, args.seed)
