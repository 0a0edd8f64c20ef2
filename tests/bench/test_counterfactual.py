"""Does what the tool prescribes remove the harm, and do control reruns change its answer? Small trainings run again from the state before the event.

Opt-in (`pytest tests/bench/test_counterfactual.py -s`; about five minutes of one core). A base is trained from a seed, then
runs with dirty data: template pages under an ordinary label in most of the tokens of 32 steps, ordinary documents with their
tokens in any order in a third of the tokens to the end, and encoded bytes in four tenths of 60 steps. Each is replayed from its own files; then it is
trained again from the state before the event without what the tool said to leave out, and without what was truly dirty. Of the
excess of held-out loss that the true set removes, the prescription must remove nine tenths, at no more than a quarter more
ordinary tokens. Logs of reruns are given back by `--experiment` as a user would.
`FORENSICS_LAB` may name a folder that keeps the trained base.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parent))
if TYPE_CHECKING:
    from lab.cases import Made, World

pytestmark = [pytest.mark.bench, pytest.mark.model]
SEED = 21


@dataclass(frozen=True)
class Lab:
    """A world and where its cases are written."""

    world: World
    folder: Path

    def case(self, kind: str, steps: int, share: float) -> Made:
        """A run with dirty data from the event on, and its description as `folder/run`."""
        from lab.cases import Plan, Slab, make

        return self.written(make(self.world, Plan(kind, "data", slabs=(Slab(kind, 0, steps, share),))))

    def written(self, made: Made) -> Made:
        from lab.layout import describe, write

        write(made, self.folder / "case")
        describe(made.case, self.folder / "case", self.folder / "run")
        return made

    def answer(self, made: Made, **reruns: Path) -> tuple[dict[str, Any], set[int], set[int]]:
        """The verdict on a window a user would ask for, steps to skip, documents to leave out."""
        from typer.testing import CliRunner

        from forensics.cli import app as cli

        if not cli.app.registered_commands:
            cli._register()
        start, out = made.truth["event_start_step"], self.folder / "answer"
        words = ["replay", str(self.folder / "run"), "--steps", f"{start - 4}:{start + 36}", "-o", str(out)]
        done = CliRunner().invoke(cli.app, [*words, *(x for name, log in reruns.items() for x in ("--experiment", f"{name}={log}"))])
        assert done.exit_code == 0, done.output
        rows = pq.read_table(out / "tables/skips.parquet").to_pylist()
        docs = {k & ((1 << 40) - 1) for r in rows if r["kind"] == "documents" for k in range(r["start"], r["stop"])}
        verdict = json.loads((out / "verdict.json").read_text())
        return verdict, {s for a, b in verdict["skip"]["steps"] for s in range(a, b)}, docs


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    from lab.cases import world

    return Lab(world(SEED, Path(os.environ.get("FORENSICS_LAB") or tmp_path)), tmp_path)


@pytest.mark.parametrize(("kind", "steps", "share"), [("template", 32, 0.7), ("tokens", 400, 0.3), ("base64", 60, 0.4)])
def test_prescription_removes_what_the_true_set_removes(lab: Lab, kind: str, steps: int, share: float) -> None:
    from lab.cases import excess, means, rerun
    from lab.layout import numbers

    made = lab.case(kind, steps, share)
    c, guilty = made.case, made.case.marked("guilty")
    verdict, skip, documents = lab.answer(made)
    named = np.isin(numbers(c), list(documents))
    dirty = excess(means(made.log), lab.world.clean)
    tokens = {k: c.of_labels(k) for k in range(c.first, c.last + 1)}
    if skip:
        true = set(made.truth["guilty_steps"])
        runs = rerun(c, steps=skip), rerun(c, steps=true)
        lost = [sum(int((~guilty[tokens[k]]).sum()) for k in s) for s in (skip, true)]
        allowed = 1.25 * lost[1]
    else:
        runs = rerun(c, docs=named), rerun(c, docs=guilty)
        lost = [sum(int((m & ~guilty)[x].sum()) for x in tokens.values()) for m in (named, guilty)]
        allowed = 0.25 * sum(int(guilty[x].sum()) for x in tokens.values())
    removed = [float(np.mean(list(excess(means(made.log), r).values()))) for r in runs]
    form, twin = f"{len(skip)} steps" if skip else f"{len(documents)} documents", lab.world.twin
    print(
        f"{kind:9} {verdict['cause']:5} skip {form:14} excess {np.mean(list(dirty.values())):.3f} peak {max(dirty.values()):.3f} removed {removed[0]:.3f}",
        end="",
    )
    print(f" by the true set {removed[1]:.3f} ({removed[0] / removed[1]:.0%}; scatter {twin:.3f}), ordinary tokens lost {lost[0]} against {lost[1]}")
    assert verdict["cause"] == "data"
    assert removed[1] > 3 * twin, "the case does no harm that could be removed"
    assert removed[0] >= 0.9 * removed[1]
    assert lost[0] <= allowed


def test_reruns_confirm_dirty_data_or_take_the_blame_from_it(lab: Lab) -> None:
    from lab.model import train

    made = lab.case("template", 32, 0.7)
    c, dirty = made.case, set(made.truth["guilty_steps"])
    last = max(dirty)

    def again(name: str, steps: Mapping[int, int | None]) -> Path:
        """The log of a rerun from before the event that reads the rows of other steps at these, or none."""
        assert lab.world.before is not None
        at = {k: k for k in range(lab.world.event, c.last + 1)} | dict(steps)
        log = train(lab.world.before.copy(), c.w.settings, lambda k: None if at[k] is None else c.batch(at[k]), c.last, val=c.w.val, keep=False)
        file = lab.folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(x) + "\n" for x in log.lines))
        return file

    same, without = again("same", {}), again("without", dict.fromkeys(dirty))
    ordinary = again("ordinary", {k: k for k in dirty} | dict.fromkeys(range(last + 1, last + 9)))
    plain, *_ = lab.answer(made)
    assert plain["cause"] == "data"
    proven, skip, _ = lab.answer(made, replay=same, removal=without, control=ordinary)
    assert (proven["cause"], proven["confidence"]) == ("data", "high") and skip
    assert "the event goes with the suspect documents and stays when as many ordinary ones are removed" in proven["evidence_for"]
    for reruns, cause in (({"replay": without}, "hardware"), ({"removal": same}, "numerics"), ({"removal": without, "control": without}, "interaction")):
        changed, skip, _ = lab.answer(made, **reruns)
        assert (changed["cause"], skip) == (cause, set()), reruns


def test_a_rerun_without_the_fault_shows_that_it_was_transient(lab: Lab) -> None:
    from lab.cases import Plan, make
    from lab.model import Fault, train

    made = lab.written(make(lab.world, Plan("fault", "transient_fault", faults=(Fault("weights", 4, 0, -10.0),))))
    plain, *_ = lab.answer(made)
    assert plain["cause"] in {"numerics", "hardware"} and plain["confidence"] != "high"
    assert lab.world.before is not None
    log = train(lab.world.before.copy(), made.case.w.settings, made.case.batch, made.case.last, val=made.case.w.val, keep=False)
    (lab.folder / "replay.jsonl").write_text("".join(json.dumps(x) + "\n" for x in log.lines))
    settled, *_ = lab.answer(made, replay=lab.folder / "replay.jsonl")
    assert (settled["cause"], settled["confidence"]) == ("hardware", "high")
