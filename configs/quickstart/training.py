"""The small trainings behind the quickstart: a decoder in torch, or an adaptive n-gram model in numpy.

Both see the rows of every step once, in order; the loss of a step is that of the state before its update, as trainers
log it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rows:
    """What every step reads.

    Attributes:
        step: [rows]; `tokens`: [rows, S + 1]; `launch`: [rows]; `segments`: the consumed table.
    """

    step: NDArray[np.int64]
    sequence: NDArray[np.int64]
    launch: NDArray[np.int64]
    tokens: NDArray[np.int64]
    segments: pa.Table


@dataclass(frozen=True)
class Result:
    """Loss of every label [rows, S], gradient norm [steps]."""

    loss: NDArray[np.float64]
    norm: NDArray[np.float64]
    lr: NDArray[np.float64]


def read_rows(folder: Path) -> Rows:
    """Every row that the described run reads, by this package's own loader."""
    from forensics.loaders.base import LOADERS
    from forensics.run import open_run
    from forensics.steps import StepRange

    run = open_run(folder)
    loader = LOADERS.get(run.trainer)
    store = loader.store(run)
    tables = []
    for launch in run.launches:
        assert launch.last_step is not None
        tables += list(loader.consumed(run, StepRange(launch.after_step + 1, launch.last_step + 1), launch.number))
    segments = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    flat, offsets = store.gather(segments)
    step, seq = segments["step"].to_numpy(), segments["sequence"].to_numpy()
    new = np.flatnonzero(np.concatenate([[True], (np.diff(step) != 0) | (np.diff(seq) != 0)]))
    width = int(offsets[new[1]] - offsets[new[0]])
    return Rows(
        step[new], seq[new].astype(np.int64), segments["launch"].to_numpy()[new].astype(np.int64), np.asarray(flat, np.int64).reshape(len(new), width), segments
    )


