"""The proof on 256 x 1,024 tokens a step: a really trained tiny model, its right description, and more than a hundred wrong ones.

`python tests/bench/large_batch.py FOLDER` makes the case (some ten minutes of one core); name it by FORENSICS_LARGE_BATCH, or
this test makes it. Prints r, its standard error, and how many answers of each kind wrong descriptions got.
"""

import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from forensics.pipelines import verify as proof

from forensics.attribution.signals import Series
from forensics.attribution.verify import compare
from forensics.run import open_run
from forensics.steps import StepRange

pytestmark = pytest.mark.bench
BATCH, AFTER = 256, 30  # sequences of a step; steps of the warm-up
BLEND = "[{}, data/library_text_document, {}, data/tests_text_document]"


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Path:
    if named := os.environ.get("FORENSICS_LARGE_BATCH"):
        return Path(named)
    pytest.importorskip("torch", reason="training needs the extra `model`")
    sys.path.insert(0, str(Path(__file__).parent))
    from large_batch import make

    return make(tmp_path_factory.mktemp("large"))


def shown(done: proof.Verified) -> str:
    w = done.checked.holding.whole
    other = max(v for k, v in w.r.items() if k)
    return f"{done.answer}, r {w.r[0]:.2f}, others at most {other:.2f}, standard error {w.error:.3f}, {w.points} points, reliability {w.reliability:.2f}"


@pytest.mark.parametrize("tokens", [None, 1 << 25])
def test_the_right_description_is_proven(case, tokens) -> None:
    done = proof.verify(case, tokens=tokens)
    print(f"\n{tokens or 'default'} tokens: {shown(done)}")
    assert done.answer == "proven"


@pytest.mark.parametrize("points", [40, 60, 80, 100])
def test_how_many_points_it_takes(case, points) -> None:
    done = proof.verify(case, steps=StepRange(AFTER, AFTER + points), tokens=1 << 25)
    print(f"\n{points} steps after the warm-up: {shown(done)}")
    assert done.answer == "proven" or points < 60


WRONG = [
    *(("offset", f"launches=[{{after_step: 10, consumed: {(10 + k) * BATCH}, last_step: 120}}]", k) for k in (-3, -2, -1, 1, 2, 3)),
    *(("seed", f"args.seed={n}", 0) for n in range(40)),
    *(("split", f"args.split='{s}'", 0) for s in ("969,31,0", "900,100,0", "989,11,0", "995,5,0", "100,0,0", "980,10,10")),
    *(("train_iters", f"args.train_iters={n}", 0) for n in (220, 300, 400, 700, 1000, 5000)),
    *(("weights", f"args.data_path={BLEND.format(w, round(1 - w, 3))}", 0) for w in (0.5, 0.6, 0.65, 0.68, 0.69, 0.71, 0.72, 0.75, 0.8, 0.9)),
    ("order of the blend", "args.data_path=[0.3, data/tests_text_document, 0.7, data/library_text_document]", 0),
    ("length", "args.seq_length=512", 0),
    ("length", "args.seq_length=2048", 0),
]


def test_wrong_descriptions_are_never_proven(case) -> None:
    """Other options: contradicted or the right k; nothing is asked of those that read the very rows of the run."""
    log = proof.read_log([case / "log.txt"])
    right = proof.check("right", open_run(case), log)
    found: Counter[tuple[str, str]] = Counter()
    for kind, setting, k in WRONG:
        done = proof.verify(case, [setting])
        named = done.checked.holding.whole.lag if done.answer == "off_by_k" else 0
        same = done.checked.data == right.data
        found[
            kind,
            "the same rows"
            if same
            else "proven but for a few rows, as said"
            if done.answer == "proven"
            else f"{done.answer}{'' if named == k else ' with another k'}",
        ] += 1
        told = not same and not done.checked.untold  # a blend turned round moves less than one row in 256, and the answer says so
        assert not told or done.answer != "proven", (setting, shown(done))
        assert named == k, (setting, shown(done))
    print("\n" + "\n".join(f"{kind}: {answer}: {n}" for (kind, answer), n in sorted(found.items())))


def test_shuffled_orders_are_never_proven(case) -> None:
    """The right steps in another order: all of them shuffled, or within 16 and 8 steps."""
    log = proof.read_log([case / "log.txt"])
    steps, difficulty, free = proof.check("right", open_run(case), log, tokens=1 << 25).curve
    loss = Series(log[0].steps, log[0].values)
    for block in (len(steps), 16, 8):
        found: Counter[str] = Counter()
        for seed in range(60):
            rng, order = np.random.default_rng(seed), np.arange(len(steps))
            for a in range(0, len(steps), block):
                order[a : a + block] = rng.permutation(order[a : a + block])
            found[compare(steps, difficulty[order], loss, free).answer] += 1
        print(f"\nshuffled within {block}: {dict(found)}")
        assert not found["proven"]
