"""What to leave out: under a budget, with the rest of its groups, and at what cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from incidents import judged

from forensics.attribution import attribute
from forensics.attribution.attribute import Attribution
from forensics.attribution.cost import Cost, descent
from forensics.attribution.inputs import Rules
from forensics.attribution.signals import Series
from forensics.schemas import DOCUMENTS


def rows(got: Attribution, kind: str) -> list[dict[str, object]]:
    return [r for r in got.skips.to_pylist() if r["kind"] == kind]


def test_a_budget_buys_the_dirtiest_steps() -> None:
    made, whole = judged("near", 5, slab="near", slab_share=0.6, slab_steps=32)
    tokens = whole.verdict["skip"]["tokens"]
    assert whole.prescription.form == "steps" and whole.verdict["expected"]["dirty_tokens_covered"] > 0.9
    budget = tokens // 2
    got = attribute(made.inputs, Rules(skip_budget=budget))
    v = got.verdict
    assert 0.8 * budget < v["skip"]["tokens"] <= budget and len(v["skip"]["steps"]) <= Rules().skip_intervals
    assert 0.4 < v["expected"]["dirty_tokens_covered"] < 0.75 and f"within {budget:,} tokens" in v["action"]
    density = v["expected"]["dirty_tokens_covered"] / (v["skip"]["tokens"] / tokens)
    assert density >= 1.0  # no worse per token than the whole list
    assert len(rows(got, "documents")) == len(rows(whole, "documents"))
    assert attribute(made.inputs, Rules(skip_budget=10 * tokens)).verdict["skip"] == whole.verdict["skip"]


def test_a_budget_buys_the_documents_worth_most() -> None:
    made, whole = judged("scrambled", 5, slab="scrambled", slab_share=0.35, slab_steps=32)
    assert whole.prescription.form == "documents"
    budget = whole.verdict["skip"]["tokens"] // 3
    got = attribute(made.inputs, Rules(skip_budget=budget))
    listed = rows(got, "documents")
    chosen, left = ([r for r in listed if r["recommended"] is b] for b in (True, False))
    assert len(listed) == len(rows(whole, "documents")) and chosen and left
    assert sum(r["tokens"] for r in chosen) == got.verdict["skip"]["tokens"] <= budget  # type: ignore[misc]
    per_token = lambda part: sum(r["excess"] for r in part) / sum(r["tokens"] for r in part)  # type: ignore[misc]  # noqa: E731
    assert per_token(chosen) > per_token(left)
    assert f"the {len(chosen)} guilty documents" in got.verdict["action"]


def test_the_rest_of_a_crawl_is_offered_and_taken_when_asked() -> None:
    made, got = judged("scrambled", 5, slab="scrambled", slab_share=0.35, slab_steps=32)
    keys = made.inputs.documents["doc_key"].to_numpy()
    named = {int(r["start"]) for r in rows(got, "documents")}  # type: ignore[call-overload]
    guilty = np.isin(keys, sorted(named))
    innocent = np.flatnonzero(~guilty)[-9:]
    crawl = np.where(guilty, "c7", "c1").astype(object)
    crawl[innocent] = "c7"
    columns = {n: made.inputs.documents[n] for n in made.inputs.documents.column_names}
    inputs = replace(made.inputs, documents=DOCUMENTS.of(pa.table({**columns, "crawl": pa.array(crawl, pa.string())})))
    offered = attribute(inputs).verdict
    (group,) = [g for g in offered["rest_of_groups"] if g["level"] == "crawl"]
    assert (group["label"], group["guilty"], group["others"]) == ("crawl c7", len(named), 9) and group["tokens"] > 0
    assert offered["skip"] == got.verdict["skip"]
    taken = attribute(inputs, Rules(close=True))
    extra = {int(r["start"]) for r in rows(taken, "documents")} - named  # type: ignore[call-overload]
    assert set(keys[innocent].tolist()) <= extra and taken.verdict["rest_of_groups"] == []
    none = attribute(replace(inputs, documents=DOCUMENTS.of(pa.table({**columns, "crawl": pa.array(["c1"] * len(keys), pa.string())}))))
    assert [g for g in none.verdict["rest_of_groups"] if g["level"] == "crawl"] == []


def test_the_rollback_lies_before_the_first_guilty_step_and_its_cost_is_said() -> None:
    made, got = judged("near", 5, slab="near", slab_share=0.6, slab_steps=32)
    inputs = replace(made.inputs, checkpoints=tuple((s, None) for s in (made.onset - 30, made.onset - 1, made.onset, made.onset + 5)))
    v = attribute(inputs).verdict
    last = int(made.inputs.metrics["step"].to_numpy().max())
    assert v["rollback"]["step"] == made.onset - 1 and v["cost"]["steps_again"] == last - (made.onset - 1)
    assert f"{last - made.onset + 1:,} steps again" in v["action"]
    assert v["expected"]["harm_to_others_nats"] > 2 * v["expected"]["harm_error_nats"] > 0
    assert v["expected"]["updates_lost"] == sum(b - a for a, b in v["skip"]["steps"]) > 20
    assert -0.05 < v["expected"]["learning_rate_ahead"] < 0
    assert attribute(replace(made.inputs, checkpoints=((made.onset, None),))).verdict["cost"]["steps_again"] is None
    assert got.verdict["severity"] == "level_shift" and got.verdict["cost"]["going_back_pays"] is True


def test_descent_is_the_slope_of_the_loss_or_nothing() -> None:
    rng = np.random.default_rng(0)
    steps = np.arange(1, 2001)
    falling = Series(steps, 6 * steps**-0.2 + rng.normal(0, 0.01, 2000))
    assert descent(falling, 2000) == pytest.approx(0.2 * 6 * 2000**-1.2, rel=0.25)
    assert descent(Series(steps, 3 + rng.normal(0, 0.05, 2000)), 2000) == 0.0
    assert descent(Series(steps[:10], falling.values[:10]), 10) == 0.0


@pytest.mark.parametrize(("behind", "error", "again", "pays"), [(500, 50, 100, True), (20, 10, 300, False), (150, 60, 100, None), (5, 1, None, None)])
def test_going_back_pays_only_beyond_the_error(behind: float, error: float, again: int | None, pays: bool | None) -> None:
    cost = Cost(behind, error, again, 0.0, 0.0)
    assert cost.pays is pays and f"{behind:.0f} +- {error:.0f} steps behind" in cost.words
    assert Cost(float("nan"), float("nan"), None, 0.0, 0.0).words == ""
