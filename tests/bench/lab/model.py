"""A decoder of a third to half a million parameters and its training loop, in which faults can be put at a step."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

Array = np.ndarray


class Block(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, vocab: int, d: int, layers: int, length: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.blocks = nn.ModuleList(Block(d, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        for p in (self.token.weight, self.place.weight):
            nn.init.normal_(p, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.token(x) + self.place.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.norm(h) @ self.token.weight.T


@dataclass(frozen=True)
class Settings:
    """Shape and optimizer of one seed's runs."""

    vocab: int = 2048
    d: int = 96
    layers: int = 2
    seq: int = 128
    batch: int = 8
    lr: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.95)
    warmup: int = 80
    decay: int = 5000

    def rate(self, step: int) -> float:
        """Linear warm-up, cosine to a tenth."""
        way = min(1.0, max(0.0, (step - self.warmup) / (self.decay - self.warmup)))
        return self.lr * (step / self.warmup if step < self.warmup else 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * way)))


@dataclass
class State:
    """A model, its optimizer and the last step that was trained."""

    model: Decoder
    optimizer: torch.optim.AdamW
    step: int = 0

    def copy(self) -> State:
        return copy.deepcopy(self)


def fresh(s: Settings, seed: int) -> State:
    """An untrained state."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = Decoder(s.vocab, s.d, s.layers, s.seq)
    return State(model, torch.optim.AdamW(model.parameters(), lr=s.lr, betas=s.betas, weight_decay=0.1, fused=True))


@dataclass(frozen=True)
class Fault:
    """One fault: what, first step, one past its last (0: one step), strength, and a rank where it has one."""

    kind: str
    at: int
    until: int = 0
    x: float = 1.0
    rank: tuple[int, int] = (0, 1)

    def on(self, step: int) -> bool:
        return self.at <= step < (self.until or self.at + 1)


@dataclass
class Log:
    """What a run left: a line per step, loss of every label by step, and validation by step."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    losses: dict[int, Array] = field(default_factory=dict)
    val: dict[int, dict[str, float]] = field(default_factory=dict)


def per_label(model: Decoder, rows: Array) -> torch.Tensor:
    """Loss of every label, [rows, S]."""
    x = torch.from_numpy(rows)
    out = model(x[:, :-1])
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), x[:, 1:].reshape(-1), reduction="none").view(len(rows), -1)


def score(state: State, rows: Array) -> Array:
    """Loss of every label without training, [rows, S]."""
    with torch.no_grad():
        return np.concatenate([per_label(state.model, rows[k : k + 64]).numpy() for k in range(0, len(rows), 64)])


def train(
    state: State,
    s: Settings,
    batch: Callable[[int], Array | None],
    until: int,
    *,
    weight: Callable[[int], Array] | None = None,
    val: dict[str, Array] | None = None,
    faults: tuple[Fault, ...] = (),
    keep: bool = True,
) -> Log:
    """Train `state` up to step `until` and log what trainers log.

    Args:
        state: changed in place.
        s: settings.
        batch: rows of a step [B, S + 1]; None skips the step, whose data count as consumed.
        until: last step.
        weight: bool [B, S] of the labels that carry loss.
        val: held-out rows by source, evaluated every ten steps.
        faults: what goes wrong.
        keep: whether to keep the loss of every label.
    """
    log = Log()
    for step in range(state.step + 1, until + 1):
        rows = batch(step)
        lr = s.rate(step)
        for f in faults:
            if f.kind == "lr" and f.on(step):
                lr *= f.x
            elif f.kind == "lr_reset" and step >= f.at:
                lr = s.rate(step - f.at + 1)
            elif f.on(step):
                _break(state, f, s)
        if rows is None:
            log.lines.append({"step": step, "skipped": True})
        else:
            log.lines.append(_update(state, s, rows, step, lr, weight(step) if weight else None, faults, log, keep))
        if val and step % 10 == 0:
            log.val[step] = {k: round(float(score(state, v).mean()), 4) for k, v in val.items()}
            log.lines[-1]["val"] = log.val[step]
        state.step = step
    return log


