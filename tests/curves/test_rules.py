"""Every rule: a curve that has the shape, one that has not, and one that lacks the inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from forensics.curves.event import Context, Event
from forensics.curves.events import RULES
from forensics.curves.settings import Annotation, Optimizer
from tests.curves.make import context, curves, loss, norm, steps

N = 2000
R = np.random.default_rng(7)
BY_NAME = {name: rule for name, _, rule in RULES}
Bent = Callable[[np.ndarray], Any]


@dataclass
class Case:
    """One rule. `has`, `lacks`, `blind`: arguments of `context`; `shape`: of the event found; `at`: its start, within `near` steps."""

    rule: str
    shape: str
    has: dict[str, Any]
    lacks: dict[str, Any]
    blind: dict[str, Any]
    at: int | None = None
    near: int = 3
    checks: dict[str, Any] = field(default_factory=dict)


def bent(base: np.ndarray, change: Bent) -> np.ndarray:
    out = base.copy()
    change(out)
    return out


def add(a: int, b: int | None, what: Any) -> Bent:
    def change(v: np.ndarray) -> None:
        v[a:b] += what

    return change


def times(a: int, b: int | None, what: Any) -> Bent:
    def change(v: np.ndarray) -> None:
        v[a:b] *= what

    return change


def put(where: Any, what: Any) -> Bent:
    def change(v: np.ndarray) -> None:
        v[where] = what

    return change


CLEAN = loss(N)
SHORT = loss(40)
SPEED = 1e6 * np.exp(R.normal(0, 0.01, N))
MEMORY = 4e10 + R.normal(0, 1e6, N)
LR = np.full(N, 3e-4)
WSD = np.where(np.arange(N) < 1400, 1e-3, 1e-3 * 0.5 ** ((np.arange(N) - 1400) / 100))
EVAL = (steps(20, 100, 100), 2.6 - 0.02 * np.arange(20) + R.normal(0, 0.002, 20))
OVERFIT = (steps(20, 100, 100), np.concatenate([2.6 - 0.05 * np.arange(8), 2.25 + 0.05 * np.arange(12)]) + R.normal(0, 0.002, 20))
RAMP = np.arange(N) / N
HARD_SHARDS = loss(N, 0.04)
HARD_SHARDS[1000:] = loss(N)[1000:] + 0.04
OPT = {"optimizer": Optimizer(lr=1e-3, betas=(0.9, 0.95), clip=1.0, warmup=100, decay_steps=N, schedule="cosine to 10%")}
COSINE = 1e-3 * np.where(steps(N) < 100, steps(N) / 100, 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * np.clip((steps(N) - 100) / (N - 100), 0, 1))))
RANKS = {"step_time": {r: 1 + R.normal(0, 0.01, 600) + (0.3 if r == 2 else 0.0) for r in range(4)}}
EVEN = {"step_time": {r: 1 + R.normal(0, 0.01, 600) for r in range(4)}}
ALIKE = {r: 1 + R.normal(0, 0.05, 400) for r in range(6)}
ODD = {r: v + (0.2 if r == 3 else 0.0) for r, v in ALIKE.items()}
LENGTHS = 500 + 400 * R.random(N)
FLAT = bent(CLEAN, put(slice(700, None), CLEAN[650:700].mean() + R.normal(0, 0.015, N - 700)))
TOKENS = np.full(N, 4e8)
LONG_ROWS = 2000 + 100 * R.random(N)
LONG_ROWS[400::50] += 6000
NEEDLES = bent(np.exp(R.normal(0, 0.1, N)), times(400, None, np.where(np.arange(N - 400) % 50 == 0, 30.0, 1.0)))
DIRICHLET = R.dirichlet([60, 25, 15], N)
MIXED = DIRICHLET @ [2.6, 1.4, 2.2] + 3 * (steps(N) + 20.0) ** -0.35 + R.normal(0, 0.008, N)
BY_SHARE = {f"source_share__{n}": DIRICHLET[:, i] for i, n in enumerate(("web", "code", "wiki"))}

CASES = [
    Case(
        "spike",
        "spike",
        {"train_loss": bent(CLEAN, add(1200, 1240, 0.5))},
        {"train_loss": CLEAN},
        {"grad_norm": norm(N)},
        1201,
        checks={"severity": "returned", "level": "alarm"},
    ),
    Case(
        "spike",
        "level_shift",
        {"train_loss": bent(bent(CLEAN, add(1200, 1240, 0.06)), add(1240, None, 0.03))},
        {"train_loss": CLEAN},
        {"train_loss": SHORT},
        1201,
        5,
        {"severity": "level_shift"},
    ),
    Case("spike", "dip", {"train_loss": bent(CLEAN, add(1200, 1300, -0.5))}, {"train_loss": CLEAN}, {"train_loss": SHORT}, 1201, checks={"level": "alarm"}),
    Case("spike", "outlier", {"train_loss": bent(CLEAN, add(1200, 1201, 0.8))}, {"train_loss": CLEAN}, {"train_loss": SHORT}, 1201, checks={"level": "notice"}),
    Case(
        "spike",
        "divergence",
        {"train_loss": bent(CLEAN, add(1200, None, 5 * (1 - np.exp(-np.arange(800) / 400))))},
        {"train_loss": CLEAN},
        {"train_loss": SHORT},
        1201,
        6,
        {"severity": "diverging"},
    ),
    Case(
        "short_log",
        "spike",
        {"train_loss": (steps(6, 500), [3.1, 3.12, 7.7, 5.0, 4.0, 3.9])},
        {"train_loss": (steps(6, 500), [3.1, 3.12, 3.2, 3.0, 3.1, 3.1])},
        {"train_loss": np.array([3.0])},
        502,
        0,
        {"confidence": "low"},
    ),
    Case(
        "periodic",
        "periodic",
        {"train_loss": bent(loss(3000), lambda v: put(slice(249, None, 250), v[249::250] + 0.35)(v))},
        {"train_loss": loss(3000)},
        {"train_loss": SHORT},
        500,
        260,
    ),
    Case(
        "drift",
        "drift",
        {"train_loss": bent(loss(3000), add(1500, None, 0.4 * np.arange(1500) / 1500))},
        {"train_loss": loss(3000)},
        {"train_loss": SHORT},
        1500,
        150,
        {"severity": "diverging"},
    ),
    Case(
        "divergence",
        "divergence",
        {"train_loss": np.linspace(12.0, 20.0, 60) + R.normal(0, 0.1, 60)},
        {"train_loss": SHORT},
        {"train_loss": (steps(40, 9000), SHORT)},
    ),
    Case("small_shift", "level_shift", {"train_loss": bent(loss(3000), add(1700, None, 0.02))}, {"train_loss": loss(3000)}, {"train_loss": SHORT}, 1701, 30),
    Case("odd_rank", "level_shift", {"ranks": {"grad_norm": ODD}}, {"ranks": {"grad_norm": ALIKE}}, {"grad_norm": norm(N)}, checks={"cause": "hardware"}),
    Case("nonfinite", "nonfinite", {"train_loss": bent(CLEAN, put(1500, np.nan))}, {"train_loss": CLEAN}, {"step_time": SPEED}, 1501, 0),
    Case(
        "plateau",
        "plateau",
        {"train_loss": bent(loss(3000), put(slice(1000, None), loss(3000)[950:1000].mean() + R.normal(0, 0.015, 2000)))},
        {"train_loss": loss(3000)},
        {"train_loss": SHORT},
        1001,
        120,
    ),
    Case(
        "plateau_capacity",
        "plateau",
        {"train_loss": FLAT, "batch_tokens": TOKENS, "over": {"model": {"parameters": 1e7}}},
        {"train_loss": FLAT, "batch_tokens": TOKENS, "over": {"model": {"parameters": 1e12}}},
        {"train_loss": FLAT, "batch_tokens": TOKENS},
        701,
        120,
        {"subcause": "plateau_capacity", "level": "notice", "confidence": "low"},
    ),
    Case(
        "lr_descent",
        "level_shift",
        {"train_loss": bent(CLEAN, add(1400, None, -0.15 * np.minimum(1, np.arange(600) / 200))), "learning_rate": WSD},
        {"train_loss": CLEAN, "learning_rate": LR},
        {"train_loss": CLEAN},
        1401,
        2,
        {"level": "notice", "severity": "none"},
    ),
    Case("composition_shift", "composition_shift", {"train_loss": HARD_SHARDS}, {"train_loss": CLEAN}, {"train_loss": loss(300)}, 1001, 40),
    Case(
        "domains",
        "spike",
        {"train_loss__code": bent(CLEAN, add(1200, 1240, 0.5)), "train_loss__web": loss(N, seed=3), "train_loss__wiki": loss(N, seed=4)},
        {"train_loss__code": CLEAN, "train_loss__web": loss(N, seed=3)},
        {"train_loss__code": CLEAN},
        1201,
        checks={"subcause": "domain_event"},
    ),
    Case(
        "regressed_domains",
        "spike",
        {"train_loss": bent(MIXED, add(1200, 1400, 0.5 * DIRICHLET[1200:1400, 1])), **BY_SHARE},
        {"train_loss": MIXED, **BY_SHARE},
        {"train_loss": MIXED},
        1200,
        60,
        {"metric": "regressed_loss/code", "subcause": "domain_event"},
    ),
    Case(
        "noise_growth",
        "noise_growth",
        {"train_loss": 1.7 + 6 * (steps(N) + 20.0) ** -0.35 + R.normal(0, 1, N) * 0.01 * (1 + 2 * RAMP)},
        {"train_loss": CLEAN},
        {"train_loss": SHORT},
    ),
    Case(
        "norm_spike",
        "norm_spike",
        {"grad_norm": bent(norm(N), times(1200, 1203, 60))},
        {"grad_norm": np.exp(R.normal(0, 0.1, N))},
        {"train_loss": CLEAN},
        1201,
        1,
        {"level": "notice"},
    ),
    Case(
        "norm_spikes_by",
        "norm_spike",
        {"train_loss": CLEAN, "grad_norm": NEEDLES, "max_sequence_length": LONG_ROWS},
        {"train_loss": CLEAN, "grad_norm": np.exp(R.normal(0, 0.1, N)), "max_sequence_length": LONG_ROWS},
        {"train_loss": CLEAN, "grad_norm": NEEDLES},
        401,
        1,
        {"subcause": "norm_spikes_length", "level": "notice"},
    ),
    Case("norm_rise", "norm_rise", {"grad_norm": bent(norm(N), times(1200, None, 5.0))}, {"grad_norm": norm(N)}, {"train_loss": CLEAN}, 1201, 40),
    Case("norm_vanish", "norm_vanish", {"grad_norm": bent(norm(N), times(1200, 1500, 0.02))}, {"grad_norm": norm(N)}, {"grad_norm": np.zeros(N)}, 1201, 5),
    Case(
        "clip_fault",
        "clip_fault",
        {"grad_norm": 5 * norm(N), "clip_ratio": np.ones(N), "beside": OPT},
        {"grad_norm": 5 * norm(N), "clip_ratio": np.minimum(1, 1 / (5 * norm(N))), "beside": OPT},
        {"grad_norm": norm(N)},
        checks={"subcause": "clip_inactive"},
    ),
    Case(
        "update_norm",
        "update_norm",
        {"update_rms": bent(np.exp(R.normal(0, 0.1, N)), times(1200, 1206, 30))},
        {"update_rms": np.exp(R.normal(0, 0.1, N))},
        {"train_loss": CLEAN},
        1201,
        1,
    ),
    Case(
        "scale_collapse",
        "scale_collapse",
        {"loss_scale": bent(np.full(N, 65536.0), put(slice(1200, None), 65536.0 / 2.0 ** np.minimum(6, 1 + np.arange(800) // 5)))},
        {"loss_scale": np.full(N, 65536.0)},
        {"loss_scale": np.ones(N)},
        1201,
        1,
        {"cause": "numerics"},
    ),
    Case(
        "lr_jump",
        "lr_jump",
        {"learning_rate": bent(COSINE, times(1200, 1212, 8.0))},
        {"learning_rate": COSINE},
        {"train_loss": CLEAN},
        1201,
        1,
        {"cause": "numerics"},
    ),
    Case(
        "schedule_mismatch",
        "schedule_mismatch",
        {"learning_rate": bent(COSINE, times(1200, 1400, 2.0)), "beside": OPT},
        {"learning_rate": COSINE, "beside": OPT},
        {"learning_rate": COSINE},
        1201,
        1,
    ),
    Case(
        "warmup_short",
        "schedule_mismatch",
        {"train_loss": CLEAN, "beside": {"optimizer": Optimizer(betas=(0.9, 0.999), warmup=50)}},
        {"train_loss": CLEAN, "beside": OPT},
        {"train_loss": CLEAN},
        checks={"subcause": "warmup_short"},
    ),
    Case(
        "throughput_drop",
        "throughput_drop",
        {"tokens_per_second": bent(SPEED, times(1200, 1400, 0.6))},
        {"tokens_per_second": SPEED},
        {"train_loss": CLEAN},
        1201,
        10,
        {"level": "alarm"},
    ),
    Case(
        "throughput_sawtooth",
        "throughput_sawtooth",
        {"step_time": bent(1 / SPEED, lambda v: put(slice(99, None, 100), v[99::100] * 4)(v)), "eval_loss": (steps(20, 100, 100), np.ones(20))},
        {"step_time": 1 / SPEED},
        {"train_loss": CLEAN},
        100,
        0,
        {"subcause": "sawtooth_eval"},
    ),
    Case("slow_rank", "slow_rank", {"ranks": RANKS}, {"ranks": EVEN}, {"step_time": SPEED}, checks={"subcause": "slow_rank(2)"}),
    Case(
        "length_driven",
        "throughput_sawtooth",
        {"step_time": 1e-3 * LENGTHS + R.normal(0, 0.01, N), "batch_tokens": LENGTHS},
        {"step_time": 1 + R.normal(0, 0.01, N), "batch_tokens": LENGTHS},
        {"step_time": SPEED},
        checks={"subcause": "length_driven"},
    ),
    Case(
        "memory_leak",
        "memory_leak",
        {"memory_allocated": MEMORY * (1 + 0.05 * RAMP), "over": {"memory": {"capacity_bytes": 5e10}}},
        {"memory_allocated": MEMORY},
        {"train_loss": CLEAN},
    ),
    Case(
        "memory_near_limit",
        "memory_near_limit",
        {"memory_peak": MEMORY, "over": {"memory": {"capacity_bytes": 4.2e10}}},
        {"memory_peak": MEMORY, "over": {"memory": {"capacity_bytes": 8e10}}},
        {"memory_peak": MEMORY},
    ),
    Case(
        "memory_periodic",
        "memory_periodic",
        {"memory_peak": bent(MEMORY, lambda v: put(slice(99, None, 100), v[99::100] * 1.3)(v))},
        {"memory_peak": MEMORY},
        {"train_loss": CLEAN},
        100,
        0,
    ),
    Case("val_gap", "val_gap", {"train_loss": CLEAN, "eval_loss": OVERFIT}, {"train_loss": CLEAN, "eval_loss": EVAL}, {"train_loss": CLEAN}, 800, 200),
    Case(
        "aux_loss",
        "aux_loss",
        {"aux_loss__z": bent(1 + R.normal(0, 0.01, N), add(1200, 1230, 0.5))},
        {"aux_loss__z": 1 + R.normal(0, 0.01, N)},
        {"train_loss": CLEAN},
        1201,
        1,
    ),
    Case(
        "router_collapse",
        "router_collapse",
        {"aux_loss__load_balance": bent(1 + R.normal(0, 0.01, N), add(1500, None, 2.0))},
        {"aux_loss__load_balance": 1 + R.normal(0, 0.01, N)},
        {"train_loss": CLEAN},
        1501,
        1,
    ),
    Case(
        "batch_change",
        "batch_change",
        {"batch_size": bent(np.full(N, 256.0), put(slice(800, None), 512.0))},
        {"batch_size": np.full(N, 256.0)},
        {"train_loss": CLEAN},
        801,
        0,
    ),
    Case(
        "gap",
        "gap",
        {"train_loss": (np.concatenate([steps(500), steps(500, 700)]), CLEAN[:1000])},
        {"train_loss": CLEAN},
        {"train_loss": np.array([1.0, 2.0])},
        501,
        0,
    ),
    Case(
        "stuck",
        "stuck",
        {"train_loss": bent(CLEAN, put(slice(1200, 1300), 0.0))},
        {"train_loss": CLEAN},
        {"step_time": SPEED},
        1201,
        0,
        {"subcause": "loss_zero"},
    ),
]


def answer(case: Case, given: dict[str, Any]) -> list[Event] | str:
    given = dict(given)
    ranks = given.pop("ranks", None)
    ctx: Context = context(given.pop("over", None), given.pop("beside", None), **given)
    if ranks:
        ctx.curves = curves(ranks=ranks)
    return BY_NAME[case.rule](ctx)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.rule}-{c.shape}")
def test_rule_finds_its_shape(case: Case) -> None:
    found = answer(case, case.has)
    assert not isinstance(found, str), found
    mine = [e for e in found if e.shape == case.shape]
    assert mine, [(e.shape, e.start) for e in found]
    best = min(mine, key=lambda e: abs(e.start - case.at)) if case.at is not None else mine[0]
    if case.at is not None:
        assert abs(best.start - case.at) <= case.near, best
    for name, value in case.checks.items():
        assert getattr(best, name) == value, best


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.rule}-{c.shape}")
def test_rule_is_silent_without_it(case: Case) -> None:
    found = answer(case, case.lacks)
    assert not isinstance(found, str), found
    assert not [e for e in found if e.shape == case.shape]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.rule}-{c.shape}")
def test_rule_without_inputs_says_why(case: Case) -> None:
    found = answer(case, case.blind)
    assert isinstance(found, str) and len(found) > 10


def test_every_rule_has_a_case() -> None:
    assert {c.rule for c in CASES} == set(BY_NAME)


def test_of_several_held_out_sets_the_one_that_rises_is_named() -> None:
    found = BY_NAME["val_gap"](context(train_loss=CLEAN, eval_loss__web=EVAL, eval_loss__code=OVERFIT))
    assert {e.metric for e in found if isinstance(e, Event)} == {"eval_loss/code"}


def test_an_annotation_declares_a_jump_of_the_rate() -> None:
    lr = bent(COSINE, times(1200, None, 0.5))
    (alone,) = BY_NAME["lr_jump"](context(learning_rate=lr))
    (declared,) = BY_NAME["lr_jump"](context(None, {"annotations": [Annotation("lr", "halved after the restart", 1201)]}, learning_rate=lr))
    assert (alone.level, declared.level) == ("alarm", "notice")


@pytest.mark.parametrize(("name", "value", "word"), [("odd_share", LONG_ROWS / 1e4, "data"), ("batch_tokens", 1e6 + R.normal(0, 1e4, N), "unexplained")])
def test_needles_of_the_norm_go_with_odd_data_or_with_nothing(name: str, value: np.ndarray, word: str) -> None:
    (e,) = BY_NAME["norm_spikes_by"](context(train_loss=CLEAN, grad_norm=NEEDLES, **{name: value}))
    assert e.subcause == f"norm_spikes_{word}" and e.evidence["needles"] == 32


def test_needles_are_not_read_where_the_loss_rises() -> None:
    rising = bent(CLEAN, add(0, None, 2e-3 * np.arange(N)))
    assert BY_NAME["norm_spikes_by"](context(train_loss=rising, grad_norm=NEEDLES, max_sequence_length=LONG_ROWS)) == []
