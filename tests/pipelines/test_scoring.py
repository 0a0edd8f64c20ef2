"""Losses of a model in a replay: what is scored, under which origin, and what is refused; a tiny decoder with random weights."""

from pathlib import Path

import forensics.pipelines.scoring as scoring_module
import numpy as np
import pytest
from blend_run import Size, make_run
from forensics.pipelines.plan import ReplayConfig, plan_replay
from forensics.pipelines.replay import Outcome, replay
from forensics.pipelines.scoring import Scoring

from forensics.case import Case
from forensics.errors import ConfigError, UsageError
from forensics.losses.sampling import choose, strata
from forensics.run import open_run
from forensics.schemas import LOSSES, TOKEN_LOSSES
from forensics.steps import StepRange

SIZE = Size(batch=8, width=128, before=60, after=30)
WINDOW = StepRange(SIZE.event, SIZE.event + 20)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("blend"), SIZE)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("tiny"), 2048, 64)


def tiny(path: Path, vocabulary: int, context: int) -> Path:
    torch = pytest.importorskip("torch", reason="scoring needs the extra `model`")
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, max_position_embeddings=context, **sizes)).save_pretrained(path)
    return path


def ask(run: Path, case: Path, scoring: Scoring) -> Outcome:
    return replay(Case(case), plan_replay(open_run(run), WINDOW, ReplayConfig()), ReplayConfig(), scoring=scoring)


@pytest.mark.model
def test_suspects_controls_and_rows_are_scored_within_the_budget(run: Path, model: Path, tmp_path: Path) -> None:
    ask(run, tmp_path, Scoring(model, tokens=20_000, device="cpu"))
    case = Case(tmp_path)
    losses, tokens, info = case.get(LOSSES), case.get(TOKEN_LOSSES), case.info["scored"]
    assert set(losses["origin"].to_pylist()) == {f"reference:{model.name}"} == {info["origin"]}
    assert 12_000 < info["tokens"] <= 21_000 < info["of_tokens"]
    kinds = info["chosen"]
    assert all(kinds[k]["segments"] > 5 for k in ("rows", "suspects", "controls")), kinds
    assert 0 < kinds["rows"]["inclusion"] < kinds["suspects"]["inclusion"] <= 1
    assert losses.num_rows == tokens.num_rows == sum(k["segments"] for k in kinds.values())
    assert info["mean_nats"] == pytest.approx(np.log(2048), rel=0.05)
    total = sum(float(np.nansum(v)) for v in tokens["values"].to_pylist())
    assert float(np.sum(losses["loss_sum"].to_numpy())) == pytest.approx(total, rel=1e-5)


@pytest.mark.model
def test_scoring_goes_on_after_a_stop(run: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring_module, "BLOCK_TOKENS", 4_000)
    plan = plan_replay(open_run(run), WINDOW, ReplayConfig())

    def stop(label: str, done: int, total: int) -> None:
        if label == "scoring" and done == 2:
            raise KeyboardInterrupt

    asked = Scoring(model, tokens=20_000, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        replay(Case(tmp_path), plan, ReplayConfig(), stop, scoring=asked)
    left = {p: p.stat().st_mtime_ns for p in (tmp_path / "tables" / "token_losses").glob("part-*.parquet")}
    assert len(left) == 2
    ask(run, tmp_path, asked)
    assert {p: p.stat().st_mtime_ns for p in left} == left
    assert len(list((tmp_path / "tables" / "token_losses").glob("part-*.parquet"))) > 3


@pytest.mark.model
def test_rows_are_scored_whole_where_the_run_masked_nothing(run: Path, model: Path, tmp_path: Path) -> None:
    ask(run, tmp_path, Scoring(model, tokens=12_000, masks="row", scored_at=40, device="cpu"))
    case = Case(tmp_path)
    losses, tokens = case.get(LOSSES), case.get(TOKEN_LOSSES)
    assert set(losses["origin"].to_pylist()) == {"checkpoint:40"}
    assert case.info["scored"]["context"] == 64
    step, sequence = losses["step"].to_numpy(), losses["sequence"].to_numpy()
    predicted = losses["predicted"].to_numpy()
    for s, q in {(int(a), int(b)) for a, b in zip(step, sequence, strict=True)}:
        assert predicted[(step == s) & (sequence == q)].sum() == 129 - 3  # three pieces of a row of 129 tokens
    known = [np.isfinite(np.array(v, np.float32)).sum() for v in tokens["values"].to_pylist()]
    assert sorted(known) == sorted(predicted.tolist())


@pytest.mark.model
def test_what_cannot_answer_is_refused(run: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="was trained on steps"):
        ask(run, tmp_path / "a", Scoring(model, scored_at=WINDOW.start, device="cpu"))
    with pytest.raises(ConfigError, match="knows 300 ids"):
        ask(run, tmp_path / "a", Scoring(tiny(tmp_path / "small", 300, 64), device="cpu"))
    other = tiny(tmp_path / "other", 2048, 64)
    text = (run / "tokenizer.json").read_text()
    assert '"the"' in text or "th" in text
    import json

    data = json.loads(text)
    names = list(data["model"]["vocab"])
    data["model"]["vocab"] = {name: number for number, name in enumerate(reversed(names))}
    (other / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="is not the run's"):
        ask(run, tmp_path / "a", Scoring(other, device="cpu"))


def test_the_choice_does_not_look_at_losses_and_keeps_means() -> None:
    rng = np.random.default_rng(0)
    m = 20_000
    size = rng.integers(10, 400, m)
    row = np.arange(m) // 5
    luck = rng.random(m // 5)[row]
    suspect = (rng.random(m) < 0.02) & (row > m // 10)
    stratum, control = strata(rng.integers(0, 3, m), size), row <= m // 10
    chosen = choose(size, luck, suspect, stratum, control, 600_000)
    assert chosen.tokens == size[chosen.rows].sum() <= 620_000
    kinds = [chosen.rows[chosen.kind == k] for k in range(3)]
    assert suspect[kinds[1]].all() and not suspect[kinds[2]].any()
    value = rng.normal(2.0, 1.0, m)
    assert abs(value[kinds[0]].mean() - 2.0) < 0.05
    assert abs(len(kinds[0]) / m - chosen.inclusion["rows"]) < 0.02
    assert all((np.bincount(row[kinds[0]], minlength=m // 5)[r] == 5) for r in row[kinds[0]])
    assert control[kinds[2]].all() and len(kinds[2]) > 50
    taken = np.concatenate([kinds[1], kinds[0][suspect[kinds[0]]]])
    have, want = (np.bincount(stratum[k], minlength=200) for k in (kinds[2], taken))
    assert (have <= want).all() and have.sum() > 0.7 * want.sum()
    all_of_them = choose(size, luck, suspect, stratum, control, int(size.sum()))
    assert len(all_of_them.rows) == m and set(all_of_them.inclusion.values()) == {1.0}