def _update(
    state: State, s: Settings, rows: Array, step: int, lr: float, weight: Array | None, faults: tuple[Fault, ...], log: Log, keep: bool
) -> dict[str, Any]:
    params = list(state.model.parameters())
    fed = rows
    for f in faults:
        if f.kind == "rank" and f.on(step):
            fed = rows.copy()
            n, of = f.rank
            mine = slice(n * len(rows) // of, (n + 1) * len(rows) // of)
            hit = np.random.default_rng(step).random(rows[mine, :-1].shape) < f.x
            fed[mine, :-1] = np.where(hit, np.random.default_rng(step + 1).integers(1, s.vocab, hit.shape), rows[mine, :-1])
    x, y = torch.from_numpy(fed[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())
    each = F.cross_entropy(state.model(x).reshape(-1, s.vocab), y.reshape(-1), reduction="none").view(len(rows), -1)
    if weight is None:
        loss = each.mean()
    else:
        w = torch.from_numpy(weight.astype(np.float32))
        loss = (each * w).sum() / w.sum() if weight.any() else each.sum() * 0.0
    state.optimizer.zero_grad()
    loss.backward()
    line: dict[str, Any] = {"step": step, "tokens": step * rows.shape[0] * (rows.shape[1] - 1), "lr": round(lr, 8), "loss": round(float(loss), 5)}
    clip = 1.0
    rng = torch.Generator().manual_seed(step)
    for f in faults:
        if f.kind == "fp16":
            scale = 2.0 ** (16 - max(0, step - f.at + 1)) if step < f.until else 2.0 ** (16 - (f.until - f.at))
            line["loss_scale"] = scale
            if step >= f.at:
                for p in params:
                    p.grad[p.grad.abs() * scale < f.x] = 0.0
        elif f.kind == "grad_noise" and f.on(step):
            for p in params:
                p.grad.normal_(0.0, f.x, generator=rng)
        elif f.kind == "grad_times" and f.on(step):
            for p in params:
                p.grad.mul_(f.x)
        elif f.kind == "clip_off" and f.on(step):
            clip = 1e9
    norm = float(nn.utils.clip_grad_norm_(params, clip))
    moment = state.optimizer.state.get(state.model.token.weight)
    if moment:
        ratio = state.model.token.weight.grad / (moment["exp_avg_sq"].sqrt() + 1e-12)
        line["rms_emb"] = round(float(ratio.square().mean().sqrt()), 3)
    line |= {"grad_norm": round(norm, 5), "clip_coef": round(min(1.0, clip / (norm + 1e-6)), 5)}
    for group in state.optimizer.param_groups:
        group["lr"] = lr
    state.optimizer.step()
    if keep:
        log.losses[step] = each.detach().numpy().copy()
    return line


def _break(state: State, f: Fault, s: Settings) -> None:
    """Damage to weights or to the optimizer's state before the step."""
    rng = torch.Generator().manual_seed(f.at)
    named = dict(state.model.named_parameters())
    with torch.no_grad():
        if f.kind == "weights":
            p = named[f"blocks.{f.rank[0] % len(state.model.blocks)}.up.weight"].view(-1)
            p[: len(p) // 6] *= f.x
        elif f.kind == "embedding":
            p = state.model.token.weight
            p[: len(p) // 3] += torch.randn(p[: len(p) // 3].shape, generator=rng) * f.x
        elif f.kind in {"momentum", "second"}:
            for m in state.optimizer.state.values():
                m["exp_avg" if f.kind == "momentum" else "exp_avg_sq"].mul_(f.x)
        elif f.kind == "betas":
            state.optimizer.param_groups[0]["betas"] = (s.betas[0], f.x)
        elif f.kind == "eps":
            state.optimizer.param_groups[0]["eps"] = f.x
