"""A synthetic Megatron run of any size: a blend of many corpora of text-like ids, one of which goes bad at a known step.

Documents are strung together from sentences of the quickstart's corpora, so that ids, their neighbours and their text look
real while no two documents are near copies. From step `event` on a launch reads a second shard under the first corpus's
label and weight, in which a part of the documents holds nothing but a few repeated runs. Used by tests and benches.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from forensics.stores.sniff import open_records  # noqa: F401  (registers the formats)
from forensics.stores.write import MegatronWriter

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart"
SEPARATOR = 0


@dataclass(frozen=True)
class Size:
    """What is made: sequences per step, tokens per sequence, steps before the event and after it, corpora, mean length of documents."""

    batch: int = 8
    width: int = 256
    before: int = 80
    after: int = 60
    corpora: int = 20
    length: float = 300.0
    dirty: float = 0.6
    seed: int = 7

    @property
    def event(self) -> int:
        """First step that reads the bad shard."""
        return self.before + 1

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.before + self.after


def sentences() -> list[NDArray[np.uint16]]:
    """Runs of 20 to 60 ids of real text."""
    flat = np.concatenate(
        [np.fromfile(path, np.uint16) for path in sorted((QUICKSTART / "data").glob("*-0[12]_*.bin")) + [QUICKSTART / "data" / "reference_text_document.bin"]]
    )
    flat = flat[flat > 1]
    cuts = np.cumsum(np.random.default_rng(0).integers(20, 60, len(flat) // 20))
    return [part for part in np.split(flat, cuts[cuts < len(flat)]) if len(part)]


def write_corpus(prefix: Path, tokens: int, size: Size, seed: int, bad: float = 0.0) -> None:
    """Documents of log-normal length, written in pieces; a share `bad` of them repeats one run of ids; their numbers go to NAME.bad.npy."""
    rng = np.random.default_rng(seed)
    pool = sentences()
    flat = np.concatenate(pool)
    starts = np.cumsum([0, *(len(p) for p in pool[:-1])])
    lengths_of = np.array([len(p) for p in pool])
    found: list[NDArray[np.int64]] = []
    with MegatronWriter(prefix, np.dtype(np.uint16)) as writer:
        written = documents = 0
        while written < tokens:
            want = min(tokens - written, 1 << 22)
            picked = rng.integers(0, len(pool), want // 40 + 8)
            sizes = lengths_of[picked]
            begin = np.cumsum(sizes) - sizes
            part = flat[np.repeat(starts[picked] - begin, sizes) + np.arange(int(sizes.sum()))]
            lengths = np.maximum(16, rng.lognormal(np.log(size.length) - 0.5, 1.0, int(2 * want / size.length) + 8)).astype(np.int64)
            ends = np.cumsum(lengths)
            ends = ends[ends < len(part)]
            bounds = np.concatenate([[0], ends, [len(part)]])
            marked = np.flatnonzero(rng.random(len(bounds) - 1) < bad)
            found.append(marked + documents)
            documents += len(bounds) - 1
            for i in marked.tolist():
                a, b = int(bounds[i]), int(bounds[i + 1])
                part[a:b] = np.resize(part[a : a + int(rng.integers(2, 12))], b - a)
            part[bounds[1:] - 1] = SEPARATOR
            writer.add(part, np.diff(bounds))
            written += len(part)
    if bad:
        np.save(prefix.with_suffix(".bad.npy"), np.concatenate(found))


def make_run(folder: Path, size: Size) -> Path:
    """Write data, log and `forensics.yaml`; returns the folder."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    total = size.steps * size.batch * (size.width + 1)
    weights = np.random.default_rng(size.seed).dirichlet(np.full(size.corpora, 8.0))
    weights[0] = max(weights[0], 0.25)
    weights = np.round(weights / weights.sum(), 4)
    blend: list[list[float | str]] = [[], []]
    for n, weight in enumerate(weights.tolist()):
        name = f"data/part-{n:02d}"
        write_corpus(folder / name, int(1.05 * weight * total) + 64 * size.width, size, size.seed * 1000 + n)
        other = name
        if n == 0:
            other = "data/part-00-next"
            write_corpus(folder / other, int(1.05 * weight * total) + 64 * size.width, size, size.seed * 1000 + 999, size.dirty)
        blend[0] += [weight, name]
        blend[1] += [weight, other]
    shutil.copy(QUICKSTART / "tokenizer.json", folder / "tokenizer.json")
    write_log(folder / "run.log", size)
    args = {
        "split": "1000,0,0", "seq_length": size.width, "seed": size.seed, "global_batch_size": size.batch, "micro_batch_size": 1,
        "data_parallel_size": min(4, size.batch),
        "train_iters": size.steps, "eval_interval": 10 * size.steps, "eval_iters": 0, "dataloader_type": "single", "vocab_size": 2048,
    }  # fmt: skip
    launches = [
        {"after_step": 0, "consumed": 0, "last_step": size.before, "args": {"data_path": blend[0]}},
        {"after_step": size.before, "consumed": size.before * size.batch, "last_step": size.steps, "args": {"data_path": blend[1]}},
    ]
    run = {
        "run": "blend", "trainer": "megatron", "version": "0.16.1", "args": args, "launches": launches, "checkpoints": [size.before // 2, size.before - 4],
        "optimizer": {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "clip": 1.0}, "tokenizer": "tokenizer.json", "metrics": ["run.log"],
    }  # fmt: skip
    (folder / "forensics.yaml").write_text(yaml.safe_dump(run, sort_keys=False))
    return folder


def write_log(path: Path, size: Size) -> None:
    """A loss that falls, and rises for a while at the event."""
    rng = np.random.default_rng(size.seed)
    lines = []
    for step in range(1, size.steps + 1):
        since = step - size.event
        loss = 3.0 - 2e-4 * step + 0.01 * rng.standard_normal() + (0.8 * np.exp(-since / 25) if since >= 0 else 0.0)
        norm = 0.4 + 0.02 * rng.standard_normal() + (1.5 * np.exp(-since / 10) if since >= 0 else 0.0)
        lines.append(
            f" iteration {step:8d}/{size.steps:8d} | consumed samples: {step * size.batch:12d} | elapsed time per iteration (ms): 500.0 |"
            f" learning rate: 1.000000E-03 | global batch size: {size.batch:5d} | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {norm:.3f} |"
            " number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
    path.write_text("\n".join(lines) + "\n")
