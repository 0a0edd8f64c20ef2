"""The whole of attribution on simulated incidents: each with a twin that differs in the cause alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from incidents import BASE, judged

from forensics.attribution import attribute, ranges
from forensics.attribution.attribute import Attribution
from forensics.attribution.inputs import Inputs, Rules
from forensics.config import build, preset
from forensics.errors import RunError
from forensics.reports.summary import verdict_lines
from forensics.schemas import FINDINGS, LOSSES, METRICS
from forensics.steps import StepRange

KEYS = {
    "window",
    "launch",
    "severity",
    "cause",
    "subcause",
    "confidence",
    "onset",
    "sentence",
    "evidence_for",
    "evidence_against",
    "not_evaluated",
    "action",
    "rollback",
    "skip",
}


def documents(got: Attribution) -> set[int]:
    return {k for r in got.skips.to_pylist() if r["kind"] == "documents" for k in range(r["start"], r["stop"])}


def check_form(v: dict[str, Any]) -> None:
    assert v.keys() >= KEYS
    assert v["severity"] in {"none", "returned", "slow", "level_shift", "diverging", "unknown"}
    assert v["cause"] in {"data", "numerics", "loader", "composition", "hardware", "interaction", "undetermined"}
    assert v["confidence"] in {"low", "medium", "high"}
    assert v["sentence"].endswith(".") and v["action"]


@pytest.mark.parametrize(
    ("kind", "share", "form"), [("backslashes", 1.0, "steps"), ("scrambled", 0.35, "documents"), ("near", 0.6, "steps"), ("mojibake", 0.3, "documents")]
)
def test_dirty_documents_are_named_with_their_steps(kind: str, share: float, form: str) -> None:
    made, got = judged(kind, 5, slab=kind, slab_share=share, slab_steps=32)
    v = got.verdict
    check_form(v)
    assert v["cause"] == "data" and abs(v["onset"] - made.onset) <= 2
    named = documents(got)
    assert len(named & made.guilty_docs) >= 0.85 * len(made.guilty_docs)
    assert len(named & made.guilty_docs) >= 0.9 * len(named)
    skipped = {s for a, b in v["skip"]["steps"] for s in range(a, b)}
    assert bool(skipped) == (form == "steps")
    if skipped:
        assert len(skipped & made.guilty_steps) >= 0.9 * len(made.guilty_steps)
        assert len(skipped - made.guilty_steps) <= 0.25 * len(made.guilty_steps)
    assert v["rollback"]["step"] is None or v["rollback"]["step"] < made.onset
    assert v["expected"]["dirty_tokens_covered"] >= 0.9


def test_the_same_run_without_the_documents_has_nothing_to_name() -> None:
    _, got = judged("clean", 5, window=(BASE + 60, BASE + 100))
    check_form(got.verdict)
    assert got.verdict["cause"] != "data" and got.verdict["severity"] == "none" and documents(got) == set()
    assert got.verdict["action"].startswith("do nothing")


def test_an_event_after_the_window_is_not_taken_for_it() -> None:
    _, got = judged("later", 6, slab="mojibake", slab_steps=24, event=96, window=(BASE + 12, BASE + 44))
    assert got.verdict["cause"] != "data" and documents(got) == set()


def test_dirt_outside_the_window_takes_nothing_from_the_proof() -> None:
    _, got = judged("later", 6, slab="repetition", slab_steps=32, event=112, window=(BASE + 60, BASE + 68))
    assert got.decision.primary is None
    assert got.verdict["proof"]["answer"] == "proven" and "loss curve: proven" in got.verdict["proof"]["sentence"]


def test_a_wanted_language_is_no_dirt_and_the_same_under_a_false_label_is() -> None:
    made, got = judged("language", 7, slab="foreign", slab_share=0.35, slab_steps=64, slab_label="intl-web")
    assert got.verdict["cause"] == "composition" and abs(got.verdict["onset"] - made.onset) <= 2 and documents(got) == set()
    _, lie = judged("lie", 7, slab="foreign", slab_share=0.35, slab_steps=64)
    assert lie.verdict["cause"] == "data" and lie.verdict["subcause"] == "mislabelled"


def test_a_mix_of_known_sources_is_composition() -> None:
    _, got = judged("mix", 8, mix=(0.1, 0.75, 0.05, 0.1), declared=True)
    assert got.verdict["cause"] == "composition" and got.verdict["confidence"] == "high"
    assert any("announced" in x for x in got.verdict["evidence_for"])


@pytest.mark.parametrize(("loader", "ranks", "sub"), [("stale", 1, "stale_position"), ("ranks", 4, "duplicated_ranks")])
def test_orders_at_fault(loader: str, ranks: int, sub: str) -> None:
    made, got = judged(loader, 9, loader=loader, ranks=ranks, loader_steps=20)
    assert (got.verdict["cause"], got.verdict["subcause"]) == ("loader", sub)
    assert abs(got.verdict["onset"] - made.onset) <= 1 and got.verdict["skip"]["steps"] == []
    steps = got.steps.to_pydict()
    again = {s for s, n in zip(steps["step"], steps["repeated_tokens"], strict=True) if n}
    assert again >= set(range(made.onset, made.onset + 20))


@pytest.mark.parametrize("fault", ["lr_jump", "weights", "fp16", "rewarm"])
def test_faults_are_not_blamed_on_documents(fault: str) -> None:
    made, got = judged(fault, 10, fault=fault)
    assert got.verdict["cause"] in {"numerics", "hardware"} and documents(got) == set() and got.verdict["skip"]["steps"] == []
    assert fault == "fp16" or abs(got.verdict["onset"] - made.onset) <= 2


def test_dirt_long_before_a_fault_stays_a_bystander() -> None:
    _, got = judged("bystander", 11, fault="weights", bystander="scrambled", bystander_at=-28, bystander_steps=8, bystander_share=0.5)
    assert got.verdict["cause"] in {"numerics", "hardware"} and documents(got) == set()


def test_without_losses_the_documents_are_still_found() -> None:
    made, got = judged("no losses", 12, slab="repetition", slab_share=0.7, recorded=False)
    assert got.verdict["cause"] == "data" and len(documents(got) & made.guilty_docs) >= 0.85 * len(made.guilty_docs)
    assert any("no losses" in x["why"] for x in got.verdict["not_evaluated"])


def test_results_do_not_depend_on_the_order_of_rows() -> None:
    made, got = judged("near", 5, slab="near", slab_share=0.6, slab_steps=32)
    i: Inputs = made.inputs
    rng = np.random.default_rng(0)
    mixed = {n: getattr(i, n).take(pa.array(rng.permutation(getattr(i, n).num_rows))) for n in ("consumed", "documents", "metrics", "losses")}
    again = attribute(replace(i, **mixed))
    assert again.verdict == got.verdict and again.skips.equals(got.skips) and again.steps.equals(got.steps)


def test_a_rerun_overrules_the_rules() -> None:
    made, got = judged("weights", 10, fault="weights")
    rows = made.inputs.metrics.to_pandas()
    loss = rows[rows["metric"] == "train_loss"].copy()
    after = loss["step"] >= made.onset
    loss.loc[after, "value"] = 4.6 + np.random.default_rng(0).normal(0, 0.15, int(after.sum()))
    rerun = METRICS.of(
        pa.table({"run": ["r"] * len(loss), "metric": ["train_loss"] * len(loss), "step": loss["step"].to_list(), "value": loss["value"].to_list()})
    )
    v = attribute(replace(made.inputs, experiments={"replay": rerun})).verdict
    assert v["cause"] == "hardware" and v["confidence"] == "high" and any(x.startswith("experiment replay") for x in v["evidence_for"])
    w = attribute(replace(made.inputs, experiments={"removal": rerun, "control": rerun})).verdict
    assert w["cause"] == "interaction"
    assert got.verdict["cause"] == "numerics"


def test_findings_of_detectors_name_the_kind() -> None:
    made, _ = judged("hex", 13, slab="hex", slab_share=0.6)
    keys = sorted(made.guilty_docs)
    found = FINDINGS.of(
        pa.table(
            {
                "doc_key": keys,
                "detector": ["encoded"] * len(keys),
                "measure": ["m"] * len(keys),
                "cause": ["encoded"] * len(keys),
                "primary": [True] * len(keys),
                "garbage": [True] * len(keys),
                "version": pa.array([1] * len(keys), pa.int16()),
                "value": pa.array([1.0] * len(keys), pa.float32()),
                "threshold": pa.array([0.5] * len(keys), pa.float32()),
            }
        )
    )
    got = attribute(replace(made.inputs, findings=found))
    assert got.verdict["subcause"] == "encoded"
    flagged = sum(x or 0 for x in got.steps.column("flagged_tokens").to_pylist())
    assert flagged > 0


def test_losses_in_bits_stop_with_a_hint() -> None:
    made, _ = judged("near", 5, slab="near", slab_share=0.6, slab_steps=32)
    t = made.inputs.losses
    bits = t.set_column(t.column_names.index("loss_sum"), "loss_sum", pa.array(t.column("loss_sum").to_numpy() / np.log(2)))
    with pytest.raises(RunError, match="bits"):
        attribute(replace(made.inputs, losses=LOSSES.of(bits)))


def under_a_checkpoint(made: Any, change: Any) -> Inputs:
    """The inputs with the losses of the scored checkpoint, and its step, changed."""
    t = made.inputs.losses
    origin, value = np.array(t.column("origin").to_pylist(), dtype=object), t.column("loss_sum").to_numpy().copy()
    mine = np.array([o.startswith("checkpoint:") for o in origin])
    assert mine.any()
    origin[mine], value[mine] = change(origin[mine], value[mine])
    columns = {n: t[n] for n in t.column_names}
    return replace(made.inputs, losses=LOSSES.of(pa.table({**columns, "origin": pa.array(origin, pa.string()), "loss_sum": value})))


def test_losses_of_a_checkpoint_in_bits_stop_too() -> None:
    made, _ = judged("near", 5, slab="near", slab_share=0.6, slab_steps=32)
    with pytest.raises(RunError, match=r"checkpoint:\d+` look like bits"):
        attribute(under_a_checkpoint(made, lambda o, v: (o, v / np.log(2))))
    attribute(under_a_checkpoint(made, lambda o, v: (o, v * 1.3)))  # only a worse checkpoint


def test_a_checkpoint_from_after_the_event_began_is_said() -> None:
    made, got = judged("near", 5, slab="near", slab_share=0.6, slab_steps=32)
    late = attribute(under_a_checkpoint(made, lambda o, v: (f"checkpoint:{made.onset + 20}", v))).verdict
    said = [x["why"] for x in late["not_evaluated"] if x["what"].startswith("drift of ordinary")]
    assert said and f"step {made.onset + 20}, which had seen" in said[0] and late["cause"] == "data"
    assert not [x for x in got.verdict["not_evaluated"] if x["what"].startswith("drift of ordinary")]


def test_losses_of_other_rows_are_left_out_and_said() -> None:
    made, _ = judged("near", 5, slab="near", slab_share=0.6, slab_steps=32)
    t = made.inputs.losses
    rng = np.random.default_rng(0)
    mean = t.column("loss_sum").to_numpy() / np.maximum(t.column("predicted").to_numpy(), 1)
    wrong = t.set_column(t.column_names.index("loss_sum"), "loss_sum", pa.array(rng.permutation(mean) * t.column("predicted").to_numpy()))
    v = attribute(replace(made.inputs, losses=LOSSES.of(wrong))).verdict
    assert any("do not follow" in x["why"] for x in v["not_evaluated"])


def test_losses_of_some_ranks_are_used_and_said() -> None:
    made, _ = judged("near", 5, slab="near", slab_share=0.6, slab_steps=32)
    half = made.inputs.losses.filter(pc.less(made.inputs.losses["sequence"], 4))
    v = attribute(replace(made.inputs, losses=LOSSES.of(half))).verdict
    assert v["cause"] == "data" and "the records cover 50 % of the tokens" in [x["why"] for x in v["not_evaluated"]]


def test_means_of_whole_steps_are_spread_over_no_documents() -> None:
    made, _ = judged("near", 5, slab="near", slab_share=0.6, slab_steps=32)
    t = made.inputs.losses.filter(pc.equal(made.inputs.losses["origin"].cast(pa.string()), "recorded"))
    coarse = t.group_by(["launch", "step"], use_threads=False).aggregate([("predicted", "sum"), ("loss_sum", "sum")])
    n = coarse.num_rows
    unknown = {"sequence": [None] * n, "seq_start": [None] * n, "doc_key": [None] * n, "origin": ["recorded"] * n}
    sums = {"predicted": coarse["predicted_sum"].cast(pa.int32()), "loss_sum": coarse["loss_sum_sum"]}
    got = attribute(replace(made.inputs, losses=LOSSES.of({"launch": coarse["launch"], "step": coarse["step"], **unknown, **sums})))
    assert got.verdict["cause"] == "data" and got.evidence.excess is None
    assert any("no losses per document" in x["why"] for x in got.verdict["not_evaluated"])


@pytest.mark.parametrize("kind", ["hex", "scrambled", "template"])
def test_where_all_documents_are_odd_none_is_called_so(kind: str) -> None:
    _, got = judged("all odd", 5, slab=kind, slab_share=1.0, slab_steps=400, event=8, after=180, window=(BASE + 90, BASE + 120))
    check_form(got.verdict)
    assert got.verdict["cause"] != "data" and documents(got) == set() and got.verdict["skip"]["steps"] == []


def test_a_window_of_one_step_and_one_without_a_past_are_answered() -> None:
    made, _ = judged("clean", 5, window=(BASE + 60, BASE + 100))
    for window in ((BASE + 70, BASE + 71), (BASE + 1, BASE + 30)):
        got = attribute(replace(made.inputs, window=StepRange(*window)))
        check_form(got.verdict)
        assert got.verdict["cause"] != "data"
    assert any("baseline" in n for n in attribute(replace(made.inputs, window=StepRange(BASE + 1, BASE + 30))).verdict["notes"])


def test_ranges_keep_the_look_back_out_of_the_baseline() -> None:
    got = ranges(StepRange(1000, 1040), 1, 5000, Rules())
    assert (got.lookback, got.baseline, got.after) == (StepRange(960, 1000), StepRange(704, 960), StepRange(1040, 1296))
    slow = ranges(StepRange(1000, 1040), 1, 5000, Rules(), optimizer={"betas": [0.9, 0.99]})
    assert slow.lookback == StepRange(800, 1000)
    short = ranges(StepRange(60, 100), 40, 5000, Rules())
    assert short.notes and (short.baseline is None or short.lookback is None or short.baseline.stop <= short.lookback.start)


def test_the_shipped_thresholds_are_the_defaults() -> None:
    assert build(Rules, preset("attribution/default"), "attribution/default") == Rules()


def test_beside_a_confidence_stands_how_often_it_was_right() -> None:
    known = preset("attribution/measured")
    assert known.keys() <= {"data", "numerics", "loader", "composition", "hardware", "interaction", "undetermined"}
    assert all(c in {"low", "medium", "high"} and 0 <= right <= of for rates in known.values() for c, (right, of) in rates.items())
    _, got = judged("near", 5, slab="near", slab_share=0.6, slab_steps=32)
    right, of = known["data"][got.verdict["confidence"]]
    assert got.verdict["measured"][-1] == {"on": "generated incidents", "right": right, "of": of}
    assert f"{right} of {of} generated incidents" in verdict_lines(got.verdict)[1]
    assert "generated" not in verdict_lines({**got.verdict, "measured": []})[1]
