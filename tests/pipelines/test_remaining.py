"""Where guilty documents come up again, against the whole order read through."""

from dataclasses import replace

import forensics.pipelines.seen as module
import numpy as np
import pytest
from blend_run import Size, make_run
from forensics.pipelines.plan import Plan, ReplayConfig, plan_replay
from forensics.pipelines.remaining import Remaining, remaining

from forensics.documents.build import label_counts
from forensics.loaders.base import loader_of
from forensics.run import open_run
from forensics.schemas import CONSUMED, SKIPS, Consumed, Skips
from forensics.steps import StepRange

SIZE = Size(batch=4, width=64, before=40, after=60, corpora=3)
WINDOW = StepRange(45, 50)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    run = open_run(make_run(tmp_path_factory.mktemp("blend"), SIZE))
    return plan_replay(run, WINDOW, ReplayConfig(attribution={"follow": 5, "lookback": 4, "lookback_most": 4}))


def skips(keys: list[int]) -> Skips:
    n = len(keys)
    rows = {"kind": ["documents"] * n, "start": keys, "stop": [k + 1 for k in keys], "recommended": [True] * n, "reason": ["x"] * n, "tokens": [1] * n}
    return Skips(SKIPS.of(rows) if n else SKIPS.empty())


def test_what_is_found_is_what_the_order_holds(plan: Plan) -> None:
    order = list(loader_of(plan.run).consumed(plan.run, StepRange(plan.ranges.whole.stop, SIZE.steps + 1), 1))
    table = Consumed(CONSUMED.concat(order))
    step, key, labels = table["step"].to_numpy(), table["doc_key"].to_numpy(), label_counts(table)
    many = np.unique(key)[::5].tolist()
    hit = np.isin(key, many)
    found = remaining(plan, skips(many), 80, "megatron")
    assert found is not None and found.documents == len(many) and (found.after, found.known_to) == (80, SIZE.steps)
    assert found.trained == len(np.unique(step[hit & (step <= 80)])) > 0
    later = np.unique(step[hit & (step > 80)])
    assert (found.steps, found.first, found.last) == (len(later), later[0], later[-1])
    assert found.tokens == labels[hit & (step > 80)].sum()
    assert f"{len(later)} steps still to come" in found.words("megatron") and "--for megatron --after 80" in found.words("megatron")
    nothing = remaining(plan, skips(many), SIZE.steps, "plain")
    assert nothing is not None and nothing.steps == 0 and "not known here" in nothing.words("plain")


def test_documents_that_do_not_come_again_and_none_at_all(plan: Plan) -> None:
    loader = loader_of(plan.run)
    seen = {k for t in loader.consumed(plan.run, StepRange(1, SIZE.steps + 1)) for k in t["doc_key"].to_pylist()}
    never = [k for k in range(int(loader.corpora(plan.run)["documents"][0].as_py())) if k not in seen]
    found = remaining(plan, skips(never), 80, "megatron")
    assert never and found is not None and found.steps == 0 and found.why_not == ""
    assert found.words("megatron") == f"none of them is still to come (to step {SIZE.steps})"
    assert remaining(plan, skips([]), 80, "megatron") is None


def test_a_run_too_long_to_search_says_so(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 10)
    other = replace(plan, run=replace(plan.run, trainer="olmo"))
    found = remaining(other, skips([1]), 80, "olmo")
    assert found is not None and "rows" in found.why_not and "forensics locate" in found.words("olmo")
    assert Remaining(3, 10).words("x") == "what is read after step 10 is not known here"