def train(rows: Rows, before: list[int], seed: int, how: str, vocabulary: int, lr: float) -> Result:
    """Losses of every label under the model that has read `before` (ids, end to end) and the steps before."""
    steps = np.unique(rows.step)
    width = rows.tokens.shape[1]
    text = np.asarray(before, np.int64)
    text = text[: len(text) // width * width].reshape(-1, width)
    loss, norm = _ngram(rows, text, steps, vocabulary, seed) if how == "ngram" else _torch(rows, text, steps, vocabulary, seed, lr)
    return Result(loss, norm, np.full(len(steps), lr))


def _ngram(rows: Rows, text: NDArray[np.int64], steps: NDArray[np.int64], vocabulary: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Interpolated unigram, bigram and hashed trigram counts, updated after every step."""
    rng = np.random.default_rng(seed)
    size = 1 << 20
    uni, bi, bi_context, tri, tri_context = np.full(vocabulary, 0.5), np.zeros(size), np.zeros(vocabulary), np.zeros(size), np.zeros(size)

    def places(x: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        prev, cur = x[:, :-1], x[:, 1:]
        before = np.concatenate([np.zeros((len(x), 1), np.int64), x[:, :-2]], 1)
        context = (before * 1_000_003 + prev * 7_919) % size
        return cur, (prev * vocabulary + cur) % size, prev, (context * 31 + cur * 15_485_863) % size, context

    def learn(x: NDArray[np.int64]) -> None:
        for table, where in zip((uni, bi, bi_context, tri, tri_context), places(x), strict=True):
            np.add.at(table, where.ravel(), 1.0)

    learn(text)
    loss, norm = np.empty((len(rows.tokens), rows.tokens.shape[1] - 1)), np.empty(len(steps))
    for n, (a, b) in enumerate(bounds(rows.step, steps)):
        cur, two, prev, three, context = places(rows.tokens[a:b])
        p = (bi[two] + 16.0 * uni[cur] / uni.sum()) / (bi_context[prev] + 16.0)
        p = (tri[three] + 16.0 * p) / (tri_context[context] + 16.0)
        loss[a:b] = -np.log(np.maximum(p, 1e-9))
        norm[n] = 0.1 * math.exp(0.15 * rng.standard_normal()) * loss[a:b].mean()
        learn(rows.tokens[a:b])
    return loss, norm


def bounds(of: NDArray[np.int64], steps: NDArray[np.int64]) -> list[tuple[int, int]]:
    """First row and one past the last row of each step."""
    first = np.searchsorted(of, steps)
    return list(zip(first.tolist(), np.append(first[1:], len(of)).tolist(), strict=True))


def _torch(
    rows: Rows, text: NDArray[np.int64], steps: NDArray[np.int64], vocabulary: int, seed: int, lr: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A decoder of three layers and width 96, AdamW, gradients clipped at 1; first three passes over `text` in batches of 24 rows."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    width, length = 96, rows.tokens.shape[1] - 1

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            self.body, self.norm = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.LayerNorm(width)
            self.bigram = nn.Embedding(vocabulary, width)
            nn.init.normal_(self.token.weight, std=0.05)
            nn.init.zeros_(self.bigram.weight)

        def forward(self, x: Any) -> Any:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return (self.norm(self.body(self.token(x) + self.place.weight, mask=mask, is_causal=True)) + self.bigram(x)) @ self.token.weight.T

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)

    def update(some: NDArray[np.int64], rate: float) -> tuple[Any, float]:
        x = torch.from_numpy(some)
        each = nn.functional.cross_entropy(model(x[:, :-1]).reshape(-1, vocabulary), x[:, 1:].reshape(-1), reduction="none")
        optimizer.zero_grad()
        each.mean().backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        return each.detach().numpy().reshape(len(some), length), norm

    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(len(text)) for _ in range(3)])
    batches = [order[k : k + 24] for k in range(0, len(order), 24)]
    for k, chosen in enumerate(batches):
        each, _ = update(text[chosen], lr * min(1.0, (k + 1) / 100) * (1 + max(0.0, 1 - 1.5 * k / len(batches))))
        if k % 200 == 0:
            print(f"before the run: batch {k} of {len(batches)}, loss {each.mean():.3f}", flush=True)
    loss, norm = np.empty((len(rows.tokens), length)), np.empty(len(steps))
    for n, (a, b) in enumerate(bounds(rows.step, steps)):
        loss[a:b], norm[n] = update(rows.tokens[a:b], lr)
    return loss, norm


def write_logs(out: Path, rows: Rows, result: Result, train_iters: int) -> None:
    """One log per launch in Megatron-LM's format: arguments block, then a line per step."""
    from forensics.run import open_run

    run = open_run(out)
    steps = np.unique(rows.step)
    mean = np.array([result.loss[rows.step == s].mean() for s in steps])
    for launch in run.launches:
        batch = int(launch.args["global_batch_size"])
        args = {
            **{k: v for k, v in launch.args.items() if k != "data_path"},
            "data_path": [str(x) for x in launch.args["data_path"]],
            "consumed_train_samples": launch.consumed,
        }
        lines = ["------------------------ arguments ------------------------"]
        lines += [f"  {k} {'.' * max(3, 48 - len(k))} {v}" for k, v in sorted(args.items())]
        lines += ["-------------------- end of arguments ---------------------"]
        for n in np.flatnonzero((steps > launch.after_step) & (steps <= (launch.last_step or 0))):
            lines.append(
                f" iteration {steps[n]:8d}/{train_iters:8d} | consumed samples: {steps[n] * batch:12d} | elapsed time per iteration (ms): 512.0 | "
                f"learning rate: {result.lr[n]:.6E} | global batch size: {batch:5d} | lm loss: {mean[n]:.6E} | loss scale: 1.0 | "
                f"grad norm: {result.norm[n]:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
            )
        (out / "logs" / f"launch-{launch.number}.log").write_text("\n".join(lines) + "\n")


def write_losses(out: Path, rows: Rows, result: Result, keep_from: int) -> None:
    """Loss sums per document part, as a recorder in the training loop writes them."""
    from forensics.loaders.base import LOADERS
    from forensics.run import open_run

    run = open_run(out)
    corpora = LOADERS.get(run.trainer).corpora(run)
    names = dict(zip(corpora["corpus_id"].to_pylist(), corpora["name"].to_pylist(), strict=True))
    seg = rows.segments
    index = {(int(s), int(q)): n for n, (s, q) in enumerate(zip(rows.step, rows.sequence, strict=True))}
    row = np.array([index[(s, q)] for s, q in zip(seg["step"].to_pylist(), seg["sequence"].to_pylist(), strict=True)])
    start = seg["seq_start"].to_numpy().astype(np.int64)
    stop = start + (seg["doc_stop"].to_numpy() - seg["doc_start"].to_numpy())
    total = np.concatenate([np.zeros((len(result.loss), 1)), np.cumsum(result.loss, 1)], 1)
    a, b = np.maximum(start - 1, 0), np.maximum(stop - 1, 0)  # label i is token i + 1 of the row
    table = pa.table({
        "step": seg["step"], "sequence": seg["sequence"], "document": pa.array(seg["doc_key"].to_numpy() & ((1 << 40) - 1)),
        "corpus": pa.array([names[k] for k in (seg["doc_key"].to_numpy() >> 40).tolist()]), "seq_start": seg["seq_start"],
        "predicted": pa.array((b - a).astype(np.int32)), "loss_sum": pa.array(np.round(total[row, b] - total[row, a], 4)),
    })  # fmt: skip
    table = table.filter(pc.and_(pc.greater_equal(table["step"], keep_from), pc.greater(table["predicted"], 0)))
    pq.write_table(table, out / "losses.parquet", compression="zstd")
